//! Transactions larger than the staging bound beside every verb that waits for a topic: all of them
//! end. A program that hangs is told by a watchdog.
//!
//! `TOPICS_GATE=release` runs the sizes of production: a staging bound of 1 MiB, 2 MB each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use topics_engine::{
    Append, Claim, ConfigPatch, ConsumerMode, ConsumerRead, ConsumerStart, DeleteRequest,
    Durability, Engine, Error, LeasedJobs, NewRecord, Options, Result, SeekTo, TopicType,
    TxnCursor, TxnRequest, TxnRows, TxnWork,
};
use topics_sim::{SimClock, SimFs, env_on};

/// What a thread does again and again beside the transactions.
type Verb = Box<dyn Fn(&Program) + Send>;

/// A program that takes this long hangs; far above what a slow machine takes.
const WATCHDOG: Duration = Duration::from_secs(600);

/// What the engine's clock goes on at a time.
const STEP: Duration = Duration::from_millis(5);

/// (staging bytes, bytes of a transaction, transactions).
fn sizes() -> (usize, usize, usize) {
    match std::env::var("TOPICS_GATE").is_ok_and(|g| g == "release") {
        true => (1 << 20, 2_000_000, 30),
        false => (32 << 10, 64_000, 12),
    }
}

struct Program {
    engine: Engine,
    clock: Arc<SimClock>,
    done: AtomicBool,
    rounds: AtomicUsize,
}

