//! Opening after a kill and after a clean close, memory, bytes on disk, growth with the log.
//!
//! `bench-open` runs itself as a child (`fill`, `open`), so that a kill is a real SIGKILL and the
//! measured memory is that of an opening process only.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use topics_benches::{Goal, Samples, Table, backend, disk_bytes, median, rss_anon, scratch};
use topics_engine::{
    Append, DeleteRequest, Engine, NewRecord, Options, ReadFrom, ReadRequest, TopicMatch,
};
use topics_env::real::real_env;

const RECORDS: u64 = 2_260_000;

fn open(dir: &Path) -> Engine {
    Engine::open(real_env(backend()).unwrap(), dir, Options::default()).unwrap()
}

fn fill(dir: &Path, n: u64, end: &str) {
    let db = open(dir);
    append(&db, "log", n);
    match end {
        "clean" => {
            db.checkpoint().unwrap();
            db.close().unwrap();
        }
        _ => {
            db.sync().unwrap();
            println!("filled");
            loop {
                std::thread::park();
            }
        }
    }
}

fn append(db: &Engine, topic: &str, n: u64) {
    let mut data = vec![b'x'; 100];
    data[0] = b'"';
    data[99] = b'"';
    let recs = vec![NewRecord { data: &data, ..NewRecord::default() }; 1000];
    for _ in 0..n / 1000 {
        db.append(topic, &Append { records: &recs, ..Append::default() }).unwrap();
    }
}

fn child(args: &[&str]) -> Command {
    let mut c = Command::new(std::env::current_exe().unwrap());
    c.args(args);
    c
}

/// Fills in a child; after `kill` the child dies by SIGKILL.
fn prepare(dir: &Path, n: u64, end: &str) {
    use std::io::{BufRead, BufReader};
    let mut c = child(&["fill", dir.to_str().unwrap(), &n.to_string(), end])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    if end == "kill" {
        let mut line = String::new();
        BufReader::new(c.stdout.take().unwrap()).read_line(&mut line).unwrap();
        c.kill().unwrap();
    }
    let status = c.wait().unwrap();
    assert!(end == "kill" || status.success(), "filling failed");
}

