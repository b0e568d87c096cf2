//! Records that were read, and the buffers that hold them.

use topics_storage::segment::Block;

use super::api::Tombstone;

/// One record of a [`ReadBatch`], borrowed from its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Sequence number.
    pub seq: u64,
    /// Commit time, ms.
    pub ts: u64,
    /// Empty when absent.
    pub node: &'a [u8],
    /// Empty when absent.
    pub tag: &'a [u8],
    /// JSON text, empty when absent.
    pub meta: &'a [u8],
    /// The payload.
    pub data: &'a [u8],
    /// Whether the payload is raw bytes.
    pub binary: bool,
}

/// The position of one record in the buffers of a [`ReadBatch`], with the offset and length of each of
/// its fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordSlot {
    pub seq: u64,
    pub ts: u64,
    pub chunk: u32,
    pub node: u32,
    pub tag: u32,
    pub meta: u32,
    pub data: u32,
    pub attrs: u32,
    pub attrs_len: u16,
    pub node_len: u16,
    pub tag_len: u16,
    pub meta_len: u32,
    pub data_len: u32,
    pub binary: bool,
}

/// The records that a read returned. Owns its bytes: valid after close, deletion and eviction.
#[derive(Clone, Debug, Default)]
pub struct ReadBatch {
    pub(crate) chunks: Vec<std::sync::Arc<Vec<u8>>>,
    pub(crate) slots: Vec<RecordSlot>,
    /// The topic's id.
    pub topic_id: u64,
    /// The gap at the cursor, before the records.
    pub tombstone: Option<Tombstone>,
    /// The cursor of the next read.
    pub next_from_seq: u64,
    /// Last assigned seq.
    pub head_seq: u64,
    /// First live seq.
    pub earliest_seq: u64,
    /// Whether `next_from_seq` is the head.
    pub caught_up: bool,
    /// The records after `next_from_seq` up to `head_seq` that are there, whether or not they match.
    pub lag: u64,
    /// Milliseconds since the first of them was committed, 0 without one.
    pub lag_ms: u64,
    /// Records that were scanned, including skipped ones.
    pub records_scanned: u64,
    /// Reads of cold segments that it took.
    pub cold_segments: u32,
}

impl ReadBatch {
    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the batch has no record; the cursor may have moved all the same.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The bytes of all payloads together.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.slots.iter().map(|s| s.data_len as usize).sum()
    }

    /// The attribute list of the `i`-th record, encoded.
    pub(crate) fn attrs(&self, i: usize) -> &[u8] {
        let found = self.slots.get(i).and_then(|s| {
            let chunk = self.chunks.get(s.chunk as usize)?;
            chunk.get(s.attrs as usize..s.attrs as usize + usize::from(s.attrs_len))
        });
        found.unwrap_or_default()
    }

    /// The `i`-th record.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<RecordView<'_>> {
        self.view(self.slots.get(i)?)
    }

    #[inline]
    fn view(&self, s: &RecordSlot) -> Option<RecordView<'_>> {
        let chunk = self.chunks.get(s.chunk as usize)?;
        let part = |at: u32, len: usize| match len {
            0 => &[],
            _ => chunk.get(at as usize..at as usize + len).unwrap_or(&[]),
        };
        Some(RecordView {
            seq: s.seq,
            ts: s.ts,
            node: part(s.node, s.node_len as usize),
            tag: part(s.tag, s.tag_len as usize),
            meta: part(s.meta, s.meta_len as usize),
            data: part(s.data, s.data_len as usize),
            binary: s.binary,
        })
    }

    /// The records in seq order.
    pub fn iter(&self) -> impl Iterator<Item = RecordView<'_>> {
        self.slots.iter().filter_map(|s| self.view(s))
    }

    /// The buffer with the payload of record `i`, and the payload's range in it, for views that outlive
    /// the batch.
    #[must_use]
    pub fn payload(&self, i: usize) -> Option<(std::sync::Arc<Vec<u8>>, std::ops::Range<usize>)> {
        let s = self.slots.get(i)?;
        let chunk = self.chunks.get(s.chunk as usize)?;
        Some((chunk.clone(), s.data as usize..(s.data + s.data_len) as usize))
    }
}

/// Buffers of earlier reads, for a caller that reads page after page: used memory is much cheaper than
/// new memory.
#[derive(Debug, Default)]
pub struct ReadBuffers {
    pub(crate) block: Block,
    pub(crate) slots: Vec<RecordSlot>,
    pub(crate) chunks: Vec<Vec<u8>>,
}

impl ReadBuffers {
    /// Takes the buffers of a batch, except those that a caller still shares.
    pub fn recycle(&mut self, batch: ReadBatch) {
        self.slots = batch.slots;
        self.slots.clear();
        self.chunks.clear();
        self.chunks.extend(batch.chunks.into_iter().filter_map(std::sync::Arc::into_inner));
    }
}
