//! Engines that are wrong on purpose: each flaw changes what one call does or answers.

/// What is wrong with the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flaw {
    /// A write leaves its last job out.
    LosesJob,
    /// Jobs can be claimed before their time.
    ForgetsDelay,
    ForgetsLane,
    ForgetsGroup,
    /// What comes back from the dead letters has lost its options.
    ForgetsOptions,
    /// An ack is answered and not done.
    KeepsAcked,
    /// A nack's delay does not count.
    ForgetsBackoff,
    /// A claim's leases last as long as the queue's.
    ForgetsLease,
    /// A fence of before still fits.
    AcceptsStale,
    /// The last copy that a router makes is made twice.
    DoublesCopy,
    /// Routers copy what their filter keeps out.
    IgnoresFilter,
    /// A stored cursor is one behind.
    RewindsCursor,
    /// A read leaves its first record out.
    SkipsRecord,
    /// A watch shows a record twice.
    ShowsTwice,
    /// One of a transaction's topics gets nothing.
    HalvesTransaction,
    /// A repeated epoch is carried out again.
    RepeatsEpoch,
    /// An aborted stage is still there.
    KeepsStage,
    /// Something that was synced does not survive a power cut.
    LosesSynced,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::LosesJob,
        Self::ForgetsDelay,
        Self::ForgetsLane,
        Self::ForgetsGroup,
        Self::ForgetsOptions,
        Self::KeepsAcked,
        Self::ForgetsBackoff,
        Self::ForgetsLease,
        Self::AcceptsStale,
        Self::DoublesCopy,
        Self::IgnoresFilter,
        Self::RewindsCursor,
        Self::SkipsRecord,
        Self::ShowsTwice,
        Self::HalvesTransaction,
        Self::RepeatsEpoch,
        Self::KeepsStage,
        Self::LosesSynced,
    ];
}