/// Opens in a child; returns milliseconds and RssAnon bytes.
fn opened(dir: &Path) -> (f64, f64) {
    let out = child(&["open", dir.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "opening failed: {}", String::from_utf8_lossy(&out.stderr));
    let mut f = text.split_whitespace().map(|v| v.parse::<f64>().unwrap());
    (f.next().unwrap(), f.next().unwrap())
}

fn opening(table: &mut Table) {
    for (end, goal) in [("kill", 600.0), ("clean", 50.0)] {
        let (mut times, mut mem, mut disk, mut segments) = (Vec::new(), Vec::new(), 0.0, 0.0);
        for i in 0..3 {
            let dir = scratch(&format!("open-{end}-{i}"));
            prepare(&dir, RECORDS, end);
            disk = disk_bytes(&dir) as f64;
            segments = disk_bytes(&dir.join("topics")) as f64;
            let (ms, rss) = opened(&dir);
            times.push(ms);
            mem.push(rss);
            let _ = std::fs::remove_dir_all(&dir);
        }
        let work = format!("open 2.26 M records after {end}");
        table.row(&work, median(times), "ms", Goal::Max(goal), "");
        let work = format!("RssAnon after opening ({end})");
        table.row(&work, median(mem) / 1e6, "MB", Goal::Max(80.0), "");
        if end == "clean" {
            let per = |bytes: f64| bytes / RECORDS as f64;
            let notes = format!("in segments; {:.0} with all files and the reserve", per(disk));
            let work = "bytes on disk per 100 B record";
            table.row(work, per(segments), "B", Goal::Max(165.0), &notes);
        }
    }
    let dir = scratch("empty");
    open(&dir).close().unwrap();
    let mib = disk_bytes(&dir) as f64 / (1 << 20) as f64;
    table.row("an empty directory", mib, "MiB", Goal::Max(8.0), "");
    let _ = std::fs::remove_dir_all(&dir);
}

fn topics(table: &mut Table) {
    let dir = scratch("topics");
    let db = open(&dir);
    let before = rss_anon("self");
    let rec = [NewRecord { data: b"1", ..NewRecord::default() }];
    let n = 100_000u64;
    for i in 0..n {
        let name = format!("topic-{i}");
        db.append(&name, &Append { records: &rec, ..Append::default() }).unwrap();
    }
    let start = Instant::now();
    db.checkpoint().unwrap();
    let round = start.elapsed().as_secs_f64();
    let per = (rss_anon("self") - before) as f64 / n as f64;
    let fresh = "just written, buffers of the log included";
    table.row("memory per idle topic, 100 000 topics", per, "B", Goal::Max(2048.0), fresh);
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    table.row("descriptors, 100 000 topics", fds as f64, "", Goal::Max(4096.0), "");
    table.row("checkpoint of 100 000 dirty topics", round, "s", Goal::None, "");
    let start = Instant::now();
    db.close().unwrap();
    table.row("clean close of these", start.elapsed().as_secs_f64(), "s", Goal::None, "");
    drop(db);
    let (ms, rss) = opened(&dir);
    let notes = format!("RssAnon {:.0} MB, {:.0} B per topic", rss / 1e6, rss / n as f64);
    table.row("open 100 000 topics, clean", ms, "ms", Goal::None, &notes);
    let _ = std::fs::remove_dir_all(&dir);
}

/// The cost of operations on a log or directory of this size, medians.
struct Costs {
    open_ms: f64,
    append: f64,
    read: f64,
    delete: f64,
}

impl Costs {
    /// Appends, reads of 100 records and tag deletes of one record in the topic `log`, which has
    /// `n` records.
    fn measure(dir: &Path, n: u64) -> Self {
        let (open_ms, _) = opened(dir);
        let db = open(dir);
        let tagged = [NewRecord { data: b"1", tag: b"probe", ..NewRecord::default() }];
        let one = Append { records: &tagged, ..Append::default() };
        let (mut app, mut read, mut del) = <(Samples, Samples, Samples)>::default();
        for i in 0..200 {
            app.time(|| db.append("log", &one).unwrap());
            let from = ReadFrom::After((i * 7919) % n);
            let req = ReadRequest { from, limit: 100, ..Default::default() };
            read.time(|| db.read("log", &req).unwrap());
        }
        for _ in 0..20 {
            db.append("log", &one).unwrap();
            let m = Some(TopicMatch::Eq(b"probe".to_vec()));
            del.time(|| {
                db.delete("log", &DeleteRequest { before_seq: None, matching: m }).unwrap()
            });
        }
        db.close().unwrap();
        Self { open_ms, append: app.us(0.5), read: read.us(0.5), delete: del.us(0.5) }
    }

    fn row(&self, table: &mut Table, csv: &mut String, axis: &str, n: u64) {
        use std::fmt::Write;
        let notes = format!(
            "append {:.1} µs, diff of 100 {:.0} µs, tag delete {:.0} µs (p50)",
            self.append, self.read, self.delete
        );
        table.row(
            &format!("growth: open clean, {n} {axis}"),
            self.open_ms,
            "ms",
            Goal::None,
            &notes,
        );
        for (what, value) in [
            ("open after a clean close, ms", self.open_ms),
            ("append, µs", self.append),
            ("diff of 100, µs", self.read),
            ("tag delete, µs", self.delete),
        ] {
            writeln!(csv, "{axis},{n},\"{what}\",{value}").unwrap();
        }
    }
}

/// Costs from 10⁴ to 10⁷ records of one topic, and from 10 to 100 000 topics; also as a table for
/// `plot.py`.
fn growth(table: &mut Table, records: bool) {
    let max: u64 =
        std::env::var("TOPICS_BENCH_MAX").ok().and_then(|v| v.parse().ok()).unwrap_or(10_000_000);
    let mut csv = String::from("axis,n,what,value\n");
    let mut n = 10_000;
    while records && n <= max {
        let dir = scratch("growth");
        prepare(&dir, n, "clean");
        Costs::measure(&dir, n).row(table, &mut csv, "records", n);
        let _ = std::fs::remove_dir_all(&dir);
        n *= 10;
    }
    let mut n = 10;
    while n <= max / 100 {
        let dir = scratch("growth");
        let db = open(&dir);
        append(&db, "log", 10_000);
        let rec = [NewRecord { data: b"1", ..NewRecord::default() }];
        for i in 1..n {
            let one = Append { records: &rec, ..Append::default() };
            db.append(&format!("topic-{i}"), &one).unwrap();
        }
        db.close().unwrap();
        drop(db);
        Costs::measure(&dir, 10_000).row(table, &mut csv, "topics", n);
        let _ = std::fs::remove_dir_all(&dir);
        n *= 10;
    }
    if let Ok(path) = std::env::var("TOPICS_BENCH_CSV") {
        std::fs::write(path, csv).unwrap();
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["fill", dir, n, end] => fill(Path::new(dir), n.parse().unwrap(), end),
        ["open", dir] => {
            let start = Instant::now();
            let db = open(Path::new(dir));
            let ms = start.elapsed().as_secs_f64() * 1000.0;
            println!("{ms} {}", rss_anon("self"));
            db.close().unwrap();
        }
        // Only the rows about many topics.
        ["topics"] => {
            let mut table = Table::new("Many topics");
            topics(&mut table);
            growth(&mut table, false);
            table.finish();
        }
        _ => {
            let mut table = Table::new("Opening, memory, disk");
            opening(&mut table);
            topics(&mut table);
            growth(&mut table, true);
            table.finish();
        }
    }
}
