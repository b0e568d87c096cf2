//! The verdict: does the observed state fit the acks, given the worst event since then?

use std::collections::BTreeMap;

use topics_engine::{DeleteRequest, Durability, GapReason, TopicConfig};

use super::config::apply_patch;
use super::log::{Op, Rec, selects};
use super::observe::{Observation, TopicObs};
use super::topic::{Cause, Inc, Keep, Mark, Slot};
use super::world::{AttemptState, World};

impl World {
    /// All contradictions to the guarantees, given the worst event since the facts.
    pub fn check(&self, seen: &Observation, kind: Keep) -> Vec<String> {
        let mut out = self.problems.clone();
        let kind = self.worst.map_or(kind, |w| w.max(kind));
        for (name, incs) in &self.names {
            if seen.topic(name).is_none() {
                self.absent(name, incs, kind, &mut out);
            }
        }
        let mut ids = BTreeMap::new();
        for topic in &seen.topics {
            let (name, id) = (&topic.state.topic, topic.state.topic_id);
            if let Some(other) = ids.insert(id, name) {
                out.push(format!("I2: {other} and {name} have the same id {id}"));
            }
            let incs = self.names.get(name).map_or(&[][..], |i| i);
            match incs.iter().position(|i| i.id == id) {
                Some(i) => {
                    self.revived(topic, &incs[i], &incs[i + 1..], kind, &mut out);
                    Verdict::new(self, topic, Some(&incs[i]), kind, seen.wall).run(&mut out);
                }
                None => {
                    self.unknown(topic, incs, kind, &mut out);
                    Verdict::new(self, topic, None, kind, seen.wall).run(&mut out);
                }
            }
        }
        out
    }

    fn may_be_dropped(&self, name: &str) -> bool {
        self.possible().any(|(_, o)| matches!(o, Op::Drop { topic } if topic == name))
    }

    fn absent(&self, name: &str, incs: &[Inc], kind: Keep, out: &mut Vec<String>) {
        let Some(last) = incs.iter().rev().find(|i| i.keep >= kind) else { return };
        let later_dropped = incs.last().is_some_and(|i| i.dropped.is_some());
        if last.dropped.is_none() && !later_dropped && !self.may_be_dropped(name) {
            out.push(format!("I1: {name} ({}) is missing", last.id));
        }
    }

    fn revived(&self, t: &TopicObs, inc: &Inc, later: &[Inc], kind: Keep, out: &mut Vec<String>) {
        let name = &t.state.topic;
        if inc.surely_dropped(kind) {
            out.push(format!("I1: {name} ({}) was deleted and is back", inc.id));
        }
        if let Some(next) = later.iter().find(|i| i.keep >= kind) {
            out.push(format!("{name} ({}) hides the later {}", inc.id, next.id));
        }
        if inc.epoch.is_some_and(|e| e != t.state.epoch) {
            out.push(format!("{name}: epoch {:?} became {}", inc.epoch, t.state.epoch));
        }
    }

    fn unknown(&self, t: &TopicObs, incs: &[Inc], kind: Keep, out: &mut Vec<String>) {
        let (name, id) = (&t.state.topic, t.state.topic_id);
        if self.ids.contains_key(&id) {
            out.push(format!("I2: {name} has id {id}, which was another topic's"));
        }
        if !self.possible().any(|(_, o)| o.may_create() && o.topic() == Some(name)) {
            out.push(format!("{name} ({id}) was invented"));
        }
        let lives = |i: &&Inc| i.keep >= kind && i.dropped.is_none();
        if let Some(inc) = incs.last().filter(lives)
            && !self.may_be_dropped(name)
        {
            out.push(format!("I1: {name} ({}) was replaced by {id}", inc.id));
        }
    }
}

/// How a seq is shown.
enum Shown {
    Record,
    Lost,
    Silent,
}

/// The comparison of one shown topic with its incarnation.
struct Verdict<'w> {
    world: &'w World,
    obs: &'w TopicObs,
    inc: Option<&'w Inc>,
    kind: Keep,
    wall: u64,
    configs: Vec<TopicConfig>,
    /// Deletes that may have happened, or whose survival is unknown.
    deletes: Vec<&'w DeleteRequest>,
    /// Records up to this seq may have been evicted by a cap.
    floor: u64,
}

