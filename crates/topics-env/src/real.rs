//! The operating system: files through rustix, clocks, entropy.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::sync::Mutex;
use crate::{DirEntry, File, Fs, LockError, LockGuard, OpenMode, Rng};

mod system;

mod held;

use held::LockedFile;
pub use held::close_locks_in_child;
pub use system::{Backend, OsRng, SystemClock, real_env};

const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const DIR_MODE: Mode = Mode::from_raw_mode(0o700);

/// Files of the operating system, through plain calls.
#[derive(Debug, Default)]
pub struct RealFs {
    /// One descriptor for each file system (by device), opened before the first write that must be
    /// durable: `syncfs` reports each error since its descriptor was opened, once.
    syncfs_fds: Mutex<BTreeMap<u64, Arc<OwnedFd>>>,
    boot_id: Mutex<Option<[u8; 16]>>,
}

impl RealFs {
    /// The file system of this process.
    pub fn new() -> Self {
        Self::default()
    }

    /// [`Fs::open`] with the concrete file type.
    pub(crate) fn open_real(&self, path: &Path, mode: OpenMode) -> io::Result<RealFile> {
        let flags = match mode {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::RDWR,
            OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            OpenMode::Truncate => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        };
        Ok(RealFile { fd: open_fd(path, flags)? })
    }

    /// The device of `dir` and the descriptor of its file system, opened at the first call for it.
    fn syncfs_fd(&self, dir: &Path) -> io::Result<(u64, Arc<OwnedFd>)> {
        let device = rustix::fs::stat(dir)?.st_dev as u64;
        if let Some(fd) = self.syncfs_fds.lock().get(&device) {
            return Ok((device, fd.clone()));
        }
        let fd = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let fd = self.syncfs_fds.lock().entry(device).or_insert(Arc::new(fd)).clone();
        Ok((device, fd))
    }
}

fn open_fd(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(retry(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, FILE_MODE))?)
}

/// Repeats an interrupted call. Not for syncs: a sync reports an error once, and a repeated call
/// would hide it.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(not(target_vendor = "apple"))]
fn sync_fd(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fdatasync(fd)?)
}

/// On Apple systems `fsync` leaves the bytes in the drive's cache.
#[cfg(target_vendor = "apple")]
fn sync_fd(fd: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fcntl_fullfsync(fd)?)
}

#[cfg(not(target_vendor = "apple"))]
fn sync_dir_fd(fd: &OwnedFd) -> io::Result<()> {
    rustix::fs::fsync(fd).map_err(dir_sync_error)
}

/// What some network and user-space file systems answer to the sync of a directory gets a message that
/// says what it means.
#[cfg(not(target_vendor = "apple"))]
fn dir_sync_error(errno: Errno) -> io::Error {
    if !matches!(errno, Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) {
        return errno.into();
    }
    let message = format!(
        "this file system cannot sync a directory, so a power cut could lose the names of new files; \
         use a local file system such as ext4 or XFS ({})",
        io::Error::from(errno)
    );
    io::Error::new(io::ErrorKind::Unsupported, message)
}

#[cfg(target_vendor = "apple")]
fn sync_dir_fd(fd: &OwnedFd) -> io::Result<()> {
    sync_fd(fd)
}

/// Whether `syncfs` reports write errors (since Linux 5.8).
#[cfg(target_os = "linux")]
fn syncfs_reports() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (5, 8)
}

