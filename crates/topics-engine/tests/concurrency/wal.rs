//! Commit tokens and group commit: who leads, who syncs, who is told what.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::{Condvar, Mutex, thread};
use topics_env::{Env, OpenMode};
use topics_sim::{CallKind, FaultKind, SimClock, SimFs};
use topics_storage::StorageError;
use topics_storage::dir::Paths;
use topics_storage::format::frame::{self, Flags, Frame, FrameType};
use topics_storage::format::record::Start;
use topics_storage::format::wal_file::{self, WalFileHeader};
use topics_storage::wal::{
    Batch, Commit, FileKey, GROUP_HEADROOM, Level, PlacedBatch, ShardStart, Ticket, Wal, WalFile,
    WalOptions,
};

use crate::world::{LONG, Time, choose, empty, flip, join};

const WRITERS: u64 = 3;
const EACH: u64 = 2;

/// What commits were told: the order in which they were applied, where, and which failed.
#[derive(Default)]
struct Told {
    applied: Mutex<Vec<(u64, FileKey, u64, u64)>>,
    failed: Mutex<Vec<u64>>,
}

impl Told {
    fn place(&self, seq: u64) -> Option<(FileKey, u64, u64)> {
        let all = self.applied.lock();
        all.iter().find(|a| a.0 == seq).map(|a| (a.1, a.2, a.3))
    }

    fn failed(&self, seq: u64) -> bool {
        self.failed.lock().contains(&seq)
    }
}

struct One(Arc<Told>, u64);

impl Commit for One {
    fn apply(&self, p: &PlacedBatch<'_>) {
        let mut all = self.0.applied.lock();
        assert!(all.iter().all(|a| a.0 != self.1), "{} is applied twice", self.1);
        all.push((self.1, p.file, u64::from(p.offset), p.bytes.len() as u64));
    }

    fn failed(&self, _: &StorageError) {
        assert!(!self.0.failed(self.1), "{} fails twice", self.1);
        self.0.failed.lock().push(self.1);
    }
}

/// A log of one shard on a disk of its own.
struct Log {
    wal: Wal,
    env: Env,
    fs: Arc<SimFs>,
    clock: Arc<SimClock>,
    told: Arc<Told>,
}

fn paths() -> Paths {
    Paths::new(Path::new("/db"))
}

fn first_file(env: &Env, capacity: u64) -> ShardStart {
    let paths = paths();
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
    file.sync_data().unwrap();
    env.fs.sync_dir(&paths.shard(0)).unwrap();
    let files = vec![WalFile { key: FileKey(0), name, header, first_lsn: 1, file }];
    ShardStart {
        files,
        offset: bytes.len() as u64,
        capacity,
        next_lsn: 1,
        health: None,
        begin: None,
    }
}

impl Log {
    fn open(change: impl FnOnce(&mut WalOptions)) -> Arc<Self> {
        let (env, fs, clock) = empty();
        let mut options =
            WalOptions { file_initial: 4096, file_max: 8192, ..WalOptions::default() };
        change(&mut options);
        let start = first_file(&env, options.file_initial);
        let wal = Wal::start(env.clone(), paths(), options, vec![start], vec![]).unwrap();
        Arc::new(Self { wal, env, fs, clock, told: Arc::default() })
    }

    fn stage(&self, seq: u64, level: Level, bytes: usize) -> Result<Ticket, StorageError> {
        let mut records = vec![0; GROUP_HEADROOM];
        let data = vec![b'x'; bytes];
        let f = Frame::control(FrameType::Append, 0, 0, 0, &data);
        frame::encode(&mut records, &Frame { flags: Flags::default(), ..f });
        let batch = Batch {
            records,
            headroom: GROUP_HEADROOM,
            first_seq: seq,
            topic_id: 9,
            ..Batch::control(Vec::new(), 5, level, Arc::new(One(self.told.clone(), seq)))
        };
        let room = self.wal.reserve(0, batch.bytes(), Some(LONG))?;
        self.wal.stage(batch, room)
    }

    /// Where a file is, unless what it held has been trimmed.
    fn path(&self, file: FileKey) -> Option<PathBuf> {
        Some(paths().shard(0).join(&self.wal.file(0, file)?.name))
    }

