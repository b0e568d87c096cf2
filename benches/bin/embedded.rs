//! Embedded appends and reads from Rust, beside the device and (feature `peers`) walrus-rust.

use std::time::{Duration, Instant};

use topics_benches::{
    Cost, Goal, Samples, Table, backend, beside_plain, closed_loop, device_sync, median,
    plain_batches, scratch, sync_all,
};
use topics_engine::{
    Append, ConfigPatch, Durability, Engine, NewRecord, Options, ReadFrom, ReadRequest,
};
use topics_env::real::real_env;

const PAYLOAD: [u8; 100] = [b'x'; 100];

fn json_payload() -> Vec<u8> {
    let mut v = vec![b'"'];
    v.extend_from_slice(&PAYLOAD[..98]);
    v.push(b'"');
    v
}

fn open(dir: &std::path::Path) -> Engine {
    Engine::open(real_env(backend()).unwrap(), dir, Options::default()).unwrap()
}

fn topic(db: &Engine, name: &str, durability: Durability) {
    let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
    db.create_topic(name, &patch).unwrap();
}

fn one(db: &Engine, name: &str, data: &[u8]) {
    let rec = [NewRecord { data, ..NewRecord::default() }];
    db.append(name, &Append { records: &rec, ..Append::default() }).unwrap();
}

/// Appends `n` records in batches of 1000; records per second.
fn batches(db: &Engine, name: &str, n: u64) -> f64 {
    let data = json_payload();
    let recs = vec![NewRecord { data: &data, ..NewRecord::default() }; 1000];
    let start = Instant::now();
    for _ in 0..n / 1000 {
        db.append(name, &Append { records: &recs, ..Append::default() }).unwrap();
    }
    n as f64 / start.elapsed().as_secs_f64()
}

fn singles(table: &mut Table, db: &Engine, dir: &std::path::Path) {
    let data = json_payload();
    for (class, name, goal, n) in
        [(Durability::Memory, "memory", 1.5, 200_000), (Durability::Disk, "disk", 8.0, 100_000)]
    {
        topic(db, name, class);
        let cost = Cost::start();
        let mut s = Samples::default();
        for _ in 0..n {
            s.time(|| one(db, name, &data));
        }
        let work = format!("one record, class {name}: p50");
        let notes = format!("p99 {:.1}; {}", s.us(0.99), cost.per_record(n));
        table.row(&work, s.us(0.5), "µs", Goal::Max(goal), &notes);
    }
    topic(db, "fsync", Durability::Fsync);
    let mut figures = Vec::new();
    let mut devices = Vec::new();
    let mut tail = 0.0f64;
    for _ in 0..5 {
        sync_all();
        devices.push(device_sync(dir, 170, 400).us(0.5));
        let mut s = Samples::default();
        for _ in 0..400 {
            s.time(|| one(db, "fsync", &data));
        }
        figures.push(s.us(0.5));
        tail = tail.max(s.us(0.99));
    }
    let device = median(devices);
    let notes = format!("device p50 {device:.0} µs in the same run; p99 {tail:.0}");
    table.row("one record, synced: p50", median(figures), "µs", Goal::Max(device + 40.0), &notes);
}

fn threads(table: &mut Table, db: &Engine, walrus: Option<f64>) {
    let data = json_payload();
    let mut runs = Vec::new();
    for _ in 0..3 {
        sync_all();
        runs.push(closed_loop(16, Duration::from_secs(2), |_, _| one(db, "fsync", &data)));
    }
    let figure = median(runs);
    let notes = walrus.map_or(String::from("peer not built (feature peers)"), |w| {
        format!("walrus-rust {:.1} k/s, ratio {:.2} (goal 1.5)", w / 1e3, figure / w)
    });
    table.row("16 threads × 1 record, synced", figure, "/s", Goal::Min(30_000.0), &notes);
    let plain = closed_loop(16, Duration::from_secs(2), |_, _| one(db, "disk", &data));
    table.row("16 threads × 1 record, class disk", plain, "/s", Goal::None, "");
}

/// Each run appends a million records to an idle engine; one to three checkpoints run at the same
/// time. The first row is an engine that never syncs a write: an engine that does preallocates its
/// log files with zeros, which the third row shows. The sustained row is one run of ten million.
fn bulk(table: &mut Table, db: &Engine, dir: &std::path::Path) {
    const RUN: u64 = 1_000_000;
    let unsynced = open(&dir.join("unsynced"));
    topic(&unsynced, "disk", Durability::Disk);
    let rows = [
        (&unsynced, "disk", "disk", Goal::Min(6e6)),
        (db, "synced", "fsync", Goal::Min(2e6)),
        (db, "disk, beside synced ones", "disk", Goal::None),
    ];
    for (db, work, name, goal) in rows {
        let (mut runs, mut peers) = (Vec::new(), Vec::new());
        let mut cost = Vec::new();
        for _ in 0..5 {
            db.checkpoint().unwrap();
            sync_all();
            peers.push(plain_batches(dir, name == "fsync"));
            sync_all();
            let c = Cost::start();
            runs.push(batches(db, name, RUN));
            cost.push(c.per_record(RUN));
        }
        let (figure, peer) = (median(runs), median(peers));
        let notes = format!("{}; {}", beside_plain(figure, peer, name == "fsync"), cost[2]);
        let work = format!("batches of 1000 × 100 B, {work}");
        table.row(&work, figure, "rec/s", goal, &notes);
    }
    unsynced.close().unwrap();
    sync_all();
    let sustained = batches(db, "disk", 10 * RUN);
    table.row("the same, disk, ten million in a row", sustained, "rec/s", Goal::None, "");
}

fn reads(table: &mut Table, db: &Engine) {
    db.checkpoint().unwrap();
    for (work, limit) in
        [("read 1000 at a time, sealed, warm", 1000), ("read 1 MiB at a time", 1 << 20)]
    {
        let runs = (0..3).map(|_| {
            let (mut after, mut n) = (0, 0u64);
            let start = Instant::now();
            while n < 3_000_000 {
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
        table.row(work, median(runs.collect()), "rec/s", Goal::None, "");
    }
}

/// The peer runs in a child process, because an environment variable sets its directory.
fn walrus_synced(dir: &std::path::Path) -> Option<f64> {
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
        closed_loop(16, Duration::from_secs(2), |t, _| {
            wal.append_for_topic(&format!("t{t}"), &PAYLOAD).unwrap();
        })
    });
    println!("\n{}", median(runs.collect()));
}

#[cfg(not(feature = "peers"))]
fn walrus_child() {}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("walrus") {
        return walrus_child();
    }
    let only = std::env::args().nth(1);
    let dir = scratch("embedded");
    let walrus = if only.is_none() { walrus_synced(&dir) } else { None };
    let db = open(&dir.join("data"));
    let mut table = Table::new("Embedded, from Rust (100-byte payloads)");
    if only.as_deref() == Some("bulk") {
        topic(&db, "disk", Durability::Disk);
        topic(&db, "fsync", Durability::Fsync);
    } else {
        singles(&mut table, &db, &dir);
        threads(&mut table, &db, walrus);
    }
    bulk(&mut table, &db, &dir);
    reads(&mut table, &db);
    table.finish();
    db.close().unwrap();
    drop(db);
    let _ = std::fs::remove_dir_all(dir);
}
