//! The state of one shard: its queue, its positions, its waiters. No I/O happens here.
//!
//! | part | holds |
//! |---|---|
//! | `staged` | the batches that no leader has taken, and the permits |
//! | `progress` | what became of the others: positions, what waits for a sync, effects, outcomes |
//! | `files` | the file in use, and the preparation of the next one |
//!
//! Every outcome that a commit receives, and all progress that a waiter can see, passes through one
//! queue of [`Effect`]s that one thread at a time drains. This keeps commits in order, and no waiter
//! returns before the commit of its batch has run.

mod files;
mod progress;
mod staged;

use std::sync::Arc;

use topics_env::Callback;
use topics_env::sync::Condvar;

use self::files::{CurrentFile, NextFile};
use self::progress::Progress;
pub(super) use self::progress::lowest_lsn;
pub(super) use self::staged::StagedBatches;
use super::effects::QueuedBatch;
use super::outcome::{Outcomes, Waiter};
use super::rotation::FIRST_GROUP;
use super::{Counters, Level, ShardStart, WalFile, WalOptions, begin};
use crate::StorageError;
use crate::format::health::HealthFile;
use crate::format::record::{Group, Start};
use crate::format::wal_file::WAL_HEADER;

/// Maximum bytes that a file reserves for batches that free space: hundreds of deletes.
const RESERVE: u64 = 64 << 10;

/// The state of the shard's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Thread {
    /// Running, or about to.
    #[default]
    Busy,
    /// Waiting for its next deadline.
    Waiting,
    /// Waiting until it is woken.
    Idle,
}

/// The work that one thread at a time does without the lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    /// A group is being written.
    pub leading: bool,
    pub syncing: bool,
    /// Effects are being run.
    pub draining: bool,
    /// The next file is being prepared, or a rotation to it is in progress.
    pub preparing: bool,
}

/// The shard's thread, and what others want of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worker {
    pub state: Thread,
    pub sync_wanted: bool,
    pub lead_wanted: bool,
    /// Whether the deadline that the thread waits for is at most [`super::sync::STAGED_DELAY`] away.
    pub checks_queue: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub staged: StagedBatches,
    pub progress: Progress,
    pub current: CurrentFile,
    pub next: NextFile,
    pub flags: Flags,
    pub worker: Worker,
    /// Bytes at the end of every file that are reserved for batches that free space.
    pub reserve: usize,
    pub poisoned: Option<StorageError>,
    /// Tells the next process of a failed write-back.
    pub health: Option<Arc<HealthFile>>,
    /// Batches are refused.
    pub closing: bool,
    /// Writes and syncs have ended.
    pub closed: bool,
    pub counters: Counters,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("next_lsn", &self.progress.next_lsn)
            .field("synced_lsn", &self.progress.synced_lsn)
            .field("queued", &self.staged.batches.len())
            .finish_non_exhaustive()
    }
}

impl State {
    pub fn new(start: ShardStart, file: Option<Arc<WalFile>>, options: &WalOptions) -> Self {
        Self {
            progress: Progress {
                outcomes: Outcomes::new(2 * options.staging_batches),
                next_lsn: start.next_lsn,
                synced_lsn: start.next_lsn - 1,
                ..Progress::default()
            },
            next: NextFile {
                no_space: start.begin.is_some(),
                error: start.begin.as_ref().map(|_| begin::not_begun()),
                begin: start.begin,
                last_ordinal: file.as_ref().map_or(0, |f| f.header.ordinal),
                ..NextFile::default()
            },
            current: CurrentFile {
                file,
                offset: start.offset,
                sync_offset: start.offset,
                capacity: start.capacity,
                ..CurrentFile::default()
            },
            reserve: (options.file_initial / 8).min(RESERVE) as usize,
            health: start.health,
            ..Self::default()
        }
    }

    /// Whether written frames, the Start of the file in use among them, are not durable yet and can
    /// still become durable.
    pub fn dirty(&self) -> bool {
        (self.progress.written_lsn() > self.progress.synced_lsn || self.current.start_unsynced)
            && self.alive()
    }

    /// Whether groups and syncs still happen.
    pub fn alive(&self) -> bool {
        self.poisoned.is_none() && !self.closed
    }

    /// Takes the next batches that fit into the file: up to `cap` bytes, at least one batch.
    pub fn take(&mut self, cap: usize) -> Vec<QueuedBatch> {
        let (free, reserve) = (self.current.free_bytes(), self.current_reserve());
        let mut bytes = 0;
        let fit = |q: &&QueuedBatch| {
            let first = bytes == 0;
            bytes += q.bytes;
            let reserve = if q.batch.frees_space { 0 } else { reserve };
            bytes + reserve <= free && (first || bytes <= cap)
        };
        let n = self.staged.batches.iter().take_while(fit).count();
        self.staged.batches.drain(..n).collect()
    }

