//! Reads of cold segments: blocks of packs in memory, and the threads that fetch them.
//!
//! A read takes its bytes from blocks. It requests the ones that are missing, one request for
//! adjacent ones, and returns the fetch that its caller waits for or is called by. Blocks that no
//! read has used are evicted last, so that a caller finds what it waited for.
//!
//! Threads start with the first fetch and end after a while without one. One more looks at deadlines, for
//! those who are called; whoever waits looks at its own. A request that takes long does not count among the
//! requests at a time, so that those for healthy objects go on. An engine without threads fetches in
//! [`ColdTier::run`].

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use topics_env::Env;
use topics_env::objects::{ByteRange, ObjectError, ObjectStore};
use topics_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use topics_env::sync::{Condvar, Mutex, thread};
use topics_storage::StorageError;
use topics_storage::segment::{ColdFiles, Fetch, FileKind};

use super::blocks::{BLOCK, Block, Job, PART_NS, REQUEST_BLOCKS, State};
use super::{ArchivedPack, PackTable};
use crate::types::metrics::Counter;
use crate::types::options::RemoteOptions;

type Result<T> = std::result::Result<T, StorageError>;

/// Maximum number of requests at a time that have not taken long, and of all.
const THREADS: usize = 4;
const MAX_THREADS: usize = 16;
/// When a request takes long.
const LONG_NS: u64 = 1_000_000_000;
/// How often deadlines are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of fetches that wait for a thread.
const MAX_QUEUED: usize = 256;
/// How many of those who wait for memory try again when a fetch has ended, and at each look at the deadlines.
const WAITING_BY_FETCH: usize = 4;
const WAITING_BY_TIME: usize = 16;
/// How long a thread stays without a fetch.
const IDLE: Duration = Duration::from_secs(10);
/// How long a close waits for the next thread to end.
const END_WAIT: Duration = Duration::from_secs(1);
/// The first and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What the tier counts.
#[derive(Debug, Default)]
pub(crate) struct ColdCounters {
    /// Requests.
    pub fetches: Counter,
    /// Their bytes.
    pub bytes: Counter,
    /// Requests that failed.
    pub failures: Counter,
    /// Blocks that a read found in memory.
    pub hits: Counter,
    /// Blocks that a read had to request.
    pub misses: Counter,
}

/// The cold segments of an engine.
pub(crate) struct ColdTier {
    env: Env,
    store: Arc<dyn ObjectStore>,
    packs: Arc<PackTable>,
    timeout: Duration,
    memory_bytes: u64,
    has_threads: AtomicBool,
    /// Reads wait for the store: no lock is held, because the engine is being opened.
    is_opening: AtomicBool,
    state: Mutex<State>,
    queued: Condvar,
    closing: Condvar,
    ended: Condvar,
    pub counters: ColdCounters,
}

impl fmt::Debug for ColdTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColdTier").field("store", &self.store).finish_non_exhaustive()
    }
}

fn unreachable(detail: String) -> StorageError {
    StorageError::Unreachable { detail }
}

