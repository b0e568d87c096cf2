//! The write-ahead log: shards, group commit, rotation of files.
//!
//! * `state`: what a shard knows, and the order in which commits are told.
//! * `outcome`: what is known about tickets, and who wants to know.
//! * `shard`: staging, waiting, reading.
//! * `group`: making one group of staged batches.
//! * `lead`: what a leader does: one group, one write.
//! * `sync`: making it durable; the shard's thread; the close.
//! * `rotation`: from one file to the next.
//! * `prefault`: reads reserved space before it is written, so that its pages are in memory.
//! * `space`: keeping the free space of a full disk for a checkpoint.
//! * `cache`: the newest groups, for reads without a system call.
//! * [`scan`]: reading files frame by frame.

mod cache;
mod group;
mod lead;
mod outcome;
mod prefault;
mod rotation;
pub mod scan;
mod shard;
mod space;
mod state;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use topics_env::sync::thread;
use topics_env::sync::{Mutex, RwLock};
use topics_env::{Env, File};
use xxhash_rust::xxh3::xxh3_64;

use self::shard::Shard;
pub use self::shard::StagingPermit;
pub use self::space::{AllocationPause, EndedFile};
use crate::dir::{LockWatch, Paths};
use crate::format::health::HealthFile;
use crate::format::record::Group;
use crate::format::wal_file::WalFileHeader;
use crate::{Result, StorageError};

/// When a batch counts as committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// In the queue.
    Staged,
    /// Its group's write has returned.
    Written,
    /// A sync covers it.
    Synced,
}

/// A file within this process; keys of one shard ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey(pub u32);

/// A staged batch: its place in the shard's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The shard.
    pub shard: u32,
    /// Ordinal in the shard, from 1.
    pub n: u64,
}

/// What becomes of a batch: exactly one of the two, once, in queue order within a level. A batch
/// that fails takes every later one of its topic with it.
pub trait Commit: Send + Sync {
    /// The batch is committed at its level; its frames are finished and lie where `placed` says.
    fn apply(&self, placed: &PlacedBatch<'_>);
    /// The batch was not logged, or nothing is known about it any more.
    fn failed(&self, error: &StorageError);
}

/// The room that [`Batch::records`] may leave for the frame that opens a group.
pub const GROUP_HEADROOM: usize = Group::FRAME_LEN;

/// A batch for the log. The frames are encoded, not sealed.
pub struct Batch {
    /// Control frames before the records.
    pub head: Vec<u8>,
    /// Append frames; topic, seq and ts are set when the group is written.
    pub records: Vec<u8>,
    /// Bytes of `records` before its first frame: [`GROUP_HEADROOM`], or 0. With them a batch that is a
    /// group of its own is written from where it was encoded.
    pub headroom: usize,
    /// Control frames after the records.
    pub tail: Vec<u8>,
    /// Seq of the first Append frame.
    pub first_seq: u64,
    /// Time of every frame that has none.
    pub ts: u64,
    /// Topic of all frames, whose batches share their fate; 0: of none, and the batch fails alone.
    pub topic_id: u64,
    /// When it is applied: after its write, or after a sync covers it.
    pub level: Level,
    /// Goes on while the disk is full.
    pub frees_space: bool,
    /// Told the outcome.
    pub commit: Arc<dyn Commit>,
}

impl Batch {
    /// Control frames that belong to no topic; they do not free space.
    #[must_use]
    pub fn control(head: Vec<u8>, ts: u64, level: Level, commit: Arc<dyn Commit>) -> Self {
        Self {
            head,
            records: Vec::new(),
            headroom: 0,
            tail: Vec::new(),
            first_seq: 0,
            ts,
            topic_id: 0,
            level,
            frees_space: false,
            commit,
        }
    }

    /// Bytes of all frames.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.head.len() + self.frames().len() + self.tail.len()
    }

    /// The Append frames.
    fn frames(&self) -> &[u8] {
        self.records.get(self.headroom..).unwrap_or(&[])
    }
}

/// Where finished frames lie.
#[derive(Clone, Copy, Debug)]
pub struct PlacedBatch<'a> {
    /// The shard.
    pub shard: usize,
    /// The file.
    pub file: FileKey,
    /// Offset of the first frame.
    pub offset: u32,
    /// Lsn of the first frame.
    pub first_lsn: u64,
    /// First lsn of the file.
    pub file_first_lsn: u64,
    /// The frames, contiguous, sealed.
    pub bytes: &'a [u8],
}

