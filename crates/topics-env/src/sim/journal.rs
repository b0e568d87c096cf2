//! The journal of mutating calls, and what each does to a tree when it survives a crash whole,
//! in part, or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::clock::mix;
use super::disk::{Ino, Name, Node, ROOT, Tree};

/// What a sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    File(Ino),
    Dir(Ino),
    All,
}

/// What becomes of the bytes, or names, that a failed sync should have made durable. The pages
/// are clean afterwards: the next sync succeeds and proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFate {
    /// They reached the disk all the same.
    Kept,
    /// They never reach the disk, though reads return them.
    Lost,
    /// They never reach the disk, and reads return what is there. (Names: as `Lost`.)
    Reverted,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Write { ino: Ino, offset: u64, data: Arc<[u8]> },
    SetLen { ino: Ino, len: u64 },
    Allocate { ino: Ino, len: u64 },
    Create { dir: Ino, name: Name, ino: Ino, is_dir: bool },
    Rename { from: (Ino, Name), to: (Ino, Name), ino: Ino },
    Remove { dir: Ino, name: Name, ino: Ino },
    Sync(Scope),
    SyncFailed(Scope, PageFate),
}

impl Op {
    /// The file whose bytes or length this changes.
    pub(super) fn data_of(&self) -> Option<Ino> {
        match *self {
            Self::Write { ino, .. } | Self::SetLen { ino, .. } | Self::Allocate { ino, .. } => {
                Some(ino)
            }
            _ => None,
        }
    }

    /// The inode whose names this changes.
    pub(super) fn name_of(&self) -> Option<Ino> {
        match *self {
            Self::Create { ino, .. } | Self::Rename { ino, .. } | Self::Remove { ino, .. } => {
                Some(ino)
            }
            _ => None,
        }
    }

    pub(super) fn touches_dir(&self, d: Ino) -> bool {
        match self {
            Self::Create { dir, .. } | Self::Remove { dir, .. } => *dir == d,
            Self::Rename { from, to, .. } => from.0 == d || to.0 == d,
            _ => false,
        }
    }

    pub(super) fn touches_name(&self, d: Ino, n: &str) -> bool {
        match self {
            Self::Create { dir, name, .. } | Self::Remove { dir, name, .. } => {
                *dir == d && **name == *n
            }
            Self::Rename { from, to, .. } => {
                (from.0 == d && *from.1 == *n) || (to.0 == d && *to.1 == *n)
            }
            _ => false,
        }
    }

    /// Applies what survives of this call. Names are whole or absent: any fate but `Drop` keeps
    /// them.
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
            Self::Create { dir, name, ino, .. } => tree.bind(*dir, name, *ino),
            Self::Rename { from, to, ino } => {
                if tree.lookup(from.0, &from.1) == Some(*ino) {
                    tree.unbind(from.0, &from.1);
                }
                tree.bind(to.0, &to.1, *ino);
            }
            Self::Remove { dir, name, .. } => tree.unbind(*dir, name),
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
            // Density differs from seed to seed: mostly there, half, mostly gone.
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

/// What survives of one un-synced call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Keep,
    Drop,
    /// The length, not the bytes.
    Length,
    /// The bytes below the length that is there, not the length.
    Bytes,
    /// The first bytes, and with `full_length` zeros up to the end.
    Cut {
        bytes: usize,
        full_length: bool,
    },
    /// Some of the blocks of `size` bytes, and the length or not.
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
    /// A sync of it failed and dropped its bytes; only the length can still become durable.
    pub(super) lost: bool,
}

impl Pending {
    fn settle(&self, tree: &mut Tree, fate: Fate) {
        match (self.lost, fate) {
            (false, fate) => self.op.apply(tree, fate),
            (true, Fate::Drop | Fate::Bytes) => {}
            (true, _) => self.op.apply(tree, Fate::Length),
        }
    }
}

/// What is durable, and the calls since whose effect is not, in order.
#[derive(Clone, Debug)]
pub(super) struct DiskState {
    pub(super) durable: Tree,
    pub(super) pending: Vec<Pending>,
    /// Inodes that lost a name in a failed sync: they may get another one.
    nameless: BTreeSet<Ino>,
}

impl DiskState {
    pub(super) fn new(durable: Tree) -> Self {
        Self { durable, pending: Vec::new(), nameless: BTreeSet::new() }
    }

    pub(super) fn step(&mut self, op: &Op) {
        match op {
            Op::Sync(scope) | Op::SyncFailed(scope, PageFate::Kept) => self.sync(*scope),
            Op::SyncFailed(scope, PageFate::Lost | PageFate::Reverted) => self.lose(*scope),
            _ => {
                if let Op::Create { ino, is_dir, .. } = op {
                    self.durable.insert(*ino, Node::empty(*is_dir));
                }
                self.pending.push(Pending { op: op.clone(), lost: false });
            }
        }
    }

    /// The tree after a crash in which call `i` of the pending ones had the fate `fates[i]`.
    pub(super) fn settle(&self, fates: &[Fate]) -> Tree {
        let mut tree = self.durable.clone();
        for (pending, fate) in self.pending.iter().zip(fates) {
            pending.settle(&mut tree, *fate);
        }
        tree
    }

    /// Makes fates possible: names of one inode change in order, so a surviving change implies
    /// the earlier ones of that inode (an inode never has the names of two moments).
    pub(super) fn close_names(&self, fates: &mut [Fate]) {
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
                p.settle(durable, Fate::Keep);
                unnamed |= matches!(p.op, Op::Remove { .. } | Op::Rename { .. });
            }
            !covered
        });
        if unnamed {
            self.forget_unnamed();
        }
    }

    /// Which pending calls a sync makes durable: for a directory its names, and the earlier name
    /// changes of the inodes concerned.
    fn covered(&self, scope: Scope) -> Vec<bool> {
        let direct = |p: &Pending| match scope {
            Scope::File(ino) => p.op.data_of() == Some(ino),
            Scope::Dir(dir) => p.op.touches_dir(dir),
            Scope::All => true,
        };
        let mut fates: Vec<Fate> =
            self.pending.iter().map(|p| if direct(p) { Fate::Keep } else { Fate::Drop }).collect();
        if matches!(scope, Scope::Dir(_)) {
            self.close_names(&mut fates);
        }
        fates.into_iter().map(|f| f == Fate::Keep).collect()
    }

    fn lose(&mut self, scope: Scope) {
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

    /// Forgets files that no durable and no pending name leads to: no crash brings them back.
    fn forget_unnamed(&mut self) {
        let named = self.durable.named();
        let coming: BTreeSet<Ino> = self.pending.iter().filter_map(|p| p.op.name_of()).collect();
        let nameless = &self.nameless;
        let alive = |ino| {
            ino == ROOT || named.contains(&ino) || coming.contains(&ino) || nameless.contains(&ino)
        };
        self.durable.retain(alive);
        self.pending.retain(|p| p.op.data_of().is_none_or(alive));
    }
}
