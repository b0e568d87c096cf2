//! HTTP/1.1 over a raw socket, to the server of this repository.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Client, Endpoint, PAYLOAD, Server, dial, rate_once};
use crate::sync_all;

/// One keep-alive connection.
pub struct Conn {
    stream: TcpStream,
    buf: Vec<u8>,
}

impl Conn {
    /// Connects.
    pub fn new(addr: &str) -> Self {
        Self { stream: dial(addr), buf: vec![0; 1 << 20] }
    }

    /// Connects when the server is ready.
    pub fn ready(addr: &str) -> Self {
        let mut conn = Self::new(addr);
        while !conn.exchange(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").1 {
            std::thread::sleep(Duration::from_millis(20));
        }
        conn
    }

    /// Sends one request, which must succeed.
    pub fn call(&mut self, request: &[u8]) {
        self.body(request);
    }

    /// Sends one request, which must succeed; repeats it after the given time if the server asks
    /// for that. Returns the answer's body.
    pub fn body(&mut self, request: &[u8]) -> &[u8] {
        let body = loop {
            let (body, ok) = self.exchange(request);
            if ok {
                break body;
            }
            let told = String::from_utf8_lossy(&self.buf[..body.end]);
            let again = told
                .split_once("\"retry_after_ms\":")
                .and_then(|(_, ms)| ms.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
            let Some(ms) = again else { panic!("{told}") };
            std::thread::sleep(Duration::from_millis(ms));
        };
        &self.buf[body]
    }

    /// Sends one request and reads one answer: the range of its body, and whether it is a success.
    fn exchange(&mut self, request: &[u8]) -> (std::ops::Range<usize>, bool) {
        self.stream.write_all(request).unwrap();
        let mut have = 0;
        loop {
            have += self.more(have);
            let Some(end) = find(&self.buf[..have], b"\r\n\r\n") else { continue };
            let head = std::str::from_utf8(&self.buf[..end]).unwrap();
            let ok = head[9..12].starts_with('2');
            let total = end + 4 + content_length(head);
            while have < total {
                have += self.more(have);
            }
            return (end + 4..total, ok);
        }
    }

    fn more(&mut self, have: usize) -> usize {
        if have == self.buf.len() {
            self.buf.resize(have * 2, 0);
        }
        let n = self.stream.read(&mut self.buf[have..]).unwrap();
        assert!(n > 0, "the server closed the connection");
        n
    }

    /// Sends one request with a chunked answer, which must be a success; calls `each` with parts of
    /// its body.
    pub fn stream(&mut self, request: &[u8], mut each: impl FnMut(&[u8])) {
        self.stream.write_all(request).unwrap();
        let mut have = 0;
        let head = loop {
            have += self.more(have);
            if let Some(end) = find(&self.buf[..have], b"\r\n\r\n") {
                break end + 4;
            }
        };
        assert!(self.buf.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&self.buf));
        let mut chunks = Chunks::default();
        let mut from = head;
        while !chunks.take(&self.buf[from..have], &mut each) {
            (from, have) = (0, self.more(0));
        }
    }

    /// Deletes all but the last `kept` records of a topic.
    pub fn trim(&mut self, topic: &str, kept: u64) {
        let head = self.number(topic, "head_seq");
        if head > kept {
            let body = format!("{{\"before_seq\":{}}}", head - kept);
            self.call(&request("POST", &format!("/v0/topics/{topic}/delete"), &body));
        }
    }

    /// The seq of a topic's first record.
    pub fn earliest(&mut self, topic: &str) -> u64 {
        self.number(topic, "earliest_seq")
    }

    fn number(&mut self, topic: &str, field: &str) -> u64 {
        let state: serde_json::Value =
            serde_json::from_slice(self.body(&request("GET", &format!("/v0/topics/{topic}"), "")))
                .unwrap();
        state[field].as_u64().unwrap()
    }

    /// The socket, for other uses than one answer to one request.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }
}

/// A chunked body.
#[derive(Default)]
struct Chunks {
    /// The received part of an incomplete line.
    line: Vec<u8>,
    /// Remaining bytes of a chunk, including the line end after it.
    left: usize,
}

impl Chunks {
    /// Processes received bytes; returns whether the body is complete.
    fn take(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> bool {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (now, rest) = bytes.split_at(self.left.min(bytes.len()));
                // The line end after a chunk is not part of the body.
                each(&now[..now.len().min(self.left.saturating_sub(2))]);
                (self.left, bytes) = (self.left - now.len(), rest);
                continue;
            }
            let end = bytes.iter().position(|&b| b == b'\n').map_or(bytes.len(), |at| at + 1);
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end..];
            if !self.line.ends_with(b"\r\n") {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let text = std::str::from_utf8(&line).unwrap().trim_end();
            if text.is_empty() {
                // After the last chunk.
                return true;
            }
            let length = usize::from_str_radix(text, 16).unwrap();
            self.left = if length == 0 { 0 } else { length + 2 };
        }
        false
    }
}

