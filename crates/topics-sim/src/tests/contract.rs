//! The file system contract, on every available backend.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use topics_env::real::{Backend, OsRng, RealFs, SystemClock, real_env};
use topics_env::{Clock, DirEntry, LockError, Rng, WriteSyncError};

use super::*;

struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir().join(format!("topics-env-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a test on each backend, each in its own directory.
fn each(test: impl Fn(&dyn Fs, &Path)) {
    let temp = TempDir::new();
    test(&RealFs::new(), &temp.0);
    #[cfg(target_os = "linux")]
    match topics_env::uring::UringFs::new() {
        Ok(fs) => {
            let temp = TempDir::new();
            test(&fs, &temp.0);
        }
        Err(e) => println!("io_uring is not tested: {e}"),
    }
    let fs = SimFs::new();
    fs.create_dir(Path::new("/d")).unwrap();
    test(&fs, Path::new("/d"));
}

fn kind<T>(result: io::Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
}

fn read_all(fs: &dyn Fs, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn open_modes() {
    each(|fs, dir| {
        let path = dir.join("a");
        assert_eq!(kind(fs.open(&path, OpenMode::Read)), ErrorKind::NotFound);
        assert_eq!(kind(fs.open(&path, OpenMode::Write)), ErrorKind::NotFound);
        let file = fs.open(&path, OpenMode::CreateNew).unwrap();
        file.write_all_at(b"hello", 0).unwrap();
        assert_eq!(kind(fs.open(&path, OpenMode::CreateNew)), ErrorKind::AlreadyExists);
        let reader = fs.open(&path, OpenMode::Read).unwrap();
        assert!(reader.write_at(b"x", 0).is_err());
        fs.open(&path, OpenMode::Write).unwrap().write_all_at(b"J", 0).unwrap();
        assert_eq!(read_all(fs, &path), b"Jello");
        assert!(fs.open(&path, OpenMode::Truncate).unwrap().is_empty().unwrap());
        assert_eq!(kind(fs.open(&dir.join("x/y"), OpenMode::CreateNew)), ErrorKind::NotFound);
    });
}

#[test]
fn reads_writes_and_lengths() {
    each(|fs, dir| {
        let file = fs.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        file.write_all_at(b"end", 9_000).unwrap();
        assert_eq!(file.len().unwrap(), 9_003);
        let mut buf = [7; 8];
        assert_eq!(file.read_at(&mut buf, 8_996).unwrap(), 7);
        assert_eq!(&buf, b"\0\0\0\0end\x07");
        assert_eq!(file.read_at(&mut buf, 9_003).unwrap(), 0);
        assert_eq!(kind(file.read_exact_at(&mut buf, 9_000)), ErrorKind::UnexpectedEof);
        file.set_len(9_001).unwrap();
        file.set_len(10_000).unwrap();
        file.read_exact_at(&mut buf, 8_998).unwrap();
        assert_eq!(&buf, b"\0\0e\0\0\0\0\0");
        file.allocate(5_000).unwrap();
        assert_eq!(file.len().unwrap(), 10_000);
        file.allocate(20_000).unwrap();
        file.allocate(0).unwrap();
        assert_eq!(file.len().unwrap(), 20_000);
        file.read_exact_at(&mut buf, 19_992).unwrap();
        assert_eq!(buf, [0; 8]);
        file.sync_data().unwrap();
    });
}

#[test]
fn write_sync_writes_all_of_it() {
    each(|fs, dir| {
        let path = dir.join("a");
        let file = fs.open(&path, OpenMode::CreateNew).unwrap();
        let mut expected = Vec::new();
        for (i, len) in [0, 1, 511, 4_096, 70_001, 3_000_000].into_iter().enumerate() {
            let chunk = vec![i as u8 + 1; len];
            file.write_sync_at(&chunk, expected.len() as u64).unwrap();
            expected.extend(chunk);
        }
        file.write_sync_at(b"over", 2).unwrap();
        expected[2..6].copy_from_slice(b"over");
        assert_eq!(read_all(fs, &path), expected);
        let reader = fs.open(&path, OpenMode::Read).unwrap();
        assert!(matches!(reader.write_sync_at(b"no", 0), Err(WriteSyncError::Write(_))));
    });
}

/// Several threads share the rings of one file system.
#[test]
fn write_sync_from_many_threads() {
    each(|fs, dir| {
        let path = dir.join("a");
        let file = fs.open(&path, OpenMode::CreateNew).unwrap();
        std::thread::scope(|scope| {
            for t in 0..8_u64 {
                let file = &file;
                scope.spawn(move || {
                    for i in 0..20 {
                        let at = (i * 8 + t) * 1_000;
                        file.write_sync_at(&[t as u8 + 1; 1_000], at).unwrap();
                    }
                });
            }
        });
        let bytes = read_all(fs, &path);
        assert_eq!(bytes.len(), 160_000);
        assert!(bytes.iter().enumerate().all(|(i, &b)| b as usize == i / 1_000 % 8 + 1));
    });
}

#[test]
fn names() {
    each(|fs, dir| {
        let (a, b, sub) = (dir.join("a"), dir.join("b"), dir.join("sub"));
        fs.open(&a, OpenMode::CreateNew).unwrap().write_all_at(b"1", 0).unwrap();
        fs.open(&b, OpenMode::CreateNew).unwrap().write_all_at(b"2", 0).unwrap();
        fs.create_dir(&sub).unwrap();
        assert_eq!(kind(fs.create_dir(&sub)), ErrorKind::AlreadyExists);
        let entry = |name: &str, is_dir| DirEntry { name: name.to_owned(), is_dir };
        assert_eq!(
            fs.list(dir).unwrap(),
            [entry("a", false), entry("b", false), entry("sub", true)]
        );
        let old = fs.open(&b, OpenMode::Read).unwrap();
        assert_eq!(old.links().unwrap(), 1);
        fs.rename(&a, &b).unwrap();
        assert!(!fs.exists(&a).unwrap() && fs.exists(&b).unwrap());
        assert_eq!(read_all(fs, &b), b"1");
        let mut byte = [0];
        old.read_exact_at(&mut byte, 0).unwrap();
        assert_eq!((&byte, old.links().unwrap()), (b"2", 0), "an open file outlives its name");
        assert_eq!(kind(fs.rename(&a, &b)), ErrorKind::NotFound);
        fs.rename(&b, &sub.join("c")).unwrap();
        assert_eq!(kind(fs.remove_dir(&sub)), ErrorKind::DirectoryNotEmpty);
        fs.sync_dir(&sub).unwrap();
        fs.remove_file(&sub.join("c")).unwrap();
        assert_eq!(kind(fs.remove_file(&sub.join("c"))), ErrorKind::NotFound);
        fs.remove_dir(&sub).unwrap();
        assert_eq!(kind(fs.list(&sub)), ErrorKind::NotFound);
        assert_eq!(kind(fs.sync_dir(&sub)), ErrorKind::NotFound);
        fs.sync_dir(dir).unwrap();
        match fs.sync_fs(dir) {
            Ok(()) => {}
            Err(e) => assert_eq!(e.kind(), ErrorKind::Unsupported),
        }
        assert!(fs.list(dir).unwrap().is_empty());
    });
}

#[test]
fn a_hard_link_is_the_same_file_under_another_name() {
    each(|fs, dir| {
        let (a, b) = (dir.join("a"), dir.join("b"));
        assert_eq!(kind(fs.hard_link(&a, &b)), ErrorKind::NotFound);
        let file = fs.open(&a, OpenMode::CreateNew).unwrap();
        file.write_all_at(b"1", 0).unwrap();
        fs.hard_link(&a, &b).unwrap();
        assert_eq!(file.links().unwrap(), 2);
        assert_eq!(kind(fs.hard_link(&a, &b)), ErrorKind::AlreadyExists);
        file.write_all_at(b"2", 1).unwrap();
        assert_eq!(read_all(fs, &b), b"12");
        fs.remove_file(&a).unwrap();
        assert_eq!((file.links().unwrap(), read_all(fs, &b)), (1, b"12".to_vec()));
        fs.remove_file(&b).unwrap();
    });
}

#[test]
fn a_lock_knows_whether_its_file_still_has_its_name() {
    each(|fs, dir| {
        let path = dir.join(".lock");
        assert!(
            matches!(fs.lock_file(&path), Err(LockError::Io(e)) if e.kind() == ErrorKind::NotFound)
        );
        let guard = fs.lock(&path, b"me").unwrap();
        assert!(guard.is_named().unwrap());
        fs.remove_file(&path).unwrap();
        assert!(!guard.is_named().unwrap());
        let second = fs.lock(&path, b"other").unwrap();
        assert!(!guard.is_named().unwrap());
        assert!(second.is_named().unwrap());
        // An existing file is locked without a change of its content.
        let file = dir.join("STORE");
        fs.open(&file, OpenMode::CreateNew).unwrap().write_all_at(b"id", 0).unwrap();
        let held = fs.lock_file(&file).unwrap();
        assert!(matches!(fs.lock_file(&file), Err(LockError::Held(_))));
        assert_eq!(read_all(fs, &file), b"id");
        drop(held);
        let _again = fs.lock_file(&file).unwrap();
    });
}

#[test]
fn lock_is_exclusive_and_names_its_holder() {
    each(|fs, dir| {
        let path = dir.join(".lock");
        let guard = fs.lock(&path, b"a long description").unwrap();
        assert!(
            matches!(fs.lock(&path, b"me"), Err(LockError::Held(c)) if c == b"a long description")
        );
        guard.describe(b"short").unwrap();
        assert!(matches!(fs.lock(&path, b"me"), Err(LockError::Held(c)) if c == b"short"));
        assert_eq!(read_all(fs, &path), b"short");
        drop(guard);
        let _again = fs.lock(&path, b"me").unwrap();
        assert_eq!(read_all(fs, &path), b"me");
        assert!(matches!(fs.lock(&dir.join("x/y"), b""), Err(LockError::Io(_))));
    });
}

#[test]
fn descriptors_are_counted_by_the_system() {
    let most = topics_env::real::RealFs::new().fd_limit();
    assert!(most.is_none_or(|n| n > 16), "{most:?}");
    for (code, none) in [(24, true), (23, true), (28, false), (5, false)] {
        assert_eq!(
            topics_env::is_fd_exhausted(&std::io::Error::from_raw_os_error(code)),
            none,
            "{code}"
        );
    }
}

#[test]
fn identity_of_boot_and_mount() {
    each(|fs, dir| {
        assert_eq!(fs.boot_id().unwrap(), fs.boot_id().unwrap());
        assert_ne!(fs.boot_id().unwrap(), [0; 16]);
        assert_eq!(fs.mount_id(dir).unwrap(), fs.mount_id(dir).unwrap());
        assert!(fs.free_space(dir).unwrap() > 0);
    });
    #[cfg(target_os = "linux")]
    {
        let (a, b) = (RealFs::new(), RealFs::new());
        assert_eq!(a.boot_id().unwrap(), b.boot_id().unwrap());
        let proc = a.mount_id(Path::new("/proc")).unwrap();
        assert_ne!(proc, a.mount_id(Path::new("/")).unwrap());
    }
}

#[cfg(unix)]
#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let temp = TempDir::new();
    let fs = RealFs::new();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    let (dir, file, lock) = (temp.0.join("d"), temp.0.join("f"), temp.0.join("l"));
    fs.create_dir(&dir).unwrap();
    fs.open(&file, OpenMode::CreateNew).unwrap();
    let _guard = fs.lock(&lock, b"").unwrap();
    assert_eq!((mode(&dir), mode(&file), mode(&lock)), (0o700, 0o600, 0o600));
}

#[test]
fn backends() {
    assert_eq!(real_env(Backend::Posix).unwrap().fs.backend(), "posix");
    assert_eq!(real_env(Backend::Auto).unwrap().fs.backend(), "posix");
    if let Ok(env) = real_env(Backend::Uring) {
        assert_eq!(env.fs.backend(), "uring");
    }
}

#[test]
fn clock_and_entropy() {
    let clock = SystemClock;
    let (a, b) = (clock.mono_ns(), clock.mono_ns());
    assert!(a > 0 && b >= a);
    assert!(clock.wall_ms() > 1_700_000_000_000);
    let rng = OsRng::new().unwrap();
    assert_ne!(rng.next_u64(), rng.next_u64());
}

/// An error tells whether the write or the sync failed, on both backends.
#[cfg(target_os = "linux")]
#[test]
fn write_sync_names_the_half_that_failed() {
    let mut backends: Vec<Arc<dyn Fs>> = vec![Arc::new(RealFs::new())];
    backends.extend(topics_env::uring::UringFs::new().ok().map(|fs| Arc::new(fs) as Arc<dyn Fs>));
    for fs in backends {
        let full = fs.open(Path::new("/dev/full"), OpenMode::Write).unwrap();
        let error = full.write_sync_at(b"bytes", 0).unwrap_err();
        assert!(matches!(error, WriteSyncError::Write(e) if e.kind() == ErrorKind::StorageFull));
        let null = fs.open(Path::new("/dev/null"), OpenMode::Write).unwrap();
        let error = null.write_sync_at(b"bytes", 0).unwrap_err();
        assert!(matches!(error, WriteSyncError::Sync(e) if e.kind() == ErrorKind::InvalidInput));
    }
}
