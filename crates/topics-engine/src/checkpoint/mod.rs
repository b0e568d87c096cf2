//! Checkpoints: what leaves the log for segments, the snapshot, and giving disk space back.

pub(crate) mod full_disk;
pub(crate) mod reclaim;
pub(crate) mod round;
pub(crate) mod snapshot;
