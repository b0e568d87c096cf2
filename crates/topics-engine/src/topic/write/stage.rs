//! Stages a decided write: its batch enters the shard's queue, and later writes are decided on it.

use std::sync::atomic::AtomicBool;

use topics_storage::format::record::{
    Body, EvictWatermark, HeadWatermark, Idempotency, TopicCreate,
};
use topics_storage::wal::{GROUP_HEADROOM, Level, Ticket};

use super::admit::Admission;
use super::append_state::{AppendState, Decided, apply_level};
use super::decide::{Decision, Plan};
use super::losses::Unlogged;
use super::pending_batch::{Frames, Order, PendingBatch, Undo};
use super::shown::Shown;
use crate::topic::apply::Removed;
use crate::topic::load::Loader;
use crate::topic::state::Evicted;
use crate::topic::state::dedupe::{Dedupe, PINNED, Remembered};
use crate::types::api::Durability;
use crate::types::error::Result;

impl Decision<'_> {
    /// Stages the plan. From here on the write succeeds, or fails without a trace.
    pub(crate) fn stage(&mut self, a: &mut Admission<'_>, plan: Plan) -> Result<Decided> {
        let class = self.class(&plan);
        let charge = match class {
            Durability::Ephemeral => {
                Some(self.ctx.base().ephemeral.take(self.p.frames().len() as u64)?)
            }
            _ => None,
        };
        self.remember(&plan)?;
        let acked = self.wait_level(a, plan.last, plan.creation) == Level::Staged;
        let unlogged = std::mem::take(&mut a.unlogged);
        let mut frames = self.control_frames(&plan, &unlogged);
        let mut records = std::mem::take(&mut self.p.records);
        let shown = match class {
            Durability::Ephemeral => {
                records.drain(..GROUP_HEADROOM);
                Some(records)
            }
            Durability::Memory => {
                let shown = records.get(GROUP_HEADROOM..).map(<[u8]>::to_vec);
                frames.records = records;
                shown
            }
            _ => {
                frames.records = records;
                None
            }
        };
        let ticket = if frames.records.is_empty() && frames.head.is_empty() {
            Ok(None)
        } else {
            let pending = PendingBatch {
                ctx: self.ctx.clone(),
                topic: self.topic.clone(),
                hints: plan.hints.clone(),
                undo: Undo::Write {
                    first: plan.first,
                    last: plan.last,
                    key: self.p.key.map(|k| k.hash),
                    round: a.round,
                    shown: shown.is_some(),
                    acked,
                    logged: class != Durability::Ephemeral,
                    gaps: unlogged.gaps.clone(),
                },
                creation: plan.creation,
                removed: Removed::default(),
                is_pending: AtomicBool::new(false),
            };
            let level = match class {
                _ if self.p.part.is_some() => Level::Synced,
                // No caller waits for the batch: the shard's thread writes it.
                Durability::Memory if !plan.creation && !self.p.sync => Level::Staged,
                _ => apply_level(class),
            };
            let order = Order { ts: plan.ts, level, frees_space: false };
            a.stage(pending, frames, order).map(|(t, _)| Some(t))
        };
        let ticket = match ticket {
            Ok(ticket) => ticket,
            Err(e) => {
                a.unlogged = unlogged;
                self.forget(&plan);
                return Err(e);
            }
        };
        self.staged(a, plan, ticket, shown.map(|s| (s, charge)))
    }

    /// The class that the records are logged and shown under. Rows of a transaction are logged in
    /// every class, and shown when they are logged.
    fn class(&self, plan: &Plan) -> Durability {
        match &self.p.part {
            Some(_) => plan.config.durability.max(Durability::Disk),
            None => plan.config.durability,
        }
    }

    /// Adds the key to the topic, before the batch can be applied.
    fn remember(&self, plan: &Plan) -> Result<()> {
        let Some(key) = self.p.key else { return Ok(()) };
        let mut state = self.topic.state.write();
        let dedupe =
            state.dedupe.get_or_insert_with(|| Box::new(Dedupe::new(&self.ctx.base().keys)));
        self.ctx.base().counted(dedupe.reserve())?;
        dedupe.insert(
            key.hash,
            Remembered {
                request: key.request,
                first_seq: plan.first,
                last_seq: plan.last,
                expires_at: self.expires_at(plan),
                ticket: None,
                is_committed: false,
                logged: false,
            },
        );
        Ok(())
    }

    fn forget(&self, plan: &Plan) {
        if let Some(key) = self.p.key
            && let Some(dedupe) = &mut self.topic.state.write().dedupe
        {
            dedupe.forget(key.hash, plan.first);
        }
    }

    fn expires_at(&self, plan: &Plan) -> u64 {
        if self.p.is_pinned {
            return PINNED;
        }
        self.ctx.base().time.steady().saturating_add(plan.config.idempotency_window_ms)
    }

    /// The control frames of the write. An `ephemeral` write logs only frames that outlive its records.
    fn control_frames(&self, plan: &Plan, unlogged: &Unlogged) -> Frames {
        let id = self.topic.id();
        let mut f = Frames::default();
        let reserved_to = plan.reserve.map_or(0, |r| r.to);
        if plan.creation {
            TopicCreate {
                name: self.topic.name.to_string(),
                epoch: self.topic.key.epoch,
                config: plan.config.encode(),
                reserved_to,
            }
            .encode_frame(&mut f.head, id, 0, 0);
        } else if reserved_to > 0 {
            HeadWatermark { reserved_to, lowered: false }.encode_frame(&mut f.head, id, 0, 0);
        }
        unlogged.encode(self.topic, &mut f.head);
        if let Some(forward) = &self.p.forward {
            forward.encode(&mut f.head, plan.first);
        }
        if let Some(part) = &self.p.part {
            part.encode(&mut f.head, self.topic, plan.first, plan.first - 1);
        }
        if self.class(plan) == Durability::Ephemeral {
            let floor = plan.eviction.map_or(0, |e| e.floor);
            if self.topic.state.read().logged_below(floor) {
                // I11: records that were logged under an earlier class must not come back.
                let (evict_floor, reason) = (floor, Evicted::CAP.code());
                EvictWatermark { evict_floor, reason }.encode_frame(&mut f.head, id, 0, 0);
            }
            return f;
        }
        if let Some(key) = self.p.key {
            Idempotency {
                key: key.hash,
                request: key.request,
                first_seq: plan.first,
                last_seq: plan.last,
                expires_at: self.expires_at(plan),
            }
            .encode_frame(&mut f.tail, id, 0, 0);
        }
        if let Some(e) = &plan.eviction {
            let (evict_floor, reason) = (e.floor, Evicted::CAP.code());
            EvictWatermark { evict_floor, reason }.encode_frame(&mut f.tail, id, 0, 0);
        }
        f
    }

    /// Updates the append state after the batch was staged: later writes are decided on it.
    fn staged(
        &self,
        a: &mut AppendState,
        plan: Plan,
        ticket: Option<Ticket>,
        shown: Option<(Vec<u8>, Option<crate::types::quota::Charge>)>,
    ) -> Result<Decided> {
        assert!(plan.first == a.next_seq, "I2: seqs were given out of turn");
        a.next_seq = plan.last + 1;
        a.last_ts = a.last_ts.max(plan.ts);
        a.logged = true;
        a.config = plan.config.clone();
        if let Some(reserve) = plan.reserve {
            a.reserve = reserve;
            if plan.creation {
                a.synced_to = reserve.to;
            }
        }
        let eviction = plan.eviction.unwrap_or_default();
        if let (Some(pending_writes), Some(sizes)) = (&mut a.pending_writes, plan.sizes) {
            pending_writes.write(plan.first, sizes, eviction.floor, eviction.gone);
        }
        if self.p.key.is_some() || shown.is_some() {
            let mut state = self.topic.state.write();
            if let (Some(key), Some(dedupe)) = (self.p.key, &mut state.dedupe) {
                let is_committed = plan.config.durability == Durability::Ephemeral;
                dedupe.staged(key.hash, plan.first, ticket, is_committed);
            }
            if let Some((records, charge)) = shown {
                // The creation is applied later, but its records are shown under its config now.
                state.config = plan.config.clone();
                let loader = Loader {
                    segs: &self.ctx.base().segments,
                    key: self.topic.key,
                    hints: Some(&plan.hints),
                    reads: Some(&self.ctx.base().metrics.apply_reads),
                };
                let floor = eviction.floor;
                let shown = Shown { records, first: plan.first, ts: plan.ts, charge, floor };
                let before = state.usage();
                let gone = state.show(shown, &loader)?;
                self.ctx.base().account(before, state.usage());
                self.ctx.base().metrics.append_records.add(self.p.count);
                self.ctx.base().metrics.evicted_records.add(gone);
                let head = state.visible();
                drop(state);
                self.topic.gate.publish(head);
            }
        }
        self.ctx.base().metrics.append_bytes.add(self.p.bytes);
        let level = self.wait_level(a, plan.last, plan.creation);
        let mut answer = self.answer(a, plan.first, plan.last);
        answer.created = plan.creation;
        let renewed = plan.reserve.is_some() && !plan.creation;
        // A write without a batch of its own waits for the newest batch.
        let ticket = ticket.or(a.last.map(|(t, _)| t).filter(|_| level > Level::Staged));
        Ok(Decided { answer, ticket, level, reserved: a.reserve.to, renewed })
    }
}
