//! Queues and consumers: claims, their cost as the queue grows, and batch reads by a durable
//! consumer in comparison with walrus-rust's (feature `peers`).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use topics_benches::{Goal, Samples, Table, backend, median, scratch, sync_all};
use topics_engine::{
    Append, Claim, ConfigPatch, ConsumerMode, ConsumerRead, ConsumerStart, Engine, LeasedJobs,
    NewRecord, Options, TopicType,
};
use topics_env::real::real_env;

const PAYLOAD: [u8; 100] = [b'x'; 100];
/// Bytes that a batch read requests.
const READ: usize = 1 << 20;
/// The number of records in the log.
const LOG: usize = 2_000_000;

fn queue(db: &Engine, name: &str) {
    let kind = Some(TopicType::Queue);
    db.create_topic(name, &ConfigPatch { kind, ..ConfigPatch::default() }).unwrap();
}

fn fill(db: &Engine, name: &str, mut n: usize) {
    let recs = vec![NewRecord { data: &PAYLOAD, binary: true, ..NewRecord::default() }; 1000];
    while n > 0 {
        let some = n.min(recs.len());
        db.append(name, &Append { records: &recs[..some], ..Append::default() }).unwrap();
        n -= some;
    }
}

/// Claims up to `max` jobs and acks them; returns their number.
fn round(db: &Engine, name: &str, node: &[u8], max: usize) -> u64 {
    let claimed = db.claim(name, &Claim { node, max, ..Claim::default() }).unwrap();
    let (seqs, ids): (Vec<_>, Vec<_>) = claimed.iter().map(|(l, _)| (l.seq, l.lease_id)).unzip();
    if seqs.is_empty() {
        return 0;
    }
    let held = LeasedJobs { node, seqs: &seqs, lease_ids: Some(&ids) };
    let settled = db.ack(name, &held).unwrap();
    assert_eq!(settled.done.len(), seqs.len());
    settled.done.len() as u64
}

/// Jobs per second that `workers` claim and ack, from a queue with enough jobs.
fn work(db: &Engine, name: &str, workers: usize, max: usize) -> f64 {
    const JOBS: usize = 300_000;
    fill(db, name, JOBS);
    sync_all();
    let (done, start) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|s| {
        for w in 0..workers {
            let done = &done;
            s.spawn(move || {
                let node = format!("worker-{w}");
                while start.elapsed() < Duration::from_secs(2) {
                    match round(db, name, node.as_bytes(), max) {
                        0 => break,
                        n => done.fetch_add(n, Ordering::Relaxed),
                    };
                }
            });
        }
    });
    let rate = done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    while round(db, name, b"rest", 1000) > 0 {}
    rate
}

fn workers(table: &mut Table, db: &Engine) {
    queue(db, "jobs");
    for (workers, max, goal) in
        [(1, 1, Goal::None), (1, 8, Goal::None), (50, 1, Goal::None), (50, 8, Goal::Min(100e3))]
    {
        let figure = median((0..3).map(|_| work(db, "jobs", workers, max)).collect());
        let who = if workers == 1 { "worker" } else { "workers" };
        let name = format!("{workers} {who}, claim {max} + ack");
        let notes = if workers == 50 && max == 8 { "the goal is the one over HTTP" } else { "" };
        table.row(&name, figure, "jobs/s", goal, notes);
    }
}

/// The time of one claim, which must not depend on the number of jobs.
fn claim_cost(table: &mut Table, db: &Engine) {
    let mut all = Vec::new();
    for exponent in 2..=6 {
        let (name, jobs) = (format!("ready-{exponent}"), 10usize.pow(exponent));
        queue(db, &name);
        fill(db, &name, jobs);
        sync_all();
        let mut samples = Samples::default();
        for _ in 0..jobs.min(2000) {
            let claim = Claim { node: b"w", max: 1, ..Claim::default() };
            assert_eq!(samples.time(|| db.claim(&name, &claim).unwrap()).len(), 1);
        }
        let notes = format!("p99 {:.1}", samples.us(0.99));
        let name = format!("claim of 1, {jobs} jobs ready: p50");
        let p50 = samples.us(0.5);
        table.row(&name, p50, "µs", Goal::None, &notes);
        all.push(p50);
    }
    let growth = all.last().copied().unwrap_or(f64::NAN) / all[0];
    let notes = "flat: what is ready is not looked at";
    table.row("claim: 10⁶ jobs ready over 10²", growth, "times", Goal::Max(2.0), notes);
}

