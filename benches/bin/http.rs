//! HTTP figures: a closed loop of raw sockets, one request in flight per connection.
//!
//! `bench-http HOST:PORT DIR [ROW]`: the server must be up; `DIR` is on the disk under test. `ROW`
//! measures the rows of writes alone whose name contains it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use topics_benches::{Goal, Samples, Table, device_sync, median, settle};

struct Conn {
    stream: TcpStream,
    buf: Vec<u8>,
}

impl Conn {
    fn new(addr: &str) -> Self {
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buf: vec![0; 1 << 20] }
    }

    /// Sends one request, which must succeed; returns the length of the answer's body.
    fn call(&mut self, request: &[u8]) -> usize {
        let (length, ok) = self.exchange(request);
        assert!(ok, "{}", String::from_utf8_lossy(&self.buf[..length]));
        length
    }

    /// Sends one request and reads one answer: the length of its body, and whether it is a success.
    fn exchange(&mut self, request: &[u8]) -> (usize, bool) {
        self.stream.write_all(request).unwrap();
        let mut have = 0;
        loop {
            let n = self.stream.read(&mut self.buf[have..]).unwrap();
            assert!(n > 0, "the server closed the connection");
            have += n;
            if let Some(end) = find(&self.buf[..have], b"\r\n\r\n") {
                let head = std::str::from_utf8(&self.buf[..end]).unwrap();
                let ok = head[9..12].starts_with('2');
                let len = head
                    .lines()
                    .find_map(|l| {
                        let (k, v) = l.split_once(':')?;
                        k.eq_ignore_ascii_case("content-length").then(|| v.trim().parse().unwrap())
                    })
                    .unwrap_or(0);
                let total = end + 4 + len;
                if self.buf.len() < total {
                    self.buf.resize(total, 0);
                }
                while have < total {
                    let n = self.stream.read(&mut self.buf[have..total]).unwrap();
                    assert!(n > 0);
                    have += n;
                }
                return (len, ok);
            }
            if have == self.buf.len() {
                self.buf.resize(have * 2, 0);
            }
        }
    }
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|w| w == needle)
}

fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn write_body(records: usize) -> String {
    let one = format!("{{\"data\":\"{}\"}}", "x".repeat(98));
    format!("{{\"records\":[{}]}}", vec![one; records].join(","))
}

fn rate(addr: &str, conns: usize, request: &[u8], secs: f64) -> f64 {
    let run = || {
        let start = Instant::now();
        let total: u64 = std::thread::scope(|s| {
            let hs: Vec<_> = (0..conns)
                .map(|_| {
                    s.spawn(|| {
                        let mut c = Conn::new(addr);
                        let mut n = 0;
                        while start.elapsed() < Duration::from_secs_f64(secs) {
                            c.call(request);
                            n += 1;
                        }
                        n
                    })
                })
                .collect();
            hs.into_iter().map(|h| h.join().unwrap()).sum()
        });
        total as f64 / start.elapsed().as_secs_f64()
    };
    median((0..3).map(|_| run()).collect())
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
    let mut setup = Conn::new(addr);
    while !setup.exchange(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").1 {
        std::thread::sleep(Duration::from_millis(20));
    }
    for class in ["memory", "disk", "fsync"] {
        let body = format!("{{\"durability\":\"{class}\"}}");
        setup.call(&request("PUT", &format!("/v0/topics/bench-{class}"), &body));
    }
    let single =
        |class: &str| request("POST", &format!("/v0/topics/bench-{class}"), &write_body(1));
    let many =
        |class: &str, n| request("POST", &format!("/v0/topics/bench-{class}"), &write_body(n));
    let mut table = Table::new("HTTP (closed loop, 100-byte payloads, client on the same cores)");
    if only.is_none() {
        one_connection(&mut table, addr, dir, &single);
    }
    let ones = [
        ("disk", 16, Goal::Min(60e3)),
        ("disk", 64, Goal::Min(60e3)),
        ("memory", 64, Goal::None),
        ("fsync", 16, Goal::Min(20e3)),
        ("fsync", 64, Goal::Min(35e3)),
    ];
    let batches = [
        ("disk", 16, 100, Goal::Min(2.0e6)),
        ("fsync", 16, 100, Goal::Min(1.0e6)),
        ("disk", 8, 1000, Goal::Min(3.5e6)),
    ];
    for (class, conns, goal) in ones {
        let work = format!("{conns} connections × 1 record, {class}");
        if only.is_none_or(|row| work.contains(row)) {
            settle();
            table.row(&work, rate(addr, conns, &single(class), 2.0), "/s", goal, "");
        }
    }
    for (class, conns, n, goal) in batches {
        let work = format!("{conns} connections × {n} records, {class}");
        if only.is_none_or(|row| work.contains(row)) {
            settle();
            let figure = rate(addr, conns, &many(class, n), 2.0) * n as f64;
            table.row(&work, figure, "rec/s", goal, "");
        }
    }
    if only.is_none() {
        setup.call(&request("POST", "/v0/admin/checkpoint", "{}"));
        reads(&mut table, addr);
    }
    table.finish();
}

fn one_connection(
    table: &mut Table,
    addr: &str,
    dir: &Path,
    single: &impl Fn(&'static str) -> Vec<u8>,
) {
    table.row(
        "1 connection, 1 record: p50",
        latency(addr, &single("disk"), 3000),
        "µs",
        Goal::Max(115.0),
        "",
    );
    settle();
    let device = device_sync(dir, 170, 500).us(0.5);
    let synced = latency(addr, &single("fsync"), 500);
    let notes = format!("device p50 {device:.0} µs in the same run");
    table.row(
        "1 connection, 1 record, synced: p50",
        synced,
        "µs",
        Goal::Max(device + 150.0),
        &notes,
    );
}

fn reads(table: &mut Table, addr: &str) {
    let diff = request("POST", "/v0/topics/bench-disk/diff", "{\"from_seq\":0,\"limit\":1000}");
    for (conns, goal) in [(1, 2.5e6), (4, 5e6)] {
        let figure = rate(addr, conns, &diff, 2.0) * 1000.0;
        let work = format!("diff limit 1000 as JSON, {conns} connections");
        table.row(&work, figure, "rec/s", Goal::Min(goal), "sealed, page cache warm");
    }
}
