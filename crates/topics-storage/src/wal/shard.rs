//! One shard: staging, waiting, reading.
//!
//! One small mutex guards the state. Leading (writing groups), syncing, preparing the next file and
//! draining effects are flags in it, each set by one thread at a time; the mutex is never held
//! across I/O or a commit callback. A thread that clears a flag calls [`Shard::drain_effects`], which
//! wakes the threads that wait for the flag.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use topics_env::Panicked;
use topics_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use topics_env::sync::{Condvar, Mutex, MutexGuard, RwLock, thread, thread_local};

use super::cache::TailCache;
use super::effects::{Effect, QueuedBatch};
use super::hold::NO_HOLD;
use super::outcome::{Callback, Waiter};
use super::permit::StagingPermit;
use super::state::{State, Thread};
use super::{
    Batch, Commit, Counters, FileKey, Level, Positions, ShardStart, Shared, Ticket, WalFile,
};
use crate::{Result, StorageError};

/// The largest batch: offsets within a file are 32 bits.
const MAX_BATCH: usize = 3 << 30;

pub(super) type Guard<'a> = MutexGuard<'a, State>;

thread_local! {
    /// A thread blocks in one wait at a time.
    static WAKE: Arc<Condvar> = Arc::new(Condvar::new());
}

#[derive(Debug)]
pub(super) struct Shard {
    pub shared: Arc<Shared>,
    pub id: usize,
    pub dir: PathBuf,
    pub state: Mutex<State>,
    /// Signalled when a flag is cleared.
    pub flags: Condvar,
    /// Wakes the shard's thread.
    pub wake: Condvar,
    /// Wakes the prefault thread.
    pub prefault_wake: Condvar,
    pub files: RwLock<BTreeMap<FileKey, Arc<WalFile>>>,
    pub cache: RwLock<TailCache>,
    /// Bytes of all files, the preallocated part included.
    pub disk_bytes: AtomicU64,
    /// A trim removes no file with a frame above this lsn.
    pub hold: AtomicU64,
    /// Whether the last trim left a file because of that.
    pub is_held: AtomicBool,
    /// The shard's thread.
    pub own_thread: std::sync::OnceLock<thread::ThreadId>,
}

/// Poisons the shard if a thread panics while it has a flag set: its work is half done, and the other
/// threads must not wait for it for ever.
struct PoisonOnPanic<'a>(&'a Shard);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let shard = self.0;
            let poison = || shard.poison_after_panic("a thread panicked in the log");
            // A second panic while unwinding would abort the process.
            let _ = shard.shared.env.guards.run("wal", || format!("shard {}", shard.id), poison);
        }
    }
}

impl Shard {
    pub fn new(shared: Arc<Shared>, id: usize, mut start: ShardStart) -> Result<Self> {
        let files: BTreeMap<FileKey, Arc<WalFile>> =
            start.files.drain(..).map(|f| (f.key, Arc::new(f))).collect();
        let mut bytes = 0;
        for f in files.values() {
            bytes += f.file.len().map_err(|e| StorageError::io(&f.name, e))?;
        }
        let newest = files.values().next_back().filter(|_| start.begin.is_none()).cloned();
        let state = State::new(start, newest, &shared.options);
        let cache = TailCache::new(shared.options.tail_cache_bytes);
        Ok(Self {
            dir: shared.paths.shard(u32::try_from(id).unwrap_or(u32::MAX)),
            shared,
            id,
            state: Mutex::new(state),
            flags: Condvar::new(),
            wake: Condvar::new(),
            prefault_wake: Condvar::new(),
            files: RwLock::new(files),
            cache: RwLock::new(cache),
            disk_bytes: AtomicU64::new(bytes),
            hold: AtomicU64::new(NO_HOLD),
            is_held: AtomicBool::new(false),
            own_thread: std::sync::OnceLock::new(),
        })
    }

