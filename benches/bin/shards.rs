//! Writes with one, two and four logs (`wal_shards`): threads within the process, and connections of
//! a server.
//!
//! `bench-shards [PROGRAM]`: `PROGRAM` is the command `topics`; without it only the embedded rows.
//! Each run has a new directory, and the three settings take turns. The figure of a row is that of
//! one log, the default; the others are its peers.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use topics_benches::net::http::{Conn, request, write_request};
use topics_benches::net::{PAYLOAD, Running, free_addr, port};
use topics_benches::{
    Row, Table, backend, closed_loop, median, retried, scaled_seconds, scratch, short, sync_all,
};
use topics_engine::{
    Append, ConfigPatch, Durability, Engine, NewRecord, Options, TxnRequest, TxnRows,
};
use topics_env::real::real_env;

const SHARDS: [u32; 3] = [1, 2, 4];
const RUNS: usize = 3;
/// Seconds of a run, after those in which the first log files are made.
const SECONDS: f64 = 1.5;
const WARM_UP: f64 = 0.5;

/// Concurrent writers of batches to the topics of one class.
#[derive(Clone, Copy)]
struct Load {
    writers: usize,
    records: usize,
    topics: usize,
    class: &'static str,
}

/// Single records and batches, synced or not, to one topic and to eight.
fn loads(single: usize, batch: usize) -> Vec<Load> {
    let mut all = Vec::new();
    for class in ["fsync", "disk"] {
        for (writers, records, topics) in [(single, 1, 1), (single, 1, 8), (batch, 1000, 8)] {
            all.push(Load { writers, records, topics, class });
        }
    }
    all
}

impl Load {
    fn work(&self, writers: &str) -> String {
        let Self { writers: n, records, topics, class } = self;
        format!("{n} {writers} × {records}, {class}, topics: {topics}")
    }

    /// Records per second after the warm-up.
    fn rate(&self, call: impl Fn(usize) + Sync) -> f64 {
        let [_, calls] = [WARM_UP, SECONDS].map(|seconds| {
            let time = Duration::from_secs_f64(scaled_seconds(seconds));
            closed_loop(self.writers, time, |writer, _| call(writer))
        });
        calls * self.records as f64
    }

    fn topic(&self, writer: usize) -> String {
        format!("t{}", writer % self.topics)
    }
}

/// A new engine with the topics of a load, and their names.
fn opened(load: Load, shards: u32, dir: &Path) -> (Engine, Vec<String>) {
    let options = Options { wal_shards: shards, ..Options::default() };
    let db = Engine::open(real_env(backend()).unwrap(), dir, options).unwrap();
    let durability = if load.class == "fsync" { Durability::Fsync } else { Durability::Disk };
    let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
    let names: Vec<_> = (0..load.topics).map(|t| load.topic(t)).collect();
    names.iter().for_each(|name| drop(db.create_topic(name, &patch).unwrap()));
    sync_all();
    (db, names)
}

/// Records per second in a new engine.
fn embedded(load: Load, shards: u32, dir: &Path) -> f64 {
    let (db, names) = opened(load, shards, dir);
    let records = vec![NewRecord { data: &PAYLOAD, ..NewRecord::default() }; load.records];
    let append = Append { records: &records, ..Append::default() };
    let rate = load.rate(|writer| {
        retried(|| db.append(&names[writer % load.topics], &append));
    });
    db.close().unwrap();
    rate
}

/// Transactions per second in a new engine: ten records to each of two topics of eight.
fn transactions(writers: usize, shards: u32, dir: &Path) -> f64 {
    let load = Load { writers, records: 1, topics: 8, class: "disk" };
    let (db, names) = opened(load, shards, dir);
    let records = vec![NewRecord { data: &PAYLOAD, ..NewRecord::default() }; 10];
    let rate = load.rate(|writer| {
        let rows = [writer, writer + 1].map(|t| TxnRows {
            topic: &names[t % names.len()],
            records: &records,
            ..TxnRows::default()
        });
        let request = TxnRequest { rows: &rows, ..TxnRequest::default() };
        drop(retried(|| db.transact(&request)));
    });
    db.close().unwrap();
    rate
}

/// Records per second of a new server.
fn over_http(load: Load, shards: u32, dir: &Path, program: &str) -> f64 {
    let addr = free_addr();
    let mut command = Command::new(program);
    command.args(["serve", "--port", port(&addr), "--data-dir"]).arg(dir.join("data"));
    command.env("TOPICS_WAL_SHARDS", shards.to_string());
    let _server = Running::start(command, &dir.join("log"), &addr).expect("the server starts");
    let mut setup = Conn::ready(&addr);
    let body = format!("{{\"durability\":\"{}\"}}", load.class);
    for t in 0..load.topics {
        setup.call(&request("PUT", &format!("/v0/topics/{}", load.topic(t)), &body));
    }
    let requests: Vec<_> =
        (0..load.topics).map(|t| write_request(&load.topic(t), load.records)).collect();
    let conns: Vec<_> =
        (0..load.writers).map(|_| std::sync::Mutex::new(Conn::new(&addr))).collect();
    sync_all();
    load.rate(|writer| {
        // Each connection has one thread.
        conns[writer].lock().unwrap().call(&requests[writer % load.topics]);
    })
}

/// A row: the runs of one log as its figure, those of more as peers.
fn row(table: &mut Table, work: String, unit: &'static str, run: impl Fn(u32, &Path) -> f64) {
    let mut runs = SHARDS.map(|_| Vec::new());
    for _ in 0..RUNS {
        for (shards, runs) in SHARDS.iter().zip(&mut runs) {
            let dir = scratch("shards");
            runs.push(run(*shards, &dir));
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
    let [one, more @ ..] = runs;
    let first = median(one.clone());
    let mut row = Row::repeated(work, one, unit);
    for (shards, runs) in SHARDS[1..].iter().zip(more) {
        let figure = median(runs);
        let note = format!("{shards} logs: {} ({:.2} ×)", short(figure), figure / first);
        row = row.peer(&format!("{shards} logs"), figure).note(note);
    }
    table.add(row);
}

fn main() {
    let program = std::env::args().nth(1);
    let mut table = Table::new("shards", "Number of logs, wal_shards: 1, 2, 4 (100-byte payloads)");
    for load in loads(16, 4) {
        row(&mut table, load.work("threads"), "rec/s", |n, dir| embedded(load, n, dir));
    }
    for writers in [1, 16] {
        let work = format!("{writers} threads, transactions of 2 topics × 10");
        row(&mut table, work, "/s", |n, dir| transactions(writers, n, dir));
    }
    for load in loads(64, 8) {
        if let Some(program) = &program {
            row(&mut table, load.work("connections"), "rec/s", |n, dir| {
                over_http(load, n, dir, program)
            });
        }
    }
    table.finish();
}
