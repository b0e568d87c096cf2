//! The blocks of packs that are in memory or requested, and the queue of requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use topics_env::sync::atomic::AtomicU64;
use topics_remote::format::keys::Serial;
use topics_storage::segment::Fetch;

use super::ArchivedPack;

/// Length of a block.
pub(super) const BLOCK: u64 = 1 << 20;
/// Maximum blocks of one request: one connection to a store is slower than several.
pub(super) const REQUEST_BLOCKS: u64 = 4;
/// The read-ahead of a sequential reader grows to it.
pub(super) const WINDOW_BLOCKS: u64 = 16;
/// So many blocks of memory are not for read-ahead, and half of the rest.
pub(super) const READ_BLOCKS: u64 = 8;
/// How long a block stays for the read that waited for it. One that does not come, because its client pauses,
/// fetches it again.
pub(super) const KEEP_NS: u64 = 1_000_000_000;
/// How long a block stays for a read that waits for another one beside it.
pub(super) const PART_NS: u64 = 10_000_000_000;
/// How long a block that was read ahead is likely to be read.
const AHEAD_NS: u64 = 10_000_000_000;
/// Maximum number of segments whose sequential readers are remembered.
pub(super) const MAX_SEQUENTIAL: usize = 1024;

/// The pack, and the number of the block in it.
pub(super) type BlockKey = (Serial, u64);

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
    /// Until then a sequential reader is likely to go on in it, or to come to it: what is read ahead takes
    /// no memory from it, and others are evicted first.
    pub likely_until_ns: u64,
    /// Whether an earlier copy of it failed a checksum.
    pub is_second: bool,
}

/// The blocks of a pack that a read needs together.
pub(super) struct BlockRead {
    pub pack: Arc<ArchivedPack>,
    pub blocks: RangeInclusive<u64>,
    pub ahead: Option<ReadAhead>,
}

impl BlockRead {
    fn len(&self) -> u64 {
        ((self.blocks.end() + 1) * BLOCK).min(self.pack.len) - self.blocks.start() * BLOCK
    }
}

/// What a sequential reader of a segment may read ahead.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAhead {
    /// The file number of the segment.
    pub segment: u64,
    /// The last block of its records.
    pub end: u64,
}

/// A read that found no memory, or no place in the queue.
pub(super) struct Waiter {
    pub read: BlockRead,
    pub fetch: Arc<Fetch>,
    pub deadline_ns: u64,
    /// Whether its blocks are requested: its fetch ends with theirs.
    pub is_admitted: bool,
}

/// Adjacent blocks of a pack that one request fetches.
pub(super) struct Job {
    pub pack: Arc<ArchivedPack>,
    pub first: u64,
    pub last: u64,
    /// The last block that a read waits for; what follows is read ahead. `None`: all is read ahead.
    pub wanted: Option<u64>,
    pub fetch: Arc<Fetch>,
    pub deadline_ns: u64,
    /// When its request began, 0: not yet.
    pub began_ns: AtomicU64,
}

impl Job {
    pub fn keys(&self) -> impl Iterator<Item = BlockKey> {
        let number = self.pack.serial;
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
    /// By file number of the segment: the block after what was requested last, and its length in blocks.
    pub sequential: HashMap<u64, (u64, u64)>,
    /// File numbers of the segments whose `.idx` was requested.
    pub with_index: HashSet<u64>,
    pub queue: VecDeque<Arc<Job>>,
    /// Reads that wait for memory, in order.
    pub waiting: VecDeque<Waiter>,
    /// When the store last answered.
    pub answered_ns: u64,
    pub active: Vec<Arc<Job>>,
    pub threads: usize,
    pub idle: usize,
    /// Whether a thread looks at the deadlines.
    pub has_clock: bool,
    pub closed: bool,
}

impl State {
    /// The fetch of a block that is requested.
    pub fn requested(&self, key: &BlockKey) -> Option<Arc<Fetch>> {
        match self.blocks.get(key) {
            Some(Block::Requested(fetch)) => Some(fetch.clone()),
            _ => None,
        }
    }

    /// The bytes of these blocks, if all of them are here. The reader goes on in the last one, unless it is at its
    /// end.
    pub fn take(
        &mut self,
        pack: Serial,
        blocks: RangeInclusive<u64>,
        (now_ns, is_end): (u64, bool),
    ) -> Option<Vec<Bytes>> {
        self.uses += 1;
        let used_at = self.uses;
        let found = blocks.clone().map(|block| match self.blocks.get(&(pack, block)) {
            Some(Block::Present(b)) => Some(b.bytes.clone()),
            _ => None,
        });
        let found = found.collect::<Option<_>>()?;
        let (first, last) = (*blocks.start(), *blocks.end());
        self.for_present(pack, blocks, |b| {
            (b.used_at, b.is_used, b.kept_until_ns) = (used_at, true, 0);
            b.likely_until_ns = 0;
        });
        let likely_until_ns = if is_end { 0 } else { now_ns + KEEP_NS };
        self.for_present(pack, last..=last, |b| b.likely_until_ns = likely_until_ns);
        if let Some(before) = first.checked_sub(1) {
            // A reader that has come from there is through with it.
            self.for_present(pack, before..=before, |b| {
                if b.is_used {
                    b.likely_until_ns = 0;
                }
            });
        }
        Some(found)
    }

