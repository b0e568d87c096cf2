//! A close gives back every descriptor, mapping and thread, while handles are still referenced. A
//! binary of its own: threads and descriptors are those of the process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use topics_engine::{
    Append, ConfigPatch, ConsumerRead, ConsumerStart, Engine, NewRecord, Options, ReadRequest,
    TopicType, WatchRequest,
};
use topics_env::real::{Backend, real_env};

/// What of the process leads into a directory: descriptors and mappings.
fn leads_into(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok());
    let mut found: Vec<String> = fds.map(|p| p.display().to_string()).collect();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    found.extend(maps.lines().map(str::to_owned));
    found.retain(|line| line.contains(dir));
    found
}

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |e: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(e.ok()?.path().join("comm")).ok()
    };
    let mut names: Vec<String> = tasks.filter_map(name).collect();
    names.retain(|n| n.starts_with("topics-"));
    names
}

/// Checks that the engine's threads end. The kernel may list a thread for a moment after it was
/// joined.
fn assert_threads_end(at: &str) {
    let until = Instant::now() + Duration::from_secs(300);
    while !threads().is_empty() {
        assert!(Instant::now() < until, "{at}: {:?}", threads());
        std::thread::yield_now();
    }
}

/// Reports that the running test is skipped. Not with `println!`, which a test's runner captures.
fn skipped(reason: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("\nskipped: {name}: {reason}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

fn put(engine: &Engine, topic: &str, n: usize) {
    for _ in 0..n {
        let records = [NewRecord { data: &[b'x'; 3_000], ..NewRecord::default() }; 100];
        engine.append(topic, &Append { records: &records, ..Append::default() }).unwrap();
    }
}

/// Opens, uses, closes; what was handed out is held until the end.
fn use_and_close(dir: &Path, backend: Backend) {
    let options = Options { segment_max_events: 200, wal_file_max: 1 << 20, ..Options::default() };
    let open = || Engine::open(real_env(backend).unwrap(), dir, options.clone()).unwrap();
    let engine = open();
    put(&engine, "t", 12);
    engine.checkpoint().unwrap();
    put(&engine, "t", 3);
    let queue = ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() };
    engine.create_topic("q", &queue).unwrap();
    let work = engine.work("q", b"n", 3, None).unwrap();
    let batch = engine.read("t", &ReadRequest::default()).unwrap();
    let consumer = engine.consumer("t", "c", None, ConsumerStart::Start, true).unwrap();
    let read = consumer.read(&ConsumerRead::default()).unwrap();
    let watch = engine.watch(&WatchRequest::default());
    assert!(!leads_into(dir).is_empty() && !threads().is_empty());
    engine.close().unwrap();
    assert_eq!(leads_into(dir), Vec::<String>::new(), "{backend:?}");
    assert_threads_end(&format!("{backend:?}"));
    assert_eq!(batch.iter().next().unwrap().data, [b'x'; 3_000]);
    assert_eq!(read.iter().next().unwrap().data, [b'x'; 3_000]);
    assert_eq!(consumer.read(&ConsumerRead::default()).unwrap_err().code(), "shutting_down");
    engine.close().unwrap();
    drop((work, consumer, watch, engine));
    let again = Engine::open_read_only(real_env(backend).unwrap(), dir, options).unwrap();
    let batch = again.read("t", &ReadRequest::default()).unwrap();
    again.close().unwrap();
    assert_eq!(leads_into(dir), Vec::<String>::new(), "{backend:?}, read only");
    assert!(!batch.is_empty());
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("topics-closing-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// One test: each looks at the whole process.
#[test]
fn a_close_gives_everything_back_while_handles_are_referenced() {
    for backend in [Backend::Posix, Backend::Auto] {
        let dir = scratch("plain");
        use_and_close(&dir, backend);
        std::fs::remove_dir_all(&dir).unwrap();
    }
    let dir = scratch("mount");
    let mount = |args: &[&str]| Command::new(args[0]).args(&args[1..]).status();
    let path = dir.to_str().unwrap();
    let mounted = mount(&["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", path]);
    if !mounted.is_ok_and(|s| s.success()) {
        return skipped("no file system can be mounted here (root may)");
    }
    use_and_close(&dir.join("data"), Backend::Posix);
    let gone = mount(&["umount", path]).unwrap().success();
    if !gone {
        let _ = mount(&["umount", "-l", path]);
    }
    let _ = std::fs::remove_dir(&dir);
    assert!(gone, "the file system is still in use");
}
