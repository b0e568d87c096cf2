//! What one shard knows: its queue, its positions, who waits for what. No I/O happens here.
//!
//! Everything that a commit is told, and every step of progress that a waiter can see, passes
//! through one queue of [`Effect`]s that one thread at a time drains. That keeps commits in order,
//! and no waiter returns before its batch's commit has been told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::Condvar;

use super::outcome::{Outcomes, Waiter};
use super::rotation::{FIRST_GROUP, PreparedFile};
use super::{
    Batch, Commit, Counters, FileKey, Level, PlacedBatch, ShardStart, WalFile, WalOptions,
};
use crate::StorageError;
use crate::format::health::HealthFile;
use crate::format::record::{Group, Start};
use crate::format::wal_file::WAL_HEADER;

/// The most that a file keeps for batches that free space: hundreds of deletes.
const RESERVE: u64 = 64 << 10;

/// A staged batch.
pub(super) struct QueuedBatch {
    pub n: u64,
    pub batch: Batch,
    /// Bytes of its frames; they stay with nobody once its group is made.
    pub bytes: usize,
    /// The staging room that it holds.
    pub reserved: usize,
}

/// A written batch and where it lies.
pub(super) struct WrittenBatch {
    pub commit: Arc<dyn Commit>,
    pub file: FileKey,
    pub file_first_lsn: u64,
    pub offset: u32,
    pub first_lsn: u64,
    pub last_lsn: u64,
    pub group: Arc<Vec<u8>>,
    pub range: (usize, usize),
    /// The staging room that it keeps until it is synced: its group stays in memory so long.
    pub reserved: Option<usize>,
}

impl WrittenBatch {
    pub fn apply(&self, shard: usize) {
        self.commit.apply(&PlacedBatch {
            shard,
            file: self.file,
            offset: self.offset,
            first_lsn: self.first_lsn,
            file_first_lsn: self.file_first_lsn,
            bytes: &self.group[self.range.0..self.range.1],
        });
    }
}

/// Tickets that failed together.
pub(super) struct Failure {
    /// Inclusive ranges, ascending.
    pub tickets: Vec<(u64, u64)>,
    pub error: StorageError,
    pub commits: Vec<Arc<dyn Commit>>,
    /// Their topics: see [`State::undelivered`].
    pub topics: HashSet<u64>,
    /// Nothing is acked after it: the shard is poisoned or closed.
    pub last: bool,
}

/// What waits, in order, for a sync: batches of level `Synced`, and failures behind them.
pub(super) enum Unsynced {
    Batch(WrittenBatch),
    Failure(Failure),
}

/// What is to be done, in order, without the lock.
pub(super) enum Effect {
    Apply(WrittenBatch),
    Fail(Failure),
    /// Tickets up to here are written, and applied if that is their level.
    Written(u64),
    /// Tickets up to here are durable and applied.
    Synced(u64),
}

