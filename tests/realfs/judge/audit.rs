//! The verdict about one audit: a read of everything while no other work ran.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Call, Judge, Route, Run, State, Topic};
use crate::realfs::event::UNKNOWN;
use crate::realfs::payload::Origin;

/// The records of one topic in an audit.
#[derive(Debug, Default)]
struct Found {
    head: u64,
    count: u64,
    seqs: BTreeMap<u64, Origin>,
    gaps: Vec<(u64, u64, String)>,
}

impl Found {
    fn reported(&self, seq: u64) -> bool {
        self.gaps.iter().any(|(from, to, _)| (*from..=*to).contains(&seq))
    }
}

/// An audit in progress.
#[derive(Debug)]
pub(super) struct AuditState {
    pub name: String,
    topics: BTreeMap<String, Found>,
}

impl AuditState {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), topics: BTreeMap::new() }
    }

    pub fn topic(&mut self, topic: &str, head: u64, count: u64) {
        let found = self.topics.entry(topic.to_owned()).or_default();
        (found.head, found.count) = (head, count);
    }

    pub fn gap(&mut self, topic: &str, from: u64, to: u64, reason: &str) {
        let found = self.topics.entry(topic.to_owned()).or_default();
        found.gaps.push((from, to, reason.to_owned()));
    }

    pub fn run(&mut self, run: &Run, problems: &mut Vec<String>) {
        let found = self.topics.entry(run.topic.clone()).or_default();
        if found.seqs.last_key_value().is_some_and(|(last, _)| *last >= run.seq) {
            problems.push(format!("I4: {} {} is read out of order", run.topic, run.seq));
        }
        for i in 0..run.len {
            let origin = Origin { op: run.origin.op, index: run.origin.index + i };
            found.seqs.insert(run.seq + u64::from(i), origin);
        }
    }
}

/// A summary of the missing records of one topic.
fn ranges(seqs: &[(u64, Origin)]) -> String {
    let (first, last) = (seqs[0], seqs[seqs.len() - 1]);
    let ops: HashSet<u64> = seqs.iter().map(|(_, o)| o.op).collect();
    format!("{} records of {} calls, {first:?} … {last:?}", seqs.len(), ops.len())
}

impl Judge {
    pub(super) fn audited(&mut self, audit: &AuditState, settled: bool) {
        let lost_before = self.figures.lost;
        let mut problems = Vec::new();
        let mut topics = std::mem::take(&mut self.topics);
        for (name, topic) in &mut topics {
            let Some(found) = audit.topics.get(name) else {
                if let Some(id) = topic.id {
                    problems.push(format!("I1: topic {name} (id {id}) is gone with all it holds"));
                    topic.facts.clear();
                    topic.id = None;
                }
                continue;
            };
            self.missing(name, topic, found, audit, &mut problems);
            self.returned(name, topic, found, &mut problems);
            self.whole(name, topic, audit, &mut problems);
            self.holes(name, topic, found, &mut problems);
            let both = |(from, to, _): &&(u64, u64, String)| {
                found.seqs.range(*from..=*to).next().is_some()
            };
            if let Some((from, to, _)) = found.gaps.iter().find(both) {
                problems.push(format!("{name}: {from}…{to} is reported as lost and is not"));
            }
            if ![UNKNOWN, found.seqs.len() as u64].contains(&found.count) {
                let text = format!("{name}: count {}, {} are read", found.count, found.seqs.len());
                problems.push(text);
            }
            if self.reopened {
                // Everything that a recovery serves is durable.
                topic.facts.values_mut().for_each(|f| f.durable = true);
            }
        }
        self.topics = topics;
        if settled {
            self.settled(audit, &mut problems);
        }
        if self.reopened {
            self.absent(audit);
        }
        self.figures.tails += u64::from(self.figures.lost > lost_before);
        (self.power, self.reopened) = (false, false);
        for text in problems {
            self.problem(format!("audit {}: {text}", audit.name));
        }
    }

    /// Whether the job's record was moved to the queue's dead letters.
    fn moved(&self, name: &str, origin: Origin, audit: &AuditState) -> bool {
        self.routes.iter().any(|r| match r {
            Route::DeadLetters { queue, dest } if queue == name => audit
                .topics
                .get(dest)
                .is_some_and(|found| found.seqs.values().any(|o| *o == origin)),
            _ => false,
        })
    }

    /// I1: every acked or read record exists, was deleted, or is reported after a power cut.
    fn missing(
        &mut self,
        name: &str,
        topic: &mut Topic,
        found: &Found,
        audit: &AuditState,
        problems: &mut Vec<String>,
    ) {
        let absent = topic.facts.iter().filter(|(s, f)| !f.gone && !found.seqs.contains_key(s));
        let absent: Vec<u64> = absent.map(|(s, _)| *s).collect();
        let mut missing = Vec::new();
        for seq in absent {
            let fact = &topic.facts[&seq];
            let cut = self.power && !fact.durable && found.reported(seq);
            let taken = self.deleted(topic, seq, fact).0;
            if cut && !taken {
                self.figures.lost += 1;
            } else if !taken && !self.moved(name, fact.origin, audit) {
                let acked = self.ops.get(&fact.origin.op).is_some_and(|o| o.state == State::Acked);
                missing.push((seq, fact.origin, acked, found.reported(seq)));
            }
            if let Some(fact) = topic.facts.get_mut(&seq) {
                fact.gone = true;
            }
        }
        for acked in [true, false] {
            let of: Vec<_> = missing.iter().filter(|m| m.2 == acked).map(|m| (m.0, m.1)).collect();
            if of.is_empty() {
                continue;
            }
            let (told, what) =
                (missing.iter().any(|m| m.3), ["shown", "acked"][usize::from(acked)]);
            let how = if told { "reported as lost without a power cut" } else { "missing" };
            problems.push(format!("I1: {name}: {} that were {what} are {how}", ranges(&of)));
        }
    }

