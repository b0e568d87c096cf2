//! HTTP figures: a closed loop of raw sockets, one request in flight per connection.
//!
//! `bench-http HOST:PORT DIR [ROW]`: the server must be up, `TOPICS_BENCH_SERVER` its process; `DIR` is
//! on the disk under test. `ROW` measures the rows of writes, watchers and workers alone whose name
//! contains it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use topics_benches::net::http::{Conn, find, request, write_request};
use topics_benches::net::{costed, rate, rate_and_cost, rate_once};
use topics_benches::{
    Goal, Process, Samples, Table, beside_plain, device_sync, median, plain_batches, settle,
};

fn throughput(addr: &str, conns: usize, request: &[u8]) -> f64 {
    rate(conns, 2.0, || Conn::new(addr), |c| c.call(request))
}

fn latency(addr: &str, request: &[u8], n: usize) -> f64 {
    let mut c = Conn::new(addr);
    let runs = (0..3).map(|_| {
        let mut s = Samples::default();
        for _ in 0..n {
            s.time(|| c.call(request));
        }
        s.us(0.5)
    });
    median(runs.collect())
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (addr, dir, only) = match &args[..] {
        [_, addr, dir] => (addr.as_str(), Path::new(dir), None),
        [_, addr, dir, only] => (addr.as_str(), Path::new(dir), Some(only.as_str())),
        _ => {
            eprintln!("usage: bench-http HOST:PORT DIR [ROW]");
            std::process::exit(2);
        }
    };
    let mut setup = Conn::ready(addr);
    for class in ["memory", "disk", "fsync"] {
        let body = format!("{{\"durability\":\"{class}\"}}");
        setup.call(&request("PUT", &format!("/v0/topics/bench-{class}"), &body));
    }
    let mut table = Table::new("HTTP (closed loop, 100-byte payloads, client on the same cores)");
    let wanted = |work: &str| only.is_none_or(|row| work.contains(row));
    if only.is_none() {
        one_connection(&mut table, addr, dir);
    }
    writes(&mut table, addr, dir, &wanted);
    if only.is_none() {
        rest(addr);
        reads(&mut table, addr);
    }
    watchers(&mut table, addr, &wanted);
    if wanted("50 workers, claim 8 + ack") {
        settle();
        let figure = work(addr, 50);
        table.row("50 workers, claim 8 + ack", figure, "jobs/s", Goal::Min(100e3), "");
    }
    table.finish();
}

fn writes(table: &mut Table, addr: &str, dir: &Path, wanted: &impl Fn(&str) -> bool) {
    let rows = [
        ("disk", 16, 1, Goal::Min(60e3)),
        ("disk", 64, 1, Goal::Min(60e3)),
        ("memory", 64, 1, Goal::None),
        ("fsync", 16, 1, Goal::Min(20e3)),
        ("fsync", 64, 1, Goal::Min(35e3)),
        ("disk", 16, 100, Goal::Min(2.0e6)),
        ("fsync", 16, 100, Goal::Min(1.0e6)),
        ("disk", 8, 1000, Goal::Min(3.5e6)),
    ];
    let server = Process::of(&std::env::var("TOPICS_BENCH_SERVER").expect("the server's id"));
    for (class, conns, n, goal) in rows {
        let (what, unit) = if n == 1 { ("record", "/s") } else { ("records", "rec/s") };
        let work = format!("{conns} connections × {n} {what}, {class}");
        if !wanted(&work) {
            continue;
        }
        let request = write_request(&format!("bench-{class}"), n);
        let (open, call) = (|| Conn::new(addr), |c: &mut Conn| c.call(&request));
        if n == 1 {
            settle();
            let (figure, cost) = rate_and_cost(server, conns, n, open, call);
            table.row(&work, figure, unit, goal, &cost);
            continue;
        }
        let synced = class == "fsync";
        let plain = plain_batches(dir, synced);
        // Each run begins when everything before it has been copied, and pays for its own copies.
        let rested = |call: &(dyn Fn(&mut Conn) + Sync)| {
            median(
                (0..3).map(|_| rate_once(conns, 2.0, open, call)).inspect(|_| rest(addr)).collect(),
            )
        };
        rest(addr);
        let (figure, cost) = costed(server, n, call, rested);
        let notes = beside_plain(figure, plain, synced) + "; " + &cost;
        table.row(&work, figure, unit, goal, &notes);
        let (figure, cost) =
            costed(server, n, call, |call| rate_once(conns, SUSTAINED, open, call));
        let work = format!("the same, {SUSTAINED:.0} s in a row");
        table.row(&work, figure, unit, Goal::None, &cost);
    }
}

