//! The journal of mutating calls, and the effect of each on a tree when it survives a crash
//! completely, in part, or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::clock::mix;
use super::disk::{Ino, Name, Node, PAGE, ROOT, Tree};

/// What a sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    File(Ino),
    Dir(Ino),
    All,
}

/// What happens to the bytes, or names, that a failed sync should have made durable. The pages are
/// clean afterwards: the next sync succeeds without writing them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFate {
    /// They reached the disk nevertheless.
    Kept,
    /// They never reach the disk, but reads return them.
    Lost,
    /// They never reach the disk, and reads return the durable bytes. (Names: as `Lost`.)
    Reverted,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Write {
        ino: Ino,
        offset: u64,
        data: Arc<[u8]>,
    },
    SetLen {
        ino: Ino,
        len: u64,
    },
    Allocate {
        ino: Ino,
        len: u64,
    },
    Create {
        at: (Ino, Name),
        ino: Ino,
        is_dir: bool,
    },
    Rename {
        from: (Ino, Name),
        to: (Ino, Name),
        ino: Ino,
    },
    /// A second name of a file.
    Link {
        at: (Ino, Name),
        ino: Ino,
    },
    Remove {
        at: (Ino, Name),
        ino: Ino,
    },
    Sync(Scope),
    SyncFailed(Scope, PageFate),
}

impl Op {
    /// The file whose bytes or length this call changes.
    pub(super) fn data_of(&self) -> Option<Ino> {
        match *self {
            Self::Write { ino, .. } | Self::SetLen { ino, .. } | Self::Allocate { ino, .. } => {
                Some(ino)
            }
            _ => None,
        }
    }

    /// The inode whose names this call changes.
    pub(super) fn name_of(&self) -> Option<Ino> {
        match *self {
            Self::Create { ino, .. }
            | Self::Link { ino, .. }
            | Self::Rename { ino, .. }
            | Self::Remove { ino, .. } => Some(ino),
            _ => None,
        }
    }

    /// The names that this call changes, each with its directory.
    fn names(&self) -> [Option<&(Ino, Name)>; 2] {
        match self {
            Self::Create { at, .. } | Self::Link { at, .. } | Self::Remove { at, .. } => {
                [Some(at), None]
            }
            Self::Rename { from, to, .. } => [Some(from), Some(to)],
            _ => [None, None],
        }
    }

    pub(super) fn touches_name(&self, dir: Ino, name: &str) -> bool {
        self.names().into_iter().flatten().any(|at| at.0 == dir && *at.1 == *name)
    }

    /// Applies the surviving part of this call. A name change survives completely or not at all:
    /// every fate but `Drop` keeps it.
    pub(super) fn apply(&self, tree: &mut Tree, fate: Fate) {
        if fate == Fate::Drop {
            return;
        }
        match self {
            Self::Write { ino, offset, data } => write(tree, *ino, *offset, data, fate),
            Self::SetLen { ino, len } if fate.keeps_length(*ino ^ len) => {
                if let Some(file) = tree.file_mut(*ino) {
                    file.set_len(*len);
                }
            }
            Self::Allocate { ino, len } if fate.keeps_length(*ino ^ len) => {
                if let Some(file) = tree.file_mut(*ino) {
                    file.allocate(*len);
                }
            }
            Self::Create { at, ino, .. } | Self::Link { at, ino } => {
                tree.bind(at.0, &at.1, *ino);
            }
            Self::Rename { from, to, ino } => {
                if tree.lookup(from.0, &from.1) == Some(*ino) {
                    tree.unbind(from.0, &from.1);
                }
                tree.bind(to.0, &to.1, *ino);
            }
            Self::Remove { at, .. } => tree.unbind(at.0, &at.1),
            Self::SetLen { .. } | Self::Allocate { .. } | Self::Sync(_) | Self::SyncFailed(..) => {}
        }
    }
}

