//! The free space of a full disk: who may have it.
//!
//! A checkpoint gives up a part of the reserve for files that free more than they take. The log,
//! which waits for room, would take these bytes first; it may not while they are held.

use std::sync::Arc;

use super::shard::Shard;
use super::{FileKey, Wal};
use crate::StorageError;

/// Why no file is made ready now.
pub(super) fn allocation_paused() -> StorageError {
    StorageError::Full { detail: "the space that is left is for a checkpoint".into() }
}

/// While it lives the log makes no file ready and grows none; afterwards it tries again.
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

/// A file of the log that is not written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedFile {
    /// Its key.
    pub key: FileKey,
    /// The last lsn in it.
    pub last_lsn: u64,
    /// What removing it gives back.
    pub bytes: u64,
}

impl Wal {
    /// Keeps the log from taking free space. Groups go on in the files that are there.
    #[must_use]
    pub fn pause_allocation(&self) -> AllocationPause {
        for shard in &self.shards {
            let mut st = shard.state.lock();
            st.allocation_pauses += 1;
            // One that began before goes on to take it.
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
