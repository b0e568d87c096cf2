//! Effects of writes and syncs: commits to apply, failures, progress. The state queues them;
//! [`super::shard::Shard::drain_effects`] runs them in order, one thread at a time.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::state::{State, lowest_lsn};
use super::{Batch, Commit, FileKey, Level, PlacedBatch};
use crate::{StorageError, ranges_of};

/// A staged batch.
pub(super) struct QueuedBatch {
    pub n: u64,
    pub batch: Batch,
    /// Bytes of its frames. The frames move into the group when it is built.
    pub bytes: usize,
    /// Bytes that its permit reserved.
    pub reserved: usize,
}

/// A written batch and its place in the log.
pub(super) struct WrittenBatch {
    pub commit: Arc<dyn Commit>,
    pub file: FileKey,
    pub file_first_lsn: u64,
    pub offset: u32,
    pub first_lsn: u64,
    pub last_lsn: u64,
    pub group: Arc<Vec<u8>>,
    pub range: (usize, usize),
    /// Bytes that it keeps reserved until it is synced, because its group stays in memory until then.
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
    /// Whether nothing is acked after it: the shard is poisoned or closed.
    pub last: bool,
}

/// Waits, in order, for a sync: a batch of level `Synced`, or a failure behind one.
pub(super) enum Unsynced {
    Batch(WrittenBatch),
    Failure(Failure),
}

/// An action that is run in order, without the lock.
pub(super) enum Effect {
    Apply(WrittenBatch),
    Fail(Failure),
    /// Tickets up to here are written, and applied if that is their level.
    Written(u64),
    /// Tickets up to here are durable and applied.
    Synced(u64),
}

impl State {
    /// Fails, in queue order: `taken`, which the leader took from the queue; every queued batch that is
    /// `unwritable`; and every later batch of their topics, because its seqs, floors and creation
    /// follow from those of the failed one. Their commits run after those of all earlier writes.
    pub fn fail(
        &mut self,
        taken: Vec<QueuedBatch>,
        unwritable: impl Fn(&QueuedBatch) -> bool,
        error: &StorageError,
    ) {
        let topic = |q: &QueuedBatch| Some(q.batch.topic_id).filter(|t| *t != 0);
        let mut topics: HashSet<u64> = taken.iter().filter_map(topic).collect();
        let mut failed = taken;
        let mut rest = VecDeque::with_capacity(self.staged.batches.len());
        // A batch behind a writable one of its topic stays queued: commits of a topic run in order.
        let mut going_on = HashSet::new();
        for q in self.staged.batches.drain(..) {
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
        self.staged.batches = rest;
        self.progress.written_ticket = self.staged.before_queue();
        if failed.is_empty() {
            return;
        }
        self.staged.release(&failed);
        self.progress.undelivered.extend(topics.iter().map(|t| (*t, error.clone())));
        let failure = Failure {
            tickets: ranges_of(failed.iter().map(|q| q.n)),
            error: error.clone(),
            commits: failed.into_iter().map(|q| q.batch.commit).collect(),
            topics,
            last: false,
        };
        if self.progress.unsynced.is_empty() {
            self.progress.effects.push_back(Effect::Fail(failure));
        } else {
            self.progress.unsynced.push_back(Unsynced::Failure(failure));
            self.worker.sync_wanted = true;
        }
    }

    /// Fails everything from ticket `from` on: the batches that wait for a sync, those that a leader
    /// took and could not write, then the queue. While another thread leads, it fails the last two
    /// itself.
    pub fn fail_all(&mut self, from: u64, taken: Vec<QueuedBatch>, error: &StorageError) {
        let mut commits = Vec::new();
        for u in std::mem::take(&mut self.progress.unsynced) {
            match u {
                Unsynced::Batch(p) => {
                    p.reserved.into_iter().for_each(|bytes| self.staged.release_reserved(bytes));
                    commits.push(p.commit);
                }
                Unsynced::Failure(f) => commits.extend(f.commits),
            }
        }
        let last = !self.flags.leading;
        if last {
            let mut failed = taken;
            failed.extend(self.staged.batches.drain(..));
            self.staged.release(&failed);
            commits.extend(failed.into_iter().map(|q| q.batch.commit));
            self.progress.written_ticket = self.staged.last_ticket;
        }
        let tickets = vec![(from, self.progress.written_ticket)];
        let topics = HashSet::new();
        let failure = Failure { tickets, error: error.clone(), commits, topics, last };
        self.progress.effects.push_back(Effect::Fail(failure));
    }

    /// Records a successful sync that began when tickets up to `ticket` and frames up to `lsn` were
    /// written.
    pub fn on_synced(&mut self, ticket: u64, lsn: u64) {
        self.progress.synced_lsn = self.progress.synced_lsn.max(lsn);
        self.progress.synced_ticket = self.progress.synced_ticket.max(ticket);
        while let Some(front) = self.progress.unsynced.pop_front() {
            match front {
                Unsynced::Batch(p) if p.last_lsn > lsn => {
                    self.progress.unsynced.push_front(Unsynced::Batch(p));
                    break;
                }
                Unsynced::Batch(p) => {
                    p.reserved.into_iter().for_each(|bytes| self.staged.release_reserved(bytes));
                    self.progress.effects.push_back(Effect::Apply(p));
                }
                Unsynced::Failure(f) => self.progress.effects.push_back(Effect::Fail(f)),
            }
        }
        self.progress.effects.push_back(Effect::Synced(self.progress.synced_ticket));
    }

    /// Takes the queued effects and marks the drain as running.
    pub fn begin_drain(&mut self) -> VecDeque<Effect> {
        self.flags.draining = true;
        let effects = std::mem::take(&mut self.progress.effects);
        self.progress.applying_from = lowest_lsn(&effects);
        effects
    }

    /// Makes the progress of effects that have run visible to waiters.
    pub fn end_drain(&mut self, effects: &VecDeque<Effect>) {
        self.progress.applying_from = None;
        self.flags.draining = false;
        for effect in effects {
            match effect {
                Effect::Apply(_) => {}
                Effect::Written(n) => self.progress.outcomes.reached(*n, Level::Written),
                Effect::Synced(n) => self.progress.outcomes.reached(*n, Level::Synced),
                Effect::Fail(f) => {
                    f.topics.iter().for_each(|t| drop(self.progress.undelivered.remove(t)));
                    for (from, to) in &f.tickets {
                        self.progress.outcomes.fail(*from, *to, &f.error);
                    }
                    if f.last {
                        self.progress.outcomes.end(&f.error);
                    }
                }
            }
        }
    }
}
