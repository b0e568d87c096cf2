//! The state of the model according to the log: attempts, their outcomes, and the events that they
//! must survive.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_engine::{ConfigPatch, Durability};

use super::config::apply_patch;
use super::log::{Body, CallId, Event, Op, Rec, Reply, selects};
use super::topic::{Cause, Config, Del, Inc, Keep, Slot};

/// The outcome of an attempted write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptState {
    /// In flight, or failed: present completely or not at all.
    Pending,
    /// Acked or observed, under this topic id.
    LeaseOutcome { id: u64, first: u64, class: Durability },
    /// Refused, superseded, or observed to be absent: must not appear.
    Dead,
}

/// A write of a batch; repeats with one idempotency key belong to the same attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub topic: String,
    pub recs: Arc<[Rec]>,
    pub key: Option<Vec<u8>>,
    pub begun: usize,
    /// The lowest wall clock since it started, while it is open.
    pub wall: u64,
    /// The highest.
    pub latest: u64,
    pub state: AttemptState,
    /// Its calls that have not ended.
    pub open: usize,
    /// Whether one of its calls was acked as the first.
    pub acked: bool,
}

/// All facts. Topics by name, their incarnations in order of creation.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub names: BTreeMap<String, Vec<Inc>>,
    pub attempts: Vec<Attempt>,
    /// Calls in flight, with the event of their start.
    pub open: BTreeMap<CallId, (usize, Op)>,
    /// Failed calls: their outcome is unknown.
    pub undetermined: Vec<(usize, Op)>,
    /// Every topic id that was acked or observed, and the event that named it.
    pub ids: BTreeMap<u64, usize>,
    pub wall: u64,
    /// The earliest time that the engine may use.
    pub min_wall: u64,
    /// The latest.
    pub max_wall: u64,
    /// The number of events so far.
    pub events: usize,
    pub shards: u32,
    /// How the last process ended, until the next one serves.
    pub worst: Option<Keep>,
    /// A call of this process failed because of the disk.
    pub troubled: bool,
    /// Contradictions between the answers and the model.
    pub problems: Vec<String>,
}

impl World {
    pub fn apply(&mut self, event: &Event) {
        self.events += 1;
        self.wall = event.wall;
        if self.events == 1 {
            self.min_wall = event.wall;
        }
        self.min_wall = self.min_wall.min(event.wall);
        // The engine's time continues when the wall clock is set back.
        let passed = if let Body::Clock { passed } = event.body { passed } else { 0 };
        self.max_wall = (self.max_wall + passed).max(event.wall);
        if let Body::Clock { .. } = event.body {
            for a in self.attempts.iter_mut().filter(|a| a.open > 0) {
                (a.wall, a.latest) = (a.wall.min(event.wall), a.latest.max(self.max_wall));
            }
        }
        match &event.body {
            Body::Begin(id, op) => self.begin(*id, op),
            Body::End(id, reply) => self.end(*id, reply),
            Body::Seen(seen) => self.learn(seen),
            Body::Died(how) => {
                self.worst = Some(self.worst.unwrap_or(*how).max(*how));
                let open = std::mem::take(&mut self.open);
                self.undetermined.extend(open.into_values());
            }
            Body::Opened { seen, shards } => {
                self.adopt(seen);
                self.worst = None;
                self.shards = *shards;
                self.troubled = false;
            }
            Body::OpenFailed(_) | Body::Trouble => self.troubled = true,
            Body::Shards(n) => self.shards = *n,
            Body::Clock { .. } => {}
        }
    }

    /// Calls that may have happened, each completely or not at all.
    pub fn possible(&self) -> impl Iterator<Item = &(usize, Op)> {
        self.open.values().chain(&self.undetermined)
    }

    /// The topic with this name, as far as is known.
    pub fn living(&self, name: &str) -> Option<&Inc> {
        self.names.get(name)?.last().filter(|i| i.dropped.is_none())
    }

    pub fn rec(&self, slot: &Slot) -> &Rec {
        &self.attempts[slot.attempt].recs[slot.index]
    }

    fn begin(&mut self, id: CallId, op: &Op) {
        if let Op::Append { topic, attempt, recs, key, .. } = op {
            if *attempt == self.attempts.len() {
                self.attempts.push(Attempt {
                    topic: topic.clone(),
                    recs: recs.clone(),
                    key: key.clone(),
                    begun: self.events,
                    wall: self.wall,
                    latest: self.max_wall,
                    state: AttemptState::Pending,
                    open: 0,
                    acked: false,
                });
            }
            let a = &mut self.attempts[*attempt];
            a.open += 1;
            if a.state == AttemptState::Dead {
                a.state = AttemptState::Pending;
                (a.begun, a.wall, a.latest) = (self.events, self.wall, self.max_wall);
            }
        }
        self.open.insert(id, (self.events, op.clone()));
    }

