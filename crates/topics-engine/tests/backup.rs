//! Backups of a running engine and clones of a closed directory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use topics_engine::{
    Append, ConfigPatch, DeleteRequest, Durability, Engine, GapReason, NewRecord, Options,
    ReadFrom, ReadRequest, TopicMatch, TxnRequest, TxnRows, verify,
};
use topics_env::real::{Backend, real_env};
use topics_env::sync::Mutex;
use topics_env::{Env, Fs, Hook, Site, Verdict};
use topics_sim::{CallFilter, CallKind, FaultKind, SimClock, SimFs, env_on};

/// A directory that is removed with its value.
struct TempDir(PathBuf);

impl TempDir {
    fn new(below: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = below.join(format!("topics-backup-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    Options { wal_shards: 2, segment_max_events: 16, ..Options::default() }
}

fn class(durability: Durability) -> ConfigPatch {
    ConfigPatch { durability: Some(durability), ..ConfigPatch::default() }
}

fn put(engine: &Engine, topic: &str, data: &str, class: &ConfigPatch) -> u64 {
    let data = format!("\"{data}\"");
    let record = NewRecord { data: data.as_bytes(), tag: b"t", ..NewRecord::default() };
    let append = Append { records: &[record], config: Some(class), ..Append::default() };
    engine.append(topic, &append).unwrap().last_seq
}

/// The payloads of a topic by seq.
fn records(engine: &Engine, topic: &str) -> BTreeMap<u64, String> {
    let (mut out, mut from) = (BTreeMap::new(), 0);
    loop {
        let from_seq = ReadFrom::After(from);
        let request = ReadRequest { from: from_seq, limit: 1000, ..ReadRequest::default() };
        let page = engine.read(topic, &request).unwrap();
        for r in page.iter() {
            out.insert(r.seq, String::from_utf8_lossy(r.data).into_owned());
        }
        if page.caught_up {
            return out;
        }
        from = page.next_from_seq;
    }
}

fn real() -> Env {
    real_env(Backend::Posix).unwrap()
}

fn open(dir: &Path) -> Engine {
    Engine::open(real(), dir, options()).unwrap()
}

/// Every file below a directory, with its bytes and its number of links.
fn files(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, u64)> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(files(&path));
        } else {
            let links = std::fs::metadata(&path).unwrap().nlink();
            out.insert(path.clone(), (std::fs::read(&path).unwrap(), links));
        }
    }
    out
}

