//! The buffer that a read fills.

use std::sync::Arc;

use super::IdxEntry;
use super::layout::parse_frame;
use crate::format::frame::Frame;

/// What a read found at a seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record whose checksum holds.
    Record(Frame<'a>),
    /// A record that is there but damaged.
    Corrupt(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub seq: u64,
    pub at: usize,
    /// 0: damaged.
    pub len: u32,
}

/// What a read filled: a buffer to be used again, and what lies in it. Holes and dead records
/// have no entry. All records of a block are of one topic.
#[derive(Debug, Default)]
pub struct Block {
    pub(super) topic_id: u64,
    /// Grows only, so that it is not zeroed at each use; `used` bytes of it count.
    pub(super) buf: Vec<u8>,
    pub(super) used: usize,
    pub(super) slots: Vec<Slot>,
    pub(super) scratch: Vec<u8>,
    pub(super) entries: Vec<IdxEntry>,
    pub(super) picks: Vec<(u64, IdxEntry)>,
}

impl Block {
    /// An empty block.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the content, keeps the buffer.
    pub fn clear(&mut self) {
        self.used = 0;
        self.slots.clear();
    }

    /// Records and damaged seqs, ascending within each read.
    pub fn items(&self) -> impl ExactSizeIterator<Item = Item<'_>> {
        items(&self.buf, &self.slots, self.topic_id)
    }

    /// How many items it holds.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The bytes that it keeps allocated.
    pub fn capacity(&self) -> usize {
        self.buf.capacity() + self.scratch.capacity()
    }

    /// Chooses, among `seqs` in `lo..=hi`, what to read: until `budget`, at least one record
    /// unless there is `any`. `entries` begins at `lo`. Returns the seq after the last one looked
    /// at.
    pub(super) fn pick(
        &mut self,
        lo: u64,
        hi: u64,
        seqs: impl Iterator<Item = u64>,
        mut budget: usize,
        any: bool,
    ) -> u64 {
        self.picks.clear();
        for seq in seqs {
            let e = self.entries[(seq - lo) as usize];
            if e.is_hole() {
                continue;
            }
            let len = e.len as usize;
            if len > budget && (any || !self.picks.is_empty()) {
                return seq;
            }
            budget = budget.saturating_sub(len);
            self.picks.push((seq, e));
        }
        hi + 1
    }

    /// Room for `len` more bytes; returns where they begin.
    pub(super) fn extend_zeroed(&mut self, len: usize) -> usize {
        let at = self.used;
        if self.buf.len() < at + len {
            self.buf.resize(at + len, 0);
        }
        self.used += len;
        at
    }

    pub(super) fn corrupt(&mut self, seq: u64) {
        self.slots.push(Slot { seq, at: 0, len: 0 });
    }
}

/// A block whose buffer is shared: what lies in it may be referred to for as long as the buffer
/// is kept.
#[derive(Debug)]
pub struct Frozen {
    topic_id: u64,
    buf: Arc<Vec<u8>>,
    slots: Vec<Slot>,
}

impl Block {
    /// Gives the buffer away, cut to what was read; the block is empty then and keeps the rest of
    /// what it allocated.
    pub fn freeze(&mut self) -> Frozen {
        let mut buf = std::mem::take(&mut self.buf);
        buf.truncate(self.used);
        self.used = 0;
        let slots = std::mem::take(&mut self.slots);
        Frozen { topic_id: self.topic_id, buf: Arc::new(buf), slots }
    }

    /// Takes a buffer to fill, in place of the one that was given away. What lies in it is
    /// written over.
    pub fn refill(&mut self, buf: Vec<u8>) {
        if self.used == 0 && buf.capacity() > self.buf.capacity() {
            self.buf = buf;
        }
    }

    /// Takes back what the block gave away beside the buffer.
    pub fn thaw(&mut self, frozen: Frozen) {
        if self.slots.is_empty() {
            self.slots = frozen.slots;
            self.slots.clear();
        }
    }
}

impl Frozen {
    /// The buffer that the records of [`Self::items`] lie in.
    pub fn buffer(&self) -> &Arc<Vec<u8>> {
        &self.buf
    }

    /// As [`Block::items`].
    pub fn items(&self) -> impl ExactSizeIterator<Item = Item<'_>> {
        items(&self.buf, &self.slots, self.topic_id)
    }
}

fn items<'a>(
    buf: &'a [u8],
    slots: &'a [Slot],
    topic_id: u64,
) -> impl ExactSizeIterator<Item = Item<'a>> {
    slots.iter().map(move |slot| {
        let frame = &buf[slot.at..slot.at + slot.len as usize];
        match parse_frame(frame, topic_id) {
            Some(frame) => Item::Record(frame),
            None => Item::Corrupt(slot.seq),
        }
    })
}
