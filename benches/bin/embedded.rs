//! Embedded appends and reads from Rust, beside the device and (feature `peers`) walrus-rust.

use std::path::Path;
use std::time::{Duration, Instant};

use topics_benches::{
    Cost, Goal, Placement, Row, Samples, Table, backend, beside_plain, closed_loop, device_sync,
    plain_batches, retried, rss_anon, scaled, scaled_seconds, scratch, sync_all,
};
use topics_engine::{
    Append, ConfigPatch, Durability, Engine, NewRecord, Options, ReadFrom, ReadRequest, TxnRequest,
    TxnRows,
};
use topics_env::real::real_env;

const PAYLOAD: [u8; 100] = [b'x'; 100];

fn json_payload() -> Vec<u8> {
    let mut v = vec![b'"'];
    v.extend_from_slice(&PAYLOAD[..98]);
    v.push(b'"');
    v
}

fn open(dir: &Path) -> Engine {
    Engine::open(real_env(backend()).unwrap(), dir, Options::default()).unwrap()
}

fn topic(db: &Engine, name: &str, durability: Durability) {
    let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
    db.create_topic(name, &patch).unwrap();
}

fn one(db: &Engine, name: &str, data: &[u8]) {
    let rec = [NewRecord { data, ..NewRecord::default() }];
    retried(|| db.append(name, &Append { records: &rec, ..Append::default() }));
}

/// Appends `n` records in batches of 1000; records per second.
fn batches(db: &Engine, name: &str, n: u64) -> f64 {
    let data = json_payload();
    let recs = vec![NewRecord { data: &data, ..NewRecord::default() }; 1000];
    let start = Instant::now();
    for _ in 0..n / 1000 {
        retried(|| db.append(name, &Append { records: &recs, ..Append::default() }));
    }
    n as f64 / start.elapsed().as_secs_f64()
}

fn singles(table: &mut Table, db: &Engine, dir: &Path) {
    let data = json_payload();
    for (class, name, goal, n) in
        [(Durability::Memory, "memory", 1.5, 200_000), (Durability::Disk, "disk", 8.0, 100_000)]
    {
        topic(db, name, class);
        let n = scaled(n, 1);
        let cost = Cost::start();
        let mut s = Samples::default();
        for _ in 0..n {
            s.time(|| one(db, name, &data));
        }
        let work = format!("one record, class {name}: p50");
        let row = Row::latency(work, Placement::Embedded, &mut s).goal(Goal::Max(goal));
        table.add(row.note(cost.per_record(n)));
    }
    topic(db, "fsync", Durability::Fsync);
    let add = |row: Row, device: f64| row.goal(Goal::Max(device + 40.0));
    synced(table, dir, "one record, synced: p50", 170, add, || one(db, "fsync", &data));
}

/// Measures a synced call and the device in turns: `len` is the length of what the device writes.
fn synced(
    table: &mut Table,
    dir: &Path,
    work: &str,
    len: usize,
    add: impl Fn(Row, f64) -> Row,
    mut call: impl FnMut(),
) {
    let (mut samples, mut device) = (Samples::default(), Samples::default());
    let mut runs = Vec::new();
    let n = scaled(400, 1);
    for _ in 0..5 {
        sync_all();
        device.0.extend(device_sync(dir, len, n as usize).0);
        let mut s = Samples::default();
        (0..n).for_each(|_| s.time(&mut call));
        runs.push(s.us(0.5));
        samples.0.extend(s.0);
    }
    let row = Row::latency(work, Placement::Embedded, &mut samples)
        .runs(runs)
        .device_latency(&mut device);
    table.add(add(row, device.us(0.5)));
}

fn threads(table: &mut Table, db: &Engine, walrus: Option<f64>) {
    let data = json_payload();
    let time = Duration::from_secs_f64(scaled_seconds(2.0));
    let mut runs = Vec::new();
    for _ in 0..3 {
        sync_all();
        runs.push(closed_loop(16, time, |_, _| one(db, "fsync", &data)));
    }
    let row = Row::repeated("16 threads × 1 record, synced", runs, "/s").goal(Goal::Min(30e3));
    table.add(match walrus {
        Some(w) => row.peer("walrus-rust", w).note(format!("walrus-rust {:.1} k/s", w / 1e3)),
        None => row.note("peer not built (feature peers)"),
    });
    let plain = closed_loop(16, time, |_, _| one(db, "disk", &data));
    table.row("16 threads × 1 record, class disk", plain, "/s", Goal::None, "");
}