/// How far a shard has come, as lsns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Written up to here.
    pub written: u64,
    /// Durable up to here.
    pub synced: u64,
    /// Everything up to here has been applied.
    pub applied: u64,
}

/// A file that holds frames.
#[derive(Debug)]
pub struct WalFile {
    /// Its key.
    pub key: FileKey,
    /// Its name in the shard's folder.
    pub name: String,
    /// What it says about itself.
    pub header: WalFileHeader,
    /// Lsn of its first frame.
    pub first_lsn: u64,
    /// The open file.
    pub file: Arc<dyn File>,
}

/// What recovery leaves of a shard.
#[derive(Debug)]
pub struct ShardStart {
    /// Files that reads may need, ascending, the one in use last.
    pub files: Vec<WalFile>,
    /// Where the next byte goes in the file in use.
    pub offset: u64,
    /// How long that file is.
    pub capacity: u64,
    /// Lsn of the next frame. Everything below is durable.
    pub next_lsn: u64,
    /// Where the shard says that its write-back failed; `None`: the next open takes it for granted
    /// after a kill.
    pub health: Option<Arc<HealthFile>>,
}

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Number of shards.
    pub shards: u32,
    /// Size of a generation's first file.
    pub file_initial: u64,
    /// Largest preallocated size; sizes double up to it.
    pub file_max: u64,
    /// Staged bytes per shard.
    pub staging_bytes: usize,
    /// Staged batches per shard.
    pub staging_batches: usize,
    /// Bytes of the newest groups kept in memory, per shard.
    pub tail_cache_bytes: usize,
    /// How long an idle tail stays unsynced.
    pub sync_interval: Duration,
    /// Run threads for each shard; otherwise the owner drives.
    pub background: bool,
}

impl Default for WalOptions {
    fn default() -> Self {
        Self {
            shards: 1,
            file_initial: 1 << 20,
            file_max: 64 << 20,
            staging_bytes: 64 << 20,
            staging_batches: 65_536,
            tail_cache_bytes: 16 << 20,
            sync_interval: Duration::from_millis(50),
            background: true,
        }
    }
}

/// What all shards share.
#[derive(Debug)]
struct Shared {
    env: Env,
    paths: Paths,
    options: WalOptions,
    /// Whether the backend gains by a write that is linked to its sync.
    linked: bool,
    /// The next key: files of all shards share one sequence.
    next_key: AtomicU32,
    /// Least time from one sync to the next while several wait for it, ns.
    commit_delay: AtomicU64,
    /// The lock of the directory: looked at after each sync, before it acks anything.
    lock: std::sync::OnceLock<LockWatch>,
}

impl Shared {
    /// Fails once the directory's lock file was removed or replaced.
    fn check_lock(&self) -> Result<()> {
        self.lock.get().map_or(Ok(()), |lock| lock.check(&self.env))
    }
}

/// The log of a directory.
#[derive(Debug)]
pub struct Wal {
    shards: Vec<Arc<Shard>>,
    /// Files of shards outside the layout, for reads.
    outside_files: RwLock<BTreeMap<FileKey, Arc<WalFile>>>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

impl Wal {
    /// Starts on what recovery prepared: one [`ShardStart`] per shard, and the files of shards
    /// outside the layout.
    pub fn start(
        env: Env,
        paths: Paths,
        options: WalOptions,
        starts: Vec<ShardStart>,
        outside_files: Vec<WalFile>,
    ) -> Result<Self> {
        let background = options.background;
        let linked = env.fs.backend() != "posix";
        let known = starts.iter().flat_map(|s| &s.files).chain(&outside_files);
        let next_key = AtomicU32::new(known.map(|f| f.key.0 + 1).max().unwrap_or(0));
        let commit_delay = AtomicU64::new(0);
        let lock = std::sync::OnceLock::new();
        let shared = Arc::new(Shared { env, paths, options, linked, next_key, commit_delay, lock });
        let outside_files: BTreeMap<_, _> =
            outside_files.into_iter().map(|f| (f.key, Arc::new(f))).collect();
        let outside_files = RwLock::new(outside_files);
        let mut shards = Vec::with_capacity(starts.len());
        for (i, start) in starts.into_iter().enumerate() {
            shards.push(Arc::new(Shard::new(shared.clone(), i, start)?));
        }
        let mut threads = Vec::new();
        if background {
            for shard in &shards {
                for (what, run) in
                    [("wal-sync", Shard::run as fn(&Shard)), ("wal-ahead", Shard::run_prefault)]
                {
                    let shard = shard.clone();
                    let name = format!("topics-{}-{}", what.trim_start_matches("wal-"), shard.id);
                    let thread =
                        thread::Builder::new().name(name).spawn(move || shard.thread(what, run));
                    threads.push(thread.map_err(|e| StorageError::io("start a log's thread", e))?);
                }
            }
        }
        Ok(Self { shards, outside_files, threads: Mutex::new(threads) })
    }

