//! Deliberately wrong engines: each flaw changes the effect or answer of one call.

/// The fault of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flaw {
    /// A write omits its last job.
    LosesJob,
    /// Jobs can be claimed before their time.
    ForgetsDelay,
    ForgetsLane,
    ForgetsGroup,
    /// Redriven jobs have lost their options.
    ForgetsOptions,
    /// An ack is answered without effect.
    KeepsAcked,
    /// The delay of a nack is ignored.
    ForgetsBackoff,
    /// A released job counts as delivered.
    CountsReleased,
    /// A claim's leases have the queue's duration instead of their own.
    ForgetsLease,
    /// A stale fence is accepted.
    AcceptsStale,
    /// The last copy of a router is written twice.
    DoublesCopy,
    /// Routers copy records that their filter excludes.
    IgnoresFilter,
    /// A stored cursor is one behind.
    RewindsCursor,
    /// A read omits its first record.
    SkipsRecord,
    /// A watch delivers a record twice.
    ShowsTwice,
    /// One of a transaction's topics gets no rows.
    HalvesTransaction,
    /// A repeated epoch is executed again.
    RepeatsEpoch,
    /// An epoch of another query is answered like a repeat.
    ForgetsQuery,
    /// An aborted stage still exists.
    KeepsStage,
    /// A synced change does not survive a power cut.
    LosesSynced,
}

impl Flaw {
    /// All flaws.
    pub const ALL: [Self; 20] = [
        Self::LosesJob,
        Self::ForgetsDelay,
        Self::ForgetsLane,
        Self::ForgetsGroup,
        Self::ForgetsOptions,
        Self::KeepsAcked,
        Self::ForgetsBackoff,
        Self::CountsReleased,
        Self::ForgetsLease,
        Self::AcceptsStale,
        Self::DoublesCopy,
        Self::IgnoresFilter,
        Self::RewindsCursor,
        Self::SkipsRecord,
        Self::ShowsTwice,
        Self::HalvesTransaction,
        Self::RepeatsEpoch,
        Self::ForgetsQuery,
        Self::KeepsStage,
        Self::LosesSynced,
    ];
}
