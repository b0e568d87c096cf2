//! HTTP figures: a closed loop of raw sockets, one request in flight per connection.
//!
//! `bench-http HOST:PORT DIR [ROW]`: the server must be running, and `TOPICS_BENCH_SERVER` must
//! name its process; `DIR` is on the disk under test. `ROW` measures only those rows of writes,
//! watchers and workers whose name contains it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use topics_benches::net::http::{
    ARROW, Conn, find, request, rest, trimmed, typed, write_request, write_request_with_seqs,
};
use topics_benches::net::{PAYLOAD, costed, rates, rates_and_cost};
use topics_benches::{
    Goal, Placement, Process, Row, Samples, Table, beside_plain, device_sync, disk_bytes, median,
    plain_batches, rss_anon, scaled, scaled_seconds, sync_all,
};

/// One connection, one request in flight; the p50 is the median of three repetitions.
fn latency(addr: &str, work: &str, placement: Placement, request: &[u8], n: u64) -> Row {
    let mut c = Conn::new(addr);
    let (mut all, mut runs) = (Samples::default(), Vec::new());
    placement.run(Process::of(&server()), || {
        for _ in 0..3 {
            let mut s = Samples::default();
            (0..scaled(n, 1)).for_each(|_| s.time(|| c.call(request)));
            runs.push(s.us(0.5));
            all.0.extend(s.0);
        }
    });
    Row::latency(work, placement, &mut all).runs(runs)
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
    for class in ["ephemeral", "memory", "disk", "fsync"] {
        let body = format!("{{\"durability\":\"{class}\"}}");
        setup.call(&request("PUT", &format!("/v0/topics/bench-{class}"), &body));
    }
    let mut table =
        Table::new("http", "HTTP (closed loop, 100-byte payloads, client on the same cores)");
    let wanted = |work: &str| only.is_none_or(|row| work.contains(row));
    if only.is_none() {
        one_connection(&mut table, addr, dir);
    }
    singles(&mut table, addr, &wanted);
    batches(&mut table, addr, dir, &wanted);
    formats(&mut table, addr, &wanted);
    reads(&mut table, addr, &wanted);
    watchers(&mut table, addr, &wanted);
    if wanted("50 workers, claim 8 + ack") {
        sync_all();
        let row = Row::repeated("50 workers, claim 8 + ack", work(addr, 50), "jobs/s");
        table.add(row.goal(Goal::Min(100e3)));
    }
    table.finish();
}

/// The measured server: its process.
fn server() -> String {
    std::env::var("TOPICS_BENCH_SERVER").expect("TOPICS_BENCH_SERVER is the server's process")
}

fn singles(table: &mut Table, addr: &str, wanted: &impl Fn(&str) -> bool) {
    let rows = [
        ("disk", 16, Goal::Min(60e3)),
        ("disk", 64, Goal::Min(60e3)),
        ("memory", 64, Goal::None),
        ("ephemeral", 64, Goal::None),
        ("fsync", 16, Goal::Min(20e3)),
        ("fsync", 64, Goal::Min(35e3)),
    ];
    let server = Process::of(&server());
    for (class, conns, goal) in rows {
        let work = format!("{conns} connections × 1 record, {class}");
        if !wanted(&work) {
            continue;
        }
        let topic = format!("bench-{class}");
        let requests = [
            (work.clone(), write_request(&topic, 1), goal),
            (work + ", with seqs", write_request_with_seqs(&topic, 1), Goal::None),
        ];
        sync_all();
        for (work, request, goal) in requests {
            let call = |c: &mut Conn| c.call(&request);
            let (runs, cost) = rates_and_cost(server, conns, 1, || Conn::new(addr), call);
            table.add(Row::repeated(work, runs, "/s").goal(goal).note(cost));
        }
    }
}

/// Seconds of writing before the first row of batches that is sustained.
const WARM_UP: f64 = 60.0;
/// Seconds of a row that includes the effect of checkpoints and new pages.
const SUSTAINED: f64 = 20.0;