    fn end(&mut self, id: CallId, reply: &Reply) {
        let Some((begun, op)) = self.open.remove(&id) else { return };
        if let Op::Append { attempt, .. } = &op {
            self.attempts[*attempt].open -= 1;
        }
        match reply {
            Reply::Failed(_) => {
                self.troubled = true;
                self.undetermined.push((begun, op));
            }
            Reply::Refused(_) => {
                if let Op::Append { attempt, .. } = op {
                    let a = &mut self.attempts[attempt];
                    let failed =
                        |o: &Op| matches!(o, Op::Append { attempt: b, .. } if *b == attempt);
                    let tried = self.undetermined.iter().any(|(_, o)| failed(o));
                    if a.state == AttemptState::Pending && a.open == 0 && !tried {
                        a.state = AttemptState::Dead;
                    }
                }
            }
            _ => self.happened(begun, op, reply),
        }
    }

    fn happened(&mut self, begun: usize, op: Op, reply: &Reply) {
        match (op, reply) {
            (
                Op::Append { topic, attempt, sync, config, .. },
                &Reply::Appended { topic_id, first_seq, created, deduped, class },
            ) => {
                let mut keep = Keep::of(class);
                if sync && class != Durability::Ephemeral {
                    keep = Keep::Power;
                }
                let is_new = self.inc(&topic, topic_id).is_none();
                self.appeared(&topic, topic_id, begun, created, config.as_ref(), keep);
                if let Some(inc) = self.inc(&topic, topic_id).filter(|_| is_new) {
                    // The write that created it may be answered later: its class is in force now.
                    inc.configs[0].config.durability = class;
                }
                if let Some(inc) = self.inc(&topic, topic_id).filter(|i| i.configs.len() == 1)
                    && created
                {
                    // Another write that became possible by it may have been answered first.
                    inc.configs[0].config = apply_patch(None, &config.unwrap_or_default());
                }
                let acked = self.attempts[attempt].acked;
                self.attempts[attempt].acked |= !deduped;
                let place = AttemptState::LeaseOutcome { id: topic_id, first: first_seq, class };
                let last = first_seq + self.attempts[attempt].recs.len() as u64 - 1;
                // If the group of a write that was only staged fails, the write and its key are
                // discarded.
                let given_up = self.troubled && !deduped;
                match &self.attempts[attempt].state {
                    AttemptState::LeaseOutcome { class: Durability::Memory, .. } if given_up => {
                        self.assign_position(attempt, place, keep);
                        self.caps(&topic, topic_id, last, keep);
                    }
                    AttemptState::LeaseOutcome { id, first, .. } => {
                        if (*id, *first) != (topic_id, first_seq) || (acked && !deduped) {
                            let was = format!("{topic}: attempt {attempt} was at {first} of {id}");
                            self.problems.push(format!("{was}, now {reply:?}"));
                        }
                    }
                    _ => {
                        self.assign_position(attempt, place, keep);
                        self.caps(&topic, topic_id, last, keep);
                    }
                }
                if keep == Keep::Power && !deduped {
                    self.synced(Some(&topic), begun, false);
                }
            }
            (Op::Create { topic, patch }, Reply::Created(c)) => {
                let keep = Keep::of(c.config.durability);
                let known = self.inc(&topic, c.topic_id).map(|i| i.config().clone());
                let expected = apply_patch(known.as_ref(), &patch);
                if c.config != expected {
                    self.problems.push(format!("{topic}: config {:?}, not {expected:?}", c.config));
                }
                self.appeared(&topic, c.topic_id, begun, c.created, Some(&patch), keep);
                let (at, wall) = (self.events, self.max_wall);
                if let Some(inc) = self.inc(&topic, c.topic_id) {
                    inc.lapse(wall);
                    let keep = keep.min(Keep::of(inc.config().durability));
                    inc.configs.push(Config { config: c.config.clone(), keep, at });
                }
                self.caps(&topic, c.topic_id, u64::MAX, keep);
            }
            (Op::Drop { topic }, Reply::Dropped { existed }) => {
                let at = self.events;
                let inc = self.names.get_mut(&topic).and_then(|incs| incs.last_mut());
                if let Some(inc) = inc.filter(|i| i.dropped.is_none()) {
                    inc.dropped = Some((Keep::of(inc.config().durability), at));
                    if !existed {
                        self.problems.push(format!("{topic}: the drop found no topic"));
                    }
                }
            }
            (Op::Delete { topic, req }, Reply::Deleted(d)) => {
                let at = self.events;
                let attempts = &self.attempts;
                let incs = self.names.get_mut(&topic);
                let Some(inc) = incs.and_then(|i| i.iter_mut().find(|i| i.id == d.state.topic_id))
                else {
                    return;
                };
                let keep = Keep::of(inc.config().durability);
                let takes = |seq: u64, slot: &Slot| {
                    let tag = &attempts[slot.attempt].recs[slot.index].tag;
                    slot.at < begun && selects(&req, seq, tag)
                };
                inc.delete(takes, keep, at);
                inc.dels.push(Del { req: req.clone(), begun, ended: at });
            }
            (Op::Sync | Op::Close, Reply::Done) => self.synced(None, begun, true),
            (Op::SyncTopic { topic }, Reply::Done) => self.synced(Some(&topic), begun, true),
            (Op::Checkpoint | Op::Tick, Reply::Done) => {}
            (op, reply) => self.problems.push(format!("{op:?} was answered {reply:?}")),
        }
    }