/// Records per second that a durable consumer reads, a MiB at a time.
fn consumed(db: &Engine, name: &str, mode: ConsumerMode) -> f64 {
    let consumer = db.consumer("log", name, Some(mode), ConsumerStart::Start, true).unwrap();
    let read = ConsumerRead { max_bytes: READ, ..ConsumerRead::default() };
    let (start, mut n) = (Instant::now(), 0);
    loop {
        let batch = consumer.read(&read).unwrap();
        if batch.is_empty() {
            break;
        }
        n += batch.len();
        std::hint::black_box(batch.iter().map(|r| r.data.len()).sum::<usize>());
    }
    assert_eq!(n, LOG);
    n as f64 / start.elapsed().as_secs_f64()
}

fn consumers(table: &mut Table, db: &Engine, peer: Option<Peer>) {
    let beside = |ours: f64, theirs: fn(Peer) -> f64| match peer {
        None => String::from("peer not built (feature peers)"),
        Some(p) => format!("walrus-rust {:.2} M/s, ratio {:.2}", theirs(p) / 1e6, ours / theirs(p)),
    };
    let start = Instant::now();
    fill(db, "log", LOG);
    let appended = LOG as f64 / start.elapsed().as_secs_f64();
    let notes = beside(appended, |p| p.append);
    table.row(
        "batches of 1000 × 100 B appended, not synced",
        appended,
        "rec/s",
        Goal::None,
        &notes,
    );
    db.checkpoint().unwrap();
    let once = (0..3).map(|n| consumed(db, &format!("a{n}"), ConsumerMode::AtLeastOnce));
    let figure = median(once.collect());
    let notes = beside(figure, |p| p.read);
    table.row("consumer, 1 MiB a read, at_least_once", figure, "rec/s", Goal::None, &notes);
    sync_all();
    let figure = consumed(db, "b", ConsumerMode::AtMostOnce);
    let notes = "each read's cursor is synced before it is handed out";
    table.row("the same, at_most_once", figure, "rec/s", Goal::None, notes);
}

/// Figures of walrus-rust in records per second.
#[derive(Clone, Copy)]
struct Peer {
    append: f64,
    read: f64,
}

/// The peer runs in a child process, because an environment variable sets its directory.
fn walrus(dir: &Path) -> Option<Peer> {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let out = child.arg("walrus").env("WALRUS_DATA_DIR", dir.join("walrus")).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let (append, read) = text.lines().last()?.trim().split_once(' ')?;
    Some(Peer { append: append.parse().ok()?, read: read.parse().ok()? })
}

#[cfg(feature = "peers")]
fn walrus_child() {
    use walrus_rust::{FsyncSchedule, ReadConsistency, Walrus};
    let mode = ReadConsistency::AtLeastOnce { persist_every: 100 };
    let wal = Walrus::with_consistency_and_schedule(mode, FsyncSchedule::NoFsync).unwrap();
    let batch = vec![&PAYLOAD[..]; 1000];
    let start = Instant::now();
    for _ in 0..LOG / batch.len() {
        wal.batch_append_for_topic("log", &batch).unwrap();
    }
    let append = LOG as f64 / start.elapsed().as_secs_f64();
    let (start, mut n) = (Instant::now(), 0);
    while n < LOG {
        let some = wal.batch_read_for_topic("log", READ, true).unwrap();
        assert!(!some.is_empty());
        n += some.len();
        std::hint::black_box(some.iter().map(|e| e.data.len()).sum::<usize>());
    }
    println!("\n{append} {}", LOG as f64 / start.elapsed().as_secs_f64());
}

#[cfg(not(feature = "peers"))]
fn walrus_child() {}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("walrus") {
        return walrus_child();
    }
    let dir = scratch("jobs");
    sync_all();
    let peer = walrus(&dir);
    let db = Engine::open(real_env(backend()).unwrap(), &dir.join("data"), Options::default());
    let db = db.unwrap();
    let mut table = Table::new("queues and consumers, embedded (100-byte payloads)");
    workers(&mut table, &db);
    claim_cost(&mut table, &db);
    sync_all();
    consumers(&mut table, &db, peer);
    table.finish();
    db.close().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
