//! Facts from a full read: exact commit times, the outcome of undetermined calls and, after a
//! recovery, the durable records.

use topics_engine::Durability;

use super::log::{Op, Rec};
use super::observe::{Observation, TopicObs};
use super::topic::{Cause, Config, Inc, Keep, Mark, Slot};
use super::world::{AttemptState, World};

impl World {
    /// A reader of the running engine saw this: readers see only committed records (I3).
    pub fn learn(&mut self, seen: &Observation) {
        for topic in &seen.topics {
            self.meet(topic, None);
        }
    }

    /// A recovery returned and serves this: all of it is durable, everything else is gone.
    pub fn adopt(&mut self, seen: &Observation) {
        for topic in &seen.topics {
            self.meet(topic, Some(Keep::Power));
        }
        // A change of class that failed may have left the reservation that the class asks for.
        for (_, op) in &self.undetermined {
            if let Op::Create { topic, patch } = op
                && let Some(class) = patch.durability
                && let Some(inc) = self.names.get_mut(topic).and_then(|incs| incs.last_mut())
            {
                inc.lowest = inc.lowest.min(class);
            }
        }
        let at = self.events;
        let attempts = &self.attempts;
        let expires = |slot: &Slot| attempts[slot.attempt].recs[slot.index].ttl_ms > 0;
        for (name, incs) in &mut self.names {
            let shown = seen.topic(name);
            // A missing incarnation keeps its id in `ids`: it must not come back.
            incs.retain(|inc| shown.is_some_and(|t| t.state.topic_id == inc.id));
            if let (Some(inc), Some(shown)) = (incs.first_mut(), shown) {
                settle_down(inc, shown, at, expires);
            }
        }
        self.undetermined.clear();
        for a in &mut self.attempts {
            // Records that expired unobserved are back if the clock is set back.
            let expires = a.recs.iter().any(|r| r.ttl_ms > 0);
            if a.state == AttemptState::Pending && !expires {
                a.state = AttemptState::Dead;
            }
        }
        let names = &self.names;
        for a in &mut self.attempts {
            // A lost write may be tried again under the same key.
            if let AttemptState::LeaseOutcome { id, first, .. } = a.state {
                let inc = names.get(&a.topic).and_then(|i| i.iter().find(|i| i.id == id));
                let slot = inc.and_then(|i| i.slots.get(&first));
                // The key of a deleted record may be lost too, where the record itself would be.
                let weak = slot.is_some_and(|s| s.class < Durability::Disk);
                let lost = |m: Mark| m.why == Cause::Gone || weak;
                if slot.is_none_or(|s| s.mark.is_some_and(lost)) {
                    (a.state, a.acked) = (AttemptState::Dead, false);
                }
            }
        }
    }

    fn meet(&mut self, topic: &TopicObs, restart: Option<Keep>) {
        let state = &topic.state;
        let (name, class) = (state.topic.as_str(), state.config.durability);
        let keep = restart.unwrap_or(Keep::of(class));
        let config = state.config.clone();
        let at = self.events;
        if self.inc(name, state.topic_id).is_none() {
            self.appeared(name, state.topic_id, at, true, None, keep);
            if let Some(inc) = self.inc(name, state.topic_id) {
                inc.configs = vec![Config { config: config.clone(), keep, at }];
            }
        }
        let Some(inc) = self.inc(name, state.topic_id) else { return };
        inc.epoch = Some(state.epoch);
        inc.head = inc.head.max(state.head_seq);
        if *inc.config() != config {
            inc.configs.push(Config { config, keep, at });
        }
        for r in &topic.records {
            let Some(inc) = self.inc(name, state.topic_id) else { return };
            if let Some(slot) = inc.slots.get_mut(&r.seq) {
                slot.ts = (r.ts, r.ts);
            } else if let Some((attempt, index)) = Rec::origin(&r.data)
                && self.attempts.get(attempt).is_some_and(|a| a.state == AttemptState::Pending)
            {
                let first = r.seq - index as u64;
                // A record first seen now was staged under the class at the start of the call.
                let begun = self.attempts[attempt].begun;
                let class = match (restart, self.inc(name, state.topic_id)) {
                    (None, Some(inc)) => inc.class_at(begun).unwrap_or(class),
                    _ => class,
                };
                let place = AttemptState::LeaseOutcome { id: state.topic_id, first, class };
                let memory = class < Durability::Disk && restart.is_none();
                self.assign_position(attempt, place, if memory { Keep::Live } else { keep });
                if let Some(s) =
                    self.inc(name, state.topic_id).and_then(|i| i.slots.get_mut(&r.seq))
                {
                    s.ts = (r.ts, r.ts);
                }
            }
        }
        // Records that a write evicted before its ack. Expired records are not included: their
        // floor is logged without a sync and may come back if the clock goes back.
        let evicts = restart.is_none() && state.config.ttl_ms == 0;
        let Some(inc) = self.inc(name, state.topic_id).filter(|_| evicts) else { return };
        for (seq, slot) in inc.slots.range_mut(..state.evict_floor) {
            if slot.mark.is_none() && topic.get(*seq).is_none() {
                slot.mark =
                    Some(Mark { why: Cause::Evicted, keep: keep.min(Keep::of(slot.class)), at });
            }
        }
    }
}

/// Sets the incarnation to exactly the observed state.
fn settle_down(inc: &mut Inc, shown: &TopicObs, at: usize, expires: impl Fn(&Slot) -> bool) {
    inc.keep = Keep::Power;
    inc.judged = shown.state.head_seq;
    inc.lowest = inc.lowest_class();
    inc.dropped = None;
    inc.dels.clear();
    inc.configs = vec![Config { config: shown.state.config.clone(), keep: Keep::Power, at }];
    for (&seq, slot) in &mut inc.slots {
        if shown.get(seq).is_some() {
            slot.mark = None;
            if slot.class != Durability::Ephemeral {
                slot.keep = Keep::Power;
            }
        } else {
            let why = match (slot.mark, shown.tombstone(seq)) {
                (_, Some(t)) if t.gap_to >= shown.state.evict_floor => Cause::Gone,
                // The eviction was lost: a delete that raced with it removed the record.
                (Some(mark), None)
                    if mark.why == Cause::Evicted && seq >= shown.state.evict_floor =>
                {
                    Cause::Deleted
                }
                // If its deletion was lost with it, it is in a gap like its neighbours.
                (Some(mark), told) if mark.why != Cause::Deleted || told.is_none() => mark.why,
                (_, Some(_)) => Cause::Evicted,
                (_, None) if expires(slot) => Cause::Expired,
                (_, None) => Cause::Deleted,
            };
            slot.mark = Some(Mark { why, keep: Keep::Power, at });
        }
    }
    let gaps = shown.state.gaps.iter().map(|g| (g.from, g.to));
    inc.gaps = gaps.collect();
}

impl World {
    /// Calls that may have happened and would remove records of this topic.
    pub fn possible_deletes<'w>(
        &'w self,
        name: &'w str,
    ) -> impl Iterator<Item = &'w topics_engine::DeleteRequest> {
        self.possible().filter_map(move |(_, op)| match op {
            Op::Delete { topic, req } if topic == name => Some(req),
            _ => None,
        })
    }
}
