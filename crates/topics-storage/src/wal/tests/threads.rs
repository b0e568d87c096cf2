//! Threads against each other: what runs at the same time, and who is woken.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use topics_env::{Hook, Site, Verdict};

use super::*;

/// Stops each group sync until it is told to go on.
#[derive(Debug)]
struct Gate {
    arrived: PlMutex<Sender<()>>,
    resume: PlMutex<Receiver<()>>,
}

impl Hook for Gate {
    fn visit(&self, site: Site) -> Verdict {
        if site == Site::Sync("wal.group") {
            let _ = self.arrived.lock().send(());
            let _ = self.resume.lock().recv_timeout(LONG);
        }
        Verdict::Run
    }
}

struct Gated {
    env: Env,
    fs: Arc<SimFs>,
    arrived: Receiver<()>,
    resume: Sender<()>,
}

fn gated() -> Gated {
    let (env, fs, _) = sim_env(1);
    let (arrived, arrived_rx) = channel();
    let (resume, resume_rx) = channel();
    let gate = Gate { arrived: PlMutex::new(arrived), resume: PlMutex::new(resume_rx) };
    Gated { env: env.with_hook(Arc::new(gate)), fs, arrived: arrived_rx, resume }
}

#[test]
fn the_next_group_is_written_while_a_sync_runs_and_is_not_covered_by_it() {
    let g = gated();
    let wal = wal(&g.env, small());
    let wal = &wal;
    let log = Arc::new(Log::default());
    let first = put(wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    std::thread::scope(|s| {
        let waiter = s.spawn(|| wal.wait(first, Level::Synced));
        g.arrived.recv_timeout(LONG).unwrap();
        let second = put(wal, batch(&log, 2, 1, Level::Written)).unwrap();
        wal.wait(second, Level::Written).unwrap();
        assert_eq!(wal.positions(0), Positions { written: 4, synced: 0, applied: 1 });
        let third = put(wal, batch(&log, 3, 1, Level::Synced)).unwrap();
        wal.drive(0);
        g.resume.send(()).unwrap();
        waiter.join().unwrap().unwrap();
        assert_eq!(wal.positions(0), Positions { written: 6, synced: 2, applied: 5 });
        g.resume.send(()).unwrap();
        wal.wait(third, Level::Synced).unwrap();
        assert_eq!(wal.positions(0), Positions { written: 6, synced: 6, applied: 6 });
    });
    assert_eq!(*log.told.lock(), [(2, true), (1, true), (3, true)]);
}

#[test]
fn i10_a_sync_that_fails_while_others_write_acks_nothing_above_the_last_success() {
    let g = gated();
    let wal = wal(&g.env, small());
    let wal = &wal;
    let log = Arc::new(Log::default());
    let first = put(wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    std::thread::scope(|s| {
        let waiter = s.spawn(|| wal.wait(first, Level::Synced));
        g.arrived.recv_timeout(LONG).unwrap();
        let second = put(wal, batch(&log, 2, 1, Level::Written)).unwrap();
        wal.wait(second, Level::Written).unwrap();
        let third = put(wal, batch(&log, 3, 1, Level::Synced)).unwrap();
        let blocked = s.spawn(move || wal.wait(third, Level::Synced));
        let calls = Arc::new(PlMutex::new(Vec::new()));
        let noted = calls.clone();
        wal.on_level(third, Level::Synced, Box::new(move |r| noted.lock().push(r.is_err())));
        g.fs.fail_nth(topics_sim::CallKind::SyncData, 1, FaultKind::Errno(5));
        g.resume.send(()).unwrap();
        let poisoned = |r| matches!(r, Err(StorageError::Poisoned { .. }));
        assert!(poisoned(waiter.join().unwrap()));
        assert!(poisoned(blocked.join().unwrap()));
        assert!(poisoned(wal.wait(second, Level::Synced)));
        assert_eq!(*calls.lock(), [true], "told once");
    });
    assert_eq!(*log.told.lock(), [(2, true), (1, false), (3, false)]);
    assert_eq!(wal.positions(0).synced, 0);
}

#[test]
fn i10_a_group_written_while_a_sync_fails_is_not_applied() {
    // The commit of the first group holds up its drain; the sync fails meanwhile.
    struct Slow(Sender<()>, PlMutex<Receiver<()>>);
    impl Commit for Slow {
        fn apply(&self, _: &PlacedBatch<'_>) {
            self.0.send(()).unwrap();
            self.1.lock().recv_timeout(LONG).unwrap();
        }
        fn failed(&self, _: &StorageError) {}
    }
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let (in_apply, applying) = channel();
    let (release, released) = channel();
    let slow = Slow(in_apply, PlMutex::new(released));
    let slow = Batch { commit: Arc::new(slow), ..batch(&log, 1, 1, Level::Written) };
    let first = put(&wal, slow).unwrap();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| wal.wait(first, Level::Written));
        applying.recv_timeout(LONG).unwrap();
        let second = put(&wal, batch(&log, 2, 1, Level::Synced)).unwrap();
        wal.drive(0);
        fs.fail_nth(topics_sim::CallKind::SyncData, 1, FaultKind::Errno(5));
        let syncer = s.spawn(|| wal.sync(0));
        while wal.poisoned(0).is_none() {
            std::thread::yield_now();
        }
        assert!(log.told.lock().is_empty(), "one thread at a time tells commits");
        release.send(()).unwrap();
        assert!(syncer.join().unwrap().is_err());
        assert!(wal.wait(second, Level::Synced).is_err());
        // It was applied before the failure was known; either answer is the truth.
        let _ = waiter.join().unwrap();
    });
    assert_eq!(*log.told.lock(), [(2, false)]);
}