/// Transactions of ten records each to two topics, beside one sync of the device.
fn transactions(table: &mut Table, db: &Engine, dir: &Path) {
    let data = json_payload();
    let records = vec![NewRecord { data: &data, ..NewRecord::default() }; 10];
    let topics = ["txn-a", "txn-b"];
    topics.iter().for_each(|t| topic(db, t, Durability::Disk));
    let rows = topics.map(|topic| TxnRows { topic, records: &records, ..TxnRows::default() });
    let request = TxnRequest { rows: &rows, ..TxnRequest::default() };
    let work = "transaction, 2 topics × 10 records: p50";
    synced(table, dir, work, 4096, |row, _| row, || drop(retried(|| db.transact(&request))));
}

/// Each run appends a million records to an idle engine; one to three checkpoints run at the same
/// time. The first row is an engine that never syncs a write: an engine that does preallocates its
/// log files with zeros, which the third row shows. The sustained row is one run of ten million.
/// A topic is dropped after its row, so that the disk holds one at a time.
fn bulk(table: &mut Table, db: &Engine, dir: &Path) {
    let run = scaled(1_000_000, 1000);
    let unsynced = open(&dir.join("unsynced"));
    let rows = [
        (&unsynced, "disk", Durability::Disk, Goal::Min(6e6)),
        (db, "synced", Durability::Fsync, Goal::Min(2e6)),
        (db, "disk, beside synced ones", Durability::Disk, Goal::None),
    ];
    for (db, work, class, goal) in rows {
        topic(db, "bulk", class);
        let synced = class == Durability::Fsync;
        let (mut runs, mut plain) = (Vec::new(), Vec::new());
        let mut cost = Vec::new();
        for _ in 0..5 {
            db.checkpoint().unwrap();
            sync_all();
            plain.push(plain_batches(dir, synced));
            sync_all();
            let c = Cost::start();
            runs.push(batches(db, "bulk", run));
            cost.push(c.per_record(run));
        }
        let work = format!("batches of 1000 × 100 B, {work}");
        let row = beside_plain(Row::repeated(work, runs, "rec/s"), plain, synced);
        table.add(row.goal(goal).note(&cost[2]));
        drop_topic(db, "bulk");
    }
    unsynced.close().unwrap();
    std::fs::remove_dir_all(dir.join("unsynced")).unwrap();
    sync_all();
    let sustained = batches(db, "disk", 10 * run);
    let work = "batches of 1000 × 100 B, disk, ten million in a row";
    table.row(work, sustained, "rec/s", Goal::None, "");
}

/// Anonymous memory of an engine while it writes as fast as it can, in batches of 5000, and how it
/// grows with what has been written: in a process of its own, because memory that others freed is used
/// again.
fn memory_child(dir: &Path) {
    const TENTHS: u64 = 10;
    let db = open(dir);
    topic(&db, "log", Durability::Disk);
    let data = json_payload();
    let recs = vec![NewRecord { data: &data, ..NewRecord::default() }; 5000];
    let tenth = scaled(3_000_000, 5000);
    let (mut at, start) = (Vec::new(), Instant::now());
    for _ in 0..TENTHS {
        let mut most = 0;
        for _ in 0..tenth / 5000 {
            retried(|| db.append("log", &Append { records: &recs, ..Append::default() }));
            most = most.max(rss_anon("self"));
        }
        at.push(most as f64 / 1e6);
    }
    let rate = (TENTHS * tenth) as f64 / start.elapsed().as_secs_f64();
    let at: Vec<_> = at.iter().map(f64::to_string).collect();
    println!("\n{rate} {}", at.join(" "));
}