impl ColdTier {
    pub(crate) fn new(
        env: &Env,
        remote: &RemoteOptions,
        packs: Arc<PackTable>,
        has_threads: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            store: remote.store.clone(),
            packs,
            timeout: remote.limits.cold_timeout,
            memory_bytes: remote.limits.cold_memory_bytes,
            has_threads: AtomicBool::new(has_threads),
            is_opening: AtomicBool::new(true),
            state: Mutex::default(),
            queued: Condvar::new(),
            closing: Condvar::new(),
            ended: Condvar::new(),
            counters: ColdCounters::default(),
        })
    }

    fn has_threads(&self) -> bool {
        self.has_threads.load(Ordering::Relaxed)
    }

    /// Fetches on threads from now on.
    pub(crate) fn use_threads(&self) {
        self.has_threads.store(true, Ordering::Relaxed);
    }

    /// The engine is open: from now on a read that needs a fetch returns it.
    pub(crate) fn opened(&self) {
        self.is_opening.store(false, Ordering::Relaxed);
    }

    /// Waits until a fetch has ended. An engine without threads fetches here.
    pub(crate) fn wait(&self, fetch: &Fetch) -> Result<()> {
        if !self.has_threads() {
            self.run();
        }
        fetch.wait()
    }

    /// Fetches everything that is queued, if the engine has no threads for it.
    pub(crate) fn run(&self) {
        if self.has_threads() {
            return;
        }
        loop {
            let mut state = self.state.lock();
            let Some(job) = self.next_job(&mut state) else { return };
            drop(state);
            self.fetch(&job);
        }
    }

    /// Ends the fetches whose deadline has passed. Their requests may go on; their answers are dropped.
    pub(crate) fn expire(&self) {
        let now = self.env.clock.mono_ns();
        self.end_jobs(|job| job.deadline_ns <= now, &self.late());
        self.retry_waiting(WAITING_BY_TIME);
    }

    /// Lets the first of those who wait for memory try again.
    fn retry_waiting(&self, most: usize) {
        let first: Vec<_> = {
            let mut state = self.state.lock();
            let n = state.waiting.len().min(most);
            state.waiting.drain(..n).collect()
        };
        for fetch in first {
            fetch.end(Ok(()));
        }
    }

    /// The error of a fetch that has taken too long.
    fn late(&self) -> StorageError {
        let seconds = self.timeout.as_secs_f64();
        unreachable(format!(
            "a cold segment did not arrive from the object store within {seconds} s: check the \
             connection to the remote, and retry"
        ))
    }

    /// Ends all fetches and the threads. A thread whose request hangs ends with the request.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        self.queued.notify_all();
        self.closing.notify_all();
        self.end_jobs(|_| true, &StorageError::Closed);
        waiting.iter().for_each(|fetch| fetch.end(Err(StorageError::Closed)));
        let mut state = self.state.lock();
        while state.threads > 0 && !self.ended.wait_for(&mut state, END_WAIT).timed_out() {}
    }

    fn end_jobs(&self, is_due: impl Fn(&Job) -> bool, why: &StorageError) {
        let ended: Vec<Arc<Job>> = {
            let mut state = self.state.lock();
            let queued = std::mem::take(&mut state.queue).into_iter();
            let (mut due, rest): (Vec<_>, Vec<_>) = queued.partition(|j| is_due(j));
            state.queue = rest.into();
            due.extend(state.active.iter().filter(|j| is_due(j)).cloned());
            due.iter().for_each(|job| state.forget_requests(job));
            due
        };
        ended.iter().for_each(|job| job.fetch.end(Err(why.clone())));
    }

    /// Takes the next job. Memory for its blocks is made first.
    fn next_job(&self, state: &mut State) -> Option<Arc<Job>> {
        let job = state.queue.pop_front()?;
        job.began_ns.store(self.env.clock.mono_ns().max(1), Ordering::Relaxed);
        state.active.push(job.clone());
        state.requested_bytes += job.len();
        state.evict(self.memory_bytes, self.env.clock.mono_ns());
        Some(job)
    }

    /// Fetches the blocks of a job and ends its fetch.
    fn fetch(&self, job: &Arc<Job>) {
        let result = self.get(job);
        self.counters.fetches.add(1);
        match &result {
            Ok(bytes) => self.counters.bytes.add(bytes.len() as u64),
            Err(e) => {
                self.counters.failures.add(1);
                log::warn!("cold read: {e}");
            }
        }
        {
            let mut state = self.state.lock();
            state.active.retain(|j| !Arc::ptr_eq(j, job));
            state.requested_bytes -= job.len();
            match &result {
                Ok(bytes) => state.add(job, bytes, self.env.clock.mono_ns()),
                Err(_) => state.forget_requests(job),
            }
            state.evict(self.memory_bytes, self.env.clock.mono_ns());
        }
        job.fetch.end(result.map(drop));
        self.retry_waiting(WAITING_BY_FETCH);
    }

    /// The bytes of a job. What may succeed later is repeated until the deadline; everything else twice.
    fn get(&self, job: &Job) -> Result<Bytes> {
        let object = job.pack.object();
        let key = &object.key;
        let (begin, end) = job.span();
        let mut pause = PAUSES.0;
        for attempt in 1.. {
            let rest = job.deadline_ns.saturating_sub(self.env.clock.mono_ns());
            let (range, wait) = (ByteRange::Span(begin..end), Duration::from_nanos(rest));
            let (detail, is_final) = match self.store.get_within(key, range, wait) {
                Ok(found) if found.len != object.len => {
                    let (len, named) = (found.len, object.len);
                    (format!("object {key} has {len} bytes, {named} were written"), true)
                }
                Ok(found) if found.bytes.len() as u64 != end - begin => {
                    let got = found.bytes.len();
                    (format!("object {key}: {got} of {} bytes arrived", end - begin), false)
                }
                Ok(found) => return Ok(found.bytes),
                Err(e @ (ObjectError::NotFound { .. } | ObjectError::Refused { .. })) => {
                    (e.to_string(), true)
                }
                Err(e) => (e.to_string(), false),
            };
            let late = self.env.clock.mono_ns() + pause.as_nanos() as u64 >= job.deadline_ns;
            let is_over = if is_final || !self.has_threads() { attempt >= 2 } else { late };
            if is_over || !self.pause(pause) {
                return Err(unreachable(format!(
                    "a cold segment cannot be read: {detail}; check the remote, and retry"
                )));
            }
            pause = (pause * 2).min(PAUSES.1);
        }
        Err(StorageError::Closed)
    }

    /// Pauses, on a thread of the tier. Returns false if the engine closes.
    fn pause(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if self.has_threads() && !state.closed {
            let _ = self.closing.wait_for(&mut state, pause);
        }
        !state.closed
    }

    /// Starts a thread if a fetch would have to wait for one.
    fn start_thread(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            if !self.has_threads() || state.closed {
                return;
            }
            self.start_clock(&mut state);
            let now = self.env.clock.mono_ns();
            let is_long = |job: &&Arc<Job>| {
                now.saturating_sub(job.began_ns.load(Ordering::Relaxed)) >= LONG_NS
            };
            let long = state.active.iter().filter(is_long).count();
            let most = (THREADS + long).min(MAX_THREADS);
            if state.threads >= most || state.idle >= state.queue.len() {
                return;
            }
            state.threads += 1;
        }
        let tier = self.clone();
        let guards = self.env.guards.clone();
        let run = move || guards.run_loop("cold reads", || tier.work());
        if let Err(e) = thread::Builder::new().name("topics-cold".into()).spawn(run) {
            log::error!("no thread for cold reads: {e}");
            let mut state = self.state.lock();
            state.threads -= 1;
            if state.threads == 0 {
                drop(state);
                let why = unreachable(format!("no thread can be started for cold reads: {e}"));
                self.end_jobs(|_| true, &why);
            }
        }
    }

    /// Starts the thread that looks at deadlines, unless it runs.
    fn start_clock(self: &Arc<Self>, state: &mut State) {
        if std::mem::replace(&mut state.has_clock, true) {
            return;
        }
        let tier = Arc::downgrade(self);
        let guards = self.env.guards.clone();
        let look = move || {
            while let Some(tier) = tier.upgrade() {
                let mut state = tier.state.lock();
                let _ = tier.closing.wait_for(&mut state, LOOK);
                let is_idle = state.active.is_empty() && state.queue.is_empty();
                if state.closed || (is_idle && state.waiting.is_empty()) {
                    state.has_clock = false;
                    return;
                }
                drop(state);
                tier.expire();
                tier.start_thread();
            }
        };
        let run = move || guards.run_loop("cold deadlines", look);
        if let Err(e) = thread::Builder::new().name("topics-cold-clock".into()).spawn(run) {
            log::error!("no thread for the deadlines of cold reads: {e}");
            state.has_clock = false;
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                break;
            }
            if let Some(job) = self.next_job(&mut state) {
                drop(state);
                self.fetch(&job);
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.queued.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        self.ended.notify_all();
    }

    fn new_fetch(&self) -> Fetch {
        match self.has_threads() {
            true => Fetch::within(self.timeout, self.late()),
            false => Fetch::default(),
        }
    }

    /// Requests the missing blocks of a read, and keeps the present ones. Returns the fetch of the first
    /// missing one; if the blocks do not fit beside those that others wait for, a fetch that ends when they
    /// may.
    fn request(
        &self,
        state: &mut State,
        pack: &Arc<ArchivedPack>,
        read: RangeInclusive<u64>,
        ahead: Option<ReadAhead>,
    ) -> Result<Arc<Fetch>> {
        if state.closed {
            return Err(StorageError::Closed);
        }
        let now = self.env.clock.mono_ns();
        let deadline_ns = now + self.timeout.as_nanos() as u64;
        let is_present =
            |at: &u64| matches!(state.blocks.get(&(pack.number, *at)), Some(Block::Present(_)));
        let last = *read.end();
        let first = read.clone().find(|at| !is_present(at)).unwrap_or(last);
        let requested = state.requested(&(pack.number, first));
        // An engine without threads has one reader at a time.
        if requested.is_none() && self.has_threads() {
            let needed = ((last + 1) * BLOCK).min(pack.len) - first * BLOCK;
            let blocks = (pack.number, read.clone());
            let sizes = (first, needed, BLOCK.min(pack.len));
            let fits = state.fits(blocks, sizes, self.memory_bytes, now);
            if !fits || state.queue.len() >= MAX_QUEUED {
                let fetch = Arc::new(self.new_fetch());
                state.waiting.push_back(fetch.clone());
                return Ok(fetch);
            }
        }
        // Not for one that waits for memory: it and others of its kind would hold all of it.
        state.keep(pack.number, read.clone(), deadline_ns.min(now + PART_NS));
        if let Some(fetch) = requested {
            return Ok(fetch);
        }
        let mut until = last;
        if let Some(ahead) = ahead {
            let window = state.window(ahead.segment, first);
            until = last.max((first + window - 1).min(first + self.free_blocks(state)));
            until = until.min(last.max(ahead.end));
            state.sequential.insert(ahead.segment, (until + 1, window));
        }
        self.enqueue(state, pack, first..=until, (last, deadline_ns)).ok_or_else(|| {
            unreachable(format!(
                "{MAX_QUEUED} reads of cold segments wait for the object store: retry later"
            ))
        })
    }

    /// Requests the next window of a sequential reader that has begun the last block of this one, as far as
    /// there is memory that nothing else needs.
    fn request_ahead(
        &self,
        state: &mut State,
        pack: &Arc<ArchivedPack>,
        read_to: u64,
        ahead: ReadAhead,
    ) {
        let Some((next, window)) = state.sequential.get(&ahead.segment).copied() else { return };
        let free = self.free_blocks(state);
        if !self.has_threads() || read_to + 1 != next || next > ahead.end || free == 0 {
            return;
        }
        let window = (window * 2).min(REQUEST_BLOCKS);
        let until = (next + window.min(free) - 1).min(ahead.end);
        let deadline_ns = self.env.clock.mono_ns() + self.timeout.as_nanos() as u64;
        state.sequential.insert(ahead.segment, (until + 1, window));
        let _ = self.enqueue(state, pack, next..=until, (read_to, deadline_ns));
    }

    /// Blocks of memory that are neither awaited nor likely to be read soon.
    fn free_blocks(&self, state: &State) -> u64 {
        let now = self.env.clock.mono_ns();
        let taken = state.awaited_bytes() + state.bytes_of(|_, b| b.likely_until_ns > now);
        self.memory_bytes.saturating_sub(taken) / BLOCK
    }

    /// Queues the requests of missing blocks. Returns the fetch of the first block that is not here. Blocks up
    /// to `wanted` are kept for a read.
    fn enqueue(
        &self,
        state: &mut State,
        pack: &Arc<ArchivedPack>,
        blocks: RangeInclusive<u64>,
        (wanted, deadline_ns): (u64, u64),
    ) -> Option<Arc<Fetch>> {
        let (mut at, until, mut awaited) = (*blocks.start(), *blocks.end(), None);
        while at <= until {
            match state.blocks.get(&(pack.number, at)) {
                Some(Block::Requested(fetch)) => drop(awaited.get_or_insert(fetch.clone())),
                Some(Block::Present(_)) => {}
                None => {
                    if state.queue.len() >= MAX_QUEUED {
                        break;
                    }
                    let is_missing = |b: u64| !state.blocks.contains_key(&(pack.number, b));
                    let n = (at..=until).take_while(|b| is_missing(*b)).count() as u64;
                    let last = at + n.min(REQUEST_BLOCKS) - 1;
                    let (first, pack, fetch) = (at, pack.clone(), Arc::new(self.new_fetch()));
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

/// What a sequential reader of a segment may read ahead.
#[derive(Clone, Copy, Debug)]
struct ReadAhead {
    /// The file number of the segment.
    segment: u64,
    /// The last block of its records.
    end: u64,
}

#[cfg(test)]
impl ColdTier {
    /// Drops every block.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        assert!(state.active.is_empty() && state.queue.is_empty());
        state.blocks.clear();
        state.distrusted.clear();
        state.present_bytes = 0;
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> u64 {
        let state = self.state.lock();
        state.present_bytes + state.requested_bytes
    }
}

/// A reference to the tier that starts its threads.
#[derive(Debug)]
pub(crate) struct ColdReader(pub Arc<ColdTier>);

impl ColdReader {
    /// Reads what is in memory.
    fn read_present(&self, file_no: u64, kind: FileKind, at: u64, buf: &mut [u8]) -> Result<()> {
        let (pack, (offset, len)) = self.0.locate(file_no, kind)?;
        let n = buf.len().min(usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX));
        buf[n..].fill(0);
        if n == 0 {
            return Ok(());
        }
        let begin = offset + at;
        let (first, last) = (begin / BLOCK, (begin + n as u64 - 1) / BLOCK);
        let is_data = kind == FileKind::Data;
        let end = (offset + len - 1) / BLOCK;
        let ahead = is_data.then_some(ReadAhead { segment: file_no, end });
        let mut state = self.0.state.lock();
        let now = self.0.env.clock.mono_ns();
        let is_end = is_data && at + n as u64 >= len;
        let Some(found) = state.take(pack.number, first..=last, (now, is_end)) else {
            let fetch = self.0.request(&mut state, &pack, first..=last, ahead);
            drop(state);
            self.0.start_thread();
            return Err(StorageError::Fetching(fetch?));
        };
        let queued = state.queue.len();
        if let Some(ahead) = ahead {
            self.0.request_ahead(&mut state, &pack, last, ahead);
        }
        let has_requested = state.queue.len() > queued;
        drop(state);
        if has_requested {
            self.0.start_thread();
        }
        self.0.counters.hits.add(found.len() as u64);
        let mut done = 0;
        for (block, bytes) in (first..).zip(&found) {
            let from = (begin + done as u64 - block * BLOCK) as usize;
            let part = bytes.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(n - done)];
            buf[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
        Ok(())
    }
}

/// How often a read during an open fetches again what was evicted meanwhile.
const OPENING_FETCHES: usize = 16;

impl ColdFiles for ColdReader {
    fn read(&self, file_no: u64, kind: FileKind, at: u64, buf: &mut [u8]) -> Result<()> {
        for _ in 0..OPENING_FETCHES {
            match self.read_present(file_no, kind, at, buf) {
                Err(StorageError::Fetching(fetch)) if self.0.is_opening.load(Ordering::Relaxed) => {
                    self.0.wait(&fetch)?;
                }
                done => return done,
            }
        }
        self.read_present(file_no, kind, at, buf)
    }

    fn len(&self, file_no: u64, kind: FileKind) -> Result<u64> {
        self.0.locate(file_no, kind).map(|(_, (_, len))| len)
    }

    fn is_seen(&self, file_no: u64) -> bool {
        self.0.packs.is_segment_seen(file_no)
    }

    fn distrust(&self, file_no: u64, kind: FileKind, at: u64, len: u64) -> bool {
        let Ok((pack, (offset, _))) = self.0.locate(file_no, kind) else { return false };
        let begin = offset + at;
        let mut state = self.0.state.lock();
        let mut again = false;
        for block in begin / BLOCK..=(begin + len.max(1) - 1) / BLOCK {
            let key = (pack.number, block);
            match state.blocks.get(&key) {
                Some(Block::Present(b)) if b.is_second => {}
                Some(Block::Present(_)) => {
                    state.remove(key);
                    state.distrusted.insert(key);
                    again = true;
                }
                // Evicted or requested since.
                _ => again |= state.distrusted.insert(key),
            }
        }
        again
    }
}

impl ColdTier {
    /// The pack that holds a file of a segment, and offset and length there.
    fn locate(&self, file_no: u64, kind: FileKind) -> Result<(Arc<ArchivedPack>, (u64, u64))> {
        let Some((pack, segment)) = self.packs.find(file_no) else {
            return Err(unreachable(format!(
                "no pack holds the cold segment {file_no:016x}: run `topics verify`"
            )));
        };
        Ok((pack, segment.part(kind)))
    }
}