/// What the shard's thread is doing.
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
    /// Those who wait for a staging permit, in the order they came.
    pub permit_waiters: VecDeque<Arc<Condvar>>,
    pub last_ticket: u64,
    /// Tickets up to here have left the queue and their group's write has returned, or failed.
    /// Later ones may have failed too.
    pub written_ticket: u64,
    /// Tickets up to here were covered by a sync.
    pub synced_ticket: u64,
    pub outcomes: Outcomes,
    pub next_lsn: u64,
    pub synced_lsn: u64,
    pub unsynced: VecDeque<Unsynced>,
    pub effects: VecDeque<Effect>,
    /// Topics with a failure that their commits have not been told yet, and why it failed. What is
    /// decided for such a topic builds on seqs that are about to be given back: it is refused.
    pub undelivered: HashMap<u64, StorageError>,
    /// First lsn of what is being applied.
    pub applying_from: Option<u64>,
    pub leading: bool,
    pub syncing: bool,
    pub draining: bool,
    /// The next file is being made ready, or begun.
    pub preparing: bool,
    pub file: Option<Arc<WalFile>>,
    pub offset: u64,
    pub capacity: u64,
    /// Up to where the file in use has pages ahead of its writes.
    pub prefaulted_to: u64,
    /// Where in the file in use the last sync to begin began.
    pub sync_offset: u64,
    /// Whether somebody waited for a sync of the file in use, and of the one before it.
    pub sync_used: (bool, bool),
    /// The last ordinal given to a file.
    pub last_ordinal: u64,
    pub prepared: Option<PreparedFile>,
    /// Why the last attempt to make it failed.
    pub prepare_error: Option<StorageError>,
    /// Files that were made ready and given up.
    pub orphans: Vec<String>,
    /// The last attempt to make a next file found no space.
    pub no_space: bool,
    /// Whether to try again although the last attempt failed.
    pub retry_space: bool,
    /// Bytes that every file has for batches that free space, at its end.
    pub reserve: usize,
    /// How many hold the free space for something else: no file is made ready or grown.
    pub allocation_pauses: u32,
    /// A group failed for want of space: the file in use ends before it.
    pub broken: bool,
    pub poisoned: Option<StorageError>,
    /// Where the next process learns of that.
    pub health: Option<Arc<HealthFile>>,
    /// A close has begun: no further file is made ready unless it is needed.
    pub shrinking: bool,
    /// No batch is taken any more.
    pub closing: bool,
    /// Nothing is written or synced any more.
    pub closed: bool,
    pub thread: Thread,
    pub sync_wanted: bool,
    /// When the last sync began, monotonic.
    pub sync_began: u64,
    /// Since when the next sync is held back, monotonic.
    pub delay_from: Option<u64>,
    /// From when to when the last sync that was held back waited, monotonic.
    pub last_delay: (u64, u64),
    /// Batches that waited for the last sync: the first of them that comes again is not alone.
    pub last_covered: usize,
    /// The syncing flag is held by a caller who waits for company.
    pub delaying: bool,
    /// Whoever gathers goes on at once.
    pub cancel_delay: bool,
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
    pub fn new(start: &ShardStart, file: Option<Arc<WalFile>>, options: &WalOptions) -> Self {
        Self {
            outcomes: Outcomes::new(2 * options.staging_batches),
            reserve: (options.file_initial / 8).min(RESERVE) as usize,
            next_lsn: start.next_lsn,
            synced_lsn: start.next_lsn - 1,
            last_ordinal: file.as_ref().map_or(0, |f| f.header.ordinal),
            file,
            offset: start.offset,
            sync_offset: start.offset,
            capacity: start.capacity,
            health: start.health.clone(),
            ..Self::default()
        }
    }

    pub fn written_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    /// Whether something written is not durable yet, and can still become so.
    pub fn dirty(&self) -> bool {
        self.written_lsn() > self.synced_lsn && self.alive()
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
        // Nothing is written behind a failure before a sync has passed it: they are the tail.
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

    /// Takes the next batches that fit into the file, up to `cap` bytes unless the first alone is
    /// larger.
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

    /// Bytes of batches that a group in the file in use may have.
    pub fn free_bytes(&self) -> usize {
        let free = self.capacity.saturating_sub(self.offset + Group::FRAME_LEN as u64);
        usize::try_from(free).unwrap_or(usize::MAX)
    }

    /// Bytes at the end of the file in use that ordinary batches leave to those that free space:
    /// [`Self::reserve`], until the next file is ready, which has them too.
    fn current_reserve(&self) -> usize {
        if self.prepared.is_some() { 0 } else { self.reserve }
    }

    /// Bytes of the largest batch that the file in use, or the next one as it is, has room for.
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

    /// Whether the file after the one in use is to be made ready: as soon as this one is used.
    pub fn wants_file(&self) -> bool {
        let used = self.offset > (WAL_HEADER + Start::FRAME_LEN) as u64;
        let again = self.prepare_error.is_none() || self.retry_space;
        used && !self.shrinking
            && self.prepared.is_none()
            && !self.preparing
            && self.alive()
            && again
    }

    /// Has the first of those who wait for a permit look again.
    pub fn wake_permit_waiter(&self) {
        if let Some(first) = self.permit_waiters.front() {
            first.notify_one();
        }
    }

    /// Gives back what taken batches held.
    pub fn release<'q>(&mut self, taken: impl IntoIterator<Item = &'q QueuedBatch>) {
        for q in taken {
            self.queued_bytes -= q.bytes;
            self.release_reserved(Some(q.reserved));
        }
    }

    /// Gives back the staging room of one batch.
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

    /// Fails, in queue order, `taken`, which the leader took from the queue, what is `unwritable` of
    /// the queue, and every later batch of their topics: its seqs, floors and creation follow from
    /// those of the failed one. They are told after all that was written before them.
    pub fn fail(
        &mut self,
        taken: Vec<QueuedBatch>,
        unwritable: impl Fn(&QueuedBatch) -> bool,
        error: &StorageError,
    ) {
        let topic = |q: &QueuedBatch| Some(q.batch.topic_id).filter(|t| *t != 0);
        let mut topics: HashSet<u64> = taken.iter().filter_map(topic).collect();
        let mut failed = taken;
        let mut rest = VecDeque::with_capacity(self.queue.len());
        // One behind a batch of its topic that goes on waits for its turn: none is told before it.
        let mut going_on = HashSet::new();
        for q in self.queue.drain(..) {
            let of = topic(&q);
            let lost = unwritable(&q) && of.is_none_or(|t| !going_on.contains(&t));
            if lost || of.is_some_and(|t| topics.contains(&t)) {
                topics.extend(of);
                failed.push(q);
            } else {
                going_on.extend(of);
                rest.push_back(q);
            }
        }
        self.queue = rest;
        self.written_ticket = self.before_queue();
        if failed.is_empty() {
            return;
        }
        self.release(&failed);
        self.undelivered.extend(topics.iter().map(|t| (*t, error.clone())));
        let failure = Failure {
            tickets: ranges(&failed),
            error: error.clone(),
            commits: failed.into_iter().map(|q| q.batch.commit).collect(),
            topics,
            last: false,
        };
        if self.unsynced.is_empty() {
            self.effects.push_back(Effect::Fail(failure));
        } else {
            self.unsynced.push_back(Unsynced::Failure(failure));
            self.sync_wanted = true;
        }
    }

    /// Fails everything from ticket `from` on, and whatever waits for a sync: the batches that a
    /// leader took and could not write, then the queue. While somebody leads, these are left to
    /// him.
    pub fn fail_all(&mut self, from: u64, taken: &[QueuedBatch], error: &StorageError) {
        let mut commits = Vec::new();
        for u in std::mem::take(&mut self.unsynced) {
            match u {
                Unsynced::Batch(p) => {
                    self.release_reserved(p.reserved);
                    commits.push(p.commit);
                }
                Unsynced::Failure(f) => commits.extend(f.commits),
            }
        }
        let last = !self.leading;
        if last {
            let queue: Vec<QueuedBatch> = self.queue.drain(..).collect();
            self.release(taken.iter().chain(&queue));
            commits.extend(taken.iter().chain(&queue).map(|q| q.batch.commit.clone()));
            self.written_ticket = self.last_ticket;
        }
        let tickets = vec![(from, self.written_ticket)];
        let topics = HashSet::new();
        let failure = Failure { tickets, error: error.clone(), commits, topics, last };
        self.effects.push_back(Effect::Fail(failure));
    }

    /// A sync that began when tickets up to `ticket` and frames up to `lsn` were written has
    /// returned.
    pub fn on_synced(&mut self, ticket: u64, lsn: u64) {
        self.synced_lsn = self.synced_lsn.max(lsn);
        self.synced_ticket = self.synced_ticket.max(ticket);
        self.last_covered = 0;
        while let Some(front) = self.unsynced.pop_front() {
            match front {
                Unsynced::Batch(p) if p.last_lsn > lsn => {
                    self.unsynced.push_front(Unsynced::Batch(p));
                    break;
                }
                Unsynced::Batch(p) => {
                    self.last_covered += 1;
                    self.release_reserved(p.reserved);
                    self.effects.push_back(Effect::Apply(p));
                }
                Unsynced::Failure(f) => self.effects.push_back(Effect::Fail(f)),
            }
        }
        self.effects.push_back(Effect::Synced(self.synced_ticket));
    }

    /// Takes the effects that are to be run next.
    pub fn begin_drain(&mut self) -> VecDeque<Effect> {
        self.draining = true;
        let effects = std::mem::take(&mut self.effects);
        self.applying_from = lowest_lsn(&effects);
        effects
    }

    /// The effects have been run: waiters may see it.
    pub fn end_drain(&mut self, effects: VecDeque<Effect>) {
        self.applying_from = None;
        self.draining = false;
        for effect in effects {
            match effect {
                Effect::Apply(_) => {}
                Effect::Written(n) => self.outcomes.reached(n, Level::Written),
                Effect::Synced(n) => self.outcomes.reached(n, Level::Synced),
                Effect::Fail(f) => {
                    f.topics.iter().for_each(|t| drop(self.undelivered.remove(t)));
                    for (from, to) in f.tickets {
                        self.outcomes.fail(from, to, &f.error);
                    }
                    if f.last {
                        self.outcomes.end(&f.error);
                    }
                }
            }
        }
    }

    /// Whether a callback waits for a sync of what is written.
    pub fn callback_needs_sync(&self) -> bool {
        let first = self.outcomes.first_synced_call();
        first.is_some_and(|n| n <= self.written_ticket) && self.dirty()
    }

    /// How long the next sync may wait for company, if it has any, or the last one had: the window
    /// is counted from the beginning of that.
    pub fn remaining_delay(&self, ns: u64, now: u64, others_wait: bool) -> Option<Duration> {
        let others_wait = others_wait || self.last_covered > 1;
        let delays =
            ns > 0 && others_wait && !self.cancel_delay && !self.sync_wanted && !self.closing;
        let rest = (self.sync_began + ns).saturating_sub(now);
        (delays && rest > 0).then(|| Duration::from_nanos(rest.min(ns)))
    }

    /// Takes the waiters off the list that have something to do: their outcome is known, or one
    /// of them is to lead, or to sync. Asks the shard's thread to lead where no blocked thread
    /// will although somebody waits for what is queued.
    pub fn take_woken(&mut self) -> Vec<Arc<Condvar>> {
        let mut woken = self.outcomes.known();
        if !self.alive() {
            return woken;
        }
        // One that needs a sync anyway leads first, so that its sync covers what is queued.
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

    /// After a panic: whoever held a flag does not give it back.
    pub fn release_flags(&mut self) {
        (self.leading, self.syncing, self.draining, self.preparing) = (false, false, false, false);
        self.delaying = false;
        self.applying_from = None;
    }
}

/// The tickets of batches in queue order, as ranges.
fn ranges(batches: &[QueuedBatch]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for q in batches {
        match ranges.last_mut() {
            Some(r) if r.1 + 1 == q.n => r.1 = q.n,
            _ => ranges.push((q.n, q.n)),
        }
    }
    ranges
}

fn lowest_lsn(effects: &VecDeque<Effect>) -> Option<u64> {
    let applied = |e: &Effect| if let Effect::Apply(p) = e { Some(p.first_lsn) } else { None };
    effects.iter().filter_map(applied).min()
}