    /// The first block of a read that is not here.
    pub fn first_missing(&self, read: &BlockRead) -> Option<u64> {
        let is_present =
            |at: &u64| matches!(self.blocks.get(&(read.pack.serial, *at)), Some(Block::Present(_)));
        read.blocks.clone().find(|at| !is_present(at))
    }

    /// Whether a read waits that is not admitted.
    pub fn has_waiter(&self) -> bool {
        self.waiting.iter().any(|w| !w.is_admitted && w.fetch.outcome().is_none())
    }

    /// Keeps the present blocks of a read that waits for the others.
    pub fn keep(&mut self, read: &BlockRead, until_ns: u64) {
        self.for_present(read.pack.serial, read.blocks.clone(), |b| b.kept_until_ns = until_ns);
    }

    fn for_present(
        &mut self,
        pack: Serial,
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
    pub fn window(&self, segment: u64, first: u64) -> u64 {
        match self.sequential.get(&segment) {
            Some((next, window)) if *next == first => (window * 2).min(WINDOW_BLOCKS),
            _ => 1,
        }
    }

    /// Notes that a sequential reader of a segment has requested a window that ends before the block `next`.
    pub fn reads_on(&mut self, segment: u64, next: u64, window: u64) {
        if self.sequential.len() >= MAX_SEQUENTIAL {
            self.sequential.clear();
        }
        self.sequential.insert(segment, (next, window));
    }

    /// Bytes of the requests, queued ones too.
    pub fn awaited_bytes(&self) -> u64 {
        self.requested_bytes + self.queue.iter().map(|job| job.len()).sum::<u64>()
    }

    /// Bytes of the present blocks of which this is true.
    pub fn bytes_of(&self, counts: impl Fn(&BlockKey, &PresentBlock) -> bool) -> u64 {
        let bytes = |(key, block): (&BlockKey, &Block)| match block {
            Block::Present(b) if counts(key, b) => b.bytes.len() as u64,
            _ => 0,
        };
        self.blocks.iter().map(bytes).sum()
    }

    /// Whether a read goes on in a block that its reader has begun, or behind one.
    pub fn goes_on(&self, read: &BlockRead, now_ns: u64) -> bool {
        own_blocks(read).any(|at| match self.blocks.get(&(read.pack.serial, at)) {
            Some(Block::Present(b)) => {
                b.kept_until_ns > now_ns || b.likely_until_ns > now_ns && b.is_used
            }
            _ => false,
        })
    }

    /// Whether the blocks of a read fit. A reader that goes on needs them beside what others wait for or are
    /// in. A new reader is let in if a further block fits too, and what is read ahead for others: so those
    /// that are in can go on, and do not fetch again what they have begun.
    pub fn fits(&self, read: &BlockRead, most: u64, now_ns: u64) -> bool {
        let goes_on = self.goes_on(read, now_ns);
        let is_own =
            |key: &BlockKey| key.0 == read.pack.serial && own_blocks(read).contains(&key.1);
        let others = self.bytes_of(|key, b| {
            let is_likely = b.likely_until_ns > now_ns && (b.is_used || !goes_on);
            !is_own(key) && (b.kept_until_ns > now_ns || is_likely)
        });
        let others = others + self.awaited_bytes();
        let further = if goes_on { 0 } else { BLOCK.min(read.pack.len) };
        others == 0 || others + read.len() + further <= most
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

    pub fn add(&mut self, job: &Job, bytes: &Bytes, now_ns: u64) {
        for (key, at) in job.keys().zip((0..).step_by(BLOCK as usize)) {
            if matches!(self.blocks.get(&key), Some(Block::Present(_))) {
                continue;
            }
            let bytes = bytes.slice(at..bytes.len().min(at + BLOCK as usize));
            self.uses += 1;
            self.present_bytes += bytes.len() as u64;
            let is_second = self.distrusted.contains(&key);
            let (used_at, is_used) = (self.uses, false);
            let (kept_until_ns, likely_until_ns) =
                match job.wanted.is_some_and(|wanted| key.1 <= wanted) {
                    true => (now_ns + KEEP_NS, now_ns + KEEP_NS),
                    false => (0, now_ns + AHEAD_NS),
                };
            let block =
                PresentBlock { bytes, used_at, is_used, kept_until_ns, likely_until_ns, is_second };
            self.blocks.insert(key, Block::Present(block));
        }
    }

    /// Removes blocks until the others and the requests in progress fit: used ones first, the oldest
    /// first. What a read waits for stays, whatever the limit: it would be requested again without end.
    pub fn evict(&mut self, most: u64, now_ns: u64) {
        while self.present_bytes + self.requested_bytes > most && self.present_bytes > 0 {
            let present = self.blocks.iter().filter_map(|(key, block)| match block {
                Block::Present(b) if b.kept_until_ns <= now_ns => {
                    Some((b.likely_until_ns > now_ns, !b.is_used, b.used_at, *key))
                }
                _ => None,
            });
            let Some((.., key)) = present.min() else { return };
            self.remove(key);
        }
    }

    pub fn remove(&mut self, key: BlockKey) {
        if let Some(Block::Present(b)) = self.blocks.remove(&key) {
            self.present_bytes -= b.bytes.len() as u64;
        }
    }
}

/// The blocks of a read, and the one before, which its reader may have come from.
fn own_blocks(read: &BlockRead) -> RangeInclusive<u64> {
    read.blocks.start().saturating_sub(1)..=*read.blocks.end()
}