fn content_length(head: &str) -> usize {
    head.lines()
        .find_map(|l| {
            let (k, v) = l.split_once(':')?;
            k.eq_ignore_ascii_case("content-length").then(|| v.trim().parse().unwrap())
        })
        .unwrap_or(0)
}

/// The position of `needle` in `hay`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|w| w == needle)
}

/// A request with a JSON body.
pub fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    typed(method, path, &[("content-type", "application/json")], body.as_bytes())
}

/// The media type of Arrow bodies and answers.
pub const ARROW: &str = "application/vnd.apache.arrow.stream";

/// A request with these headers.
pub fn typed(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A write of `records` records of 100 bytes, whose answer lists no seqs.
pub fn write_request(topic: &str, records: usize) -> Vec<u8> {
    write_to(&format!("/v0/topics/{topic}?return_seqs=false"), records)
}

/// A write of `records` records of 100 bytes, whose answer lists every seq.
pub fn write_request_with_seqs(topic: &str, records: usize) -> Vec<u8> {
    write_to(&format!("/v0/topics/{topic}"), records)
}

fn write_to(path: &str, records: usize) -> Vec<u8> {
    let one = format!("{{\"data\":{}}}", std::str::from_utf8(&PAYLOAD).unwrap());
    let body = format!("{{\"records\":[{}]}}", vec![one; records].join(","));
    request("POST", path, &body)
}

/// Returns when all written records are in segments, trimmed from the log, and on the disk.
pub fn rest(addr: &str) {
    // The log is trimmed by the older of two snapshots.
    for _ in 0..2 {
        Conn::new(addr).call(&request("POST", "/v0/admin/checkpoint", "{}"));
    }
    sync_all();
}

/// Records that [`trimmed`] leaves in the topic: 0.6 GB of segments.
const KEPT: u64 = 4_000_000;

/// Records per second of `conns` connections that write `records` per call for `secs`. Meanwhile one
/// more connection deletes the oldest of them, as a reader does that is done with them: what is on
/// the disk does not grow with the rate.
pub fn trimmed(
    addr: &str,
    topic: &str,
    conns: usize,
    records: usize,
    secs: f64,
    call: &(dyn Fn(&mut Conn) + Sync),
) -> f64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut conn = Conn::new(addr);
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(200));
                conn.trim(topic, KEPT);
            }
        });
        let calls = rate_once(conns, secs, || Conn::new(addr), call);
        done.store(true, Ordering::Relaxed);
        calls * records as f64
    })
}

/// This repository's server as one of several that are compared.
pub struct Topics(Endpoint);

impl Topics {
    /// Creates the two topics of the writes.
    pub fn new(at: Endpoint) -> Self {
        let mut setup = Conn::ready(&at.addr);
        for class in ["disk", "fsync"] {
            let body = format!("{{\"durability\":\"{class}\"}}");
            setup.call(&request("PUT", &format!("/v0/topics/peers-{class}"), &body));
        }
        Self(at)
    }

    /// Deletes old records, which bounds what is on the disk.
    pub fn trim(&self) {
        let mut conn = Conn::new(&self.0.addr);
        ["disk", "fsync"].iter().for_each(|c| conn.trim(&format!("peers-{c}"), KEPT));
    }
}

impl Server for Topics {
    fn name(&self) -> &str {
        "topics"
    }

    fn endpoint(&self, _: bool) -> &Endpoint {
        &self.0
    }

    fn connect(&self, synced: bool) -> Box<dyn Client> {
        let topic = if synced { "peers-fsync" } else { "peers-disk" };
        let diff = format!("/v0/topics/{topic}/diff");
        Box::new(Writer {
            conn: Conn::new(&self.0.addr),
            topic,
            diff: request("POST", &diff, "{\"from_seq\":\"earliest\",\"limit\":1000}"),
            write: (0, Vec::new()),
        })
    }
}

struct Writer {
    conn: Conn,
    topic: &'static str,
    diff: Vec<u8>,
    /// The request for this number of records: built once, as a client with a template does.
    write: (usize, Vec<u8>),
}

impl Client for Writer {
    fn write(&mut self, records: usize) {
        if self.write.0 != records {
            self.write = (records, write_request(self.topic, records));
        }
        self.conn.call(&self.write.1);
    }

    fn read(&mut self) -> usize {
        let body = self.conn.body(&self.diff);
        assert!(body.len() > 1000 * PAYLOAD.len(), "a full page of records");
        1000
    }
}
