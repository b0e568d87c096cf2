//! Restores a topic from a snapshot, and ends its recovery.

use std::sync::Arc;

use topics_storage::segment::TopicKey;
use topics_storage::snapshot::{ReplayPos, TopicSnap};

use crate::topic::events::Base;
use crate::topic::state::dedupe::{Dedupe, Remembered};
use crate::topic::state::index::Seg;
use crate::topic::state::{Evicted, State};
use crate::topic::write::reserve::Reserve;
use crate::topic::{Life, Topic};
use crate::types::api::{Durability, Gap, GapReason};
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};

impl Topic {
    /// A topic from a snapshot, without the `lost` records. Frames after its replay position are
    /// applied next.
    pub(crate) fn from_snapshot(base: &Base, snap: &TopicSnap, lost: &[Gap]) -> Result<Arc<Self>> {
        let key = TopicKey { topic_id: snap.topic_id, epoch: snap.epoch };
        let config = base.config(TopicConfig::decode(&snap.config)?);
        let topic = Self::new(key, snap.name.as_str().into(), config);
        base.change(&topic, |state| state.restore(base, snap, lost))?;
        topic.set_life(Life::Live);
        Ok(Arc::new(topic))
    }

    /// The range of seqs that an unclean close may have lost: from the last recovered one to the
    /// reservation, an upper bound, and `skip` more. The caller logs and applies it.
    pub(crate) fn lost(&self, tail_intact: bool, skip: u64) -> Option<Gap> {
        let mut state = self.state.write();
        state.pass_gaps();
        state.move_earliest();
        let head = state.range.indexed_to;
        let lost = state.state_lost(head, state.reservation.to, tail_intact && skip == 0);
        if skip == 0 {
            return lost;
        }
        let to = head.max(state.reservation.to).saturating_add(skip);
        Some(Gap { from: head + 1, to, reason: GapReason::Crash })
    }

    /// Ends recovery: every replayed frame is synced, and writes may begin.
    pub(crate) fn recovered(&self, base: &Base) {
        let mut a = self.append.lock();
        let mut state = self.state.write();
        state.reservation.synced = state.reservation.to.max(state.range.indexed_to);
        state.checkpoint.reflected = ReplayPos::default();
        state.sections_recovered(base);
        a.config = state.config.clone();
        a.next_seq = state.range.indexed_to + 1;
        a.last_ts = state.last_ts;
        a.logged = true;
        if state.config.durability != Durability::Fsync {
            let now = base.time.mono_ms();
            a.reserve = Reserve::found(state.reservation.to, state.range.indexed_to, now);
            a.synced_to = state.reservation.to;
        }
        let head = state.visible();
        drop(state);
        self.gate.publish(head);
    }
}

impl State {
    fn restore(&mut self, base: &Base, snap: &TopicSnap, lost: &[Gap]) -> Result<()> {
        self.range.floor = snap.delete_below.max(snap.evict_floor).max(1);
        self.range.evict_floor = snap.evict_floor.max(1);
        self.range.floor_logged = self.range.evict_floor;
        self.range.evicted = Evicted::from_code(snap.evict_reason)
            .ok_or_else(|| Error::Internal(format!("evict reason {}", snap.evict_reason)))?;
        self.range.earliest = snap.earliest_seq.max(self.range.floor);
        self.range.indexed_to = self.range.floor - 1;
        self.last_ts = snap.last_ts;
        self.last_write_ts = snap.last_write_ts;
        self.reservation.to = snap.reserved_to;
        self.checkpoint.reflected = snap.replay;
        self.checkpoint.applied = snap.replay;
        for g in &snap.gaps {
            let reason = GapReason::from_code(g.reason)
                .ok_or_else(|| Error::Internal(format!("gap reason {}", g.reason)))?;
            self.gaps.push(Gap { from: g.from, to: g.to, reason });
        }
        lost.iter().for_each(|gap| self.list_gap(*gap));
        let mut next = self.range.floor;
        for meta in &snap.segments {
            if meta.first_seq > next {
                // The seqs between were of records that were never logged.
                let gap = Gap { from: next, to: meta.first_seq - 1, reason: GapReason::Restart };
                self.list_gap(gap);
            }
            next = next.max(meta.last_seq + 1);
            self.live.count += meta.live_count;
            self.live.bytes += meta.live_bytes;
            if self.index.segs.is_empty() {
                self.index.segs.reserve_exact(snap.segments.len());
            }
            self.index.segs.push(Seg::named(*meta));
        }
        // The snapshot reflects gaps directly after the last segment. Gaps after replayed records come
        // from their frames, which are replayed too.
        self.range.indexed_to = next - 1;
        self.pass_gaps();
        self.tag_index.from = self.index.segments_to() + 1;
        if !snap.idempotency.is_empty() {
            let now = base.time.steady();
            let mut dedupe = Dedupe::new(&base.keys);
            for k in snap.idempotency.iter().filter(|k| k.expires_at > now) {
                dedupe.mark_committed(
                    k.key,
                    Remembered {
                        request: k.request,
                        first_seq: k.first_seq,
                        last_seq: k.last_seq,
                        expires_at: k.expires_at,
                        ticket: None,
                        is_committed: true,
                        logged: true,
                    },
                );
            }
            self.dedupe = Some(Box::new(dedupe));
        }
        self.restore_sections(base, &snap.sections, snap.replay.layout)?;
        if let Some(queue) = &mut self.queue {
            lost.iter().for_each(|gap| queue.forget_all(gap.from, gap.to));
        }
        // The dead records of the first segment may not be loaded; `earliest` was exact in the snapshot
        // and stays a lower bound.
        self.range.earliest = self.range.earliest.min(self.range.indexed_to + 1);
        self.range.earliest_exact = false;
        self.move_earliest();
        Ok(())
    }

    /// See [`Topic::lost`].
    pub(crate) fn state_lost(
        &self,
        kept_last: u64,
        reserved_to: u64,
        tail_intact: bool,
    ) -> Option<Gap> {
        if reserved_to <= kept_last {
            return None;
        }
        let (from, to) = (kept_last + 1, reserved_to);
        let volatile = self.volatile || self.config.durability <= Durability::Memory;
        match (volatile, tail_intact) {
            (true, _) => Some(Gap { from, to, reason: GapReason::Restart }),
            (false, true) => None,
            // Also in class `fsync`: a reservation above the head means that the topic was leaving the
            // class, and the frame that says so is lost with the records after it.
            (false, false) => Some(Gap { from, to, reason: GapReason::Crash }),
        }
    }
}
