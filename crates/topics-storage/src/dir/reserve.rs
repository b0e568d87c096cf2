//! The reserve of disk space: a preallocated file that is released when the disk is full.
//!
//! Its size is twice the newest snapshot, at least 1 MiB, plus the bytes of the largest file that
//! may have to be copied to free space. The second part takes at most an eighth of the free space.

use topics_env::{Env, OpenMode};

use super::{Paths, show};
use crate::{Result, StorageError};

/// Minimum size.
pub const MIN: u64 = 1 << 20;

/// Bytes added to each release, for names and rounding.
pub const SLACK: u64 = 16 << 10;

/// The share of the free space for copies: at most 1/8.
const PART: u64 = 8;

/// The bytes that snapshots need.
pub(crate) fn for_snapshots(newest_snapshot: u64) -> u64 {
    newest_snapshot.saturating_mul(2).saturating_add(SLACK)
}

/// Grows the reserve to its target size, or as far as the disk has space; `copies` bytes of it are for
/// copies. Returns `false` if it stays smaller.
pub fn ensure(env: &Env, paths: &Paths, newest_snapshot: u64, copies: u64) -> Result<bool> {
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
    let least = newest_snapshot.saturating_mul(2).max(MIN);
    if have >= least.saturating_add(copies) {
        return Ok(true);
    }
    let free = env.fs.free_space(paths.root()).unwrap_or(u64::MAX >> 1);
    let want = least.saturating_add(copies.min(free.saturating_add(have) / PART));
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
