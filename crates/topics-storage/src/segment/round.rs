//! A round: everything that one checkpoint, seal, rewrite or merge makes durable together.

use std::sync::Arc;

use roaring::RoaringBitmap;

use super::{Segment, SegmentMeta, SegmentWriter, Segments, TopicKey};
use crate::Result;

/// What a checkpoint writes to segments. Dropped before [`Round::sync`] has returned `Ok`, every
/// file in it is suspect: it is made again under a new number at its next use.
#[derive(Debug)]
pub struct Round {
    segs: Arc<Segments>,
}

impl Round {
    /// Begins a round; it must begin before the first byte of it is written.
    pub fn new(segs: &Arc<Segments>) -> Result<Self> {
        Ok(Self { segs: segs.clone() })
    }

    /// Takes a writer over: flushes it and keeps what the sync needs. Returns its meta.
    pub fn add(&mut self, writer: SegmentWriter) -> Result<SegmentMeta> {
        let _ = writer;
        todo!()
    }

    /// Writes the `.del` of a segment under a new file number, which it returns. `dead` holds
    /// offsets from the segment's first seq.
    pub fn write_del(&mut self, segment: &Segment, dead: &RoaringBitmap) -> Result<u64> {
        let _ = (segment, dead);
        todo!()
    }

    /// Makes everything added durable, files and names.
    pub fn sync(self) -> Result<()> {
        todo!()
    }

    /// Copies a sealed segment without its dead records (offsets from the first seq), which
    /// become holes, under a new file number.
    pub fn rewrite(&mut self, segment: &Segment, dead: &RoaringBitmap) -> Result<SegmentMeta> {
        let _ = (segment, dead);
        todo!()
    }

    /// Copies sealed neighbours into one segment, each without its dead records.
    pub fn merge(&mut self, parts: &[(Segment, Arc<RoaringBitmap>)]) -> Result<SegmentMeta> {
        let _ = parts;
        todo!()
    }

    /// The topic's folder, for a caller that writes files of its own there.
    pub fn touch_topic(&mut self, topic: TopicKey) {
        let _ = (topic, &self.segs);
    }
}
