//! Random histories with everything that changes state, restored at their rounds and between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_env::Clock;
use topics_sim::{Bucket, SimClock};

use super::tests::{KEYS, publish, restored_and_opened_at, state};
use crate::router::RouterRequest;
use crate::ship::tests::shipping_with;
use crate::topic::tests::{World, eq, glob, rec, small};
use crate::txn::{
    CommitRequest, Committed, StageRequest, TxnAck, TxnCursor, TxnRequest, TxnRows, TxnStage,
    TxnWork,
};
use crate::types::api::{Append, NewRecord};
use crate::types::config::{ConfigPatch, TopicType};
use crate::types::consumer::{ConsumerMode, ConsumerRead, ConsumerStart, SeekTo};
use crate::types::error::Result;
use crate::types::options::{Options, RemoteLimits};
use crate::types::queue::{Claim, JobState, LeasedJobs};

const LOGS: [&str; 7] = ["a", "b", "c", "capped", "sized", "aged", "source"];
/// Logs that are deleted and created again.
const DROPPED: [&str; 3] = ["a", "b", "c"];
/// A queue whose leases are durable, and one whose leases end with the process.
const QUEUES: [&str; 2] = ["jobs", "tasks"];
/// Longer than a history takes.
const LONG_MS: u64 = 80_000_000;
/// The window of the idempotency key of a transaction, less what a step takes.
const KEY_WINDOW_MS: u64 = 100_000;

/// The number of steps of each kind.
type Counts = BTreeMap<&'static str, u64>;

/// A transaction with an idempotency key, and its answer.
#[derive(Clone)]
struct Keyed {
    number: u64,
    at_ms: u64,
    answer: Committed,
}

/// A moment after a round, and the state at that moment.
struct Mark {
    at_ms: u64,
    mono_ns: u64,
    state: BTreeMap<String, String>,
    keyed: Option<Keyed>,
}

struct History {
    w: World,
    bucket: Arc<Bucket>,
    seed: u64,
    /// The number of the last write: its data is unique.
    writes: u64,
    epoch: u64,
    /// Rows that are staged, and neither committed nor aborted.
    staged: Option<String>,
    keyed: Option<Keyed>,
    marks: Vec<Mark>,
    steps: Counts,
}

impl History {
    fn new(seed: u64, shards: u32) -> Self {
        let options = Options { wal_shards: shards, ..small() };
        let limits = RemoteLimits { pack_bytes: 3000, ..RemoteLimits::default() };
        let (w, bucket) = shipping_with(options, limits);
        let (log, queue) = (ConfigPatch::default(), Some(TopicType::Queue));
        w.create("capped", ConfigPatch { cap_records: Some(9), ..log.clone() });
        w.create("sized", ConfigPatch { cap_bytes: Some(100), ..log.clone() });
        w.create("aged", ConfigPatch { ttl_ms: Some(4000), ..log.clone() });
        w.create("source", log.clone());
        let (leases_durable, max_deliveries) = (Some(true), Some(2));
        let dead_letter = Some(Some("letters".to_owned()));
        let jobs = ConfigPatch { kind: queue, leases_durable, max_deliveries, dead_letter, ..log };
        w.create("jobs", jobs.clone());
        w.create("tasks", ConfigPatch { leases_durable: Some(false), ..jobs });
        w.engine().create_router("copies", &router("source", "copies")).unwrap();
        publish(&w);
        Self {
            w,
            bucket,
            seed,
            writes: 0,
            epoch: 0,
            staged: None,
            keyed: None,
            marks: Vec::new(),
            steps: Counts::new(),
        }
    }

    fn rng(&mut self, n: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % n
    }

