//! A pending batch: its outcome changes the topic.

use std::sync::Arc;
// Only its own batch reads it, once, so the models of concurrency need not schedule it.
use std::sync::atomic::AtomicBool;

use topics_env::sync::atomic::Ordering;
use topics_storage::StorageError;
use topics_storage::wal::{
    Batch, Commit, GROUP_HEADROOM, Level, PlacedBatch, StagingPermit, Ticket,
};

use super::append_state::AppendState;
use super::losses::LostAcks;
use crate::topic::Topic;
use crate::topic::apply::{Live, Placement, Removed, apply};
use crate::topic::cursors::PlannedCursor;
use crate::topic::events::Ctx;
use crate::topic::load::Hints;
use crate::types::api::{Gap, GapReason};
use crate::types::error::{Error, Result};

/// What the failure of a batch must undo.
#[derive(Debug)]
pub(crate) enum Undo {
    /// Nothing.
    None,
    /// A write's seqs and key.
    Write {
        first: u64,
        last: u64,
        key: Option<u128>,
        /// How many rollbacks there had been when it was staged.
        round: u32,
        /// Whether its records were shown when it was staged.
        shown: bool,
        /// Whether its caller was acked when it was staged.
        acked: bool,
        /// Whether its records are in the batch; otherwise only a reservation for them is.
        logged: bool,
        /// Lost ranges that the batch was to log.
        gaps: Vec<Gap>,
    },
    Delete,
    /// The stored cursor of a consumer.
    Cursor(PlannedCursor),
    /// Lost ranges, and a floor, that the batch was to log.
    Unlogged(Vec<Gap>),
}

/// A batch of one topic. Exactly one of apply and failed is called, once.
#[derive(Debug)]
pub(crate) struct PendingBatch {
    pub ctx: Arc<Ctx>,
    pub topic: Arc<Topic>,
    pub hints: Hints,
    pub undo: Undo,
    /// Whether the batch has the topic's creation.
    pub creation: bool,
    /// What a delete or eviction in the batch removed.
    pub removed: Removed,
    /// Whether the batch is staged and has no outcome yet: the topic counts it in `pending_batches`.
    pub is_pending: AtomicBool,
}

/// Calls [`PendingBatch::finish`] when the commit returns.
pub(crate) struct FinishOnDrop<'a>(pub &'a PendingBatch);

impl Drop for FinishOnDrop<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Commit for PendingBatch {
    fn apply(&self, placed: &PlacedBatch<'_>) {
        let _finish = FinishOnDrop(self);
        let live = Live { topic: &self.topic, hints: &self.hints, removed: &self.removed };
        let at = Placement::new(self.ctx.layout, placed);
        let apply = || apply(self.ctx.base(), &at, Some(&live));
        if let Err(e) = self.ctx.base().guarded("apply", &self.topic, apply) {
            // The log has frames that memory lacks, so the topic is closed until recovery replays it.
            self.topic.close_broken(&e);
        }
        if let Undo::Write { .. } = self.undo {
            self.ctx.base().metrics.appends.add(1);
        }
    }

    fn failed(&self, error: &StorageError) {
        let _finish = FinishOnDrop(self);
        log::debug!("a batch of topic {:?} failed: {error}", self.topic.name);
        self.ctx.base().metrics.failed_batches.add(1);
        let undo = || {
            let undone = {
                let mut a = self.topic.append.lock();
                a.closed |= self.creation;
                self.undo(&mut a, error)
            };
            if self.creation {
                self.topic.retire(self.ctx.base());
            }
            undone
        };
        // A topic that a panic left half undone is closed too.
        if let Err(e) = self.ctx.base().guarded("undo", &self.topic, undo) {
            self.topic.close_broken(&e);
        }
    }
}

impl Drop for PendingBatch {
    fn drop(&mut self) {
        if self.is_pending.load(Ordering::Acquire) {
            // The leader of the group panicked. The next open finds out whether the log has the batch.
            self.topic.close_broken(&"a batch was given up without an outcome");
            self.finish();
        }
    }
}

impl PendingBatch {
    /// A batch of control frames.
    pub(crate) fn plain(ctx: &Arc<Ctx>, topic: &Arc<Topic>, hints: Hints, undo: Undo) -> Self {
        Self {
            ctx: ctx.clone(),
            topic: topic.clone(),
            hints,
            undo,
            creation: false,
            removed: Removed::default(),
            is_pending: AtomicBool::new(false),
        }
    }

    /// Counts the batch off; only the first call does.
    fn finish(&self) {
        if !self.is_pending.swap(false, Ordering::AcqRel) {
            return;
        }
        if let Undo::Delete = self.undo {
            self.topic.deletes.fetch_sub(1, Ordering::AcqRel);
        }
        self.topic.batch_finished();
    }

