//! Queues and consumers: claims, their cost as the queue grows, and batch reads by a durable
//! consumer in comparison with walrus-rust's (feature `peers`).

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use topics_benches::{
    Goal, Placement, Row, Samples, Table, backend, retried, scaled, scaled_seconds, scratch,
    sync_all,
};
use topics_engine::{
    Append, Claim, ConfigPatch, ConsumerMode, ConsumerRead, ConsumerStart, Engine, LeasedJobs,
    NewRecord, Options, TopicType,
};
use topics_env::real::real_env;

const PAYLOAD: [u8; 100] = [b'x'; 100];
/// Bytes that a batch read requests.
const READ: usize = 1 << 20;
/// The number of records in the log.
fn log_len() -> usize {
    scaled(2_000_000, 1000) as usize
}

fn queue(db: &Engine, name: &str) {
    let kind = Some(TopicType::Queue);
    db.create_topic(name, &ConfigPatch { kind, ..ConfigPatch::default() }).unwrap();
}

fn fill(db: &Engine, name: &str, mut n: usize) {
    let recs = vec![NewRecord { data: &PAYLOAD, binary: true, ..NewRecord::default() }; 1000];
    while n > 0 {
        let some = n.min(recs.len());
        retried(|| db.append(name, &Append { records: &recs[..some], ..Append::default() }));
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
    fill(db, name, scaled(300_000, 1000) as usize);
    sync_all();
    let time = Duration::from_secs_f64(scaled_seconds(2.0));
    let (done, start) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|s| {
        for w in 0..workers {
            let done = &done;
            s.spawn(move || {
                let node = format!("worker-{w}");
                while start.elapsed() < time {
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
        let runs = (0..3).map(|_| work(db, "jobs", workers, max)).collect();
        let who = if workers == 1 { "worker" } else { "workers" };
        let name = format!("{workers} {who}, claim {max} + ack");
        let row = Row::repeated(name, runs, "jobs/s").goal(goal);
        let over_http = workers == 50 && max == 8;
        table.add(if over_http { row.note("the goal is the one over HTTP") } else { row });
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
        table.add(Row::latency(
            format!("claim of 1, {jobs} jobs ready: p50"),
            Placement::Embedded,
            &mut samples,
        ));
        all.push(samples.us(0.5));
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
    assert_eq!(n, log_len());
    n as f64 / start.elapsed().as_secs_f64()
}

fn consumers(table: &mut Table, db: &Engine, peer: Option<Peer>) {
    let beside = |row: Row, theirs: fn(Peer) -> f64| match peer {
        None => row.note("peer not built (feature peers)"),
        Some(p) => {
            let note = format!("walrus-rust {:.2} M/s", theirs(p) / 1e6);
            row.peer("walrus-rust", theirs(p)).note(note)
        }
    };
    let start = Instant::now();
    fill(db, "log", log_len());
    let appended = log_len() as f64 / start.elapsed().as_secs_f64();
    let row = Row::new("batches of 1000 × 100 B appended, not synced", appended, "rec/s");
    table.add(beside(row, |p| p.append));
    db.checkpoint().unwrap();
    let once = (0..3).map(|n| consumed(db, &format!("a{n}"), ConsumerMode::AtLeastOnce));
    let row = Row::repeated("consumer, 1 MiB a read, at_least_once", once.collect(), "rec/s");
    table.add(beside(row, |p| p.read));
    sync_all();
    let figure = consumed(db, "b", ConsumerMode::AtMostOnce);
    let notes = "each read's cursor is synced before it is handed out";
    let work = "consumer, 1 MiB a read, at_most_once";
    table.row(work, figure, "rec/s", Goal::None, notes);
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
    for _ in 0..log_len() / batch.len() {
        wal.batch_append_for_topic("log", &batch).unwrap();
    }
    let append = log_len() as f64 / start.elapsed().as_secs_f64();
    let (start, mut n) = (Instant::now(), 0);
    while n < log_len() {
        let some = wal.batch_read_for_topic("log", READ, true).unwrap();
        assert!(!some.is_empty());
        n += some.len();
        std::hint::black_box(some.iter().map(|e| e.data.len()).sum::<usize>());
    }
    println!("\n{append} {}", log_len() as f64 / start.elapsed().as_secs_f64());
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
    let mut table = Table::new("jobs", "queues and consumers, embedded (100-byte payloads)");
    workers(&mut table, &db);
    claim_cost(&mut table, &db);
    sync_all();
    consumers(&mut table, &db, peer);
    table.finish();
    db.close().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
