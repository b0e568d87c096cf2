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

    /// Appends the bytes of a range to `out` if all of them are cached; the range may span groups.
    ///
    /// After a failed sync a read of the file may return other bytes than were written. Nothing is
    /// pushed then, so readers of an acked tail still get it from here.
    pub fn copy(&self, file: FileKey, offset: u32, len: usize, out: &mut Vec<u8>) -> bool {
        let (mut at, end) = (offset as usize, offset as usize + len);
        let after = self.entries.partition_point(|e| (e.file, e.offset) <= (file, offset));
        let Some(first) = after.checked_sub(1) else { return false };
        let begin = out.len();
        for e in self.entries.range(first..).take_while(|e| e.file == file) {
            let from = e.offset as usize;
            let to = end.min(from + e.bytes.len());
            if !(from..to).contains(&at) {
                break;
            }
            out.extend_from_slice(&e.bytes[at - from..to - from]);
            at = to;
            if at == end {
                return true;
            }
        }
        out.truncate(begin);
        false
    }
}
