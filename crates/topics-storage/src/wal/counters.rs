//! What the shards have done since the start.

/// What the shards have done since the start.
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
    /// Syncs that returned.
    pub syncs: u64,
    /// Nanoseconds they took.
    pub sync_ns: u64,
    /// The same as a histogram: the `i`-th counts syncs below `2^(i + 8)` ns, the last all others.
    pub sync_times: [u64; SYNC_BUCKETS],
    /// Syncs that were delayed so that they cover more batches.
    pub delayed_syncs: u64,
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

/// Buckets of [`Counters::sync_times`].
pub const SYNC_BUCKETS: usize = 32;

impl Counters {
    /// Counts a sync that took `ns` nanoseconds.
    pub(super) fn synced(&mut self, ns: u64) {
        self.syncs += 1;
        self.sync_ns += ns;
        let bits = (64 - ns.leading_zeros()) as usize;
        self.sync_times[bits.saturating_sub(8).min(SYNC_BUCKETS - 1)] += 1;
    }

    pub(super) fn plus(self, o: &Self) -> Self {
        Self {
            groups: self.groups + o.groups,
            batches: self.batches + o.batches,
            frames: self.frames + o.frames,
            bytes: self.bytes + o.bytes,
            syncs: self.syncs + o.syncs,
            sync_ns: self.sync_ns + o.sync_ns,
            sync_times: std::array::from_fn(|i| self.sync_times[i] + o.sync_times[i]),
            delayed_syncs: self.delayed_syncs + o.delayed_syncs,
            rotations: self.rotations + o.rotations,
            staged: self.staged + o.staged,
            staged_bytes: self.staged_bytes + o.staged_bytes,
            poisoned: self.poisoned + o.poisoned,
            read_only: self.read_only + o.read_only,
        }
    }
}
