//! From one file to the next.
//!
//! The next file is made ready ahead: temporary name → header → allocate → sync → rename → folder
//! synced → `CURRENT` replaced. To go on in it the old one is synced, then the first group is
//! preceded by a Start frame that holds the first lsn; a valid Start ends the file before it.

use std::sync::Arc;

use topics_env::File;
use topics_env::sync::atomic::Ordering;

use super::shard::{Guard, Shard};
use super::{FileKey, WalFile, space};
use crate::dir::create_temp;
use crate::format::frame;
use crate::format::record::Start;
use crate::format::wal_file::{self, WAL_HEADER, WalFileHeader};
use crate::{Result, StorageError};

/// Where the first group of a file begins.
pub(super) const FIRST_GROUP: u64 = (WAL_HEADER + Start::FRAME_LEN) as u64;

/// A file made ready, without a Start: it holds nothing yet.
#[derive(Debug)]
pub(super) struct PreparedFile {
    pub name: String,
    pub header: WalFileHeader,
    pub file: Arc<dyn File>,
    pub capacity: u64,
    /// Up to where it has pages.
    pub prefaulted_to: u64,
}

/// Why a next file is not there.
struct PrepareError {
    error: StorageError,
    /// Whether something may have its name.
    named: bool,
}

/// Why a prepared file cannot be begun.
enum RotateError {
    /// There is no room to grow it; it is as it was.
    Grow(StorageError),
    /// Its Start may be there in part, or whole.
    Write(StorageError),
    /// Its Start was not made durable.
    Sync(StorageError),
}