fn batches(table: &mut Table, addr: &str, dir: &Path, wanted: &impl Fn(&str) -> bool) {
    let rows = [
        ("disk", 16, 100, Goal::Min(2.0e6), Goal::Min(2.5e6)),
        ("fsync", 16, 100, Goal::Min(1.0e6), Goal::Min(1.3e6)),
        ("disk", 8, 1000, Goal::Min(3.5e6), Goal::Min(4.0e6)),
    ];
    let rows = rows.map(|(class, conns, n, goal, sustained)| {
        let work = format!("{conns} connections × {n} records, {class}");
        (work, class, conns, n, goal, sustained)
    });
    let rows: Vec<_> = rows.into_iter().filter(|r| wanted(&r.0)).collect();
    let server = Process::of(&server());
    for (work, class, conns, n, goal, _) in &rows {
        let topic = format!("bench-{class}");
        let request = write_request(&topic, *n);
        let plain = plain_batches(dir, *class == "fsync");
        rest(addr);
        let call = |c: &mut Conn| c.call(&request);
        // Each run starts after everything before it has been copied, and pays only for its own
        // copies.
        let (runs, cost) = costed(server, *n, call, |call| {
            let secs = scaled_seconds(2.0);
            let run = || trimmed(addr, &topic, *conns, *n, secs, call);
            (0..3).map(|_| run()).inspect(|_| rest(addr)).collect()
        });
        let row = Row::repeated(work, runs, "rec/s").goal(*goal).note(cost);
        table.add(beside_plain(row, vec![plain], *class == "fsync"));
    }
    // The others are measured on a server that has been written to for a minute.
    let warm = write_request("bench-disk", 100);
    if !rows.is_empty() {
        let secs = scaled_seconds(WARM_UP);
        trimmed(addr, "bench-disk", 16, 100, secs, &|c: &mut Conn| c.call(&warm));
    }
    for (work, class, conns, n, _, goal) in &rows {
        let row = sustained(addr, dir, &format!("bench-{class}"), *conns, *n);
        table.add(row.named(format!("{work}, {SUSTAINED:.0} s in a row")).goal(*goal));
    }
}

/// Writes for some time without a pause before it. The notes say how the last quarter compares with
/// the first, and what grows: memory of the server, and files.
fn sustained(addr: &str, dir: &Path, topic: &str, conns: usize, n: usize) -> Row {
    let request = write_request(topic, n);
    let pid = server();
    let size = || (rss_anon(&pid) as f64 / 1e6, disk_bytes(dir) as f64 / 1e9);
    let before = size();
    let written = AtomicU64::new(0);
    let call = |c: &mut Conn| {
        c.call(&request);
        written.fetch_add(1, Ordering::Relaxed);
    };
    let secs = scaled_seconds(SUSTAINED);
    let (rate, cost, quarters) = std::thread::scope(|s| {
        let quarters = s.spawn(|| {
            let at = || written.load(Ordering::Relaxed) as f64;
            let mut all = Vec::new();
            for _ in 0..4 {
                let from = at();
                std::thread::sleep(Duration::from_secs_f64(secs / 4.0));
                all.push(at() - from);
            }
            all
        });
        let (rate, cost) =
            costed(Process::of(&pid), n, call, |call| trimmed(addr, topic, conns, n, secs, call));
        (rate, cost, quarters.join().unwrap())
    });
    let after = size();
    Row::new(topic, rate, "rec/s").note(cost).note(format!(
        "last quarter {:.2} × the first; RssAnon {:.0} → {:.0} MB, files {:.1} → {:.1} GB",
        quarters[3] / quarters[0],
        before.0,
        after.0,
        before.1,
        after.1
    ))
}

fn one_connection(table: &mut Table, addr: &str, dir: &Path) {
    for placement in Placement::REMOTE {
        let work = format!("1 connection, 1 record, {}: p50", placement.name());
        let row = latency(addr, &work, placement, &write_request("bench-disk", 1), 3000);
        table.add(row.goal(Goal::Max(115.0)));
        sync_all();
        let mut device = device_sync(dir, 170, 500);
        let goal = Goal::Max(device.us(0.5) + 150.0);
        let work = format!("1 connection, 1 record, synced, {}: p50", placement.name());
        let row = latency(addr, &work, placement, &write_request("bench-fsync", 1), 500);
        table.add(row.goal(goal).device_latency(&mut device));
    }
}