/// Seconds of a row that shows what checkpoints and new pages leave.
const SUSTAINED: f64 = 20.0;

/// Returns when all that was written is in segments, trimmed from the log, and on the disk.
fn rest(addr: &str) {
    // The log goes by the older of two snapshots.
    for _ in 0..2 {
        Conn::new(addr).call(&request("POST", "/v0/admin/checkpoint", "{}"));
    }
    settle();
}

fn one_connection(table: &mut Table, addr: &str, dir: &Path) {
    let plain = latency(addr, &write_request("bench-disk", 1), 3000);
    table.row("1 connection, 1 record: p50", plain, "µs", Goal::Max(115.0), "");
    settle();
    let device = device_sync(dir, 170, 500).us(0.5);
    let synced = latency(addr, &write_request("bench-fsync", 1), 500);
    let (goal, notes) = (Goal::Max(device + 150.0), format!("device p50 {device:.0} µs beside it"));
    table.row("1 connection, 1 record, synced: p50", synced, "µs", goal, &notes);
}

fn reads(table: &mut Table, addr: &str) {
    let diff = request("POST", "/v0/topics/bench-disk/diff", "{\"from_seq\":0,\"limit\":1000}");
    for (conns, goal) in [(1, 2.5e6), (4, 5e6)] {
        let figure = throughput(addr, conns, &diff) * 1000.0;
        let work = format!("diff limit 1000 as JSON, {conns} connections");
        table.row(&work, figure, "rec/s", Goal::Min(goal), "sealed, page cache warm");
    }
}

/// One subscription over SSE.
struct Watcher {
    stream: TcpStream,
    /// What came and was not looked through, with room behind it.
    buf: Vec<u8>,
    have: usize,
}

