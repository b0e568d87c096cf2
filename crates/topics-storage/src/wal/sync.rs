//! Syncs of a shard's log, the thread that runs them when no caller does, and the close.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::atomic::Ordering;
use topics_env::sync::{Instant, thread};

use super::shard::{Guard, Shard};
use super::state::{State, Thread};
use super::{Batch, Commit, Level, PlacedBatch};
use crate::format::health::Health;
use crate::format::record::{Body, CleanClose};
use crate::format::wal_file::WAL_HEADER;
use crate::{Result, StorageError};

/// How long a batch without a waiting caller may stay in the queue.
pub(super) const STAGED_DELAY: Duration = Duration::from_millis(1);

impl Shard {
    /// Syncs everything written before it begins. At most one sync is in flight; if it fails, nothing
    /// above the last successful one is ever acked (I10).
    pub fn sync_written<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        st.worker.sync_wanted = false;
        let (ticket, lsn) = (st.progress.written_ticket, st.progress.written_lsn());
        let needed = lsn > st.progress.synced_lsn || st.current.start_unsynced;
        let Some(file) = st.current.file.clone().filter(|_| needed) else {
            st.on_synced(ticket, lsn);
            return self.drain_effects(st);
        };
        st.flags.syncing = true;
        st.current.sync_offset = st.current.offset;
        let env = &self.shared.env;
        let (outcome, took) = self.unlocked(&mut st, || {
            let started = env.clock.mono_ns();
            let synced = env.sync("wal.group", &*file.file);
            let synced = synced
                .map_err(|e| StorageError::Poisoned { detail: format!("sync {}: {e}", file.name) });
            let took = env.clock.mono_ns().saturating_sub(started);
            (synced.and_then(|()| self.shared.check_lock()), took)
        });
        st.flags.syncing = false;
        if let Err(error) = outcome {
            return self.poison(st, Vec::new(), &error);
        }
        if let Some(e) = st.poisoned.clone() {
            // A write failed meanwhile: the shard is poisoned whatever this sync returned.
            return self.poison(st, Vec::new(), &e);
        }
        st.counters.syncs.record(took);
        st.current.start_unsynced &= st.current.file.as_ref().is_some_and(|f| f.key != file.key);
        st.on_synced(ticket, lsn);
        self.drain_effects(st)
    }

    /// The shard's thread: runs syncs that no caller runs, syncs idle tails, writes batches without a
    /// waiting caller, prepares the next file. It parks while it has no work.
    pub fn run(&self) {
        let _ = self.own_thread.set(thread::current().id());
        let interval = self.shared.options.sync_interval;
        let mut timers = Timers::default();
        let mut st = self.state.lock();
        while !st.closed {
            timers.observe(&st, interval);
            if st.wants_file() {
                st = self.prepare(st);
            } else if timers.lead_due(&st) {
                st = self.lead(st, None);
                timers.check_queue_again();
            } else if timers.sync_due(&st) {
                st = self.run_sync(st);
            } else {
                match timers.next(interval) {
                    Some(at) => {
                        st.worker.state = Thread::Waiting;
                        st.worker.checks_queue = timers.front.is_some();
                        self.wake.wait_until(&mut st, at);
                    }
                    None => {
                        st.worker.state = Thread::Idle;
                        self.wake.wait(&mut st);
                    }
                }
                st.worker.state = Thread::Busy;
            }
        }
    }

    /// Closes the shard: fails every waiter, then the thread ends by itself.
    pub fn close(this: &Arc<Self>, clean: bool) -> Result<()> {
        {
            let mut st = this.state.lock();
            if st.closing {
                return Ok(());
            }
            st.closing = true;
        }
        let result = if clean { this.close_clean() } else { Ok(()) };
        // A commit or callback that the shard's thread ran may drop the log. That thread cannot wait
        // for itself; nothing is staged then, because a staged batch refers to the log.
        let own = this.own_thread.get() == Some(&thread::current().id());
        let mut st = this.state.lock();
        st.closed = true;
        while !own
            && (st.flags.leading || st.flags.syncing || st.flags.preparing || st.flags.draining)
        {
            this.flags.wait(&mut st);
        }
        let from = st.progress.written_ticket + 1;
        st.fail_all(from, Vec::new(), &StorageError::Closed);
        st = this.drain_effects(st);
        this.wake_thread(&mut st);
        this.prefault_wake.notify_all();
        drop(st);
        if clean && result.is_ok() {
            this.truncate_preallocation();
        }
        result
    }

    /// Everything staged is written and synced, then CleanClose is a group of its own.
    fn close_clean(&self) -> Result<()> {
        self.sync_all()?;
        if !self.has_begun() {
            // Nothing was logged: the directory is as it was before the open.
            return Ok(());
        }
        let mut head = Vec::new();
        CleanClose {}.encode_frame(&mut head, 0, 0, 0);
        let ts = self.shared.env.clock.wall_ms();
        let control = Batch::control(head, ts, Level::Written, Arc::new(Nothing));
        let batch = Batch { frees_space: true, ..control };
        let mut st = self.state.lock();
        st.staged.reserve(0);
        let ticket = self.enqueue(&mut st, batch, 0);
        drop(st);
        self.wait(ticket.n, Level::Synced)
    }

    /// Cuts the preallocated space of the file in use and most of that of the next file after a clean
    /// close. An error costs only disk space, or leaves `HEALTH` at `running`.
    fn truncate_preallocation(&self) {
        let mut st = self.state.lock();
        let health = st.health.clone();
        let used = st
            .current
            .file
            .clone()
            .map(|f| (f.file.clone(), st.current.offset, st.current.capacity));
        let initial = self.shared.options.file_initial.max(WAL_HEADER as u64);
        let next = st.next.prepared.as_ref().map(|p| (p.file.clone(), initial, p.capacity));
        st.current.capacity = st.current.offset;
        drop(st);
        if let Some(Err(e)) = health.map(|h| h.set(Health::Closed)) {
            log::warn!("shard {} cannot say that it is closed: {e}", self.id);
        }
        for (file, len, capacity) in used.into_iter().chain(next) {
            if len < capacity && file.set_len(len).is_ok() {
                let freed = capacity - len;
                self.disk_bytes.fetch_sub(freed, Ordering::Relaxed);
            }
        }
    }
}

