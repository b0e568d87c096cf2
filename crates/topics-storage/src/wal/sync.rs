//! Making a shard's log durable, and the thread that does it when no caller does.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::shard::{Shard, State};
use super::{Batch, Commit, Level, Placed};
use crate::format::record::{Body, CleanClose};
use crate::{Result, StorageError};

impl Shard {
    /// Syncs what has been written when it begins. At most one sync is in flight; when it fails
    /// nothing above the last success is ever acked (I10).
    pub fn run_sync<'a>(&'a self, mut st: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        st.syncing = true;
        let (ticket, lsn) = (st.written_ticket, st.written_lsn());
        let Some(file) = st.file.clone() else {
            st.syncing = false;
            return st;
        };
        drop(st);
        let started = self.shared.env.clock.mono_ns();
        let outcome = self.shared.env.sync("wal.group", &*file.file);
        let took = self.shared.env.clock.mono_ns().saturating_sub(started);
        let mut st = self.state.lock();
        if let Err(e) = outcome {
            st.syncing = false;
            let error = StorageError::io(format!("sync {}", file.name), e);
            return self.poison(st, error);
        }
        st.synced_lsn = st.synced_lsn.max(lsn);
        st.counters.syncs += 1;
        st.counters.sync_ns += took;
        st = self.apply_synced(st, lsn);
        st.synced_ticket = st.synced_ticket.max(ticket);
        st.syncing = false;
        let due = st.due();
        drop(st);
        self.changed.notify_all();
        for (done, outcome) in due {
            done(outcome);
        }
        self.state.lock()
    }

    /// Applies, in order, the batches that a sync up to `lsn` covers. The syncing flag is held, so
    /// nobody else applies batches of this level.
    fn apply_synced<'a>(
        &'a self,
        mut st: MutexGuard<'a, State>,
        lsn: u64,
    ) -> MutexGuard<'a, State> {
        while st.unsynced.front().is_some_and(|u| u.last_lsn <= lsn) {
            let covered = st.unsynced.iter().take_while(|u| u.last_lsn <= lsn).count();
            let batches: Vec<_> = st.unsynced.drain(..covered).collect();
            st.applying = batches.first().map(|u| u.first_lsn);
            drop(st);
            for u in &batches {
                u.commit.apply(&Placed {
                    shard: self.id,
                    file: u.file,
                    offset: u.offset,
                    first_lsn: u.first_lsn,
                    file_first_lsn: u.file_first_lsn,
                    bytes: &u.group[u.range.0..u.range.1],
                });
            }
            st = self.state.lock();
            st.applying = None;
        }
        st
    }

    /// The shard's thread: syncs that nobody's own wait runs, idle tails, the next file.
    pub fn run(&self) {
        let interval = self.shared.options.sync_interval;
        let mut st = self.state.lock();
        while !st.closed {
            if self.wants_file(&st) {
                st = self.prepare(st);
                continue;
            }
            let busy =
                st.poisoned.is_none() && (!st.queue.is_empty() || st.written_lsn() > st.synced_lsn);
            if !busy {
                st.idle = true;
                self.wake.wait(&mut st);
                st.idle = false;
                continue;
            }
            let wanted = st.sync_wanted || !st.on_synced.is_empty();
            if !wanted && !self.crowded(&st) {
                let _ = self.wake.wait_for(&mut st, interval);
            }
            st.sync_wanted = false;
            if !st.queue.is_empty() && !st.leading && st.poisoned.is_none() {
                st = self.lead(st, None);
            }
            if st.syncing {
                self.changed.wait(&mut st);
            } else if st.written_lsn() > st.synced_lsn && st.poisoned.is_none() && !st.closed {
                st = self.run_sync(st);
            }
        }
    }

    fn crowded(&self, st: &State) -> bool {
        st.queued_bytes > self.shared.options.staging_bytes / 8
    }

    /// Whether the next file is to be made ready.
    pub fn wants_file(&self, st: &State) -> bool {
        let asked = if st.no_space { st.retry_space } else { !st.prepare_failed };
        st.prepared.is_none() && !st.preparing && asked && st.poisoned.is_none()
    }

    pub fn close(this: &Arc<Self>, clean: bool) -> Result<()> {
        this.finish(if clean { Self::close_clean(this) } else { Ok(()) })
    }

    fn finish(&self, result: Result<()>) -> Result<()> {
        if self.state.lock().closed {
            return Ok(());
        }
        let mut st = self.state.lock();
        st.closed = true;
        while st.leading || st.syncing || st.preparing {
            self.changed.wait(&mut st);
        }
        let error = StorageError::Closed;
        let from = st.written_ticket + 1;
        st.written_ticket = st.last_ticket;
        let to = st.last_ticket;
        st.fail(from, to, &error);
        let queue = st.drain();
        if st.poisoned.is_none() {
            st.poisoned = Some(error.clone());
        }
        let unsynced = std::mem::take(&mut st.unsynced);
        let due = st.due();
        drop(st);
        for u in unsynced {
            u.commit.failed(&error);
        }
        for q in queue {
            q.batch.commit.failed(&error);
        }
        for (done, outcome) in due {
            done(outcome);
        }
        self.changed.notify_all();
        self.wake.notify_all();
        result
    }

    /// Everything staged is written and synced, then CleanClose is a group of its own.
    fn close_clean(this: &Arc<Self>) -> Result<()> {
        if this.state.lock().closed {
            return Ok(());
        }
        this.sync_all()?;
        let mut head = Vec::new();
        CleanClose {}.encode_frame(&mut head, 0, 0, 0);
        let batch = Batch {
            head,
            records: Vec::new(),
            tail: Vec::new(),
            first_seq: 0,
            ts: this.shared.env.clock.wall_ms(),
            topic_id: 0,
            level: Level::Written,
            frees_space: true,
            commit: Arc::new(Nothing),
        };
        let room = Self::reserve(this, batch.bytes(), None)?;
        let ticket = this.stage(batch, room)?;
        this.wait(ticket.n, Level::Synced)
    }
}

/// A batch whose outcome only its waiter looks at.
pub(super) struct Nothing;

impl Commit for Nothing {
    fn apply(&self, _: &Placed<'_>) {}
    fn failed(&self, _: &StorageError) {}
}
