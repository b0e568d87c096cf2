//! What was decided about a shard, and what it was decided from.

use super::Loss;
use super::links::Link;
use crate::wal::scan::{ScanEnd, ScannedFrame};

/// Valid, contiguous frames of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Index in [`Folder::files`].
    pub file: usize,
    /// Offset of the first frame.
    pub offset: u64,
    /// Its lsn.
    pub first_lsn: u64,
    /// The last lsn, inclusive.
    pub last_lsn: u64,
}

impl Extent {
    /// How many frames it has.
    pub fn frames(&self) -> u64 {
        (self.last_lsn + 1).saturating_sub(self.first_lsn)
    }
}

/// What recovery does with one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardPlan {
    /// The files that hold frames.
    pub links: Vec<Link>,
    /// What is replayed from where it lies, in lsn order.
    pub extents: Vec<Extent>,
    /// What is copied into the new file first: the groups above the proven lsn.
    pub copied: Option<Extent>,
    /// First lsn of the new file.
    pub start_lsn: u64,
    /// Last kept lsn.
    pub end_lsn: u64,
    /// The log ends with a CleanClose.
    pub clean: bool,
    /// Damage that is given up (`salvage`), or was by an earlier recovery.
    pub losses: Vec<Loss>,
    /// Damage that costs nothing, because the snapshot reflects it.
    pub passed: Vec<Loss>,
    /// The file in which the log ends, and where.
    pub tail: Option<(usize, ScanEnd)>,
}

impl ShardPlan {
    /// The plan of a shard that has no log yet.
    pub fn first(last_lsn: u64) -> Self {
        Self { start_lsn: last_lsn + 1, end_lsn: last_lsn, clean: true, ..Self::default() }
    }

    /// The groups that were to be copied have been made durable where they are: they are replayed
    /// from there, and the new file begins behind them.
    pub fn keep_in_place(&mut self) {
        if let Some(extent) = self.copied.take() {
            self.start_lsn = self.end_lsn + 1;
            self.extents.push(extent);
        }
    }

    /// Damage that nobody has given up before.
    pub fn fresh(&self) -> impl Iterator<Item = &Loss> {
        self.losses.iter().filter(|l| !l.announced)
    }
}

/// What a snapshot says about the shard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reflected {
    /// A snapshot says something.
    pub known: bool,
    /// Nothing up to here is replayed.
    pub replay_lsn: u64,
    /// The snapshot was renamed only when this was durable.
    pub durable_lsn: u64,
}

/// Sees what a walk meets, in its order.
pub(crate) trait ScanObserver {
    /// A valid frame, of a file by its index in [`Folder::files`].
    fn frame(&mut self, _file: usize, _frame: &ScannedFrame<'_>) {}
    /// A range that is given up. Frames of it may have been seen: those of a batch that the damage
    /// touches.
    fn lost(&mut self, _loss: &Loss) {}
}

/// Looks at nothing.
pub(crate) struct NoObserver;

impl ScanObserver for NoObserver {}