    /// From now on nothing is acked once this lock is lost: a shard that notices, at its next sync,
    /// is poisoned with [`StorageError::LockLost`].
    pub fn watch_lock(&self, lock: LockWatch) {
        if let Some(shard) = self.shards.first() {
            let _ = shard.shared.lock.set(lock);
        }
    }

    /// Number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The shard of a topic.
    #[must_use]
    pub fn shard_of(&self, topic_id: u64) -> usize {
        (xxh3_64(&topic_id.to_le_bytes()) % self.shards.len() as u64) as usize
    }

    /// A permit to stage a batch; to be taken before any lock. With `wait`, waits (and leads) that
    /// long, first come, first served; [`StorageError::Staging`] when there is none.
    pub fn reserve(
        &self,
        shard: usize,
        bytes: usize,
        wait: Option<Duration>,
    ) -> Result<StagingPermit> {
        Shard::reserve(&self.shards[shard], bytes, wait)
    }

    /// Queues a batch; never blocks.
    pub fn stage(&self, batch: Batch, permit: StagingPermit) -> Result<Ticket> {
        let shard = permit.shard();
        shard.stage(batch, permit)
    }

    /// Waits for a level, leading and syncing where nobody else does.
    pub fn wait(&self, ticket: Ticket, level: Level) -> Result<()> {
        self.shards[ticket.shard as usize].wait(ticket.n, level)
    }

    /// Calls `done` once when the level is reached or cannot be; never blocks. `done` runs on
    /// whichever thread completes it, possibly this one, with no lock held.
    pub fn notify(&self, ticket: Ticket, level: Level, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.shards[ticket.shard as usize].notify(ticket.n, level, done);
    }

    /// Leads one group if the shard is idle; writes, never syncs.
    pub fn drive(&self, shard: usize) {
        self.shards[shard].drive();
    }

    /// Has what is staged written soon without waiting for it: by the shard's thread, or here where
    /// there is none.
    pub fn lead_later(&self, shard: usize) {
        self.shards[shard].lead_later();
    }

    /// Writes and syncs everything staged so far; the synced lsn.
    pub fn sync(&self, shard: usize) -> Result<u64> {
        self.shards[shard].sync_all()
    }

    /// How far a shard has come.
    #[must_use]
    pub fn positions(&self, shard: usize) -> Positions {
        self.shards[shard].positions()
    }

    /// Whether a shard has failed until restart.
    #[must_use]
    pub fn poisoned(&self, shard: usize) -> Option<StorageError> {
        self.shards[shard].poisoned()
    }

    /// Whether ordinary writes are refused for want of space; tries to get some.
    #[must_use]
    pub fn full(&self, shard: usize) -> bool {
        self.shards[shard].full()
    }

    /// The least time, in ns, from the beginning of one sync to that of the next while more than
    /// one waits for it: under pressure a sync covers more. A lone caller never waits for it, nor
    /// does [`Self::sync`]. 0: none.
    pub fn set_commit_delay(&self, ns: u64) {
        if let Some(shard) = self.shards.first() {
            shard.shared.commit_delay.store(ns, Ordering::Relaxed);
        }
    }

    /// For how long after `since`, monotonic ns, the last sync of the shard that was held back under
    /// pressure waited before it began.
    #[must_use]
    pub fn delayed_since(&self, shard: usize, since: u64) -> u64 {
        self.shards[shard].delayed_since(since)
    }

    /// Appends `len` bytes at a place to `out`; `shard` is where the topic lies now, which need not
    /// be where the file is. [`StorageError::Missing`] when the file is gone.
    pub fn read(
        &self,
        shard: usize,
        key: FileKey,
        offset: u32,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let cached = self.shards.get(shard).is_some_and(|s| s.read_cached(key, offset, len, out));
        if cached {
            return Ok(());
        }
        let Some(file) = self.file(shard, key) else {
            if self.shards.iter().all(|s| s.is_closed()) {
                return Err(StorageError::Closed);
            }
            return Err(StorageError::Missing { what: format!("log file {}", key.0) });
        };
        let at = out.len();
        out.resize(at + len, 0);
        file.file.read_exact_at(&mut out[at..], u64::from(offset)).map_err(|e| {
            out.truncate(at);
            StorageError::io(format!("read wal/shard-{:02}/{}", file.header.shard, file.name), e)
        })
    }