    /// Records that an acked delete removed, or that an audit missed, must not come back.
    fn returned(&self, name: &str, topic: &Topic, found: &Found, problems: &mut Vec<String>) {
        let there = found.seqs.keys().filter_map(|s| Some((*s, topic.facts.get(s)?)));
        for (seq, fact) in there {
            let (may, must) = self.deleted(topic, seq, fact);
            if must || (fact.gone && !(may && self.power)) {
                problems.push(format!("{name}: seq {seq} ({:?}) came back", fact.origin));
                return;
            }
        }
    }

    /// I5: either all rows of a call exist, except deleted, moved or lost ones, or none.
    fn whole(&self, name: &str, topic: &Topic, audit: &AuditState, problems: &mut Vec<String>) {
        let found = &audit.topics[name];
        let mut calls: HashMap<u64, u32> = HashMap::new();
        for origin in found.seqs.values() {
            *calls.entry(origin.op).or_default() += 1;
        }
        for (op, seen) in calls {
            let Some(Call::Write { rows, .. }) = self.ops.get(&op).map(|o| &o.call) else {
                continue;
            };
            let Some((_, count)) = rows.iter().find(|(t, _)| t == name) else { continue };
            let Some(first) = self.ops[&op].places.get(name) else { continue };
            if seen == *count {
                continue;
            }
            let torn = |index: &u32| {
                let seq = first + u64::from(*index);
                !found.seqs.contains_key(&seq)
                    && !found.reported(seq)
                    && !self.below_a_delete(topic, seq)
                    && !self.moved(name, Origin { op, index: *index }, audit)
            };
            if (0..*count).any(|index| torn(&index)) {
                problems.push(format!("I5: {name}: call {op} has {count} rows, {seen} are there"));
            }
        }
    }

    fn below_a_delete(&self, topic: &Topic, seq: u64) -> bool {
        let possible = |op: &u64| self.ops.get(op).is_some_and(|o| o.state != State::Absent);
        topic.deletes.iter().any(|(op, before)| seq < *before && possible(op))
            || topic.acks.get(&seq).is_some_and(possible)
    }

    /// I4: a missing seq below the head was deleted, moved, or is announced.
    fn holes(&self, name: &str, topic: &Topic, found: &Found, problems: &mut Vec<String>) {
        let moves = |r: &Route| matches!(r, Route::DeadLetters { queue, .. } if queue == name);
        if self.routes.iter().any(moves) {
            return;
        }
        let silent = |seq: &u64| {
            !found.seqs.contains_key(seq)
                && !topic.facts.contains_key(seq)
                && !found.reported(*seq)
                && !self.below_a_delete(topic, *seq)
        };
        if let Some(seq) = (1..=found.head).find(silent) {
            problems.push(format!("I4: {name}: seq {seq} is missing without a word"));
        }
    }

    /// No background work is left: routers and dead letters are done, transactions are complete or
    /// absent.
    fn settled(&self, audit: &AuditState, problems: &mut Vec<String>) {
        let read = |topic: &str| {
            let seqs = audit.topics.get(topic).map(|f| f.seqs.values().copied());
            seqs.into_iter().flatten().collect::<HashSet<Origin>>()
        };
        for route in &self.routes {
            match route {
                Route::DeadLetters { queue, dest } => {
                    let both = read(queue).intersection(&read(dest)).count();
                    if both > 0 {
                        problems.push(format!("{both} jobs are in {queue} and in {dest}"));
                    }
                }
                Route::Copy { source, dest, .. } => {
                    let missing = read(source).difference(&read(dest)).count();
                    if missing > 0 && self.topics.get(dest).is_none_or(|t| t.deletes.is_empty()) {
                        problems.push(format!("I7: {missing} of {source} are not in {dest}"));
                    }
                }
            }
        }
        for (id, op) in &self.ops {
            let Call::Write { rows, .. } = &op.call else { continue };
            if rows.len() < 2 || op.places.is_empty() {
                continue;
            }
            let nowhere = |t: &str| !op.places.contains_key(t);
            if let Some((topic, _)) = rows.iter().find(|(t, _)| nowhere(t)) {
                let there: Vec<_> = op.places.keys().collect();
                problems.push(format!("I5: transaction {id} is in {there:?} and not in {topic}"));
            }
        }
    }

    /// A failed call without an effect at the next open had none. A decided transaction is
    /// published later.
    fn absent(&mut self, audit: &AuditState) {
        let mut there = HashSet::new();
        for found in audit.topics.values() {
            there.extend(found.seqs.values().map(|o| o.op));
        }
        for (id, op) in &mut self.ops {
            let Call::Write { rows, .. } = &op.call else { continue };
            let unknown = matches!(op.state, State::Open | State::Failed) && op.places.is_empty();
            if unknown && rows.len() == 1 && !there.contains(id) {
                op.state = State::Absent;
            }
        }
    }
}
