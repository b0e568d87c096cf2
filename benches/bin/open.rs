//! Opening after a kill and after a clean close, memory, bytes on disk, growth with the log.
//!
//! `bench-open` runs itself as a child (`fill`, `open`), so that a kill is a real SIGKILL and the
//! measured memory is that of an opening process only.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use topics_benches::{
    Goal, Row, Samples, Table, backend, disk_bytes, retried, rss_anon, scaled, scratch, sync_all,
};
use topics_engine::{
    Append, ConfigPatch, DeleteRequest, Durability, Engine, NewRecord, Options, ReadFrom,
    ReadRequest, TopicMatch,
};
use topics_env::real::real_env;

fn records() -> u64 {
    scaled(2_260_000, 1000)
}

fn open(dir: &Path) -> Engine {
    Engine::open(real_env(backend()).unwrap(), dir, Options::default()).unwrap()
}

/// An engine without a limit of topics.
fn open_many(dir: &Path) -> Engine {
    let options = Options { max_topics: 0, ..Options::default() };
    Engine::open(real_env(backend()).unwrap(), dir, options).unwrap()
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
        retried(|| db.append(topic, &Append { records: &recs, ..Append::default() }));
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
            prepare(&dir, records(), end);
            disk = disk_bytes(&dir) as f64;
            segments = disk_bytes(&dir.join("topics")) as f64;
            let (ms, rss) = opened(&dir);
            times.push(ms);
            mem.push(rss / 1e6);
            let _ = std::fs::remove_dir_all(&dir);
        }
        let work = format!("open 2.26 M records after {end}");
        table.add(Row::repeated(work, times, "ms").goal(Goal::Max(goal)));
        let work = format!("RssAnon after opening ({end})");
        table.add(Row::repeated(work, mem, "MB").goal(Goal::Max(80.0)));
        if end == "clean" {
            let per = |bytes: f64| bytes / records() as f64;
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

/// Writes one record to each of `n` topics.
fn touch(db: &Engine, n: u64) {
    let rec = [NewRecord { data: b"1", ..NewRecord::default() }];
    for i in 0..n {
        let name = format!("topic-{i}");
        retried(|| db.append(&name, &Append { records: &rec, ..Append::default() }));
    }
}

fn topics(table: &mut Table, csv: &mut String) {
    let dir = scratch("topics");
    let db = open_many(&dir);
    append(&db, "log", LOG);
    let before = rss_anon("self");
    let n = scaled(100_000, 1);
    touch(&db, n);
    let start = Instant::now();
    db.checkpoint().unwrap();
    let round = start.elapsed().as_secs_f64();
    let per = (rss_anon("self") - before) as f64 / n as f64;
    let fresh = "just written, buffers of the log included";
    table.row("memory per idle topic, 100 000 topics", per, "B", Goal::Max(2048.0), fresh);
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    table.row("descriptors, 100 000 topics", fds as f64, "", Goal::Max(4096.0), "");
    table.row("checkpoint of 100 000 dirty topics", round, "s", Goal::Max(3.0), "");
    stalls(table, &db, n);
    let start = Instant::now();
    db.close().unwrap();
    table.row("clean close of these", start.elapsed().as_secs_f64(), "s", Goal::None, "");
    drop(db);
    let (ms, rss) = opened(&dir);
    let notes = format!("RssAnon {:.0} MB, {:.0} B per topic", rss / 1e6, rss / n as f64);
    table.row("open 100 000 topics, clean", ms, "ms", Goal::None, &notes);
    Costs::measure(&dir, LOG).row(table, csv, "topics", n);
    // Where a file system discards what is freed, this takes as long as making them.
    let _ = std::fs::remove_dir_all(&dir);
}

/// What a checkpoint of many topics does to single writes beside it.
fn stalls(table: &mut Table, db: &Engine, topics: u64) {
    let classes = [("disk", Durability::Disk), ("synced", Durability::Fsync)];
    for (name, durability) in classes {
        let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
        db.create_topic(name, &patch).unwrap();
    }
    let (_, mut idle) = beside_writers(db, || std::thread::sleep(Duration::from_secs(3)));
    touch(db, topics);
    sync_all();
    let (took, mut beside) = beside_writers(db, || {
        let start = Instant::now();
        db.checkpoint().unwrap();
        start.elapsed().as_secs_f64()
    });
    table.row("the next checkpoint of these, beside writers", took, "s", Goal::None, "");
    for (i, (name, _)) in classes.into_iter().enumerate() {
        for (quantile, q) in [("p99", 0.99), ("p99.9", 0.999)] {
            let work = format!("one record, {name}, beside that checkpoint: {quantile}");
            let (without, max) = (idle[i].us(q), beside[i].us(1.0));
            let notes = format!("{without:.0} without a checkpoint; max {max:.0}");
            let goal = Goal::Max(2.0 * without);
            table.row(&work, beside[i].us(q), "µs", goal, &notes);
        }
    }
}

/// Runs `work` beside two threads that write single records, one to each of the topics `disk` and
/// `synced`, and leave processor time free; returns the latencies of the two.
fn beside_writers<T>(db: &Engine, work: impl FnOnce() -> T) -> (T, [Samples; 2]) {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let writers = ["disk", "synced"].map(|topic| {
            let done = &done;
            s.spawn(move || {
                let rec = [NewRecord { data: b"1", ..NewRecord::default() }];
                let append = Append { records: &rec, ..Append::default() };
                let mut samples = Samples::default();
                while !done.load(Ordering::Relaxed) {
                    samples.time(|| retried(|| db.append(topic, &append)));
                    std::thread::sleep(Duration::from_micros(200));
                }
                samples
            })
        });
        let out = work();
        done.store(true, Ordering::Relaxed);
        (out, writers.map(|w| w.join().unwrap()))
    })
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

