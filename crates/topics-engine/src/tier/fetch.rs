//! The threads that fetch blocks of packs, and the one that looks at deadlines.
//!
//! Threads start with the first fetch and end after a while without one. The one for deadlines is there for
//! those who are called; whoever waits looks at its own. A request that takes long does not count among the
//! requests at a time, so that those for healthy objects go on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use topics_env::objects::{ByteRange, ObjectError};
use topics_env::sync::atomic::Ordering;
use topics_env::sync::thread;
use topics_storage::StorageError;

use super::blocks::{Job, State};
use super::cold::{ColdTier, Result, unreachable};

/// Maximum number of requests at a time that have not taken long, and of all.
const THREADS: usize = 4;
const MAX_THREADS: usize = 16;
/// When a request takes long.
const LONG_NS: u64 = 1_000_000_000;
/// How often deadlines are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a thread stays without a fetch.
const IDLE: Duration = Duration::from_secs(10);
/// How long a close waits for the next thread to end.
const END_WAIT: Duration = Duration::from_secs(1);
/// The first and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

impl ColdTier {
    /// Ends the fetches whose deadline has passed, and the waits for memory. Their requests may go on; their
    /// answers are dropped.
    pub(crate) fn expire(&self) {
        let now = self.env.clock.mono_ns();
        self.end_jobs(|job| self.is_over(job.deadline_ns, now), &self.late());
        self.end_waits();
        self.admit_waiting();
    }

    /// Whether a deadline has passed.
    pub(super) fn is_over(&self, deadline_ns: u64, now_ns: u64) -> bool {
        !self.env.check("cold.deadline", now_ns < deadline_ns)
    }

    /// The error of a fetch that has taken too long.
    pub(super) fn late(&self) -> StorageError {
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
        waiting.iter().for_each(|waiter| waiter.fetch.end(Err(StorageError::Closed)));
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
    pub(super) fn next_job(&self, state: &mut State) -> Option<Arc<Job>> {
        let job = state.queue.pop_front()?;
        job.began_ns.store(self.env.clock.mono_ns().max(1), Ordering::Relaxed);
        state.active.push(job.clone());
        state.requested_bytes += job.len();
        state.evict(self.memory_bytes, self.env.clock.mono_ns());
        Some(job)
    }

    /// Fetches the blocks of a job and ends its fetch.
    pub(super) fn fetch(&self, job: &Arc<Job>) {
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
                Ok(bytes) => {
                    let now = self.env.clock.mono_ns();
                    state.answered_ns = now;
                    state.add(job, bytes, now);
                }
                Err(_) => state.forget_requests(job),
            }
            state.evict(self.memory_bytes, self.env.clock.mono_ns());
        }
        job.fetch.end(result.map(drop));
        self.admit_waiting();
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
    pub(super) fn start_thread(self: &Arc<Self>) {
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
}
