//! What a topic's checkpoints have reached.

use topics_storage::snapshot::ReplayPos;

/// Changes since a checkpoint planned its copy of the resident records.
#[derive(Debug, Default)]
pub(crate) struct SincePlan {
    /// Lsn of the first delete.
    pub first_delete: Option<u64>,
}

/// The positions of the log that the state and its snapshot reflect.
#[derive(Debug, Default)]
pub(crate) struct CheckpointMarks {
    /// Raised when segments are installed or replaced.
    pub structure: u64,
    pub since_plan: Option<Box<SincePlan>>,
    /// The position up to which the snapshot reflects the topic's frames; recovery skips these.
    pub reflected: ReplayPos,
    /// Position of the last frame applied to this topic. Its lsn is valid in its layout only, because
    /// another layout may put the topic on another shard.
    pub applied: ReplayPos,
}

impl CheckpointMarks {
    /// The lsn of this layout up to which the state reflects the topic's frames. 0 if the last frame is
    /// of an earlier layout: its records are all in segments before the first write of the next one.
    pub(crate) fn applied_in(&self, layout: u64) -> u64 {
        if self.applied.layout == layout { self.applied.lsn } else { 0 }
    }
}
