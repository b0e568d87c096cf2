//! The reserve of disk space: a preallocated file that is released when the disk is full.
//!
//! Its size is twice the newest snapshot, at least 1 MiB, plus the bytes of the largest file that
//! may have to be copied to free space. The second part takes at most an eighth of the space of the
//! directory: what is free and what its files take. So it does not depend on how full the disk is, and a
//! reserve that was used grows to the same size again.
//!
//! The log grows the reserve before it grows itself ([`ReserveSize::cover`]): when the disk is full, it is
//! too late.

use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_env::{Env, OpenMode};

use super::{Paths, show};
use crate::{Result, StorageError};

/// Minimum size.
pub const MIN: u64 = 1 << 20;

/// Bytes added to each release, for names and rounding.
pub const SLACK: u64 = 16 << 10;

/// The share of the space for copies: at most 1/8.
const PART: u64 = 8;

/// The size that the reserve is to have. Checkpoints set it, the log reads it. Before it is set, the
/// log does not change the reserve.
#[derive(Debug, Default)]
pub(crate) struct ReserveSize {
    /// Bytes for snapshots.
    least: AtomicU64,
    /// Maximum bytes for copies.
    most_copies: AtomicU64,
}

impl ReserveSize {
    /// Sets it; `space` is the space of the directory.
    pub fn set(&self, newest_snapshot: u64, space: u64) {
        self.least.store(newest_snapshot.saturating_mul(2).max(MIN), Ordering::Relaxed);
        self.most_copies.store(space / PART, Ordering::Relaxed);
    }

    /// The size with which a file of `bytes` bytes can be copied.
    pub fn with_copy_of(&self, bytes: u64) -> u64 {
        let copies = bytes.min(self.most_copies.load(Ordering::Relaxed));
        self.least.load(Ordering::Relaxed).saturating_add(copies)
    }

    /// Grows the reserve before a log file of `bytes` bytes is made. [`StorageError::Full`] if the disk
    /// has no space for that.
    pub fn cover(&self, env: &Env, paths: &Paths, bytes: u64) -> Result<()> {
        if self.most_copies.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let detail = || "the space that is left is for the reserve".to_owned();
        match ensure(env, paths, self.with_copy_of(bytes)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(StorageError::Full { detail: detail() }),
            Err(e @ (StorageError::Full { .. } | StorageError::NoDescriptor { .. })) => Err(e),
            Err(e) => {
                log::warn!("the reserve for a full disk cannot grow with the log: {e}");
                Ok(())
            }
        }
    }
}

/// The bytes that snapshots need.
pub(crate) fn for_snapshots(newest_snapshot: u64) -> u64 {
    newest_snapshot.saturating_mul(2).saturating_add(SLACK)
}

/// Grows the reserve to `want` bytes, or as far as the disk has space. Returns `false` if it stays smaller.
pub fn ensure(env: &Env, paths: &Paths, want: u64) -> Result<bool> {
    let path = paths.reserve();
    let io = |e| StorageError::io(show(&path), e);
    let file = match env.fs.open(&path, OpenMode::Write) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            env.fs.open(&path, OpenMode::CreateNew).map_err(io)?
        }
        Err(e) => return Err(io(e)),
    };
    let have = file.len().map_err(io)?;
    if have >= want {
        return Ok(true);
    }
    let free = env.fs.free_space(paths.root()).unwrap_or(u64::MAX >> 1);
    // On a nearly full disk, a smaller reserve is better than none.
    let mut more = want.saturating_sub(have).min(free);
    while more > 0 {
        match file.allocate(have + more).map_err(io) {
            Ok(()) => break,
            Err(StorageError::Full { .. }) if more > SLACK => more -= (more / 4).max(SLACK),
            Err(StorageError::Full { .. }) => more = 0,
            Err(e) => return Err(e),
        }
    }
    Ok(have + more >= want)
}

/// The size of the reserve file.
pub(crate) fn size(env: &Env, paths: &Paths) -> Result<u64> {
    let path = paths.reserve();
    match env.fs.open(&path, OpenMode::Read).and_then(|f| f.len()) {
        Ok(len) => Ok(len),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(StorageError::io(show(&path), e)),
    }
}

/// Releases only `bytes` of the reserve, because other writers would use the rest.
pub fn release_part(env: &Env, paths: &Paths, bytes: u64) -> Result<()> {
    let path = paths.reserve();
    let io = |e| StorageError::io(show(&path), e);
    let file = match env.fs.open(&path, OpenMode::Write) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(e)),
    };
    let have = file.len().map_err(io)?;
    file.set_len(have.saturating_sub(bytes.saturating_add(SLACK))).map_err(io)
}

/// Releases the whole reserve.
pub fn release_all(env: &Env, paths: &Paths) -> Result<()> {
    match env.fs.remove_file(&paths.reserve()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(StorageError::io(show(&paths.reserve()), e)),
    }
}