fn assert_sound(dir: &Path) {
    let report = verify(&real(), dir, &mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Acks of a writer: the seq and payload of each, in the order in which they came.
#[derive(Default)]
struct Acks {
    last: AtomicU64,
    deleted_below: AtomicU64,
}

/// Ends the threads of a test, also if it fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_backup_beside_writers_has_every_earlier_ack() {
    let temp = TempDir::new(&std::env::temp_dir());
    let engine = open(&temp.0.join("db"));
    let stop = AtomicBool::new(false);
    let acks: [Acks; 4] = Default::default();
    let classes = [Durability::Fsync, Durability::Disk, Durability::Memory, Durability::Disk];
    let txns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (i, acked) in acks.iter().enumerate() {
            let (engine, stop) = (&engine, &stop);
            scope.spawn(move || {
                let (topic, class) = (format!("log{i}"), class(classes[i]));
                for n in 1.. {
                    let seq = put(engine, &topic, &format!("{n}"), &class);
                    assert_eq!(seq, n);
                    acked.last.store(n, Ordering::SeqCst);
                    if n % 50 == 0 {
                        let before = DeleteRequest { before_seq: Some(n - 40), matching: None };
                        acked.deleted_below.store(n - 40, Ordering::SeqCst);
                        engine.delete(&topic, &before).unwrap();
                    }
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
        }
        let (engine, stop, txns) = (&engine, &stop, &txns);
        scope.spawn(move || {
            for n in 1.. {
                let data = format!("\"{n}\"");
                let record = NewRecord { data: data.as_bytes(), ..NewRecord::default() };
                let rows = ["left", "right"].map(|topic| TxnRows {
                    topic,
                    records: std::slice::from_ref(&record),
                    ..TxnRows::default()
                });
                let (writer, epoch) = (Some("writer"), Some(n));
                engine
                    .transact(&TxnRequest { writer, epoch, rows: &rows, ..TxnRequest::default() })
                    .unwrap();
                txns.store(n, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        let _stop = Stop(stop);
        for round in 0..6 {
            while acks.iter().any(|a| a.last.load(Ordering::SeqCst) < 60 * (round + 1))
                || txns.load(Ordering::SeqCst) < 3 * (round + 1)
            {
                std::thread::yield_now();
            }
            if round % 2 == 1 {
                engine.checkpoint().unwrap();
            }
            let before: Vec<u64> = acks.iter().map(|a| a.last.load(Ordering::SeqCst)).collect();
            let committed = txns.load(Ordering::SeqCst);
            let dir = temp.0.join(format!("backup{round}"));
            let summary = engine.backup(&dir).unwrap();
            assert!(summary.copied > 0, "{summary:?}");
            let deleted: Vec<u64> =
                acks.iter().map(|a| a.deleted_below.load(Ordering::SeqCst)).collect();
            assert_sound(&dir);
            let copy = open(&dir);
            for (i, last) in before.iter().enumerate() {
                let found = records(&copy, &format!("log{i}"));
                for seq in deleted[i].max(1)..=*last {
                    assert_eq!(found.get(&seq), Some(&format!("\"{seq}\"")), "log{i}, seq {seq}");
                }
            }
            let (left, right) = (records(&copy, "left"), records(&copy, "right"));
            // A transaction that the cut has decided is finished at the open, above what was reserved.
            let rows = |of: &BTreeMap<u64, String>| of.values().cloned().collect::<Vec<_>>();
            assert_eq!(rows(&left), rows(&right), "a transaction is in one topic only");
            assert!(left.len() as u64 >= committed);
            put(&copy, "log0", "goes on", &class(Durability::Fsync));
            copy.close().unwrap();
            assert_sound(&dir);
        }
    });
    engine.close().unwrap();
    assert_sound(&temp.0.join("db"));
}

#[test]
fn a_backup_that_takes_over_gives_no_seq_to_a_second_record() {
    let temp = TempDir::new(&std::env::temp_dir());
    for (i, durability) in
        [Durability::Memory, Durability::Disk, Durability::Fsync].into_iter().enumerate()
    {
        let [db, copy, twin] = ["db", "copy", "twin"].map(|name| temp.0.join(format!("{name}{i}")));
        let class = class(durability);
        let engine = open(&db);
        put(&engine, "t", "both", &class);
        engine.backup(&copy).unwrap();
        // The source goes on, further than any reservation of seqs.
        let records = vec![NewRecord { data: b"1", ..NewRecord::default() }; 5000];
        let append = Append { records: &records, ..Append::default() };
        let cursor = engine.append("t", &append).unwrap().last_seq;
        engine.close().unwrap();
        // A reader of the backup, its check and its clone change nothing.
        let before = files(&copy);
        let reader = Engine::open_read_only(real(), &copy, options()).unwrap();
        assert!(reader.state("t", false).unwrap().head_seq < 5000);
        drop(reader);
        assert_sound(&copy);
        Engine::clone_directory(&real(), &copy, &twin).unwrap();
        for (path, (bytes, _)) in files(&copy) {
            assert_eq!(bytes, before[&path].0, "{} was written", path.display());
        }
        for dir in [&copy, &twin] {
            let taken_over = open(dir);
            let next = put(&taken_over, "t", "new", &class);
            assert!(next > 1 << 32, "{durability:?}: {next}");
            let request = ReadRequest { from: ReadFrom::After(cursor), ..ReadRequest::default() };
            let page = taken_over.read("t", &request).unwrap();
            assert_eq!(page.iter().map(|r| r.seq).collect::<Vec<_>>(), [next]);
            let gap = taken_over.state("t", false).unwrap().gaps.last().copied().unwrap();
            assert_eq!((gap.from, gap.to, gap.reason), (2, next - 1, GapReason::Crash));
            taken_over.close().unwrap();
            // Only the first open skips.
            let again = open(dir);
            assert_eq!(put(&again, "t", "newer", &class), next + 1);
            again.close().unwrap();
            assert_sound(dir);
        }
    }
}

#[test]
fn what_a_copy_shares_is_never_written_in_place() {
    let temp = TempDir::new(&std::env::temp_dir());
    let (db, copy, twin) = (temp.0.join("db"), temp.0.join("copy"), temp.0.join("twin"));
    let disk = class(Durability::Disk);
    let engine = open(&db);
    for n in 0..100 {
        put(&engine, "t", &format!("{n}"), &disk);
    }
    engine.sync().unwrap();
    engine.checkpoint().unwrap();
    engine.delete_seqs("t", &[3, 20]).unwrap();
    let summary = engine.backup(&copy).unwrap();
    assert!(summary.linked >= 12, "{summary:?}");
    Engine::clone_directory(&real(), &copy, &twin).unwrap();
    let shared = |dir: &Path| {
        let mut all = files(dir);
        all.retain(|_, (_, links)| *links > 1);
        all
    };
    let before = shared(&copy);
    let kinds: std::collections::BTreeSet<_> =
        before.keys().filter_map(|p| p.extension()?.to_str().map(str::to_owned)).collect();
    assert_eq!(
        kinds.iter().map(String::as_str).collect::<Vec<_>>(),
        ["data", "del", "idx", "tags"]
    );
    // The source and the twin go on: deletes, rewrites, appends, a repair, a close.
    let tagged =
        DeleteRequest { before_seq: Some(60), matching: Some(TopicMatch::Eq(b"t".to_vec())) };
    for dir in [&db, &twin] {
        let other = if dir == &db { engine.clone() } else { open(dir) };
        other.delete_seqs("t", &[25, 70]).unwrap();
        other.checkpoint().unwrap();
        other.delete("t", &tagged).unwrap();
        for n in 0..40 {
            put(&other, "t", &format!("more {n}"), &disk);
            if n % 10 == 0 {
                other.checkpoint().unwrap();
                other.tick().unwrap();
            }
        }
        other.close().unwrap();
        assert_sound(dir);
    }
    for (path, (bytes, _)) in &before {
        assert_eq!(&std::fs::read(path).unwrap(), bytes, "{} was written", path.display());
    }
    assert_sound(&copy);
    let opened = open(&copy);
    let found = records(&opened, "t");
    assert_eq!(found.len(), 98);
    assert!((1..=100).all(|seq| found.contains_key(&seq) != [3, 20].contains(&seq)));
    opened.close().unwrap();
}

#[test]
fn a_file_that_is_made_again_leaves_the_shared_one_alone() {
    let temp = TempDir::new(&std::env::temp_dir());
    let (db, copy) = (temp.0.join("db"), temp.0.join("copy"));
    let disk = class(Durability::Disk);
    let engine = open(&db);
    for n in 0..40 {
        put(&engine, "t", &format!("{n}"), &disk);
    }
    engine.backup(&copy).unwrap();
    engine.close().unwrap();
    // One byte of every derived file of the source is damaged under a name of its own, then repaired.
    for (path, (bytes, links)) in files(&db) {
        if links > 1 && path.extension().is_some_and(|e| e == "idx" || e == "tags") {
            let mut damaged = bytes.clone();
            damaged[50] ^= 1;
            std::fs::remove_file(&path).unwrap();
            std::fs::write(&path, damaged).unwrap();
        }
    }
    let before = files(&copy);
    topics_engine::repair(real(), &db, options()).unwrap();
    for (path, (bytes, _)) in before {
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{} was written", path.display());
    }
    assert_sound(&copy);
}

#[test]
fn a_copy_has_an_identity_of_its_own() {
    let temp = TempDir::new(&std::env::temp_dir());
    let (db, copy, twin) = (temp.0.join("db"), temp.0.join("copy"), temp.0.join("twin"));
    let engine = open(&db);
    put(&engine, "t", "1", &class(Durability::Fsync));
    engine.backup(&copy).unwrap();
    engine.close().unwrap();
    Engine::clone_directory(&real(), &db, &twin).unwrap();
    let id = |dir: &Path| std::fs::read(dir.join("meta/STORE")).unwrap()[8..24].to_vec();
    let ids = [id(&db), id(&copy), id(&twin)];
    assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
    assert!(ids.iter().all(|i| i[..8] == ids[0][..8]));
    // A lost STORE is restored from the files of the copy.
    let store = std::fs::read(twin.join("meta/STORE")).unwrap();
    std::fs::remove_file(twin.join("meta/STORE")).unwrap();
    topics_engine::repair(real(), &twin, options()).unwrap();
    assert_eq!(std::fs::read(twin.join("meta/STORE")).unwrap(), store);
    // The log of another copy is not taken for its own.
    std::fs::remove_file(twin.join("meta/STORE")).unwrap();
    std::fs::copy(copy.join("meta/STORE"), twin.join("meta/STORE")).unwrap();
    let mixed = Engine::open(real(), &twin, options()).unwrap_err();
    assert_eq!(mixed.code(), "corrupt", "{mixed}");
}

#[test]
fn targets_that_cannot_be_used_are_refused() {
    let temp = TempDir::new(&std::env::temp_dir());
    let (db, full) = (temp.0.join("db"), temp.0.join("full"));
    let engine = open(&db);
    put(&engine, "t", "1", &class(Durability::Fsync));
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("mine"), "1").unwrap();
    std::fs::write(temp.0.join("file"), "1").unwrap();
    let refused = |dir: PathBuf, text: &str| {
        let e = engine.backup(&dir).unwrap_err();
        assert!(e.code() == "invalid_directory" && e.to_string().contains(text), "{e}");
    };
    refused(full.clone(), "not empty");
    refused(temp.0.join("none/copy"), "there is no folder");
    refused(temp.0.join("file"), "is a file");
    refused(db.join("copy"), "inside of its source");
    refused(db.clone(), "inside of its source");
    assert_eq!(std::fs::read(full.join("mine")).unwrap(), b"1");
    // What a killed process left.
    let half = temp.0.join("half");
    std::fs::create_dir_all(half.join("meta")).unwrap();
    std::fs::write(half.join(".topics.incomplete"), "").unwrap();
    refused(half.clone(), "unfinished");
    let env = real;
    let e = Engine::open(env(), &half, options()).unwrap_err();
    assert!(e.to_string().contains("unfinished backup or clone"), "{e}");
    assert!(Engine::open_read_only(env(), &half, options()).is_err());
    assert!(verify(&env(), &half, &mut |_| ()).is_err());
    // An open directory is not cloned, and nothing is made of one that is none.
    let e = Engine::clone_directory(&env(), &db, &temp.0.join("copy")).unwrap_err();
    assert_eq!(e.code(), "locked", "{e}");
    let e = Engine::clone_directory(&env(), &full, &temp.0.join("copy")).unwrap_err();
    assert_eq!(e.code(), "invalid_directory", "{e}");
    assert!(!temp.0.join("copy").exists());
    engine.close().unwrap();
    assert_eq!(engine.backup(&temp.0.join("late")).unwrap_err().code(), "shutting_down");
    let reader = Engine::open_read_only(env(), &db, options()).unwrap();
    assert_eq!(reader.backup(&temp.0.join("read")).unwrap_err().code(), "storage_unavailable");
}

#[test]
fn a_clone_of_a_closed_directory_loses_nothing() {
    let temp = TempDir::new(&std::env::temp_dir());
    let (db, copy) = (temp.0.join("db"), temp.0.join("copy"));
    let engine = open(&db);
    for n in 0..50 {
        put(&engine, "t", &format!("{n}"), &class(Durability::Memory));
    }
    let whole = records(&engine, "t");
    engine.close().unwrap();
    let before = files(&db);
    Engine::clone_directory(&real(), &db, &copy).unwrap();
    for (path, (bytes, _)) in files(&db) {
        assert_eq!(bytes, before[&path].0, "{} was written", path.display());
    }
    assert_sound(&copy);
    let opened = open(&copy);
    assert_eq!(records(&opened, "t"), whole);
    // A clean close reserves nothing: the next record follows immediately.
    assert_eq!(put(&opened, "t", "next", &class(Durability::Memory)), 51);
    opened.close().unwrap();
}

/// The last byte of a log may be a zero, of a checksum for example: it is not its unused space.
#[test]
fn a_clone_has_the_zeros_at_the_end_of_a_log() {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let options = Options { background: false, wal_shards: 1, ..options() };
    let (db, copy) = (Path::new("/db"), Path::new("/copy"));
    // One last byte in 256 is a zero.
    for seed in 0..1024 {
        let fs = Arc::new(SimFs::new());
        let engine = Engine::open(env_on(&fs, &clock, seed), db, options.clone()).unwrap();
        put(&engine, "t", "1", &class(Durability::Fsync));
        // Its process is killed.
        let fs = Arc::new(SimFs::from_image(&fs.kill_image()));
        drop(engine);
        Engine::clone_directory(&env_on(&fs, &clock, 2), db, copy).unwrap();
        let opened = Engine::open(env_on(&fs, &clock, 3), copy, options.clone());
        let opened = opened.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(records(&opened, "t").len(), 1, "seed {seed}");
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

#[test]
fn another_file_system_gets_copies() {
    let (temp, shm) = (TempDir::new(&std::env::temp_dir()), Path::new("/dev/shm"));
    let device = |dir: &Path| std::fs::metadata(dir).map(|m| m.dev()).ok();
    if device(shm).is_none_or(|d| Some(d) == device(&temp.0)) {
        return skipped("/dev/shm is not another file system");
    }
    let other = TempDir::new(shm);
    let engine = open(&temp.0.join("db"));
    for n in 0..60 {
        put(&engine, "t", &format!("{n}"), &class(Durability::Disk));
    }
    let summary = engine.backup(&other.0.join("copy")).unwrap();
    assert!(summary.linked == 0 && summary.copied > 10, "{summary:?}");
    assert_sound(&other.0.join("copy"));
    let copy = open(&other.0.join("copy"));
    assert_eq!(records(&copy, "t"), records(&engine, "t"));
    copy.close().unwrap();
    engine.close().unwrap();
}

#[test]
fn a_full_target_disk_fails_the_backup_alone() {
    let fs = Arc::new(SimFs::new());
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let options = Options { background: false, ..options() };
    let env = env_on(&fs, &clock, 1);
    let engine = Engine::open(env.clone(), Path::new("/db"), options.clone()).unwrap();
    for n in 0..40 {
        put(&engine, "t", &format!("{n}"), &class(Durability::Fsync));
    }
    let mut failed = 0;
    for (kind, nth) in [CallKind::Create, CallKind::Write, CallKind::Link]
        .into_iter()
        .flat_map(|k| (1..9).map(move |n| (k, n)))
    {
        fs.fail_nth(CallFilter::on_path(kind, "/copy/"), nth, FaultKind::ENOSPC);
        if let Err(e) = engine.backup(Path::new("/copy")) {
            failed += 1;
            assert_eq!(e.code(), "storage_unavailable", "{e}");
            let left: Vec<String> = fs
                .kill_image()
                .files()
                .into_iter()
                .filter_map(|(p, _)| p.starts_with("/copy/").then_some(p))
                .collect();
            assert_eq!(left, ["/copy/.topics.incomplete"], "{kind:?} {nth}");
            let opened = Engine::open(env.clone(), Path::new("/copy"), options.clone());
            assert_eq!(opened.unwrap_err().code(), "invalid_directory");
        } else {
            let copy = Engine::open(env.clone(), Path::new("/copy"), options.clone()).unwrap();
            assert_eq!(records(&copy, "t"), records(&engine, "t"));
            drop(copy);
            remove(&fs, "/copy");
        }
        fs.clear_faults();
        put(&engine, "t", "goes on", &class(Durability::Fsync));
    }
    assert!(failed > 12, "{failed}");
    engine.backup(Path::new("/copy")).unwrap();
}

fn remove(fs: &SimFs, dir: &str) {
    for entry in fs.list(Path::new(dir)).unwrap() {
        let path = format!("{dir}/{}", entry.name);
        if entry.is_dir { remove(fs, &path) } else { fs.remove_file(Path::new(&path)).unwrap() }
    }
    fs.remove_dir(Path::new(dir)).unwrap();
}

/// Runs a closure when the first log file of a copy is made durable, before the copy has any segment.
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Hook for Meanwhile {
    fn visit(&self, site: Site) -> Verdict {
        if site == Site::Sync("backup.file") {
            let run = self.0.lock().take();
            run.into_iter().for_each(|run| run());
        }
        Verdict::Run
    }
}

#[test]
fn segments_that_go_meanwhile_stay_until_the_copy_has_them() {
    let fs = Arc::new(SimFs::new());
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let options = Options { background: false, ..options() };
    let hook = Arc::new(Meanwhile(Mutex::new(None)));
    let env = env_on(&fs, &clock, 1).with_hook(hook.clone());
    let engine = Engine::open(env, Path::new("/db"), options.clone()).unwrap();
    for n in 0..64 {
        put(&engine, "t", &format!("{n}"), &class(Durability::Fsync));
        put(&engine, "gone", &format!("{n}"), &class(Durability::Fsync));
    }
    let whole = records(&engine, "t");
    let beside = engine.clone();
    *hook.0.lock() = Some(Box::new(move || {
        beside.delete_topic("gone", false).unwrap();
        beside.delete_seqs("t", &(1..60).collect::<Vec<_>>()).unwrap();
        for _ in 0..4 {
            beside.checkpoint().unwrap();
            beside.tick().unwrap();
        }
    }));
    engine.backup(Path::new("/copy")).unwrap();
    assert!(hook.0.lock().is_none(), "nothing ran meanwhile");
    let copy = Engine::open(env_on(&fs, &clock, 2), Path::new("/copy"), options).unwrap();
    assert_eq!(records(&copy, "t"), whole);
    assert_eq!(records(&copy, "gone").len(), 64);
    // After the backup the files of the superseded snapshot go.
    let count =
        || fs.kill_image().files().iter().filter(|f| f.0.starts_with("/db/topics/")).count();
    let before = count();
    engine.checkpoint().unwrap();
    engine.checkpoint().unwrap();
    assert!(count() < before, "{} of {before} are left", count());
}
