//! Which reads may request blocks of packs now, and which wait for memory.
//!
//! Reads that wait for memory are served in order. One that is served has its blocks requested for it, so that
//! no later read takes the memory. Each has one deadline, that of its first attempt.

use std::ops::RangeInclusive;
use std::sync::Arc;

use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_storage::StorageError;
use topics_storage::segment::{Fetch, FileKind};

use super::ArchivedPack;
use super::blocks::{
    BLOCK, Block, BlockRead, Job, KEEP_NS, PART_NS, READ_BLOCKS, REQUEST_BLOCKS, ReadAhead, State,
    WINDOW_BLOCKS, Waiter,
};
use super::cold::{ColdTier, Result, unreachable};

/// Maximum number of fetches that wait for a thread.
const MAX_QUEUED: usize = 256;

impl ColdTier {
    /// A fetch that ends with this error after the timeout, whoever waits for it.
    fn new_fetch(&self, late: StorageError) -> Arc<Fetch> {
        Arc::new(match self.has_threads() {
            true => Fetch::within(self.timeout, late),
            false => Fetch::default(),
        })
    }

    /// The fetch that a read waits for: that of its first missing block, or, if there is no memory, one that
    /// ends with that of the block.
    pub(super) fn request(&self, state: &mut State, read: BlockRead) -> Result<Arc<Fetch>> {
        if state.closed {
            return Err(StorageError::Closed);
        }
        let is_first = !state.has_waiter();
        if let Some(fetch) = self.admit(state, &read, is_first) {
            return Ok(fetch);
        }
        if !self.has_threads() {
            return Err(unreachable(format!(
                "{MAX_QUEUED} reads of cold segments wait for the object store: retry later"
            )));
        }
        let fetch = self.new_fetch(self.no_memory());
        self.counters.memory_waits.add(1);
        let deadline_ns = self.deadline_ns();
        state.waiting.push_back(Waiter {
            fetch: fetch.clone(),
            read,
            deadline_ns,
            is_admitted: false,
        });
        Ok(fetch)
    }

    /// Requests the missing blocks of a read, and keeps the present ones. Returns the fetch of the first
    /// missing one; `None` if the blocks do not fit beside those that others wait for, if the read is a new
    /// one and not the first of those that wait, or if the queue of requests is full.
    fn admit(&self, state: &mut State, read: &BlockRead, is_first: bool) -> Option<Arc<Fetch>> {
        let now = self.env.clock.mono_ns();
        let deadline_ns = now + self.timeout.as_nanos() as u64;
        let Some(first) = state.first_missing(read) else {
            state.keep(read, now + KEEP_NS);
            let fetch = Arc::new(Fetch::default());
            fetch.end(Ok(()));
            return Some(fetch);
        };
        let requested = state.requested(&(read.pack.serial, first));
        // An engine without threads has one reader at a time.
        if requested.is_none() && self.has_threads() {
            let is_next = is_first || state.goes_on(read, now);
            if !is_next
                || state.queue.len() >= MAX_QUEUED
                || !state.fits(read, self.memory_bytes, now)
            {
                return None;
            }
        }
        // Not for one that waits for memory: it and others of its kind would hold all of it.
        state.keep(read, deadline_ns.min(now + PART_NS));
        if requested.is_some() {
            return requested;
        }
        let last = *read.blocks.end();
        let mut until = last;
        if let Some(ahead) = read.ahead {
            let window = state.window(ahead.segment, first);
            until = last.max((first + window - 1).min(first + self.free_blocks(state)));
            until = until.min(last.max(ahead.end));
            state.reads_on(ahead.segment, until + 1, window);
        }
        self.enqueue(state, &read.pack, first..=until, (Some(last), deadline_ns))
    }

    /// Requests the blocks of the reads that wait for memory, as far as they fit now: in order, but those
    /// that go on before new ones.
    pub(super) fn admit_waiting(&self) {
        let mut admitted = Vec::new();
        {
            let mut state = self.state.lock();
            let mut waiting = std::mem::take(&mut state.waiting);
            waiting.retain(|waiter| waiter.fetch.outcome().is_none());
            let mut is_first = true;
            for waiter in waiting.iter_mut().filter(|waiter| !waiter.is_admitted) {
                match self.admit(&mut state, &waiter.read, is_first) {
                    Some(fetch) => {
                        waiter.is_admitted = true;
                        admitted.push((waiter.fetch.clone(), fetch));
                    }
                    None => is_first = false,
                }
            }
            state.waiting = waiting;
        }
        // Callbacks run here: the fetch may have ended meanwhile.
        for (waiting, fetch) in admitted {
            fetch.on_end(Box::new(move |outcome| waiting.end(outcome)));
        }
    }

    /// Ends the waits for memory whose deadline has passed, unless the store answers others: then the memory
    /// is short because readers are slow, and the turn of each comes.
    pub(super) fn end_waits(&self) {
        let now = self.env.clock.mono_ns();
        let due: Vec<_> = {
            let state = self.state.lock();
            if state.answered_ns + self.timeout.as_nanos() as u64 > now {
                return;
            }
            let due = state.waiting.iter().filter(|waiter| self.is_over(waiter.deadline_ns, now));
            due.map(|waiter| waiter.fetch.clone()).collect()
        };
        due.iter().for_each(|fetch| fetch.end(Err(self.no_memory())));
    }