fn memory(table: &mut Table, dir: &Path) {
    let dir = dir.join("memory");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let out = child.arg("memory").arg(&dir).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let words = text.lines().last().unwrap_or("").split(' ').map(|w| w.parse::<f64>());
    let figures: Vec<f64> = words.collect::<Result<_, _>>().expect("the figures of the child");
    let (rate, at) = figures.split_first().expect("the figures of the child");
    let most = at.iter().copied().fold(0.0, f64::max);
    let shown: Vec<_> = at.iter().map(|mb| format!("{mb:.0}")).collect();
    let row = Row::new("RssAnon while writing 30 M records, batches of 5000", most, "MB");
    let notes = format!("most in each tenth: {}; {:.2} M rec/s", shown.join(" "), rate / 1e6);
    table.add(row.goal(Goal::Max(200.0)).note(notes));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Deletes a topic, and its files: the older of two snapshots has to forget them too.
fn drop_topic(db: &Engine, name: &str) {
    db.delete_topic(name, false).unwrap();
    (0..2).for_each(|_| db.checkpoint().unwrap());
}

fn reads(table: &mut Table, db: &Engine) {
    db.checkpoint().unwrap();
    for (work, limit) in
        [("read 1000 at a time, sealed, warm", 1000), ("read 1 MiB at a time", 1 << 20)]
    {
        let all = scaled(3_000_000, 1000);
        let runs = (0..3).map(|_| {
            let (mut after, mut n) = (0, 0u64);
            let start = Instant::now();
            while n < all {
                let req = ReadRequest { from: ReadFrom::After(after), limit, ..Default::default() };
                let batch = db.read("disk", &req).unwrap();
                if batch.caught_up {
                    after = 0;
                } else {
                    after = batch.next_from_seq;
                }
                n += batch.len() as u64;
                std::hint::black_box(batch.iter().map(|r| r.data.len()).sum::<usize>());
            }
            n as f64 / start.elapsed().as_secs_f64()
        });
        table.add(Row::repeated(work, runs.collect(), "rec/s"));
    }
}

/// The peer runs in a child process, because an environment variable sets its directory.
fn walrus_synced(dir: &Path) -> Option<f64> {
    let exe = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new(exe);
    let out = child.arg("walrus").env("WALRUS_DATA_DIR", dir.join("walrus")).output().unwrap();
    String::from_utf8_lossy(&out.stdout).lines().last()?.trim().parse().ok()
}

#[cfg(feature = "peers")]
fn walrus_child() {
    use walrus_rust::{FsyncSchedule, ReadConsistency, Walrus};
    let mode = ReadConsistency::StrictlyAtOnce;
    let wal = Walrus::with_consistency_and_schedule(mode, FsyncSchedule::SyncEach).unwrap();
    let runs = (0..3).map(|_| {
        sync_all();
        closed_loop(16, Duration::from_secs_f64(scaled_seconds(2.0)), |t, _| {
            wal.append_for_topic(&format!("t{t}"), &PAYLOAD).unwrap();
        })
    });
    println!("\n{}", topics_benches::median(runs.collect()));
}

#[cfg(not(feature = "peers"))]
fn walrus_child() {}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("walrus") {
        return walrus_child();
    }
    if let (Some("memory"), Some(dir)) =
        (std::env::args().nth(1).as_deref(), std::env::args().nth(2))
    {
        return memory_child(Path::new(&dir));
    }
    let only = std::env::args().nth(1);
    let dir = scratch("embedded");
    let walrus = if only.is_none() { walrus_synced(&dir) } else { None };
    let db = open(&dir.join("data"));
    let mut table = Table::new("embedded", "Embedded, from Rust (100-byte payloads)");
    if only.as_deref() == Some("bulk") {
        topic(&db, "disk", Durability::Disk);
    } else {
        singles(&mut table, &db, &dir);
        threads(&mut table, &db, walrus);
        transactions(&mut table, &db, &dir);
    }
    if only.as_deref() != Some("latency") {
        memory(&mut table, &dir);
        bulk(&mut table, &db, &dir);
        reads(&mut table, &db);
    }
    table.finish();
    db.close().unwrap();
    drop(db);
    let _ = std::fs::remove_dir_all(dir);
}