/// Stops writes, once armed, until it is told to go on.
#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn File>,
    armed: AtomicBool,
    arrived: PlMutex<Sender<()>>,
    resume: PlMutex<Receiver<()>>,
}

impl File for SlowFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        if self.armed.swap(false, Ordering::SeqCst) {
            let _ = self.arrived.lock().send(());
            let _ = self.resume.lock().recv_timeout(LONG);
        }
        self.file.write_at(buf, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }
    fn links(&self) -> io::Result<u64> {
        self.file.links()
    }
}

#[test]
fn i10_a_sync_that_fails_while_a_group_is_written_fails_the_group() {
    let (env, fs, _) = sim_env(1);
    let paths = Paths::new(Path::new("/db"));
    let mut start = first_file(&env, &paths, 4096);
    let (arrived, arrived_rx) = channel();
    let (resume, resume_rx) = channel();
    let slow = Arc::new(SlowFile {
        file: start.files[0].file.clone(),
        armed: AtomicBool::new(false),
        arrived: PlMutex::new(arrived),
        resume: PlMutex::new(resume_rx),
    });
    start.files[0].file = slow.clone();
    let wal = &Wal::start(env, paths, small(), vec![start], vec![]).unwrap();
    let log = Arc::new(Log::default());
    let first = put(wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    std::thread::scope(|s| {
        slow.armed.store(true, Ordering::SeqCst);
        let second = put(wal, batch(&log, 2, 1, Level::Written)).unwrap();
        let writing = s.spawn(move || wal.wait(second, Level::Written));
        arrived_rx.recv_timeout(LONG).unwrap();
        put(wal, batch(&log, 3, 1, Level::Written)).unwrap();
        fs.fail_nth(topics_sim::CallKind::SyncData, 1, FaultKind::Errno(5));
        assert!(matches!(wal.wait(first, Level::Synced), Err(StorageError::Poisoned { .. })));
        assert_eq!(*log.told.lock(), [(1, false)], "the others are left to their leader");
        resume.send(()).unwrap();
        assert!(matches!(writing.join().unwrap(), Err(StorageError::Poisoned { .. })));
    });
    assert_eq!(*log.told.lock(), [(1, false), (2, false), (3, false)]);
}

#[test]
fn closing_tells_every_waiter() {
    let g = gated();
    let wal = wal(&g.env, small());
    let wal = &wal;
    let log = Arc::new(Log::default());
    let first = put(wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    std::thread::scope(|s| {
        let syncing = s.spawn(|| wal.wait(first, Level::Synced));
        g.arrived.recv_timeout(LONG).unwrap();
        let second = put(wal, batch(&log, 2, 1, Level::Synced)).unwrap();
        wal.drive(0);
        let waiting = s.spawn(move || wal.wait(second, Level::Synced));
        let (tx, called) = channel();
        wal.on_level(second, Level::Synced, Box::new(move |r| tx.send(r.is_err()).unwrap()));
        let closing = s.spawn(|| wal.close(false));
        while wal.reserve(0, 1, None).is_ok() {
            std::thread::yield_now();
        }
        // The second sync may or may not begin before the shard is closed.
        g.resume.send(()).unwrap();
        g.resume.send(()).unwrap();
        syncing.join().unwrap().unwrap();
        closing.join().unwrap().unwrap();
        let outcome = waiting.join().unwrap();
        assert_eq!(called.recv_timeout(LONG).unwrap(), outcome.is_err());
        assert!(outcome.is_ok() || matches!(outcome, Err(StorageError::Closed)));
    });
    assert!(matches!(wal.reserve(0, 1, None), Err(StorageError::Closed)));
    assert!(wal.sync(0).is_err());
    wal.close(true).unwrap();
}

fn until_waiting(wal: &Wal, n: usize) {
    while wal.shards[0].state.lock().staged.permit_waiters.len() < n {
        std::thread::yield_now();
    }
}

/// A batch larger than the bound waits until nothing is staged, and nobody passes it meanwhile.
#[test]
fn staging_permits_are_given_in_the_order_of_the_calls() {
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, WalOptions { staging_bytes: 1000, staging_batches: 3, ..small() });
    let order = Mutex::new(Vec::new());
    let staged = wal.reserve(0, 100, None).unwrap();
    std::thread::scope(|s| {
        for (i, bytes) in [5000, 10, 900].into_iter().enumerate() {
            let (wal, order) = (&wal, &order);
            s.spawn(move || {
                let permit = wal.reserve(0, bytes, Some(LONG)).unwrap();
                order.lock().push(bytes);
                drop(permit);
            });
            until_waiting(wal, i + 1);
        }
        assert!(matches!(wal.reserve(0, 10, None), Err(StorageError::Staging)), "no overtaking");
        let late = wal.reserve(0, 10, Some(Duration::from_millis(1)));
        assert!(matches!(late, Err(StorageError::Staging)), "no overtaking by one that may wait");
        assert!(order.lock().is_empty());
        drop(staged);
    });
    assert_eq!(order.lock()[0], 5000);
    // One who leaves the queue does not keep the others from their turn.
    let staged = wal.reserve(0, 600, None).unwrap();
    std::thread::scope(|s| {
        let gives_up = s.spawn(|| wal.reserve(0, 5000, Some(Duration::from_millis(1))).map(drop));
        let small = s.spawn(|| wal.reserve(0, 100, Some(LONG)).map(drop));
        assert!(gives_up.join().unwrap().is_err());
        small.join().unwrap().unwrap();
    });
    drop(staged);
}

#[test]
fn staging_room_is_bounded_and_waited_for() {
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, WalOptions { staging_bytes: 1000, staging_batches: 3, ..small() });
    let huge = wal.reserve(0, 5000, None).unwrap();
    assert!(matches!(wal.reserve(0, 1, None), Err(StorageError::Staging)), "one at a time");
    drop(huge);
    let rooms: Vec<StagingPermit> = (0..3).map(|_| wal.reserve(0, 10, None).unwrap()).collect();
    assert!(matches!(wal.reserve(0, 10, None), Err(StorageError::Staging)), "too many");
    drop(rooms);
    let most = wal.reserve(0, 900, None).unwrap();
    std::thread::scope(|s| {
        // The shard is not full, yet there is no room for this one: giving back must wake it.
        let waiting = s.spawn(|| wal.reserve(0, 200, Some(LONG)).map(drop));
        until_waiting(&wal, 1);
        drop(most);
        waiting.join().unwrap().unwrap();
    });
    // Whoever needs room leads where nobody does.
    let log = Arc::new(Log::default());
    for seq in 1..=9 {
        let b = batch(&log, seq, 1, Level::Staged);
        let permit = wal.reserve(0, 400, Some(LONG)).unwrap();
        wal.stage(b, permit).unwrap();
    }
    assert!(wal.counters().groups > 0);
}

