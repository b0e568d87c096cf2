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

/// What an entry takes beside its bytes: itself, the shared vector, and the allocator's part of both.
const ENTRY_BYTES: usize = size_of::<Entry>() + 96;

impl Entry {
    fn memory(&self) -> usize {
        self.bytes.capacity() + ENTRY_BYTES
    }
}

/// Bounded by the memory that it takes, not by the bytes of the log in it: groups may be small. Entries
/// are in file and offset order because groups are written in that order.
#[derive(Debug, Default)]
pub(super) struct TailCache {
    entries: VecDeque<Entry>,
    memory: usize,
    limit: usize,
}

impl TailCache {
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn push(&mut self, file: FileKey, offset: u32, bytes: Arc<Vec<u8>>) {
        let entry = Entry { file, offset, bytes };
        self.memory += entry.memory();
        self.entries.push_back(entry);
        while self.memory > self.limit {
            let Some(old) = self.entries.pop_front() else { break };
            self.memory -= old.memory();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_groups_take_no_more_memory_than_large_ones() {
        const LIMIT: usize = 64 << 10;
        for len in [1, 100, 10_000] {
            let mut cache = TailCache::new(LIMIT);
            for n in 0..10_000 {
                cache.push(FileKey(1), n * 10_000, Arc::new(Vec::with_capacity(len)));
            }
            let vectors: usize = cache.entries.iter().map(|e| e.bytes.capacity()).sum();
            let fixed = size_of::<Entry>() + size_of::<Vec<u8>>() + 2 * size_of::<usize>();
            let held = vectors + cache.entries.len() * fixed;
            assert!(held <= LIMIT && held > LIMIT / 4, "{held} bytes in groups of {len}");
        }
    }
}
