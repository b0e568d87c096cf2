//! Figures of Arrow reads and writes over HTTP, and of a server whose process does other work.
//!
//! `bench-columns HOST:PORT PID [HOST:PORT PID]`: a running server and its process; then one whose
//! process has a busy Python thread.

use std::time::Instant;

use topics_benches::net::http::{ARROW, Conn, request, trimmed, typed, write_request};
use topics_benches::net::{PAYLOAD, costed, rates_and_cost};
use topics_benches::{Goal, Process, Row, Table, median, scaled_seconds, sync_all};

/// The number of rows to read: more than one request returns.
const ROWS: usize = 2_000_000;
/// Rows of a request as Arrow.
const LIMIT: usize = 1_000_000;
/// Rows of an Arrow body: the default maximum.
const BODY: usize = 10_000;
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
const TOPIC: &str = "/v0/topics/bench-columns";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (addr, pid, busy) = match &args[..] {
        [addr, pid] => (addr, pid, None),
        [addr, pid, busy, its] => (addr, pid, Some((busy, Process::of(its)))),
        _ => {
            eprintln!("usage: bench-columns HOST:PORT PID [HOST:PORT PID]");
            std::process::exit(2);
        }
    };
    let mut table =
        Table::new("columns", "HTTP, columns (100-byte payloads, client on the same cores)");
    let server = Process::of(pid);
    fill(addr);
    reads(&mut table, addr, server);
    writes(&mut table, addr, server);
    if let Some((busy, its)) = busy {
        beside_a_busy_thread(&mut table, (addr, server), (busy, its));
    }
    table.finish();
}

fn fill(addr: &str) {
    let mut conn = Conn::ready(addr);
    conn.call(&request("PUT", TOPIC, "{\"durability\":\"disk\"}"));
    let batch = write_request("bench-columns", 1000);
    (0..ROWS / 1000).for_each(|_| conn.call(&batch));
    conn.call(&request("POST", "/v0/admin/checkpoint", "{}"));
}

fn asked(verb: &str, body: &str) -> Vec<u8> {
    let headers = [("content-type", "application/json"), ("accept", ARROW)];
    typed("POST", &format!("{TOPIC}/{verb}"), &headers, body.as_bytes())
}

fn reads(table: &mut Table, addr: &str, server: Process) {
    let narrow = format!("{{\"to_seq\":{LIMIT},\"columns\":[\"seq\",\"data\"]}}");
    let rows = [
        ("diff as Arrow, limit 1 000 000", asked("diff", &format!("{{\"limit\":{LIMIT}}}"))),
        ("scan of 1 000 000 as Arrow", asked("scan", &format!("{{\"to_seq\":{LIMIT}}}"))),
        ("scan of columns seq and data as Arrow", asked("scan", &narrow)),
    ];
    for (work, request) in rows {
        sync_all();
        let (runs, notes) = streamed(addr, server, &request);
        table.add(Row::repeated(work, runs, "rows/s").goal(Goal::Min(8e6)).note(notes));
    }
}

/// Rows per second of whole streams, one after the other on one connection, and their cost.
fn streamed(addr: &str, server: Process, request: &[u8]) -> (Vec<f64>, String) {
    const STREAMS: usize = 8;
    let mut conn = Conn::new(addr);
    let (mut cost, mut bytes) = (server.cost(), 0);
    let mut runs = Vec::new();
    for run in 0..4 {
        if run == 1 {
            // The first run warms up.
            (runs, cost) = (Vec::new(), server.cost());
        }
        let start = Instant::now();
        for _ in 0..STREAMS {
            let (mut tail, mut size) = ([0; 8], 0);
            conn.stream(request, |part| {
                size += part.len();
                last(&mut tail, part);
            });
            assert!(tail == END && size > LIMIT * PAYLOAD.len(), "{size} bytes, whole");
            bytes = size;
        }
        runs.push((STREAMS * LIMIT) as f64 / start.elapsed().as_secs_f64());
    }
    let cpu = cost.cpu_per_record((3 * STREAMS * LIMIT) as u64);
    (runs, format!("{} B a row; server {cpu:.3} cpu-µs a row", bytes / LIMIT))
}

/// The last eight bytes after `part` was received.
fn last(tail: &mut [u8; 8], part: &[u8]) {
    let new = &part[part.len().saturating_sub(8)..];
    tail.rotate_left(new.len());
    tail[8 - new.len()..].copy_from_slice(new);
}

/// Sends bodies that a scan has returned.
fn writes(table: &mut Table, addr: &str, server: Process) {
    let mut conn = Conn::new(addr);
    let only = format!("{{\"to_seq\":{BODY},\"columns\":[\"data\"]}}");
    let mut rows = Vec::new();
    conn.stream(&asked("scan", &only), |part| rows.extend_from_slice(part));
    let topic = "bench-columns-written";
    conn.call(&request("PUT", &format!("/v0/topics/{topic}"), "{\"durability\":\"disk\"}"));
    let path = format!("/v0/topics/{topic}?return_seqs=false");
    let body = typed("POST", &path, &[("content-type", ARROW)], &rows);
    for conns in [1, 4] {
        sync_all();
        let (runs, cost) = costed(
            server,
            BODY,
            |c: &mut Conn| c.call(&body),
            |call| {
                let secs = scaled_seconds(2.0);
                (0..3).map(|_| trimmed(addr, topic, conns, BODY, secs, call)).collect()
            },
        );
        let work = format!("{conns} connections × {BODY} rows as Arrow, disk");
        table.add(Row::repeated(work, runs, "rows/s").note(cost));
    }
}

/// The rate of a server in whose process another Python thread is busy, and as the goal most of what
/// the first server does without one.
fn beside_a_busy_thread(table: &mut Table, idle: (&str, Process), busy: (&str, Process)) {
    let path = "/v0/topics/bench-busy";
    for (addr, _) in [idle, busy] {
        Conn::ready(addr).call(&request("PUT", path, "{\"durability\":\"disk\"}"));
    }
    let write = write_request("bench-busy", 1);
    for (conns, share) in [(1, None), (64, Some(0.8))] {
        sync_all();
        let run = |(addr, server): (&str, Process)| {
            rates_and_cost(server, conns, 1, || Conn::new(addr), |c| c.call(&write))
        };
        let (without, (runs, cost)) = (median(run(idle).0), run(busy));
        let goal = share.map_or(Goal::None, |share| Goal::Min(share * without));
        let work = format!("beside a busy thread: {conns} connections × 1 record");
        let row = Row::repeated(work, runs, "/s").goal(goal);
        let row = row.note(format!("{cost}, including the thread's own"));
        table.add(row.note(format!("{:.1} k/s without that thread", without / 1e3)));
    }
}
