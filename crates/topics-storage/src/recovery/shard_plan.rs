//! The recovery plan of a shard, and its inputs.

use super::Loss;
use super::file_ranges::FileRange;
use crate::wal::scan::{ScanEnd, ScannedFrame};

/// Valid, contiguous frames of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Index in [`Folder::files`].
    pub file: usize,
    /// Offset of the first frame.
    pub offset: u64,
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

/// The recovery plan of one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardPlan {
    /// The files that hold frames.
    pub file_ranges: Vec<FileRange>,
    /// Frames to replay from their old files, in lsn order.
    pub extents: Vec<Extent>,
    /// Frames to copy into the new file: the groups above the proven lsn.
    pub copied: Option<Extent>,
    /// First lsn of the new file.
    pub start_lsn: u64,
    /// Last kept lsn.
    pub end_lsn: u64,
    /// The log ends with a CleanClose.
    pub clean: bool,
    /// Ranges declared lost (`salvage`), now or by an earlier recovery.
    pub losses: Vec<Loss>,
    /// Harmless damage: the snapshot reflects the frames.
    pub passed: Vec<Loss>,
    /// The file in which the log ends, and where.
    pub tail: Option<(usize, ScanEnd)>,
}

impl ShardPlan {
    /// The plan of a shard that has no log yet.
    pub fn first(last_lsn: u64) -> Self {
        Self { start_lsn: last_lsn + 1, end_lsn: last_lsn, clean: true, ..Self::default() }
    }

    /// Replays the groups of [`Self::copied`] from their old file, where they were made durable. The
    /// new file begins behind them.
    pub fn keep_in_place(&mut self) {
        if let Some(extent) = self.copied.take() {
            self.start_lsn = self.end_lsn + 1;
            self.extents.push(extent);
        }
    }

    /// Ranges that this recovery declares lost for the first time.
    pub fn fresh(&self) -> impl Iterator<Item = &Loss> {
        self.losses.iter().filter(|l| !l.announced)
    }
}

/// How much of the shard a snapshot reflects.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reflected {
    /// A snapshot names the shard.
    pub known: bool,
    /// Frames up to here are not replayed.
    pub replay_lsn: u64,
    /// Durable before the snapshot was renamed.
    pub durable_lsn: u64,
}

/// Observes a scan, in log order.
pub(crate) trait ScanObserver {
    /// A valid frame, of a file by its index in [`Folder::files`].
    fn frame(&mut self, _file: usize, _frame: &ScannedFrame<'_>) {}
    /// A range declared lost. Frames of it may have been observed before: those of a damaged batch.
    fn lost(&mut self, _loss: &Loss) {}
}

/// Ignores everything.
pub(crate) struct NoObserver;

impl ScanObserver for NoObserver {}
