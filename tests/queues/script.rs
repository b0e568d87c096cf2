//! Drives an engine and notes, for each call, how far the disk was when it began and ended.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_engine::{
    Append, Claim, Claimed, ConfigPatch, Consumer, ConsumerMode, ConsumerRead, ConsumerStart,
    Durability, Engine, Held, NewRecord, Options, Redrive, TopicType,
};
use topics_env::Clock;
use topics_env::sim::{SimClock, SimFs, env_on};

use crate::run::DIR;

/// Calls of the disk before a call began and, if it returned, when it did.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: usize,
    pub to: usize,
}

/// A lease: payload, seq, id.
pub type Leased = (String, u64, u64);

/// A call and its answer.
#[derive(Clone, Debug)]
pub enum Note {
    /// Jobs with these payloads were written.
    Put(Vec<String>),
    /// Leases that were given: payload, seq, id; to this node.
    Claimed(&'static str, Vec<Leased>),
    /// These were acked.
    Acked(Vec<String>),
    /// These leases ended, by a release.
    Released(Vec<u64>),
    /// Dead letters were moved, or revived.
    Redriven,
    /// Records handed out by the consumer that hands out at most once.
    HandedOut(Vec<u64>),
    /// The other consumer stored this.
    Committed(u64),
    /// It was sent there.
    Sought(u64),
}

/// A run.
pub struct Script {
    pub fs: Arc<SimFs>,
    pub clock: Arc<SimClock>,
    pub notes: Vec<(Span, Note)>,
    pub seed: u64,
    opens: u64,
    jobs: usize,
    engine: Option<Engine>,
    consumers: Option<(Consumer, Consumer)>,
}

/// Small files, so that they turn over.
pub fn options() -> Options {
    Options {
        background: false,
        wal_file_min: 8 << 10,
        wal_file_max: 8 << 10,
        segment_max_events: 8,
        segment_max_bytes: 8 << 10,
        ..Options::default()
    }
}

/// The config of the queue `q`.
pub fn queue(max_deliveries: u64, dead: bool, durability: Durability) -> ConfigPatch {
    ConfigPatch {
        kind: Some(TopicType::Queue),
        durability: Some(durability),
        leases_durable: Some(true),
        max_deliveries: Some(max_deliveries),
        dead_letter: dead.then(|| Some("dead".into())),
        // The leases of this test end by calls only.
        lease_ms: Some(86_400_000),
        retry_backoff_ms: Some(0),
        ..ConfigPatch::default()
    }
}

impl Script {
    pub fn new(seed: u64) -> Self {
        let fs = Arc::new(SimFs::new());
        let clock = Arc::new(SimClock::new(1_700_000_000_000));
        let (notes, consumers) = (Vec::new(), None);
        let mut s = Self { fs, clock, notes, seed, opens: 0, jobs: 0, engine: None, consumers };
        s.open();
        s
    }

    fn open(&mut self) {
        self.opens += 1;
        let env = env_on(&self.fs, &self.clock, self.seed ^ (self.opens << 32));
        self.engine = Some(Engine::open(env, Path::new(DIR), options()).unwrap());
    }

    pub fn wall(&self) -> u64 {
        self.clock.wall_ms()
    }

    pub fn reopen(&mut self) {
        self.end();
        self.open();
    }

    pub fn end(&mut self) {
        self.consumers = None;
        if let Some(e) = self.engine.take() {
            e.close().unwrap();
        }
    }

    fn engine(&self) -> Engine {
        self.engine.clone().unwrap()
    }

    /// Runs a call; what it answers is noted, what it meant to do from its beginning on.
    fn call<T>(&mut self, run: impl FnOnce(&Engine) -> T, note: impl FnOnce(&T) -> Note) -> T {
        let from = self.fs.ops_len();
        let out = run(&self.engine());
        self.notes.push((Span { from, to: self.fs.ops_len() }, note(&out)));
        out
    }

    pub fn create(&mut self, patch: &ConfigPatch) {
        self.engine().create_topic("q", patch).unwrap();
        self.clock.advance_ms(1);
    }

    /// Writes jobs; each third has a group, each fourth a lane.
    pub fn put(&mut self, n: usize) {
        let first = self.jobs;
        self.jobs += n;
        let names: Vec<String> = (first..first + n).map(|i| format!("\"job-{i}\"")).collect();
        let records: Vec<NewRecord<'_>> = (first..)
            .zip(&names)
            .map(|(i, data)| NewRecord {
                data: data.as_bytes(),
                group: if i % 3 == 0 { b"g" } else { b"" },
                lane: (i % 4 == 3).then_some((i % 10) as u8),
                ..NewRecord::default()
            })
            .collect();
        let req = Append { records: &records, ..Append::default() };
        let noted = names.clone();
        self.call(|e| e.append("q", &req).unwrap(), |_| Note::Put(noted));
        self.clock.advance_ms(1);
    }

