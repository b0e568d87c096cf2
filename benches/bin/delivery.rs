//! From a write to whoever watches: latency, fan-out, and what a router adds.

use std::time::{Duration, Instant};

use topics_benches::{Goal, Samples, Table, backend, device_sync, median, scratch, settle};
use topics_engine::{
    Append, ConfigPatch, Durability, Engine, Event, NewRecord, Options, RouterRequest, Watch,
    WatchRequest, WatchStart,
};
use topics_env::real::real_env;

/// Nobody waits longer.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn topic(db: &Engine, name: &str, durability: Durability) {
    let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
    db.create_topic(name, &patch).unwrap();
}

fn one(db: &Engine, name: &str) {
    let rec = [NewRecord { data: &[b'x'; 100], binary: true, ..NewRecord::default() }];
    db.append(name, &Append { records: &rec, ..Append::default() }).unwrap();
}

/// A watcher at the tail that has been told so.
fn watch(db: &Engine, name: &str) -> Watch {
    let topics = vec![(name.to_owned(), WatchStart::default())];
    let mut watch = db.watch(&WatchRequest { topics, ..WatchRequest::default() }).unwrap();
    assert!(matches!(watch.next(LONG).unwrap(), Some(Event::CaughtUp { .. })));
    watch
}

/// Takes until `n` records were told.
fn take(watch: &mut Watch, mut n: usize) {
    while n > 0 {
        match watch.next(LONG).unwrap() {
            Some(Event::Records(frame)) => n -= frame.batch().len(),
            Some(_) => {}
            None => panic!("a watcher waits in vain"),
        }
    }
}

/// One write at a time, until a watcher that is blocked on another thread has it.
fn latency(db: &Engine, write: &str, read: &str, n: usize) -> Samples {
    let mut watch = watch(db, read);
    let (ready, told) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    std::thread::scope(|s| {
        s.spawn(move || {
            for () in ready.1 {
                take(&mut watch, 1);
                told.0.send(Instant::now()).unwrap();
            }
        });
        let mut samples = Samples::default();
        for _ in 0..n {
            ready.0.send(()).unwrap();
            // The watcher is parked by then.
            std::thread::sleep(Duration::from_micros(200));
            let start = Instant::now();
            one(db, write);
            let at = told.1.recv().unwrap();
            samples.0.push(at.saturating_duration_since(start).as_nanos() as u64);
        }
        drop(ready.0);
        samples
    })
}

/// The device and the engine in turns: a disturbance of one is seen beside the other. A synced
/// record cannot be visible before a sync has returned, so a ratio below 1 says that the probe was
/// disturbed, or that the engine is wrong; each round is printed.
fn synced(table: &mut Table, db: &Engine, dir: &std::path::Path) {
    let (mut figures, mut devices, mut tail) = (Vec::new(), Vec::new(), 0.0f64);
    let mut rounds = String::new();
    for _ in 0..7 {
        settle();
        let device = device_sync(dir, 170, 300).us(0.5);
        let before = db.metrics().sync_wait;
        let mut samples = latency(db, "fsync", "fsync", 300);
        let after = db.metrics().sync_wait;
        let waited = (after.sum_ns - before.sum_ns) / (after.count - before.count).max(1);
        let figure = samples.us(0.5);
        rounds += &format!(
            "{figure:.0}/{device:.0} ({} waits, mean {}) ",
            after.count - before.count,
            waited / 1000
        );
        tail = tail.max(samples.us(0.99));
        figures.push(figure);
        devices.push(device);
    }
    println!("  synced, visible/device p50 by round: {rounds}");
    let (figure, device) = (median(figures), median(devices));
    let notes = format!("p99 {tail:.0}; device p50 {device:.0}, ratio {:.2}", figure / device);
    table.row("the same, class fsync: p50", figure, "µs", Goal::Max(1000.0 + device), &notes);
}

/// One thread takes from all of them: the worker's cost is measured, not the scheduler's.
fn fan_out(table: &mut Table, db: &Engine) {
    for n in [1usize, 100, 1000] {
        let mut all: Vec<_> = (0..n).map(|_| watch(db, "disk")).collect();
        let mut samples = Samples::default();
        for _ in 0..200 {
            samples.time(|| {
                one(db, "disk");
                all.iter_mut().for_each(|w| take(w, 1));
            });
        }
        let (p50, p99) = (samples.us(0.5), samples.us(0.99));
        let notes = format!("p99 {p99:.0}; {:.2} µs for each watcher", p50 / n as f64);
        let work = format!("write → in the hands of all of {n} watchers: p50");
        table.row(&work, p50, "µs", Goal::None, &notes);
    }
}

fn router(table: &mut Table, db: &Engine, direct: f64) {
    topic(db, "source", Durability::Disk);
    let route = |dest: &str| RouterRequest {
        source: "source".into(),
        dest: dest.into(),
        ..RouterRequest::default()
    };
    db.create_router("r", &route("dest")).unwrap();
    let mut samples = latency(db, "source", "dest", 1000);
    let p50 = samples.us(0.5);
    let notes = format!("p99 {:.0}; direct {direct:.0}", samples.us(0.99));
    table.row("router: added to that, p50", p50 - direct, "µs", Goal::Max(50.0), &notes);
    let data = [b'x'; 100];
    let recs = vec![NewRecord { data: &data, binary: true, ..NewRecord::default() }; 1000];
    let start = Instant::now();
    let runs = 300;
    for _ in 0..runs {
        db.append("source", &Append { records: &recs, ..Append::default() }).unwrap();
    }
    while db.router("r").unwrap().lag > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = f64::from(runs * 1000) / start.elapsed().as_secs_f64();
    table.row("router: batches of 1000, written and copied", rate, "rec/s", Goal::None, "");
}

fn main() {
    let dir = scratch("delivery");
    let db = Engine::open(real_env(backend()).unwrap(), &dir, Options::default()).unwrap();
    let mut table = Table::new("delivery, embedded");
    topic(&db, "disk", Durability::Disk);
    topic(&db, "fsync", Durability::Fsync);
    settle();
    let mut disk = latency(&db, "disk", "disk", 3000);
    let direct = disk.us(0.5);
    let notes = format!("p99 {:.0} (goal ≤ 5000)", disk.us(0.99));
    table.row("write → visible to a watcher, disk: p50", direct, "µs", Goal::Max(1000.0), &notes);
    synced(&mut table, &db, &dir);
    fan_out(&mut table, &db);
    router(&mut table, &db, direct);
    table.finish();
    db.close().unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}