fn real_wal(
    name: &str,
    backend: topics_env::real::Backend,
    options: WalOptions,
) -> (Env, Wal, std::path::PathBuf) {
    let dir = std::env::temp_dir().join(format!("topics-wal-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let env = topics_env::real::real_env(backend).unwrap();
    let paths = Paths::new(&dir);
    let start = first_file(&env, &paths, options.file_initial);
    let wal = Wal::start(env.clone(), paths, options, vec![start], vec![]).unwrap();
    (env, wal, dir)
}

#[test]
fn batches_that_nobody_waits_for_are_written_by_the_thread() {
    let options = WalOptions { sync_interval: Duration::from_millis(5), ..WalOptions::default() };
    let (_, wal, dir) = real_wal("staged", topics_env::real::Backend::Posix, options);
    let (tx, rx) = channel();
    struct Tell(Sender<u64>);
    impl Commit for Tell {
        fn apply(&self, p: &PlacedBatch<'_>) {
            self.0.send(p.first_lsn).unwrap();
        }
        fn failed(&self, _: &StorageError) {}
    }
    let log = Arc::new(Log::default());
    for _ in 0..3 {
        let commit = Arc::new(Tell(tx.clone()));
        put(&wal, Batch { commit, ..batch(&log, 1, 1, Level::Staged) }).unwrap();
        let lsn = rx.recv_timeout(LONG).unwrap();
        // The idle tail becomes durable without anybody asking.
        while wal.positions(0).synced < lsn {
            std::thread::yield_now();
        }
    }
    drop(wal);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Every placement that was applied, and whether applies overlapped.
#[derive(Default)]
struct Places {
    all: PlMutex<Vec<(FileKey, u32, u64, usize)>>,
    within: AtomicU64,
    overlaps: AtomicU64,
}

struct Place(Arc<Places>);

impl Commit for Place {
    fn apply(&self, p: &PlacedBatch<'_>) {
        if self.0.within.fetch_add(1, Ordering::SeqCst) > 0 {
            self.0.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        self.0.all.lock().push((p.file, p.offset, p.first_lsn, p.bytes.len()));
        self.0.within.fetch_sub(1, Ordering::SeqCst);
    }
    fn failed(&self, e: &StorageError) {
        panic!("no write fails here: {e}");
    }
}

fn stress(backend: topics_env::real::Backend, name: &str) {
    let options = WalOptions {
        file_initial: 16 << 10,
        file_max: 64 << 10,
        tail_cache_bytes: 40 << 10,
        staging_bytes: 20 << 10,
        sync_interval: Duration::from_millis(1),
        ..WalOptions::default()
    };
    let (env, wal, dir) = real_wal(name, backend, options);
    let places = Arc::new(Places::default());
    let log = Arc::new(Log::default());
    let calls = AtomicU64::new(0);
    let calls = Arc::new(calls);
    const THREADS: u64 = 8;
    const EACH: u64 = 250;
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let (wal, places, log, calls) = (&wal, &places, &log, &calls);
            s.spawn(move || {
                for i in 0..EACH {
                    let level =
                        [Level::Written, Level::Synced, Level::Staged][((t + i) % 3) as usize];
                    let n = 1 + (i % 7) as usize;
                    let commit = Arc::new(Place(places.clone()));
                    let b = Batch { commit, ..batch(log, 1, n, level) };
                    let permit = wal.reserve(0, b.bytes(), Some(LONG)).unwrap();
                    let ticket = wal.stage(b, permit).unwrap();
                    match (t + i) % 4 {
                        0 => {
                            let calls = calls.clone();
                            let count = move |r: Result<()>| {
                                r.unwrap();
                                calls.fetch_add(1, Ordering::SeqCst);
                            };
                            wal.on_level(ticket, Level::Synced, Box::new(count));
                            wal.drive(0);
                        }
                        1 => wal.wait(ticket, Level::Synced).unwrap(),
                        2 => drop(wal.sync(0).unwrap()),
                        _ => wal.wait(ticket, Level::Written).unwrap(),
                    }
                }
            });
        }
    });
    wal.close(true).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), THREADS * EACH / 4);
    assert_eq!(places.overlaps.load(Ordering::SeqCst), 0, "one applier at a time");
    let all = places.all.lock();
    assert_eq!(all.len() as u64, THREADS * EACH, "each batch is applied once");
    let mut out = Vec::new();
    for &(file, offset, lsn, len) in all.iter() {
        out.clear();
        wal.read(0, file, offset, len, &mut out).unwrap();
        let salt = wal.file(0, file).unwrap().header.salt;
        let mut at = 0;
        for i in 0.. {
            if at == len {
                break;
            }
            let (f, n) = frame::verify(&out[at..], salt, lsn + i).unwrap();
            at += n;
            assert_eq!(f.flags.batch_more(), at < len);
        }
    }
    let frames = read_back(&env, &wal);
    let lsns: Vec<u64> = frames.iter().map(|f| f.0).collect();
    assert_eq!(lsns, (1..=lsns.len() as u64).collect::<Vec<_>>(), "no lsn is missing or twice");
    assert_eq!(frames.last().unwrap().1, FrameType::CleanClose);
    assert!(wal.counters().rotations > 3);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn every_acked_batch_is_where_its_commit_was_told_posix() {
    stress(topics_env::real::Backend::Posix, "stress-posix");
}

