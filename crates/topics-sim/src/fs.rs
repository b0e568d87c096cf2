//! [`Fs`] over the simulated state.

use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::io::Errno;

use super::SimFs;
use super::clock::mix;
use super::control::Violation;
use super::disk::{Ino, Name};
use super::fault::CallKind;
use super::file::{SimFile, SimLock, SimShared};
use super::journal::{Op, Scope};
use super::state::State;
use topics_env::{DirEntry, File, Fs, LockError, LockGuard, OpenMode};

impl SimFs {
    fn handle(&self, state: &mut State, ino: Ino, path: Name, writable: bool) -> SimFile {
        state.opened(ino);
        SimFile { state: self.state.clone(), ino, path, writable }
    }
}

/// A path as `/a/b`, or empty for the root; relative paths start at the root.
pub(super) fn normal(path: &Path) -> io::Result<Name> {
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
        let found = state.visible.resolve(&path);
        let creates = match mode {
            OpenMode::Read | OpenMode::Write => false,
            OpenMode::CreateNew => true,
            OpenMode::Truncate => found.is_none(),
        };
        state.call_with_fd(if creates { CallKind::Create } else { CallKind::Open }, &path)?;
        let ino = match found {
            Some(_) if creates => return Err(Errno::EXIST.into()),
            Some(ino) => {
                let len = state.visible.file(ino).ok_or(Errno::ISDIR)?.len();
                if mode == OpenMode::Truncate && len > 0 {
                    state.mutate(Op::SetLen { ino, len: 0 }, &path);
                }
                ino
            }
            None if creates => {
                let (dir, name) = state.parent(&path)?;
                state.check_space_for_name()?;
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
        if state.visible.resolve(&path).is_some() {
            return Err(Errno::EXIST.into());
        }
        let (dir, name) = state.parent(&path)?;
        state.check_space_for_name()?;
        state.create(dir, name, true, &path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from)?, normal(to)?);
        let mut state = self.state.lock();
        state.call(CallKind::Rename, &to)?;
        let ino = state.visible.resolve(&from).ok_or(Errno::NOENT)?;
        let (from_dir, from_name) = state.parent(&from)?;
        let (to_dir, to_name) = state.parent(&to)?;
        let target = state.visible.lookup(to_dir, to_name);
        if target == Some(ino) {
            return Ok(());
        }
        let is_dir = |i: Ino| state.visible.dir(i).is_some();
        match target {
            Some(t) if is_dir(t) && !is_dir(ino) => return Err(Errno::ISDIR.into()),
            Some(t) if !is_dir(t) && is_dir(ino) => return Err(Errno::NOTDIR.into()),
            Some(t) if state.visible.dir(t).is_some_and(|d| !d.is_empty()) => {
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
        state.mutate_or_defer(op, &Name::from(format!("{from} to {to}")));
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (normal(from)?, normal(to)?);
        let mut state = self.state.lock();
        state.call(CallKind::Link, &to)?;
        let ino = state.visible.resolve(&from).ok_or(Errno::NOENT)?;
        state.visible.file(ino).ok_or(Errno::PERM)?;
        let (dir, name) = state.parent(&to)?;
        if state.visible.lookup(dir, name).is_some() {
            return Err(Errno::EXIST.into());
        }
        state.check_space_for_name()?;
        state.mutate(Op::Link { at: (dir, Name::from(name)), ino }, &to);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let mut state = self.state.lock();
        state.call(CallKind::RemoveFile, &path)?;
        let (dir, name) = state.parent(&path)?;
        let ino = state.visible.lookup(dir, name).ok_or(Errno::NOENT)?;
        state.visible.file(ino).ok_or(Errno::ISDIR)?;
        state.mutate(Op::Remove { at: (dir, Name::from(name)), ino }, &path);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let mut state = self.state.lock();
        state.call(CallKind::RemoveDir, &path)?;
        let (dir, name) = state.parent(&path)?;
        let ino = state.visible.lookup(dir, name).ok_or(Errno::NOENT)?;
        if !state.visible.dir(ino).ok_or(Errno::NOTDIR)?.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        state.mutate(Op::Remove { at: (dir, Name::from(name)), ino }, &path);
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let path = normal(dir)?;
        let mut state = self.state.lock();
        state.call_with_fd(CallKind::List, &path)?;
        let ino = state.dir(&path)?;
        let names = state.visible.dir(ino).into_iter().flatten();
        let entry = |(name, &ino): (&Name, &Ino)| DirEntry {
            name: name.to_string(),
            is_dir: state.visible.dir(ino).is_some(),
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
        Ok(state.visible.resolve(&path).is_some())
    }

    fn lock(&self, path: &Path, content: &[u8]) -> Result<Box<dyn LockGuard>, LockError> {
        let io = |e: Errno| LockError::Io(e.into());
        let path = normal(path).map_err(LockError::Io)?;
        let mut state = self.state.lock();
        state.call_with_fd(CallKind::Lock, &path).map_err(LockError::Io)?;
        let ino = match state.visible.resolve(&path) {
            Some(ino) => ino,
            None => {
                let (dir, name) = state.parent(&path).map_err(LockError::Io)?;
                state.check_space_for_name().map_err(LockError::Io)?;
                state.create(dir, name, false, &path)
            }
        };
        let held = state.visible.file(ino).ok_or_else(|| io(Errno::ISDIR))?.bytes();
        if state.shared.contains_key(&ino) || !state.locks.insert(ino) {
            return Err(LockError::Held(held));
        }
        let file = self.handle(&mut state, ino, path, true);
        drop(state);
        let guard = SimLock { file };
        guard.describe(content).map_err(LockError::Io)?;
        Ok(Box::new(guard))
    }

    fn lock_file(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        let path = normal(path).map_err(LockError::Io)?;
        let mut state = self.state.lock();
        state.call_with_fd(CallKind::Lock, &path).map_err(LockError::Io)?;
        let found = state.visible.resolve(&path);
        let ino = found.ok_or_else(|| LockError::Io(Errno::NOENT.into()))?;
        if state.shared.contains_key(&ino) || !state.locks.insert(ino) {
            return Err(LockError::Held(Vec::new()));
        }
        let file = self.handle(&mut state, ino, path, true);
        Ok(Box::new(SimLock { file }))
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        let path = normal(path).map_err(LockError::Io)?;
        let mut state = self.state.lock();
        state.call_with_fd(CallKind::Lock, &path).map_err(LockError::Io)?;
        let found = state.visible.resolve(&path);
        let ino = found.ok_or_else(|| LockError::Io(Errno::NOENT.into()))?;
        if state.locks.contains(&ino) {
            let held = state.visible.file(ino).map(|f| f.bytes()).unwrap_or_default();
            return Err(LockError::Held(held));
        }
        *state.shared.entry(ino).or_default() += 1;
        let file = self.handle(&mut state, ino, path, false);
        Ok(Box::new(SimShared { file }))
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

    fn modified_ms(&self, _path: &Path) -> io::Result<u64> {
        Ok(0)
    }

    fn fd_limit(&self) -> Option<u64> {
        self.state.lock().fd_limit.map(|n| n as u64)
    }

    fn backend(&self) -> &'static str {
        "sim"
    }
}