    fn one_of<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[self.rng(names.len() as u64) as usize]
    }

    fn next_write(&mut self) -> u64 {
        self.writes += 1;
        self.writes
    }

    fn exists(&self, topic: &str) -> bool {
        self.w.engine().state(topic, false).is_ok()
    }

    fn step(&mut self) {
        let kind = match self.rng(60) {
            0..=9 => self.append(),
            10..=12 => self.append_keyed(),
            13..=16 => self.append_job(),
            17..=20 => self.claim(),
            21..=24 => self.end_lease(),
            25 | 26 => self.manage_job(),
            27..=29 => self.delete(),
            30 => self.drop_topic(),
            31 => self.change_config(),
            32 => self.change_router(),
            33 | 34 => self.run_routers(),
            35..=37 => self.consume(),
            38..=40 => self.transact(),
            41 | 42 => self.stage_or_end_stage(),
            43 | 44 => self.sweep(),
            45..=47 => self.checkpoint(),
            48 => self.publish(),
            49 => self.restart(),
            _ => self.ship(),
        };
        *self.steps.entry(kind).or_default() += 1;
        let ms = 1 + self.rng(50);
        self.w.clock.advance_ms(ms);
    }

    fn append(&mut self) -> &'static str {
        let (n, topic) = (self.next_write(), self.one_of(&LOGS));
        let data = [format!("{n}.1"), format!("{n}.2")];
        let ttl_ms = if topic != "source" && n.is_multiple_of(4) { 3000 } else { 0 };
        let meta = br#"{"k":"v"}"#;
        let records = [
            NewRecord { tag: b"red", ttl_ms, ..rec(&data[0]) },
            NewRecord { tag: b"blue.x", node: b"n", meta, ..rec(&data[1]) },
        ];
        let append = Append { records: &records, ..Append::default() };
        self.w.engine().append(topic, &append).unwrap();
        "append"
    }

    fn append_keyed(&mut self) -> &'static str {
        let (topic, key) = (self.one_of(&DROPPED), self.one_of(&KEYS));
        let records = [rec(key)];
        let append = Append { records: &records, key: key.as_bytes(), ..Append::default() };
        match self.w.engine().append(topic, &append).unwrap().deduped {
            true => "append that is deduplicated",
            false => "append with a key",
        }
    }

    fn append_job(&mut self) -> &'static str {
        let (n, queue) = (self.next_write(), self.one_of(&QUEUES));
        let (data, group) = (format!("{n}"), format!("g{}", n % 3));
        let delay_ms = [0, 0, 2000, LONG_MS][self.rng(4) as usize];
        let lane = Some(n as u8 % 10);
        let records = [
            NewRecord { lane, delay_ms, ..rec(&data) },
            NewRecord { group: group.as_bytes(), ..rec(&data) },
        ];
        let append = Append { records: &records, ..Append::default() };
        self.w.engine().append(queue, &append).unwrap();
        if delay_ms > 0 { "append of a delayed job" } else { "append of jobs" }
    }

    fn claim(&mut self) -> &'static str {
        let queue = self.one_of(&QUEUES);
        let lease_ms = Some(if queue == "jobs" { LONG_MS } else { 3000 });
        let claim = Claim { node: b"n", max: 2, lease_ms, ..Claim::default() };
        match self.w.engine().claim(queue, &claim).unwrap().is_empty() {
            true => "nothing",
            false => "claim",
        }
    }

    /// The jobs in a state, two at most.
    fn jobs(&self, queue: &str, state: JobState) -> Vec<u64> {
        let peeked = self.w.engine().peek(queue, Some(state), 2).unwrap();
        peeked.iter().map(|(job, _)| job.seq).collect()
    }

    fn end_lease(&mut self) -> &'static str {
        let queue = self.one_of(&QUEUES);
        let seqs = self.jobs(queue, JobState::Leased);
        let held = LeasedJobs { node: b"n", seqs: &seqs, lease_ids: None };
        let how = self.rng(6);
        let engine = self.w.engine();
        match how {
            _ if seqs.is_empty() => return "nothing",
            0 | 1 => engine.ack(queue, &held).unwrap(),
            2 | 3 => engine.nack_with_error(queue, &held, Some(0), "failed").unwrap(),
            4 => engine.nack(queue, &held, Some(LONG_MS)).unwrap(),
            _ => engine.release(queue, &held).unwrap(),
        };
        ["ack", "ack", "nack", "nack", "nack with a delay", "release"][how as usize]
    }

    fn manage_job(&mut self) -> &'static str {
        let queue = self.one_of(&QUEUES);
        let delayed = self.jobs(queue, JobState::Delayed);
        if !delayed.is_empty() && self.rng(2) == 0 {
            self.w.engine().promote_jobs(queue, &delayed).unwrap();
            return "promotion of jobs";
        }
        let ready = self.jobs(queue, JobState::Ready);
        self.w.engine().remove_jobs(queue, &ready, true).unwrap();
        "removal of jobs"
    }

    fn delete(&mut self) -> &'static str {
        let topic = self.one_of(&LOGS);
        let (how, n) = (self.rng(4), self.rng(6));
        if !self.exists(topic) {
            return "nothing";
        }
        let seq = self.w.state(topic).earliest_seq + n;
        match how {
            0 => self.w.delete(topic, Some(seq), None),
            1 => self.w.delete(topic, None, eq("red")),
            2 => self.w.delete(topic, Some(seq), glob("blue")),
            _ => self.w.engine().delete_seqs(topic, &[seq, seq + 2]).unwrap().deleted,
        };
        ["delete below a seq", "delete by tag", "delete by prefix", "delete of seqs"][how as usize]
    }

    fn drop_topic(&mut self) -> &'static str {
        let topic = self.one_of(&DROPPED);
        self.w.engine().delete_topic(topic, false).unwrap();
        "drop of a topic"
    }

    fn change_config(&mut self) -> &'static str {
        let n = self.rng(2);
        let (topic, patch) = match self.rng(3) {
            0 => ("aged", ConfigPatch { ttl_ms: Some(3000 + n * 2000), ..ConfigPatch::default() }),
            1 => ("tasks", ConfigPatch { paused: Some(n == 0), ..ConfigPatch::default() }),
            _ => ("c", ConfigPatch { cap_records: Some(n * 15), ..ConfigPatch::default() }),
        };
        self.w.create(topic, patch);
        "change of a config"
    }

    /// Creates or deletes a second router of a source, or one that ends with its source.
    fn change_router(&mut self) -> &'static str {
        let name = self.one_of(&["reds", "mirror"]);
        if self.w.engine().delete_router(name).unwrap() {
            return "delete of a router";
        }
        let request = match name {
            "reds" => RouterRequest { filter: eq("red"), ..router("source", name) },
            _ => RouterRequest { preserve_tag: false, ..router("a", name) },
        };
        self.w.engine().create_router(name, &request).unwrap();
        "creation of a router"
    }

    fn run_routers(&mut self) -> &'static str {
        self.w.engine().tick().unwrap();
        "run of routers"
    }

    fn consume(&mut self) -> &'static str {
        let (name, mode) = match self.rng(2) {
            0 => ("reader", ConsumerMode::AtLeastOnce),
            _ => ("once", ConsumerMode::AtMostOnce),
        };
        let how = self.rng(8);
        let engine = self.w.engine();
        if how == 0 {
            engine.delete_consumer("source", name).unwrap();
            return "delete of a consumer";
        }
        let start = ConsumerStart::Start;
        let consumer = engine.consumer("source", name, Some(mode), start, false).unwrap();
        if how == 1 {
            consumer.seek(SeekTo::Start).unwrap();
            return "seek of a consumer";
        }
        let read = ConsumerRead { max_records: 3, ..ConsumerRead::default() };
        let batch = consumer.read(&read).unwrap();
        if mode == ConsumerMode::AtLeastOnce
            && let Some(last) = batch.iter().last()
        {
            consumer.commit(last.seq).unwrap();
        }
        "read of a consumer"
    }

    fn transact(&mut self) -> &'static str {
        let (number, how) = (self.next_write(), self.rng(4));
        if how == 0 {
            let answer = keyed(&self.w, number).unwrap();
            self.keyed = Some(Keyed { number, at_ms: self.w.clock_wall(), answer });
            return "transaction with a key";
        }
        let data = format!("{number}");
        let records = [rec(&data), NewRecord { tag: b"red", ..rec(&data) }];
        let rows =
            ["a", "b"].map(|topic| TxnRows { topic, records: &records, ..TxnRows::default() });
        let head = self.w.state("source").head_seq;
        let (topic, consumer, fence) = ("source", "reader", None);
        let moved = [TxnCursor { topic, consumer, seq: head, fence }];
        let is_there = self.w.engine().consumer_info(topic, consumer).is_ok();
        let seqs = self.jobs("jobs", JobState::Leased);
        let jobs = LeasedJobs { node: b"n", seqs: &seqs, lease_ids: None };
        let acks = [TxnAck { queue: "jobs", jobs }];
        let wrong = [("source", head + 1)];
        let work = TxnWork {
            expect_heads: if how == 1 { &wrong } else { &[] },
            commits: if is_there { &moved } else { &[] },
            acks: if seqs.is_empty() { &[] } else { &acks },
        };
        let writer = (how == 2).then_some("sender");
        let request = TxnRequest { writer, rows: &rows, work, ..TxnRequest::default() };
        let done = self.w.engine().transact(&request);
        assert_eq!(done.is_err(), how == 1, "{done:?}");
        ["", "refused transaction", "transaction of a writer", "transaction"][how as usize]
    }

    fn stage_or_end_stage(&mut self) -> &'static str {
        let Some(stage) = self.staged.take() else {
            let n = self.next_write();
            let (stage, data) = (format!("s{n}"), format!("{n}"));
            let records = [rec(&data)];
            let rows = ["c", "source"].map(|topic| TxnRows {
                topic,
                records: &records,
                ..TxnRows::default()
            });
            let part = StageRequest { stage: &stage, part: 0, rows: &rows };
            self.w.engine().stage("writer", &part).unwrap();
            self.staged = Some(stage);
            return "stage of rows";
        };
        if self.rng(3) == 0 {
            assert!(self.w.engine().abort_stage("writer", &stage).unwrap());
            return "abort of a stage";
        }
        self.epoch += 1;
        let stages = [TxnStage { stage: &stage, parts: 1, records: None }];
        let commit =
            CommitRequest { epoch: self.epoch, stages: &stages, ..CommitRequest::default() };
        self.w.engine().commit("writer", &commit).unwrap();
        "commit of a stage"
    }

    /// Retention, dead letters, transactions and files that are due.
    fn sweep(&mut self) -> &'static str {
        self.w.clock.advance_ms(6000);
        self.w.engine().tick().unwrap();
        "sweep"
    }

    fn checkpoint(&mut self) -> &'static str {
        self.w.checkpoint();
        "checkpoint"
    }

    fn ship(&mut self) -> &'static str {
        self.w.engine().ship().unwrap();
        self.mark();
        "round"
    }

    fn publish(&mut self) -> &'static str {
        publish(&self.w);
        self.mark();
        "base"
    }

    fn restart(&mut self) -> &'static str {
        let how = self.rng(3) as usize;
        [World::reopen, World::kill, World::power_cut][how](&mut self.w);
        // The rounds of an epoch end with it, and a base begins with its first round.
        self.w.put("a", &["restarted"]);
        self.publish();
        ["close and open", "kill", "power cut"][how]
    }

    fn mark(&mut self) {
        let status = self.w.engine().ship_status().unwrap();
        assert!(status.has_base && status.lag_bytes == 0, "{status:?}");
        let (at_ms, mono_ns) = (self.w.clock_wall(), self.w.clock.mono_ns());
        let keyed = self.keyed.clone().filter(|k| at_ms < k.at_ms + KEY_WINDOW_MS);
        self.marks.push(Mark { at_ms, mono_ns, state: state(&self.w), keyed });
    }

    /// Restores the state at a time, which is that of a mark.
    fn check(&self, mark: &Mark, at_ms: u64) {
        let clock = Arc::new(SimClock::new(mark.at_ms));
        clock.advance_ns(mark.mono_ns - clock.mono_ns());
        let (r, done) = restored_and_opened_at(&self.w, &self.bucket, Some(at_ms), &clock).unwrap();
        assert!(done.state_ms <= mark.at_ms && done.missing_segments == 0, "{done:?}");
        assert_eq!(state(&r), mark.state, "{done:?}");
        if let Some(k) = &mark.keyed {
            let again = keyed(&r, k.number).unwrap();
            assert_eq!(again, Committed { deduped: true, ..k.answer.clone() });
        }
        check_routers(&r);
    }
}