impl<'w> Verdict<'w> {
    fn new(
        world: &'w World,
        obs: &'w TopicObs,
        inc: Option<&'w Inc>,
        kind: Keep,
        wall: u64,
    ) -> Self {
        let name = obs.state.topic.as_str();
        let mut configs: Vec<TopicConfig> =
            inc.map_or_else(Vec::new, |i| i.candidates(kind).cloned().collect());
        for (_, op) in world.possible() {
            let patched: Vec<TopicConfig> = match op {
                Op::Create { topic, patch } if topic == name => {
                    let base = configs.iter().map(|c| apply_patch(Some(c), patch));
                    base.chain([apply_patch(None, patch)]).collect()
                }
                Op::Append { topic, config, .. } if topic == name => {
                    vec![apply_patch(None, &config.clone().unwrap_or_default())]
                }
                _ => continue,
            };
            configs.extend(patched);
        }
        let deletes = world.possible_deletes(name).collect();
        let mut v = Self { world, obs, inc, kind, wall, configs, deletes, floor: 0 };
        v.floor = v.possible_floor();
        v
    }

    fn possible_floor(&self) -> u64 {
        let Some(inc) = self.inc else { return u64::MAX };
        let (records, bytes) = self.world.pending_size(&self.obs.state.topic);
        let live = |s: &Slot| s.mark.is_none_or(|m| m.keep < self.kind || m.why == Cause::Expired);
        let rec = |s: &Slot| self.world.attempts[s.attempt].recs.clone();
        let over = |c: &TopicConfig| {
            inc.over_cap(c, u64::MAX, live, rec, (records, bytes)).last().copied()
        };
        self.configs.iter().filter_map(over).max().unwrap_or(0).max(inc.may_floor)
    }

    fn run(&self, out: &mut Vec<String>) {
        let name = &self.obs.state.topic;
        let mut found = Vec::new();
        self.config(&mut found);
        self.records(&mut found);
        self.batches(&mut found);
        if let Some(inc) = self.inc {
            self.slots(inc, &mut found);
            self.heads(inc, &mut found);
        }
        self.silence(&mut found);
        self.totals(&mut found);
        out.extend(found.into_iter().map(|f| format!("{name}: {f}")));
    }

    fn config(&self, out: &mut Vec<String>) {
        let config = &self.obs.state.config;
        if !self.configs.contains(config) {
            out.push(format!("config {config:?} is none of {:?}", self.configs));
        }
    }

    fn shown(&self, seq: u64) -> Shown {
        match self.obs.get(seq) {
            Some(_) => Shown::Record,
            None if self.obs.tombstone(seq).is_some() => Shown::Lost,
            None => Shown::Silent,
        }
    }

    /// Every readable record was attempted, with this position and content.
    fn records(&self, out: &mut Vec<String>) {
        for r in &self.obs.records {
            let slot = self.inc.and_then(|i| i.slots.get(&r.seq));
            let Some((attempt, index)) = Rec::origin(&r.data) else {
                out.push(format!("I12: seq {} was never written: {r:?}", r.seq));
                continue;
            };
            let Some(a) = self.world.attempts.get(attempt) else {
                out.push(format!("seq {} is of a later attempt {attempt}", r.seq));
                continue;
            };
            let same = a.topic == self.obs.state.topic
                && a.recs.get(index).is_some_and(|rec| {
                    (&rec.data, &rec.tag, &rec.node, &rec.meta, rec.binary)
                        == (&r.data, &r.tag, &r.node, &r.meta, r.binary)
                });
            if !same {
                out.push(format!("I12: seq {} is not what was written: {r:?}", r.seq));
            }
            match slot {
                Some(s) if (s.attempt, s.index) != (attempt, index) => out.push(format!(
                    "I2: seq {} was record {} of attempt {}, is {index} of {attempt}",
                    r.seq, s.index, s.attempt
                )),
                Some(s) if !(s.ts.0..=s.ts.1).contains(&r.ts) => {
                    out.push(format!("seq {}: ts {} is not within {:?}", r.seq, r.ts, s.ts));
                }
                Some(s) => self.must_be_gone(r.seq, s, out),
                None => self.newcomer(r.seq, attempt, out),
            }
        }
    }

    /// An unacked record: it belongs to a pending attempt, in order.
    fn newcomer(&self, seq: u64, attempt: usize, out: &mut Vec<String>) {
        let a = &self.world.attempts[attempt];
        if a.state != AttemptState::Pending {
            out.push(format!("seq {seq} is of attempt {attempt}, which is {:?}", a.state));
        }
        let Some(inc) = self.inc else { return };
        let before = inc.slots.range(seq..).find(|(_, s)| s.at < a.begun);
        if let Some((old, _)) = before {
            out.push(format!("seq {seq} of attempt {attempt} lies below the earlier {old}"));
        }
        if inc.gaps.iter().any(|g| (g.0..=g.1).contains(&seq)) {
            out.push(format!("I2: seq {seq} lies in a gap that was reported"));
        }
    }

