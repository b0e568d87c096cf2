//! Pages ahead of the log.
//!
//! A write to a page that is not in memory waits until the kernel has found one, and on a virtual
//! machine until the host has: ten times the copy and more. While a log is written fast, a thread
//! reads the reserved space ahead of it, so that its leaders, an event loop among them, find the
//! pages there. Nothing depends on it: where it is late, the write makes the page, and what a read
//! returns is not looked at.

use std::sync::Arc;

use topics_env::File;
use topics_env::sync::MutexGuard;

use super::shard::Shard;
use super::state::State;

/// Bytes that are read at once.
pub(super) const CHUNK: usize = 64 << 10;
/// Bytes since the last sync began from which a log is written fast: syncs of an idle tail are
/// never far apart.
pub(super) const FAST_BYTES: u64 = 1 << 20;
/// How far ahead pages are made, and how far they still reach when the thread is woken for more.
pub(super) const MAX_DISTANCE: u64 = 8 << 20;
const WAKE_DISTANCE: u64 = 6 << 20;
/// Where reading goes on when the log has caught up: it has written what is nearer by then.
pub(super) const SKIP: u64 = 512 << 10;

/// Reserved space that is read next.
pub(super) struct Chunk {
    file: Arc<dyn File>,
    pub at: u64,
}

impl State {
    /// Whether pages are missing up to `reach` bytes ahead of a log that is written fast.
    pub fn needs_prefault(&self, reach: u64) -> bool {
        let fast = self.alive() && self.offset.saturating_sub(self.sync_offset) >= FAST_BYTES;
        let end = self.offset + reach;
        // Behind this file's end comes the next one.
        let next = || {
            let rest = end.saturating_sub(self.capacity);
            self.prepared.as_ref().is_some_and(|p| p.prefaulted_to < rest.min(p.capacity))
        };
        fast && (self.prefaulted_to < end.min(self.capacity) || next())
    }

    /// Takes the next one to be read.
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        if !self.needs_prefault(MAX_DISTANCE) {
            return None;
        }
        let here = (self.offset + MAX_DISTANCE).min(self.capacity);
        let (file, prefaulted_to) = if self.prefaulted_to < here {
            if self.prefaulted_to < self.offset {
                self.prefaulted_to = self.offset + SKIP;
            }
            (self.file.as_ref()?.file.clone(), &mut self.prefaulted_to)
        } else {
            let next = self.prepared.as_mut()?;
            (next.file.clone(), &mut next.prefaulted_to)
        };
        let at = *prefaulted_to - *prefaulted_to % CHUNK as u64;
        *prefaulted_to = at + CHUNK as u64;
        Some(Chunk { file, at })
    }
}

impl Shard {
    /// Wakes the thread that makes pages, if some are missing.
    pub fn request_prefault(&self, st: &State) {
        if st.needs_prefault(WAKE_DISTANCE) {
            self.prefault_wake.notify_one();
        }
    }

    /// The thread that makes pages.
    pub fn run_prefault(&self) {
        let mut bytes = [0; CHUNK];
        let mut st = self.state.lock();
        while !st.closed {
            match st.next_chunk() {
                Some(Chunk { file, at }) => MutexGuard::unlocked(&mut st, || {
                    // Whatever is wrong with the file, its writes and syncs find out.
                    let _ = file.read_at(&mut bytes, at);
                }),
                None => self.prefault_wake.wait(&mut st),
            }
        }
    }
}