fn write(tree: &mut Tree, ino: Ino, offset: u64, data: &[u8], fate: Fate) {
    let end = offset + data.len() as u64;
    let Some(file) = tree.file_mut(ino) else { return };
    match fate {
        Fate::Keep => file.write(offset, data),
        Fate::Length => file.extend(end),
        Fate::Bytes => file.write_within(offset, data),
        Fate::Cut { bytes, full_length } => {
            file.write(offset, &data[..bytes.min(data.len())]);
            if full_length {
                file.extend(end);
            }
        }
        Fate::Blocks { size, seed } => {
            if fate.keeps_length(offset ^ ino) {
                file.extend(end);
            }
            // The share of surviving blocks depends on the seed: few lost, half, or most.
            let odds = [1, 4, 7][(seed % 3) as usize];
            let mut at = offset;
            while at < end {
                let next = (at / size + 1) * size;
                let part = &data[(at - offset) as usize..(next.min(end) - offset) as usize];
                if mix(seed ^ mix(at ^ ino.rotate_left(40))) % 8 < odds {
                    file.write_within(at, part);
                }
                at = next;
            }
        }
        Fate::Drop => {}
    }
}

/// The surviving part of one un-synced call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    Drop,
    /// The length without the bytes.
    Length,
    /// The bytes below the surviving length, without a new length.
    Bytes,
    /// The first bytes and, with `full_length`, zeros up to the end.
    Cut {
        bytes: usize,
        full_length: bool,
    },
    /// Some of the blocks of `size` bytes, with or without the length.
    Blocks {
        size: u64,
        seed: u64,
    },
}

impl Fate {
    fn keeps_length(self, salt: u64) -> bool {
        match self {
            Self::Keep | Self::Length | Self::Cut { .. } => true,
            Self::Drop | Self::Bytes => false,
            Self::Blocks { seed, .. } => mix(seed ^ mix(salt ^ 0x6c65_6e67_7468)) & 3 != 0,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) op: Op,
    /// A failed sync dropped its bytes; only the length can still become durable.
    pub(super) lost: bool,
}

impl Pending {
    fn apply_survivors(&self, tree: &mut Tree, fate: Fate) {
        match (self.lost, fate) {
            (false, fate) => self.op.apply(tree, fate),
            (true, Fate::Drop | Fate::Bytes) => {}
            (true, _) => self.op.apply(tree, Fate::Length),
        }
    }
}

/// The durable tree, and the later calls that are not durable yet, in order.
#[derive(Clone, Debug)]
pub(super) struct DiskState {
    pub(super) durable: Tree,
    pub(super) pending: Vec<Pending>,
    /// Inodes that lost a name in a failed sync and can get another name later.
    nameless: BTreeSet<Ino>,
}

impl DiskState {
    pub(super) fn new(durable: Tree) -> Self {
        Self { durable, pending: Vec::new(), nameless: BTreeSet::new() }
    }

    pub(super) fn step(&mut self, op: &Op) {
        match op {
            Op::Sync(scope) | Op::SyncFailed(scope, PageFate::Kept) => self.sync(*scope),
            Op::SyncFailed(scope, PageFate::Lost | PageFate::Reverted) => self.drop_covered(*scope),
            _ => {
                if let Op::Create { ino, is_dir, .. } = op {
                    self.durable.insert(*ino, Node::empty(*is_dir));
                }
                self.pending.push(Pending { op: op.clone(), lost: false });
            }
        }
    }

    /// The tree after a crash in which pending call `i` has the fate `fates[i]`.
    pub(super) fn tree_after_crash(&self, fates: &[Fate]) -> Tree {
        let mut tree = self.durable.clone();
        for (pending, fate) in self.pending.iter().zip(fates) {
            pending.apply_survivors(&mut tree, *fate);
        }
        tree
    }