    /// A file, while it is there.
    #[must_use]
    pub fn file(&self, shard: usize, key: FileKey) -> Option<Arc<WalFile>> {
        let here = self.shards.get(shard).and_then(|s| s.file(key));
        here.or_else(|| self.shards.iter().find_map(|s| s.file(key)))
            .or_else(|| self.outside_files.read().get(&key).cloned())
    }

    /// Removes files whose last lsn is at or below `lsn`, never the one in use; the names.
    pub fn trim(&self, shard: usize, lsn: u64) -> Result<Vec<String>> {
        self.shards[shard].trim(lsn)
    }

    /// Makes the file in use a small one, before the last checkpoints of a clean close. An error
    /// costs only the time that the next open takes.
    pub fn shrink_before_close(&self, shard: usize) -> Result<()> {
        self.shards[shard].shrink_before_close()
    }

    /// Bytes of all files, the preallocated part included.
    #[must_use]
    pub fn bytes_on_disk(&self) -> u64 {
        self.shards.iter().map(|s| s.bytes_on_disk()).sum()
    }

    /// Counters of all shards.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shards.iter().fold(Counters::default(), |sum, s| sum.plus(&s.counters()))
    }

    /// Stops the threads. A clean close writes and syncs everything staged, then CleanClose.
    /// Idempotent; later calls of everything else are refused.
    pub fn close(&self, clean: bool) -> Result<()> {
        let mut result = Ok(());
        for shard in &self.shards {
            let one = Shard::close(shard, clean);
            if result.is_ok() {
                result = one;
            }
        }
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                log::error!("a thread of the log panicked");
            }
        }
        result
    }

    /// After a close: closes the files, but for those of reads that are under way.
    pub fn release_files(&self) {
        for shard in &self.shards {
            shard.release_files();
        }
        let outside_files = std::mem::take(&mut *self.outside_files.write());
        drop(outside_files);
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        // Whoever still waits is told; the error of a close that did nothing wrong is none.
        let _ = self.close(false);
    }
}

/// What the shards have done since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Group writes.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Frames in them.
    pub frames: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Syncs that returned.
    pub syncs: u64,
    /// Nanoseconds they took.
    pub sync_ns: u64,
    /// The same as a histogram: the `i`-th counts syncs below `2^(i + 8)` ns, the last all others.
    pub sync_times: [u64; SYNC_BUCKETS],
    /// Syncs that waited for company before they began.
    pub delayed_syncs: u64,
    /// Files begun.
    pub rotations: u64,
    /// Batches staged now.
    pub staged: u64,
    /// Bytes that these keep.
    pub staged_bytes: u64,
    /// Shards that are poisoned.
    pub poisoned: u64,
    /// Shards that take no ordinary writes: poisoned, or without space.
    pub read_only: u64,
}

/// Buckets of [`Counters::sync_times`].
pub const SYNC_BUCKETS: usize = 32;

impl Counters {
    /// A sync has returned after so many nanoseconds.
    fn synced(&mut self, ns: u64) {
        self.syncs += 1;
        self.sync_ns += ns;
        let bits = (64 - ns.leading_zeros()) as usize;
        self.sync_times[bits.saturating_sub(8).min(SYNC_BUCKETS - 1)] += 1;
    }

    fn plus(self, o: &Self) -> Self {
        Self {
            groups: self.groups + o.groups,
            batches: self.batches + o.batches,
            frames: self.frames + o.frames,
            bytes: self.bytes + o.bytes,
            syncs: self.syncs + o.syncs,
            sync_ns: self.sync_ns + o.sync_ns,
            sync_times: std::array::from_fn(|i| self.sync_times[i] + o.sync_times[i]),
            delayed_syncs: self.delayed_syncs + o.delayed_syncs,
            rotations: self.rotations + o.rotations,
            staged: self.staged + o.staged,
            staged_bytes: self.staged_bytes + o.staged_bytes,
            poisoned: self.poisoned + o.poisoned,
            read_only: self.read_only + o.read_only,
        }
    }
}
