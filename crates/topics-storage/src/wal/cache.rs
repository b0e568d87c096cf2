//! The newest groups of a shard, so that tails are read without a system call.

use std::collections::VecDeque;
use std::sync::Arc;

use super::FileKey;

#[derive(Debug)]
struct Entry {
    file: FileKey,
    offset: u32,
    bytes: Arc<Vec<u8>>,
}

/// Bounded; entries are in file and offset order because groups are written in that order.
#[derive(Debug, Default)]
pub(super) struct TailCache {
    entries: VecDeque<Entry>,
    bytes: usize,
    limit: usize,
}

impl TailCache {
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn push(&mut self, file: FileKey, offset: u32, bytes: Arc<Vec<u8>>) {
        self.bytes += bytes.len();
        self.entries.push_back(Entry { file, offset, bytes });
        while self.bytes > self.limit {
            let Some(old) = self.entries.pop_front() else { break };
            self.bytes -= old.bytes.len();
        }
    }

    /// The group that holds all of these bytes, and where in it they begin.
    pub fn find(&self, file: FileKey, offset: u32, len: usize) -> Option<(Arc<Vec<u8>>, usize)> {
        let after = self.entries.partition_point(|e| (e.file, e.offset) <= (file, offset));
        let e = self.entries.get(after.checked_sub(1)?).filter(|e| e.file == file)?;
        let at = (offset - e.offset) as usize;
        (at + len <= e.bytes.len()).then(|| (e.bytes.clone(), at))
    }
}