/// The body types of a write, which are measured in turns: what the machine does meanwhile meets all
/// of them.
fn formats(table: &mut Table, addr: &str, wanted: &impl Fn(&str) -> bool) {
    for (conns, n) in [(16, 100), (8, 1000)] {
        let named = |format: &str| format!("{conns} connections × {n} records as {format}, disk");
        let formats = ["JSON", "NDJSON", "Arrow, utf8", "Arrow, binary"].iter();
        let formats: Vec<_> = formats.filter(|format| wanted(&named(format))).collect();
        if formats.is_empty() {
            continue;
        }
        rest(addr);
        let works: Vec<_> = formats.iter().map(|format| named(format)).collect();
        let requests: Vec<_> = formats.iter().map(|format| batch_as(addr, format, n)).collect();
        in_turns(table, addr, conns, n, &works, &requests);
    }
    let formats =
        ["JSON", "octets"].map(|format| format!("16 connections × 1 record as {format}, disk"));
    if formats.iter().any(|work| wanted(work)) {
        rest(addr);
        let octets = write_as("application/octet-stream", &PAYLOAD);
        in_turns(table, addr, 16, 1, &formats, &[write_request("bench-disk", 1), octets]);
    }
}

/// Three runs of each request, one request after the other; the notes compare it with the first.
fn in_turns(
    table: &mut Table,
    addr: &str,
    conns: usize,
    n: usize,
    works: &[String],
    requests: &[Vec<u8>],
) {
    let server = Process::of(&server());
    let mut runs = vec![Vec::new(); requests.len()];
    let mut costs = vec![String::new(); requests.len()];
    for _ in 0..3 {
        for (i, request) in requests.iter().enumerate() {
            let call = |c: &mut Conn| c.call(request);
            let secs = scaled_seconds(2.0);
            let (rate, cost) =
                costed(server, n, call, |call| trimmed(addr, "bench-disk", conns, n, secs, call));
            runs[i].push(rate);
            costs[i] = cost;
            rest(addr);
        }
    }
    let first = median(runs[0].clone());
    for ((work, runs), cost) in works.iter().zip(runs).zip(costs) {
        let ratio = median(runs.clone()) / first;
        let row =
            Row::repeated(work, runs, "rec/s").note(format!("{ratio:.2} × JSON; last {cost}"));
        table.add(row);
    }
}

/// A write of a body of another type than JSON.
fn write_as(kind: &str, body: &[u8]) -> Vec<u8> {
    let path = "/v0/topics/bench-disk?return_seqs=false";
    typed("POST", path, &[("content-type", kind)], body)
}

/// A write of `n` records of 100 bytes.
fn batch_as(addr: &str, format: &str, n: usize) -> Vec<u8> {
    let arrow = |kind: &str| write_as(ARROW, &arrow_rows(addr, n, kind));
    match format {
        "NDJSON" => {
            let line = [&PAYLOAD[..], b"\n"].concat();
            write_as("application/x-ndjson", &line.repeat(n))
        }
        "Arrow, utf8" => arrow("string"),
        "Arrow, binary" => arrow("binary"),
        _ => write_request("bench-disk", n),
    }
}

/// `n` payloads as the column `data` of an Arrow stream, as a scan returns them.
fn arrow_rows(addr: &str, n: usize, kind: &str) -> Vec<u8> {
    let mut conn = Conn::new(addr);
    let topic = format!("bench-rows-{n}");
    conn.call(&request("PUT", &format!("/v0/topics/{topic}"), "{}"));
    conn.call(&write_request(&topic, n));
    let body = format!("{{\"to_seq\":{n},\"columns\":[\"data\"],\"data_type\":\"{kind}\"}}");
    let headers = [("content-type", "application/json"), ("accept", ARROW)];
    let mut rows = Vec::new();
    let scan = typed("POST", &format!("/v0/topics/{topic}/scan"), &headers, body.as_bytes());
    conn.stream(&scan, |part| rows.extend_from_slice(part));
    rows
}

