//! NATS JetStream over its text protocol: publishes with a reply subject, pull consumers.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Client, Endpoint, Lines, PAYLOAD, Server, dial};

/// One server that syncs its files every two minutes, and one that syncs each message.
pub struct Nats {
    lazy: Endpoint,
    synced: Endpoint,
    /// Numbers the reply subject of each connection.
    inbox: AtomicU64,
}

impl Nats {
    /// Both running servers; creates the stream in each.
    pub fn new(lazy: Endpoint, synced: Endpoint) -> Self {
        for Endpoint { addr, .. } in [&lazy, &synced] {
            let stream = br#"{"name":"bench","subjects":["bench"],"storage":"file"}"#;
            Conn::new(addr, "setup").ask("$JS.API.STREAM.CREATE.bench", stream);
        }
        Self { lazy, synced, inbox: AtomicU64::new(0) }
    }
}

impl Server for Nats {
    fn name(&self) -> &str {
        "nats"
    }

    fn endpoint(&self, synced: bool) -> &Endpoint {
        if synced { &self.synced } else { &self.lazy }
    }

    fn connect(&self, synced: bool) -> Box<dyn Client> {
        let addr = &self.endpoint(synced).addr;
        let n = self.inbox.fetch_add(1, Ordering::Relaxed);
        Box::new(Conn::new(addr, &n.to_string()))
    }
}

struct Conn {
    stream: TcpStream,
    lines: Lines,
    publish: Vec<u8>,
    inbox: String,
    pull: Option<Vec<u8>>,
}

impl Conn {
    fn new(addr: &str, inbox: &str) -> Self {
        let mut stream = dial(addr);
        let mut lines = Lines::new(&stream);
        assert!(lines.line().starts_with("INFO"));
        let inbox = format!("_INBOX.{inbox}");
        let hello = "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}";
        write!(stream, "{hello}\r\nSUB {inbox} 1\r\n").unwrap();
        let publish = message("bench", &inbox, &PAYLOAD);
        Self { stream, lines, publish, inbox, pull: None }
    }

    /// Calls the server's API, which must succeed.
    fn ask(&mut self, subject: &str, body: &[u8]) {
        self.stream.write_all(&message(subject, &self.inbox, body)).unwrap();
        let answer = self.message();
        assert!(!answer.contains("\"error\""), "nats refused: {answer}");
    }

    /// The next message's head and, when it is short, its body.
    fn message(&mut self) -> String {
        loop {
            let line = self.lines.line();
            match line.split(' ').next().unwrap_or("") {
                "MSG" => {
                    let body = self.lines.line();
                    return line + " " + &body;
                }
                "HMSG" => {
                    let length: u64 = line.rsplit(' ').next().unwrap().parse().unwrap();
                    self.lines.skip(length + 2);
                    return line;
                }
                "PING" => self.stream.write_all(b"PONG\r\n").unwrap(),
                "-ERR" => panic!("nats refused: {line}"),
                _ => {}
            }
        }
    }
}

impl Client for Conn {
    fn write(&mut self, records: usize) {
        self.stream.write_all(&self.publish.repeat(records)).unwrap();
        for _ in 0..records {
            let ack = self.message();
            assert!(ack.contains("\"seq\""), "nats refused: {ack}");
        }
    }

    /// The next 1000 of its own consumer, which is created again when it has reached the end.
    fn read(&mut self) -> usize {
        if self.pull.is_none() {
            let name = self.inbox.replace('.', "-");
            let make = format!(
                r#"{{"stream_name":"bench","config":{{"name":"{name}","ack_policy":"none","deliver_policy":"all","mem_storage":true,"inactive_threshold":60000000000}}}}"#
            );
            self.ask(&format!("$JS.API.CONSUMER.CREATE.bench.{name}"), make.as_bytes());
            let next = format!("$JS.API.CONSUMER.MSG.NEXT.bench.{name}");
            self.pull = Some(message(&next, &self.inbox, br#"{"batch":1000,"no_wait":true}"#));
        }
        self.stream.write_all(self.pull.as_ref().unwrap()).unwrap();
        for n in 0..1000 {
            // A status message (an HMSG without a reply subject) means that there are no more
            // records.
            if self.message().starts_with("HMSG") {
                self.pull = None;
                return n;
            }
        }
        1000
    }
}

fn message(subject: &str, reply: &str, body: &[u8]) -> Vec<u8> {
    let mut out = format!("PUB {subject} {reply} {}\r\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
    out
}
