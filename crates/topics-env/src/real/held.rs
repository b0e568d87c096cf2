//! The files that this process holds a lock of.
//!
//! A lock (`flock`) belongs to the open file, which a forked child shares: it would keep the lock for
//! as long as it lives, after a close of its parent and after its death. So a lock is released by name,
//! not by the last close, and a child closes the descriptors that it was born with.

use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{RealFile, retry};
use crate::LockError;

/// No descriptor.
const FREE: i32 = -1;

/// The descriptors that a child closes. Atomics, because another thread may hold any lock at the moment
/// of a fork. A process that holds more locks than these has children that keep the further ones.
static HELD: [AtomicI32; 256] = [const { AtomicI32::new(FREE) }; 256];

/// A file whose lock this process holds.
#[derive(Debug)]
pub(super) struct LockedFile {
    file: RealFile,
    pid: u32,
}

impl LockedFile {
    /// Takes the lock without waiting. If another process holds it, the error has the content of the
    /// file.
    pub(super) fn lock(file: RealFile, how: FlockOperation) -> Result<Self, LockError> {
        match retry(|| rustix::fs::flock(&file.fd, how)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(LockError::Held(file.content()?)),
            Err(e) => return Err(LockError::Io(e.into())),
        }
        replace_first(FREE, file.fd.as_raw_fd());
        Ok(Self { file, pid: std::process::id() })
    }
}

impl Deref for LockedFile {
    type Target = RealFile;

    fn deref(&self) -> &RealFile {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // In a child it would release the lock of the parent.
        if self.pid == std::process::id() {
            replace_first(self.file.fd.as_raw_fd(), FREE);
            let _ = rustix::fs::flock(&self.file.fd, FlockOperation::Unlock);
        }
    }
}

fn replace_first(old: i32, new: i32) {
    let swap =
        |at: &AtomicI32| at.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    HELD.iter().any(swap);
}

/// Closes the descriptors of the locks of the parent. For a child, immediately after the fork: it has
/// no other thread, and never uses or drops an engine of its parent.
#[allow(unsafe_code)]
pub fn close_locks_in_child() {
    for held in &HELD {
        let fd = held.swap(FREE, Ordering::AcqRel);
        if fd != FREE {
            // SAFETY: the descriptor is open in this process, and its owner, an engine of the parent,
            // is neither used nor dropped here.
            unsafe { rustix::io::close(fd) };
        }
    }
}
