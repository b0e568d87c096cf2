//! Redis Streams over RESP: `XADD`, pipelined in one write for a batch, and `XRANGE`.

use std::io::Write;
use std::net::TcpStream;

use super::{Client, Endpoint, Lines, PAYLOAD, Server, dial};

/// One Redis that syncs its append-only file each second, and one that syncs each write.
pub struct Redis {
    lazy: Endpoint,
    synced: Endpoint,
}

impl Redis {
    /// Both running servers.
    pub fn new(lazy: Endpoint, synced: Endpoint) -> Self {
        Self { lazy, synced }
    }
}

impl Server for Redis {
    fn name(&self) -> &str {
        "redis"
    }

    fn endpoint(&self, synced: bool) -> &Endpoint {
        if synced { &self.synced } else { &self.lazy }
    }

    fn connect(&self, synced: bool) -> Box<dyn Client> {
        let stream = dial(&self.endpoint(synced).addr);
        let add = command(&[b"XADD", b"bench", b"*", b"d", &PAYLOAD]);
        let range = command(&[b"XRANGE", b"bench", b"-", b"+", b"COUNT", b"1000"]);
        Box::new(Conn { lines: Lines::new(&stream), stream, add, range })
    }
}

struct Conn {
    stream: TcpStream,
    lines: Lines,
    add: Vec<u8>,
    range: Vec<u8>,
}

impl Conn {
    /// Reads one reply of any type; returns the number of elements of an array, else 1.
    fn reply(&mut self) -> usize {
        let line = self.lines.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "$" => self.lines.skip(rest.parse::<u64>().unwrap() + 2),
            "*" => {
                let n = rest.parse().unwrap();
                for _ in 0..n {
                    self.reply();
                }
                return n;
            }
            _ => assert_ne!(kind, "-", "redis refused: {rest}"),
        }
        1
    }
}

impl Client for Conn {
    fn write(&mut self, records: usize) {
        self.stream.write_all(&self.add.repeat(records)).unwrap();
        for _ in 0..records {
            self.reply();
        }
    }

    fn read(&mut self) -> usize {
        self.stream.write_all(&self.range).unwrap();
        self.reply()
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for w in words {
        out.extend(format!("${}\r\n", w.len()).into_bytes());
        out.extend_from_slice(w);
        out.extend_from_slice(b"\r\n");
    }
    out
}
