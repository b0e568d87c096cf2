//! Recovery from an exhausted file descriptor limit.
//!
//! A process has a limited number of descriptors, and other code of the process takes some. A cache
//! that keeps files open only to save their next open registers itself with
//! [`crate::Env::on_fd_exhaustion`]. A call that finds no descriptor makes it close them, then runs
//! once more.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::sync::Mutex;
use crate::{DirEntry, File, Fs, LockError, LockGuard, OpenMode};

/// Whether a call failed because this process or the system has no file descriptor left. Such a call
/// did nothing, because the descriptor is taken first.
#[must_use]
pub fn is_fd_exhausted(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(|code| {
        [Errno::MFILE, Errno::NFILE].iter().any(|errno| errno.raw_os_error() == code)
    })
}

/// A cache of open files that can be closed.
pub trait FdReclaimer: Send + Sync + std::fmt::Debug {
    /// Closes the cached files. A read in progress keeps its file.
    fn reclaim_fds(&self);
}

/// A file system that reclaims descriptors and retries when a call finds none.
#[derive(Debug)]
pub(crate) struct FdRetryFs {
    fs: Arc<dyn Fs>,
    reclaimer: Mutex<Option<Weak<dyn FdReclaimer>>>,
}

impl FdRetryFs {
    pub(crate) fn new(fs: Arc<dyn Fs>) -> Self {
        Self { fs, reclaimer: Mutex::new(None) }
    }

    pub(crate) fn set_reclaimer(&self, reclaimer: Weak<dyn FdReclaimer>) {
        *self.reclaimer.lock() = Some(reclaimer);
    }

    /// Runs a call that needs a descriptor. If there is none, reclaims some and runs it once more.
    fn with_retry<T>(&self, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match call() {
            Err(e) if is_fd_exhausted(&e) => {
                let reclaimer = self.reclaimer.lock().as_ref().and_then(Weak::upgrade);
                if let Some(reclaimer) = reclaimer {
                    reclaimer.reclaim_fds();
                }
                call()
            }
            done => done,
        }
    }
}

impl Fs for FdRetryFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.with_retry(|| self.fs.open(path, mode))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.fs.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.with_retry(|| self.fs.list(dir))
    }

    /// A retry never hides a failed sync: a missing descriptor is reported before anything is synced.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.with_retry(|| self.fs.sync_dir(dir))
    }

    fn sync_fs(&self, dir: &Path) -> io::Result<()> {
        self.with_retry(|| self.fs.sync_fs(dir))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.fs.exists(path)
    }

    fn lock(&self, path: &Path, content: &[u8]) -> Result<Box<dyn LockGuard>, LockError> {
        self.fs.lock(path, content)
    }

    fn lock_file(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        self.fs.lock_file(path)
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        self.fs.lock_shared(path)
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        self.fs.free_space(dir)
    }

    fn release(&self) {
        self.fs.release();
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.fs.boot_id()
    }

    fn mount_id(&self, dir: &Path) -> io::Result<u64> {
        self.fs.mount_id(dir)
    }

    fn modified_ms(&self, path: &Path) -> io::Result<u64> {
        self.fs.modified_ms(path)
    }

    fn fd_limit(&self) -> Option<u64> {
        self.fs.fd_limit()
    }

    fn backend(&self) -> &'static str {
        self.fs.backend()
    }
}
