//! Counters of the shards.

use crate::HistogramSnapshot;

/// Work of the shards since the start, and their state now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Group writes.
    pub groups: u64,
    /// Batches in them.
    pub batches: u64,
    /// Frames in them.
    pub frames: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Durations of the syncs that returned.
    pub syncs: HistogramSnapshot,
    /// Files begun.
    pub rotations: u64,
    /// Batches staged now.
    pub staged: u64,
    /// Bytes of their frames.
    pub staged_bytes: u64,
    /// Shards that are poisoned.
    pub poisoned: u64,
    /// Shards that refuse ordinary writes: poisoned, or out of space.
    pub read_only: u64,
}

impl Counters {
    pub(super) fn plus(self, o: &Self) -> Self {
        Self {
            groups: self.groups + o.groups,
            batches: self.batches + o.batches,
            frames: self.frames + o.frames,
            bytes: self.bytes + o.bytes,
            syncs: self.syncs.plus(&o.syncs),
            rotations: self.rotations + o.rotations,
            staged: self.staged + o.staged,
            staged_bytes: self.staged_bytes + o.staged_bytes,
            poisoned: self.poisoned + o.poisoned,
            read_only: self.read_only + o.read_only,
        }
    }
}
