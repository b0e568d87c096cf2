//! Delivery at the sizes that it is made for, with what that takes of memory. A binary of its own,
//! one test at a time: memory is that of the process.
#![allow(clippy::unwrap_used, clippy::panic, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use topics_engine::{
    Append, ConfigPatch, Durability, Engine, Event, NewRecord, Options, ReadFrom, Received, Watch,
    WatchRequest, WatchStart,
};
use topics_env::real::{Backend, real_env};

static ONE: Mutex<()> = Mutex::new(());

/// An engine without threads: whoever calls `tick` delivers.
struct Db {
    engine: Engine,
    dir: PathBuf,
    _one: MutexGuard<'static, ()>,
}

impl Db {
    fn open(name: &str) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = std::env::temp_dir().join(format!("topics-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let options = Options { background: false, memory_bytes: 1 << 30, ..Options::default() };
        let env = real_env(Backend::Posix).unwrap();
        Self { engine: Engine::open(env, &dir, options).unwrap(), dir, _one: one }
    }

    fn topics(&self, n: usize) -> Vec<String> {
        let names: Vec<_> = (0..n).map(|i| format!("t.{i:06}")).collect();
        let patch = ConfigPatch { durability: Some(Durability::Memory), ..ConfigPatch::default() };
        for name in &names {
            self.engine.create_topic(name, &patch).unwrap();
        }
        names
    }

    fn put(&self, topic: &str) {
        let records = [NewRecord { data: b"1", ..NewRecord::default() }];
        let req = Append { records: &records, ..Append::default() };
        self.engine.append(topic, &req).unwrap();
    }

    /// Writes to each, as far as the log's buffers go at a time.
    fn put_all(&self, topics: &[String]) {
        for some in topics.chunks(10_000) {
            some.iter().for_each(|t| self.put(t));
            self.engine.drive();
        }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // Not closed: a checkpoint of all topics is not what is measured.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Counts the allocated bytes. What the process has of the system's memory depends on the machine.
struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn memory() -> u64 {
    ALLOCATED.load(Relaxed) as u64
}

fn on(topics: &[String]) -> WatchRequest {
    let start = WatchStart { from: ReadFrom::Tail(0), topic_id: None };
    let topics = topics.iter().map(|t| (t.clone(), start)).collect();
    WatchRequest { topics, ..WatchRequest::default() }
}

/// Everything that there is: records, and topics that caught up.
fn drain(watch: &mut Watch) -> (usize, usize) {
    let (mut records, mut caught) = (0, 0);
    while let Some(event) = watch.try_next().unwrap() {
        match event {
            Event::Records(frame) => records += frame.batch().len(),
            Event::CaughtUp { .. } => caught += 1,
            other => panic!("{other:?}"),
        }
    }
    (records, caught)
}

#[test]
fn a_thousand_sessions_of_256_topics_take_little_memory() {
    const SESSIONS: usize = 1000;
    let db = Db::open("sessions");
    let names = db.topics(256);
    db.put_all(&names);
    let before = memory();
    let mut all: Vec<Watch> = (0..SESSIONS)
        .map(|_| {
            let session = db.engine.create_session(&on(&names), "").unwrap();
            let mut watch = db
                .engine
                .attach(&db.engine.session(session.id, "").unwrap(), &Received::All)
                .unwrap();
            assert_eq!(drain(&mut watch), (0, 256));
            watch
        })
        .collect();
    let each = memory().saturating_sub(before) / (SESSIONS * 256) as u64;
    println!("{each} bytes of memory for each of 256 000 subscriptions");
    assert!(each <= 640, "{each} bytes for each subscription");
    db.put_all(&names);
    assert_eq!(db.engine.metrics().ready_topics, 256, "a topic waits once");
    db.engine.tick().unwrap();
    for watch in &mut all {
        assert_eq!(drain(watch), (256, 0));
    }
    // A new topic costs those nothing who cannot want it.
    db.put("other");
    assert_eq!(db.engine.metrics().ready_topics, 0);
    drop(all);
    let m = db.engine.metrics();
    assert_eq!((m.watch_streams, m.watch_sessions), (0, SESSIONS as u64));
}

#[test]
fn a_hundred_thousand_dirty_topics_wait_once_each() {
    const TOPICS: usize = 100_000;
    let db = Db::open("dirty");
    let names = db.topics(TOPICS);
    let mut all: Vec<Watch> =
        names.chunks(256).map(|some| db.engine.watch(&on(some)).unwrap()).collect();
    for watch in &mut all {
        drain(watch);
    }
    let idle = memory();
    db.put_all(&names);
    let m = db.engine.metrics();
    assert_eq!(m.ready_topics, TOPICS as u64);
    let first = memory();
    // Written to again and again they wait no more than once.
    for _ in 0..3 {
        db.put_all(&names);
        assert_eq!(db.engine.metrics().ready_topics, TOPICS as u64);
    }
    let dirty = first.saturating_sub(idle);
    println!("{} MB when all are dirty, records and log buffers included", dirty >> 20);
    assert!(dirty <= 128 << 20, "{dirty}");
    db.engine.tick().unwrap();
    assert_eq!(db.engine.metrics().ready_topics, 0);
    let records: usize = all.iter_mut().map(|w| drain(w).0).sum();
    assert_eq!(records, TOPICS * 4);
}
