//! Batches, their tickets, and the commit callback that gets the outcome.

use std::sync::Arc;

use crate::StorageError;
use crate::format::record::Group;

/// When a batch counts as committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// In the queue.
    Staged,
    /// Its group's write has returned.
    Written,
    /// A sync covers it.
    Synced,
}

/// A file within this process; keys of one shard ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey(pub u32);

/// A staged batch: its place in the shard's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub shard: u32,
    /// Ordinal in the shard, from 1.
    pub n: u64,
}

/// Receives the outcome of a batch: exactly one of the two calls, once, in queue order within a
/// level. If a batch fails, every later batch of its topic fails too.
pub trait Commit: Send + Sync {
    /// The batch is committed at its level; its frames are finished and lie where `placed` says.
    fn apply(&self, placed: &PlacedBatch<'_>);
    /// The batch was not logged, or nothing is known about it any more.
    fn failed(&self, error: &StorageError);
}

/// Bytes that [`Batch::records`] may leave free for the Group frame.
pub const GROUP_HEADROOM: usize = Group::FRAME_LEN;

/// A batch for the log. The frames are encoded, not sealed.
pub struct Batch {
    /// Control frames before the records.
    pub head: Vec<u8>,
    /// Append frames; topic, seq and ts are set when the group is written.
    pub records: Vec<u8>,
    /// Bytes of `records` before its first frame: [`GROUP_HEADROOM`], or 0. With them a batch that is a
    /// group of its own is written from where it was encoded.
    pub headroom: usize,
    /// Control frames after the records.
    pub tail: Vec<u8>,
    /// Seq of the first Append frame.
    pub first_seq: u64,
    /// Time of every frame that has none.
    pub ts: u64,
    /// Topic of all frames. When a batch fails, later ones of the same topic fail with it. 0: no
    /// topic; the batch fails alone.
    pub topic_id: u64,
    /// The level at which it is applied: after its write, or after a sync covers it.
    pub level: Level,
    /// Is accepted while the disk is full, because it frees space.
    pub frees_space: bool,
    /// Receives the outcome.
    pub commit: Arc<dyn Commit>,
}

impl Batch {
    /// Control frames that belong to no topic; they do not free space.
    #[must_use]
    pub fn control(head: Vec<u8>, ts: u64, level: Level, commit: Arc<dyn Commit>) -> Self {
        Self {
            head,
            records: Vec::new(),
            headroom: 0,
            tail: Vec::new(),
            first_seq: 0,
            ts,
            topic_id: 0,
            level,
            frees_space: false,
            commit,
        }
    }

    /// Bytes of all frames.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.head.len() + self.frames().len() + self.tail.len()
    }

    /// The Append frames.
    pub(super) fn frames(&self) -> &[u8] {
        self.records.get(self.headroom..).unwrap_or(&[])
    }
}

/// Where finished frames lie.
#[derive(Clone, Copy, Debug)]
pub struct PlacedBatch<'a> {
    pub shard: usize,
    pub file: FileKey,
    /// Offset of the first frame.
    pub offset: u32,
    /// Lsn of the first frame.
    pub first_lsn: u64,
    pub file_first_lsn: u64,
    /// The frames, contiguous, sealed.
    pub bytes: &'a [u8],
}