    /// A key for a new file.
    pub fn new_key(&self) -> u32 {
        self.shared.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts the bytes of a new file.
    pub fn add_bytes(&self, bytes: u64) {
        self.disk_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the log has a file in use.
    pub fn has_begun(&self) -> bool {
        self.state.lock().next.begin.is_none()
    }

    pub fn background(&self) -> bool {
        self.shared.options.background
    }

    /// Leads one group: see [`Self::lead_group`]. A panic poisons the shard.
    pub fn lead<'a>(&'a self, st: Guard<'a>, own: Option<(u64, Level)>) -> Guard<'a> {
        self.poison_on_panic(|| self.lead_group(st, own))
    }

    /// Syncs what has been written: see [`Self::sync_written`]. A panic poisons the shard.
    pub fn run_sync<'a>(&'a self, st: Guard<'a>) -> Guard<'a> {
        self.poison_on_panic(|| self.sync_written(st))
    }

    /// Runs `f`, which owns the guard of the lock. A panic in `f` drops the guard first, so that the
    /// handler can lock.
    fn poison_on_panic<R>(&self, f: impl FnOnce() -> R) -> R {
        let guard = PoisonOnPanic(self);
        let r = f();
        std::mem::forget(guard);
        r
    }

    /// Poisons the shard after a panic: clears the flags and fails every waiting batch.
    fn poison_after_panic(&self, what: &str) {
        let error = StorageError::Poisoned { detail: what.to_owned() };
        let mut st = self.state.lock();
        st.release_flags();
        drop(self.poison(st, Vec::new(), &error));
    }

    /// The body of a thread of the shard. It ends with the shard, or by a panic, which poisons it.
    pub fn thread(&self, name: &'static str, run: fn(&Self)) {
        let at = || format!("shard {}", self.id);
        if let Err(panicked) = self.shared.env.guards.run(name, at, || run(self)) {
            self.poison_after_panic(&format!("the thread {name}: {panicked}"));
        }
    }

    /// Runs `f` without the lock; if it panics the shard is poisoned instead of stuck.
    pub fn unlocked<R>(&self, st: &mut Guard<'_>, f: impl FnOnce() -> R) -> R {
        MutexGuard::unlocked(st, || {
            // Dropped here, while the lock is free, if `f` panics.
            let guard = PoisonOnPanic(self);
            let r = f();
            std::mem::forget(guard);
            r
        })
    }

    pub fn stage(&self, batch: Batch, mut permit: StagingPermit) -> Result<Ticket> {
        if batch.bytes() > MAX_BATCH || batch.bytes() == 0 {
            return Err(StorageError::Io {
                what: format!("stage a batch of {} bytes", batch.bytes()),
                kind: std::io::ErrorKind::InvalidInput,
                raw: None,
                detail: "a batch has at least one frame and less than 3 GiB".into(),
            });
        }
        let mut st = self.state.lock();
        if let Err(e) = self.refusal(&st, batch.frees_space) {
            if st.next.no_space {
                st.next.retry = true;
                self.wake_thread(&mut st);
            }
            // The permit is released without the lock.
            drop(st);
            return Err(e);
        }
        if let Some(e) = st.progress.undelivered.get(&batch.topic_id) {
            let e = e.clone();
            drop(st);
            return Err(e);
        }
        permit.staged = true;
        Ok(self.enqueue(&mut st, batch, permit.bytes))
    }

    /// Queues a batch whose reservation was taken before.
    pub fn enqueue(&self, st: &mut State, batch: Batch, reserved: usize) -> Ticket {
        let unwaited = batch.level == Level::Staged;
        let n = st.staged.push(batch, reserved);
        let crowded = st.staged.bytes > self.shared.options.staging_bytes / 8;
        st.worker.lead_wanted |= crowded;
        // No caller waits for a batch of level `Staged`, so the thread must write it. It also writes
        // other batches whose owners neither wait nor drive. A thread that checks the queue soon is
        // not woken for each batch.
        let wakes = crowded || (unwaited && !st.worker.checks_queue);
        if st.worker.state == Thread::Idle || (st.worker.state == Thread::Waiting && wakes) {
            self.wake_thread(st);
        }
        if !self.background() {
            // Without a thread, a caller that waits for a permit may have to write it.
            st.staged.wake_permit_waiter();
        }
        Ticket { shard: self.id as u32, n }
    }

    /// Wakes the shard's thread.
    pub fn wake_thread(&self, st: &mut State) {
        if self.background() && st.worker.state != Thread::Busy {
            st.worker.state = Thread::Busy;
            self.wake.notify_one();
        }
    }

    pub fn wait(&self, n: u64, level: Level) -> Result<()> {
        let mut st = self.state.lock();
        loop {
            if let Some(outcome) = st.progress.outcomes.of(n, level) {
                return outcome;
            }
            st = self.help(st, n, level);
        }
    }

    /// Makes one step towards the outcome of a ticket: leads, syncs, or blocks until woken.
    fn help<'a>(&'a self, mut st: Guard<'a>, n: u64, level: Level) -> Guard<'a> {
        if st.alive() && st.staged.is_queued(n) && !st.flags.leading {
            return self.lead(st, Some((n, level)));
        }
        if st.alive() && st.progress.needs_sync(n, level) && !st.flags.syncing {
            return self.run_sync(st);
        }
        WAKE.with(|wake| {
            st.progress.outcomes.waiters.push(Waiter { n, level, wake: wake.clone() });
            wake.wait(&mut st);
            st.progress.outcomes.unpark(wake);
        });
        st
    }

    /// Runs the queued effects in order, without the lock, then wakes the threads that wait for them.
    pub fn drain_effects<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        let mut spent = VecDeque::new();
        while !st.flags.draining && !st.progress.effects.is_empty() {
            let mut effects = st.begin_drain();
            let panicked = self.unlocked(&mut st, || self.run_effects(&effects));
            st.end_drain(&effects);
            if let Some(panicked) = panicked {
                self.unlocked(&mut st, || drop((spent, effects)));
                let detail = format!("a commit callback panicked: {panicked}");
                return self.poison(st, Vec::new(), &StorageError::Poisoned { detail });
            }
            spent.append(&mut effects);
        }
        let woken = st.take_woken();
        let due = st.progress.outcomes.due();
        let observers = st.take_sync_observers();
        let wanted = st.worker.lead_wanted
            || (!st.flags.syncing && (st.worker.sync_wanted || st.callback_needs_sync()));
        let unwatched =
            st.worker.state == Thread::Idle && (st.dirty() || !st.staged.batches.is_empty());
        if wanted || unwatched || (st.wants_file() && st.worker.state == Thread::Idle) {
            self.wake_thread(&mut st);
        }
        self.flags.notify_all();
        st.staged.wake_permit_waiter();
        if !(woken.is_empty() && due.is_empty() && observers.is_empty() && spent.is_empty()) {
            self.unlocked(&mut st, || {
                for w in woken {
                    w.notify_one();
                }
                for (done, outcome) in due {
                    self.run_guarded("callback", || done(outcome));
                }
                for call in observers {
                    self.run_guarded("callback", call);
                }
                // A commit may hold the last reference to the log, whose drop takes the lock.
                drop(spent);
            });
        }
        st
    }

    /// Calls the commits in order. A panic in one does not stop the calls of the others.
    fn run_effects(&self, effects: &VecDeque<Effect>) -> Option<Panicked> {
        let mut first = None;
        for effect in effects {
            let panicked = match effect {
                Effect::Apply(p) => self.run_guarded("commit", || p.apply(self.id)),
                Effect::Fail(f) => {
                    let told =
                        |c: &Arc<dyn Commit>| self.run_guarded("commit", || c.failed(&f.error));
                    f.commits.iter().filter_map(told).reduce(|first, _| first)
                }
                Effect::Written(_) | Effect::Synced(_) => None,
            };
            first = first.or(panicked);
        }
        first
    }

    fn run_guarded(&self, what: &'static str, f: impl FnOnce()) -> Option<Panicked> {
        self.shared.env.guards.run(what, || format!("shard {}", self.id), f).err()
    }

    pub fn on_level(&self, n: u64, level: Level, done: Callback) {
        let mut st = self.state.lock();
        if let Some(outcome) = st.progress.outcomes.of(n, level) {
            drop(st);
            return done(outcome);
        }
        st.progress.outcomes.on_level(n, level, done);
        if level == Level::Synced {
            st.worker.lead_wanted = true;
            self.wake_thread(&mut st);
        }
    }

    pub fn observe_sync(&self, after: u64, call: topics_env::Callback) -> u64 {
        let (id, due) = {
            let mut st = self.state.lock();
            let id = st.progress.sync_observers.add(after, call);
            (id, st.take_sync_observers())
        };
        due.into_iter().for_each(|call| call());
        id
    }

    pub fn cancel_observer(&self, id: u64) {
        let gone = self.state.lock().progress.sync_observers.cancel(id);
        drop(gone);
    }

    pub fn drive(&self) {
        let mut st = self.state.lock();
        let n = st.staged.last_ticket;
        while st.staged.is_queued(n) && !st.flags.leading && st.alive() {
            if self.background() && (st.needs_rotation() || st.progress.failure_waits()) {
                // A rotation, or a group behind a failure, needs a sync, which must not run on the
                // caller's thread.
                st.worker.lead_wanted = true;
                self.wake_thread(&mut st);
                return;
            }
            st = self.lead(st, None);
        }
    }

    pub fn lead_later(&self) {
        if !self.background() {
            return self.drive();
        }
        let mut st = self.state.lock();
        st.worker.lead_wanted = true;
        self.wake_thread(&mut st);
    }

    pub fn sync_all(&self) -> Result<u64> {
        let mut st = self.state.lock();
        let n = st.staged.last_ticket;
        // Neither loop waits for running commits, so that the sync begins immediately.
        while st.alive() && n > st.progress.written_ticket {
            if st.staged.is_queued(n) && !st.flags.leading {
                st = self.lead(st, None);
            } else {
                self.flags.wait(&mut st);
            }
        }
        let lsn = st.progress.written_lsn();
        loop {
            if let Some(e) = &st.poisoned {
                return Err(e.clone());
            }
            if st.closed {
                return Err(StorageError::Closed);
            }
            let synced = st.progress.synced_lsn >= lsn && st.progress.synced_ticket >= n;
            if synced && st.progress.outcomes.of(n, Level::Synced).is_some() {
                return Ok(st.progress.synced_lsn);
            }
            if synced || st.flags.syncing {
                self.flags.wait(&mut st);
            } else {
                st = self.run_sync(st);
            }
        }
    }

    pub fn positions(&self) -> Positions {
        let st = self.state.lock();
        Positions {
            written: st.progress.written_lsn(),
            synced: st.progress.synced_lsn,
            applied: st.progress.applied_lsn(),
        }
    }

    pub fn poisoned(&self) -> Option<StorageError> {
        self.state.lock().poisoned.clone()
    }

    pub fn counters(&self) -> Counters {
        let st = self.state.lock();
        let poisoned = u64::from(st.poisoned.is_some());
        let (staged, staged_bytes) = (st.staged.batches.len() as u64, st.staged.bytes as u64);
        let read_only = u64::from(st.next.no_space || st.poisoned.is_some());
        Counters { staged, staged_bytes, poisoned, read_only, ..st.counters }
    }

    /// Poisons the shard until the next open: the state of everything not yet durable is unknown, and
    /// none of it is acked (I10). `taken` holds the batches that the caller was about to write.
    pub fn poison<'a>(
        &'a self,
        mut st: Guard<'a>,
        taken: Vec<QueuedBatch>,
        error: &StorageError,
    ) -> Guard<'a> {
        let first = st.poisoned.is_none();
        let error = match error {
            e @ (StorageError::Poisoned { .. } | StorageError::LockLost) => e.clone(),
            e => StorageError::Poisoned { detail: e.to_string() },
        };
        let error = st.poisoned.get_or_insert(error).clone();
        let from = st.progress.synced_ticket + 1;
        st.fail_all(from, taken, &error);
        if first {
            log::error!("shard {} refuses writes until the next open: {error}", self.id);
        }
        // After a lost lock the folder may belong to another engine: it is not written.
        if let Some(health) = st.health.clone()
            && first
            && !matches!(error, StorageError::LockLost)
        {
            self.unlocked(&mut st, || health.fail(&self.shared.env));
        }
        self.drain_effects(st)
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Closes the files. The shard is closed before.
    pub fn release_files(&self) {
        let files = std::mem::take(&mut *self.files.write());
        let (file, prepared) = {
            let mut st = self.state.lock();
            drop(st.health.take());
            (st.current.file.take(), st.next.prepared.take())
        };
        drop((files, file, prepared));
    }

    pub fn file(&self, key: FileKey) -> Option<Arc<WalFile>> {
        self.files.read().get(&key).cloned()
    }

    pub fn files(&self) -> Vec<Arc<WalFile>> {
        self.files.read().values().cloned().collect()
    }

    /// Appends the bytes at a place to `out`, if the tail cache has them.
    pub fn read_cached(&self, key: FileKey, offset: u32, len: usize, out: &mut Vec<u8>) -> bool {
        self.cache.read().copy(key, offset, len, out)
    }

    pub fn bytes_on_disk(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }
}
