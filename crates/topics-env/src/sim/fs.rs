//! The simulated file system: [`Fs`] and [`File`] over [`State`].

use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::clock::mix;
use super::crash::{CrashCursor, CrashOptions, CrashState};
use super::disk::{DiskImage, Ino, Name};
use super::fault::{CallFilter, CallKind, FaultKind};
use super::journal::{Op, Scope};
use super::state::State;
use crate::{DirEntry, File, Fs, LockError, LockGuard, OpenMode};

/// A broken rule of order, seen by the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A rename of a file that had bytes no sync had covered.
    RenameUnsynced {
        /// The index of the rename in the journal.
        op: usize,
        /// The name given.
        path: String,
    },
}

/// A file system in memory, with a journal of mutating calls.
#[derive(Debug)]
pub struct SimFs {
    state: Arc<Mutex<State>>,
}

impl Default for SimFs {
    fn default() -> Self {
        Self::new()
    }
}

impl SimFs {
    /// An empty file system; the root directory exists.
    pub fn new() -> Self {
        Self::from_image(&DiskImage::empty())
    }

    /// Mounts an image, unlocked and with an empty journal. What a crash left is durable; what
    /// a killed process left is as durable as it was.
    pub fn from_image(image: &DiskImage) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(image))) }
    }

    /// What the next process sees after this one is killed: all that was written, durable or
    /// not, on the same boot and mount. A later power cut can still lose what was not synced.
    pub fn kill_image(&self) -> DiskImage {
        let state = self.state.lock();
        DiskImage {
            tree: state.seen.clone(),
            cache: Some(Arc::new(state.disk.clone())),
            boot: state.boot,
            mount: state.mount,
            lost: false,
        }
    }

    /// The number of mutating calls so far.
    pub fn ops_len(&self) -> usize {
        self.state.lock().journal.len()
    }

    /// The mutating call with this index, for a person.
    pub fn describe_op(&self, index: usize) -> String {
        let state = self.state.lock();
        let Some(entry) = state.journal.get(index) else { return "none".to_owned() };
        let what = match &entry.op {
            Op::Write { offset, data, .. } => format!("write {} at {offset}", data.len()),
            Op::SetLen { len, .. } => format!("set_len {len}"),
            Op::Allocate { len, .. } => format!("allocate {len}"),
            Op::Create { is_dir: true, .. } => "create_dir".to_owned(),
            Op::Create { .. } => "create".to_owned(),
            Op::Rename { to, .. } => format!("rename to {}", to.1),
            Op::Remove { .. } => "remove".to_owned(),
            Op::Sync(Scope::File(_)) => "sync_data".to_owned(),
            Op::Sync(Scope::Dir(_)) => "sync_dir".to_owned(),
            Op::Sync(Scope::All) => "sync_fs".to_owned(),
            Op::SyncFailed(_, fate) => format!("failed sync ({fate:?})"),
        };
        format!("#{index} {what} {}", entry.path)
    }

    /// A cursor over the crash points of the journal so far.
    pub fn crash_cursor(&self) -> CrashCursor {
        let state = self.state.lock();
        let journal = state.journal.iter().map(|e| e.op.clone()).collect();
        CrashCursor::new(state.base.clone(), journal, state.boot + 1, state.mount + 1)
    }

    /// Every distinct disk that a power cut right after the first `after_ops` mutating calls, or
    /// in the midst of the last of them, may leave.
    pub fn crash_states(
        &self,
        after_ops: usize,
        seed: u64,
        options: &CrashOptions,
        visit: &mut dyn FnMut(CrashState),
    ) {
        let mut cursor = self.crash_cursor();
        cursor.seek(after_ops);
        cursor.states(seed, options, visit);
    }

    /// [`Self::crash_states`] of every crash point, from none of the calls to all of them.
    pub fn all_crash_states(
        &self,
        seed: u64,
        options: &CrashOptions,
        visit: &mut dyn FnMut(CrashState),
    ) {
        let mut cursor = self.crash_cursor();
        loop {
            cursor.states(seed, options, visit);
            if !cursor.advance() {
                return;
            }
        }
    }

    /// Lets the `nth` matching call from now (the first is 1) fail, once.
    pub fn fail_nth(&self, calls: impl Into<CallFilter>, nth: usize, kind: FaultKind) {
        self.state.lock().faults.plan(calls.into(), nth, false, kind);
    }

    /// Lets every matching call fail, from the `nth` from now on.
    pub fn fail_from(&self, calls: impl Into<CallFilter>, nth: usize, kind: FaultKind) {
        self.state.lock().faults.plan(calls.into(), nth, true, kind);
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// How many faults took effect.
    pub fn faults_fired(&self) -> usize {
        self.state.lock().faults.fired()
    }

    /// How many calls of this kind were made, failed ones included.
    pub fn calls(&self, kind: CallKind) -> usize {
        self.state.lock().faults.counts().get(&kind).copied().unwrap_or(0)
    }

    /// Bytes that can still be written, in pages of 4 KiB; `None` lifts the limit. Unlinking and
    /// cutting gives space back, an unlinked file once its last handle is closed.
    pub fn set_free_space(&self, bytes: Option<u64>) {
        self.state.lock().set_free(bytes);
    }

    /// What the monitor saw.
    pub fn violations(&self) -> Vec<Violation> {
        self.state.lock().violations.clone()
    }

    /// Whether these bytes survive every power cut: they, and every name that leads to them, are
    /// durable, and no pending call changes them.
    pub fn is_durable(&self, path: &Path, offset: u64, len: u64) -> bool {
        let Ok(path) = normal(path) else { return false };
        let state = self.state.lock();
        let mut at = super::disk::ROOT;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            let (seen, kept) = (state.seen.lookup(at, name), state.disk.durable.lookup(at, name));
            let pending = state.disk.pending.iter().any(|p| p.op.touches_name(at, name));
            match seen {
                Some(ino) if kept == seen && !pending => at = ino,
                _ => return false,
            }
        }
        let end = offset + len;
        let changed = state.disk.pending.iter().any(|p| match &p.op {
            Op::Write { ino, offset: o, data } => {
                *ino == at && *o < end && *o + data.len() as u64 > offset
            }
            Op::SetLen { ino, len } => *ino == at && *len < end,
            _ => false,
        });
        let files = (state.seen.file(at), state.disk.durable.file(at));
        matches!(files, (Some(s), Some(d)) if !changed && s.same_range(d, offset, len))
    }

    /// Lets the next sync or rename of this thread take effect only after the mutating call that
    /// follows it; the caller is told at once that it succeeded.
    pub fn defer_next(&self) {
        self.state.lock().arm();
    }

    /// Lets a deferred sync or rename happen now.
    pub fn flush_deferred(&self) {
        self.state.lock().flush();
    }

    fn handle(&self, state: &mut State, ino: Ino, path: Name, writable: bool) -> SimFile {
        state.opened(ino);
        SimFile { state: self.state.clone(), ino, path, writable }
    }
}

