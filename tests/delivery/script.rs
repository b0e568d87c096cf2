//! Drives an engine and notes, for each call, the position of the disk at its start and end.

mod txns;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use topics_engine::{
    Append, Claim, Claimed, ConfigPatch, Consumer, ConsumerMode, ConsumerRead, ConsumerStart,
    DeleteRequest, Engine, JobState, LeasedJobs, NewRecord, Options, Redrive, RouterRequest,
    SeekTo,
};
use topics_env::Clock;
use topics_sim::{SimClock, SimFs, env_on};

pub use self::txns::{TxnOutcome, call, stage};
use super::note::{Facts, Leased, Note, Shown, Span, StagePart, Unit, Written, error_of};
use crate::oracle::{Observation, observe};
use crate::run::{DIR, HookSpec};

/// A run.
pub struct Script {
    /// The disk of each process, and the number of earlier calls: calls are counted across
    /// processes.
    pub lives: Vec<(Arc<SimFs>, usize)>,
    clock: Arc<SimClock>,
    pub notes: Vec<(Span, Note)>,
    /// The wall clock from this number of disk calls on.
    walls: Vec<(usize, u64)>,
    pub facts: Facts,
    pub seed: u64,
    shards: u32,
    opens: u64,
    names: usize,
    engine: Option<Engine>,
    consumers: BTreeMap<&'static str, Reader>,
    pub hook: HookSpec,
    /// The staged parts, by writer, stage and number.
    parts: BTreeMap<(&'static str, &'static str, u32), Arc<StagePart>>,
    /// Every transaction that was not refused.
    pub units: Vec<Arc<Unit>>,
    /// Writes that a callback answered.
    told: Arc<Mutex<Vec<(Span, Note)>>>,
    /// Faults of the current process that took effect.
    fired: usize,
}

/// A handle of a consumer.
struct Reader {
    topic: String,
    id: u64,
    handle: Consumer,
    auto: bool,
    /// The start of its next read.
    next: u64,
}

/// Small files, so that the log rotates often.
pub fn options(shards: u32) -> Options {
    Options {
        background: false,
        // Reading the number of cores takes a tenth of the time of an open.
        delivery_workers: 1,
        wal_shards: shards,
        wal_file_min: 8 << 10,
        wal_file_max: 8 << 10,
        segment_max_events: 8,
        segment_max_bytes: 8 << 10,
        ..Options::default()
    }
}

/// The topics of an observation.
pub fn shown(seen: &Observation) -> BTreeMap<String, Shown> {
    let topic = |t: &crate::oracle::TopicObs| {
        let text = |d: &[u8]| String::from_utf8_lossy(d).into_owned();
        let records = t.records.iter().map(|r| (r.seq, text(&r.data))).collect();
        let shown = Shown { id: t.state.topic_id, records, evict_floor: t.state.evict_floor };
        (t.state.topic.clone(), shown)
    };
    seen.topics.iter().map(topic).collect()
}

impl Script {
    pub fn new(seed: u64, shards: u32, hook: HookSpec) -> Self {
        let mut s = Self {
            lives: vec![(Arc::new(SimFs::new()), 0)],
            clock: Arc::new(SimClock::new(1_700_000_000_000)),
            notes: Vec::new(),
            walls: Vec::new(),
            facts: Facts::default(),
            seed,
            shards,
            opens: 0,
            names: 0,
            engine: None,
            consumers: BTreeMap::new(),
            hook,
            parts: BTreeMap::new(),
            units: Vec::new(),
            told: Arc::default(),
            fired: 0,
        };
        s.open();
        s
    }

    /// The number of disk calls so far.
    pub fn calls(&self) -> usize {
        self.lives.last().map_or(0, |(fs, before)| before + fs.ops_len())
    }

    /// A readable description of disk call `at`.
    pub fn describe(&self, at: usize) -> String {
        let life = self.lives.iter().rev().find(|l| l.1 <= at);
        life.map_or_else(String::new, |(fs, before)| fs.describe_op(at - before))
    }

    fn open(&mut self) {
        self.opens += 1;
        let from = self.calls();
        let fs = &self.lives[self.lives.len() - 1].0;
        let env = env_on(fs, &self.clock, self.seed ^ (self.opens << 32));
        let env = self.hook.on(env, fs);
        self.engine = Some(Engine::open(env, Path::new(DIR), options(self.shards)).unwrap());
        // Everything that a recovery serves is durable.
        self.note(from, Note::Synced);
        self.look();
    }

    pub fn options(&self) -> Options {
        options(self.shards)
    }

    /// The wall clock at this number of disk calls.
    pub fn wall(&self, at: usize) -> u64 {
        let before = self.walls.iter().rev().find(|(ops, _)| *ops <= at);
        before.map_or(1_700_000_000_000, |w| w.1)
    }

