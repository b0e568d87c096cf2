#![allow(
    clippy::disallowed_methods,
    reason = "permits are what is tested, or held against the log"
)]
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use topics_env::OpenMode;
use topics_env::sync::Mutex as PlMutex;
use topics_sim::{FaultKind, SimFs, sim_env};

use super::scan::Scan;
use super::*;

mod faults;
mod format;
mod lead;
mod model;
mod prefault;
mod rotation;
mod state;
mod threads;

use crate::format::frame::{self, Flags, Frame, FrameType};
use crate::format::health::Health;
use crate::format::record::{Group, Start};
use crate::format::wal_file;

/// What takes this long hangs; far above what a slow machine takes.
const LONG: Duration = Duration::from_secs(300);

/// Reports that the running test is skipped. Not with `println!`, which a test's runner captures.
fn skipped(reason: &str) {
    use std::io::Write;
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    let line = format!("\nskipped: {name}: {reason}\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// What commits were told, in order: the first seq, and whether the batch was applied.
#[derive(Default)]
struct Log {
    told: PlMutex<Vec<(u64, bool)>>,
    applied: PlMutex<Vec<(u64, u64)>>,
    failed: AtomicU64,
}

struct One(Arc<Log>, u64);

impl Commit for One {
    fn apply(&self, p: &PlacedBatch<'_>) {
        let (f, _) = frame::parse(p.bytes).unwrap();
        assert_eq!(f.seq, self.1);
        self.0.told.lock().push((self.1, true));
        self.0.applied.lock().push((p.first_lsn, f.seq));
    }
    fn failed(&self, _: &StorageError) {
        self.0.told.lock().push((self.1, false));
        self.0.failed.fetch_add(1, Ordering::Relaxed);
    }
}

fn first_file(env: &Env, paths: &Paths, capacity: u64) -> ShardStart {
    let header = WalFileHeader {
        store_id: [1; 16],
        shard: 0,
        shards: 1,
        layout: 1,
        generation: 1,
        ordinal: 1,
        salt: 77,
        boot_id: [0; 16],
        mount_id: 0,
        prior: 0,
    };
    for dir in [paths.root().to_owned(), paths.wal(), paths.shard(0)] {
        env.fs.create_dir(&dir).unwrap();
        env.fs.sync_dir(dir.parent().unwrap()).unwrap();
    }
    let name = wal_file::name(1, 1);
    let file = env.fs.open(&paths.shard(0).join(&name), OpenMode::CreateNew).unwrap();
    let mut bytes = header.encode();
    let at = bytes.len();
    Start { first_lsn: 1 }.encode_frame(&mut bytes);
    frame::seal(&mut bytes[at..], 77, 1);
    file.write_all_at(&bytes, 0).unwrap();
    file.allocate(capacity).unwrap();
    env.fs.sync_dir(&paths.shard(0)).unwrap();
    let health = HealthFile::begin(env, &paths.shard(0), &header, 0).unwrap();
    let files = vec![WalFile { key: FileKey(0), name, header, first_lsn: 1, file }];
    let (offset, health) = (bytes.len() as u64, Some(Arc::new(health)));
    ShardStart { files, offset, capacity, next_lsn: 1, health, begin: None }
}

fn wal(env: &Env, options: WalOptions) -> Wal {
    let paths = Paths::new(Path::new("/db"));
    let start = first_file(env, &paths, options.file_initial);
    Wal::start(env.clone(), paths, options, vec![start], vec![]).unwrap()
}

fn small() -> WalOptions {
    WalOptions { file_initial: 4096, file_max: 8192, background: false, ..WalOptions::default() }
}

fn batch(log: &Arc<Log>, seq: u64, n: usize, level: Level) -> Batch {
    // Both ways of handing records over.
    let headroom = if seq.is_multiple_of(2) { GROUP_HEADROOM } else { 0 };
    let mut records = vec![0; headroom];
    for i in 0..n {
        let data = format!("record {}", seq + i as u64);
        let flags = Flags::default();
        let f = Frame::control(FrameType::Append, 0, 0, 0, data.as_bytes());
        frame::encode(&mut records, &Frame { flags, ..f });
    }
    Batch {
        head: Vec::new(),
        records,
        headroom,
        tail: Vec::new(),
        first_seq: seq,
        ts: 5,
        topic_id: 9,
        level,
        frees_space: false,
        commit: Arc::new(One(log.clone(), seq)),
    }
}

/// What a later open finds in `HEALTH`.
fn health(env: &Env, wal: &Wal) -> Option<Health> {
    let header = wal.shards[0].files.read().values().next().unwrap().header.clone();
    let found = HealthFile::find(env, Path::new("/db/wal/shard-00"), &header).unwrap();
    found.map(|(_, health)| health)
}

fn put(wal: &Wal, b: Batch) -> Result<Ticket> {
    let permit = wal.reserve(0, b.bytes(), Some(LONG))?;
    wal.stage(b, permit)
}

/// Every frame of every file of the shard, in lsn order, as recovery would read them.
fn read_back(env: &Env, wal: &Wal) -> Vec<(u64, FrameType, u64, bool)> {
    let mut out: Vec<(u64, FrameType, u64, bool)> = Vec::new();
    for f in wal.shards[0].files.read().values() {
        out.retain(|(lsn, ..)| *lsn < f.first_lsn);
        let mut scan = Scan::new(env, f.file.clone(), &f.header, &f.name, f.first_lsn).unwrap();
        while let Some(s) = scan.next_frame().unwrap() {
            out.push((s.lsn, s.frame.kind, s.frame.seq, s.frame.flags.batch_more()));
        }
    }
    out
}

fn seqs(frames: &[(u64, FrameType, u64, bool)]) -> Vec<u64> {
    frames.iter().filter(|f| f.1 == FrameType::Append).map(|f| f.2).collect()
}

#[test]
fn a_lone_caller_leads_and_its_batch_is_whole() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let t = put(&wal, batch(&log, 1, 3, Level::Written)).unwrap();
    wal.wait(t, Level::Written).unwrap();
    assert_eq!(*log.applied.lock(), [(2, 1)]);
    let p = wal.positions(0);
    assert_eq!(p, Positions { written: 4, synced: 0, applied: 4 });
    wal.wait(t, Level::Synced).unwrap();
    assert_eq!(wal.positions(0).synced, 4);
    let frames = read_back(&env, &wal);
    let more: Vec<bool> = frames.iter().map(|f| f.3).collect();
    assert_eq!(more, [false, true, true, false], "Group, then a batch whose last frame ends it");
    assert!(fs.violations().is_empty());
}

#[test]
fn synced_batches_are_applied_only_when_durable() {
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    assert!(log.applied.lock().is_empty());
    assert_eq!(wal.positions(0), Positions { written: 2, synced: 0, applied: 1 });
    wal.sync(0).unwrap();
    assert_eq!(*log.applied.lock(), [(2, 1)]);
    assert_eq!(wal.positions(0), Positions { written: 2, synced: 2, applied: 2 });
}

#[test]
fn an_observer_is_called_by_a_sync_of_others_and_a_cancelled_one_is_gone() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let called = Arc::new(PlMutex::new(Vec::new()));
    let observe = |n: u64, after: u64| {
        let called = called.clone();
        wal.observe_sync(0, after, Box::new(move || called.lock().push(n)))
    };
    let observers = || wal.shards[0].state.lock().progress.sync_observers.len();
    put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.drive(0);
    let before = wal.positions(0);
    assert!(before.synced < before.written);
    observe(1, before.synced);
    // One that is cancelled leaves nothing, though no sync comes.
    let gone = observe(2, before.synced);
    wal.cancel_observer(0, gone);
    assert_eq!((called.lock().len(), observers()), (0, 1), "it requests no sync");
    wal.sync(0).unwrap();
    assert_eq!((called.lock().clone(), observers()), (vec![1], 0));
    observe(3, before.synced);
    assert_eq!(*called.lock(), [1, 3], "a frame above is durable");
    observe(4, wal.positions(0).synced);
    assert_eq!((called.lock().len(), observers()), (2, 1));
}

