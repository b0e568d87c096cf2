//! Reading one segment.

use std::sync::Arc;

use roaring::RoaringBitmap;

use super::{IdxEntry, SegmentMeta, TopicKey};
use crate::Result;
use crate::format::frame::Frame;

/// What a tag must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagMatch<'a> {
    /// Exactly this.
    Eq(&'a [u8]),
    /// Anything that begins with this.
    Prefix(&'a [u8]),
}

/// What a read found at a seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record whose checksum holds.
    Record(Frame<'a>),
    /// A record that is there but damaged.
    Corrupt(u64),
}

/// What a read filled: a buffer to be used again, and what lies in it. Holes and dead records
/// have no entry.
#[derive(Debug, Default)]
pub struct Block {
    buf: Vec<u8>,
}

impl Block {
    /// An empty block.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the content, keeps the buffer.
    pub fn clear(&mut self) {
        todo!()
    }

    /// Records and damaged seqs, ascending.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        let _ = &self.buf;
        std::iter::empty()
    }

    /// How many items it holds.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A reader of one segment. Cheap to make and to clone; files are opened on first use.
#[derive(Clone, Debug)]
pub struct Segment {
    meta: SegmentMeta,
}

impl Segment {
    /// What it was made from.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    /// Its topic.
    pub fn topic(&self) -> TopicKey {
        todo!()
    }

    /// The index entries of `from..=to` (clipped to the segment), the first for `from`.
    pub fn entries(&self, from: u64, to: u64) -> Result<Vec<IdxEntry>> {
        let _ = (from, to);
        todo!()
    }

    /// Appends the records of `from..=to` to `out`, without holes and without those for which
    /// `dead` says true (the caller decides about deletes), until `max_bytes` of frames; at least
    /// one if there is any. Returns the seq after the last one looked at: `to + 1` (clipped to
    /// the segment) when the range is done. An I/O error is an error; a damaged record is an item.
    pub fn read(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
        dead: &dyn Fn(u64) -> bool,
        out: &mut Block,
    ) -> Result<u64> {
        let _ = (from, to, max_bytes, dead, out);
        todo!()
    }

    /// Appends the records of these ascending seqs to `out`, until `max_bytes`; returns how many
    /// of the seqs were looked at. Neighbours share a read.
    pub fn read_seqs(&self, seqs: &[u64], max_bytes: usize, out: &mut Block) -> Result<usize> {
        let _ = (seqs, max_bytes, out);
        todo!()
    }

    /// The first seq whose commit time is at least `ts`; `last_seq + 1` when there is none.
    pub fn seek_ts(&self, ts: u64) -> Result<u64> {
        let _ = ts;
        todo!()
    }

    /// The ascending seqs, at most `upto`, of records whose tag matches, deleted ones included.
    pub fn tag_seqs(&self, tag: TagMatch<'_>, upto: u64) -> Result<Vec<u64>> {
        let _ = (tag, upto);
        todo!()
    }

    /// The deleted records by offset from `first_seq`, from its `.del`.
    pub fn deleted(&self) -> Result<Arc<RoaringBitmap>> {
        todo!()
    }

    /// The records with attributes, deleted ones included; empty when it has none.
    pub fn attrs(&self) -> Result<Arc<super::AttrsTable>> {
        todo!()
    }

    /// Copies `.data` to the cold tier, durably, and says what the snapshot must then name. The
    /// hot copy goes by the trimming rule.
    pub fn relocate(&self) -> Result<SegmentMeta> {
        todo!()
    }
}
