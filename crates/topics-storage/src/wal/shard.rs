//! One shard: staging, waiting, reading.
//!
//! One small mutex guards the state. Leading (writing groups), syncing, making the next file and
//! draining effects are flags in it, each held by one thread at a time; the lock is never held
//! across I/O or a commit. Whoever gives a flag back calls [`Shard::drain_effects`], which wakes those
//! that wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use topics_env::Panicked;
use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_env::sync::{Condvar, Instant, Mutex, MutexGuard, RwLock, thread, thread_local};

use super::cache::TailCache;
use super::outcome::{Callback, Waiter};
use super::state::{Effect, QueuedBatch, State, Thread};
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

/// One shard.
#[derive(Debug)]
pub(super) struct Shard {
    pub shared: Arc<Shared>,
    pub id: usize,
    pub dir: PathBuf,
    pub state: Mutex<State>,
    /// Whoever waits for a flag.
    pub flags: Condvar,
    /// The shard's thread.
    pub wake: Condvar,
    /// The thread that makes pages ahead.
    pub prefault_wake: Condvar,
    /// Whoever waits for company before a sync.
    pub delay_wake: Condvar,
    pub files: RwLock<BTreeMap<FileKey, Arc<WalFile>>>,
    pub cache: RwLock<TailCache>,
    /// Bytes of all files, the preallocated part included.
    pub disk_bytes: AtomicU64,
    /// When the last sync that was held back began, monotonic.
    pub last_delay_end: AtomicU64,
}

/// Permission to stage one batch; released when dropped. Its owner must not wait for anything but
/// short locks: everybody else waits for the permit.
#[derive(Debug)]
pub struct StagingPermit {
    shard: Arc<Shard>,
    bytes: usize,
    staged: bool,
    waited: Duration,
}

impl StagingPermit {
    /// How long the caller waited for it.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    pub(super) fn shard(&self) -> Arc<Shard> {
        self.shard.clone()
    }
}

impl Drop for StagingPermit {
    fn drop(&mut self) {
        if self.staged {
            return;
        }
        let mut st = self.shard.state.lock();
        st.reserved_bytes -= self.bytes;
        st.reserved_batches -= 1;
        st.wake_permit_waiter();
    }
}

