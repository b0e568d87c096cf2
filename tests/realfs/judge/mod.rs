//! Compares the acks of a journal with the records that its audits read.
//!
//! acked ⊆ readable ∪ reported; readable ⊆ attempted; batches complete; seq → value never changes;
//! a seq is assigned once; a failed call may or may not have an effect, without contradiction.

mod audit;

use std::collections::{BTreeMap, HashMap};

use topics_engine::Durability;

use self::audit::AuditState;
use super::event::{Call, End, Event, Placed, Run};
use super::payload::Origin;

/// The maximum number of reported problems of one kind.
const MOST_OF_A_KIND: usize = 2;

/// A path of records from one topic to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// A router copies; `once`: exactly once.
    Copy { source: String, dest: String, once: bool },
    /// A queue moves its dead letters.
    DeadLetters { queue: String, dest: String },
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has not ended, because the process ended.
    Open,
    Acked,
    /// It failed, with an unknown outcome.
    Failed,
    /// It has no effect, or an audit showed that it had none.
    Absent,
}

#[derive(Debug)]
struct Op {
    call: Call,
    begun: usize,
    ended: Option<usize>,
    state: State,
    /// Topic → seq of the first row.
    places: BTreeMap<String, u64>,
}

/// An acked or read record.
#[derive(Clone, Debug)]
struct Fact {
    origin: Origin,
    begun: usize,
    /// The event that acked or first read it.
    known: usize,
    /// Whether it survives a power cut.
    durable: bool,
    /// Whether an audit found it deleted or reported as lost.
    gone: bool,
}

#[derive(Debug, Default)]
struct Topic {
    class: Durability,
    id: Option<u64>,
    facts: BTreeMap<u64, Fact>,
    /// Calls that delete below a seq.
    deletes: Vec<(u64, u64)>,
    /// Calls that ack a job.
    acks: HashMap<u64, u64>,
    /// The positions of copies of another topic's records.
    copies: HashMap<Origin, u64>,
}

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Acked records.
    pub acked: u64,
    /// Acked records that survive a power cut.
    pub synced: u64,
    /// Calls that failed.
    pub refused: u64,
    /// Records that the audits read.
    pub read: u64,
    /// Reported records that power cuts lost.
    pub lost: u64,
    /// Power cuts that lost records.
    pub tails: u64,
}

/// The judge of one run.
#[derive(Debug, Default)]
pub struct Judge {
    routes: Vec<Route>,
    ops: HashMap<u64, Op>,
    topics: BTreeMap<String, Topic>,
    audit: Option<AuditState>,
    /// The number of events so far.
    at: usize,
    /// Whether the last process ended by a power cut, without an audit since.
    power: bool,
    /// A process has ended since the last audit.
    reopened: bool,
    /// The number of problems of each kind.
    kinds: HashMap<String, usize>,
    /// What was found wrong.
    pub problems: Vec<String>,
    /// The figures of the run.
    pub figures: Figures,
}

