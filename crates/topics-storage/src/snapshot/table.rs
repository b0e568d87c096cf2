//! The encoded topics of a snapshot: found by name or id, decoded one at a time.

use std::ops::Range;

use topics_env::sync::OnceLock;

use super::{GapSnap, IdempotencySnap, ReplayPos, Section, SnapshotBody, TopicSnap};
use crate::dir::le_u64;
use crate::format::codec::{BorrowDecode, borrow_fixed, decode_fixed};
use crate::segment::SegmentMeta;
use crate::{Result, StorageError};

/// Encoded lengths of the list elements of a topic.
const GAP: usize = 17;
const SEGMENT: usize = 92;
const IDEMPOTENCY: usize = 48;

/// A snapshot with a valid checksum.
#[derive(Debug)]
pub struct Snapshot {
    /// All fields except the topics.
    pub body: SnapshotBody,
    pub topics: Table,
    pub segments: SegmentBytes,
}

impl Snapshot {
    /// Decodes all topics.
    pub fn whole(mut self) -> Result<SnapshotBody> {
        let all = 0..self.topics.len();
        self.body.topics = all.map(|i| self.topics.topic(i)).collect::<Result<_>>()?;
        Ok(self.body)
    }
}

/// A topic's entry, decoded in place: it borrows its text and bytes.
#[derive(Clone, Debug, PartialEq, Eq, BorrowDecode)]
pub struct TopicHeader<'a> {
    pub topic_id: u64,
    pub epoch: u64,
    pub name: &'a str,
    pub config: &'a [u8],
    /// The position up to which the snapshot covers its frames.
    pub replay: ReplayPos,
    /// The last assigned seq.
    pub head: u64,
    /// The last reserved seq.
    pub reserved_to: u64,
    /// The first live record.
    pub earliest_seq: u64,
    /// The highest involuntarily lost seq at the front + 1.
    pub evict_floor: u64,
    /// The reason of that loss.
    pub evict_reason: u8,
    /// No record below this seq is live.
    pub delete_below: u64,
    /// Involuntary losses above `evict_floor`.
    pub gaps: Vec<GapSnap>,
    /// The lower limit of the next record's commit time.
    pub last_ts: u64,
    /// The time of the last write.
    pub last_write_ts: u64,
    /// Live records.
    pub live_count: u64,
    /// Their payload bytes.
    pub live_bytes: u64,
    /// Every segment, ascending.
    pub segments: Vec<SegmentMeta>,
    /// Unexpired idempotency keys.
    pub idempotency: Vec<IdempotencySnap>,
    /// Consumers, queue state, marks of transaction parts.
    pub sections: Vec<Section>,
}

/// The encoded topics of a snapshot.
#[derive(Debug, Default)]
pub struct Table {
    /// The file name for errors.
    file: String,
    /// The whole file, or its body.
    bytes: Vec<u8>,
    /// The start of each entry, and the end of the last one.
    at: Vec<usize>,
    /// The entries in the order of their ids.
    by_id: OnceLock<Vec<u32>>,
    segments: SegmentBytes,
}

impl Table {
    /// Parses the entries that start at `at`.
    pub(super) fn read(
        file: &str,
        bytes: Vec<u8>,
        mut at: usize,
        count: u64,
    ) -> std::result::Result<Self, String> {
        let mut starts = Vec::new();
        let least = (bytes.len() as u64).saturating_sub(at as u64) / MIN as u64;
        if count > least {
            return Err(format!("{count} topics are named, there is room for {least}"));
        }
        starts.reserve_exact(count as usize + 1);
        starts.push(at);
        let mut segments = SegmentBytes::default();
        for i in 0..count {
            let mut scanner = EntryScanner { bytes: &bytes, at, segments };
            scanner.topic().ok_or_else(|| format!("topic {i} ends beyond the file"))?;
            (at, segments) = (scanner.at, scanner.segments);
            starts.push(at);
        }
        Ok(Self { file: file.to_owned(), bytes, at: starts, by_id: OnceLock::new(), segments })
    }

    /// Bytes of the segments.
    pub(super) fn segments(&self) -> SegmentBytes {
        self.segments
    }

