//! Segments of a topic, and their dead records.

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_storage::segment::SegmentMeta;

/// The dead records of a segment, deleted or holes, as offsets from its first seq.
#[derive(Clone, Debug)]
pub(crate) enum Dead {
    /// Not loaded.
    Unknown,
    /// No record is dead.
    None,
    /// These records are dead.
    Some(Arc<RoaringBitmap>),
}

impl Dead {
    pub(crate) fn known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    pub(crate) fn contains(&self, offset: u32) -> bool {
        matches!(self, Self::Some(b) if b.contains(offset))
    }

    /// Adds dead records; `Unknown` stays `Unknown`.
    pub(crate) fn with(self, more: impl IntoIterator<Item = u32>) -> Self {
        let mut more = more.into_iter().peekable();
        if more.peek().is_none() {
            return self;
        }
        let mut map = match self {
            Self::Unknown => return Self::Unknown,
            Self::None => Arc::default(),
            Self::Some(map) => map,
        };
        Arc::make_mut(&mut map).extend(more);
        Self::Some(map)
    }
}

/// Deletes of a segment that are in no written `.del`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dirty {
    /// The lsn of the first of them.
    pub first_lsn: u64,
    /// Offset → payload bytes.
    pub sizes: BTreeMap<u32, u32>,
}

/// A segment of the topic.
#[derive(Clone, Debug)]
pub(crate) struct Seg {
    /// The segment as the snapshot describes it.
    pub meta: SegmentMeta,
    /// Records at or above the floor that are not dead.
    pub live_count: u64,
    /// Their payload bytes.
    pub live_bytes: u64,
    /// The dead records.
    pub dead: Dead,
    /// The dead records that only the WAL has.
    pub dirty: Option<Box<Dirty>>,
}

impl Seg {
    /// A segment that a snapshot or a checkpoint names.
    pub(crate) fn named(meta: SegmentMeta) -> Self {
        let whole = meta.live_count == meta.span() && meta.del_no == 0;
        Self {
            live_count: meta.live_count,
            live_bytes: meta.live_bytes,
            dead: if whole { Dead::None } else { Dead::Unknown },
            dirty: None,
            meta,
        }
    }

    /// The offset of a seq that the segment covers.
    pub(crate) fn offset(&self, seq: u64) -> u32 {
        u32::try_from(seq - self.meta.first_seq).unwrap_or(u32::MAX)
    }

    /// Whether dead records take more than half of its `.data`.
    pub(crate) fn half_dead(&self) -> bool {
        self.meta.sealed && self.dead_part(2)
    }

    /// Whether dead records take more than one `nth` of its `.data`.
    pub(crate) fn dead_part(&self, nth: u64) -> bool {
        // A live record takes its payload, 37 bytes, and at most 6 more.
        let live = 64 + self.live_bytes + 43 * self.live_count;
        !self.meta.cold && (nth - 1) * self.meta.data_len > nth * live
    }

    /// Whether a seq of the segment is dead; false if the dead records are not loaded.
    pub(crate) fn is_dead(&self, seq: u64) -> bool {
        self.dead.contains(self.offset(seq))
    }

    /// The first live seq from `seq` on; `Err`: the dead records are not loaded.
    pub(crate) fn next_live(&self, seq: u64) -> Result<Option<u64>, Unknown> {
        let from = seq.max(self.meta.first_seq);
        if from > self.meta.last_seq || self.live_count == 0 {
            return Ok(None);
        }
        match &self.dead {
            Dead::Unknown => Err(Unknown(self.meta.file_no)),
            Dead::None => Ok(Some(from)),
            Dead::Some(dead) => {
                let mut at = self.offset(from);
                for hit in dead.range(at..) {
                    if hit != at {
                        break;
                    }
                    at += 1;
                }
                let seq = self.meta.first_seq + u64::from(at);
                Ok((seq <= self.meta.last_seq).then_some(seq))
            }
        }
    }

    /// The number of live records in `from..=to`; `from` is at or above the floor.
    pub(crate) fn live_in(&self, from: u64, to: u64) -> Result<u64, Unknown> {
        let (from, to) = (from.max(self.meta.first_seq), to.min(self.meta.last_seq));
        let span = (to + 1).saturating_sub(from);
        if span == self.meta.span() || span == 0 || self.live_count == 0 {
            return Ok(span.min(self.live_count));
        }
        match &self.dead {
            Dead::Unknown => Err(Unknown(self.meta.file_no)),
            Dead::None => Ok(span),
            Dead::Some(dead) => {
                Ok(span - dead.range_cardinality(self.offset(from)..=self.offset(to)))
            }
        }
    }

    /// The last live seq up to `seq`.
    pub(crate) fn prev_live(&self, seq: u64, floor: u64) -> Result<Option<u64>, Unknown> {
        let mut at = seq.min(self.meta.last_seq);
        let low = floor.max(self.meta.first_seq);
        if at < low || self.live_count == 0 {
            return Ok(None);
        }
        match &self.dead {
            Dead::Unknown => Err(Unknown(self.meta.file_no)),
            Dead::None => Ok(Some(at)),
            Dead::Some(dead) => {
                while dead.contains(self.offset(at)) {
                    if at == low {
                        return Ok(None);
                    }
                    at -= 1;
                }
                Ok(Some(at))
            }
        }
    }
}

/// A segment whose dead records must be loaded first; by file number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unknown(pub u64);