impl Program {
    fn open(shards: u32) -> Arc<Self> {
        let fs = Arc::new(SimFs::new());
        let clock = Arc::new(SimClock::new(1_700_000_000_000));
        let options = Options {
            staging_bytes: sizes().0,
            staging_wait: WATCHDOG,
            wal_shards: shards,
            ..Options::default()
        };
        let engine = Engine::open(env_on(&fs, &clock, 1), Path::new("/data"), options).unwrap();
        let (done, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        Arc::new(Self { engine, clock, done, rounds })
    }

    fn put(&self, topic: &str, n: usize) {
        let one = NewRecord { data: b"1", ..NewRecord::default() };
        let records = vec![one; n];
        let req = Append { records: &records, ..Append::default() };
        self.engine.append(topic, &req).unwrap();
    }

    /// Transactions of more bytes than may be staged, one after the other, into these topics; more
    /// of them until a verb has run beside them.
    fn transact(&self, topics: &[&str]) {
        let (_, bytes, n) = sizes();
        let data = vec![b'7'; bytes / 4];
        let record = NewRecord { data: &data, ..NewRecord::default() };
        let records = [record; 4];
        for i in 0.. {
            if i >= n && self.rounds.load(Ordering::SeqCst) > 0 {
                break;
            }
            let rows: Vec<_> = topics
                .iter()
                .map(|topic| TxnRows { topic, records: &records, ..TxnRows::default() })
                .collect();
            let req = TxnRequest { rows: &rows, ..TxnRequest::default() };
            may_lose(self.engine.transact(&req)).unwrap();
        }
    }

    /// Calls a verb until the transactions are done.
    fn repeat(&self, verb: impl Fn(&Engine) -> Result<()>) {
        while !self.done.load(Ordering::SeqCst) {
            verb(&self.engine).unwrap();
            self.rounds.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A topic that a neighbour deletes is no failure of the others.
fn may_lose<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(done) => Ok(Some(done)),
        Err(Error::TopicNotFound(_) | Error::ConsumerNotFound { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Runs transactions into `topics`, and each of the verbs in a thread beside them.
fn run(
    what: &str,
    shards: u32,
    topics: &'static [&'static str],
    furnish: impl FnOnce(&Program),
    verbs: Vec<Verb>,
) {
    let program = Program::open(shards);
    furnish(&program);
    let (ended, all): (_, Receiver<String>) = channel();
    let threads = 1 + verbs.len();
    for (i, verb) in verbs.into_iter().enumerate() {
        let (program, ended) = (program.clone(), ended.clone());
        thread::spawn(move || {
            verb(&program);
            ended.send(format!("verb {i}")).unwrap();
        });
    }
    let writer = program.clone();
    thread::spawn(move || {
        writer.transact(topics);
        writer.done.store(true, Ordering::SeqCst);
        ended.send("transactions".into()).unwrap();
    });
    let (began, mut seen) = (Instant::now(), Vec::new());
    while seen.len() < threads {
        match all.recv_timeout(STEP) {
            Ok(name) => seen.push(name),
            // Claims that wait go by this clock.
            Err(RecvTimeoutError::Timeout) if began.elapsed() < WATCHDOG => {
                program.clock.advance_ms(STEP.as_millis() as u64);
            }
            Err(RecvTimeoutError::Timeout) => panic!("{what} hangs: only {seen:?} ended"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{what}: a thread failed, {seen:?} ended")
            }
        }
    }
    program.engine.close().unwrap();
    let rounds = program.rounds.load(Ordering::SeqCst);
    assert!(rounds > 0, "{what}: no verb ran beside the transactions");
}

/// A verb that is called until the transactions are done.
fn verb(f: impl Fn(&Engine) -> Result<()> + Send + 'static) -> Verb {
    Box::new(move |p| p.repeat(&f))
}

fn log(p: &Program) {
    let config = ConfigPatch { durability: Some(Durability::Disk), ..ConfigPatch::default() };
    p.engine.create_topic("t", &config).unwrap();
    p.put("t", 10);
}

fn queue(p: &Program) {
    let config = ConfigPatch {
        kind: Some(TopicType::Queue),
        leases_durable: Some(true),
        durability: Some(Durability::Disk),
        ..ConfigPatch::default()
    };
    p.engine.create_topic("t", &config).unwrap();
    p.put("t", 20);
}

/// A read of one record.
fn one() -> ConsumerRead {
    ConsumerRead { max_records: 1, max_bytes: 1, ..ConsumerRead::default() }
}

#[test]
fn consumers_beside_large_transactions() {
    for shards in [1, 2] {
        let with = |mode, auto, call: fn(&topics_engine::Consumer, u64) -> Result<()>| {
            Box::new(move |p: &Program| {
                let name = format!("{mode:?}{auto}{:p}", call as *const ());
                let c = p.engine.consumer("t", &name, Some(mode), ConsumerStart::Start, auto);
                let c = c.unwrap();
                let n = AtomicUsize::new(0);
                p.repeat(|_| call(&c, n.fetch_add(1, Ordering::SeqCst) as u64));
            }) as Verb
        };
        let (once, again) = (ConsumerMode::AtMostOnce, ConsumerMode::AtLeastOnce);
        let verbs = [
            with(again, false, |c, n| c.commit(n % 10)),
            with(again, false, |c, n| c.seek(SeekTo::Seq(n % 10)).map(drop)),
            with(once, false, |c, n| {
                c.seek(SeekTo::Seq(n % 10))?;
                c.read(&one()).map(drop)
            }),
            with(again, true, |c, n| {
                c.seek(SeekTo::Seq(n % 10))?;
                // An automatic commit is logged every 100 reads.
                (0..101).try_for_each(|_| c.read(&one()).map(drop))
            }),
            verb(|e| {
                e.consumer("t", "made", None, ConsumerStart::End, false)?;
                e.delete_consumer("t", "made").map(drop)
            }),
        ];
        for (i, one) in verbs.into_iter().enumerate() {
            let what = format!("consumer verb {i} on {shards} shards");
            run(&what, shards, &["t"], log, vec![one]);
        }
    }
}

#[test]
fn deletes_beside_large_transactions() {
    for shards in [1, 2] {
        let records = verb(|e| {
            let head = may_lose(e.state("t", false))?.map_or(0, |s| s.head_seq);
            let req = DeleteRequest { before_seq: Some(head), ..DeleteRequest::default() };
            may_lose(e.delete("t", &req)).map(drop)
        });
        run(&format!("delete of records on {shards} shards"), shards, &["t"], log, vec![records]);
        let topic = verb(|e| e.delete_topic("t", false).map(drop));
        run(
            &format!("delete of a topic on {shards} shards"),
            shards,
            &["t", "u"],
            log,
            vec![topic],
        );
    }
}

#[test]
fn leases_beside_large_transactions() {
    fn some(e: &Engine, node: &[u8], wait: u64) -> Result<Vec<u64>> {
        let wait = Duration::from_millis(wait);
        let got = e.claim("t", &Claim { node, wait, ..Claim::default() })?;
        Ok(got.iter().map(|(lease, _)| lease.seq).collect())
    }
    for shards in [1, 2] {
        let verbs: [(&str, Verb); 5] = [
            ("claim", verb(|e| some(e, b"a", 0).map(drop))),
            ("waiting claim", verb(|e| some(e, b"b", 1).map(drop))),
            (
                "ack",
                verb(|e| {
                    let seqs = some(e, b"c", 0)?;
                    e.ack("t", &LeasedJobs { node: b"c", seqs: &seqs, lease_ids: None }).map(drop)
                }),
            ),
            (
                "nack",
                verb(|e| {
                    let seqs = some(e, b"d", 0)?;
                    e.nack("t", &LeasedJobs { node: b"d", seqs: &seqs, lease_ids: None }, Some(0))
                        .map(drop)
                }),
            ),
            (
                "extend",
                verb(|e| {
                    let seqs = some(e, b"e", 0)?;
                    let held = LeasedJobs { node: b"e", seqs: &seqs, lease_ids: None };
                    e.extend("t", &held, Some(60_000))?;
                    e.nack("t", &held, Some(0)).map(drop)
                }),
            ),
        ];
        for (name, one) in verbs {
            run(&format!("{name} on {shards} shards"), shards, &["t"], queue, vec![one]);
        }
    }
}

#[test]
fn the_sweep_beside_large_transactions() {
    for shards in [1, 2] {
        let furnish = |p: &Program| {
            let config = ConfigPatch { ttl_ms: Some(1_000), ..ConfigPatch::default() };
            p.engine.create_topic("t", &config).unwrap();
            p.put("t", 10);
        };
        let sweep = Box::new(|p: &Program| {
            p.repeat(|e| {
                p.clock.advance_ms(6_000);
                e.tick()
            });
        });
        run(&format!("the sweep on {shards} shards"), shards, &["t"], furnish, vec![sweep]);
    }
}

/// Several at once, and the transactions take the cursor along.
#[test]
fn everything_beside_large_transactions() {
    for shards in [1, 2] {
        let furnish = |p: &Program| {
            log(p);
            p.engine.consumer("t", "c", None, ConsumerStart::Start, false).unwrap();
        };
        let verbs = vec![
            verb(|e| {
                let work = [TxnCursor { topic: "t", consumer: "c", seq: 1, fence: None }];
                let work = TxnWork { commits: &work, ..TxnWork::default() };
                e.transact(&TxnRequest { work, ..TxnRequest::default() }).map(drop)
            }),
            verb(|e| {
                let c = e.consumer("t", "d", None, ConsumerStart::Start, false)?;
                c.commit(3)
            }),
            verb(|e| {
                let record = NewRecord { data: b"2", ..NewRecord::default() };
                e.append("t", &Append { records: &[record], ..Append::default() }).map(drop)
            }),
            verb(|e| {
                let req = DeleteRequest { before_seq: Some(2), ..DeleteRequest::default() };
                e.delete("t", &req).map(drop)
            }),
        ];
        run(&format!("everything on {shards} shards"), shards, &["t", "u"], furnish, verbs);
    }
}
