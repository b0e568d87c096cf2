//! The read-only view of `topics-env` over a simulated disk.

use std::io;
use std::path::Path;
use std::sync::Arc;

use topics_env::{File, Fs, LockError, OpenMode, Overlay};

use crate::SimFs;

fn text(fs: &dyn Fs, path: &str) -> Vec<u8> {
    let file = fs.open(Path::new(path), OpenMode::Read).unwrap();
    let mut out = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut out, 0).unwrap();
    out
}

fn names(fs: &dyn Fs, dir: &str) -> Vec<String> {
    fs.list(Path::new(dir)).unwrap().into_iter().map(|e| e.name).collect()
}

#[test]
fn the_base_never_changes() {
    let base = Arc::new(SimFs::new());
    base.create_dir(Path::new("/d")).unwrap();
    let long = [7u8; 200_000];
    for (name, bytes) in [("/d/a", &b"abc"[..]), ("/d/b", &long), ("/d/c", b"c")] {
        let file = base.open(Path::new(name), OpenMode::CreateNew).unwrap();
        file.write_all_at(bytes, 0).unwrap();
    }
    let fs = Overlay::new(base.clone());
    let open = |name: &str, mode| fs.open(Path::new(name), mode);
    let b = open("/d/b", OpenMode::Write).unwrap();
    b.write_all_at(b"xy", 131_071).unwrap();
    b.set_len(150_000).unwrap();
    b.allocate(160_000).unwrap();
    let mut want = long[..150_000].to_vec();
    want[131_071..131_073].copy_from_slice(b"xy");
    want.resize(160_000, 0);
    assert!(text(&fs, "/d/b") == want);
    fs.rename(Path::new("/d/a"), Path::new("/d/e")).unwrap();
    fs.remove_file(Path::new("/d/c")).unwrap();
    open("/d/f", OpenMode::CreateNew).unwrap().write_all_at(b"f", 2).unwrap();
    fs.create_dir(Path::new("/d/g")).unwrap();
    open("/d/g/h", OpenMode::Truncate).unwrap();
    assert_eq!(names(&fs, "/d"), ["b", "e", "f", "g"]);
    assert_eq!(names(&fs, "/d/g"), ["h"]);
    assert_eq!((text(&fs, "/d/e"), text(&fs, "/d/f")), (b"abc".to_vec(), b"\0\0f".to_vec()));
    let kind = |e: io::Result<Arc<dyn File>>| e.map(drop).unwrap_err().kind();
    assert_eq!(kind(open("/d/c", OpenMode::Read)), io::ErrorKind::NotFound);
    assert_eq!(kind(open("/d/a", OpenMode::Write)), io::ErrorKind::NotFound);
    assert_eq!(kind(open("/d/f", OpenMode::CreateNew)), io::ErrorKind::AlreadyExists);
    assert!(fs.exists(Path::new("/d/g")).unwrap() && !fs.exists(Path::new("/d/a")).unwrap());
    open("/d/c", OpenMode::CreateNew).unwrap();
    assert_eq!(text(&fs, "/d/c"), b"");
    assert_eq!(names(&*base, "/d"), ["a", "b", "c"]);
    assert!(text(&*base, "/d/b") == long);
    assert_eq!((text(&*base, "/d/a"), text(&*base, "/d/c")), (b"abc".to_vec(), b"c".to_vec()));
}

#[test]
fn readers_share_a_lock_and_a_writer_excludes_them() {
    let base = Arc::new(SimFs::new());
    let path = Path::new("/lock");
    let reader = || Overlay::new(base.clone());
    // A copy of a directory that was never opened has no lock file.
    let copies = (reader().lock(path, b"1").unwrap(), reader().lock(path, b"2").unwrap());
    assert!(!base.exists(path).unwrap());
    drop(copies);
    let writer = base.lock(path, b"writer").unwrap();
    match reader().lock(path, b"reader") {
        Err(LockError::Held(content)) => assert_eq!(content, b"writer"),
        other => panic!("{other:?}"),
    }
    drop(writer);
    let readers = (reader().lock(path, b"1").unwrap(), reader().lock(path, b"2").unwrap());
    assert!(matches!(base.lock(path, b"writer"), Err(LockError::Held(_))));
    drop(readers);
    assert!(base.lock(path, b"writer").is_ok());
}