impl Fs for RealFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(self.open_real(path, mode)?))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::mkdir(path, DIR_MODE)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::rename(from, to)?)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::link(from, to)?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlink(path)?)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::rmdir(path)?)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut out = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            out.push(DirEntry { name, is_dir: entry.file_type()?.is_dir() });
        }
        out.sort();
        Ok(out)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_dir_fd(&open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    #[cfg(target_os = "linux")]
    fn sync_fs(&self, dir: &Path) -> io::Result<()> {
        if !syncfs_reports() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (_, fd) = self.syncfs_fd(dir)?;
        Ok(rustix::fs::syncfs(&fd)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn sync_fs(&self, _dir: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn lock(&self, path: &Path, content: &[u8]) -> Result<Box<dyn LockGuard>, LockError> {
        // The content of the file is replaced, so a link must not lead to another file.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
        let fd = open_fd(path, flags).map_err(|e| match e.raw_os_error() {
            Some(code) if code == Errno::LOOP.raw_os_error() => {
                let text = "the lock file is a symbolic link; remove the link";
                LockError::Io(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            _ => LockError::Io(e),
        })?;
        let file = LockedFile::lock(RealFile { fd }, FlockOperation::NonBlockingLockExclusive)?;
        let guard = RealLock { file, path: path.to_owned() };
        guard.describe(content).map_err(LockError::Io)?;
        Ok(Box::new(guard))
    }

    fn lock_file(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        let file = RealFile { fd: open_fd(path, OFlags::RDWR).map_err(LockError::Io)? };
        match LockedFile::lock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(file) => Ok(Box::new(RealLock { file, path: path.to_owned() })),
            // Only the file of `lock` describes its holder.
            Err(LockError::Held(_)) => Err(LockError::Held(Vec::new())),
            Err(e) => Err(e),
        }
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        let fd = open_fd(path, OFlags::RDONLY).map_err(LockError::Io)?;
        let file = LockedFile::lock(RealFile { fd }, FlockOperation::NonBlockingLockShared)?;
        Ok(Box::new(SharedLock { file, path: path.to_owned() }))
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
    }

    /// Falls back to a random id: the machine then counts as rebooted, which is the safe
    /// assumption.
    fn boot_id(&self) -> io::Result<[u8; 16]> {
        let mut known = self.boot_id.lock();
        let id = match (*known, system_boot_id()) {
            (Some(id), _) | (None, Some(id)) => id,
            (None, None) => {
                let mut id = [0; 16];
                OsRng::new()?.fill(&mut id);
                id
            }
        };
        *known = Some(id);
        Ok(id)
    }

    fn mount_id(&self, dir: &Path) -> io::Result<u64> {
        let (device, _) = self.syncfs_fd(dir)?;
        Ok(mount_number(dir)?.unwrap_or(device))
    }

    fn modified_ms(&self, path: &Path) -> io::Result<u64> {
        let modified = std::fs::metadata(path)?.modified()?;
        let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Ok(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    fn fd_limit(&self) -> Option<u64> {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current
    }

    fn release(&self) {
        self.syncfs_fds.lock().clear();
    }

    fn backend(&self) -> &'static str {
        "posix"
    }
}

#[cfg(target_os = "linux")]
fn mount_number(dir: &Path) -> io::Result<Option<u64>> {
    use rustix::fs::StatxFlags;
    // STATX_MNT_ID_UNIQUE, since Linux 6.8: a number that is never reused.
    for mask in [StatxFlags::from_bits_retain(0x4000), StatxFlags::MNT_ID] {
        match rustix::fs::statx(rustix::fs::CWD, dir, AtFlags::empty(), mask) {
            Ok(stat) if stat.stx_mask & mask.bits() != 0 => return Ok(Some(stat.stx_mnt_id)),
            Ok(_) | Err(Errno::INVAL | Errno::NOSYS) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(None)
}

#[cfg(not(target_os = "linux"))]
fn mount_number(_dir: &Path) -> io::Result<Option<u64>> {
    Ok(None)
}

fn system_boot_id() -> Option<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

#[derive(Debug)]
struct RealLock {
    file: LockedFile,
    path: PathBuf,
}

impl LockGuard for RealLock {
    /// Overwrites before it truncates: a refused process may read the file at any moment and must not
    /// find it empty.
    fn describe(&self, content: &[u8]) -> io::Result<()> {
        self.file.write_all_at(content, 0)?;
        self.file.set_len(content.len() as u64)
    }

    fn is_named(&self) -> io::Result<bool> {
        names(&self.path, &self.file)
    }
}

/// Whether a path names an open file.
fn names(path: &Path, file: &RealFile) -> io::Result<bool> {
    let held = rustix::fs::fstat(&file.fd)?;
    match rustix::fs::stat(path) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[derive(Debug)]
struct SharedLock {
    file: LockedFile,
    path: PathBuf,
}

impl LockGuard for SharedLock {
    /// A shared lock has several holders, so it stores no description.
    fn describe(&self, _content: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn is_named(&self) -> io::Result<bool> {
        names(&self.path, &self.file)
    }
}

/// An open file of the operating system.
#[derive(Debug)]
pub(crate) struct RealFile {
    pub(crate) fd: OwnedFd,
}

impl RealFile {
    fn content(&self) -> Result<Vec<u8>, LockError> {
        let mut bytes = vec![0; 4096];
        let n = self.read_at(&mut bytes, 0).map_err(LockError::Io)?;
        bytes.truncate(n);
        Ok(bytes)
    }

    /// Writes zeros from `at` up to `len`.
    fn fill_zeros(&self, mut at: u64, len: u64) -> io::Result<()> {
        let zeros = [0; 64 << 10];
        while at < len {
            let step = (len - at).min(zeros.len() as u64) as usize;
            at += File::write_at(self, &zeros[..step], at)? as u64;
        }
        Ok(())
    }
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.fd, buf, offset)?)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwrite(&self.fd, buf, offset)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        sync_fd(&self.fd)
    }

    fn len(&self) -> io::Result<u64> {
        let size = rustix::fs::fstat(&self.fd)?.st_size;
        u64::try_from(size).map_err(|_| Errno::OVERFLOW.into())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(retry(|| rustix::fs::ftruncate(&self.fd, len))?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = rustix::fs::FallocateFlags::empty();
        match retry(|| rustix::fs::fallocate(&self.fd, flags, 0, len)) {
            Ok(()) if File::len(self)? < len => self.set_len(len),
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.fill_zeros(File::len(self)?, len),
            Err(e) => Err(e.into()),
        }
    }

    fn allocate_written(&self, len: u64) -> io::Result<()> {
        let at = File::len(self)?;
        // Allocates first, so that a full disk is detected before the first write.
        File::allocate(self, len)?;
        self.fill_zeros(at, len)
    }

    #[allow(clippy::useless_conversion, reason = "st_nlink has another type on other systems")]
    fn links(&self) -> io::Result<u64> {
        Ok(u64::from(rustix::fs::fstat(&self.fd)?.st_nlink))
    }
}

/// The `nice` value of a thread with lowered priority.
#[cfg(all(target_os = "linux", not(feature = "shuttle")))]
const LOWERED: i32 = 10;

#[cfg(all(target_os = "linux", not(feature = "shuttle")))]
std::thread_local! {
    /// The `nice` value of this thread before its priority was lowered.
    static NICE_BEFORE: std::cell::Cell<Option<i32>> = const { std::cell::Cell::new(None) };
}

/// Lowers the priority of the calling thread below the other threads of its process. No effect on
/// systems without priorities per thread.
pub fn lower_priority() {
    // A concurrency model runs all its threads on one thread of the system.
    #[cfg(all(target_os = "linux", not(feature = "shuttle")))]
    {
        let thread = Some(rustix::thread::gettid());
        let before = rustix::process::getpriority_process(thread);
        match rustix::process::setpriority_process(thread, LOWERED) {
            Ok(()) => NICE_BEFORE.set(before.ok()),
            Err(e) => log::debug!("the thread keeps its priority: {e}"),
        }
    }
}

/// Gives the calling thread the priority that it had before [`lower_priority`]. Returns whether it did:
/// the system allows it with `CAP_SYS_NICE`, or with a limit `RLIMIT_NICE` that includes that priority.
pub fn restore_priority() -> bool {
    #[cfg(all(target_os = "linux", not(feature = "shuttle")))]
    if let Some(before) = NICE_BEFORE.get() {
        let thread = Some(rustix::thread::gettid());
        let restored = rustix::process::setpriority_process(thread, before).is_ok();
        // A refused attempt is not repeated.
        NICE_BEFORE.set(None);
        return restored;
    }
    false
}

#[cfg(all(test, not(target_vendor = "apple")))]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_cannot_sync_directories_is_named() {
        for errno in [Errno::INVAL, Errno::NOTSUP, Errno::NOSYS] {
            let error = dir_sync_error(errno);
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            let text = error.to_string();
            assert!(text.contains("cannot sync a directory") && text.contains("local file system"));
            assert!(text.contains(&io::Error::from(errno).to_string()), "{text}");
        }
        assert_eq!(dir_sync_error(Errno::IO).raw_os_error(), Some(Errno::IO.raw_os_error()));
    }
}