impl Judge {
    /// A judge of a run with these routes.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        Self { routes, ..Self::default() }
    }

    /// Applies the next event.
    pub fn hear(&mut self, event: &Event) {
        self.at += 1;
        match event {
            Event::Begin(op, call) => self.begin(*op, call),
            Event::Acked { op, placed, .. } => self.acked(*op, placed),
            Event::Refused { op, certain, .. } => {
                self.figures.refused += 1;
                let at = self.at;
                if let Some(o) = self.ops.get_mut(op) {
                    o.ended = Some(at);
                    o.state = if *certain { State::Absent } else { State::Failed };
                }
            }
            Event::Seen(run) => {
                self.shown(run);
                if let Some(audit) = &mut self.audit {
                    self.figures.read += u64::from(run.len);
                    audit.run(run, &mut self.problems);
                }
            }
            Event::Audit(name) => self.audit = Some(AuditState::new(name)),
            Event::Topic { topic, id, head, count } => {
                self.is_topic(topic, *id);
                if let Some(audit) = &mut self.audit {
                    audit.topic(topic, *head, *count);
                }
            }
            Event::Gap { topic, from, to, reason } => {
                if let Some(audit) = &mut self.audit {
                    audit.gap(topic, *from, *to, reason);
                }
            }
            Event::Audited { settled } => {
                if let Some(audit) = self.audit.take() {
                    self.audited(&audit, *settled);
                }
            }
            Event::Note(_) => {}
            Event::Problem(text) => self.problem(text.clone()),
            Event::End(how) => self.end(*how),
        }
    }

    /// Adds a problem that the parent detected.
    pub fn problem(&mut self, text: String) {
        let kind: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
        let seen = self.kinds.entry(kind).or_default();
        *seen += 1;
        if *seen <= MOST_OF_A_KIND {
            self.problems.push(text);
        }
    }

    fn begin(&mut self, op: u64, call: &Call) {
        match call {
            Call::Create { topic, class } => self.topic(topic).class = *class,
            Call::Delete { topic, before } => {
                let before = *before;
                self.topic(topic).deletes.push((op, before));
            }
            Call::Ack { queue, seq } => {
                let seq = *seq;
                self.topic(queue).acks.insert(seq, op);
            }
            Call::Write { .. } => {}
        }
        let (call, begun) = (call.clone(), self.at);
        let places = BTreeMap::new();
        self.ops.insert(op, Op { call, begun, ended: None, state: State::Open, places });
    }

    fn topic(&mut self, name: &str) -> &mut Topic {
        self.topics.entry(name.to_owned()).or_default()
    }

    fn acked(&mut self, op: u64, placed: &[Placed]) {
        let at = self.at;
        let Some(o) = self.ops.get_mut(&op) else {
            return self.problem(format!("call {op} was acked and never made"));
        };
        if o.ended.is_some() {
            return self.problem(format!("call {op} was answered twice"));
        }
        (o.ended, o.state) = (Some(at), State::Acked);
        let synced = matches!(o.call, Call::Write { synced: true, .. });
        for p in placed {
            self.is_topic(&p.topic, p.id);
            if p.last >= p.first {
                let len = (p.last - p.first + 1) as u32;
                self.figures.acked += u64::from(len);
                if synced || self.topic(&p.topic).class == Durability::Fsync {
                    self.figures.synced += u64::from(len);
                }
                let origin = Origin { op, index: 0 };
                let (topic, id) = (p.topic.clone(), p.id);
                self.shown(&Run { topic, id, seq: p.first, origin, len });
            }
        }
    }

    /// Records the id of a topic. Nothing deletes topics, so it never changes.
    fn is_topic(&mut self, name: &str, id: u64) {
        let was = self.topic(name).id.replace(id);
        if let Some(was) = was.filter(|was| *was != id) {
            self.problem(format!("I1: topic {name} was id {was} and is id {id}"));
        }
    }

    /// Records the positions of records, from an ack or a reader.
    fn shown(&mut self, run: &Run) {
        let Run { topic, seq, origin, len, .. } = run;
        let Some(op) = self.ops.get(&origin.op) else {
            return self.problem(format!("I3: {topic} {seq}: call {} was never made", origin.op));
        };
        if op.state == State::Absent {
            let text =
                format!("{topic} {seq} of call {}: it was refused, or was absent", origin.op);
            return self.problem(text);
        }
        let Call::Write { rows, synced } = &op.call else {
            return self.problem(format!("{topic} {seq}: call {} writes nothing", origin.op));
        };
        let row = rows.iter().find(|(t, _)| t == topic);
        let own = row.is_some();
        let from: Vec<&str> = rows.iter().map(|(t, _)| t.as_str()).collect();
        let route = self.routes.iter().find(|r| match r {
            Route::Copy { source, dest, .. } => dest == topic && from.contains(&source.as_str()),
            Route::DeadLetters { queue, dest } => dest == topic && from.contains(&queue.as_str()),
        });
        if !own && route.is_none() {
            return self.problem(format!("{topic} {seq}: call {} is of {from:?}", origin.op));
        }
        let most = row.map_or(u32::MAX, |(_, n)| *n);
        if origin.index.saturating_add(*len) > most {
            let text = format!("{topic} {seq}: call {} has {most} rows, not {run:?}", origin.op);
            return self.problem(text);
        }
        let once = !matches!(route, Some(Route::Copy { once: false, .. }));
        let (begun, known) = (op.begun, self.at);
        let durable =
            *synced || self.topics.get(topic).is_some_and(|t| t.class == Durability::Fsync);
        let fact = Fact { origin: *origin, begun, known, durable, gone: false };
        let found = self.topic(topic).place(topic, run, &fact, own, once);
        found.into_iter().for_each(|text| self.problem(text));
        if own && let Some(op) = self.ops.get_mut(&origin.op) {
            let first = seq.wrapping_sub(u64::from(origin.index));
            let was = *op.places.entry(topic.clone()).or_insert(first);
            if was != first {
                let text = format!("{topic}: call {} is at {was} and at {first}", origin.op);
                self.problem(text);
            }
        }
    }

    fn end(&mut self, how: End) {
        self.power |= how == End::PowerCut;
        self.reopened = true;
        if let Some(audit) = self.audit.take().filter(|_| how == End::Clean) {
            self.problem(format!("audit {} did not end", audit.name));
        }
        if how == End::PowerCut {
            // Deleted records may come back if the delete's class does not survive this end.
            for op in self.ops.values_mut() {
                let topic = match &op.call {
                    Call::Delete { topic, .. } => topic,
                    Call::Ack { queue, .. } => queue,
                    _ => continue,
                };
                let volatile = self.topics[topic].class != Durability::Fsync;
                if volatile && op.state == State::Acked {
                    op.state = State::Failed;
                }
            }
        }
    }

    /// Whether a delete may have removed a record, and whether one must have.
    fn deleted(&self, topic: &Topic, seq: u64, fact: &Fact) -> (bool, bool) {
        let (mut may, mut must) = (false, false);
        let below = topic.deletes.iter().filter(|(_, before)| seq < *before).map(|(op, _)| op);
        for op in below.chain(topic.acks.get(&seq)).filter_map(|op| self.ops.get(op)) {
            may |= op.state != State::Absent && op.ended.is_none_or(|at| at > fact.begun);
            must |= op.state == State::Acked && fact.known < op.begun;
        }
        (may, must)
    }
}

impl Topic {
    /// Records positions; reports a conflict with earlier ones.
    fn place(
        &mut self,
        name: &str,
        run: &Run,
        fact: &Fact,
        own: bool,
        once: bool,
    ) -> Option<String> {
        let mut problem = None;
        for i in 0..run.len {
            let seq = run.seq + u64::from(i);
            let origin = Origin { op: run.origin.op, index: run.origin.index + i };
            if !own {
                let was = *self.copies.entry(origin).or_insert(seq);
                if once && was != seq {
                    problem.get_or_insert(format!("{name}: {origin:?} is at {was} and at {seq}"));
                }
            }
            let new = Fact { origin, ..fact.clone() };
            let there = self.facts.entry(seq).or_insert(new);
            if there.origin != origin {
                problem.get_or_insert(format!(
                    "I2: {name} seq {seq} is {:?}{}, and is {origin:?}",
                    there.origin,
                    if there.gone { " (gone)" } else { "" }
                ));
            }
            there.durable |= fact.durable;
        }
        problem
    }
}