    /// Fails the write-back of the un-synced pages that `drops` selects, and returns the affected
    /// files. Reads return the durable bytes; lengths stay.
    pub(super) fn fail_write_back(
        &self,
        drops: impl Fn(Ino, u64) -> bool,
    ) -> (Self, BTreeSet<Ino>) {
        let mut failed = BTreeSet::new();
        let mut pending = Vec::with_capacity(self.pending.len());
        for p in &self.pending {
            let Op::Write { ino, offset, data } = &p.op else {
                pending.push(p.clone());
                continue;
            };
            let mut at = 0;
            while at < data.len() {
                let start = offset + at as u64;
                let page = start / PAGE as u64;
                let end = data.len().min(at + PAGE - (start % PAGE as u64) as usize);
                let dropped = !p.lost && drops(*ino, page);
                if dropped {
                    failed.insert(*ino);
                }
                let op = Op::Write { ino: *ino, offset: start, data: Arc::from(&data[at..end]) };
                pending.push(Pending { op, lost: p.lost || dropped });
                at = end;
            }
        }
        (Self { pending, ..self.clone() }, failed)
    }

    /// Makes a choice of fates possible: the name changes of one inode are ordered, so a surviving
    /// change implies the earlier ones of that inode (an inode never has names from two points in
    /// time).
    pub(super) fn complete_names(&self, fates: &mut [Fate]) {
        let mut kept = BTreeSet::new();
        for (pending, fate) in self.pending.iter().zip(fates).rev() {
            if let Some(ino) = pending.op.name_of() {
                if *fate != Fate::Drop {
                    kept.insert(ino);
                } else if kept.contains(&ino) {
                    *fate = Fate::Keep;
                }
            }
        }
    }

    fn sync(&mut self, scope: Scope) {
        let covered = self.covered(scope);
        let mut index = 0;
        let mut unnamed = false;
        let Self { durable, pending, .. } = self;
        pending.retain(|p| {
            let covered = covered[index];
            index += 1;
            if covered {
                p.apply_survivors(durable, Fate::Keep);
                unnamed |= matches!(p.op, Op::Remove { .. } | Op::Rename { .. });
            }
            !covered
        });
        if unnamed {
            self.forget_unnamed();
        }
    }

    /// The pending calls that a sync makes durable. For a directory: its names and, because a
    /// rename can span two directories, earlier changes to the same inodes and names.
    fn covered(&self, scope: Scope) -> Vec<bool> {
        let (mut inodes, mut names) = (BTreeSet::new(), BTreeSet::new());
        let mut covers = |op: &Op| match scope {
            Scope::File(ino) => op.data_of() == Some(ino),
            Scope::All => true,
            Scope::Dir(dir) => {
                let Some(ino) = op.name_of() else { return false };
                let touched: Vec<_> = op.names().into_iter().flatten().cloned().collect();
                let covered = inodes.contains(&ino)
                    || touched.iter().any(|name| name.0 == dir || names.contains(name));
                if covered {
                    inodes.insert(ino);
                    names.extend(touched);
                }
                covered
            }
        };
        let mut out: Vec<bool> = self.pending.iter().rev().map(|p| covers(&p.op)).collect();
        out.reverse();
        out
    }

    fn drop_covered(&mut self, scope: Scope) {
        let covered = self.covered(scope);
        let mut index = 0;
        self.pending.retain_mut(|p| {
            let covered = covered[index];
            index += 1;
            p.lost |= covered;
            let name = p.op.name_of().filter(|_| covered);
            self.nameless.extend(name);
            name.is_none()
        });
    }

    /// Removes files that no durable and no pending name points to: no crash can restore them.
    fn forget_unnamed(&mut self) {
        let named = self.durable.named();
        let pending_names: BTreeSet<Ino> =
            self.pending.iter().filter_map(|p| p.op.name_of()).collect();
        let nameless = &self.nameless;
        let alive = |ino| {
            ino == ROOT
                || named.contains(&ino)
                || pending_names.contains(&ino)
                || nameless.contains(&ino)
        };
        self.durable.retain(alive);
        self.pending.retain(|p| p.op.data_of().is_none_or(alive));
    }
}
