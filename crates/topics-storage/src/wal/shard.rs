//! One shard: its queue, its positions, who waits for what.
//!
//! One small mutex guards the state. Leading (writing groups) and syncing are flags in it, each held
//! by one thread at a time; no lock is held across I/O.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use super::cache::TailCache;
use super::succession::Prepared;
use super::{
    Batch, Commit, Counters, FileKey, Level, Positions, ShardStart, Shared, Ticket, WalFile,
};
use crate::format::wal_file;
use crate::{Result, StorageError};

pub(super) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

pub(super) struct Queued {
    pub n: u64,
    pub batch: Batch,
    /// Bytes of staging room that it holds.
    pub room: usize,
}

/// A written batch whose sync is awaited before it is applied.
pub(super) struct Unsynced {
    pub file: FileKey,
    pub file_first_lsn: u64,
    pub offset: u32,
    pub first_lsn: u64,
    pub last_lsn: u64,
    pub group: Arc<Vec<u8>>,
    pub range: (usize, usize),
    pub commit: Arc<dyn Commit>,
}

/// Batches that failed: tickets `from..=to`.
struct Failed {
    from: u64,
    to: u64,
    error: StorageError,
}

#[derive(Default)]
pub(super) struct State {
    pub queue: VecDeque<Queued>,
    pub queued_bytes: usize,
    pub room_bytes: usize,
    pub room_batches: usize,
    pub last_ticket: u64,
    /// Tickets up to here are written, or failed.
    pub written_ticket: u64,
    /// Tickets up to here are durable, or failed.
    pub synced_ticket: u64,
    failed: VecDeque<Failed>,
    pub leading: bool,
    pub syncing: bool,
    pub next_lsn: u64,
    pub synced_lsn: u64,
    /// Everything of level `Written` up to here is applied.
    pub applied_lsn: u64,
    pub unsynced: VecDeque<Unsynced>,
    /// First lsn of a batch that the syncing thread is applying.
    pub applying: Option<u64>,
    pub file: Option<Arc<WalFile>>,
    pub last_ordinal: u64,
    pub offset: u64,
    pub capacity: u64,
    pub prepared: Option<Prepared>,
    pub preparing: bool,
    /// The last attempt to make a next file found no space.
    pub no_space: bool,
    /// Somebody asked whether there is space again.
    pub retry_space: bool,
    /// The last attempt to make a next file failed otherwise: not tried again until it is needed.
    pub prepare_failed: bool,
    /// A group failed for want of space: the file in use ends before it.
    pub broken: bool,
    pub poisoned: Option<StorageError>,
    pub closed: bool,
    /// The thread parks without a deadline.
    pub idle: bool,
    pub sync_wanted: bool,
    on_written: BTreeMap<u64, Vec<Callback>>,
    pub on_synced: BTreeMap<u64, Vec<Callback>>,
    pub counters: Counters,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("next_lsn", &self.next_lsn)
            .field("synced_lsn", &self.synced_lsn)
            .field("queued", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl State {
    pub fn written_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    /// Takes the whole queue and gives its room back.
    pub fn drain(&mut self) -> Vec<Queued> {
        let queue: Vec<Queued> = self.queue.drain(..).collect();
        self.queued_bytes = 0;
        self.give_back(&queue);
        queue
    }

    /// Gives the staging room of batches back.
    pub fn give_back(&mut self, batches: &[Queued]) {
        self.room_batches -= batches.len();
        self.room_bytes -= batches.iter().map(|q| q.room).sum::<usize>();
    }

    /// Callbacks whose outcome is known now; to be called without the lock.
    pub fn due(&mut self) -> Vec<(Callback, Result<()>)> {
        let mut due = Vec::new();
        for level in [Level::Written, Level::Synced] {
            let poisoned = self.poisoned.is_some();
            let map = match level {
                Level::Synced => &mut self.on_synced,
                _ => &mut self.on_written,
            };
            let upto = match (level, poisoned) {
                (_, true) => u64::MAX,
                (Level::Synced, _) => self.synced_ticket,
                _ => self.written_ticket,
            };
            if map.first_key_value().is_none_or(|(n, _)| *n > upto) {
                continue;
            }
            let later = if upto == u64::MAX { BTreeMap::new() } else { map.split_off(&(upto + 1)) };
            let now = std::mem::replace(map, later);
            for (n, callbacks) in now {
                let outcome = self.outcome(n, level).unwrap_or(Err(StorageError::Closed));
                due.extend(callbacks.into_iter().map(|c| (c, outcome.clone())));
            }
        }
        due
    }

    /// What is known about a ticket at a level; `None`: nothing yet.
    pub fn outcome(&self, n: u64, level: Level) -> Option<Result<()>> {
        if n <= self.written_ticket {
            if let Some(f) = self.failed.iter().find(|f| (f.from..=f.to).contains(&n)) {
                return Some(Err(f.error.clone()));
            }
        }
        let reached = match level {
            Level::Staged => true,
            Level::Written => n <= self.written_ticket,
            Level::Synced => n <= self.synced_ticket,
        };
        if reached {
            return Some(Ok(()));
        }
        self.poisoned.clone().map(Err)
    }

    /// Remembers that tickets failed.
    pub fn fail(&mut self, from: u64, to: u64, error: &StorageError) {
        if from > to {
            return;
        }
        self.failed.push_back(Failed { from, to, error: error.clone() });
        // Waiters look right after their group: what is this old has been asked for.
        while self.failed.len() > 1024 {
            self.failed.pop_front();
        }
    }
}

/// One shard.
#[derive(Debug)]
pub(super) struct Shard {
    pub shared: Arc<Shared>,
    pub id: usize,
    pub dir: PathBuf,
    pub state: Mutex<State>,
    /// Waiters of levels, room and flags.
    pub changed: Condvar,
    /// The shard's thread.
    pub wake: Condvar,
    pub files: RwLock<BTreeMap<FileKey, Arc<WalFile>>>,
    pub cache: RwLock<TailCache>,
}

/// Staging room, given back when dropped.
#[derive(Debug)]
pub struct Room {
    shard: Arc<Shard>,
    bytes: usize,
    staged: bool,
}

impl Room {
    pub(super) fn shard(&self) -> Arc<Shard> {
        self.shard.clone()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.staged {
            let mut st = self.shard.state.lock();
            st.room_bytes -= self.bytes;
            st.room_batches -= 1;
            self.shard.changed.notify_all();
        }
    }
}

impl Shard {
    pub fn new(shared: Arc<Shared>, id: usize, start: ShardStart) -> Result<Self> {
        let files: BTreeMap<FileKey, Arc<WalFile>> =
            start.files.into_iter().map(|f| (f.key, Arc::new(f))).collect();
        let current = files.values().next_back().cloned();
        let state = State {
            next_lsn: start.next_lsn,
            synced_lsn: start.next_lsn - 1,
            applied_lsn: start.next_lsn - 1,
            last_ordinal: current.as_ref().map_or(0, |f| f.header.ordinal),
            file: current,
            offset: start.offset,
            capacity: start.capacity,
            ..State::default()
        };
        let cache = TailCache::new(shared.options.tail_cache_bytes);
        Ok(Self {
            dir: shared.paths.shard(u32::try_from(id).unwrap_or(u32::MAX)),
            shared,
            id,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake: Condvar::new(),
            files: RwLock::new(files),
            cache: RwLock::new(cache),
        })
    }

    pub fn reserve(this: &Arc<Self>, bytes: usize, wait: Option<Duration>) -> Result<Room> {
        let options = &this.shared.options;
        let deadline = wait.map(|w| Instant::now() + w);
        let mut st = this.state.lock();
        loop {
            if st.closed {
                return Err(StorageError::Closed);
            }
            if let Some(e) = &st.poisoned {
                return Err(e.clone());
            }
            if st.no_space && !st.preparing {
                // Space may have come back. A caller that cannot wait leaves the look to the thread.
                if wait.is_some() {
                    st = this.prepare(st);
                } else if options.background {
                    st.retry_space = true;
                    this.wake.notify_one();
                }
            }
            // A batch larger than the whole room goes when nothing else is staged.
            let fits = st.room_bytes + bytes <= options.staging_bytes || st.room_batches == 0;
            if fits && st.room_batches < options.staging_batches {
                break;
            }
            let Some(deadline) = deadline else { return Err(StorageError::Staging) };
            if !st.queue.is_empty() && !st.leading {
                st = this.lead(st, None);
            } else if this.changed.wait_until(&mut st, deadline).timed_out() {
                return Err(StorageError::Staging);
            }
        }
        st.room_bytes += bytes;
        st.room_batches += 1;
        drop(st);
        Ok(Room { shard: this.clone(), bytes, staged: false })
    }

    pub fn stage(&self, batch: Batch, mut room: Room) -> Result<Ticket> {
        let mut st = self.state.lock();
        let refused = if st.closed {
            Some(StorageError::Closed)
        } else if let Some(e) = &st.poisoned {
            Some(e.clone())
        } else if st.no_space && !batch.frees_space {
            Some(StorageError::Full { detail: "no space for the next log file".into() })
        } else {
            None
        };
        if let Some(e) = refused {
            // The room is given back when it is dropped, which takes the lock.
            drop(st);
            return Err(e);
        }
        st.last_ticket += 1;
        let n = st.last_ticket;
        st.queued_bytes += batch.bytes();
        room.staged = true;
        st.queue.push_back(Queued { n, batch, room: room.bytes });
        let crowded = st.queued_bytes > self.shared.options.staging_bytes / 8;
        if self.shared.options.background && (st.idle || (crowded && !st.leading)) {
            self.wake.notify_one();
        }
        Ok(Ticket { shard: self.id as u32, n })
    }

    pub fn wait(&self, n: u64, level: Level) -> Result<()> {
        let mut st = self.state.lock();
        loop {
            if let Some(outcome) = st.outcome(n, level) {
                return outcome;
            }
            if n > st.written_ticket {
                if !st.leading {
                    st = self.lead(st, Some((n, level)));
                    continue;
                }
            } else if !st.syncing {
                st = self.run_sync(st);
                continue;
            }
            self.changed.wait(&mut st);
        }
    }

    pub fn notify(&self, n: u64, level: Level, done: Callback) {
        let mut st = self.state.lock();
        if let Some(outcome) = st.outcome(n, level) {
            drop(st);
            return done(outcome);
        }
        let map = match level {
            Level::Synced => &mut st.on_synced,
            _ => &mut st.on_written,
        };
        map.entry(n).or_default().push(done);
        if level == Level::Synced {
            self.wake.notify_one();
        }
    }

    pub fn drive(&self) {
        let mut st = self.state.lock();
        while !st.queue.is_empty() && !st.leading && st.poisoned.is_none() {
            if self.shared.options.background && self.must_succeed(&st) {
                // Going on in the next file syncs the old one: not on the caller's thread.
                st.sync_wanted = true;
                self.wake.notify_one();
                return;
            }
            st = self.lead(st, None);
        }
    }

    pub fn sync_all(&self) -> Result<u64> {
        let n = self.state.lock().last_ticket;
        self.wait(n, Level::Written)?;
        let mut st = self.state.lock();
        let lsn = st.written_lsn();
        loop {
            if st.synced_lsn >= lsn {
                return Ok(st.synced_lsn);
            }
            if let Some(e) = &st.poisoned {
                return Err(e.clone());
            }
            if st.syncing {
                self.changed.wait(&mut st);
            } else {
                st = self.run_sync(st);
            }
        }
    }

    pub fn positions(&self) -> Positions {
        let st = self.state.lock();
        let waiting = st.applying.or_else(|| st.unsynced.front().map(|u| u.first_lsn));
        let applied = waiting.map_or(st.applied_lsn, |lsn| st.applied_lsn.min(lsn - 1));
        Positions { written: st.written_lsn(), synced: st.synced_lsn, applied }
    }

    pub fn poisoned(&self) -> Option<StorageError> {
        self.state.lock().poisoned.clone()
    }

    pub fn counters(&self) -> Counters {
        let st = self.state.lock();
        let poisoned = u64::from(st.poisoned.is_some());
        Counters { staged: st.queue.len() as u64, poisoned, ..st.counters }
    }

    /// The shard fails until restart: whoever waits learns it, what was not durable is unknown.
    pub fn poison<'a>(
        &'a self,
        mut st: MutexGuard<'a, State>,
        error: StorageError,
    ) -> MutexGuard<'a, State> {
        let error = StorageError::Poisoned { detail: error.to_string() };
        log::error!("shard {} refuses writes until the next open: {error}", self.id);
        st.poisoned = Some(error.clone());
        let from = st.written_ticket + 1;
        st.written_ticket = st.last_ticket;
        let to = st.last_ticket;
        st.fail(from, to, &error);
        let queue = st.drain();
        let unsynced = std::mem::take(&mut st.unsynced);
        let due = st.due();
        drop(st);
        let mark = self.dir.join(wal_file::POISON_MARK);
        if let Err(e) = self.shared.env.fs.open(&mark, topics_env::OpenMode::Truncate) {
            log::error!("cannot leave {}: {e}", mark.display());
        }
        for u in unsynced {
            u.commit.failed(&error);
        }
        for q in queue {
            q.batch.commit.failed(&error);
        }
        for (done, outcome) in due {
            done(outcome);
        }
        self.changed.notify_all();
        self.state.lock()
    }

    pub fn file(&self, key: FileKey) -> Option<Arc<WalFile>> {
        self.files.read().get(&key).cloned()
    }

    pub fn read_cached(&self, key: FileKey, offset: u32, len: usize, out: &mut Vec<u8>) -> bool {
        self.cache.read().read(key, offset, len, out)
    }
}
