//! The mutable state of a simulated file system: visible tree, durable state, journal, free space.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use super::control::{DeferUntil, Violation};
use super::disk::{DiskImage, Ino, Name, Node, PAGE, ROOT, Tree};
use super::fault::{CallKind, FaultKind, Faults};
use super::journal::{DiskState, Fate, Op, PageFate, Scope};
use topics_env::sync::thread::{self, ThreadId};

/// A mutating call and the path it was made on.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) op: Op,
    pub(super) path: Name,
}

#[derive(Debug)]
pub(super) struct State {
    /// The tree that the process sees.
    pub(super) visible: Tree,
    pub(super) disk: DiskState,
    /// The disk at the start of the journal.
    pub(super) base: DiskState,
    pub(super) journal: Vec<Entry>,
    pub(super) faults: Faults,
    pub(super) violations: Vec<Violation>,
    pub(super) locks: BTreeSet<Ino>,
    /// Shared locks, with the number of holders.
    pub(super) shared: BTreeMap<Ino, usize>,
    pub(super) boot: u64,
    pub(super) mount: u64,
    /// Files with a failed write-back: their next sync reports it, once.
    pub(super) unreported: BTreeSet<Ino>,
    /// Whether the next sync of the file system reports a failed write-back.
    pub(super) unreported_fs: bool,
    next_ino: Ino,
    opens: BTreeMap<Ino, usize>,
    /// The maximum number of open files.
    pub(super) fd_limit: Option<usize>,
    free: Option<u64>,
    /// Threads whose next sync or rename is deferred, and until when.
    deferring: Vec<(ThreadId, DeferUntil)>,
    deferred: Option<Entry>,
    /// Deferred calls that wait for some calls, a rename or a removal.
    deferred_until: Vec<(DeferUntil, Entry)>,
}

impl State {
    pub(super) fn new(image: &DiskImage) -> Self {
        let disk = match &image.cache {
            Some(cache) => (**cache).clone(),
            None => DiskState::new(image.tree.clone()),
        };
        Self {
            next_ino: image.tree.next_ino().max(disk.durable.next_ino()),
            visible: image.tree.clone(),
            base: disk.clone(),
            disk,
            journal: Vec::new(),
            faults: Faults::default(),
            violations: Vec::new(),
            locks: BTreeSet::new(),
            shared: BTreeMap::new(),
            boot: image.boot,
            mount: image.mount,
            unreported: (*image.unreported).clone(),
            unreported_fs: image.unreported_fs,
            opens: BTreeMap::new(),
            fd_limit: None,
            free: None,
            deferring: Vec::new(),
            deferred: None,
            deferred_until: Vec::new(),
        }
    }

    /// Counts a call. Returns an error if the call fails without effect, or the fault if it fails
    /// in a special way.
    pub(super) fn call(&mut self, kind: CallKind, path: &str) -> io::Result<Option<FaultKind>> {
        match self.faults.call(kind, path) {
            None => Ok(None),
            Some(fault) => match fault {
                FaultKind::ShortWrite if matches!(kind, CallKind::Write | CallKind::Read) => {
                    Ok(Some(fault))
                }
                FaultKind::ZeroProgress if kind == CallKind::Write => Ok(Some(fault)),
                FaultKind::SyncFails { .. } if kind.is_sync() => Ok(Some(fault)),
                _ => Err(fault.error()),
            },
        }
    }

    /// The number of open files.
    pub(super) fn open_files(&self) -> usize {
        self.opens.values().sum()
    }

    /// [`Self::call`] for a call that needs a descriptor, at least temporarily.
    pub(super) fn call_with_fd(
        &mut self,
        kind: CallKind,
        path: &str,
    ) -> io::Result<Option<FaultKind>> {
        let fault = self.call(kind, path)?;
        if self.fd_limit.is_some_and(|most| self.open_files() >= most) {
            return Err(Errno::MFILE.into());
        }
        Ok(fault)
    }