    /// A topic with this name has this id.
    pub fn appeared(
        &mut self,
        name: &str,
        id: u64,
        begun: usize,
        created: bool,
        config: Option<&ConfigPatch>,
        keep: Keep,
    ) {
        let at = self.events;
        // Concurrent calls are answered in any order. Ids that were answered before the first call
        // that may have created this topic started must be lower.
        let possible = self.possible().filter(|(_, o)| o.may_create() && o.topic() == Some(name));
        let begun = possible.map(|(at, _)| *at).fold(begun, usize::min);
        let incs = self.names.entry(name.to_owned()).or_default();
        if let Some(i) = incs.iter().position(|i| i.id == id) {
            // Its creation was undetermined until an answer named it, or was known before.
            if i + 1 < incs.len() {
                self.problems.push(format!("{name}: id {id} answers after a later one"));
            }
            return;
        }
        let undetermined = self.undetermined.iter().any(|(_, o)| o.topic() == Some(name))
            || self.open.values().any(|(_, o)| o.topic() == Some(name) && o.may_create());
        // A failed creation may have succeeded, with an id below those of later creations.
        let later = self.ids.range(id..).any(|(_, told)| *told < begun) && !undetermined;
        if later || self.ids.contains_key(&id) {
            self.problems.push(format!("I2: topic id {id} of {name} was given before"));
        }
        self.ids.insert(id, at);
        if !created && !undetermined {
            self.problems.push(format!("{name}: id {id} was not created by this call"));
        }
        if let Some(last) = incs.last_mut()
            && last.dropped.is_none()
        {
            if !undetermined {
                self.problems.push(format!("{name}: id {id} while {} lives", last.id));
            }
            last.dropped = Some((keep, at));
        }
        let config = apply_patch(None, config.unwrap_or(&ConfigPatch::default()));
        incs.push(Inc::new(id, config, keep, at));
    }

    pub fn inc(&mut self, name: &str, id: u64) -> Option<&mut Inc> {
        self.names.get_mut(name)?.iter_mut().find(|i| i.id == id)
    }

    /// Assigns a position to an attempt; other attempts for that position are dead.
    pub fn assign_position(&mut self, attempt: usize, place: AttemptState, keep: Keep) {
        let AttemptState::LeaseOutcome { id, first, class } = place else { return };
        let at = self.events;
        let a = self.attempts[attempt].clone();
        // The engine's clock does not follow the wall clock back, nor far ahead.
        let walls = (self.min_wall, self.max_wall);
        self.attempts[attempt].state = place;
        let last = first + a.recs.len() as u64 - 1;
        let mut clash = None;
        let Some(inc) = self.inc(&a.topic, id) else { return };
        // Commit times never go back, whatever the clock does. The commit time of a lost record may be
        // lost with it.
        let lost =
            |s: &Slot| s.mark.is_some_and(|m| m.why == Cause::Gone || s.class < Durability::Disk);
        let before = || inc.slots.range(..first).rev().map(|(_, s)| s);
        let low = before().find(|s| !lost(s)).map_or(0, |s| s.ts.0);
        let high = before().next().map_or(0, |s| s.ts.1);
        let ts = (low.max(walls.0), high.max(walls.1));
        for index in 0..a.recs.len() {
            let seq = first + index as u64;
            let slot = Slot { attempt, index, ts, class, keep, at, mark: None };
            match inc.slots.get(&seq) {
                // A repeat of a write whose records were deleted and may have been lost.
                Some(old) if (old.attempt, old.index) == (attempt, index) => {}
                Some(old) => clash = Some((seq, old.attempt)),
                None => drop(inc.slots.insert(seq, slot)),
            }
        }
        inc.head = inc.head.max(last);
        if let Some((seq, old)) = clash {
            let text = format!("I2: {} seq {seq} of attempt {old} given to {attempt}", a.topic);
            self.problems.push(text);
        }
    }