    pub fn claim(&mut self, node: &'static str, max: usize) -> Vec<Leased> {
        let req = Claim { node: node.as_bytes(), max, lease_ms: None, wait: Duration::ZERO };
        let leases = |c: &Claimed| -> Vec<_> {
            let text = |d: &[u8]| String::from_utf8(d.to_vec()).unwrap();
            c.iter().map(|(l, r)| (text(r.data), l.seq, l.lease_id)).collect()
        };
        let got = self.call(|e| e.claim("q", &req).unwrap(), |c| Note::Claimed(node, leases(c)));
        leases(&got)
    }

    pub fn ack(&mut self, node: &'static str, jobs: &[Leased]) {
        let seqs: Vec<u64> = jobs.iter().map(|j| j.1).collect();
        let ids: Vec<u64> = jobs.iter().map(|j| j.2).collect();
        let held = Held { node: node.as_bytes(), seqs: &seqs, lease_ids: Some(&ids) };
        let names = jobs.iter().map(|j| j.0.clone()).collect();
        let s = self.call(|e| e.ack("q", &held).unwrap(), |_| Note::Acked(names));
        assert_eq!(s.skipped, [], "I6: the holder's ack is skipped");
    }

    pub fn nack(&mut self, node: &'static str, jobs: &[Leased]) {
        let seqs: Vec<u64> = jobs.iter().map(|j| j.1).collect();
        let held = Held { node: node.as_bytes(), seqs: &seqs, lease_ids: None };
        let ids = jobs.iter().map(|j| j.2).collect();
        let s = self.call(|e| e.nack("q", &held, Some(0)).unwrap(), |_| Note::Released(ids));
        assert_eq!(s.skipped, []);
    }

    pub fn redrive(&mut self, topic: &str) -> u64 {
        let topic = topic.to_owned();
        self.call(|e| e.redrive(&topic, &Redrive::default()).unwrap(), |_| Note::Redriven)
    }

    /// A topic with records, and a consumer of each mode.
    pub fn consume(&mut self, durability: Durability) {
        let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
        self.engine().create_topic("t", &patch).unwrap();
        self.handles();
    }

    pub fn handles(&mut self) {
        let open =
            |mode| self.engine().consumer("t", name(mode), Some(mode), ConsumerStart::Start, false);
        let once = open(ConsumerMode::AtMostOnce).unwrap();
        self.consumers = Some((once, open(ConsumerMode::AtLeastOnce).unwrap()));
    }

    pub fn records(&mut self, n: usize) {
        let records = vec![NewRecord { data: b"1", ..NewRecord::default() }; n];
        let req = Append { records: &records, ..Append::default() };
        self.engine().append("t", &req).unwrap();
        self.clock.advance_ms(1);
    }

    pub fn read_once(&mut self, max_records: usize) {
        let (once, rest) = self.consumers.take().unwrap();
        let req = ConsumerRead { max_records, ..ConsumerRead::default() };
        self.call(
            |_| once.read(&req).unwrap(),
            |b| Note::HandedOut(b.iter().map(|r| r.seq).collect()),
        );
        self.consumers = Some((once, rest));
    }

    pub fn commit(&mut self, seq: u64) {
        let (rest, again) = self.consumers.take().unwrap();
        self.call(|_| again.commit(seq).unwrap(), |()| Note::Committed(seq));
        self.consumers = Some((rest, again));
    }

    pub fn seek(&mut self, seq: u64) {
        let (rest, again) = self.consumers.take().unwrap();
        let to = topics_engine::SeekTo::Seq(seq);
        self.call(|_| again.seek(to).unwrap(), |_| Note::Sought(seq));
        self.consumers = Some((rest, again));
    }

    pub fn checkpoint(&mut self) {
        self.engine().checkpoint().unwrap();
    }

    pub fn sync(&mut self) {
        self.engine().sync().unwrap();
    }
}

/// The consumer of a mode.
pub fn name(mode: ConsumerMode) -> &'static str {
    match mode {
        ConsumerMode::AtMostOnce => "once",
        ConsumerMode::AtLeastOnce => "again",
    }
}
