//! The buffer that a read fills.

use std::sync::Arc;

use super::IdxEntry;
use super::layout::parse_frame;
use crate::format::frame::Frame;

/// The result of a read at one seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record whose checksum holds.
    Record(Frame<'a>),
    /// A damaged record.
    Corrupt(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub seq: u64,
    pub at: usize,
    /// 0: damaged.
    pub len: u32,
}

/// The records of a read, in a reusable buffer. Holes and deleted records have no entry. All records of
/// a block belong to one topic.
#[derive(Debug, Default)]
pub struct Block {
    pub(super) topic_id: u64,
    /// Never shrinks, which avoids zeroing it at each use; its first `used` bytes are valid.
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

    /// Clears the content, keeps the buffer.
    pub fn clear(&mut self) {
        self.used = 0;
        self.slots.clear();
    }

    /// Records and damaged seqs, ascending within each read.
    pub fn items(&self) -> impl ExactSizeIterator<Item = Item<'_>> {
        items(&self.buf, &self.slots, self.topic_id)
    }

    /// The number of items.
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

    /// Selects from `seqs` in `lo..=hi` the records to read within `budget`; at least one record
    /// unless `any` is set. `entries` starts at `lo`. Returns the seq after the last one examined.
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

    /// Extends the buffer by `len` bytes; returns their offset.
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

/// A block whose buffer is shared: references into it stay valid while the buffer lives.
#[derive(Debug)]
pub struct Frozen {
    topic_id: u64,
    buf: Arc<Vec<u8>>,
    slots: Vec<Slot>,
}

impl Block {
    /// Takes the buffer, truncated to its valid length. The block is empty afterwards and keeps its
    /// other allocations.
    pub fn freeze(&mut self) -> Frozen {
        let mut buf = std::mem::take(&mut self.buf);
        buf.truncate(self.used);
        self.used = 0;
        let slots = std::mem::take(&mut self.slots);
        Frozen { topic_id: self.topic_id, buf: Arc::new(buf), slots }
    }

    /// Sets the buffer to fill, in place of the taken one. Its content is overwritten.
    pub fn refill(&mut self, buf: Vec<u8>) {
        if self.used == 0 && buf.capacity() > self.buf.capacity() {
            self.buf = buf;
        }
    }

    /// Reuses the list of a frozen block.
    pub fn thaw(&mut self, frozen: Frozen) {
        if self.slots.is_empty() {
            self.slots = frozen.slots;
            self.slots.clear();
        }
    }
}

impl Frozen {
    /// The buffer that contains the records of [`Self::items`].
    pub fn buffer(&self) -> &Arc<Vec<u8>> {
        &self.buf
    }

    /// Like [`Block::items`].
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
