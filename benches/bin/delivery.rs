//! From a write to its watchers: latency, alone and under load, fan-out, the cost of routers, and
//! the cost of many topics and many subscriptions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use topics_benches::{
    Goal, Placement, Row, Samples, Table, backend, device_sync, retried, rss_anon, scaled, scratch,
    sync_all,
};
use topics_engine::{
    Append, ConfigPatch, Durability, Engine, Event, NewRecord, Options, RouterRequest, Watch,
    WatchRequest, WatchStart,
};
use topics_env::real::real_env;

/// The longest wait.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn topic(db: &Engine, name: &str, durability: Durability) {
    let patch = ConfigPatch { durability: Some(durability), ..ConfigPatch::default() };
    db.create_topic(name, &patch).unwrap();
}

fn one(db: &Engine, name: &str) {
    let rec = [NewRecord { data: &[b'x'; 100], binary: true, ..NewRecord::default() }];
    retried(|| db.append(name, &Append { records: &rec, ..Append::default() }));
}

/// A watcher at the tail that has received the position.
fn watch(db: &Engine, name: &str) -> Watch {
    let topics = vec![(name.to_owned(), WatchStart::default())];
    let mut watch = db.watch(&WatchRequest { topics, ..WatchRequest::default() }).unwrap();
    assert!(matches!(watch.next(LONG).unwrap(), Some(Event::CaughtUp { .. })));
    watch
}

/// Receives until `n` records have arrived.
fn take(watch: &mut Watch, mut n: usize) {
    while n > 0 {
        match watch.next(LONG).unwrap() {
            Some(Event::Records(frame)) => n -= frame.batch().len(),
            Some(_) => {}
            None => panic!("a watcher received nothing"),
        }
    }
}

/// One write at a time, until a watcher that is blocked on another thread has received it.
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
            // The watcher is parked after this time.
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

/// Measures device and engine in alternation, so that a disturbance of one is visible beside the
/// other. A synced record cannot be visible before a sync has returned, so a ratio below 1 means
/// that the probe was disturbed or that the engine is wrong; each round is printed.
fn synced(table: &mut Table, db: &Engine, dir: &std::path::Path) {
    let (mut all, mut device, mut p50) = (Samples::default(), Samples::default(), Vec::new());
    let mut rounds = String::new();
    let n = scaled(300, 1) as usize;
    for _ in 0..7 {
        sync_all();
        let mut probe = device_sync(dir, 170, n);
        let before = db.metrics().sync_wait;
        let mut samples = latency(db, "fsync", "fsync", n);
        let after = db.metrics().sync_wait;
        let waited = (after.sum_ns - before.sum_ns) / (after.count - before.count).max(1);
        rounds += &format!(
            "{:.0}/{:.0} ({} waits, mean {}) ",
            samples.us(0.5),
            probe.us(0.5),
            after.count - before.count,
            waited / 1000
        );
        p50.push(samples.us(0.5));
        all.0.extend(samples.0);
        device.0.extend(probe.0);
    }
    println!("  synced, visible/device p50 by round: {rounds}");
    let goal = Goal::Max(1000.0 + device.us(0.5));
    let row =
        Row::latency("write → visible to a watcher, fsync: p50", Placement::Embedded, &mut all)
            .runs(p50);
    table.add(row.goal(goal).device_latency(&mut device));
}

/// One thread receives from all watchers: measures the cost of the worker, not of the scheduler.
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
        let each = format!("{:.2} µs for each watcher", samples.us(0.5) / n as f64);
        let work = format!("write → received by all of {n} watchers: p50");
        table.add(Row::latency(work, Placement::Embedded, &mut samples).note(each));
    }
}