    /// Applies and logs a mutating call, then applies a deferred call that waits for it.
    pub(super) fn mutate(&mut self, op: Op, path: &Name) {
        let due = self.deferred.take();
        let met = |until: &mut DeferUntil| match (until, &op) {
            (DeferUntil::Calls(left), _) => {
                *left = left.saturating_sub(1);
                *left == 0
            }
            (DeferUntil::Rename(text), Op::Rename { .. }) => {
                path.rsplit_once(" to ").is_some_and(|(_, to)| to.contains(*text))
            }
            (DeferUntil::Remove(text), Op::Remove { .. }) => path.contains(*text),
            _ => false,
        };
        let until: Vec<_> = self.deferred_until.extract_if(.., |d| met(&mut d.0)).collect();
        self.commit(Entry { op, path: path.clone() });
        if let Some(entry) = due {
            self.commit(entry);
        }
        until.into_iter().for_each(|(_, e)| self.commit(e));
    }

    fn commit(&mut self, entry: Entry) {
        if let Op::Rename { from, ino, .. } = &entry.op
            && self.visible.lookup(from.0, &from.1) != Some(*ino)
        {
            return; // a deferred rename whose source is gone
        }
        let before = entry.op.data_of().map_or(0, |ino| self.blocks(ino));
        let replaced = match &entry.op {
            Op::Rename { to, .. } => self.visible.lookup(to.0, &to.1),
            Op::Remove { ino, .. } => Some(*ino),
            Op::Create { ino, is_dir, .. } => {
                self.visible.insert(*ino, Node::empty(*is_dir));
                None
            }
            _ => None,
        };
        entry.op.apply(&mut self.visible, Fate::Keep);
        if let (Some(free), Some(ino)) = (self.free, entry.op.data_of()) {
            self.free = Some((free + before * PAGE as u64).saturating_sub(self.used(ino)));
        }
        let reverted = match entry.op {
            Op::SyncFailed(scope, PageFate::Reverted) => self.files_losing_pages(scope),
            _ => BTreeSet::new(),
        };
        self.disk.step(&entry.op);
        reverted.into_iter().for_each(|ino| self.revert(ino));
        if let Some(ino) = replaced {
            self.drop_unused(ino);
        }
        self.journal.push(entry);
    }

    /// Files whose pending bytes a failing sync of `scope` covers.
    fn files_losing_pages(&self, scope: Scope) -> BTreeSet<Ino> {
        let pending = self.disk.pending.iter().filter_map(|p| p.op.data_of());
        match scope {
            Scope::File(ino) => pending.filter(|&i| i == ino).collect(),
            Scope::All => pending.collect(),
            Scope::Dir(_) => BTreeSet::new(),
        }
    }

    /// Reads return the durable bytes again; the length in memory stays.
    fn revert(&mut self, ino: Ino) {
        let Some(len) = self.visible.file(ino).map(|f| f.len()) else { return };
        if let Some(durable) = self.disk.durable.file(ino) {
            let mut content = (**durable).clone();
            content.set_len(len);
            self.visible.insert(ino, Node::File(Arc::new(content)));
        }
    }

    /// A sync or rename. If this thread's next one is to be deferred, stores it and returns as if
    /// it succeeded.
    pub(super) fn mutate_or_defer(&mut self, op: Op, path: &Name) {
        let me = thread::current().id();
        match self.deferring.iter().position(|&(t, _)| t == me) {
            Some(at) => {
                let entry = Entry { op, path: path.clone() };
                match self.deferring.remove(at).1 {
                    DeferUntil::Call => {
                        self.flush();
                        self.deferred = Some(entry);
                    }
                    until => self.deferred_until.push((until, entry)),
                }
            }
            None => self.mutate(op, path),
        }
    }

    pub(super) fn arm(&mut self, until: DeferUntil) {
        self.deferring.push((thread::current().id(), until));
    }

    /// Applies a deferred call now.
    pub(super) fn flush(&mut self) {
        if let Some(entry) = self.deferred.take() {
            self.commit(entry);
        }
    }

