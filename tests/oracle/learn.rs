//! What a full read teaches: exact commit times, the place of what was undetermined, and, after
//! a recovery, what is there for good.

use topics_engine::Durability;

use super::log::{Op, Rec};
use super::observe::{Observation, TopicObs};
use super::topic::{Config, Inc, Keep, Mark, Slot, Why};
use super::world::{AttemptState, World};

impl World {
    /// A reader of the running engine saw this: what readers see is committed (I3).
    pub fn learn(&mut self, seen: &Observation) {
        for topic in &seen.topics {
            self.meet(topic, None);
        }
    }

    /// A recovery returned and serves this: all of it is durable, all else is gone.
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
            // An incarnation that is not there keeps its id in `ids`: it must not come back.
            incs.retain(|inc| shown.is_some_and(|t| t.state.topic_id == inc.id));
            if let (Some(inc), Some(shown)) = (incs.first_mut(), shown) {
                settle_down(inc, shown, at, expires);
            }
        }
        self.undetermined.clear();
        for a in &mut self.attempts {
            // What has expired unseen is back if the clock is set back.
            let expires = a.recs.iter().any(|r| r.ttl_ms > 0);
            if a.state == AttemptState::Pending && !expires {
                a.state = AttemptState::Dead;
            }
        }
        let names = &self.names;
        for a in &mut self.attempts {
            // What was lost may be tried again under the same key.
            if let AttemptState::Settled { id, first, .. } = a.state {
                let inc = names.get(&a.topic).and_then(|i| i.iter().find(|i| i.id == id));
                let slot = inc.and_then(|i| i.slots.get(&first));
                // The key of what was deleted may be lost too, where the records would be.
                let weak = slot.is_some_and(|s| s.class < Durability::Disk);
                let lost = |m: Mark| m.why == Why::Gone || weak;
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
                // What is seen only now was staged under the class that there was when it began.
                let begun = self.attempts[attempt].begun;
                let class = match (restart, self.inc(name, state.topic_id)) {
                    (None, Some(inc)) => inc.class_at(begun).unwrap_or(class),
                    _ => class,
                };
                let place = AttemptState::Settled { id: state.topic_id, first, class };
                let memory = class < Durability::Disk && restart.is_none();
                self.settle(attempt, place, if memory { Keep::Live } else { keep });
                if let Some(s) =
                    self.inc(name, state.topic_id).and_then(|i| i.slots.get_mut(&r.seq))
                {
                    s.ts = (r.ts, r.ts);
                }
            }
        }
        // What a write evicted before it was acked. What has expired is not: its floor is written
        // down without a sync, and may come back with a clock that goes back.
        let evicts = restart.is_none() && state.config.ttl_ms == 0;
        let Some(inc) = self.inc(name, state.topic_id).filter(|_| evicts) else { return };
        for (seq, slot) in inc.slots.range_mut(..state.evict_floor) {
            if slot.mark.is_none() && topic.get(*seq).is_none() {
                slot.mark =
                    Some(Mark { why: Why::Evicted, keep: keep.min(Keep::of(slot.class)), at });
            }
        }
    }
}

/// What this incarnation is from now on: exactly what was shown.
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
                (_, Some(t)) if t.gap_to >= shown.state.evict_floor => Why::Gone,
                // The eviction was lost: one of the deletes that raced with it has taken it.
                (Some(mark), None)
                    if mark.why == Why::Evicted && seq >= shown.state.evict_floor =>
                {
                    Why::Deleted
                }
                // Where its deletion was lost with it, it is in a gap like its neighbours.
                (Some(mark), told) if mark.why != Why::Deleted || told.is_none() => mark.why,
                (_, Some(_)) => Why::Evicted,
                (_, None) if expires(slot) => Why::Expired,
                (_, None) => Why::Deleted,
            };
            slot.mark = Some(Mark { why, keep: Keep::Power, at });
        }
    }
    let gaps = shown.state.gaps.iter().map(|g| (g.from, g.to));
    inc.gaps = gaps.collect();
}

impl World {
    /// Calls that may have happened and would take records of this topic.
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
