//! Pausing the allocation of log files while a checkpoint needs the free space of a full disk.
//!
//! A checkpoint releases a part of the reserve for files that free more space than they take. The
//! log waits for free space too and would take these bytes first; a pause prevents that.

use std::sync::Arc;

use super::shard::Shard;
use super::{FileKey, Wal};
use crate::StorageError;

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
            shard.state.lock().allocation_pauses -= 1;
            shard.retry_prepare();
        }
    }
}

/// A file of the log that is complete: the log writes a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedFile {
    /// Its key.
    pub key: FileKey,
    /// The last lsn in it.
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
            st.allocation_pauses += 1;
            // A preparation that began before the pause still takes space: wait for its end.
            while st.preparing {
                shard.flags.wait(&mut st);
            }
        }
        AllocationPause(self.shards.clone())
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