impl Watcher {
    fn new(addr: &str, topic: &str) -> Self {
        let mut stream = Conn::new(addr).into_stream();
        let head = format!(
            "GET /v0/watch?topic={topic}&tail=0 HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut watcher = Self { stream, buf: vec![0; 1 << 14], have: 0 };
        while !watcher.saw(b"event: caught-up") {}
        watcher
    }

    /// Reads once; whether `what` has come, and then everything so far is dropped.
    fn saw(&mut self, what: &[u8]) -> bool {
        if self.have == self.buf.len() {
            self.buf.resize(self.have * 2, 0);
        }
        let n = self.stream.read(&mut self.buf[self.have..]).unwrap();
        assert!(n > 0, "the server ended the stream");
        self.have += n;
        let found = find(&self.buf[..self.have], what).is_some();
        if found {
            self.have = 0;
        }
        found
    }
}

fn watchers(table: &mut Table, addr: &str, wanted: &impl Fn(&str) -> bool) {
    for (count, p50, p99) in [(1, 400.0, None), (100, 1800.0, None), (1000, 7500.0, Some(18e3))] {
        let work = format!("write → SSE frame, {count} watchers: p50");
        if !wanted(&work) {
            continue;
        }
        let mut samples = delivered(addr, count, (20_000 / count).clamp(40, 2000));
        table.row(&work, samples.us(0.5), "µs", Goal::Max(p50), "");
        let goal = p99.map_or(Goal::None, Goal::Max);
        table.row(&work.replace("p50", "p99"), samples.us(0.99), "µs", goal, "");
    }
}

/// From before a write until each of `count` watchers has read its frame.
fn delivered(addr: &str, count: usize, writes: usize) -> Samples {
    let topic = format!("bench-watched-{count}");
    let mut writer = Conn::new(addr);
    writer.call(&request("PUT", &format!("/v0/topics/{topic}"), "{\"durability\":\"disk\"}"));
    let write = write_request(&topic, 1);
    let mut watchers: Vec<Watcher> = (0..count).map(|_| Watcher::new(addr, &topic)).collect();
    let (go, gone) = std::sync::mpsc::channel::<Instant>();
    let (done, next) = std::sync::mpsc::channel::<()>();
    let reader = std::thread::spawn(move || {
        let mut samples = Samples::default();
        let mut waiting: Vec<usize> = Vec::new();
        while let Ok(start) = gone.recv() {
            waiting.extend(0..count);
            while !waiting.is_empty() {
                let mut fds: Vec<PollFd<'_>> = waiting
                    .iter()
                    .map(|&i| PollFd::new(&watchers[i].stream, PollFlags::IN))
                    .collect();
                poll(&mut fds, None).unwrap();
                let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
                let mut ready = ready.into_iter();
                waiting.retain(|&i| {
                    let came = ready.next() == Some(true) && watchers[i].saw(b"event: record");
                    if came {
                        samples.0.push(start.elapsed().as_nanos() as u64);
                    }
                    !came
                });
            }
            done.send(()).unwrap();
        }
        samples
    });
    for _ in 0..writes {
        go.send(Instant::now()).unwrap();
        writer.call(&write);
        next.recv().unwrap();
    }
    drop(go);
    reader.join().unwrap()
}

/// Jobs of a claim.
const CLAIM: usize = 8;

/// Jobs per second that `workers` claim, eight at a time, and ack.
fn work(addr: &str, workers: usize) -> f64 {
    // More than three runs can do.
    const JOBS: usize = 2_000_000;
    let mut setup = Conn::new(addr);
    setup.call(&request("PUT", "/v0/topics/bench-jobs", "{\"type\":\"queue\"}"));
    let fill = write_request("bench-jobs", 1000);
    (0..JOBS / 1000).for_each(|_| setup.call(&fill));
    let names = AtomicUsize::new(0);
    let open = || {
        let worker = names.fetch_add(1, Ordering::Relaxed);
        Worker::new(addr, &format!("worker-{worker}"))
    };
    rate(workers, 2.0, open, Worker::round) * CLAIM as f64
}

struct Worker {
    conn: Conn,
    node: String,
    claim: Vec<u8>,
}

impl Worker {
    fn new(addr: &str, node: &str) -> Self {
        let claim = format!("{{\"node\":\"{node}\",\"max\":{CLAIM}}}");
        let claim = request("POST", "/v0/topics/bench-jobs/claim", &claim);
        Self { conn: Conn::new(addr), node: node.into(), claim }
    }

    /// Claims and acks.
    fn round(&mut self) {
        let body = self.conn.body(&self.claim);
        let (seqs, leases) = (values(body, b"\"$seq\":"), values(body, b"\"lease_id\":"));
        assert_eq!((seqs.len(), leases.len()), (CLAIM, CLAIM), "the queue has enough");
        let (seqs, leases) = (seqs.join(","), leases.join(","));
        let ack =
            format!("{{\"node\":\"{}\",\"seqs\":[{seqs}],\"lease_ids\":[{leases}]}}", self.node);
        let answer = self.conn.body(&request("POST", "/v0/topics/bench-jobs/ack", &ack));
        assert!(find(answer, format!("\"acked\":{CLAIM},").as_bytes()).is_some(), "all are ours");
    }
}

/// What stands behind each `name`, up to the next comma or bracket.
fn values(json: &[u8], name: &[u8]) -> Vec<String> {
    let (mut rest, mut out) = (json, Vec::new());
    while let Some(at) = find(rest, name) {
        rest = &rest[at + name.len()..];
        let end = rest.iter().position(|b| b",}]".contains(b)).unwrap();
        out.push(String::from_utf8_lossy(&rest[..end]).into_owned());
    }
    out
}
