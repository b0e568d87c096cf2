//! The state of one shard: its queue, its positions, its waiters. No I/O happens here.
//!
//! Every outcome that a commit receives, and all progress that a waiter can see, passes through one
//! queue of [`Effect`]s that one thread at a time drains. This keeps commits in order, and no waiter
//! returns before the commit of its batch has run.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use topics_env::sync::Condvar;

use super::effects::{Effect, QueuedBatch, Unsynced};
use super::outcome::{Outcomes, Waiter};
use super::rotation::{FIRST_GROUP, PreparedFile};
use super::{BeginLog, Counters, Level, ShardStart, WalFile, WalOptions, begin};
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

#[derive(Default)]
pub(super) struct State {
    pub queue: VecDeque<QueuedBatch>,
    pub queued_bytes: usize,
    pub reserved_bytes: usize,
    pub reserved_batches: usize,
    /// Callers that wait for a staging permit, oldest first.
    pub permit_waiters: VecDeque<Arc<Condvar>>,
    pub last_ticket: u64,
    /// Tickets up to here have left the queue, and the write of their group has returned or failed.
    /// Later tickets may have failed too.
    pub written_ticket: u64,
    /// Tickets up to here were covered by a sync.
    pub synced_ticket: u64,
    pub outcomes: Outcomes,
    pub next_lsn: u64,
    pub synced_lsn: u64,
    pub unsynced: VecDeque<Unsynced>,
    pub effects: VecDeque<Effect>,
    /// Topics with a failure that their commits have not received yet, and the error. Batches of such
    /// a topic are refused, because they were decided on seqs that the failure will release.
    pub undelivered: HashMap<u64, StorageError>,
    /// First lsn of the batches that are being applied.
    pub applying_from: Option<u64>,
    pub leading: bool,
    pub syncing: bool,
    pub draining: bool,
    /// The next file is being prepared, or a rotation to it is in progress.
    pub preparing: bool,
    pub file: Option<Arc<WalFile>>,
    /// Creates the first file of a log that has none.
    pub begin: Option<BeginLog>,
    pub offset: u64,
    pub capacity: u64,
    /// End of the range of the file in use whose pages are in memory.
    pub prefaulted_to: u64,
    /// Offset in the file in use at which the last sync began.
    pub sync_offset: u64,
    /// Whether a caller waited for a sync of the file in use, and of the one before it.
    pub sync_used: (bool, bool),
    /// The last ordinal used for a file.
    pub last_ordinal: u64,
    pub prepared: Option<PreparedFile>,
    /// The error of the last attempt to prepare it.
    pub prepare_error: Option<StorageError>,
    /// No sync that began after the Start of the file in use was written has returned.
    pub start_unsynced: bool,
    /// Names of abandoned prepared files, to be removed.
    pub orphans: Vec<String>,
    /// The last attempt to prepare a file found the disk full.
    pub no_space: bool,
    /// Whether to prepare again although the last attempt failed.
    pub retry_space: bool,
    /// Bytes at the end of every file that are reserved for batches that free space.
    pub reserve: usize,
    /// Number of live [`super::AllocationPause`]s: while there is one, no file is prepared or grown.
    pub allocation_pauses: u32,
    /// A group failed for want of space: the file in use ends before it.
    pub broken: bool,
    pub poisoned: Option<StorageError>,
    /// Tells the next process of a failed write-back.
    pub health: Option<Arc<HealthFile>>,
    /// A close has begun: no further file is prepared unless it is needed.
    pub shrinking: bool,
    /// Batches are refused.
    pub closing: bool,
    /// Writes and syncs have ended.
    pub closed: bool,
    pub thread: Thread,
    pub sync_wanted: bool,
    pub lead_wanted: bool,
    pub counters: Counters,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("next_lsn", &self.next_lsn)
            .field("synced_lsn", &self.synced_lsn)
            .field("queued", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl State {
    pub fn new(start: ShardStart, file: Option<Arc<WalFile>>, options: &WalOptions) -> Self {
        Self {
            no_space: start.begin.is_some(),
            prepare_error: start.begin.as_ref().map(|_| begin::not_begun()),
            begin: start.begin,
            outcomes: Outcomes::new(2 * options.staging_batches),
            reserve: (options.file_initial / 8).min(RESERVE) as usize,
            next_lsn: start.next_lsn,
            synced_lsn: start.next_lsn - 1,
            last_ordinal: file.as_ref().map_or(0, |f| f.header.ordinal),
            file,
            offset: start.offset,
            sync_offset: start.offset,
            capacity: start.capacity,
            health: start.health,
            ..Self::default()
        }
    }

    pub fn written_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    /// Whether written frames, the Start of the file in use among them, are not durable yet and can
    /// still become durable.
    pub fn dirty(&self) -> bool {
        (self.written_lsn() > self.synced_lsn || self.start_unsynced) && self.alive()
    }

    /// Whether groups and syncs still happen.
    pub fn alive(&self) -> bool {
        self.poisoned.is_none() && !self.closed
    }

    /// Whether a ticket is still in the queue.
    pub fn is_queued(&self, n: u64) -> bool {
        self.queue.front().is_some_and(|q| q.n <= n)
    }

    /// Whether a ticket's outcome waits for a sync that has not begun to cover it.
    pub fn needs_sync(&self, n: u64, level: Level) -> bool {
        let own = level == Level::Synced && n <= self.written_ticket && n > self.synced_ticket;
        // No group is written behind a failure before a sync has passed it, so failures are last.
        own || self
            .unsynced
            .iter()
            .rev()
            .map_while(|u| if let Unsynced::Failure(f) = u { Some(f) } else { None })
            .any(|f| f.tickets.iter().any(|(from, to)| (*from..=*to).contains(&n)))
    }

    /// Whether a failure waits for a sync of what was written before it.
    pub fn failure_waits(&self) -> bool {
        matches!(self.unsynced.back(), Some(Unsynced::Failure(_)))
    }

    /// The lsn below which everything has been applied.
    pub fn applied_lsn(&self) -> u64 {
        let pending = lowest_lsn(&self.effects);
        let unsynced = self.unsynced.iter().find_map(|u| match u {
            Unsynced::Batch(p) => Some(p.first_lsn),
            Unsynced::Failure(_) => None,
        });
        let lowest = [self.applying_from, pending, unsynced].into_iter().flatten().min();
        lowest.map_or(self.written_lsn(), |lsn| lsn - 1)
    }

    /// Takes the next batches that fit into the file: up to `cap` bytes, at least one batch.
    pub fn take(&mut self, cap: usize) -> Vec<QueuedBatch> {
        let (free, reserve) = (self.free_bytes(), self.current_reserve());
        let mut bytes = 0;
        let fit = |q: &&QueuedBatch| {
            let first = bytes == 0;
            bytes += q.bytes;
            let reserve = if q.batch.frees_space { 0 } else { reserve };
            bytes + reserve <= free && (first || bytes <= cap)
        };
        let n = self.queue.iter().take_while(fit).count();
        self.queue.drain(..n).collect()
    }

    /// Bytes of batches that still fit into the file in use.
    pub fn free_bytes(&self) -> usize {
        // A position in a file has 32 bits, whatever the settings of an earlier process were.
        let end = self.capacity.min(u64::from(u32::MAX));
        let free = end.saturating_sub(self.offset + Group::FRAME_LEN as u64);
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    /// Bytes at the end of the file in use that only batches that free space may use. 0 when the next
    /// file is prepared, because it has a reserve of its own.
    fn current_reserve(&self) -> usize {
        if self.prepared.is_some() { 0 } else { self.reserve }
    }

    /// Bytes of the largest batch that fits into the file in use or into the prepared one.
    pub fn largest_writable(&self, frees_space: bool) -> usize {
        let reserve = if frees_space { 0 } else { self.reserve };
        let next = self.prepared.as_ref().map_or(0, |p| p.capacity);
        let next = next.saturating_sub(FIRST_GROUP + Group::FRAME_LEN as u64);
        let next = usize::try_from(next).unwrap_or(usize::MAX).saturating_sub(reserve);
        let here = self.free_bytes().saturating_sub(reserve.min(self.current_reserve()));
        next.max(if self.broken { 0 } else { here })
    }

    /// Whether the next batch cannot go into the file in use.
    pub fn needs_rotation(&self) -> bool {
        let reserve =
            |q: &QueuedBatch| if q.batch.frees_space { 0 } else { self.current_reserve() };
        let fits = |q: &QueuedBatch| q.bytes + reserve(q) <= self.free_bytes();
        self.queue.front().is_some_and(|q| self.broken || !fits(q))
    }

    /// Bytes that the next file needs behind its Start for the next batch.
    pub fn needed(&self) -> u64 {
        let reserve = |q: &QueuedBatch| if q.batch.frees_space { 0 } else { self.reserve };
        let bytes = self.queue.front().map_or(0, |q| q.bytes + reserve(q));
        (bytes + Group::FRAME_LEN) as u64
    }

    /// Whether to prepare the next file: as soon as the one in use holds a group. The first file of a
    /// log that has none is always needed.
    pub fn wants_file(&self) -> bool {
        let used = self.begin.is_some() || self.offset > (WAL_HEADER + Start::FRAME_LEN) as u64;
        let again = self.prepare_error.is_none() || self.retry_space;
        used && !self.shrinking
            && self.prepared.is_none()
            && !self.preparing
            && self.alive()
            && again
    }

    /// Wakes the first caller that waits for a permit.
    pub fn wake_permit_waiter(&self) {
        if let Some(first) = self.permit_waiters.front() {
            first.notify_one();
        }
    }

    /// Releases the reservations of taken batches.
    pub fn release<'q>(&mut self, taken: impl IntoIterator<Item = &'q QueuedBatch>) {
        for q in taken {
            self.queued_bytes -= q.bytes;
            self.release_reserved(Some(q.reserved));
        }
    }

    /// Releases the reservation of one batch.
    pub fn release_reserved(&mut self, reserved: Option<usize>) {
        if let Some(bytes) = reserved {
            self.reserved_bytes -= bytes;
            self.reserved_batches -= 1;
        }
    }

    /// The last ticket before the queue: all up to it have left the queue.
    pub fn before_queue(&self) -> u64 {
        self.queue.front().map_or(self.last_ticket, |q| q.n - 1)
    }

    /// Whether a callback waits for a sync of what is written.
    pub fn callback_needs_sync(&self) -> bool {
        let first = self.outcomes.first_synced_call();
        first.is_some_and(|n| n <= self.written_ticket) && self.dirty()
    }

    /// Removes and returns the waiters to wake: those whose outcome is known, one to lead and one to
    /// sync. If no waiter can lead although a queued batch needs it, requests it from the thread.
    pub fn take_woken(&mut self) -> Vec<Arc<Condvar>> {
        let mut woken = self.outcomes.known();
        if !self.alive() {
            return woken;
        }
        // Prefer a leader that needs a sync anyway: its sync then covers the queued batches.
        let mut will_sync = self.syncing;
        let waiters = &self.outcomes.waiters;
        if !self.leading && !self.queue.is_empty() {
            let queued = |w: &Waiter| self.is_queued(w.n);
            let at = waiters.iter().position(|w| queued(w) && w.level == Level::Synced);
            if let Some(at) = at.or_else(|| waiters.iter().position(queued)) {
                let leader = self.outcomes.waiters.swap_remove(at);
                will_sync |= leader.level == Level::Synced;
                woken.push(leader.wake);
            } else {
                self.lead_wanted |= self.queue.iter().any(|q| q.batch.level != Level::Staged);
            }
        }
        if !will_sync {
            let at = self.outcomes.waiters.iter().position(|w| self.needs_sync(w.n, w.level));
            woken.extend(at.map(|at| self.outcomes.waiters.swap_remove(at).wake));
        }
        woken
    }

    /// Clears all flags after a panic, because the thread that set them is gone.
    pub fn release_flags(&mut self) {
        (self.leading, self.syncing, self.draining, self.preparing) = (false, false, false, false);
        self.applying_from = None;
    }
}

pub(super) fn lowest_lsn(effects: &VecDeque<Effect>) -> Option<u64> {
    let applied = |e: &Effect| if let Effect::Apply(p) = e { Some(p.first_lsn) } else { None };
    effects.iter().filter_map(applied).min()
}