/// Records of the topic that is measured in a directory with many topics.
const LOG: u64 = 10_000;

/// Records of the largest log of the growth rows.
fn largest_log() -> u64 {
    let given = std::env::var("TOPICS_BENCH_MAX").ok().and_then(|v| v.parse().ok());
    given.unwrap_or(scaled(10_000_000, 10_000))
}

/// Costs from 10⁴ to 10⁷ records of one topic, and from 10 to 10 000 topics, [`topics`] has more; also
/// as a table for `plot.py`.
fn growth(table: &mut Table, csv: &mut String, records: bool) {
    let max = largest_log();
    let mut n = 10_000;
    while records && n <= max {
        let dir = scratch("growth");
        prepare(&dir, n, "clean");
        Costs::measure(&dir, n).row(table, csv, "records", n);
        let _ = std::fs::remove_dir_all(&dir);
        n *= 10;
    }
    let mut n = 10;
    while n <= max / 1000 {
        let dir = scratch("growth");
        let db = open(&dir);
        append(&db, "log", LOG);
        touch(&db, n);
        db.close().unwrap();
        drop(db);
        Costs::measure(&dir, LOG).row(table, csv, "topics", n);
        let _ = std::fs::remove_dir_all(&dir);
        n *= 10;
    }
}

/// The classes, with the maximum number of records in the growth rows: those of class `ephemeral` stay
/// in memory.
const CLASSES: [(&str, Durability, u64); 4] = [
    ("ephemeral", Durability::Ephemeral, 1_000_000),
    ("memory", Durability::Memory, u64::MAX),
    ("disk", Durability::Disk, u64::MAX),
    ("fsync", Durability::Fsync, u64::MAX),
];

/// An engine with `topics` topics of one class. `ephemeral` records have no limit.
fn open_class(dir: &Path, topics: &[String], durability: Durability) -> Engine {
    let options = Options { ephemeral_bytes: 0, ..Options::default() };
    let db = Engine::open(real_env(backend()).unwrap(), dir, options).unwrap();
    let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
    for topic in topics {
        db.create_topic(topic, &patch).unwrap();
    }
    db
}