    pub(super) fn sync(&mut self, kind: CallKind, scope: Scope, path: &Name) -> io::Result<()> {
        let fault = match scope {
            Scope::Dir(_) => self.call_with_fd(kind, path)?,
            Scope::File(_) | Scope::All => self.call(kind, path)?,
        };
        match fault {
            Some(fault) => {
                if let FaultKind::SyncFails { then } = fault {
                    self.mutate(Op::SyncFailed(scope, then), path);
                }
                Err(fault.error())
            }
            None if self.reports(scope) => {
                self.mutate(Op::SyncFailed(scope, PageFate::Kept), path);
                Err(Errno::IO.into())
            }
            None => {
                self.mutate_or_defer(Op::Sync(scope), path);
                Ok(())
            }
        }
    }

    /// Whether a sync reports an earlier failed write-back; each is reported once.
    fn reports(&mut self, scope: Scope) -> bool {
        match scope {
            Scope::File(ino) => self.unreported.remove(&ino),
            Scope::All => std::mem::take(&mut self.unreported_fs),
            Scope::Dir(_) => false,
        }
    }

    pub(super) fn create(&mut self, dir: Ino, name: &str, is_dir: bool, path: &Name) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        self.mutate(Op::Create { at: (dir, Name::from(name)), ino, is_dir }, path);
        ino
    }

    /// The directory that holds the last name of a path, and that name.
    pub(super) fn parent<'p>(&self, path: &'p str) -> io::Result<(Ino, &'p str)> {
        let (dir, name) = path.rsplit_once('/').ok_or(Errno::INVAL)?;
        if name.is_empty() {
            return Err(Errno::INVAL.into());
        }
        let dir = self.visible.resolve(dir).ok_or(Errno::NOENT)?;
        self.visible.dir(dir).ok_or(Errno::NOTDIR)?;
        Ok((dir, name))
    }

    pub(super) fn dir(&self, path: &str) -> io::Result<Ino> {
        let ino = self.visible.resolve(path).ok_or(Errno::NOENT)?;
        self.visible.dir(ino).ok_or(Errno::NOTDIR)?;
        Ok(ino)
    }

    /// The number of bytes, at most `len`, that fit at `offset`; an error if none fits.
    pub(super) fn writable_len(&self, ino: Ino, offset: u64, len: usize) -> io::Result<usize> {
        let Some(free) = self.free else { return Ok(len) };
        let file = self.visible.file(ino).ok_or(Errno::BADF)?;
        let pages = free / PAGE as u64;
        let mut fits = len as u64;
        while fits > 0 && file.missing_blocks(offset, fits) > pages {
            fits = (offset + fits - 1) / PAGE as u64 * PAGE as u64;
            fits = fits.saturating_sub(offset);
        }
        if fits == 0 && len > 0 { Err(Errno::NOSPC.into()) } else { Ok(fits as usize) }
    }

    /// Checks that the disk has space for one more name.
    pub(super) fn check_space_for_name(&self) -> io::Result<()> {
        if self.free.is_some_and(|free| free < PAGE as u64) {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    pub(super) fn free(&self) -> Option<u64> {
        self.free
    }

    pub(super) fn set_free(&mut self, free: Option<u64>) {
        self.free = free;
    }

    fn blocks(&self, ino: Ino) -> u64 {
        if self.free.is_none() { 0 } else { self.visible.file(ino).map_or(0, |f| f.blocks()) }
    }

    fn used(&self, ino: Ino) -> u64 {
        self.blocks(ino) * PAGE as u64
    }

    pub(super) fn opened(&mut self, ino: Ino) {
        *self.opens.entry(ino).or_insert(0) += 1;
    }

    pub(super) fn closed(&mut self, ino: Ino) {
        if let Some(n) = self.opens.get_mut(&ino) {
            *n -= 1;
            if *n == 0 {
                self.opens.remove(&ino);
                self.drop_unused(ino);
            }
        }
    }

    /// Frees the space of a file that has neither a name nor a handle.
    fn drop_unused(&mut self, ino: Ino) {
        if ino != ROOT && !self.opens.contains_key(&ino) && self.visible.links(ino) == 0 {
            let used = self.used(ino);
            self.free = self.free.map(|free| free + used);
            self.visible.remove(ino);
        }
    }
}