    /// Bytes at the end of the file in use that only batches that free space may use. 0 when the next
    /// file is prepared, because it has a reserve of its own.
    fn current_reserve(&self) -> usize {
        if self.next.prepared.is_some() { 0 } else { self.reserve }
    }

    /// Bytes of the largest batch that fits into the file in use or into the prepared one.
    pub fn largest_writable(&self, frees_space: bool) -> usize {
        let reserve = if frees_space { 0 } else { self.reserve };
        let next = self.next.prepared.as_ref().map_or(0, |p| p.capacity);
        let next = next.saturating_sub(FIRST_GROUP + Group::FRAME_LEN as u64);
        let next = usize::try_from(next).unwrap_or(usize::MAX).saturating_sub(reserve);
        let here = self.current.free_bytes().saturating_sub(reserve.min(self.current_reserve()));
        next.max(if self.current.broken { 0 } else { here })
    }

    /// Whether the next batch cannot go into the file in use.
    pub fn needs_rotation(&self) -> bool {
        let reserve =
            |q: &QueuedBatch| if q.batch.frees_space { 0 } else { self.current_reserve() };
        let fits = |q: &QueuedBatch| q.bytes + reserve(q) <= self.current.free_bytes();
        self.staged.batches.front().is_some_and(|q| self.current.broken || !fits(q))
    }

    /// Bytes that the next file needs behind its Start for the next batch.
    pub fn needed(&self) -> u64 {
        let reserve = |q: &QueuedBatch| if q.batch.frees_space { 0 } else { self.reserve };
        let bytes = self.staged.batches.front().map_or(0, |q| q.bytes + reserve(q));
        (bytes + Group::FRAME_LEN) as u64
    }

    /// Whether to prepare the next file: as soon as the one in use holds a group. The first file of a
    /// log that has none is always needed.
    pub fn wants_file(&self) -> bool {
        let used = self.next.begin.is_some()
            || self.current.offset > (WAL_HEADER + Start::FRAME_LEN) as u64;
        let again = self.next.error.is_none() || self.next.retry;
        used && !self.next.shrinking
            && self.next.prepared.is_none()
            && !self.flags.preparing
            && self.alive()
            && again
    }

    /// Removes and returns the observers whose sync has come.
    pub fn take_sync_observers(&mut self) -> Vec<Callback> {
        if self.progress.sync_observers.is_empty() {
            return Vec::new();
        }
        let reached = self.progress.synced_lsn.min(self.progress.applied_lsn());
        self.progress.sync_observers.take(|after| *after < reached)
    }

    /// Whether a callback waits for a sync of what is written.
    pub fn callback_needs_sync(&self) -> bool {
        let first = self.progress.outcomes.first_synced_call();
        first.is_some_and(|n| n <= self.progress.written_ticket) && self.dirty()
    }

    /// Removes and returns the waiters to wake: those whose outcome is known, one to lead and one to
    /// sync. If no waiter can lead although a queued batch needs it, requests it from the thread.
    pub fn take_woken(&mut self) -> Vec<Arc<Condvar>> {
        let mut woken = self.progress.outcomes.known();
        if !self.alive() {
            return woken;
        }
        // Prefer a leader that needs a sync anyway: its sync then covers the queued batches.
        let mut will_sync = self.flags.syncing;
        let waiters = &self.progress.outcomes.waiters;
        if !self.flags.leading && !self.staged.batches.is_empty() {
            let queued = |w: &Waiter| self.staged.is_queued(w.n);
            let at = waiters.iter().position(|w| queued(w) && w.level == Level::Synced);
            if let Some(at) = at.or_else(|| waiters.iter().position(queued)) {
                let leader = self.progress.outcomes.waiters.swap_remove(at);
                will_sync |= leader.level == Level::Synced;
                woken.push(leader.wake);
            } else {
                self.worker.lead_wanted |=
                    self.staged.batches.iter().any(|q| q.batch.level != Level::Staged);
            }
        }
        if !will_sync {
            let at = self
                .progress
                .outcomes
                .waiters
                .iter()
                .position(|w| self.progress.needs_sync(w.n, w.level));
            woken.extend(at.map(|at| self.progress.outcomes.waiters.swap_remove(at).wake));
        }
        woken
    }

    /// Clears all flags after a panic, because the thread that set them is gone.
    pub fn release_flags(&mut self) {
        self.flags = Flags::default();
        self.progress.applying_from = None;
    }
}