/// A path as `/a/b`, or nothing for the root; relative paths begin at the root.
fn normal(path: &Path) -> io::Result<Name> {
    let mut out = String::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                out.push('/');
                out.push_str(name.to_str().ok_or(Errno::ILSEQ)?);
            }
            Component::ParentDir => out.truncate(out.rfind('/').unwrap_or(0)),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(out.into())
}

impl Fs for SimFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let path = normal(path)?;
        let mut state = self.state.lock();
        let found = state.seen.resolve(&path);
        let creates = match mode {
            OpenMode::Read | OpenMode::Write => false,
            OpenMode::CreateNew => true,
            OpenMode::Truncate => found.is_none(),
        };
        state.call(if creates { CallKind::Create } else { CallKind::Open }, &path)?;
        let ino = match found {
            Some(_) if creates => return Err(Errno::EXIST.into()),
            Some(ino) => {
                let len = state.seen.file(ino).ok_or(Errno::ISDIR)?.len();
                if mode == OpenMode::Truncate && len > 0 {
                    state.mutate(Op::SetLen { ino, len: 0 }, &path);
                }
                ino
            }
            None if creates => {
                let (dir, name) = state.parent(&path)?;
                state.room_for_name()?;
                state.create(dir, name, false, &path)
            }
            None => return Err(Errno::NOENT.into()),
        };
        Ok(Arc::new(self.handle(&mut state, ino, path, mode != OpenMode::Read)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let mut state = self.state.lock();
        state.call(CallKind::CreateDir, &path)?;
        if state.seen.resolve(&path).is_some() {
            return Err(Errno::EXIST.into());
        }
        let (dir, name) = state.parent(&path)?;
        state.room_for_name()?;
        state.create(dir, name, true, &path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from)?, normal(to)?);
        let mut state = self.state.lock();
        state.call(CallKind::Rename, &to)?;
        let ino = state.seen.resolve(&from).ok_or(Errno::NOENT)?;
        let (from_dir, from_name) = state.parent(&from)?;
        let (to_dir, to_name) = state.parent(&to)?;
        let target = state.seen.lookup(to_dir, to_name);
        if target == Some(ino) {
            return Ok(());
        }
        let is_dir = |i: Ino| state.seen.dir(i).is_some();
        match target {
            Some(t) if is_dir(t) && !is_dir(ino) => return Err(Errno::ISDIR.into()),
            Some(t) if !is_dir(t) && is_dir(ino) => return Err(Errno::NOTDIR.into()),
            Some(t) if state.seen.dir(t).is_some_and(|d| !d.is_empty()) => {
                return Err(Errno::NOTEMPTY.into());
            }
            _ => {}
        }
        if state.disk.pending.iter().any(|p| p.op.data_of() == Some(ino)) {
            let (op, path) = (state.journal.len(), to.to_string());
            state.violations.push(Violation::RenameUnsynced { op, path });
        }
        let op = Op::Rename {
            from: (from_dir, Name::from(from_name)),
            to: (to_dir, Name::from(to_name)),
            ino,
        };
        state.mutate_or_defer(op, &from);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let mut state = self.state.lock();
        state.call(CallKind::RemoveFile, &path)?;
        let (dir, name) = state.parent(&path)?;
        let ino = state.seen.lookup(dir, name).ok_or(Errno::NOENT)?;
        state.seen.file(ino).ok_or(Errno::ISDIR)?;
        state.mutate(Op::Remove { dir, name: Name::from(name), ino }, &path);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let mut state = self.state.lock();
        state.call(CallKind::RemoveDir, &path)?;
        let (dir, name) = state.parent(&path)?;
        let ino = state.seen.lookup(dir, name).ok_or(Errno::NOENT)?;
        if !state.seen.dir(ino).ok_or(Errno::NOTDIR)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        state.mutate(Op::Remove { dir, name: Name::from(name), ino }, &path);
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let path = normal(dir)?;
        let mut state = self.state.lock();
        state.call(CallKind::List, &path)?;
        let ino = state.dir(&path)?;
        let names = state.seen.dir(ino).into_iter().flatten();
        let entry = |(name, &ino): (&Name, &Ino)| DirEntry {
            name: name.to_string(),
            is_dir: state.seen.dir(ino).is_some(),
        };
        Ok(names.map(entry).collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let path = normal(dir)?;
        let mut state = self.state.lock();
        let ino = state.dir(&path)?;
        state.sync(CallKind::SyncDir, Scope::Dir(ino), &path)
    }

    fn sync_fs(&self, dir: &Path) -> io::Result<()> {
        let path = normal(dir)?;
        let mut state = self.state.lock();
        state.dir(&path)?;
        state.sync(CallKind::SyncFs, Scope::All, &path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let path = normal(path)?;
        let mut state = self.state.lock();
        state.call(CallKind::Stat, &path)?;
        Ok(state.seen.resolve(&path).is_some())
    }

    fn lock(&self, path: &Path, content: &[u8]) -> Result<Box<dyn LockGuard>, LockError> {
        let io = |e: Errno| LockError::Io(e.into());
        let path = normal(path).map_err(LockError::Io)?;
        let mut state = self.state.lock();
        state.call(CallKind::Lock, &path).map_err(LockError::Io)?;
        let ino = match state.seen.resolve(&path) {
            Some(ino) => ino,
            None => {
                let (dir, name) = state.parent(&path).map_err(LockError::Io)?;
                state.room_for_name().map_err(LockError::Io)?;
                state.create(dir, name, false, &path)
            }
        };
        let held = state.seen.file(ino).ok_or_else(|| io(Errno::ISDIR))?.bytes();
        if !state.locks.insert(ino) {
            return Err(LockError::Held(held));
        }
        let file = self.handle(&mut state, ino, path, true);
        drop(state);
        let guard = SimLock { file };
        guard.describe(content).map_err(LockError::Io)?;
        Ok(Box::new(guard))
    }

    fn free_space(&self, dir: &Path) -> io::Result<u64> {
        let path = normal(dir)?;
        let mut state = self.state.lock();
        state.call(CallKind::FreeSpace, &path)?;
        Ok(state.free().unwrap_or(1 << 40))
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        let boot = self.state.lock().boot;
        let mut id = [0; 16];
        id[..8].copy_from_slice(&mix(boot).to_le_bytes());
        id[8..].copy_from_slice(&boot.to_le_bytes());
        Ok(id)
    }

    fn mount_id(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.state.lock().mount)
    }

    fn backend(&self) -> &'static str {
        "sim"
    }
}