    fn undo(&self, a: &mut AppendState, error: &StorageError) -> Result<()> {
        let mut state = self.topic.state.write();
        a.reserve.lost(state.reservation.to.max(a.synced_to));
        if let (Undo::Cursor(planned), Some(consumers)) = (&self.undo, &mut state.consumers) {
            consumers.undo(planned);
        }
        let gaps = match &self.undo {
            Undo::Write { gaps, .. } | Undo::Unlogged(gaps) => gaps,
            Undo::None | Undo::Delete | Undo::Cursor(_) => return Ok(()),
        };
        gaps.iter().for_each(|gap| a.unlogged.add(*gap));
        // Records that are shown before they are written raise the floor before the log has it.
        a.unlogged.floor |= state.range.evict_floor > state.range.floor_logged;
        if !a.unlogged.is_empty() {
            self.ctx.base().losses.lock().insert(self.topic.id());
        }
        let Undo::Write { first, last, key, round, shown, acked, logged, .. } = &self.undo else {
            return Ok(());
        };
        if let (Some(key), Some(dedupe)) = (key, &mut state.dedupe) {
            dedupe.forget(*key, *first);
        }
        if let Some(pending_writes) = &mut a.pending_writes {
            pending_writes.fail(*first);
        }
        if *shown {
            // I2: a seq that readers saw is not assigned again; readers get a gap immediately.
            let from = if *logged { *first } else { (a.synced_to + 1).max(*first) };
            if from <= *last {
                let before = state.usage();
                state.lose(from, *last, GapReason::Crash);
                self.ctx.base().account(before, state.usage());
                a.unlogged.add(Gap { from, to: *last, reason: GapReason::Crash });
                if *acked {
                    LostAcks::add(&mut a.lost_acks, from, *last, error);
                }
                self.ctx.base().losses.lock().insert(self.topic.id());
            }
            let head = state.visible();
            drop(state);
            self.topic.gate.publish(head);
        } else if *round == a.round {
            // This is the first failure of a series: the log fails every later batch of the topic too,
            // and takes no new one before this is undone.
            if *first <= state.range.indexed_to {
                let text =
                    format!("I2: seq {first} is given back, {} is applied", state.range.indexed_to);
                return Err(Error::Internal(text));
            }
            a.next_seq = *first;
            a.round += 1;
        }
        Ok(())
    }
}

/// A batch of frames that belong to no topic; they are applied as recovery applies them.
pub(crate) struct Applied {
    ctx: Arc<Ctx>,
    what: &'static str,
}

impl Applied {
    /// `what` names the frames in messages about a failure.
    pub(crate) fn new(ctx: &Arc<Ctx>, what: &'static str) -> Self {
        Self { ctx: ctx.clone(), what }
    }
}

impl Commit for Applied {
    fn apply(&self, placed: &PlacedBatch<'_>) {
        let at = Placement::new(self.ctx.layout, placed);
        if let Err(e) = apply(self.ctx.base(), &at, None) {
            log::error!("{} cannot be applied: {e}", self.what);
        }
    }

    fn failed(&self, error: &StorageError) {
        log::warn!("{} was not logged: {error}", self.what);
        self.ctx.base().metrics.failed_batches.add(1);
    }
}

/// Frames to stage beside records.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub head: Vec<u8>,
    /// Append frames behind [`GROUP_HEADROOM`] bytes, or nothing.
    pub records: Vec<u8>,
    pub tail: Vec<u8>,
}

impl PendingBatch {
    /// Stages the batch; the caller holds the topic's append lock.
    pub(crate) fn stage(
        self,
        a: &mut AppendState,
        frames: Frames,
        order: Order,
        permit: StagingPermit,
    ) -> Result<(Ticket, Arc<Self>)> {
        let first_seq = match &self.undo {
            Undo::Write { first, .. } => *first,
            _ => 0,
        };
        let pending = Arc::new(self);
        let batch = Batch {
            head: frames.head,
            headroom: if frames.records.is_empty() { 0 } else { GROUP_HEADROOM },
            records: frames.records,
            tail: frames.tail,
            first_seq,
            ts: order.ts,
            topic_id: pending.topic.id(),
            level: order.level,
            frees_space: order.frees_space,
            commit: pending.clone(),
        };
        pending.topic.pending_batches.fetch_add(1, Ordering::SeqCst);
        pending.is_pending.store(true, Ordering::Release);
        match pending.ctx.wal.stage(batch, permit) {
            Ok(ticket) => {
                a.last = Some((ticket, order.level.max(Level::Written)));
                a.last_ts = a.last_ts.max(order.ts);
                Ok((ticket, pending))
            }
            Err(e) => {
                // Under the append lock, where nothing waits for it.
                pending.is_pending.store(false, Ordering::Release);
                pending.topic.pending_batches.fetch_sub(1, Ordering::SeqCst);
                Err(e.into())
            }
        }
    }
}

/// How a batch is logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub ts: u64,
    pub level: Level,
    pub frees_space: bool,
}