/// Poisons the shard if the thread unwinds while it holds a flag: what it was at is half done, and
/// must not leave the others waiting for ever.
struct PoisonOnPanic<'a>(&'a Shard);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let shard = self.0;
            let poison = || shard.poison_after_panic("a thread panicked in the log");
            // A second panic must not end the process.
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
        let newest = files.values().next_back().cloned();
        let state = State::new(&start, newest, &shared.options);
        let cache = TailCache::new(shared.options.tail_cache_bytes);
        Ok(Self {
            dir: shared.paths.shard(u32::try_from(id).unwrap_or(u32::MAX)),
            shared,
            id,
            state: Mutex::new(state),
            flags: Condvar::new(),
            wake: Condvar::new(),
            prefault_wake: Condvar::new(),
            delay_wake: Condvar::new(),
            files: RwLock::new(files),
            cache: RwLock::new(cache),
            disk_bytes: AtomicU64::new(bytes),
            last_delay_end: AtomicU64::new(0),
        })
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

    /// Runs what takes the lock along; the lock is free again when a panic gets here.
    fn poison_on_panic<R>(&self, f: impl FnOnce() -> R) -> R {
        let guard = PoisonOnPanic(self);
        let r = f();
        std::mem::forget(guard);
        r
    }

    /// A thread panicked in the middle of something: the shard is poisoned, its flags are free,
    /// everybody is told.
    fn poison_after_panic(&self, what: &str) {
        let error = StorageError::Poisoned { detail: what.to_owned() };
        let mut st = self.state.lock();
        st.release_flags();
        drop(self.poison(st, &[], &error));
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

    /// Admits one batch, first come, first served.
    pub fn reserve(
        this: &Arc<Self>,
        bytes: usize,
        wait: Option<Duration>,
    ) -> Result<StagingPermit> {
        let mut st = this.state.lock();
        this.refusal(&st, true)?;
        let mut waited = Duration::ZERO;
        if st.permit_waiters.is_empty() && this.has_capacity(&st, bytes) {
            st.reserved_bytes += bytes;
            st.reserved_batches += 1;
        } else {
            let began = Instant::now();
            let deadline = began + wait.ok_or(StorageError::Staging)?;
            this.await_capacity(st, bytes, deadline)?;
            waited = Instant::now().saturating_duration_since(began);
        }
        Ok(StagingPermit { shard: this.clone(), bytes, staged: false, waited })
    }

    /// Whether a batch of this many bytes may be staged now. One that is larger than the bound goes
    /// when nothing else is staged.
    fn has_capacity(&self, st: &State, bytes: usize) -> bool {
        let options = &self.shared.options;
        let fits = st.reserved_bytes + bytes <= options.staging_bytes || st.reserved_batches == 0;
        fits && st.reserved_batches < options.staging_batches
    }

    /// Waits at the end of the queue of those who want a permit. Only the first of them is admitted,
    /// so that a large batch is not overtaken for ever; the others help to write what is staged.
    fn await_capacity<'a>(
        &'a self,
        mut st: Guard<'a>,
        bytes: usize,
        deadline: Instant,
    ) -> Result<()> {
        let wake = Arc::new(Condvar::new());
        st.permit_waiters.push_back(wake.clone());
        let mut late = false;
        let outcome = loop {
            if let Err(e) = self.refusal(&st, true) {
                break Err(e);
            }
            let first = st.permit_waiters.front().is_some_and(|w| Arc::ptr_eq(w, &wake));
            if first && self.has_capacity(&st, bytes) {
                break Ok(());
            }
            if late {
                break Err(StorageError::Staging);
            }
            if !st.queue.is_empty() && !st.leading {
                st = self.lead(st, None);
                continue;
            }
            if !st.unsynced.is_empty() && !st.syncing && st.alive() {
                // What is written and not synced keeps its permit.
                st = self.run_sync(st);
                continue;
            }
            late = wake.wait_until(&mut st, deadline).timed_out();
        };
        st.permit_waiters.retain(|w| !Arc::ptr_eq(w, &wake));
        if outcome.is_ok() {
            st.reserved_bytes += bytes;
            st.reserved_batches += 1;
        }
        // The next one may fit too, or has to learn why nobody is admitted.
        st.wake_permit_waiter();
        outcome
    }

    /// Why a batch is not taken now.
    fn refusal(&self, st: &State, frees_space: bool) -> Result<()> {
        if let Some(e) = &st.poisoned {
            return Err(e.clone());
        }
        if st.closing {
            return Err(StorageError::Closed);
        }
        if st.no_space && !frees_space {
            return Err(StorageError::Full { detail: "no space for the next log file".into() });
        }
        Ok(())
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
            if st.no_space {
                st.retry_space = true;
                self.wake_thread(&mut st);
            }
            // The permit is released without the lock.
            drop(st);
            return Err(e);
        }
        if let Some(e) = st.undelivered.get(&batch.topic_id) {
            let e = e.clone();
            drop(st);
            return Err(e);
        }
        permit.staged = true;
        Ok(self.enqueue(&mut st, batch, permit.bytes))
    }

    /// Puts a batch into the queue; its room has been taken.
    pub fn enqueue(&self, st: &mut State, batch: Batch, reserved: usize) -> Ticket {
        st.last_ticket += 1;
        let n = st.last_ticket;
        let bytes = batch.bytes();
        st.queued_bytes += bytes;
        let unwaited = batch.level == Level::Staged;
        st.queue.push_back(QueuedBatch { n, batch, bytes, reserved });
        let crowded = st.queued_bytes > self.shared.options.staging_bytes / 8;
        st.lead_wanted |= crowded;
        // Nobody waits for a batch of level `Staged`: the thread has to notice it. It notices
        // the others too if their owners neither wait nor drive.
        if st.thread == Thread::Idle || (st.thread == Thread::Waiting && (unwaited || crowded)) {
            self.wake_thread(st);
        }
        if !self.background() {
            // Nobody else may write it.
            st.wake_permit_waiter();
        }
        Ticket { shard: self.id as u32, n }
    }

    /// Wakes the shard's thread.
    pub fn wake_thread(&self, st: &mut State) {
        if self.background() && st.thread != Thread::Busy {
            st.thread = Thread::Busy;
            self.wake.notify_one();
        }
    }

    pub fn wait(&self, n: u64, level: Level) -> Result<()> {
        let mut st = self.state.lock();
        loop {
            if let Some(outcome) = st.outcomes.of(n, level) {
                return outcome;
            }
            st = self.help(st, n, level);
        }
    }

    /// One step towards a ticket's outcome: leads, syncs, or sleeps until woken.
    fn help<'a>(&'a self, mut st: Guard<'a>, n: u64, level: Level) -> Guard<'a> {
        if st.alive() && st.is_queued(n) && !st.leading {
            return self.lead(st, Some((n, level)));
        }
        if st.alive() && st.needs_sync(n, level) && !st.syncing {
            return self.sync_with_delay(st);
        }
        WAKE.with(|wake| {
            st.outcomes.waiters.push(Waiter { n, level, wake: wake.clone() });
            wake.wait(&mut st);
            st.outcomes.unpark(wake);
        });
        st
    }

    /// Runs what is to be done without the lock, in order, then wakes whoever waits for it.
    pub fn drain_effects<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        while !st.draining && !st.effects.is_empty() {
            let effects = st.begin_drain();
            // The commits are dropped in there, without the lock.
            let (panicked, effects) = self.unlocked(&mut st, move || {
                let panicked = self.run_effects(&effects);
                (panicked, effects)
            });
            st.end_drain(effects);
            if let Some(panicked) = panicked {
                let detail = format!("a commit was not told: {panicked}");
                return self.poison(st, &[], &StorageError::Poisoned { detail });
            }
        }
        if st.delaying && (!st.alive() || st.closing || st.sync_wanted) {
            self.delay_wake.notify_all();
        }
        let woken = st.take_woken();
        let due = st.outcomes.due();
        let wanted =
            st.lead_wanted || (!st.syncing && (st.sync_wanted || st.callback_needs_sync()));
        let unwatched = st.thread == Thread::Idle && (st.dirty() || !st.queue.is_empty());
        if wanted || unwatched || (st.wants_file() && st.thread == Thread::Idle) {
            self.wake_thread(&mut st);
        }
        self.flags.notify_all();
        st.wake_permit_waiter();
        if !woken.is_empty() || !due.is_empty() {
            self.unlocked(&mut st, || {
                for w in woken {
                    w.notify_one();
                }
                for (done, outcome) in due {
                    self.run_guarded("callback", || done(outcome));
                }
            });
        }
        st
    }

    /// Tells commits, in order. One that panics does not keep the others from being told.
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

    pub fn notify(&self, n: u64, level: Level, done: Callback) {
        let mut st = self.state.lock();
        if let Some(outcome) = st.outcomes.of(n, level) {
            drop(st);
            return done(outcome);
        }
        st.outcomes.call(n, level, done);
        if level == Level::Synced {
            st.lead_wanted = true;
            self.wake_thread(&mut st);
        }
    }

    pub fn drive(&self) {
        let mut st = self.state.lock();
        let n = st.last_ticket;
        while st.is_queued(n) && !st.leading && st.alive() {
            if self.background() && (st.needs_rotation() || st.failure_waits()) {
                // Going on in the next file, or behind a failure, syncs: not on the caller's thread.
                st.lead_wanted = true;
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
        st.lead_wanted = true;
        self.wake_thread(&mut st);
    }

    pub fn sync_all(&self) -> Result<u64> {
        let mut st = self.state.lock();
        let n = st.last_ticket;
        // Neither half waits for a commit that is being told: the sync begins at once.
        while st.alive() && n > st.written_ticket {
            if st.is_queued(n) && !st.leading {
                st = self.lead(st, None);
            } else {
                self.flags.wait(&mut st);
            }
        }
        let lsn = st.written_lsn();
        loop {
            if let Some(e) = &st.poisoned {
                return Err(e.clone());
            }
            if st.closed {
                return Err(StorageError::Closed);
            }
            let synced = st.synced_lsn >= lsn && st.synced_ticket >= n;
            if synced && st.outcomes.of(n, Level::Synced).is_some() {
                return Ok(st.synced_lsn);
            }
            if synced || st.syncing {
                self.cancel_delay(&mut st);
                self.flags.wait(&mut st);
            } else {
                st = self.run_sync(st);
            }
        }
    }

    pub fn positions(&self) -> Positions {
        let st = self.state.lock();
        Positions { written: st.written_lsn(), synced: st.synced_lsn, applied: st.applied_lsn() }
    }

    /// For how long after `since`, monotonic, the last sync that was held back waited.
    pub fn delayed_since(&self, since: u64) -> u64 {
        // Hardly any sync is held back: nothing is locked to learn that.
        if self.last_delay_end.load(Ordering::Relaxed) <= since {
            return 0;
        }
        let (from, to) = self.state.lock().last_delay;
        to.saturating_sub(from.max(since))
    }

    pub fn poisoned(&self) -> Option<StorageError> {
        self.state.lock().poisoned.clone()
    }

    pub fn counters(&self) -> Counters {
        let st = self.state.lock();
        let poisoned = u64::from(st.poisoned.is_some());
        let (staged, staged_bytes) = (st.queue.len() as u64, st.queued_bytes as u64);
        let read_only = u64::from(st.no_space || st.poisoned.is_some());
        Counters { staged, staged_bytes, poisoned, read_only, ..st.counters }
    }

    /// The shard fails until restart: what was not durable is unknown, and nobody is told that
    /// it is (I10). `taken` is what the caller was about to write.
    pub fn poison<'a>(
        &'a self,
        mut st: Guard<'a>,
        taken: &[QueuedBatch],
        error: &StorageError,
    ) -> Guard<'a> {
        let first = st.poisoned.is_none();
        let error = match error {
            e @ (StorageError::Poisoned { .. } | StorageError::LockLost) => e.clone(),
            e => StorageError::Poisoned { detail: e.to_string() },
        };
        let error = st.poisoned.get_or_insert(error).clone();
        let from = st.synced_ticket + 1;
        st.fail_all(from, taken, &error);
        if first {
            log::error!("shard {} refuses writes until the next open: {error}", self.id);
        }
        // Behind a lost lock the folder may be another engine's.
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

    /// Closes the files; nothing is written any more.
    pub fn release_files(&self) {
        let files = std::mem::take(&mut *self.files.write());
        let (file, prepared) = {
            let mut st = self.state.lock();
            drop(st.health.take());
            (st.file.take(), st.prepared.take())
        };
        drop((files, file, prepared));
    }

    pub fn file(&self, key: FileKey) -> Option<Arc<WalFile>> {
        self.files.read().get(&key).cloned()
    }

    /// Appends the bytes at a place to `out`, if the tail cache has them.
    pub fn read_cached(&self, key: FileKey, offset: u32, len: usize, out: &mut Vec<u8>) -> bool {
        self.cache.read().copy(key, offset, len, out)
    }

    pub fn bytes_on_disk(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }
}
