//! Clients over sockets, each a closed loop with one request in flight.

pub mod http;
pub mod kafka;
pub mod nats;
pub mod redis;
mod running;

pub use running::{Running, free_addr, port};

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::{Process, closed_loop, scaled_seconds};

/// A connection that writes and reads records; a failed call panics.
pub trait Client: Send {
    /// Writes `records` records of 100 bytes and waits until all are acked.
    fn write(&mut self, records: usize);
    /// Reads 1000 records from the start; returns the number received.
    fn read(&mut self) -> usize;
}

/// A measured server, to which clients connect.
pub trait Server: Sync {
    /// The name in the table.
    fn name(&self) -> &str;
    /// The one that serves such writes.
    fn endpoint(&self, synced: bool) -> &Endpoint;
    /// A connection to a topic whose writes are synced, or not.
    fn connect(&self, synced: bool) -> Box<dyn Client>;
}

/// A server on this machine: where it listens, and its process.
#[derive(Clone)]
pub struct Endpoint {
    pub addr: String,
    pub process: Process,
}

/// 100 bytes that are also a JSON string of 98 characters.
pub const PAYLOAD: [u8; 100] = {
    let mut p = [b'x'; 100];
    p[0] = b'"';
    p[99] = b'"';
    p
};

/// Calls per second of `conns` concurrent clients in each of three runs of `secs`.
pub fn rates<C: Send>(
    conns: usize,
    secs: f64,
    open: impl Fn() -> C,
    call: impl Fn(&mut C) + Sync,
) -> Vec<f64> {
    (0..3).map(|_| rate_once(conns, scaled_seconds(secs), &open, &call)).collect()
}

/// The same for one run.
pub fn rate_once<C: Send>(
    conns: usize,
    secs: f64,
    open: impl Fn() -> C,
    call: impl Fn(&mut C) + Sync,
) -> f64 {
    // Each client is used by one thread, so no thread waits for the lock.
    let clients: Vec<Mutex<C>> = (0..conns).map(|_| Mutex::new(open())).collect();
    closed_loop(conns, Duration::from_secs_f64(secs), |t, _| {
        call(&mut clients[t].lock().unwrap());
    })
}

/// Records per second in each of three runs, and the server's cost per record: a call has `records`
/// of them.
pub fn rates_and_cost<C: Send>(
    server: Process,
    conns: usize,
    records: usize,
    open: impl Fn() -> C,
    call: impl Fn(&mut C) + Sync,
) -> (Vec<f64>, String) {
    let (calls, cost) = costed(server, records, call, |call| rates(conns, 2.0, open, call));
    (calls.into_iter().map(|calls| calls * records as f64).collect(), cost)
}

/// What `run` returns, and the server's cost per record of its calls.
pub fn costed<C, T>(
    server: Process,
    records: usize,
    call: impl Fn(&mut C) + Sync,
    run: impl FnOnce(&(dyn Fn(&mut C) + Sync)) -> T,
) -> (T, String) {
    let calls = AtomicU64::new(0);
    let cost = server.cost();
    let out = run(&|client| {
        call(client);
        calls.fetch_add(1, Ordering::Relaxed);
    });
    (out, cost.per_record(calls.into_inner() * records as u64))
}

/// A reader of lines and counted bytes over a socket.
pub struct Lines(BufReader<TcpStream>);

impl Lines {
    fn new(stream: &TcpStream) -> Self {
        Self(BufReader::with_capacity(1 << 18, stream.try_clone().unwrap()))
    }

    /// The next line without its end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "the server closed the connection");
        line.truncate(line.trim_end().len());
        line
    }

    /// Skips `n` bytes.
    fn skip(&mut self, n: u64) {
        let got = io::copy(&mut (&mut self.0).take(n), &mut io::sink()).unwrap();
        assert_eq!(got, n, "the server closed the connection");
    }
}

fn dial(addr: &str) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}