    fn must_be_gone(&self, seq: u64, slot: &Slot, out: &mut Vec<String>) {
        // The floor of an expiry is logged without a sync and may come back if the clock goes back.
        let expiry = |m: &Mark| match m.why {
            Cause::Expired => true,
            Cause::Evicted => self.expired(slot.ts.0),
            _ => false,
        };
        let for_good = |m: &Mark| m.keep >= self.kind && !expiry(m);
        if let Some(mark) = slot.mark.filter(for_good) {
            out.push(format!("I1: seq {seq} is back, it was {:?}", mark.why));
        }
        let rec = self.world.rec(slot);
        let ttl = self.configs.iter().map(|c| c.ttl_ms).reduce(|a, b| match (a, b) {
            (0, _) | (_, 0) => 0,
            (a, b) => a.max(b),
        });
        let by_config = ttl.is_some_and(|t| t > 0 && self.wall > slot.ts.1 + t);
        let latest = slot.ts.1.max(self.world.attempts[slot.attempt].latest);
        let by_record = rec.ttl_ms > 0 && self.wall > latest + rec.ttl_ms;
        if by_config || by_record {
            out.push(format!("seq {seq} is delivered though expired"));
        }
        if slot.class == Durability::Ephemeral && self.kind > Keep::Live {
            out.push(format!("seq {seq} is ephemeral and survived"));
        }
    }

    fn deleted(&self, seq: u64, rec: &Rec) -> bool {
        self.deletes.iter().any(|d| selects(d, seq, &rec.tag))
    }

    fn expired_itself(&self, ts: u64, rec: &Rec) -> bool {
        rec.ttl_ms > 0 && self.world.max_wall.max(self.wall) >= ts + rec.ttl_ms
    }

    fn expired(&self, ts: u64) -> bool {
        let now = self.world.max_wall.max(self.wall);
        self.configs.iter().any(|c| c.ttl_ms > 0 && now > ts + c.ttl_ms)
    }

    /// Whether it may be missing without a gap: deleted, or expired.
    fn may_be_silent(&self, seq: u64, slot: &Slot) -> bool {
        let rec = self.world.rec(slot);
        let begun = self.world.attempts[slot.attempt].begun;
        // The write was in flight at the delete: either order is possible.
        let raced = |d: &super::topic::Del| {
            d.begun <= slot.at && begun < d.ended && selects(&d.req, seq, &rec.tag)
        };
        slot.mark.is_some_and(|m| matches!(m.why, Cause::Deleted | Cause::Expired))
            || self.deleted(seq, rec)
            || self.inc.is_some_and(|i| i.dels.iter().any(raced))
            || self.expired_itself(slot.ts.0.min(self.world.attempts[slot.attempt].wall), rec)
    }

    /// Whether it may be missing with a gap although nothing crashed.
    fn may_be_evicted(&self, seq: u64, slot: &Slot) -> bool {
        slot.mark.is_some_and(|m| !matches!(m.why, Cause::Deleted | Cause::Expired))
            || seq <= self.floor
            || self.inc.is_some_and(|i| seq <= i.lapsed)
            || self.expired(slot.ts.0)
    }

    /// Every acked record is readable or reported, as its class promises.
    fn slots(&self, inc: &Inc, out: &mut Vec<String>) {
        let mut lost: Option<u64> = None;
        for (&seq, slot) in &inc.slots {
            // A record that was only staged is discarded immediately when its group fails.
            let given_up = self.world.troubled && slot.class == Durability::Memory;
            let survives = slot.keep >= self.kind && !given_up;
            let (silent, evicted) = (self.may_be_silent(seq, slot), self.may_be_evicted(seq, slot));
            let front = seq < self.obs.state.earliest_seq;
            match self.shown(seq) {
                Shown::Record => {
                    if let Some(l) = lost.filter(|_| slot.class != Durability::Ephemeral) {
                        out.push(format!("I1: seq {seq} survived the loss of {l} before it"));
                        lost = None;
                    }
                }
                Shown::Lost if silent && front || evicted => {}
                Shown::Silent if silent => {}
                Shown::Lost if !survives => {
                    let logged = slot.class != Durability::Ephemeral;
                    lost = lost.or((logged && !silent && !given_up).then_some(seq));
                    self.reason(seq, slot, out);
                }
                Shown::Lost => out.push(format!(
                    "I1: seq {seq} was acked ({:?}, {:?}) and is reported lost: {:?}",
                    slot.class,
                    slot.keep,
                    self.obs.tombstone(seq)
                )),
                Shown::Silent => out.push(format!(
                    "I4: seq {seq} was acked ({:?}, {:?}) and is missing in silence",
                    slot.class, slot.keep
                )),
            }
        }
    }