#[test]
fn files_follow_each_other_and_are_trimmed() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    for i in 0..400 {
        let t = put(&wal, batch(&log, i + 1, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
    }
    let t = put(&wal, batch(&log, 401, 300, Level::Written)).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    assert_eq!(seqs(&read_back(&env, &wal)), (1..=700).collect::<Vec<_>>());
    assert!(wal.counters().rotations > 5);
    let first_seq = frame_seq(&wal, 1);
    assert_eq!(first_seq, 1, "reads of older files");
    let removed = wal.trim(0, wal.positions(0).written).unwrap();
    assert!(removed.len() > 5);
    assert_eq!(wal.shards[0].files.read().len(), 1, "the file in use stays");
    assert!(fs.violations().is_empty());
}

fn frame_seq(wal: &Wal, nth: usize) -> u64 {
    let file = wal.file(0, FileKey(0)).unwrap();
    let at = WAL_START + Group::FRAME_LEN * nth;
    let mut out = Vec::new();
    let mut head = Vec::new();
    wal.read(0, file.key, at as u32, 4, &mut head).unwrap();
    wal.read(0, file.key, at as u32, frame::frame_size(&head), &mut out).unwrap();
    frame::verify(&out, file.header.salt, 2).unwrap().0.seq
}

const WAL_START: usize = wal_file::WAL_HEADER + Start::FRAME_LEN;

#[test]
fn i10_after_a_failed_sync_nothing_is_acked() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let kept = put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.wait(kept, Level::Synced).unwrap();
    let shown = put(&wal, batch(&log, 2, 1, Level::Written)).unwrap();
    wal.wait(shown, Level::Written).unwrap();
    fs.fail_nth(topics_sim::CallKind::SyncData, 1, FaultKind::Errno(5));
    let lost = put(&wal, batch(&log, 3, 1, Level::Synced)).unwrap();
    assert!(matches!(wal.wait(lost, Level::Synced), Err(StorageError::Poisoned { .. })));
    assert!(matches!(wal.wait(shown, Level::Synced), Err(StorageError::Poisoned { .. })));
    assert!(matches!(wal.sync(0), Err(StorageError::Poisoned { .. })));
    assert!(put(&wal, batch(&log, 4, 1, Level::Written)).is_err());
    assert_eq!(log.failed.load(Ordering::Relaxed), 1);
    assert_eq!(log.applied.lock().len(), 2, "what was shown stays");
    assert_eq!(health(&env, &wal), Some(Health::Suspect));
    assert!(wal.close(true).is_err(), "no clean close");
}

