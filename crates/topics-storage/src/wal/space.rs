//! The space of a full disk: a checkpoint pauses the log's allocation, and truncates what the log
//! has allocated and not used.
//!
//! A checkpoint releases a part of the reserve for files that free more space than they take. The
//! log waits for free space too and would take these bytes first; a pause prevents that.
//!
//! When the reserve is too small for any such file, the checkpoint may take the preallocated end of
//! the file in use. Batches that free space keep a small part of it.

use std::sync::Arc;

use topics_env::File;
use topics_env::sync::atomic::Ordering;

use super::shard::Shard;
use super::state::State;
use super::{FileKey, Wal};
use crate::StorageError;

/// Files are not truncated for fewer bytes than this.
const MIN_TRUNCATED: u64 = 16 << 10;

/// The error while allocation is paused.
pub(super) fn allocation_paused() -> StorageError {
    StorageError::Full { detail: "the space that is left is for a checkpoint".into() }
}

/// While it lives, the log prepares and grows no file. Its drop makes the log try again.
#[derive(Debug)]
pub struct AllocationPause(Vec<Arc<Shard>>);

impl Drop for AllocationPause {
    fn drop(&mut self) {
        for shard in &self.0 {
            shard.state.lock().next.allocation_pauses -= 1;
            shard.retry_prepare();
        }
    }
}

/// A file of the log that is complete: the log writes a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedFile {
    pub key: FileKey,
    pub last_lsn: u64,
    /// Bytes that its removal frees.
    pub bytes: u64,
}

impl Wal {
    /// Pauses the allocation of log files. Groups are still written to the existing ones.
    #[must_use]
    pub fn pause_allocation(&self) -> AllocationPause {
        for shard in &self.shards {
            let mut st = shard.state.lock();
            st.next.allocation_pauses += 1;
            // A preparation that began before the pause still takes space: wait for its end.
            while st.flags.preparing {
                shard.flags.wait(&mut st);
            }
        }
        AllocationPause(self.shards.clone())
    }

    /// Bytes that [`Self::truncate_unused`] would free now.
    #[must_use]
    pub fn unused(&self) -> u64 {
        self.shards.iter().map(|s| s.unused().iter().map(Unused::bytes).sum::<u64>()).sum()
    }

    /// Truncates the preallocated ends of the files in use and of the prepared files. Batches that free
    /// space keep their place. An error leaves a file as long as it is.
    pub fn truncate_unused(&self) {
        self.shards.iter().for_each(|s| s.truncate_unused());
    }

    /// The files of a shard, oldest first, without the one in use and the next one.
    #[must_use]
    pub fn ended_files(&self, shard: usize) -> Vec<EndedFile> {
        let files = self.shards[shard].files.read();
        let ended = files.values().zip(files.values().skip(1));
        ended
            .map(|(f, next)| EndedFile {
                key: f.key,
                last_lsn: next.first_lsn - 1,
                bytes: f.file.len().unwrap_or(0),
            })
            .collect()
    }

    /// Tells the log how large the reserve is to be: see [`ReserveSize`]. Returns the size with which its
    /// largest file, and one of `largest` bytes, can be copied.
    pub(crate) fn set_reserve(&self, newest_snapshot: u64, space: u64, largest: u64) -> u64 {
        let Some(shard) = self.shards.first() else { return 0 };
        let size = &shard.shared.reserve;
        size.set(newest_snapshot, space);
        size.with_copy_of(largest.max(self.largest_file()))
    }

    /// The size of the largest file.
    #[must_use]
    pub fn largest_file(&self) -> u64 {
        let largest = |shard: &Arc<Shard>| {
            let files = shard.files.read();
            files.values().map(|f| f.file.len().unwrap_or(0)).max().unwrap_or(0)
        };
        self.shards.iter().map(largest).max().unwrap_or(0)
    }
}

/// The end of a file that holds nothing.
pub(super) struct Unused {
    file: Arc<dyn File>,
    /// Where it begins and ends.
    from: u64,
    to: u64,
}

impl Unused {
    /// `None` if it is too short to be worth a truncation.
    pub fn new(file: &Arc<dyn File>, from: u64, to: u64) -> Option<Self> {
        let worth = to.saturating_sub(from) >= MIN_TRUNCATED;
        worth.then(|| Self { file: file.clone(), from, to })
    }

    fn bytes(&self) -> u64 {
        self.to - self.from
    }
}

impl State {
    /// The unused ends of the file in use and of the prepared one, beyond what batches that free space
    /// and the next file need.
    fn unused(&self, file_initial: u64) -> [Option<Unused>; 2] {
        let place = if self.current.broken { 0 } else { self.reserve as u64 };
        let in_use = self.current.file.as_ref();
        let in_use = in_use
            .and_then(|f| Unused::new(&f.file, self.current.offset + place, self.current.capacity));
        let next = self.next.prepared.as_ref();
        let next = next.and_then(|p| Unused::new(&p.file, file_initial, p.capacity));
        [in_use, next]
    }
}

impl Shard {
    fn unused(&self) -> Vec<Unused> {
        let st = self.state.lock();
        if !st.alive() || st.flags.preparing {
            return Vec::new();
        }
        st.unused(self.shared.options.file_initial).into_iter().flatten().collect()
    }

    /// Truncates a file that nothing writes to meanwhile; whether it did.
    pub fn truncate(&self, unused: &Unused) -> bool {
        let done = unused.file.set_len(unused.from).is_ok();
        if done {
            self.disk_bytes.fetch_sub(unused.bytes(), Ordering::Relaxed);
        }
        done
    }

    fn truncate_unused(&self) {
        let mut st = self.state.lock();
        // No group is written, and no file is switched to, while the ends change.
        while (st.flags.leading || st.flags.preparing) && st.alive() {
            self.flags.wait(&mut st);
        }
        if !st.alive() {
            return;
        }
        (st.flags.leading, st.flags.preparing) = (true, true);
        let [in_use, next] = st.unused(self.shared.options.file_initial);
        let [in_use, next] = self.unlocked(&mut st, || {
            [in_use, next].map(|u| u.filter(|u| self.truncate(u)).map(|u| u.from))
        });
        (st.flags.leading, st.flags.preparing) = (false, false);
        if let Some(len) = in_use {
            st.current.capacity = len;
        }
        if let (Some(next), Some(len)) = (&mut st.next.prepared, next) {
            next.capacity = len;
            next.prefaulted_to = next.prefaulted_to.min(len);
        }
        drop(self.drain_effects(st));
    }
}