    fn reason(&self, seq: u64, slot: &Slot, out: &mut Vec<String>) {
        let Some(t) = self.obs.tombstone(seq) else { return };
        // A gap has one reason, which a change of class makes wrong for a part of it.
        let mut classes = self.configs.iter().map(|c| c.durability).collect::<Vec<_>>();
        classes.extend(self.inc.into_iter().flat_map(|i| i.slots.values()).map(|s| s.class));
        // Seqs reserved under a class since the last open may have been assigned under it.
        let configs = self.inc.into_iter().flat_map(|i| &i.configs);
        classes.extend(configs.map(|c| c.config.durability));
        if classes.iter().any(|c| *c != slot.class)
            && matches!(t.reason, GapReason::Crash | GapReason::Restart)
        {
            return;
        }
        let fits = match t.reason {
            GapReason::Crash => slot.class != Durability::Ephemeral,
            GapReason::Restart => slot.class < Durability::Disk,
            GapReason::Cap | GapReason::Ttl | GapReason::Mixed => {
                t.gap_to < self.obs.state.evict_floor
            }
            _ => false,
        };
        if !fits {
            out.push(format!("seq {seq} ({:?}) is lost for reason {:?}", slot.class, t.reason));
        }
    }

    /// Batches are complete: if one record exists, the others exist, or may be missing for their
    /// own reason.
    fn batches(&self, out: &mut Vec<String>) {
        let mut firsts = BTreeMap::new();
        for r in &self.obs.records {
            if let Some((attempt, index)) = Rec::origin(&r.data)
                && attempt < self.world.attempts.len()
                && let Some(first) = r.seq.checked_sub(index as u64)
                && *firsts.entry(attempt).or_insert(first) != first
            {
                out.push(format!("I5: attempt {attempt} is there twice"));
            }
        }
        for (attempt, first) in firsts {
            let a = &self.world.attempts[attempt];
            for (i, rec) in a.recs.iter().enumerate() {
                let seq = first + i as u64;
                if self.obs.get(seq).is_some_and(|r| r.data == rec.data) {
                    continue;
                }
                let slot = self.inc.and_then(|inc| inc.slots.get(&seq));
                let ok = match slot {
                    Some(s) => self.may_be_silent(seq, s) || self.may_be_evicted(seq, s),
                    None => {
                        let after = |d: &&super::topic::Del| d.ended > a.begun;
                        let dels = self.inc.map_or(&[][..], |inc| &inc.dels);
                        self.deleted(seq, rec)
                            || dels.iter().filter(after).any(|d| selects(&d.req, seq, &rec.tag))
                            || self.expired_itself(a.wall, rec)
                            || self.expired(a.wall)
                            || seq < self.obs.state.evict_floor
                    }
                };
                if !ok {
                    out.push(format!("I5: seq {seq} of attempt {attempt} is missing in its batch"));
                }
            }
        }
    }

    fn heads(&self, inc: &Inc, out: &mut Vec<String>) {
        let s = &self.obs.state;
        if s.next_seq <= inc.head {
            out.push(format!("I2: next_seq {} though {} was shown", s.next_seq, inc.head));
        }
        let last = inc.slots.keys().next_back().copied().unwrap_or(0);
        if s.head_seq < last {
            out.push(format!("I2: head {} is below the acked {last}", s.head_seq));
        }
        let gone = |seq: u64| inc.slots.get(&seq).is_some_and(|x| self.may_be_silent(seq, x));
        for &(from, to) in &inc.gaps {
            let cut = self
                .deletes
                .iter()
                .chain(&inc.dels.iter().map(|d| &d.req).collect::<Vec<_>>())
                .any(|d| d.before_seq.is_some_and(|b| b > from));
            let told = |seq| self.obs.tombstone(seq).is_some() || gone(seq);
            if !(cut || told(from) && told(to)) {
                out.push(format!("I4: the gap {from}..={to} is no longer reported"));
            }
        }
        self.spared(inc, last, out);
    }

