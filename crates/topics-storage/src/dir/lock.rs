//! The lock of a data directory.

use std::sync::{Arc, Weak};

use topics_env::{Env, LockError, LockGuard};

use super::{Paths, STORE_NAME, create_root, show, unusable_root};
use crate::{Result, StorageError};

/// The lock of a data directory, held while it is open. It locks two files: the lock file, which names
/// its holder, and `meta/STORE`. If one of them is removed or replaced by mistake while the directory
/// is open, the lock of the other still keeps a second engine out.
#[derive(Debug)]
pub struct DirLock {
    guard: Arc<dyn LockGuard>,
    store: Option<Box<dyn LockGuard>>,
    pid: u32,
}

/// Checks whether the lock file of a directory is still the one that was locked. Holds no lock.
#[derive(Clone, Debug)]
pub struct LockWatch(Weak<dyn LockGuard>);

impl LockWatch {
    /// Returns [`StorageError::LockLost`] if the path no longer names the locked file: the file was
    /// removed or replaced, perhaps with the whole directory, and another engine may have opened
    /// the directory that the path names now. A released lock is not lost.
    pub fn check(&self, env: &Env) -> Result<()> {
        let Some(guard) = self.0.upgrade() else { return Ok(()) };
        match guard.is_named() {
            Ok(named) if env.check("lock.named", named) => Ok(()),
            Ok(_) => Err(StorageError::LockLost),
            Err(e) => Err(StorageError::io("check the lock file", e)),
        }
    }
}

impl DirLock {
    /// Takes the lock, creating the directory if it is missing. If another process holds it, returns
    /// [`StorageError::Locked`], which names that process, without waiting.
    pub fn acquire(env: &Env, paths: &Paths, pid: u32) -> Result<Self> {
        create_root(env, paths)?;
        // Before the lock file is made: the next copy finds only the marker.
        paths.check_whole(env)?;
        match lock_root(env, paths, pid) {
            Ok(guard) => Ok(Self { guard: Arc::from(guard), store: None, pid }),
            Err(LockError::Held(content)) => Err(locked(&content)),
            Err(LockError::Io(e)) => {
                let kind = e.kind();
                Err(unusable_root(paths.root(), kind, StorageError::io(show(&paths.lock()), e)))
            }
        }
    }

    /// Also locks `meta/STORE`, which must exist.
    pub(crate) fn lock_store(&mut self, env: &Env, paths: &Paths) -> Result<()> {
        let path = paths.meta().join(STORE_NAME);
        // A second descriptor of this process would find the file locked.
        self.store = None;
        self.store = match env.fs.lock_file(&path) {
            Ok(guard) => Some(guard),
            Err(LockError::Held(_)) if env.check("lock.store", false) => None,
            Err(LockError::Held(_)) => return Err(StorageError::Locked { pid: 0, url: None }),
            Err(LockError::Io(e)) => return Err(StorageError::io(show(&path), e)),
        };
        Ok(())
    }

    /// Also locks `meta/STORE` if it exists, even a damaged one.
    pub(crate) fn lock_store_if_there(&mut self, env: &Env, paths: &Paths) -> Result<()> {
        let path = paths.meta().join(STORE_NAME);
        match env.fs.exists(&path).map_err(|e| StorageError::io(show(&path), e))? {
            true => self.lock_store(env, paths),
            false => Ok(()),
        }
    }

    /// A handle that checks the lock file without holding the lock.
    pub fn watch(&self) -> LockWatch {
        LockWatch(Arc::downgrade(&self.guard))
    }

    /// Adds the URL of the server to the lock file.
    pub fn set_url(&self, url: &str) -> Result<()> {
        self.guard
            .describe(&holder(self.pid, Some(url)))
            .map_err(|e| StorageError::io("describe the lock", e))
    }
}

/// Takes the lock of the lock file. Where the disk has no space for the holder's pid, without it.
fn lock_root(
    env: &Env,
    paths: &Paths,
    pid: u32,
) -> std::result::Result<Box<dyn LockGuard>, LockError> {
    match env.fs.lock(&paths.lock(), &holder(pid, None)) {
        Err(LockError::Io(e)) if is_full(&e) => match env.fs.lock_file(&paths.lock()) {
            Err(LockError::Io(_)) => Err(LockError::Io(e)),
            locked => locked,
        },
        locked => locked,
    }
}

fn is_full(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

fn holder(pid: u32, url: Option<&str>) -> Vec<u8> {
    format!("{pid}\n{}\n", url.unwrap_or_default()).into_bytes()
}

/// The error of a locked directory, from the content of its lock file.
pub(crate) fn locked(content: &[u8]) -> StorageError {
    let (pid, url) = parse_holder(content);
    StorageError::Locked { pid, url }
}

fn parse_holder(content: &[u8]) -> (u32, Option<String>) {
    let text = String::from_utf8_lossy(content);
    let mut lines = text.lines();
    let pid = lines.next().and_then(|l| l.trim().parse().ok()).unwrap_or(0);
    (pid, lines.next().filter(|l| !l.is_empty()).map(str::to_owned))
}