/// Writers that leave processor time free, each with its own watcher, while `work` runs.
fn beside_others<T>(db: &Engine, class: Durability, work: impl FnOnce() -> T) -> (T, f64) {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    let out = std::thread::scope(|s| {
        for i in 0..4 {
            let name = format!("load.{}.{i}", class.as_str());
            topic(db, &name, class);
            let mut watch = watch(db, &name);
            let (stop, written) = (&stop, &written);
            s.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let _ = watch.next(Some(Duration::from_millis(20))).unwrap();
                }
            });
            s.spawn(move || {
                let rec = NewRecord { data: &[b'x'; 100], binary: true, ..NewRecord::default() };
                let recs = [rec; 10];
                while !stop.load(Ordering::Relaxed) {
                    retried(|| db.append(&name, &Append { records: &recs, ..Append::default() }));
                    written.fetch_add(10, Ordering::Relaxed);
                    if class != Durability::Fsync {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        let out = work();
        stop.store(true, Ordering::Relaxed);
        out
    });
    (out, written.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64())
}

/// The budget applies to an engine that is not saturated: others also write and watch.
fn under_load(table: &mut Table, db: &Engine) {
    for (class, what) in [
        (Durability::Disk, "4 paced writers, watched"),
        (Durability::Fsync, "4 writers that sync, watched"),
    ] {
        let (mut samples, rate) =
            beside_others(db, class, || latency(db, "disk", "disk", scaled(1500, 1) as usize));
        let pressure = db.metrics().pressure_ppm as f64 / 1e6;
        let notes = format!(
            "p50 {:.0}; {:.0} k rec/s beside it, pressure {pressure:.2}",
            samples.us(0.5),
            rate / 1000.0
        );
        let work = format!("write → visible beside {what}: p99");
        table.row(&work, samples.us(0.99), "µs", Goal::Max(5000.0), &notes);
    }
}

fn route(db: &Engine, name: &str, source: &str, dest: &str) {
    let req =
        RouterRequest { source: source.into(), dest: dest.into(), ..RouterRequest::default() };
    db.create_router(name, &req).unwrap();
}

fn batches(db: &Engine, name: &str, runs: usize, records: usize) {
    let rec = NewRecord { data: &[b'x'; 100], binary: true, ..NewRecord::default() };
    let recs = vec![rec; records];
    for _ in 0..runs {
        retried(|| db.append(name, &Append { records: &recs, ..Append::default() }));
    }
}

fn router(table: &mut Table, db: &Engine, direct: f64) {
    topic(db, "source", Durability::Disk);
    route(db, "r", "source", "dest");
    let mut samples = latency(db, "source", "dest", scaled(1000, 1) as usize);
    let p50 = samples.us(0.5);
    let notes = format!("p99 {:.0}; direct {direct:.0}", samples.us(0.99));
    table.row("router: added to that, p50", p50 - direct, "µs", Goal::Max(50.0), &notes);
    let start = Instant::now();
    batches(db, "source", 300, 1000);
    while db.router("r").unwrap().lag > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = 300_000.0 / start.elapsed().as_secs_f64();
    table.row("router: batches of 1000, written and copied", rate, "rec/s", Goal::None, "");
}

/// Twenty routers in a chain.
fn chain(table: &mut Table, db: &Engine, direct: f64) {
    const DEEP: usize = 20;
    let name = |i: usize| format!("chain.{i:02}");
    topic(db, &name(0), Durability::Disk);
    (0..DEEP).for_each(|i| route(db, &format!("chain-{i}"), &name(i), &name(i + 1)));
    let mut samples = latency(db, &name(0), &name(DEEP), scaled(500, 1) as usize);
    let (p50, p99) = (samples.us(0.5), samples.us(0.99));
    let notes = format!("p99 {p99:.0} in all, p50 {p50:.0}; direct {direct:.0}");
    let hop = (p50 - direct) / DEEP as f64;
    table.row("20 routers in a chain: added by each, p50", hop, "µs", Goal::Max(50.0), &notes);
    let mut last = watch(db, &name(DEEP));
    let start = Instant::now();
    batches(db, &name(0), 50, 1000);
    take(&mut last, 50_000);
    let rate = 50_000.0 * DEEP as f64 / start.elapsed().as_secs_f64();
    table.row("20 routers in a chain: copies, batches of 1000", rate, "rec/s", Goal::None, "");
}

/// A thousand routers from one topic.
fn spread(table: &mut Table, db: &Engine) {
    const WIDE: usize = 1000;
    topic(db, "hub", Durability::Disk);
    let dests: Vec<_> = (0..WIDE).map(|i| format!("spoke.{i:04}")).collect();
    for (i, dest) in dests.iter().enumerate() {
        route(db, &format!("spoke-{i}"), "hub", dest);
    }
    let mut watches: Vec<_> = dests.chunks(250).map(|some| watch_all(db, some)).collect();
    let mut samples = Samples::default();
    for _ in 0..20 {
        samples.time(|| {
            one(db, "hub");
            watches.iter_mut().for_each(|w| take(w, 250));
        });
    }
    let p50 = samples.us(0.5);
    let notes = format!("p99 {:.0}; {:.2} µs for each", samples.us(0.99), p50 / WIDE as f64);
    let work = "1 → 1000 routers: write → all copies visible, p50";
    table.row(work, p50, "µs", Goal::Max(WIDE as f64 * 50.0), &notes);
    let start = Instant::now();
    batches(db, "hub", 10, 20);
    watches.iter_mut().for_each(|w| take(w, 250 * 200));
    let rate = 200.0 * WIDE as f64 / start.elapsed().as_secs_f64();
    table.row("1 → 1000 routers: copies, batches of 20", rate, "rec/s", Goal::None, "");
}

/// A watcher at the tails of up to 256 topics, each of which has reported its position.
fn watch_all(db: &Engine, names: &[String]) -> Watch {
    let topics = names.iter().map(|n| (n.clone(), WatchStart::default())).collect();
    let mut watch = db.watch(&WatchRequest { topics, ..WatchRequest::default() }).unwrap();
    for _ in names {
        assert!(matches!(watch.next(LONG).unwrap(), Some(Event::CaughtUp { .. })));
    }
    watch
}

/// Many topics that become dirty at the same time, and many subscriptions.
fn many(table: &mut Table, db: &Engine) {
    const TOPICS: usize = 50_000;
    let names: Vec<_> = (0..TOPICS).map(|i| format!("many.{i:06}")).collect();
    names.iter().for_each(|n| topic(db, n, Durability::Memory));
    let before = rss_anon("self");
    let mut watches: Vec<_> = names.chunks(256).map(|some| watch_all(db, some)).collect();
    let each = rss_anon("self").saturating_sub(before) as f64 / TOPICS as f64;
    table.row("memory of a topic's first watcher", each, "B", Goal::None, "50 000 topics");
    let (start, mut deepest) = (Instant::now(), 0);
    for (i, n) in names.iter().enumerate() {
        one(db, n);
        if i % 1000 == 0 {
            deepest = deepest.max(db.metrics().ready_topics);
        }
    }
    watches.iter_mut().zip(names.chunks(256)).for_each(|(w, some)| take(w, some.len()));
    let rate = TOPICS as f64 / start.elapsed().as_secs_f64();
    let notes = format!("{deepest} waited at once; written by one thread meanwhile");
    table.row("50 000 topics dirty one after the other", rate, "/s", Goal::None, &notes);
}

/// Measured first, because later the process can reuse memory.
fn subscriptions(table: &mut Table, db: &Engine) {
    let names: Vec<_> = (0..256).map(|i| format!("few.{i}")).collect();
    names.iter().for_each(|n| topic(db, n, Durability::Memory));
    let before = rss_anon("self");
    let all: Vec<_> = (0..1000).map(|_| watch_all(db, &names)).collect();
    let each = rss_anon("self").saturating_sub(before) as f64 / 256_000.0;
    table.row("memory of a subscription", each, "B", Goal::None, "1000 watchers of 256 topics");
    drop(all);
}

fn main() {
    let dir = scratch("delivery");
    let db = Engine::open(real_env(backend()).unwrap(), &dir, Options::default()).unwrap();
    let mut table = Table::new("delivery", "delivery, embedded");
    topic(&db, "disk", Durability::Disk);
    topic(&db, "fsync", Durability::Fsync);
    subscriptions(&mut table, &db);
    sync_all();
    let idle = db.metrics().scheduling;
    let mut disk = latency(&db, "disk", "disk", scaled(3000, 1) as usize);
    let direct = disk.us(0.5);
    let row =
        Row::latency("write → visible to a watcher, disk: p50", Placement::Embedded, &mut disk);
    table.add(row.goal(Goal::Max(1000.0)).note("goal of p99: 5000"));
    let waited = db.metrics().scheduling;
    let (n, ns) = (waited.count - idle.count, waited.sum_ns - idle.sum_ns);
    let (mean, notes) =
        (ns as f64 / n.max(1) as f64 / 1000.0, format!("{n} services, idle engine"));
    table.row("a dirty topic waits for its worker: mean", mean, "µs", Goal::Max(100.0), &notes);
    synced(&mut table, &db, &dir);
    under_load(&mut table, &db);
    fan_out(&mut table, &db);
    router(&mut table, &db, direct);
    chain(&mut table, &db, direct);
    spread(&mut table, &db);
    many(&mut table, &db);
    table.finish();
    // Not closed: a checkpoint would make files for 50 000 topics.
    drop(db);
    std::fs::remove_dir_all(dir).unwrap();
}