    /// No gap is possible without a loss: `fsync` topics have no reservation, and a killed process
    /// loses nothing of a `disk` topic.
    fn spared(&self, inc: &Inc, last: u64, out: &mut Vec<String>) {
        let floor = if self.kind == Keep::Power { Durability::Fsync } else { Durability::Disk };
        // A topic that once had a lower class may have lost seqs of that time.
        let spared = self.configs.iter().all(|c| c.durability >= floor)
            && inc.lowest_class() >= floor
            && inc.slots.values().all(|s| s.class >= floor);
        let pending = |a: &&super::world::Attempt| {
            a.state == AttemptState::Pending && a.topic == self.obs.state.topic
        };
        let may_be: u64 =
            self.world.attempts.iter().filter(pending).map(|a| a.recs.len() as u64).sum();
        let known = last.max(inc.gaps.last().map_or(0, |g| g.1)).max(inc.judged);
        if spared && !self.world.troubled && self.obs.state.head_seq > known + may_be {
            let head = self.obs.state.head_seq;
            out.push(format!("head {head} above {known}+{may_be}, nothing can have been lost"));
        }
    }

    /// A seq that is neither delivered nor announced was deleted, or its writer got no answer.
    fn silence(&self, out: &mut Vec<String>) {
        for (from, to) in self.obs.silent() {
            let slots = self.inc.map(|i| &i.slots);
            let from = from.max(self.inc.map_or(0, |i| i.judged + 1));
            for seq in (from..=to).take(4096) {
                if slots.is_some_and(|s| s.contains_key(&seq)) {
                    continue;
                }
                if self.inc.is_some_and(|i| i.gaps.iter().any(|g| (g.0..=g.1).contains(&seq))) {
                    continue;
                }
                let dels = self.inc.map_or(&[][..], |i| &i.dels);
                let acked = dels.iter().map(|d| (d.ended, &d.req));
                let open = self.deletes.iter().map(|d| (usize::MAX, *d));
                let any = acked.chain(open).any(|(ended, d)| {
                    d.before_seq.is_some_and(|b| seq < b) && d.matching.is_none()
                        || self.pending_recs(ended).any(|r| selects(d, seq, &r.tag))
                });
                let expiring = self.pending_recs(usize::MAX).any(|r| r.ttl_ms > 0);
                if !any && !expiring {
                    out.push(format!("I4: seq {seq} is missing in silence"));
                    return;
                }
            }
        }
    }

    fn pending_recs(&self, before: usize) -> impl Iterator<Item = &Rec> {
        let mine = move |a: &&super::world::Attempt| {
            a.state == AttemptState::Pending && a.begun < before && a.topic == self.obs.state.topic
        };
        self.world.attempts.iter().filter(mine).flat_map(|a| a.recs.iter())
    }

    /// Compares `count` and `bytes` with the records; records with an expired TTL of their own may
    /// still be counted.
    fn totals(&self, out: &mut Vec<String>) {
        let s = &self.obs.state;
        let (mut count, mut bytes) = (0, 0);
        let (mut more, mut more_bytes) = (0, 0);
        for r in &self.obs.records {
            let Some((attempt, index)) = Rec::origin(&r.data) else { return };
            let recs = self.world.attempts.get(attempt).map(|a| &a.recs);
            let Some(rec) = recs.and_then(|recs| recs.get(index)) else { return };
            count += 1;
            bytes += rec.bytes();
        }
        for a in self.world.attempts.iter().filter(|a| a.topic == s.topic) {
            // A poisoned log cannot record an expiry.
            let unlogged = self.world.troubled && self.expired(a.wall);
            for rec in a.recs.iter().filter(|r| unlogged || self.expired_itself(a.wall, r)) {
                more += 1;
                more_bytes += rec.bytes();
            }
        }
        let fits = (count..=count + more).contains(&s.count)
            && (bytes..=bytes + more_bytes).contains(&s.bytes);
        if !fits {
            let (c, b) = (s.count, s.bytes);
            out.push(format!(
                "state says {c} records, {b} bytes; read: {count}, {bytes} (+{more})"
            ));
        }
        let first = self.obs.records.first().map_or(s.head_seq + 1, |r| r.seq);
        if s.earliest_seq > first || (more == 0 && s.earliest_seq != first) {
            out.push(format!("earliest_seq {} but the first record is {first}", s.earliest_seq));
        }
        let caps = &s.config;
        let reject = caps.discard == topics_engine::Discard::Reject;
        let over = (caps.cap_records > 0 && count > caps.cap_records)
            || (caps.cap_bytes > 0 && bytes > caps.cap_bytes);
        if over && !reject {
            out.push(format!("{count} records, {bytes} bytes are over the cap"));
        }
    }
}
