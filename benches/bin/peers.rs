//! The same work done by the server of this repository and by commonly used alternatives, in one
//! run.
//!
//! `bench-peers HOST:PORT PEERS DIR`: this repository's server is running as the process
//! `TOPICS_BENCH_SERVER`; `PEERS` is the directory that `peers/install.sh` filled; `DIR` is on the
//! disk under test. Everything runs on this machine, including the clients.

use std::path::{Path, PathBuf};
use std::process::Command;

use topics_benches::net::http::Topics;
use topics_benches::net::kafka::{Kafka, java};
use topics_benches::net::nats::Nats;
use topics_benches::net::redis::Redis;
use topics_benches::net::{Endpoint, Running, Server, free_addr, port, rate_once};
use topics_benches::{
    Goal, Placement, Process, Row, Samples, median, scaled, scaled_seconds, short, sync_all,
};

fn redis(dir: &Path) -> Option<(Redis, Vec<Running>)> {
    let both = ["everysec", "always"].map(|sync| {
        let (addr, home) = (free_addr(), dir.join(format!("redis-{sync}")));
        std::fs::create_dir_all(&home).unwrap();
        let mut command = Command::new("redis-server");
        command.current_dir(&home).args(["--port", port(&addr), "--save", "", "--appendonly"]);
        command.args(["yes", "--appendfsync", sync]);
        (Running::start(command, &home.join("log"), &addr), addr)
    });
    let [(Some(a), lazy), (Some(b), synced)] = both else { return None };
    Some((Redis::new(a.at(&lazy), b.at(&synced)), vec![a, b]))
}

fn nats(peers: &Path, dir: &Path) -> Option<(Nats, Vec<Running>)> {
    let both = ["2m", "always"].map(|sync| {
        let (addr, home) = (free_addr(), dir.join(format!("nats-{sync}")));
        std::fs::create_dir_all(&home).unwrap();
        let store = home.display();
        let config = format!("jetstream {{ store_dir: \"{store}\", sync_interval: {sync} }}\n");
        std::fs::write(home.join("conf"), config).unwrap();
        let mut command = Command::new(peers.join("nats-server"));
        command.args(["-a", "127.0.0.1", "-p", port(&addr), "-c"]).arg(home.join("conf"));
        (Running::start(command, &home.join("log"), &addr), addr)
    });
    let [(Some(a), lazy), (Some(b), synced)] = both else { return None };
    Some((Nats::new(a.at(&lazy), b.at(&synced)), vec![a, b]))
}

fn kafka(peers: &Path, dir: &Path) -> Option<(Kafka, Running)> {
    let jars = peers.join("kafka");
    if !jars.is_dir() {
        return None;
    }
    let (addr, control, home) = (free_addr(), free_addr(), dir.join("kafka"));
    std::fs::create_dir_all(&home).unwrap();
    let config = home.join("server.properties");
    let logs = home.join("logs");
    let text = format!(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@{control}\n\
         listeners=PLAINTEXT://{addr},CONTROLLER://{control}\n\
         controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n\
         log.dirs={}\noffsets.topic.replication.factor=1\n\
         group.initial.rebalance.delay.ms=0\n",
        logs.display()
    );
    std::fs::write(&config, text).unwrap();
    let format = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c"];
    let done = java(&jars).args(format).arg(&config).output().ok()?;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut command = java(&jars);
    command.arg("kafka.Kafka").arg(&config);
    let running = Running::start(command, &home.join("log"), &addr)?;
    Some((Kafka::new(&jars, &addr), running))
}

/// What a row measures, and how many times better than Redis we want to be.
struct Work {
    name: String,
    unit: &'static str,
    beside_redis: Option<f64>,
}

impl Work {
    fn new(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit, beside_redis: None }
    }

    fn goal(&self, redis: Option<f64>) -> Goal {
        match self.beside_redis.zip(redis) {
            Some((times, redis)) if self.unit == "µs" => Goal::Max(redis / times),
            Some((times, redis)) => Goal::Min(redis * times),
            None => Goal::None,
        }
    }
}

/// The figures of one row: the runs of each server.
type Runs = Vec<Option<Vec<f64>>>;

/// The peers, in the order of their columns.
const PEERS: [&str; 3] = ["redis", "nats", "kafka"];

/// Prints and saves one row: a figure of each server, and its ratio to ours.
fn show_row(work: &Work, runs: Runs) {
    let mut figures = runs.iter().map(|r| r.clone().map(median));
    let ours = figures.next().flatten().unwrap();
    let peers: Vec<_> = figures.collect();
    print!("{:<38}{:>12}", work.name, short(ours));
    let mut row = Row::repeated(&work.name, runs[0].clone().unwrap(), work.unit);
    for (name, peer) in PEERS.iter().zip(&peers) {
        match peer {
            Some(v) => {
                let ratio = if work.unit == "µs" { v / ours } else { ours / v };
                print!("{:>12} {:>7}", short(*v), format!("{ratio:.1} x"));
                row = row.peer(name, *v);
            }
            None => print!("{:>12} {:>7}", "-", ""),
        }
    }
    println!("  {}", work.unit);
    row.goal(work.goal(peers[0])).save("peers");
}

/// p50 and p99.
fn latency(server: &dyn Server, synced: bool, placement: Placement) -> [f64; 2] {
    let mut client = server.connect(synced);
    let n = scaled(if synced { 500 } else { 3000 }, 1);
    let mut samples = Samples::default();
    placement.run(server.endpoint(synced).process, || {
        (0..n).for_each(|_| samples.time(|| client.write(1)));
    });
    [samples.us(0.5), samples.us(0.99)]
}