#[test]
fn every_acked_batch_is_where_its_commit_was_told_uring() {
    use topics_env::real::{Backend, real_env};
    match real_env(Backend::Uring) {
        Ok(_) => stress(Backend::Uring, "stress-uring"),
        Err(e) => skipped(&format!("this kernel has no io_uring: {e}")),
    }
}

#[test]
fn a_clean_close_gives_the_preallocated_space_back() {
    let options = WalOptions { file_initial: 1 << 20, file_max: 8 << 20, ..WalOptions::default() };
    let (env, wal, dir) = real_wal("close", topics_env::real::Backend::Posix, options);
    let log = Arc::new(Log::default());
    for seq in 1..=3000 {
        let t = put(&wal, batch(&log, seq, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
    }
    wal.close(true).unwrap();
    let used: u64 = wal.shards[0].files.read().values().map(|f| f.file.len().unwrap()).sum();
    assert!(used < 1 << 20, "{used}");
    assert!(wal.bytes_on_disk() <= used + (1 << 20));
    assert_eq!(seqs(&read_back(&env, &wal)), (1..=3000).collect::<Vec<_>>());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn i10_a_group_that_cannot_be_built_while_a_sync_fails_wakes_who_waits_behind_it() {
    let (env, fs, _) = sim_env(1);
    let wal = Arc::new(wal(&env, WalOptions { staging_bytes: 1 << 20, ..small() }));
    let log = Arc::new(Log::default());
    let first = put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    let shard = wal.shards[0].clone();
    // A leader that is about to build its group: it takes the first of the two.
    shard.state.lock().flags.leading = true;
    let mut bad = batch(&log, 3, 50, Level::Written);
    bad.records.pop();
    put(&wal, bad).unwrap();
    let behind = put(&wal, batch(&log, 61, 50, Level::Written)).unwrap();
    let (woken, outcome) = channel();
    let waiting = wal.clone();
    std::thread::spawn(move || woken.send(waiting.wait(behind, Level::Written)));
    while shard.state.lock().progress.outcomes.waiters.is_empty() {
        std::thread::yield_now();
    }
    fs.fail_nth(topics_sim::CallKind::SyncData, 1, FaultKind::Errno(5));
    assert!(wal.wait(first, Level::Synced).is_err());
    drop(shard.lead(shard.state.lock(), None));
    let outcome = outcome.recv_timeout(LONG).expect("the waiter is woken");
    assert!(matches!(outcome, Err(StorageError::Poisoned { .. })));
    assert!(shard.state.lock().staged.batches.is_empty());
    assert_eq!(log.failed.load(Ordering::Relaxed), 3);
}

#[test]
fn what_is_written_and_not_synced_keeps_its_staging_room() {
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, WalOptions { staging_bytes: 1000, ..small() });
    let log = Arc::new(Log::default());
    for seq in 1..=2 {
        let b = batch(&log, seq, 1, Level::Synced);
        let permit = wal.reserve(0, 450, None).unwrap();
        wal.stage(b, permit).unwrap();
        wal.drive(0);
    }
    assert_eq!(wal.positions(0).synced, 0);
    assert!(matches!(wal.reserve(0, 450, None), Err(StorageError::Staging)));
    // Whoever waits for room syncs where nobody does.
    drop(wal.reserve(0, 450, Some(LONG)).unwrap());
    assert_eq!(*log.told.lock(), [(1, true), (2, true)]);
    wal.sync(0).unwrap();
    let st = wal.shards[0].state.lock();
    assert_eq!((st.staged.reserved_bytes, st.staged.reserved_batches, st.staged.bytes), (0, 0, 0));
}
