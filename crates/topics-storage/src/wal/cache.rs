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

    /// Appends the bytes at a place to `out`, if one group holds all of them.
    pub fn read(&self, file: FileKey, offset: u32, len: usize, out: &mut Vec<u8>) -> bool {
        let after = self.entries.partition_point(|e| (e.file, e.offset) <= (file, offset));
        let Some(e) = after.checked_sub(1).and_then(|i| self.entries.get(i)) else { return false };
        if e.file != file {
            return false;
        }
        let from = (offset - e.offset) as usize;
        match e.bytes.get(from..from + len) {
            Some(bytes) => {
                out.extend_from_slice(bytes);
                true
            }
            None => false,
        }
    }
}
