//! The memory of columns: buffers of one batch, and columns that all batches of a stream share.

use std::sync::{Arc, Weak};

use arrow_array::{ArrayRef, StringArray, new_null_array};
use arrow_buffer::{Buffer, MutableBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Schema};
use topics_env::Pages;
use topics_env::sync::Mutex;

/// Columns with the same value in every row. They are built once; each batch takes a slice of them.
#[derive(Debug)]
pub(super) struct ConstantColumns {
    topic: StringArray,
    nulls: Vec<(DataType, ArrayRef)>,
    rows: usize,
}

impl ConstantColumns {
    /// Columns of `rows` rows; a larger batch builds its own.
    pub fn new(schema: &Schema, topic: &str, rows: usize) -> Self {
        let mut nulls: Vec<(DataType, ArrayRef)> = Vec::new();
        for field in schema.fields() {
            let kind = field.data_type();
            if field.is_nullable() && !nulls.iter().any(|(known, _)| known == kind) {
                nulls.push((kind.clone(), new_null_array(kind, rows)));
            }
        }
        // At least one row, to keep the name.
        Self { topic: named(topic, rows.max(1)), nulls, rows }
    }

    /// The column of the topic's name.
    pub fn topic(&self, rows: usize) -> ArrayRef {
        if rows <= self.rows {
            return Arc::new(self.topic.slice(0, rows));
        }
        let name = self.topic.iter().flatten().next().unwrap_or_default();
        Arc::new(named(name, rows))
    }

    /// A column of nulls of this type.
    pub fn null(&self, kind: &DataType, rows: usize) -> ArrayRef {
        match self.nulls.iter().find(|(known, _)| known == kind) {
            Some((_, array)) if rows <= self.rows => array.slice(0, rows),
            _ => new_null_array(kind, rows),
        }
    }
}

fn named(topic: &str, rows: usize) -> StringArray {
    StringArray::from_iter_values(std::iter::repeat_n(topic, rows))
}

/// The offsets of the columns of a batch in its memory; each is a multiple of 64.
#[derive(Clone, Copy, Debug)]
struct Layout {
    rows: usize,
    times: usize,
    offsets: usize,
    data: usize,
    end: usize,
}

impl Layout {
    fn new(rows: usize, bytes: usize) -> Self {
        let times = (rows * 8).next_multiple_of(64);
        let offsets = times + (rows * 8).next_multiple_of(64);
        let data = offsets + ((rows + 1) * 4).next_multiple_of(64);
        Self { rows, times, offsets, data, end: data + bytes }
    }
}

/// The memory of dropped batches, for later ones.
#[derive(Debug, Default)]
pub(super) struct BufferPool(Mutex<Vec<Pages>>);

impl BufferPool {
    /// Batches of a stream that exist at the same time: one with the consumer, one finished, one in
    /// progress.
    const MOST: usize = 3;

    fn take(&self, len: usize) -> Option<Pages> {
        self.0.lock().pop()?.reused(len)
    }

    fn put(&self, pages: Pages) {
        let mut kept = self.0.lock();
        if kept.len() < Self::MOST {
            kept.push(pages);
        }
    }
}

/// Memory that returns to its pool when its last column is dropped, if the pool still exists.
#[derive(Debug)]
struct PooledPages {
    pages: Option<Pages>,
    pool: Weak<BufferPool>,
}

impl AsRef<[u8]> for PooledPages {
    fn as_ref(&self) -> &[u8] {
        self.pages.as_deref().unwrap_or_default()
    }
}

impl Drop for PooledPages {
    fn drop(&mut self) {
        if let (Some(pool), Some(pages)) = (self.pool.upgrade(), self.pages.take()) {
            pool.put(pages);
        }
    }
}

#[derive(Debug)]
enum Memory {
    Heap(MutableBuffer),
    Mapped(PooledPages),
}

impl Memory {
    /// Memory with zeros, or with the bytes of an earlier batch.
    fn new(len: usize, pool: &Arc<BufferPool>) -> Self {
        if len >= Pages::MIN_LEN
            && let Some(pages) = pool.take(len).or_else(|| Pages::zeroed(len).ok())
        {
            return Self::Mapped(PooledPages { pages: Some(pages), pool: Arc::downgrade(pool) });
        }
        Self::Heap(MutableBuffer::from_len_zeroed(len))
    }

    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(buffer) => buffer.as_slice_mut(),
            Self::Mapped(lent) => lent.pages.as_deref_mut().unwrap_or_default(),
        }
    }

    fn freeze(self) -> Buffer {
        match self {
            Self::Heap(buffer) => buffer.into(),
            Self::Mapped(lent) => bytes::Bytes::from_owner(lent).into(),
        }
    }
}

/// The columns that every row has, in one allocation of exactly their size.
#[derive(Debug)]
pub(super) struct RowBuffers {
    memory: Memory,
    layout: Layout,
}

pub(super) struct FinishedColumns {
    pub seqs: ScalarBuffer<i64>,
    pub times: ScalarBuffer<i64>,
    pub offsets: OffsetBuffer<i32>,
    pub data: Buffer,
}

/// One row of [`RowBuffers`].
pub(super) struct Row<'a> {
    pub seq: i64,
    pub time: i64,
    pub data: &'a [u8],
}

impl RowBuffers {
    /// Capacity for `rows` rows with `bytes` bytes of data in all.
    pub fn new(rows: usize, bytes: usize, pool: &Arc<BufferPool>) -> Self {
        let layout = Layout::new(rows, bytes);
        Self { memory: Memory::new(layout.end, pool), layout }
    }

    /// Fills all rows; rows that `rows` lacks are zero and empty. `None`: the data does not fit.
    pub fn fill<'a>(&mut self, rows: impl Iterator<Item = Row<'a>>) -> Option<()> {
        let at = self.layout;
        let (seqs, rest) = self.memory.bytes().split_at_mut(at.times);
        let (times, rest) = rest.split_at_mut(at.offsets - at.times);
        let (offsets, data) = rest.split_at_mut(at.data - at.offsets);
        let mut seqs = seqs.as_chunks_mut().0.iter_mut();
        let mut times = times.as_chunks_mut().0.iter_mut();
        let mut offsets = offsets.as_chunks_mut().0[..=at.rows].iter_mut();
        *offsets.next()? = [0; 4];
        let mut end = 0;
        let places = seqs.by_ref().zip(times.by_ref()).zip(offsets.by_ref());
        for (row, ((seq, time), offset)) in rows.zip(places) {
            *seq = row.seq.to_ne_bytes();
            *time = row.time.to_ne_bytes();
            let next = end + row.data.len();
            data.get_mut(end..next)?.copy_from_slice(row.data);
            end = next;
            *offset = i32::try_from(end).ok()?.to_ne_bytes();
        }
        let last = i32::try_from(end).ok()?.to_ne_bytes();
        seqs.chain(times).for_each(|place| *place = [0; 8]);
        offsets.for_each(|offset| *offset = last);
        Some(())
    }

    pub fn finish(self) -> FinishedColumns {
        let at = self.layout;
        let all = self.memory.freeze();
        FinishedColumns {
            seqs: ScalarBuffer::new(all.clone(), 0, at.rows),
            times: ScalarBuffer::new(all.slice(at.times), 0, at.rows),
            offsets: OffsetBuffer::new(ScalarBuffer::new(all.slice(at.offsets), 0, at.rows + 1)),
            data: all.slice_with_length(at.data, at.end - at.data),
        }
    }
}