#[test]
fn without_space_the_group_fails_and_the_shard_goes_on_later() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let put_wait = |seq, free| {
        let b = Batch { frees_space: free, ..batch(&log, seq, 1, Level::Written) };
        put(&wal, b).and_then(|t| wal.wait(t, Level::Written))
    };
    let mut seq = 1;
    put_wait(seq, false).unwrap();
    fs.set_free_space(Some(0));
    while put_wait(seq + 1, false).is_ok() {
        seq += 1;
    }
    assert!(matches!(put_wait(seq + 1, false), Err(StorageError::Full { .. })));
    let refused = log.failed.load(Ordering::Relaxed);
    assert!(refused <= 1);
    put_wait(seq + 1, true).unwrap();
    fs.set_free_space(None);
    assert!(!wal.full(0));
    put_wait(seq + 2, false).unwrap();
    wal.sync(0).unwrap();
    let want: Vec<u64> = (1..=seq + 2).collect();
    assert_eq!(seqs(&read_back(&env, &wal)), want, "no hole, nothing twice");
}

#[test]
fn an_empty_engine_folder_of_threads_commits_everything_in_order() {
    let dir = std::env::temp_dir().join(format!("topics-wal-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let env = topics_env::real::real_env(topics_env::real::Backend::Auto).unwrap();
    let paths = Paths::new(&dir);
    let options = WalOptions { file_initial: 65_536, file_max: 65_536, ..WalOptions::default() };
    let start = first_file(&env, &paths, options.file_initial);
    let wal = Wal::start(env.clone(), paths, options, vec![start], vec![]).unwrap();
    let log = Arc::new(Log::default());
    let next = PlMutex::new(1u64);
    std::thread::scope(|s| {
        for t in 0..8 {
            let (wal, log, next) = (&wal, &log, &next);
            s.spawn(move || {
                for _ in 0..300 {
                    let level = if t % 2 == 0 { Level::Synced } else { Level::Written };
                    let permit = wal.reserve(0, 200, Some(LONG)).unwrap();
                    let mut seq = next.lock();
                    let b = batch(log, *seq, 1, Level::Written);
                    *seq += 1;
                    let ticket = wal.stage(b, permit).unwrap();
                    drop(seq);
                    wal.wait(ticket, level).unwrap();
                }
            });
        }
    });
    wal.close(true).unwrap();
    let frames = read_back(&env, &wal);
    assert_eq!(seqs(&frames), (1..=2400).collect::<Vec<_>>());
    assert_eq!(frames.last().unwrap().1, FrameType::CleanClose);
    let applied: Vec<u64> = log.applied.lock().iter().map(|a| a.1).collect();
    assert_eq!(applied, (1..=2400).collect::<Vec<_>>(), "applied in queue order");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn callbacks_come_once_and_idle_tails_are_synced_by_the_thread() {
    let dir = std::env::temp_dir().join(format!("topics-wal-cb-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let env = topics_env::real::real_env(topics_env::real::Backend::Posix).unwrap();
    let paths = Paths::new(&dir);
    let start = first_file(&env, &paths, 65_536);
    let wal = Wal::start(env.clone(), paths, WalOptions::default(), vec![start], vec![]).unwrap();
    let log = Arc::new(Log::default());
    let (tx, rx) = std::sync::mpsc::channel();
    for seq in 1..=50 {
        let t = put(&wal, batch(&log, seq, 1, Level::Synced)).unwrap();
        let tx = tx.clone();
        wal.on_level(t, Level::Synced, Box::new(move |r| tx.send((seq, r.is_ok())).unwrap()));
    }
    wal.drive(0);
    for want in 1..=50 {
        assert_eq!(rx.recv_timeout(LONG).unwrap(), (want, true));
    }
    wal.close(false).unwrap();
    drop(tx);
    assert!(rx.recv().is_err(), "each callback came once");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_search_finds_groups_behind_damage() {
    let (env, fs, _): (_, Arc<SimFs>, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    for i in 0..5 {
        let t = put(&wal, batch(&log, i + 1, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Synced).unwrap();
    }
    let file = wal.file(0, FileKey(0)).unwrap();
    let at = (WAL_START + 10) as u64;
    file.file.write_all_at(&[0xff; 4], at).unwrap();
    let mut scan = Scan::new(&env, file.file.clone(), &file.header, "f", 1).unwrap();
    assert!(scan.next_frame().unwrap().is_none());
    let stop = scan.stop();
    assert_eq!((stop.lsn, stop.offset), (1, WAL_START as u64));
    let g =
        scan::find_group(&file.file, &file.header, "f", stop.offset, stop.lsn).unwrap().unwrap();
    assert_eq!(
        (g.lsn, g.synced_lsn_max),
        (3, 8),
        "the next group; the last one names lsn 8 as durable"
    );
    assert!(fs.violations().is_empty());
}

#[test]
fn a_log_at_rest_is_small() {
    let (env, fs, _) = sim_env(2);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    for i in 0..100 {
        let t = put(&wal, batch(&log, 1 + 3 * i, 3, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
    }
    wal.sync(0).unwrap();
    let logged = wal.positions(0).written;
    wal.shrink_before_close(0).unwrap();
    let before = wal.counters().rotations;
    wal.shrink_before_close(0).unwrap();
    assert_eq!(wal.counters().rotations, before, "a small file is left in use");
    wal.trim(0, logged).unwrap();
    wal.close(true).unwrap();
    let files: Vec<_> = wal.shards[0].files.read().values().cloned().collect();
    let [last] = &files[..] else { panic!("{} files are left", files.len()) };
    assert!(last.first_lsn > logged && last.file.len().unwrap() < small().file_initial);
    assert!(wal.bytes_on_disk() < 2 * small().file_initial);
    assert!(fs.violations().is_empty());
}

#[test]
fn space_ahead_is_written_where_it_is_synced() {
    let (env, ..) = sim_env(3);
    let wal = wal(&env, WalOptions { file_max: 4096, ..small() });
    let log = Arc::new(Log::default());
    let used = || wal.shards[0].state.lock().current.sync_used;
    let mut seq = 1;
    let mut fill = |level| {
        let before = wal.counters().rotations;
        while wal.counters().rotations == before {
            let t = put(&wal, batch(&log, seq, 1, level)).unwrap();
            wal.wait(t, level).unwrap();
            seq += 1;
        }
    };
    fill(Level::Written);
    assert_eq!(used(), (false, false));
    fill(Level::Synced);
    assert_eq!(used(), (true, true), "the batch that went on in the file was synced, too");
    fill(Level::Written);
    fill(Level::Written);
    assert_eq!(used(), (false, false));
}