fn router(source: &str, dest: &str) -> RouterRequest {
    RouterRequest { source: source.into(), dest: dest.into(), ..RouterRequest::default() }
}

/// A transaction whose key is its number.
fn keyed(w: &World, number: u64) -> Result<Committed> {
    let data = format!("{number}");
    let records = [rec(&data)];
    let rows = ["b", "c"].map(|topic| TxnRows { topic, records: &records, ..TxnRows::default() });
    let key = data.as_bytes();
    w.engine().transact(&TxnRequest { key, rows: &rows, ..TxnRequest::default() })
}

/// Routers go on where they were: each record of the source that is live is copied once.
fn check_routers(w: &World) {
    let lags = || w.engine().routers("").iter().any(|r| r.lag > 0);
    (0..100).take_while(|_| lags()).for_each(|_| {
        w.engine().tick().unwrap();
        w.engine().sync().unwrap();
    });
    assert!(!lags(), "{:?}", w.engine().routers(""));
    let data = |topic: &str| {
        let (mut out, mut at) = (Vec::new(), 0);
        loop {
            let b = w.read(topic, at);
            out.extend(b.iter().map(|r| r.data.to_vec()));
            at = b.next_from_seq;
            if b.caught_up {
                return out;
            }
        }
    };
    let copies = data("copies");
    let distinct: BTreeSet<&Vec<u8>> = copies.iter().collect();
    assert_eq!(distinct.len(), copies.len(), "a record was copied twice");
    let source = data("source");
    let missing: Vec<_> = source.iter().filter(|d| !distinct.contains(d)).collect();
    assert!(missing.is_empty(), "records were not copied: {missing:?}");
}

