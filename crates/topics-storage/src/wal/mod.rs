//! The write-ahead log: shards, group commit, rotation of files.
//!
//! * `state`: the state of a shard, without I/O.
//! * `effects`: commits and failures, run in order.
//! * `outcome`: outcomes of tickets, and the threads and callbacks that wait for them.
//! * `batch`: the types of a batch and of its commit.
//! * `permit`: the bound on what is staged.
//! * `shard`: staging, waiting, reading.
//! * `group`: builds one group from staged batches.
//! * `hold`: a consistent cut, and files that stay for a copy of the log.
//! * `lead`: the leader of a group commit: one group, one write.
//! * `sync`: syncs, the shard's thread, the close.
//! * `rotation`: from one file to the next.
//! * `begin`: the first file of a log that was opened on a full disk.
//! * `prefault`: reads reserved space before it is written, so that its pages are in memory.
//! * `space`: what a checkpoint on a full disk needs of the log: a pause of its allocation, and the
//!   space that it has allocated and not used.
//! * `cache`: the newest groups, for reads without a system call.
//! * [`scan`]: reading files frame by frame.

mod batch;
mod begin;
mod cache;
mod counters;
mod effects;
mod group;
mod hold;
mod lead;
mod outcome;
mod permit;
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

use topics_env::sync::atomic::AtomicU32;
use topics_env::sync::thread;
use topics_env::sync::{Mutex, RwLock};
use topics_env::{Callback, Env, File};
use xxhash_rust::xxh3::xxh3_64;

pub use self::batch::{Batch, Commit, FileKey, GROUP_HEADROOM, Level, PlacedBatch, Ticket};
pub use self::begin::{BeginLog, FirstFile};
pub use self::counters::Counters;
pub use self::hold::FIRST_FRAME;
pub use self::permit::StagingPermit;
use self::shard::Shard;
pub use self::space::{AllocationPause, EndedFile};
use crate::dir::reserve::ReserveSize;
use crate::dir::{LockWatch, Paths};
use crate::format::health::HealthFile;
use crate::format::wal_file::WalFileHeader;
use crate::{Result, StorageError};

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

/// The state of a shard after recovery.
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
    /// The shard records a failed write-back here. `None`: the next open after a kill assumes that
    /// write-back failed.
    pub health: Option<Arc<HealthFile>>,
    /// Creates the file in use, for which the open found no space. Batches are refused until it did;
    /// `offset` and `capacity` are 0.
    pub begin: Option<BeginLog>,
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
    /// Runs two threads for each shard. Without them the owner calls [`Wal::drive`].
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

/// State that all shards share.
#[derive(Debug)]
struct Shared {
    env: Env,
    paths: Paths,
    options: WalOptions,
    /// Whether the backend is faster with a write that is linked to its sync.
    linked: bool,
    /// The next key: files of all shards share one sequence.
    next_key: AtomicU32,
    /// The size of the reserve: it grows before the log does.
    reserve: ReserveSize,
    /// The lock of the directory. It is checked after each sync, before anything is acked.
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
    /// Starts the log: one [`ShardStart`] per shard, and the files of shards outside the layout,
    /// which are only read.
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
        let lock = std::sync::OnceLock::new();
        let reserve = ReserveSize::default();
        let shared = Shared { env, paths, options, linked, next_key, reserve, lock };
        let shared = Arc::new(shared);
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

    /// Makes every sync check this lock. A shard that finds it lost is poisoned with
    /// [`StorageError::LockLost`] and acks nothing more.
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

    /// Returns a permit to stage a batch. The caller holds no lock: with `wait` the call blocks up to
    /// that long, first come, first served, and leads groups meanwhile. [`StorageError::Staging`]
    /// when no permit becomes free.
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

    /// Waits until the ticket reaches a level. The caller leads a group or runs a sync if no other
    /// thread does.
    pub fn wait(&self, ticket: Ticket, level: Level) -> Result<()> {
        self.shards[ticket.shard as usize].wait(ticket.n, level)
    }

    /// Calls `done` once, when the level is reached or has become impossible; never blocks. `done`
    /// runs with no lock held on the thread that completes it, which may be the caller's.
    pub fn on_level(&self, ticket: Ticket, level: Level, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.shards[ticket.shard as usize].on_level(ticket.n, level, done);
    }

    /// Calls `call` once, when a frame above the lsn `after` is durable and applied: in this call if one is.
    /// Requests no sync. Returns an id for [`Self::cancel_observer`].
    pub fn observe_sync(&self, shard: usize, after: u64, call: Callback) -> u64 {
        self.shards[shard].observe_sync(after, call)
    }

    /// Removes an observer that has not been called.
    pub fn cancel_observer(&self, shard: usize, id: u64) {
        self.shards[shard].cancel_observer(id);
    }

    /// Leads one group if the shard is idle; writes, never syncs.
    pub fn drive(&self, shard: usize) {
        self.shards[shard].drive();
    }

    /// Requests a write of the staged batches without waiting for it. The shard's thread leads; in a
    /// log without threads this call does.
    pub fn lead_later(&self, shard: usize) {
        self.shards[shard].lead_later();
    }

    /// Writes and syncs everything staged so far; returns the synced lsn.
    pub fn sync(&self, shard: usize) -> Result<u64> {
        self.shards[shard].sync_all()
    }

    /// How far a shard has come.
    #[must_use]
    pub fn positions(&self, shard: usize) -> Positions {
        self.shards[shard].positions()
    }

    /// The error that poisoned a shard, if it is poisoned.
    #[must_use]
    pub fn poisoned(&self, shard: usize) -> Option<StorageError> {
        self.shards[shard].poisoned()
    }

    /// Whether every shard has a file in use. One that was opened on a disk without any space has none.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.shards.iter().all(|s| s.has_begun())
    }

    /// The error of a log that has not begun.
    #[must_use]
    pub fn not_begun(&self) -> StorageError {
        begin::not_begun()
    }

    /// Whether ordinary writes are refused because the disk is full. Tries once to make the next
    /// file.
    #[must_use]
    pub fn full(&self, shard: usize) -> bool {
        self.shards[shard].full()
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

    /// The files of a shard, oldest first, the one in use last.
    #[must_use]
    pub fn files(&self, shard: usize) -> Vec<Arc<WalFile>> {
        self.shards[shard].files()
    }

    /// Removes files whose last lsn is at or below `lsn`, never the one in use; the names.
    pub fn trim(&self, shard: usize, lsn: u64) -> Result<Vec<String>> {
        self.shards[shard].trim(lsn)
    }

    /// Rotates to a small file before the last checkpoints of a clean close. An error only makes the
    /// next open slower.
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

    /// Closes the files after [`Self::close`]. A read in progress keeps its file open.
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
        // Waiters get `Closed`. An unclean close has no error that a caller could handle.
        let _ = self.close(false);
    }
}