fn reads(table: &mut Table, addr: &str, wanted: &impl Fn(&str) -> bool) {
    let named =
        |format: &str, conns: usize| format!("diff limit 1000 as {format}, {conns} connections");
    let rows = [(1, "JSON", 2.5e6), (4, "JSON", 8e6), (1, "Arrow", 0.0), (4, "Arrow", 12e6)];
    let rows = rows.map(|(conns, format, goal)| (named(format, conns), conns, format, goal));
    let rows: Vec<_> = rows.into_iter().filter(|(work, ..)| wanted(work)).collect();
    if rows.is_empty() {
        return;
    }
    let mut setup = Conn::new(addr);
    (0..10).for_each(|_| setup.call(&write_request("bench-disk", 1000)));
    rest(addr);
    let head = setup.earliest("bench-disk");
    let body = format!("{{\"from_seq\":{head},\"limit\":1000}}");
    for (work, conns, format, goal) in rows {
        let json = ("content-type", "application/json");
        let arrow = format == "Arrow";
        let headers = [json, ("accept", if arrow { ARROW } else { "application/json" })];
        let diff = typed("POST", "/v0/topics/bench-disk/diff", &headers, body.as_bytes());
        let call = |c: &mut Conn| match arrow {
            true => c.stream(&diff, |_| ()),
            false => c.call(&diff),
        };
        let runs = rates(conns, 2.0, || Conn::new(addr), call);
        let runs = runs.into_iter().map(|calls| calls * 1000.0).collect();
        let goal = if goal > 0.0 { Goal::Min(goal) } else { Goal::None };
        let row = Row::repeated(work, runs, "rec/s").goal(goal);
        table.add(row.note("sealed, page cache warm"));
    }
}

/// One subscription over SSE.
struct Watcher {
    stream: TcpStream,
    /// Received bytes that were not searched yet, with free space after them.
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

    /// Reads once; returns whether `what` has arrived, and then drops everything received so far.
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
    for (count, p50, p99) in [(1, 400.0, None), (100, 1800.0, None), (1000, 3500.0, Some(8e3))] {
        let work = format!("write → SSE frame, {count} watchers: p50");
        if !wanted(&work) {
            continue;
        }
        let writes = scaled((20_000 / count).clamp(40, 2000) as u64, 1) as usize;
        let mut samples = delivered(addr, count, writes);
        table.add(Row::latency(&work, Placement::Free, &mut samples).goal(Goal::Max(p50)));
        let goal = p99.map_or(Goal::None, Goal::Max);
        table.row(&work.replace("p50", "p99"), samples.us(0.99), "µs", goal, "");
    }
}

/// The time from before a write until each of `count` watchers has read its frame.
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

/// The jobs of one claim.
const CLAIM: usize = 8;

/// Jobs per second that `workers` claim, eight at a time, and ack; three runs.
fn work(addr: &str, workers: usize) -> Vec<f64> {
    // More jobs than three runs can process.
    let jobs = scaled(2_000_000, 1000);
    let mut setup = Conn::new(addr);
    setup.call(&request("PUT", "/v0/topics/bench-jobs", "{\"type\":\"queue\"}"));
    let fill = write_request("bench-jobs", 1000);
    (0..jobs / 1000).for_each(|_| setup.call(&fill));
    let names = AtomicUsize::new(0);
    let open = || {
        let worker = names.fetch_add(1, Ordering::Relaxed);
        Worker::new(addr, &format!("worker-{worker}"))
    };
    let runs = rates(workers, 2.0, open, Worker::round);
    runs.into_iter().map(|rounds| rounds * CLAIM as f64).collect()
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

/// The values after each `name`, up to the next comma or bracket.
fn values(json: &[u8], name: &[u8]) -> Vec<String> {
    let (mut rest, mut out) = (json, Vec::new());
    while let Some(at) = find(rest, name) {
        rest = &rest[at + name.len()..];
        let end = rest.iter().position(|b| b",}]".contains(b)).unwrap();
        out.push(String::from_utf8_lossy(&rest[..end]).into_owned());
    }
    out
}