fn writes(server: &dyn Server, synced: bool, conns: usize, records: usize) -> f64 {
    sync_all();
    let open = || server.connect(synced);
    rate_once(conns, scaled_seconds(1.0), open, |c| c.write(records)) * records as f64
}

fn read(server: &dyn Server) -> f64 {
    let secs = scaled_seconds(1.0);
    rate_once(1, secs, || server.connect(false), |c| assert!(c.read() > 0)) * 1000.0
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, addr, peers, dir] = &args[..] else {
        eprintln!("usage: bench-peers HOST:PORT PEERS DIR");
        std::process::exit(2);
    };
    // The servers are started in other working directories.
    let absolute = |p: &str| -> PathBuf { std::path::absolute(p).unwrap() };
    let (peers, dir) = (absolute(peers), absolute(dir));
    let server = std::env::var("TOPICS_BENCH_SERVER").expect("the server's process");
    let ours = Topics::new(Endpoint { addr: addr.clone(), process: Process::of(&server) });
    let (redis, nats) = (redis(&dir), nats(&peers, &dir));
    let servers: [Option<&dyn Server>; 3] = [
        Some(&ours),
        redis.as_ref().map(|(s, _)| s as &dyn Server),
        nats.as_ref().map(|(s, _)| s as &dyn Server),
    ];
    let kafka = kafka(&peers, &dir);
    println!("\nPeers (100-byte payloads, all on this machine; x: how many times better we are)");
    println!("{:-<118}", "");
    let names = PEERS.map(|n| format!("{n:>12} {:>7}", "")).concat();
    println!("{:<38}{:>12}{names}", "work", "topics");
    compare(&ours, &servers, kafka.as_ref().map(|(k, _)| k));
    println!(
        "Redis: XADD, batches pipelined, appendfsync everysec or always. NATS: JetStream, file\n\
         storage, batches asynchronous, sync_interval 2m or always. Kafka: its own tools, one\n\
         producer, acks=1, flush.messages=1 when synced; latencies in whole milliseconds."
    );
}

/// Measures each server three times in alternation, so that a slow minute of the machine does not
/// affect one server only.
fn rounds<T>(servers: &[Option<&dyn Server>], f: impl Fn(&dyn Server) -> T) -> Vec<Option<Vec<T>>> {
    let mut all: Vec<_> = servers.iter().map(|s| s.map(|_| Vec::new())).collect();
    for _ in 0..3 {
        for (server, runs) in servers.iter().zip(&mut all) {
            if let (Some(server), Some(runs)) = (server, runs) {
                runs.push(f(*server));
            }
        }
    }
    all
}

/// A row of the figures with Kafka's, which is measured once.
fn with_kafka(mut runs: Runs, kafka: Option<f64>) -> Runs {
    runs.push(kafka.map(|figure| vec![figure]));
    runs
}

/// Rows of a lone writer in each placement. Kafka's tools know whole milliseconds, and are placed by
/// the scheduler.
fn latencies(servers: &[Option<&dyn Server>], synced: bool, class: &str, broker: Option<&Kafka>) {
    let slow = broker.map(|k| k.produce(synced, scaled(1000, 1), 200, 1).1 * 1000.0);
    for placement in Placement::REMOTE {
        let both = rounds(servers, |s| latency(s, synced, placement));
        for (i, quantile) in ["p50", "p99"].into_iter().enumerate() {
            let runs = both.iter().map(|r| r.as_ref().map(|r| r.iter().map(|v| v[i]).collect()));
            let place = placement.name();
            let mut work = Work::new(format!("1 × 1 record{class}, {place}: {quantile}"), "µs");
            if i == 0 {
                work.beside_redis = Some(if synced { 1.1 } else { 1.0 / 1.1 });
            }
            let kafka = slow.filter(|_| i == 0 && placement == Placement::Free);
            show_row(&work, with_kafka(runs.collect(), kafka));
        }
    }
}

fn compare(ours: &Topics, servers: &[Option<&dyn Server>], broker: Option<&Kafka>) {
    for synced in [false, true] {
        let class = if synced { ", synced" } else { "" };
        latencies(servers, synced, class, broker);
        for conns in [16, 64] {
            let mut work = Work::new(format!("{conns} writers × 1 record{class}"), "rec/s");
            work.beside_redis = Some(if synced || conns == 64 { 1.1 } else { 1.0 });
            show_row(&work, with_kafka(rounds(servers, |s| writes(s, synced, conns, 1)), None));
        }
        for (conns, n) in [(16, 100), (8, 1000)] {
            let work = Work::new(format!("{conns} writers × {n} records{class}"), "rec/s");
            let records = scaled(if synced { 300_000 } else { 1_000_000 }, 1000);
            let bulk = broker.map(|k| k.produce(synced, records, -1, n as u64).0);
            let runs = rounds(servers, |s| {
                let rate = writes(s, synced, conns, n);
                ours.trim();
                rate
            });
            show_row(&work, with_kafka(runs, bulk));
        }
    }
    let consumed = broker.map(|k| k.consume(scaled(1_000_000, 1000)));
    let work = Work::new("reading 1000 at a time", "rec/s");
    show_row(&work, with_kafka(rounds(servers, read), consumed));
}
