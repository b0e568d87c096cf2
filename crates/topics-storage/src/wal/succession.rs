//! From one file to the next.
//!
//! The next file is made ready ahead: temporary name → header → allocate → sync → rename → `CURRENT`
//! → folder synced. To go on in it the old one is synced, then the first group is preceded by a
//! Start frame that holds the first lsn; a valid Start ends the file before it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use topics_env::{File, OpenMode};

use super::shard::{Shard, State};
use super::{FileKey, WalFile};
use crate::format::frame;
use crate::format::record::Start;
use crate::format::wal_file::{self, WAL_HEADER, WalFileHeader};
use crate::{Result, StorageError};

/// A file made ready, without a Start: it holds nothing yet.
#[derive(Debug)]
pub(super) struct Prepared {
    name: String,
    header: WalFileHeader,
    file: Arc<dyn File>,
    capacity: u64,
}

impl Shard {
    /// Makes the next file ready. Finding no space sets `no_space`; other errors are left to the
    /// next attempt.
    pub fn prepare<'a>(&'a self, mut st: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        st.preparing = true;
        st.retry_space = false;
        let Some(current) = st.file.clone() else {
            st.preparing = false;
            return st;
        };
        // Never given twice: a file whose Start failed keeps its number.
        st.last_ordinal += 1;
        let ordinal = st.last_ordinal;
        let size = (st.capacity * 2).clamp(self.shared.options.file_initial, self.file_max());
        drop(st);
        let made = self.make_file(&current.header, ordinal, size);
        let mut st = self.state.lock();
        st.preparing = false;
        match made {
            Ok(prepared) => {
                st.prepared = Some(prepared);
                st.no_space = false;
                st.prepare_failed = false;
            }
            Err(e) => {
                st.prepare_failed = true;
                if let StorageError::Full { .. } = e {
                    st.no_space = true;
                }
                log::warn!("shard {} has no next log file: {e}", self.id);
            }
        }
        self.changed.notify_all();
        st
    }

    fn file_max(&self) -> u64 {
        self.shared.options.file_max.max(self.shared.options.file_initial)
    }

    /// Whether ordinary writes are refused for want of space; tries to make the next file.
    pub fn full(&self) -> bool {
        let mut st = self.state.lock();
        if st.no_space && !st.preparing && !st.closed {
            st = self.prepare(st);
        }
        st.no_space
    }

    fn make_file(&self, current: &WalFileHeader, ordinal: u64, size: u64) -> Result<Prepared> {
        let env = &self.shared.env;
        let mut salt = env.rng.next_u64();
        if salt == current.salt {
            salt = !salt;
        }
        let header = WalFileHeader { ordinal, salt, prior: current.ordinal, ..current.clone() };
        let name = wal_file::name(header.generation, header.ordinal);
        let temp = self.dir.join(format!("{name}.tmp"));
        let io = |e| StorageError::io(format!("make wal/shard-{:02}/{name}", self.id), e);
        let made = (|| {
            let file = env.fs.open(&temp, OpenMode::Truncate).map_err(io)?;
            file.write_all_at(&header.encode(), 0).map_err(io)?;
            file.allocate(size).map_err(io)?;
            env.sync("wal.file.sync", &*file).map_err(io)?;
            env.rename("wal.file.rename", &temp, &self.dir.join(&name)).map_err(io)?;
            env.sync_dir("wal.file.dir", &self.dir).map_err(io)?;
            wal_file::write_current(env, &self.dir, &name)?;
            Ok(file)
        })();
        match made {
            Ok(file) => Ok(Prepared { name, header, file, capacity: size }),
            Err(e) => {
                // What is left of it is above CURRENT, or temporary: the next open removes it.
                let _ = env.fs.remove_file(&temp);
                Err(e)
            }
        }
    }

    /// Goes on in the next file, which will have room for `need` more bytes. The leading flag is
    /// held.
    pub fn succeed<'a>(
        &'a self,
        mut st: MutexGuard<'a, State>,
        need: u64,
    ) -> (MutexGuard<'a, State>, Result<()>) {
        while st.syncing || st.preparing {
            self.changed.wait(&mut st);
        }
        if st.written_lsn() > st.synced_lsn && st.poisoned.is_none() {
            st = self.run_sync(st);
        }
        if let Some(e) = &st.poisoned {
            let e = e.clone();
            return (st, Err(e));
        }
        if st.prepared.is_none() {
            st = self.prepare(st);
        }
        let Some(next) = st.prepared.take() else {
            let detail = format!("shard {} has no next log file", self.id);
            return (st, Err(StorageError::Full { detail }));
        };
        let (first_lsn, broken) = (st.next_lsn, st.broken);
        let key = FileKey(self.shared.next_key.fetch_add(1, Ordering::Relaxed));
        drop(st);
        let moved = self.begin(&next, first_lsn, need, broken);
        let mut st = self.state.lock();
        let capacity = match moved {
            Ok(capacity) => capacity,
            Err(e) => {
                // Nothing was logged in it; another file takes its place under the next number.
                return (st, Err(e));
            }
        };
        let (name, header, file) = (next.name, next.header, next.file);
        let file = Arc::new(WalFile { key, name, header, first_lsn, file });
        self.files.write().insert(key, file.clone());
        st.file = Some(file);
        st.offset = (WAL_HEADER + Start::FRAME_LEN) as u64;
        st.capacity = capacity;
        st.broken = false;
        st.counters.rotations += 1;
        if !self.shared.options.background {
            // Kept ready ahead also where nobody does it in the background.
            st = self.prepare(st);
        }
        (st, Ok(()))
    }

    /// Writes the Start frame; after a failed group it is durable before anything else.
    fn begin(&self, next: &Prepared, first_lsn: u64, need: u64, broken: bool) -> Result<u64> {
        let env = &self.shared.env;
        let io = |e| StorageError::io(format!("begin {}", next.name), e);
        let first = (WAL_HEADER + Start::FRAME_LEN) as u64;
        let capacity = next.capacity.max(first + need);
        if capacity > next.capacity {
            next.file.allocate(capacity).map_err(io)?;
        }
        let mut start = Vec::with_capacity(Start::FRAME_LEN);
        Start { first_lsn }.encode_frame(&mut start);
        frame::seal(&mut start, next.header.salt, first_lsn);
        next.file.write_all_at(&start, WAL_HEADER as u64).map_err(io)?;
        if broken {
            env.sync("wal.start", &*next.file).map_err(io)?;
        }
        Ok(capacity)
    }

    /// Removes files whose last lsn is at or below `lsn`, never the one in use.
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
            self.shared
                .env
                .fs
                .remove_file(&path)
                .map_err(|e| StorageError::io(format!("remove {}", path.display()), e))?;
            self.files.write().remove(&f.key);
            names.push(f.name.clone());
        }
        Ok(names)
    }

    pub fn bytes_on_disk(&self) -> u64 {
        let files = self.files.read();
        let used: u64 = files.values().filter_map(|f| f.file.len().ok()).sum();
        drop(files);
        used + self.state.lock().prepared.as_ref().map_or(0, |p| p.capacity)
    }
}
