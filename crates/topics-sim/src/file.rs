//! Open simulated files and the lock guard.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::disk::{Ino, Name};
use super::fault::{CallKind, FaultKind};
use super::journal::{Op, Scope};
use super::state::State;
use topics_env::sync::Mutex;
use topics_env::{File, LockGuard};

#[derive(Debug)]
pub(super) struct SimLock {
    pub(super) file: SimFile,
}

impl LockGuard for SimLock {
    fn describe(&self, content: &[u8]) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(content, 0)
    }

    fn is_named(&self) -> io::Result<bool> {
        Ok(self.file.is_named())
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.file.state.lock().locks.remove(&self.file.ino);
    }
}

/// A shared lock, one of several on a directory.
#[derive(Debug)]
pub(super) struct SimShared {
    pub(super) file: SimFile,
}

impl LockGuard for SimShared {
    fn describe(&self, _content: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn is_named(&self) -> io::Result<bool> {
        Ok(self.file.is_named())
    }
}

impl Drop for SimShared {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        if let Some(n) = state.shared.get_mut(&self.file.ino) {
            *n -= 1;
            if *n == 0 {
                state.shared.remove(&self.file.ino);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct SimFile {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) ino: Ino,
    pub(super) path: Name,
    pub(super) writable: bool,
}

impl SimFile {
    /// Whether its path still names this file.
    fn is_named(&self) -> bool {
        self.state.lock().visible.resolve(&self.path) == Some(self.ino)
    }

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
        Ok(state.visible.file(self.ino).ok_or(Errno::BADF)?.read(&mut buf[..wanted], offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.writable()?;
        let mut state = self.state.lock();
        let wanted = match state.call(CallKind::Write, &self.path)? {
            None => buf.len(),
            Some(FaultKind::ZeroProgress) => 0,
            Some(_) => buf.len().div_ceil(2),
        };
        let n = state.writable_len(self.ino, offset, wanted)?;
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
        Ok(state.visible.file(self.ino).ok_or(Errno::BADF)?.len())
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
        if state.writable_len(self.ino, 0, len as usize)? < len as usize {
            return Err(Errno::NOSPC.into());
        }
        state.mutate(Op::Allocate { ino: self.ino, len }, &self.path);
        Ok(())
    }

    fn links(&self) -> io::Result<u64> {
        let mut state = self.state.lock();
        state.call(CallKind::Stat, &self.path)?;
        Ok(state.visible.links(self.ino))
    }
}