    /// A writer has been told that its batch has reached a level.
    fn acked(&self, seq: u64, level: Level) {
        let place = self.told.place(seq);
        let (file, offset, len) = place.expect("I3: acked before it was applied");
        assert!(!self.told.failed(seq), "acked, and failed");
        let path = self.path(file).filter(|_| level == Level::Synced);
        if let Some(path) = path.filter(|p| !self.fs.is_durable(p, offset, len)) {
            // A file that is trimmed loses its name first.
            let there = self.env.fs.open(&path, OpenMode::Read).is_ok();
            assert!(!there, "I1: {seq} is acked, not durable");
        }
    }

    /// A writer has been told that its batch failed.
    fn refused(&self, seq: u64, level: Level) {
        // A batch that was written, and applied, may fail to become durable afterwards.
        let lost = self.told.failed(seq) || self.told.place(seq).is_some();
        assert!(lost, "{seq} at {level:?} is refused before its commit is told");
    }

    /// Every commit was told exactly one of the two.
    fn settled(&self, staged: &[u64]) {
        for seq in staged {
            let (applied, failed) = (self.told.place(*seq).is_some(), self.told.failed(*seq));
            assert!(applied != failed, "{seq}: applied {applied}, failed {failed}");
        }
    }

    /// The size that the log says it has is that of its files.
    fn sized(&self) {
        let dir = paths().shard(0);
        let logs = self.env.fs.list(&dir).unwrap().into_iter().filter(|e| e.name.ends_with(".log"));
        let len = |name: &str| {
            let file = self.env.fs.open(&dir.join(name), OpenMode::Read).unwrap();
            file.len().unwrap()
        };
        let bytes: u64 = logs.map(|e| len(&e.name)).sum();
        assert_eq!(self.wal.bytes_on_disk(), bytes);
    }

    /// The file that `CURRENT` names is the one in use, or was made ready behind it: recovery looks
    /// for the file before an empty one, which is trimmed once it is not the one in use.
    fn chained(&self) {
        let in_use = (0..100).filter_map(|key| self.wal.file(0, FileKey(key))).last().unwrap();
        let dir = paths().shard(0);
        let newest = wal_file::read_current(&self.env, &dir).unwrap();
        let Some(newest) = newest.filter(|n| *n != in_use.name) else { return };
        let file = self.env.fs.open(&dir.join(&newest), OpenMode::Read).unwrap();
        let header = WalFileHeader::read(&self.env, &*file, &newest).unwrap();
        assert_eq!(header.prior, in_use.header.ordinal, "{newest} is behind {}", in_use.name);
    }
}

fn level() -> Level {
    if flip() { Level::Synced } else { Level::Written }
}

fn writers(log: &Arc<Log>, body: fn(&Log, u64)) -> Vec<thread::JoinHandle<()>> {
    let one = |w| {
        let log = log.clone();
        thread::spawn(move || (0..EACH).for_each(|i| body(&log, 1 + w * EACH + i)))
    };
    (0..WRITERS).map(one).collect()
}

fn all() -> Vec<u64> {
    (1..=WRITERS * EACH).collect()
}

/// Several writers, each its own leader or follower, over the end of a file: everybody is told,
/// once, nobody before his sync.
pub fn commit() {
    let log = Log::open(|o| o.background = flip());
    let threads = writers(&log, |log, seq| {
        let level = level();
        let ticket = log.stage(seq, level, 900).unwrap();
        log.wal.wait(ticket, level).unwrap();
        log.acked(seq, level);
    });
    for _ in 0..2 {
        log.wal.trim(0, log.wal.positions(0).synced).unwrap();
    }
    join(threads);
    log.settled(&all());
    log.chained();
    log.wal.close(true).unwrap();
    log.sized();
    let at = log.wal.positions(0);
    assert_eq!((at.written, at.applied), (at.synced, at.synced));
}