    /// The bytes after the entries.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.at.last().copied().unwrap_or(0)..]
    }

    /// The bytes of the snapshot.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The number of topics.
    pub fn len(&self) -> usize {
        self.at.len().saturating_sub(1)
    }

    /// Whether there are no topics.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An encoded entry. `i` must be below [`Self::len`].
    pub fn entry(&self, i: usize) -> &[u8] {
        &self.bytes[self.at[i]..self.at[i + 1]]
    }

    /// The id of a topic.
    pub fn id(&self, i: usize) -> u64 {
        le_u64(self.entry(i), 0)
    }

    /// The name of a topic, in bytes.
    pub fn name(&self, i: usize) -> &[u8] {
        let entry = self.entry(i);
        &entry[NAME..NAME + le_u64(entry, NAME - 8) as usize]
    }

    /// An entry, decoded in place.
    pub fn topic_header(&self, i: usize) -> Result<TopicHeader<'_>> {
        let entry = self.entry(i);
        self.whole(i, entry.len(), borrow_fixed(entry))
    }

    /// An entry, decoded.
    pub fn topic(&self, i: usize) -> Result<TopicSnap> {
        let entry = self.entry(i);
        self.whole(i, entry.len(), decode_fixed(entry))
    }

    fn whole<T>(
        &self,
        i: usize,
        len: usize,
        found: std::result::Result<(T, usize), String>,
    ) -> Result<T> {
        let found = found.and_then(|(topic, used)| match used == len {
            true => Ok(topic),
            false => Err(format!("topic {i} has {} bytes too many", len - used)),
        });
        found.map_err(|detail| StorageError::Corrupt {
            file: self.file.clone(),
            offset: self.at[i] as u64,
            detail,
        })
    }

    /// Whether the names ascend, which a search by name requires.
    pub fn is_sorted(&self) -> bool {
        (1..self.len()).all(|i| self.name(i - 1) < self.name(i))
    }

    /// The first topic whose name is not below `name`.
    pub fn seek(&self, name: &[u8]) -> usize {
        let Range { mut start, mut end } = 0..self.len();
        while start < end {
            let mid = start + (end - start) / 2;
            if self.name(mid) < name { start = mid + 1 } else { end = mid }
        }
        start
    }

    /// The topic of this name.
    pub fn named(&self, name: &str) -> Option<usize> {
        let i = self.seek(name.as_bytes());
        (i < self.len() && self.name(i) == name.as_bytes()).then_some(i)
    }

    /// The topic of this id.
    pub fn by_id(&self, id: u64) -> Option<usize> {
        let by_id = self.by_id.get_or_init(|| {
            let mut all: Vec<u32> = (0..u32::try_from(self.len()).unwrap_or(u32::MAX)).collect();
            all.sort_unstable_by_key(|i| self.id(*i as usize));
            all
        });
        let at = by_id.binary_search_by_key(&id, |i| self.id(*i as usize)).ok()?;
        by_id.get(at).map(|i| *i as usize)
    }
}

/// The offset of the name in an entry, after id, epoch and length.
const NAME: usize = 24;
/// The shortest entry: numbers and six empty lists.
const MIN: usize = NAME + 8 + 57 + 8 + 32 + 8 + 8 + 8;

/// The bytes of a record in an `.idx`.
const IDX_ENTRY: u64 = 20;

/// Bytes of segments on the local disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentBytes {
    pub largest: u64,
    /// Of all.
    pub total: u64,
}

impl SegmentBytes {
    /// Adds those of an entry.
    pub(super) fn add(&mut self, entry: &[u8]) {
        let mut scanner = EntryScanner { bytes: entry, at: 0, segments: *self };
        if scanner.topic().is_some() {
            *self = scanner.segments;
        }
    }
}

struct EntryScanner<'a> {
    bytes: &'a [u8],
    at: usize,
    segments: SegmentBytes,
}

impl EntryScanner<'_> {
    fn pass(&mut self, n: usize) -> Option<()> {
        self.at = self.at.checked_add(n).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    fn number(&mut self) -> Option<usize> {
        let at = self.at;
        self.pass(8)?;
        usize::try_from(le_u64(self.bytes, at)).ok()
    }

    fn list(&mut self, element: usize) -> Option<()> {
        let n = self.number()?;
        self.pass(n.checked_mul(element)?)
    }

    fn topic(&mut self) -> Option<()> {
        self.pass(16)?;
        self.list(1)?;
        self.list(1)?;
        self.pass(57)?;
        self.list(GAP)?;
        self.pass(32)?;
        let segments = self.at + 8;
        self.list(SEGMENT)?;
        for meta in self.bytes.get(segments..self.at)?.chunks_exact(SEGMENT) {
            let span = (le_u64(meta, 8).wrapping_add(1)).saturating_sub(le_u64(meta, 0));
            let bytes = le_u64(meta, 32).saturating_add(span.saturating_mul(IDX_ENTRY));
            if meta[89] == 0 {
                let SegmentBytes { largest, total } = &mut self.segments;
                *largest = bytes.max(*largest);
                *total = total.saturating_add(bytes);
            }
        }
        self.list(IDEMPOTENCY)?;
        for _ in 0..self.number()? {
            self.pass(4)?;
            self.list(1)?;
        }
        Some(())
    }
}
