//! Rotation: from one log file to the next.
//!
//! The next file is prepared before it is needed: temporary name → header → allocate → sync → rename
//! → folder sync → `CURRENT` replaced. A rotation syncs the old file and writes a Start frame, which
//! holds the first lsn, to the new one. A valid Start ends the file before it.

use std::sync::Arc;

use topics_env::File;
use topics_env::sync::atomic::Ordering;

use super::shard::{Guard, Shard};
use super::space::{self, Unused};
use super::state::State;
use super::{FileKey, WalFile};
use crate::dir::create_temp;
use crate::format::frame;
use crate::format::record::Start;
use crate::format::wal_file::{self, WAL_HEADER, WalFileHeader};
use crate::{Result, StorageError};

/// The next file takes at most one part in this many of the free space.
const FREE_FRACTION: u64 = 8;

/// Where the first group of a file begins.
pub(super) const FIRST_GROUP: u64 = (WAL_HEADER + Start::FRAME_LEN) as u64;

/// A prepared file without a Start: it holds no frames.
#[derive(Debug)]
pub(super) struct PreparedFile {
    pub name: String,
    pub header: WalFileHeader,
    pub file: Arc<dyn File>,
    pub capacity: u64,
    /// End of the range whose pages are in memory.
    pub prefaulted_to: u64,
}

/// Why a file could not be prepared.
struct PrepareError {
    error: StorageError,
    /// Whether a file of its name may exist.
    named: bool,
}

/// Why the log cannot rotate to a prepared file.
enum RotateError {
    /// The file cannot grow to the needed size; it is unchanged.
    Grow(StorageError),
    /// Its Start may have been written in part, or whole.
    Write(StorageError),
    /// Its Start was not made durable.
    Sync(StorageError),
}