/// Restores to random rounds of random histories, each at its moment and at one before the next round.
#[test]
fn every_round_of_a_history_can_be_restored_exactly() {
    let (histories, rounds) = match std::env::var("TOPICS_GATE").as_deref() {
        Ok("release") => (20, 50),
        Ok("full" | "explore") => (8, 20),
        _ => (4, 8),
    };
    let (mut targets, mut dead_letters, mut steps) = (0, 0, Counts::new());
    let mut evicted = BTreeSet::new();
    for seed in 1..=histories {
        let mut h = History::new(seed, 1 + seed as u32 % 3);
        (0..600).for_each(|_| h.step());
        assert!(h.marks.len() > 80, "{}", h.marks.len());
        for _ in 0..rounds {
            let at = h.rng(h.marks.len() as u64 - 1) as usize;
            let (mark, next) = (&h.marks[at], &h.marks[at + 1]);
            for at_ms in [mark.at_ms, mark.at_ms.midpoint(next.at_ms)] {
                h.check(mark, at_ms);
                targets += 1;
            }
        }
        assert_eq!(h.bucket.violations(), []);
        let has_evicted = |topic: &&str| h.w.state(topic).evict_floor > 1;
        evicted.extend(["capped", "sized", "aged"].into_iter().filter(has_evicted));
        dead_letters += u64::from(h.exists("letters"));
        h.steps.into_iter().for_each(|(kind, n)| *steps.entry(kind).or_default() += n);
    }
    assert!(dead_letters > 0, "no history has dead letters");
    assert_eq!(evicted.len(), 3, "by count, by bytes and by age: {evicted:?}");
    eprintln!("{targets} targets in {histories} histories; steps: {steps:?}");
    assert!(steps.len() == 39, "a kind of step is missing: {steps:?}");
}