/// Deadlines of the shard's thread.
#[derive(Default)]
struct Timers {
    /// Deadline of the sync of the tail.
    tail: Option<Instant>,
    /// Ticket of the first queued batch, or [`NO_BATCH`], and the deadline of its write.
    front: Option<(u64, Instant)>,
}

/// Stands for the ticket of the batch that may be staged next. Tickets begin at 1.
const NO_BATCH: u64 = 0;

impl Timers {
    fn observe(&mut self, st: &State, interval: Duration) {
        self.tail = st.dirty().then(|| self.tail.unwrap_or_else(|| Instant::now() + interval));
        let front = st.staged.batches.front().filter(|_| st.alive()).map(|q| q.n);
        self.front = match (front, self.front) {
            (Some(n), Some((m, at))) if n == m || m == NO_BATCH => Some((n, at)),
            (Some(n), _) => Some((n, Instant::now() + STAGED_DELAY)),
            (None, Some((NO_BATCH, at))) if Instant::now() < at => Some((NO_BATCH, at)),
            (None, _) => None,
        };
    }

    /// Sets a deadline for the batch that is staged next, so that under load the thread finds each
    /// group by its timer, without a wake-up.
    fn check_queue_again(&mut self) {
        self.front = Some((NO_BATCH, Instant::now() + STAGED_DELAY));
    }

    fn lead_due(&self, st: &State) -> bool {
        let due = |(n, at)| n != NO_BATCH && (st.worker.lead_wanted || Instant::now() >= at);
        !st.flags.leading && self.front.is_some_and(due)
    }

    fn sync_due(&self, st: &State) -> bool {
        if st.flags.syncing || !st.alive() {
            return false;
        }
        let late = |at| Instant::now() >= at;
        st.worker.sync_wanted || st.callback_needs_sync() || self.tail.is_some_and(late)
    }

    /// The next deadline. A deadline that passed while another thread leads or syncs is checked again
    /// one interval later: that thread has usually done the work by then.
    fn next(&self, interval: Duration) -> Option<Instant> {
        let now = Instant::now();
        let later = |at: Instant, step| if at > now { at } else { now + step };
        let tail = self.tail.map(|at| later(at, interval));
        let front = self.front.map(|(_, at)| later(at, STAGED_DELAY));
        tail.into_iter().chain(front).min()
    }
}

/// The commit of a batch whose outcome only its waiter needs.
struct Nothing;

impl Commit for Nothing {
    fn apply(&self, _: &PlacedBatch<'_>) {}
    fn failed(&self, _: &StorageError) {}
}

#[cfg(test)]
mod tests {
    use super::super::state::StagedBatches;
    use super::*;

    fn queue(st: &mut State) -> u64 {
        let batch = Batch::control(vec![0; 8], 0, Level::Staged, Arc::new(Nothing));
        st.staged.push(batch, 0)
    }

    #[test]
    fn after_a_group_the_thread_checks_the_queue_once_more() {
        let (interval, mut st) = (Duration::from_secs(3600), State::default());
        st.progress.next_lsn = 1;
        let mut timers = Timers::default();
        timers.observe(&st, interval);
        assert!(timers.front.is_none());
        timers.check_queue_again();
        timers.observe(&st, interval);
        let (ticket, deadline) = timers.front.unwrap();
        assert!(ticket == NO_BATCH && !timers.lead_due(&st), "there is no batch");
        // The next batch gets the deadline that is set.
        let n = queue(&mut st);
        timers.observe(&st, interval);
        assert_eq!(timers.front, Some((n, deadline)));
        st.worker.lead_wanted = true;
        assert!(timers.lead_due(&st));
        // Without a batch by then the timer ends.
        st.staged = StagedBatches::default();
        timers.front = Some((NO_BATCH, Instant::now()));
        timers.observe(&st, interval);
        assert!(timers.front.is_none() && timers.next(interval).is_none());
    }
}