/// The median cost of single appends, in turn to these topics, in microseconds.
fn append_cost(db: &Engine, topics: &[String]) -> f64 {
    let rec = [NewRecord { data: b"1", ..NewRecord::default() }];
    let one = Append { records: &rec, ..Append::default() };
    let mut samples = Samples::default();
    for topic in topics.iter().cycle().take(2_000) {
        samples.time(|| retried(|| db.append(topic, &one)));
    }
    samples.us(0.5)
}

/// Single appends of every class after 10⁴ to `max` records of one topic, the first million of them one
/// by one, and beside 1 to 100 000 topics, with the engine that wrote them.
fn classes(table: &mut Table, csv: &mut String, max: u64) {
    use std::fmt::Write;
    let mut add = |axis: &str, class: &str, n: u64, cost: f64| {
        let work = format!("growth: append, {class}, {n} {axis}");
        table.row(&work, cost, "µs", Goal::None, "p50");
        writeln!(csv, "{axis},{n},\"append {class}, µs\",{cost}").unwrap();
    };
    for (class, durability, most) in CLASSES {
        let (topic, dir) = (["log".to_owned()], scratch("growth"));
        let db = open_class(&dir, &topic, durability);
        let (mut written, mut n) = (0, 10_000);
        while n <= max.min(most) {
            // A write of class `fsync` takes as long as the device.
            let singles = if durability == Durability::Fsync { 10_000 } else { 1_000_000 };
            for (size, to) in [(1, singles.min(n)), (1000, n)] {
                written += fill_topic(&db, &topic[0], to.saturating_sub(written), size);
            }
            add("records", class, n, append_cost(&db, &topic));
            n *= 10;
        }
        db.close().unwrap();
        drop(db);
        let _ = std::fs::remove_dir_all(&dir);
        let mut n = 1;
        while n <= scaled(100_000, 1) {
            let dir = scratch("growth");
            let topics: Vec<_> = (0..n).map(|i| format!("topic-{i}")).collect();
            let db = open_class(&dir, &topics, durability);
            add("topics", class, n, append_cost(&db, &topics));
            db.close().unwrap();
            drop(db);
            let _ = std::fs::remove_dir_all(&dir);
            n *= 10;
        }
    }
}

/// Appends `n` records of one byte, in writes of `size`; returns `n`.
fn fill_topic(db: &Engine, topic: &str, n: u64, size: usize) -> u64 {
    let records = vec![NewRecord { data: b"1", ..NewRecord::default() }; size];
    let mut left = n as usize;
    while left > 0 {
        let some = Append { records: &records[..size.min(left)], ..Append::default() };
        retried(|| db.append(topic, &some));
        left -= some.records.len();
    }
    n
}

/// The rows about many topics, with those about large logs if `all`.
fn rows(title: &str, all: bool) {
    let mut table = Table::new("open", title);
    let mut csv = String::from("axis,n,what,value\n");
    // First, because a file system without a journal (ext4) looks at each inode that was freed in the
    // last minutes whenever it makes a file.
    topics(&mut table, &mut csv);
    if all {
        opening(&mut table);
    }
    growth(&mut table, &mut csv, all);
    if all {
        classes(&mut table, &mut csv, largest_log());
    }
    if let Ok(path) = std::env::var("TOPICS_BENCH_CSV") {
        std::fs::write(path, csv).unwrap();
    }
    table.finish();
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
        ["topics"] => rows("Many topics", false),
        ["classes"] => {
            let mut table = Table::new("open", "Growth of every class");
            let mut csv = String::new();
            classes(&mut table, &mut csv, largest_log());
            table.finish();
        }
        _ => rows("Opening, memory, disk", true),
    }
}
