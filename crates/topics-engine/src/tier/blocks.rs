//! The blocks of packs that are in memory or requested, and the queue of requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use topics_env::sync::atomic::AtomicU64;
use topics_storage::segment::Fetch;

use super::ArchivedPack;

/// Length of a block.
pub(super) const BLOCK: u64 = 1 << 20;
/// Maximum blocks of one request; the read-ahead of a sequential reader grows to it.
pub(super) const REQUEST_BLOCKS: u64 = 8;
/// Maximum number of packs whose sequential readers are remembered.
pub(super) const MAX_SEQUENTIAL: usize = 1024;

/// Number of the pack, and of the block in it.
pub(super) type BlockKey = (u64, u64);

pub(super) enum Block {
    Requested(Arc<Fetch>),
    Present(PresentBlock),
}

pub(super) struct PresentBlock {
    pub bytes: Bytes,
    /// When it was last used, by the count of uses.
    pub used_at: u64,
    pub is_used: bool,
    /// It is not evicted before this time: a read that needs it waits for other blocks, or for this one.
    pub kept_until_ns: u64,
    /// Whether an earlier copy of it failed a checksum.
    pub is_second: bool,
}

/// Adjacent blocks of a pack that one request fetches.
pub(super) struct Job {
    pub pack: Arc<ArchivedPack>,
    pub first: u64,
    pub last: u64,
    /// The last block that a read waits for; what follows is read ahead.
    pub wanted: u64,
    pub fetch: Arc<Fetch>,
    pub deadline_ns: u64,
    /// When its request began, 0: not yet.
    pub began_ns: AtomicU64,
}

impl Job {
    pub fn keys(&self) -> impl Iterator<Item = BlockKey> {
        let number = self.pack.number;
        (self.first..=self.last).map(move |block| (number, block))
    }

    /// Begin and end of its bytes in the pack.
    pub fn span(&self) -> (u64, u64) {
        (self.first * BLOCK, ((self.last + 1) * BLOCK).min(self.pack.len))
    }

    pub fn len(&self) -> u64 {
        let (begin, end) = self.span();
        end - begin
    }
}

#[derive(Default)]
pub(super) struct State {
    pub blocks: HashMap<BlockKey, Block>,
    /// Bytes of the present blocks, and of the requests in progress.
    pub present_bytes: u64,
    pub requested_bytes: u64,
    pub uses: u64,
    /// Blocks of which a copy failed a checksum.
    pub distrusted: HashSet<BlockKey>,
    /// By pack: the block after the last request, and the blocks of that request.
    pub sequential: HashMap<u64, (u64, u64)>,
    pub queue: VecDeque<Arc<Job>>,
    pub active: Vec<Arc<Job>>,
    pub threads: usize,
    pub idle: usize,
    /// Whether a thread looks at the deadlines.
    pub has_clock: bool,
    pub closed: bool,
}

impl State {
    pub fn is_requested(&self, key: BlockKey) -> bool {
        self.blocks.contains_key(&key)
    }

    /// The bytes of these blocks, if all of them are here.
    pub fn take(&mut self, pack: u64, blocks: RangeInclusive<u64>) -> Option<Vec<Bytes>> {
        self.uses += 1;
        let used_at = self.uses;
        let found = blocks.clone().map(|block| match self.blocks.get(&(pack, block)) {
            Some(Block::Present(b)) => Some(b.bytes.clone()),
            _ => None,
        });
        let found = found.collect::<Option<_>>()?;
        self.for_present(pack, blocks, |b| {
            (b.used_at, b.is_used, b.kept_until_ns) = (used_at, true, 0);
        });
        Some(found)
    }

    /// Keeps the present ones of these blocks for a read that waits for the others.
    pub fn keep(&mut self, pack: u64, blocks: RangeInclusive<u64>, until_ns: u64) {
        self.for_present(pack, blocks, |b| b.kept_until_ns = until_ns);
    }

    fn for_present(
        &mut self,
        pack: u64,
        blocks: RangeInclusive<u64>,
        mut change: impl FnMut(&mut PresentBlock),
    ) {
        for block in blocks {
            if let Some(Block::Present(b)) = self.blocks.get_mut(&(pack, block)) {
                change(b);
            }
        }
    }

    /// Blocks of the next request of a reader at this block: twice as many if it reads on from the last
    /// request.
    pub fn window(&mut self, pack: u64, first: u64) -> u64 {
        if self.sequential.len() >= MAX_SEQUENTIAL {
            self.sequential.clear();
        }
        match self.sequential.get(&pack) {
            Some((next, window)) if *next == first => (window * 2).min(REQUEST_BLOCKS),
            _ => 1,
        }
    }

    /// Makes the blocks of an ended job missing again.
    pub fn forget_requests(&mut self, job: &Job) {
        for key in job.keys() {
            if let Some(Block::Requested(fetch)) = self.blocks.get(&key)
                && Arc::ptr_eq(fetch, &job.fetch)
            {
                self.blocks.remove(&key);
            }
        }
    }

    pub fn add(&mut self, job: &Job, bytes: &Bytes) {
        for (key, at) in job.keys().zip((0..).step_by(BLOCK as usize)) {
            if matches!(self.blocks.get(&key), Some(Block::Present(_))) {
                continue;
            }
            let bytes = bytes.slice(at..bytes.len().min(at + BLOCK as usize));
            self.uses += 1;
            self.present_bytes += bytes.len() as u64;
            let is_second = self.distrusted.contains(&key);
            let (used_at, is_used) = (self.uses, false);
            let kept_until_ns = if key.1 <= job.wanted { job.deadline_ns } else { 0 };
            let block = PresentBlock { bytes, used_at, is_used, kept_until_ns, is_second };
            self.blocks.insert(key, Block::Present(block));
        }
    }

    /// Removes blocks until the others and the requests in progress fit: used ones first, the oldest
    /// first. What a read waits for stays, whatever the limit: it would be requested again without end.
    pub fn evict(&mut self, most: u64, now_ns: u64) {
        while self.present_bytes + self.requested_bytes > most && self.present_bytes > 0 {
            let present = self.blocks.iter().filter_map(|(key, block)| match block {
                Block::Present(b) if b.kept_until_ns <= now_ns => {
                    Some((!b.is_used, b.used_at, *key))
                }
                _ => None,
            });
            let Some((_, _, key)) = present.min() else { return };
            self.remove(key);
        }
    }

    pub fn remove(&mut self, key: BlockKey) {
        if let Some(Block::Present(b)) = self.blocks.remove(&key) {
            self.present_bytes -= b.bytes.len() as u64;
        }
    }
}
