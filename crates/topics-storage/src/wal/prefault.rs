//! Prefaulting: reads reserved space of the log before it is written.
//!
//! A write to a page that is not in the page cache waits until the kernel has allocated one, and on a
//! virtual machine until the host has, which takes more than ten times as long as the copy. While
//! the log is written fast, a thread reads the reserved space ahead of the writes, so that the
//! leaders (an event loop among them) find the pages in memory. Correctness does not depend on it:
//! a late prefault only makes the write slower, and the bytes read are ignored.

use std::sync::Arc;

use topics_env::File;
use topics_env::sync::MutexGuard;

use super::shard::Shard;
use super::state::State;

/// Bytes of one read.
pub(super) const CHUNK: usize = 64 << 10;
/// Unsynced bytes from which the log counts as written fast: a slow log is synced by its timer
/// before it reaches this number.
pub(super) const FAST_BYTES: u64 = 1 << 20;
/// How far ahead the thread reads, and the distance below which it is woken again.
pub(super) const MAX_DISTANCE: u64 = 8 << 20;
const WAKE_DISTANCE: u64 = 6 << 20;
/// Distance at which reading resumes after the log has caught up: the log writes the nearer pages
/// before a read of them could return.
pub(super) const SKIP: u64 = 512 << 10;

/// The range that is read next.
pub(super) struct Chunk {
    file: Arc<dyn File>,
    pub at: u64,
}

impl State {
    /// Whether the log is written fast and pages are missing within `reach` bytes ahead of it.
    pub fn needs_prefault(&self, reach: u64) -> bool {
        let fast = self.alive()
            && self.current.offset.saturating_sub(self.current.sync_offset) >= FAST_BYTES;
        let end = self.current.offset + reach;
        // The range may continue in the next file.
        let next = || {
            let rest = end.saturating_sub(self.current.capacity);
            self.next.prepared.as_ref().is_some_and(|p| p.prefaulted_to < rest.min(p.capacity))
        };
        fast && (self.current.prefaulted_to < end.min(self.current.capacity) || next())
    }

    /// Takes the next chunk to read.
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        if !self.needs_prefault(MAX_DISTANCE) {
            return None;
        }
        let here = (self.current.offset + MAX_DISTANCE).min(self.current.capacity);
        let (file, prefaulted_to) = if self.current.prefaulted_to < here {
            if self.current.prefaulted_to < self.current.offset {
                self.current.prefaulted_to = self.current.offset + SKIP;
            }
            (self.current.file.as_ref()?.file.clone(), &mut self.current.prefaulted_to)
        } else {
            let next = self.next.prepared.as_mut()?;
            (next.file.clone(), &mut next.prefaulted_to)
        };
        let at = *prefaulted_to - *prefaulted_to % CHUNK as u64;
        *prefaulted_to = at + CHUNK as u64;
        Some(Chunk { file, at })
    }
}

impl Shard {
    /// Wakes the prefault thread if pages are missing.
    pub fn request_prefault(&self, st: &State) {
        if st.needs_prefault(WAKE_DISTANCE) {
            self.prefault_wake.notify_one();
        }
    }

    /// The prefault thread.
    pub fn run_prefault(&self) {
        let mut bytes = [0; CHUNK];
        let mut st = self.state.lock();
        while !st.closed {
            match st.next_chunk() {
                Some(Chunk { file, at }) => MutexGuard::unlocked(&mut st, || {
                    // An error of the file is reported by its next write or sync.
                    let _ = file.read_at(&mut bytes, at);
                }),
                None => self.prefault_wake.wait(&mut st),
            }
        }
    }
}