    pub fn now(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Closes the engine cleanly and opens it again.
    pub fn reopen(&mut self) {
        self.end();
        self.open();
    }

    /// Kills the process and starts another.
    pub fn kill(&mut self) {
        let image = self.lives[self.lives.len() - 1].0.kill_image();
        self.lives.push((Arc::new(SimFs::from_image(&image)), self.calls()));
        // Effects of dropping the old engine are discarded.
        self.consumers.clear();
        self.engine = None;
        self.fired = 0;
        self.open();
    }

    pub fn end(&mut self) {
        for name in self.consumers.keys().copied().collect::<Vec<_>>() {
            self.drop_handle(name);
        }
        if let Some(e) = self.engine.take() {
            let from = self.calls();
            e.close().unwrap();
            self.note(from, Note::Synced);
        }
    }

    pub fn engine(&self) -> Engine {
        self.engine.clone().unwrap()
    }

    fn note(&mut self, from: usize, note: Note) {
        let span = Span { from, to: self.calls() };
        self.walls.push((span.to, self.now()));
        self.notes.push((span, note));
    }

    /// Runs a call and notes its answer.
    fn call<T>(&mut self, run: impl FnOnce(&Engine) -> T, note: impl FnOnce(&T) -> Note) -> T {
        let from = self.calls();
        let out = run(&self.engine());
        self.note(from, note(&out));
        out
    }

    /// Advances the clock.
    pub fn pass(&mut self, ms: u64) {
        self.clock.advance_ms(ms);
        self.walls.push((self.calls(), self.now()));
    }

    pub fn make(&mut self, topic: &str, patch: &ConfigPatch) {
        let made = |id| Note::Made { topic: topic.to_owned(), id };
        let c = self.call(|e| e.create_topic(topic, patch).unwrap(), |c| made(c.topic_id));
        self.facts.classes.insert(topic.to_owned(), c.config.durability);
        self.facts.leases_durable |= topic == "q" && c.config.leases_durable;
        self.pass(1);
    }

    /// Writes plain records as one batch.
    pub fn put(&mut self, topic: &str, n: usize) -> bool {
        self.put_with(topic, n, |_, _| ())
    }

    /// Writes records as one batch; false if the topic is full.
    pub fn put_with(&mut self, topic: &str, n: usize, shape: impl Fn(usize, &mut Written)) -> bool {
        let first = self.names;
        self.names += n;
        let mut all = Vec::new();
        for i in first..first + n {
            let mut w = Written { name: format!("\"{topic}-{i}\""), ..Written::default() };
            shape(i, &mut w);
            all.push(w);
        }
        let records: Vec<NewRecord<'_>> = all.iter().map(new_record).collect();
        let req = Append { records: &records, ..Append::default() };
        let from = self.calls();
        let outcome = self.engine().append(topic, &req);
        self.pass(1);
        let Ok(a) = outcome else {
            assert_eq!(outcome.unwrap_err().code(), "topic_full");
            return false;
        };
        let (topic, id) = (topic.to_owned(), a.topic_id);
        self.note(from, Note::Put { topic, id, first: a.first_seq, records: all.clone() });
        true
    }

    pub fn delete(&mut self, topic: &str, before: u64) {
        let req = DeleteRequest { before_seq: Some(before), matching: None };
        let note = Note::Deleted { topic: topic.to_owned(), before };
        self.call(|e| e.delete(topic, &req).unwrap(), |_| note);
    }

    pub fn drop_topic(&mut self, topic: &str) {
        let note = Note::Dropped { topic: topic.to_owned() };
        self.call(|e| e.delete_topic(topic, false).unwrap(), |_| note);
    }

    /// Notes the state that readers see.
    pub fn look(&mut self) {
        let wall = self.now();
        let (seen, problems) =
            self.call(|e| observe(e, wall, 9), |(seen, _)| Note::Look(shown(seen)));
        assert_eq!(problems, Vec::<String>::new());
        // Topics that were created automatically.
        for t in seen.topics {
            self.facts.classes.entry(t.state.topic.clone()).or_insert(t.state.config.durability);
        }
    }

    /// Runs the workers, then observes.
    pub fn work(&mut self) {
        for _ in 0..3 {
            self.engine().tick().unwrap();
        }
        self.look();
    }

    pub fn sync(&mut self) {
        self.call(|e| e.sync().unwrap(), |()| Note::Synced);
    }

    pub fn checkpoint(&mut self) {
        self.engine().checkpoint().unwrap();
    }

    pub fn claim(&mut self, node: &'static str, max: usize, lease_ms: Option<u64>) -> Vec<Leased> {
        let req = Claim { node: node.as_bytes(), max, lease_ms, wait: Duration::ZERO };
        let leases = |c: &Claimed| -> Vec<Leased> {
            let text = |d: &[u8]| String::from_utf8(d.to_vec()).unwrap();
            let lease = |(l, r): (topics_engine::Lease, topics_engine::RecordView<'_>)| Leased {
                name: text(r.data),
                seq: l.seq,
                id: l.lease_id,
                node,
                deliveries: l.deliveries,
                deadline: l.deadline,
            };
            c.iter().map(lease).collect()
        };
        let got = self.call(|e| e.claim("q", &req).unwrap(), |c| Note::Claimed(leases(c)));
        self.look();
        leases(&got)
    }

    pub fn ack(&mut self, jobs: &[Leased]) {
        let s = self.with_leases(jobs, |e, h| e.ack("q", h), Note::Acked(jobs.to_vec()));
        assert_eq!(s, jobs.len(), "I6: the holder's ack is skipped");
    }

    pub fn nack(&mut self, jobs: &[Leased], delay: u64) {
        let note = Note::Released(jobs.to_vec());
        let error = error_of(jobs).unwrap_or_default();
        let s = self.with_leases(jobs, |e, h| e.nack_with_error("q", h, Some(delay), &error), note);
        assert_eq!(s, jobs.len(), "I6: the holder's nack is skipped");
    }

    /// Seq and name of at most `max` jobs of a state.
    fn peek(&self, state: JobState, max: usize) -> Vec<(u64, String)> {
        let text = |d: &[u8]| String::from_utf8(d.to_vec()).unwrap();
        let peeked = self.engine().peek("q", Some(state), max).unwrap();
        peeked.iter().map(|(j, r)| (j.seq, text(r.data))).collect()
    }

    /// Makes delayed jobs claimable.
    pub fn promote(&mut self, max: usize) {
        let jobs = self.peek(JobState::Delayed, max);
        let seqs: Vec<u64> = jobs.iter().map(|j| j.0).collect();
        let note = Note::Promoted(jobs);
        let s = self.call(|e| e.promote_jobs("q", &seqs).unwrap(), |_| note);
        assert_eq!(s.done, seqs, "a delayed job is skipped");
    }

    /// Deletes jobs of a state: the effect is that of an ack.
    pub fn remove(&mut self, state: JobState, max: usize) {
        let gone = |(seq, name)| Leased { name, seq, id: 0, node: "", deliveries: 0, deadline: 0 };
        let jobs: Vec<Leased> = self.peek(state, max).into_iter().map(gone).collect();
        let seqs: Vec<u64> = jobs.iter().map(|j| j.seq).collect();
        let force = state == JobState::Leased;
        let note = Note::Acked(jobs);
        let s = self.call(|e| e.remove_jobs("q", &seqs, force).unwrap(), |_| note);
        assert_eq!(s.done, seqs, "a job that is removed is skipped");
    }

    pub fn extend(&mut self, jobs: &[Leased], ms: u64) {
        let deadline = self.now() + ms;
        let longer = jobs.iter().map(|j| Leased { deadline, ..j.clone() }).collect();
        let s = self.with_leases(jobs, |e, h| e.extend("q", h, Some(ms)), Note::Extended(longer));
        assert_eq!(s, jobs.len(), "I6: the holder's extend is skipped");
    }

    /// Checks that calls with a stale lease have no effect.
    pub fn stale(&mut self, jobs: &[Leased]) {
        for run in [Engine::ack, |e: &Engine, q: &str, h: &LeasedJobs<'_>| e.nack(q, h, None)] {
            assert_eq!(
                self.with_leases(jobs, |e, h| run(e, "q", h), Note::Released(vec![])),
                0,
                "I6"
            );
        }
    }

    fn with_leases(
        &mut self,
        jobs: &[Leased],
        run: impl FnOnce(&Engine, &LeasedJobs<'_>) -> topics_engine::Result<topics_engine::LeaseOutcome>,
        note: Note,
    ) -> usize {
        let Some(node) = jobs.first().map(|j| j.node.as_bytes()) else { return 0 };
        let seqs: Vec<u64> = jobs.iter().map(|j| j.seq).collect();
        let ids: Vec<u64> = jobs.iter().map(|j| j.id).collect();
        let held = LeasedJobs { node, seqs: &seqs, lease_ids: Some(&ids) };
        self.call(|e| run(e, &held).unwrap(), |_| note).done.len()
    }

    pub fn redrive(&mut self, topic: &str) -> u64 {
        self.call(|e| e.redrive(topic, &Redrive::default()).unwrap(), |_| Note::Redriven).moved
    }

    pub fn route(&mut self, router: &str, req: &RouterRequest) {
        let from = self.calls();
        let e = self.engine();
        let source = e.state(&req.source, false).unwrap();
        assert!(e.create_router(router, req).unwrap());
        let dest_id = e.state(&req.dest, false).unwrap().topic_id;
        let (start, source_id) = (source.head_seq, source.topic_id);
        let (router, req) = (router.to_owned(), req.clone());
        self.note(from, Note::Routed { router, req, start, source_id, dest_id });
        self.look();
    }

    pub fn unroute(&mut self, router: &str) {
        let note = Note::Unrouted { router: router.to_owned() };
        assert!(self.call(|e| e.delete_router(router).unwrap(), |_| note));
    }

    /// Creates a consumer if it is new, and a handle for it.
    pub fn consume(&mut self, topic: &str, name: &'static str, mode: ConsumerMode, auto: bool) {
        let from = self.calls();
        let e = self.engine();
        let known = e.consumers(topic).unwrap().iter().any(|c| c.name == name);
        let handle = e.consumer(topic, name, Some(mode), ConsumerStart::Start, auto).unwrap();
        let id = e.state(topic, false).unwrap().topic_id;
        let next = handle.cursor().unwrap();
        let reader = Reader { topic: topic.to_owned(), id, handle, auto, next };
        self.consumers.insert(name, reader);
        let topic = topic.to_owned();
        self.note(
            from,
            match known {
                true => Note::Passed { topic, id, consumer: name, at: next },
                false => Note::Stored { topic, id, consumer: name, at: Some(next) },
            },
        );
    }

    /// Reads with a handle.
    pub fn read(&mut self, name: &'static str, max_records: usize) -> Vec<u64> {
        let from = self.calls();
        let c = self.consumers.get_mut(name).unwrap();
        let req = ConsumerRead { max_records, ..ConsumerRead::default() };
        let batch = c.handle.read(&req).unwrap();
        let (topic, id, auto) = (c.topic.clone(), c.id, c.auto);
        let dealt = std::mem::replace(&mut c.next, batch.next_from_seq);
        let at = c.handle.cursor().unwrap();
        let once = c.handle.mode() == ConsumerMode::AtMostOnce;
        let seqs: Vec<u64> = batch.iter().map(|r| r.seq).collect();
        if once {
            let (seqs, next) = (seqs.clone(), batch.next_from_seq);
            self.note(from, Note::HandedOut { id, consumer: name, seqs, next });
        } else if auto {
            self.note(from, Note::Passed { topic: topic.clone(), id, consumer: name, at });
            self.note(from, Note::Dealt { topic, id, consumer: name, at: dealt });
        }
        seqs
    }

    pub fn commit(&mut self, name: &'static str, seq: u64) {
        let from = self.calls();
        let c = &self.consumers[name];
        let (topic, id) = (c.topic.clone(), c.id);
        c.handle.commit(seq).unwrap();
        let at = c.handle.cursor().unwrap();
        assert!(at >= seq, "I8");
        self.note(from, Note::Stored { topic, id, consumer: name, at: Some(at) });
    }

    pub fn seek(&mut self, name: &'static str, to: SeekTo) {
        let from = self.calls();
        let c = self.consumers.get_mut(name).unwrap();
        let (topic, id) = (c.topic.clone(), c.id);
        let at = c.handle.seek(to).unwrap();
        c.next = at;
        self.note(from, Note::Sought { topic, id, consumer: name, at });
    }

    /// Drops the handle; with automatic commits it may store its position.
    pub fn drop_handle(&mut self, name: &'static str) {
        let from = self.calls();
        let Some(Reader { topic, id, handle, .. }) = self.consumers.remove(name) else { return };
        drop(handle);
        let all = self.engine().consumers(&topic).unwrap_or_default();
        let Some(info) = all.into_iter().find(|c| c.name == name) else { return };
        self.note(from, Note::Passed { topic, id, consumer: name, at: info.cursor });
    }

    pub fn delete_consumer(&mut self, topic: &str, name: &'static str) {
        self.drop_handle(name);
        let from = self.calls();
        let id = self.engine().state(topic, false).unwrap().topic_id;
        assert!(self.engine().delete_consumer(topic, name).unwrap());
        self.note(from, Note::Stored { topic: topic.into(), id, consumer: name, at: None });
    }
}

fn new_record(w: &Written) -> NewRecord<'_> {
    NewRecord {
        data: w.name.as_bytes(),
        tag: w.tag.as_bytes(),
        node: w.node.as_bytes(),
        group: w.group.as_bytes(),
        lane: w.lane,
        deliver_at: w.deliver_at,
        ttl_ms: w.ttl_ms,
        ..NewRecord::default()
    }
}