impl Shard {
    /// Prepares the next file, a smaller one if the disk has no space for the usual size. A full disk
    /// sets `no_space`. After another error the previous state stays valid and the next attempt starts
    /// from the beginning.
    pub fn prepare<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        let current = st.current.file.clone();
        if current.is_none() && st.next.begin.is_none() {
            return st;
        }
        st.next.retry = false;
        if st.next.allocation_pauses > 0 {
            st.next.no_space = true;
            st.next.error.get_or_insert_with(space::allocation_paused);
            return self.drain_effects(st);
        }
        let Some(current) = current else { return self.begin_log(st) };
        st.flags.preparing = true;
        let least = self.shared.options.file_initial;
        // Space that the log allocates ahead is missing for a checkpoint, which must copy live records
        // before it can free a log file.
        let free = self.shared.env.fs.free_space(&self.dir).unwrap_or(u64::MAX);
        let max = self.shared.options.file_max.min(free / FREE_FRACTION).max(least);
        // On a disk that was full, ask for the minimum: checkpoints need the space too.
        let mut size = if st.next.no_space {
            least
        } else {
            st.current.capacity.saturating_mul(2).clamp(least, max)
        };
        let mut made = self.try_prepare(&mut st, &current.header, size);
        while matches!(made, Err(StorageError::Full { .. })) && size > least && st.alive() {
            size = (size / 2).max(least);
            made = self.try_prepare(&mut st, &current.header, size);
        }
        st.flags.preparing = false;
        match made {
            Ok(prepared) => {
                self.disk_bytes.fetch_add(prepared.capacity, Ordering::Relaxed);
                st.next.prepared = Some(prepared);
                st.next.no_space = false;
                st.next.error = None;
                self.request_prefault(&st);
            }
            Err(e) => {
                if st.next.error.is_none() {
                    log::warn!("shard {} has no next log file: {e}", self.id);
                }
                st.next.no_space = matches!(e, StorageError::Full { .. });
                st.next.error = Some(e);
            }
        }
        self.drain_effects(st)
    }

    /// One attempt to prepare the file after `current`. The preparing flag is set.
    fn try_prepare(
        &self,
        st: &mut Guard<'_>,
        current: &WalFileHeader,
        size: u64,
    ) -> Result<PreparedFile> {
        // A number is never used twice: an abandoned file keeps its number.
        st.next.last_ordinal += 1;
        let (ordinal, prior) = (st.next.last_ordinal, current.ordinal);
        let header = WalFileHeader { ordinal, prior, ..current.clone() };
        let name = wal_file::name(header.generation, ordinal);
        let mut orphans = std::mem::take(&mut st.next.orphans);
        // Writing zeros now makes every later sync cheaper. It is wasted time for a log without
        // syncs.
        let written = st.current.sync_used.0 || st.current.sync_used.1;
        let made = self.unlocked(st, || {
            let shared = &self.shared;
            if let Err(error) = shared.reserve.cover(&shared.env, &shared.paths, size) {
                return Err(PrepareError { error, named: false });
            }
            let made = self.make_file(header, size, written);
            if made.is_ok() {
                // `CURRENT` durably names a later file, so nothing refers to these.
                for name in &orphans {
                    let _ = self.shared.env.fs.remove_file(&self.dir.join(name));
                }
            }
            made
        });
        made.map_err(|PrepareError { error, named }| {
            if named {
                orphans.push(name);
            }
            st.next.orphans.append(&mut orphans);
            error
        })
    }

    /// Whether ordinary writes are refused for want of space; tries to make the next file.
    pub fn full(&self) -> bool {
        let mut st = self.state.lock();
        if st.next.no_space && !st.flags.preparing && st.alive() {
            st = self.prepare(st);
        }
        st.next.no_space
    }

    fn make_file(
        &self,
        header: WalFileHeader,
        size: u64,
        written: bool,
    ) -> std::result::Result<PreparedFile, PrepareError> {
        let env = &self.shared.env;
        let mut salt = env.rng.next_u64();
        if salt == header.salt {
            salt = !salt;
        }
        let header = WalFileHeader { salt, ..header };
        let name = wal_file::name(header.generation, header.ordinal);
        let temp = self.dir.join(format!("{name}.tmp"));
        let io = |e| StorageError::io(format!("make wal/shard-{:02}/{name}", self.id), e);
        let ready = (|| {
            let file = create_temp(env, &temp).map_err(io)?;
            file.write_all_at(&header.encode(), 0).map_err(io)?;
            let space = if written { file.allocate_written(size) } else { file.allocate(size) };
            space.map_err(io)?;
            env.sync("wal.file.sync", &*file).map_err(io)?;
            Ok(file)
        })();
        let file = ready.map_err(|error| {
            let _ = env.fs.remove_file(&temp);
            PrepareError { error, named: false }
        })?;
        let named = (|| {
            env.rename("wal.file.rename", &temp, &self.dir.join(&name)).map_err(io)?;
            env.sync_dir("wal.file.dir", &self.dir).map_err(io)?;
            wal_file::write_current(env, &self.dir, &name)
        })();
        match named {
            Ok(()) => {
                let prefaulted_to = if written { size } else { 0 };
                Ok(PreparedFile { name, header, file, capacity: size, prefaulted_to })
            }
            Err(error) => {
                // The file holds no frames, whether `CURRENT` names it or not. It is removed when a
                // later file is prepared; until then it is cut, so that it takes no space.
                let _ = env.fs.remove_file(&temp);
                let _ = file.set_len(WAL_HEADER as u64);
                Err(PrepareError { error, named: true })
            }
        }
    }

    /// Rotates to the next file, which gets space for `need` more bytes; a log that has no file yet
    /// only gets its first one, which may be smaller. The leading flag is set. An error that leaves the end of the old file in doubt poisons the shard.
    pub fn rotate<'a>(&'a self, mut st: Guard<'a>, need: u64) -> (Guard<'a>, Result<()>) {
        st = self.finish_file(st);
        let begun = st.current.file.is_some();
        if st.alive() && st.next.prepared.is_none() {
            st = self.prepare(st);
        }
        if !begun && st.current.file.is_some() {
            return (st, Ok(()));
        }
        let stopped = || StorageError::Full { detail: format!("shard {}: no next file", self.id) };
        let next = match st.next.prepared.take() {
            Some(next) if st.alive() => next,
            _ => {
                let poisoned = st.poisoned.clone();
                let error = poisoned.or_else(|| st.next.error.clone()).unwrap_or_else(stopped);
                return (st, Err(error));
            }
        };
        if st.next.allocation_pauses > 0 && next.capacity < FIRST_GROUP + need {
            st.next.prepared = Some(next);
            return (st, Err(space::allocation_paused()));
        }
        let (first_lsn, broken) = (st.progress.next_lsn, st.current.broken);
        // The next file is neither in use nor prepared now. No other file may be prepared meanwhile,
        // because a prepared file names the file before it.
        st.flags.preparing = true;
        let ended = st
            .current
            .file
            .as_ref()
            .and_then(|f| Unused::new(&f.file, st.current.offset, st.current.capacity));
        let begun = self.unlocked(&mut st, || {
            let capacity = self.write_start(&next, first_lsn, need, broken)?;
            // Nothing is written to the old file any more.
            if let Some(unused) = ended {
                self.truncate(&unused);
            }
            Ok(capacity)
        });
        st.flags.preparing = false;
        match begun {
            Ok(capacity) => self.switch_file(&mut st, next, first_lsn, capacity),
            Err(RotateError::Grow(e)) => {
                st.next.prepared = Some(next);
                return (st, Err(e));
            }
            Err(RotateError::Write(e @ StorageError::Full { .. })) => {
                // If the Start is on disk after all, it ends the old file: write to that one no more.
                st.current.broken = true;
                self.disk_bytes.fetch_sub(next.capacity, Ordering::Relaxed);
                st.next.orphans.push(next.name);
                return (st, Err(e));
            }
            Err(RotateError::Write(e) | RotateError::Sync(e)) => {
                st = self.poison(st, Vec::new(), &e);
                let error = st.poisoned.clone().unwrap_or(e);
                return (st, Err(error));
            }
        }
        (st, Ok(()))
    }

    /// Rotates before a clean close unless the file in use is small, and prepares no further file, so
    /// that trimming can remove all that was logged.
    pub fn shrink_before_close(&self) -> Result<()> {
        let mut st = self.state.lock();
        st.next.shrinking = true;
        while st.flags.leading && st.alive() {
            self.flags.wait(&mut st);
        }
        if !st.alive() || st.current.offset <= self.shared.options.file_initial {
            return Ok(());
        }
        st.flags.leading = true;
        let (mut st, moved) = self.rotate(st, 0);
        st.flags.leading = false;
        drop(self.drain_effects(st));
        moved
    }

    /// Syncs the file in use and completes everything that waits for the sync.
    pub fn finish_file<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        loop {
            if st.flags.syncing || st.flags.preparing {
                self.flags.wait(&mut st);
            } else if st.dirty() || (st.alive() && !st.progress.unsynced.is_empty()) {
                st = self.run_sync(st);
            } else {
                return st;
            }
        }
    }

    /// Makes the new file the one in use.
    fn switch_file(&self, st: &mut Guard<'_>, next: PreparedFile, first_lsn: u64, capacity: u64) {
        self.disk_bytes.fetch_add(capacity - next.capacity, Ordering::Relaxed);
        let key = FileKey(self.new_key());
        let PreparedFile { name, header, file, prefaulted_to, .. } = next;
        let file = Arc::new(WalFile { key, name, header, first_lsn, file });
        self.files.write().insert(key, file.clone());
        st.current.file = Some(file);
        st.current.offset = FIRST_GROUP;
        st.current.sync_offset = FIRST_GROUP;
        st.current.sync_used = (false, st.current.sync_used.0);
        st.current.capacity = capacity;
        st.current.prefaulted_to = prefaulted_to;
        // See `write_start`.
        st.current.start_unsynced = !st.current.broken;
        st.current.broken = false;
        st.counters.rotations += 1;
    }

    /// Writes the Start frame. After a failed group it is synced before anything else is written.
    fn write_start(
        &self,
        next: &PreparedFile,
        first_lsn: u64,
        need: u64,
        broken: bool,
    ) -> std::result::Result<u64, RotateError> {
        let io = |e| StorageError::io(format!("begin {}", next.name), e);
        let capacity = next.capacity.max(FIRST_GROUP + need);
        if capacity > next.capacity {
            let shared = &self.shared;
            let covered = shared.reserve.cover(&shared.env, &shared.paths, capacity);
            covered.map_err(RotateError::Grow)?;
            next.file.allocate(capacity).map_err(|e| RotateError::Grow(io(e)))?;
        }
        let mut start = Vec::with_capacity(Start::FRAME_LEN);
        Start { first_lsn }.encode_frame(&mut start);
        frame::seal(&mut start, next.header.salt, first_lsn);
        next.file.write_all_at(&start, WAL_HEADER as u64).map_err(|e| RotateError::Write(io(e)))?;
        if broken {
            let synced = self.shared.env.sync("wal.start", &*next.file);
            synced.map_err(|e| RotateError::Sync(io(e)))?;
        }
        Ok(capacity)
    }

    /// Removes files whose last lsn is at or below `lsn`, never the one in use nor the next one;
    /// the names. The file before the one in use stays until that one's Start is durable: without it
    /// a power cut would leave a file without a Start whose prior file is missing, which is damage.
    pub fn trim(&self, lsn: u64) -> Result<Vec<String>> {
        let proven = |st: &State| {
            let ok = !st.current.start_unsynced
                || st.current.file.as_ref().is_none_or(|f| f.first_lsn > lsn + 1);
            self.shared.env.check("wal.trim", ok)
        };
        let mut st = self.state.lock();
        if !proven(&st) {
            st = self.finish_file(st);
        }
        let unproven = st.current.file.as_ref().filter(|_| !proven(&st)).map(|f| f.key);
        let upto = self.held_below(lsn);
        let mut is_held = false;
        let mut gone: Vec<Arc<WalFile>> = Vec::new();
        {
            let files = self.files.read();
            for (f, next) in files.values().zip(files.values().skip(1)) {
                if next.first_lsn > upto + 1 || Some(next.key) == unproven {
                    is_held = next.first_lsn > upto + 1 && next.first_lsn <= lsn + 1;
                    break;
                }
                gone.push(f.clone());
            }
        }
        self.is_held.store(is_held, Ordering::Relaxed);
        drop(st);
        let mut names = Vec::new();
        for f in gone {
            let path = self.dir.join(&f.name);
            let bytes = f.file.len().unwrap_or(0);
            match self.shared.env.fs.remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StorageError::io(format!("remove {}", path.display()), e));
                }
                _ => {}
            }
            self.files.write().remove(&f.key);
            self.disk_bytes.fetch_sub(bytes, Ordering::Relaxed);
            names.push(f.name.clone());
        }
        if !names.is_empty() {
            self.retry_prepare();
        }
        Ok(names)
    }

    /// Prepares the next file again if the last attempt found the disk full.
    pub fn retry_prepare(&self) {
        let mut st = self.state.lock();
        if !st.next.no_space {
            return;
        }
        st.next.retry = true;
        if self.background() {
            self.wake_thread(&mut st);
        } else if st.wants_file() {
            drop(self.prepare(st));
        }
    }
}