#[derive(Debug)]
struct SimLock {
    file: SimFile,
}

impl LockGuard for SimLock {
    fn describe(&self, content: &[u8]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(content, 0)
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.file.state.lock().locks.remove(&self.file.ino);
    }
}

#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
    ino: Ino,
    path: Name,
    writable: bool,
}

impl SimFile {
    fn writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(Errno::BADF.into()) }
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.state.lock().closed(self.ino);
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state.lock();
        let short = state.call(CallKind::Read, &self.path)?.is_some();
        let wanted = if short { buf.len().div_ceil(2) } else { buf.len() };
        Ok(state.seen.file(self.ino).ok_or(Errno::BADF)?.read(&mut buf[..wanted], offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.writable()?;
        let mut state = self.state.lock();
        let wanted = match state.call(CallKind::Write, &self.path)? {
            None => buf.len(),
            Some(FaultKind::ZeroProgress) => 0,
            Some(_) => buf.len().div_ceil(2),
        };
        let n = state.room(self.ino, offset, wanted)?;
        if n > 0 {
            let data = Arc::from(&buf[..n]);
            state.mutate(Op::Write { ino: self.ino, offset, data }, &self.path);
        }
        Ok(n)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.state.lock().sync(CallKind::SyncData, Scope::File(self.ino), &self.path)
    }

    fn len(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.call(CallKind::Stat, &self.path)?;
        Ok(state.seen.file(self.ino).ok_or(Errno::BADF)?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        let mut state = self.state.lock();
        state.call(CallKind::SetLen, &self.path)?;
        state.mutate(Op::SetLen { ino: self.ino, len }, &self.path);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        let mut state = self.state.lock();
        state.call(CallKind::Allocate, &self.path)?;
        if state.room(self.ino, 0, len as usize)? < len as usize {
            return Err(Errno::NOSPC.into());
        }
        state.mutate(Op::Allocate { ino: self.ino, len }, &self.path);
        Ok(())
    }

    fn links(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.call(CallKind::Stat, &self.path)?;
        Ok(state.seen.links(self.ino))
    }

    fn map(&self, len: u64) -> io::Result<Arc<dyn AsRef<[u8]> + Send + Sync>> {
        let mut state = self.state.lock();
        state.call(CallKind::Map, &self.path)?;
        let file = state.seen.file(self.ino).ok_or(Errno::BADF)?;
        if len > file.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len as usize];
        file.read(&mut bytes, 0);
        Ok(Arc::new(bytes))
    }
}
