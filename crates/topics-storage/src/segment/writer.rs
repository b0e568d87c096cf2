//! Writing the active segment.

use std::sync::Arc;

use super::{SegmentMeta, Segments, TopicKey};
use crate::Result;
use crate::format::frame::Frame;

/// Appends to a topic's active segment. Nothing that it writes counts until the round that it is
/// added to was synced; dropped before that, the file is suspect and made again at the next use.
#[derive(Debug)]
pub struct SegmentWriter {
    meta: SegmentMeta,
}

impl SegmentWriter {
    /// A new segment that begins at `first_seq`.
    pub fn create(segs: &Arc<Segments>, topic: TopicKey, first_seq: u64) -> Result<Self> {
        let _ = (segs, topic, first_seq);
        todo!()
    }

    /// Goes on in an active segment at its named length: cuts what lies beyond it; a file with
    /// more than one name is copied under a new number; a suspect one is made again under a new
    /// number ([`Self::remake`]). `meta().file_no` tells.
    pub fn reopen(segs: &Arc<Segments>, topic: TopicKey, meta: &SegmentMeta) -> Result<Self> {
        let _ = (segs, topic, meta);
        todo!()
    }

    /// Makes an active segment's files again under a new number from its named length.
    pub fn remake(segs: &Arc<Segments>, topic: TopicKey, meta: &SegmentMeta) -> Result<Self> {
        let _ = (segs, topic, meta);
        todo!()
    }

    /// The seq that the next [`Self::append`] or [`Self::hole`] writes.
    pub fn next_seq(&self) -> u64 {
        self.meta.last_seq + 1
    }

    /// What the snapshot will say about it.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    /// Appends a record whose frame was verified; `inner` is the inner hash of that frame.
    pub fn append(&mut self, frame: &Frame<'_>, inner: u64) -> Result<()> {
        let _ = (frame, inner);
        todo!()
    }

    /// Writes the next seq as a hole.
    pub fn hole(&mut self) -> Result<()> {
        todo!()
    }

    /// Whether the settings say that it is full.
    pub fn should_seal(&self) -> bool {
        todo!()
    }

    /// Ends the segment: footer of `.idx`, `.tags`, `.attrs`. Nothing may be appended after it.
    pub fn seal(&mut self) -> Result<()> {
        todo!()
    }
}