    /// Records and bytes of writes to a topic whose outcome is unknown.
    pub fn pending_size(&self, name: &str) -> (u64, u64) {
        let (mut records, mut bytes) = (0, 0);
        for a in &self.attempts {
            if a.topic == name && a.state == AttemptState::Pending {
                records += a.recs.len() as u64;
                bytes += a.recs.iter().map(Rec::bytes).sum::<u64>();
            }
        }
        (records, bytes)
    }

    /// Applies the caps after a write up to `last`, or after a config change. The result is exact
    /// unless something is undetermined or may have expired: then it is an upper bound of the
    /// evictions.
    fn caps(&mut self, name: &str, id: u64, last: u64, keep: Keep) {
        let unclear = self.possible().any(|(_, o)| o.topic() == Some(name));
        let pending = self.pending_size(name);
        let (at, attempts, troubled) = (self.events, &self.attempts, self.troubled);
        let incs = self.names.get_mut(name);
        let Some(inc) = incs.and_then(|i| i.iter_mut().find(|i| i.id == id)) else { return };
        // A record that was only staged may have been discarded, and then no longer counts.
        let given_up = |s: &Slot| troubled && s.class == Durability::Memory;
        let config = inc.config().clone();
        let expires = |s: &Slot| attempts[s.attempt].recs[s.index].ttl_ms > 0;
        let recs = |s: &Slot| attempts[s.attempt].recs.clone();
        // A write and a concurrent delete are ordered either way: whether the delete removed the
        // record, and so whether it counts, is unknown.
        let raced = |seq: u64, s: &Slot| {
            inc.dels.iter().any(|d| {
                d.begun <= s.at
                    && attempts[s.attempt].begun < d.ended
                    && selects(&d.req, seq, &attempts[s.attempt].recs[s.index].tag)
            })
        };
        let left = |(seq, s): (&u64, &Slot)| s.mark.is_none() && (given_up(s) || raced(*seq, s));
        let unclear = unclear || inc.slots.iter().any(left);
        if unclear || config.ttl_ms > 0 || inc.slots.values().any(expires) {
            // Expired records count until they are swept.
            let live = |s: &Slot| s.mark.is_none_or(|m| m.why == Cause::Expired);
            let floor = |gone: Vec<u64>| gone.last().copied().unwrap_or(0);
            let gone = inc.over_cap(&config, u64::MAX, live, recs, (0, 0));
            inc.lapsed = inc.lapsed.max(floor(gone));
            if unclear {
                let gone = inc.over_cap(&config, u64::MAX, live, recs, pending);
                inc.may_floor = inc.may_floor.max(floor(gone));
            }
        } else {
            // A write is logged with the evictions by it and by earlier writes. Evictions by later
            // writes, which may be answered first, are logged with them and survive as far as they
            // do.
            let later = inc.slots.range(last.saturating_add(1)..).map(|(_, s)| s.keep).min();
            inc.evict(&config, last, recs, keep, at);
            inc.evict(&config, u64::MAX, recs, later.map_or(keep, |l| l.min(keep)), at);
        }
    }

    /// A sync returned that covers every fact before `before`: of one topic, or of all. With one
    /// shard there is one log, so the sync of a topic covers all earlier facts.
    fn synced(&mut self, topic: Option<&str>, before: usize, asked: bool) {
        for (name, incs) in &mut self.names {
            let named = topic.is_none_or(|t| t == name);
            if named || self.shards == 1 {
                let raise = |inc: &mut Inc| inc.raise(before, asked && named, self.troubled);
                incs.iter_mut().for_each(raise);
            }
        }
    }
}