impl Shard {
    /// Makes the next file ready: a smaller one where there is no room for one of the usual size.
    /// Finding no space sets `no_space`; after another error the previous state stays valid and
    /// the next attempt begins anew.
    pub fn prepare<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        let Some(current) = st.file.clone() else { return st };
        st.retry_space = false;
        if st.allocation_pauses > 0 {
            st.no_space = true;
            st.prepare_error.get_or_insert_with(space::allocation_paused);
            return self.drain_effects(st);
        }
        st.preparing = true;
        let least = self.shared.options.file_initial;
        let max = self.shared.options.file_max.max(least);
        // On a disk that was full the least is asked for: others need the space too.
        let mut size =
            if st.no_space { least } else { st.capacity.saturating_mul(2).clamp(least, max) };
        let mut made = self.try_prepare(&mut st, &current.header, size);
        while matches!(made, Err(StorageError::Full { .. })) && size > least && st.alive() {
            size = (size / 2).max(least);
            made = self.try_prepare(&mut st, &current.header, size);
        }
        st.preparing = false;
        match made {
            Ok(prepared) => {
                self.disk_bytes.fetch_add(prepared.capacity, Ordering::Relaxed);
                st.prepared = Some(prepared);
                st.no_space = false;
                st.prepare_error = None;
                self.request_prefault(&st);
            }
            Err(e) => {
                if st.prepare_error.is_none() {
                    log::warn!("shard {} has no next log file: {e}", self.id);
                }
                st.no_space = matches!(e, StorageError::Full { .. });
                st.prepare_error = Some(e);
            }
        }
        self.drain_effects(st)
    }

    /// One attempt to make the file after `current`; the preparing flag is held.
    fn try_prepare(
        &self,
        st: &mut Guard<'_>,
        current: &WalFileHeader,
        size: u64,
    ) -> Result<PreparedFile> {
        // Never given twice: a file that was given up keeps its number.
        st.last_ordinal += 1;
        let (ordinal, prior) = (st.last_ordinal, current.ordinal);
        let header = WalFileHeader { ordinal, prior, ..current.clone() };
        let name = wal_file::name(header.generation, ordinal);
        let mut orphans = std::mem::take(&mut st.orphans);
        // Writing the space ahead makes every sync of it cheaper, and is lost time for a log that
        // is written without any.
        let written = st.sync_used.0 || st.sync_used.1;
        let made = self.unlocked(st, || {
            let made = self.make_file(header, size, written);
            if made.is_ok() {
                // `CURRENT` names a later file durably: nothing refers to these.
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
            st.orphans.append(&mut orphans);
            error
        })
    }

    /// Whether ordinary writes are refused for want of space; tries to make the next file.
    pub fn full(&self) -> bool {
        let mut st = self.state.lock();
        if st.no_space && !st.preparing && st.alive() {
            st = self.prepare(st);
        }
        st.no_space
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
                // What is left of it holds nothing, whether `CURRENT` names it or not; it goes
                // when a later file is made ready. Until then it takes no space from that one.
                let _ = env.fs.remove_file(&temp);
                let _ = file.set_len(WAL_HEADER as u64);
                Err(PrepareError { error, named: true })
            }
        }
    }

    /// Goes on in the next file, which will have room for `need` more bytes. The leading flag is
    /// held; an error that leaves the old file's end in doubt has poisoned the shard.
    pub fn rotate<'a>(&'a self, mut st: Guard<'a>, need: u64) -> (Guard<'a>, Result<()>) {
        st = self.finish_file(st);
        if st.alive() && st.prepared.is_none() {
            st = self.prepare(st);
        }
        let stopped = || StorageError::Full { detail: format!("shard {}: no next file", self.id) };
        let next = match st.prepared.take() {
            Some(next) if st.alive() => next,
            _ => {
                let poisoned = st.poisoned.clone();
                let error = poisoned.or_else(|| st.prepare_error.clone()).unwrap_or_else(stopped);
                return (st, Err(error));
            }
        };
        if st.allocation_pauses > 0 && next.capacity < FIRST_GROUP + need {
            st.prepared = Some(next);
            return (st, Err(space::allocation_paused()));
        }
        let (first_lsn, broken) = (st.next_lsn, st.broken);
        // The next file is neither in use nor ready now: nobody may make another one ready behind
        // the old one, since a file that is ready names the one before it.
        st.preparing = true;
        let begun = self.unlocked(&mut st, || self.write_start(&next, first_lsn, need, broken));
        st.preparing = false;
        match begun {
            Ok(capacity) => self.switch_file(&mut st, next, first_lsn, capacity),
            Err(RotateError::Grow(e)) => {
                st.prepared = Some(next);
                return (st, Err(e));
            }
            Err(RotateError::Write(e @ StorageError::Full { .. })) => {
                // A Start that is there after all ends the old file: it is not written any more.
                st.broken = true;
                self.disk_bytes.fetch_sub(next.capacity, Ordering::Relaxed);
                st.orphans.push(next.name);
                return (st, Err(e));
            }
            Err(RotateError::Write(e) | RotateError::Sync(e)) => {
                st = self.poison(st, &[], &e);
                let error = st.poisoned.clone().unwrap_or(e);
                return (st, Err(error));
            }
        }
        (st, Ok(()))
    }

    /// Before a clean close: what comes now goes into a new file, unless the one in use is small,
    /// and no other is made ready. Trimming can then remove all that was logged.
    pub fn shrink_before_close(&self) -> Result<()> {
        let mut st = self.state.lock();
        st.shrinking = true;
        while st.leading && st.alive() {
            self.flags.wait(&mut st);
        }
        if !st.alive() || st.offset <= self.shared.options.file_initial {
            return Ok(());
        }
        st.leading = true;
        let (mut st, moved) = self.rotate(st, 0);
        st.leading = false;
        drop(self.drain_effects(st));
        moved
    }

    /// Syncs the file in use, and with it whatever waits for that.
    pub fn finish_file<'a>(&'a self, mut st: Guard<'a>) -> Guard<'a> {
        loop {
            if st.syncing || st.preparing {
                self.cancel_delay(&mut st);
                self.flags.wait(&mut st);
            } else if st.dirty() || (st.alive() && !st.unsynced.is_empty()) {
                st = self.run_sync(st);
            } else {
                return st;
            }
        }
    }

    /// The file in use is the new one from now on.
    fn switch_file(&self, st: &mut Guard<'_>, next: PreparedFile, first_lsn: u64, capacity: u64) {
        self.disk_bytes.fetch_add(capacity - next.capacity, Ordering::Relaxed);
        let key = FileKey(self.shared.next_key.fetch_add(1, Ordering::Relaxed));
        let PreparedFile { name, header, file, prefaulted_to, .. } = next;
        let file = Arc::new(WalFile { key, name, header, first_lsn, file });
        self.files.write().insert(key, file.clone());
        st.file = Some(file);
        st.offset = FIRST_GROUP;
        st.sync_offset = FIRST_GROUP;
        st.sync_used = (false, st.sync_used.0);
        st.capacity = capacity;
        st.prefaulted_to = prefaulted_to;
        st.broken = false;
        st.counters.rotations += 1;
    }

    /// Writes the Start frame; after a failed group it is durable before anything else.
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
    /// the names.
    pub fn trim(&self, lsn: u64) -> Result<Vec<String>> {
        let gone: Vec<Arc<WalFile>> = {
            let files = self.files.read();
            files
                .values()
                .zip(files.values().skip(1))
                .take_while(|(_, next)| next.first_lsn <= lsn + 1)
                .map(|(f, _)| f.clone())
                .collect()
        };
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

    /// Tries again to make the next file, where the last attempt found no space.
    pub fn retry_prepare(&self) {
        let mut st = self.state.lock();
        if !st.no_space {
            return;
        }
        st.retry_space = true;
        if self.background() {
            self.wake_thread(&mut st);
        } else if st.wants_file() {
            drop(self.prepare(st));
        }
    }
}