    /// The error of a read that has waited too long for memory.
    fn no_memory(&self) -> StorageError {
        let seconds = self.timeout.as_secs_f64();
        unreachable(format!(
            "a cold segment did not get memory within {seconds} s, because other reads use it or wait for \
             the object store: check the connection to the remote, raise `cold_memory_bytes`, or retry later"
        ))
    }

    /// Requests the next window of a sequential reader that has come to the last one, as far as there is memory
    /// that nothing else needs. A reader that has read one place is sequential where that is the segment's end.
    pub(super) fn request_ahead(
        &self,
        state: &mut State,
        pack: &Arc<ArchivedPack>,
        (read_to, is_end): (u64, bool),
        ahead: ReadAhead,
    ) {
        let Some((next, window)) = state.sequential.get(&ahead.segment).copied() else { return };
        let is_first = window == 1 && read_to < next && !is_end;
        if !self.has_threads() || is_first || read_to + window < next {
            return;
        }
        let free = self.free_blocks(state);
        let window = (window * 2).min(WINDOW_BLOCKS);
        // Not block by block, as the reader frees them.
        if free < window.min(REQUEST_BLOCKS) {
            return;
        }
        if next <= ahead.end {
            let until = (next + window.min(free) - 1).min(ahead.end);
            state.reads_on(ahead.segment, until + 1, window);
            let _ = self.enqueue(state, pack, next..=until, (None, self.deadline_ns()));
        } else {
            self.request_next_segment(state, ahead.segment, window.min(free));
        }
    }

    /// Requests the begin of the segment that follows in the topic, for a reader that has come to the last window of
    /// this one. Its `.data` may be local: then up to one window is fetched in vain, once for a reader.
    fn request_next_segment(&self, state: &mut State, segment: u64, window: u64) {
        let Some((pack, next)) = self.packs.after(segment) else { return };
        if state.sequential.contains_key(&next.file_no) {
            return;
        }
        let deadline_ns = self.deadline_ns();
        // First what is read first.
        let is_missing = self.waits_for_sides.load(Ordering::Relaxed);
        if is_missing && state.with_index.insert(next.file_no) {
            let _ = self.enqueue(state, &pack, next.blocks(FileKind::Idx), (None, deadline_ns));
        }
        let data = next.blocks(FileKind::Data);
        let (first, until) = (*data.start(), *data.end().min(&(data.start() + window - 1)));
        state.reads_on(next.file_no, until + 1, window);
        let _ = self.enqueue(state, &pack, first..=until, (None, deadline_ns));
    }

    fn deadline_ns(&self) -> u64 {
        self.env.clock.mono_ns() + self.timeout.as_nanos() as u64
    }

    /// Blocks that may be read ahead now: into memory that is neither awaited nor likely to be read soon, so much that
    /// a new reader finds room beside them, and none while a read waits for memory.
    fn free_blocks(&self, state: &State) -> u64 {
        if state.has_waiter() {
            return 0;
        }
        let now = self.env.clock.mono_ns();
        let ahead =
            state.awaited_bytes() + state.bytes_of(|_, b| b.likely_until_ns > now && !b.is_used);
        let used = state.bytes_of(|_, b| b.likely_until_ns > now && b.is_used);
        let most = self.memory_bytes.saturating_sub(READ_BLOCKS * BLOCK) / 2;
        self.memory_bytes.saturating_sub(used + ahead).min(most.saturating_sub(ahead)) / BLOCK
    }

    /// Queues the requests of missing blocks. Returns the fetch of the first block that is not here. Blocks up
    /// to `wanted` are kept for a read.
    fn enqueue(
        &self,
        state: &mut State,
        pack: &Arc<ArchivedPack>,
        blocks: RangeInclusive<u64>,
        (wanted, deadline_ns): (Option<u64>, u64),
    ) -> Option<Arc<Fetch>> {
        let (mut at, until, mut awaited) = (*blocks.start(), *blocks.end(), None);
        while at <= until {
            match state.blocks.get(&(pack.serial, at)) {
                Some(Block::Requested(fetch)) => drop(awaited.get_or_insert(fetch.clone())),
                Some(Block::Present(_)) => {}
                None => {
                    if state.queue.len() >= MAX_QUEUED {
                        break;
                    }
                    let is_missing = |b: u64| !state.blocks.contains_key(&(pack.serial, b));
                    let n = (at..=until).take_while(|b| is_missing(*b)).count() as u64;
                    let last = at + n.min(REQUEST_BLOCKS) - 1;
                    let (first, pack, fetch) = (at, pack.clone(), self.new_fetch(self.late()));
                    let began_ns = AtomicU64::new(0);
                    let job = Job { pack, first, last, wanted, fetch, deadline_ns, began_ns };
                    for key in job.keys() {
                        state.blocks.insert(key, Block::Requested(job.fetch.clone()));
                    }
                    self.counters.misses.add(last + 1 - at);
                    awaited.get_or_insert(job.fetch.clone());
                    state.queue.push_back(Arc::new(job));
                    self.queued.notify_one();
                    at = last;
                }
            }
            at += 1;
        }
        awaited
    }
}