/// A sync fails: whoever was acked at that level is durable, everybody else is told, and nothing
/// is acked by a log that is known to have failed (I10).
pub fn failed_sync() {
    let log = Log::open(|o| o.background = flip());
    log.fs.fail_nth(CallKind::SyncData, 1 + choose(4) as usize, FaultKind::Errno(5));
    join(writers(&log, |log, seq| {
        let known = log.wal.poisoned(0).is_some();
        let level = level();
        let ticket = match log.stage(seq, level, 900) {
            Ok(ticket) => ticket,
            Err(e) => {
                // Without a poisoned log a batch of the topic has failed, and is being told: it had
                // no next file, whose sync is the one that fails.
                let told = matches!(e, StorageError::Io { .. });
                assert!(told || log.wal.poisoned(0).is_some(), "{e}");
                log.told.failed.lock().push(seq);
                return;
            }
        };
        let outcome = log.wal.wait(ticket, level);
        assert!(!known || outcome.is_err(), "I10: {seq} is acked after a failed sync");
        match outcome {
            Ok(()) => log.acked(seq, level),
            Err(_) => log.refused(seq, level),
        }
    }));
    let failed = log.wal.poisoned(0).is_some();
    let ended = log.wal.close(true);
    assert!(ended.is_err() || !failed, "a clean close of a log that failed");
    log.settled(&all());
}

/// Callbacks and blocked writers while the log closes: each is told exactly once.
pub fn close() {
    let log = Log::open(|o| o.background = flip());
    let calls = Arc::new(Mutex::new(Vec::new()));
    let staged = Arc::new(Mutex::new(Vec::new()));
    let one = |w: u64| {
        let (log, calls, staged) = (log.clone(), calls.clone(), staged.clone());
        thread::spawn(move || {
            for seq in [1 + w * EACH, 2 + w * EACH] {
                let level = level();
                let Ok(ticket) = log.stage(seq, level, 40) else { return };
                staged.lock().push(seq);
                if flip() {
                    let (calls, told) = (calls.clone(), log.told.clone());
                    let done = move |r: Result<(), StorageError>| {
                        assert!(r.is_err() || told.place(seq).is_some(), "I3");
                        calls.lock().push(seq);
                    };
                    log.wal.on_level(ticket, level, Box::new(done));
                    log.wal.drive(0);
                } else {
                    match log.wal.wait(ticket, level) {
                        Ok(()) => log.acked(seq, level),
                        Err(_) => log.refused(seq, level),
                    }
                    calls.lock().push(seq);
                }
            }
        })
    };
    let threads: Vec<_> = (0..WRITERS).map(one).collect();
    let clean = flip();
    log.wal.close(clean).unwrap();
    join(threads);
    let (mut calls, mut staged) = (calls.lock().clone(), staged.lock().clone());
    calls.sort_unstable();
    staged.sort_unstable();
    assert_eq!(calls, staged, "each is told once");
    log.settled(&staged);
}

/// Room for one batch: whoever waits for it gets it, also from one who took it for nothing.
pub fn room() {
    let log = Log::open(|o| {
        o.background = flip();
        o.staging_batches = 1;
    });
    join(writers(&log, |log, seq| {
        if seq % EACH == 0 && flip() {
            // The last thing that this writer does is to leave the room to others.
            drop(log.wal.reserve(0, 10, Some(LONG)).unwrap());
            log.told.failed.lock().push(seq);
            return;
        }
        let level = level();
        let ticket = log.stage(seq, level, 40).unwrap();
        log.wal.wait(ticket, level).unwrap();
        log.acked(seq, level);
    }));
    log.settled(&all());
    log.wal.close(true).unwrap();
    log.sized();
}

/// Batches that nobody waits for: the shard's thread writes and syncs them as time passes.
pub fn unwaited() {
    let log = Log::open(|o| o.sync_interval = Duration::from_millis(5));
    let left = Arc::new((Mutex::new(WRITERS * EACH), Condvar::new()));
    let one = |w: u64| {
        let (log, left) = (log.clone(), left.clone());
        thread::spawn(move || {
            for seq in [1 + w * EACH, 2 + w * EACH] {
                let staged = if flip() { Level::Staged } else { Level::Written };
                let ticket = log.stage(seq, staged, 40).unwrap();
                let (at, left) = (log.clone(), left.clone());
                let level = level();
                let done = move |r: Result<(), StorageError>| {
                    r.unwrap();
                    at.acked(seq, level);
                    *left.0.lock() -= 1;
                    left.1.notify_all();
                };
                log.wal.on_level(ticket, level, Box::new(done));
            }
        })
    };
    let threads: Vec<_> = (0..WRITERS).map(one).collect();
    let time = Time::run(&log.clock, Duration::from_millis(5));
    join(threads);
    let mut n = left.0.lock();
    while *n > 0 {
        left.1.wait(&mut n);
    }
    drop(n);
    time.stop();
    log.settled(&all());
    log.wal.close(true).unwrap();
}
