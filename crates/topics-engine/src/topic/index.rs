//! Where a topic's records lie: segments, then runs of resident entries, in seq order.
//!
//! A record in a segment costs no heap. A record that is only in the WAL (or, for classes that
//! are not written at once, in memory) has a resident [`Entry`]; a loss leaves a hole between two
//! runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_storage::format::frame::{FRAME_HEADER, FRAME_TRAILER, Flags};
use topics_storage::segment::SegmentMeta;
use topics_storage::wal::FileKey;

use crate::quota::Charge;

/// A resident record, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Commit time.
    pub ts: u64,
    /// Where its frame begins in the run's file or buffer.
    pub off: u32,
    /// Length of the whole frame.
    pub len: u32,
    /// Its lsn, from the run's first.
    pub lsn: u32,
    /// The frame's flags; [`Self::DEAD`] is ours.
    flags: u8,
}

impl Entry {
    const DEAD: u8 = 128;

    pub(crate) fn new(ts: u64, off: u32, len: u32, lsn: u32, flags: Flags) -> Self {
        Self { ts, off, len, lsn, flags: flags.0 & !Self::DEAD }
    }

    pub(crate) fn dead(&self) -> bool {
        self.flags & Self::DEAD != 0
    }

    /// The bytes that count: data, meta, tag, node and attributes.
    pub(crate) fn payload(&self) -> u64 {
        payload_of(self.len, self.flags)
    }
}

/// The payload bytes of a WAL frame of this length.
pub(crate) fn payload_of(len: u32, flags: u8) -> u64 {
    let prefixes = if flags & Flags::HAS_ATTRS == 0 { 0 } else { 2 }
        + if flags & Flags::HAS_META == 0 { 0 } else { 4 };
    u64::from(len).saturating_sub((FRAME_HEADER + FRAME_TRAILER) as u64 + prefixes)
}

/// What holds the bytes of a run.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A WAL file.
    File {
        /// Its shard.
        shard: u32,
        /// Its key in the shard.
        file: FileKey,
    },
    /// Memory: the encoded frames of one write, with inner hashes. `ephemeral` records pay for
    /// it; those of class `memory` move to a file when they are written.
    Held {
        /// The frames.
        bytes: Arc<Vec<u8>>,
        /// What they cost of the budget.
        charge: Option<Arc<Charge>>,
    },
}

impl Place {
    /// Whether the records never reach a file.
    pub(crate) fn ephemeral(&self) -> bool {
        matches!(self, Self::Held { charge: Some(_), .. })
    }

    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File { shard: a, file: x }, Self::File { shard: b, file: y }) => {
                a == b && x == y
            }
            (Self::Held { bytes: a, .. }, Self::Held { bytes: b, .. }) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// Consecutive resident records in one file.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Seq of the first entry.
    pub first: u64,
    /// Lsn that the entries count from.
    pub lsn: u64,
    /// What holds the bytes.
    pub place: Place,
    /// The records.
    pub entries: VecDeque<Entry>,
}

impl Run {
    /// The last seq.
    pub(crate) fn last(&self) -> u64 {
        (self.first + self.entries.len() as u64).saturating_sub(1)
    }

    fn at(&self, seq: u64) -> Option<usize> {
        let i = seq.checked_sub(self.first)?;
        usize::try_from(i).ok().filter(|i| *i < self.entries.len())
    }

    /// Entries with their seqs, from `seq` on.
    pub(crate) fn from(&self, seq: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let skip = seq.saturating_sub(self.first);
        let start = usize::try_from(skip).unwrap_or(usize::MAX).min(self.entries.len());
        (self.first + start as u64..).zip(self.entries.range(start..))
    }

    /// The shard and the log file that holds the records.
    pub(crate) fn log_file(&self) -> Option<(u32, FileKey)> {
        match &self.place {
            Place::File { shard, file } => Some((*shard, *file)),
            Place::Held { .. } => None,
        }
    }

    /// Whether the records are in the WAL.
    pub(crate) fn in_file(&self) -> bool {
        matches!(self.place, Place::File { .. })
    }
}

/// Which records of a segment are dead: deleted, or a hole. Offsets from its first seq.
#[derive(Clone, Debug)]
pub(crate) enum Dead {
    /// Not loaded.
    Unknown,
    /// None.
    None,
    /// These.
    Some(Arc<RoaringBitmap>),
}

impl Dead {
    pub(crate) fn known(&self) -> bool {
        !matches!(self, Self::Unknown)
    }

    pub(crate) fn contains(&self, offset: u32) -> bool {
        matches!(self, Self::Some(b) if b.contains(offset))
    }

    /// These and more; what is not known stays so.
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
    /// What the snapshot says.
    pub meta: SegmentMeta,
    /// Records at or above the floor that are not dead.
    pub live_count: u64,
    /// Their payload bytes.
    pub live_bytes: u64,
    /// The dead.
    pub dead: Dead,
    /// Those of the dead that only the WAL knows.
    pub dirty: Option<Box<Dirty>>,
}

impl Seg {
    /// A segment as the snapshot, or a checkpoint, names it.
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

    /// Whether more than half of its `.data` is of dead records.
    pub(crate) fn half_dead(&self) -> bool {
        self.meta.sealed && self.dead_part(2)
    }

    /// Whether one `nth` of its `.data`, and more, is of dead records.
    pub(crate) fn dead_part(&self, nth: u64) -> bool {
        // A live record takes its payload, 37 bytes, and at most 6 more.
        let live = 64 + self.live_bytes + 43 * self.live_count;
        !self.meta.cold && (nth - 1) * self.meta.data_len > nth * live
    }

    /// Whether a seq that it covers is dead, if that is known.
    pub(crate) fn is_dead(&self, seq: u64) -> bool {
        self.dead.contains(self.offset(seq))
    }

    /// The first live seq from `seq` on; `Err`: the dead are not known.
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

/// A segment or a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    Seg(&'a Seg),
    Run(&'a Run),
}

impl Part<'_> {
    /// The first seq that it covers.
    pub(crate) fn first(&self) -> u64 {
        match self {
            Self::Seg(s) => s.meta.first_seq,
            Self::Run(r) => r.first,
        }
    }

    fn next_live(&self, seq: u64) -> Result<Option<u64>, Unknown> {
        match self {
            Self::Seg(s) => s.next_live(seq),
            Self::Run(r) => Ok(r.from(seq).find(|(_, e)| !e.dead()).map(|(s, _)| s)),
        }
    }

    fn prev_live(&self, seq: u64, floor: u64) -> Result<Option<u64>, Unknown> {
        match self {
            Self::Seg(s) => s.prev_live(seq, floor),
            Self::Run(r) => {
                let upto = (seq.min(r.last()) + 1).saturating_sub(r.first) as usize;
                let hit = r.entries.range(..upto).rposition(|e| !e.dead());
                Ok(hit.map(|i| r.first + i as u64).filter(|s| *s >= floor))
            }
        }
    }
}

/// The segments and runs of a topic, each in seq order. Runs lie above segments, except those of
/// `ephemeral` records that a topic of another class now still holds.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Segments.
    pub segs: Vec<Seg>,
    /// Resident records.
    pub runs: VecDeque<Run>,
}

impl Index {
    /// Appends a resident record above all others.
    #[inline]
    pub(crate) fn push(&mut self, seq: u64, place: &Place, lsn: u64, mut entry: Entry) {
        if let Some(run) = self.runs.back_mut()
            && seq == run.first + run.entries.len() as u64
            && run.place.same(place)
            && let Ok(delta) = u32::try_from(lsn.wrapping_sub(run.lsn))
        {
            entry.lsn = delta;
            run.entries.push_back(entry);
            return;
        }
        debug_assert!(self.runs.back().is_none_or(|r| r.last() < seq));
        entry.lsn = 0;
        let entries = VecDeque::from(vec![entry]);
        self.runs.push_back(Run { first: seq, lsn, place: place.clone(), entries });
    }

    /// Moves a record that was held in memory to the file that it was written to. Returns false
    /// when it is not held.
    pub(crate) fn settle(&mut self, seq: u64, place: &Place, lsn: u64, off: u32) -> bool {
        let Some(i) = self.run_of(seq) else { return false };
        if self.runs[i].in_file() || self.runs[i].first != seq {
            return false;
        }
        let Some(mut entry) = self.runs[i].entries.pop_front() else { return false };
        if self.runs[i].entries.is_empty() {
            self.runs.remove(i);
        } else {
            self.runs[i].first += 1;
        }
        entry.off = off;
        let joins = i
            .checked_sub(1)
            .and_then(|p| self.runs.get_mut(p))
            .filter(|r| r.first + r.entries.len() as u64 == seq && r.place.same(place));
        if let Some(run) = joins
            && let Ok(delta) = u32::try_from(lsn.wrapping_sub(run.lsn))
        {
            entry.lsn = delta;
            run.entries.push_back(entry);
        } else {
            entry.lsn = 0;
            let entries = VecDeque::from(vec![entry]);
            self.runs.insert(i, Run { first: seq, lsn, place: place.clone(), entries });
        }
        true
    }

    /// The run that holds `seq`.
    pub(crate) fn run_of(&self, seq: u64) -> Option<usize> {
        let i = self.runs.partition_point(|r| r.first <= seq).checked_sub(1)?;
        self.runs[i].at(seq).map(|_| i)
    }

    /// The first run that ends at or above `seq`.
    pub(crate) fn run_from(&self, seq: u64) -> usize {
        self.runs.partition_point(|r| r.last() < seq)
    }

    /// A resident record.
    pub(crate) fn entry(&self, seq: u64) -> Option<&Entry> {
        let run = &self.runs[self.run_of(seq)?];
        run.entries.get(run.at(seq)?)
    }

    /// Marks a resident record dead; `None` when it is not there or already dead.
    pub(crate) fn kill(&mut self, seq: u64) -> Option<Entry> {
        let i = self.run_of(seq)?;
        let run = &mut self.runs[i];
        let at = run.at(seq)?;
        let entry = run.entries.get_mut(at)?;
        if entry.dead() {
            return None;
        }
        let was = *entry;
        entry.flags |= Entry::DEAD;
        Some(was)
    }

    /// Drops the resident records below `floor`; `gone` sees each.
    pub(crate) fn drop_below(&mut self, floor: u64, mut gone: impl FnMut(u64, &Entry)) {
        while let Some(run) = self.runs.front_mut() {
            let n = floor.saturating_sub(run.first).min(run.entries.len() as u64);
            let taken = usize::try_from(n).unwrap_or(usize::MAX);
            for (seq, e) in (run.first..).zip(run.entries.drain(..taken)) {
                gone(seq, &e);
            }
            run.first += n;
            if !run.entries.is_empty() {
                return;
            }
            self.runs.pop_front();
        }
    }

    /// Drops the runs that lie within `from..=to`.
    pub(crate) fn cut_out(&mut self, from: u64, to: u64) {
        self.runs.retain(|r| r.first < from || r.last() > to);
    }

    /// The first segment that ends at or above `seq`.
    pub(crate) fn seg_from(&self, seq: u64) -> usize {
        self.segs.partition_point(|s| s.meta.last_seq < seq)
    }

    /// The segment that covers `seq`.
    pub(crate) fn seg_of(&self, seq: u64) -> Option<&Seg> {
        self.segs.get(self.seg_from(seq)).filter(|s| s.meta.contains(seq))
    }

    /// The segment of this file number.
    pub(crate) fn seg_numbered(&mut self, file_no: u64) -> Option<&mut Seg> {
        self.segs.iter_mut().find(|s| s.meta.file_no == file_no)
    }

    /// The last seq in a segment, 0 without one.
    pub(crate) fn segments_to(&self) -> u64 {
        self.segs.last().map_or(0, |s| s.meta.last_seq)
    }

    /// Segments and runs that end at or above `seq`, ascending.
    pub(crate) fn parts_from(&self, seq: u64) -> impl Iterator<Item = Part<'_>> {
        let mut segs = self.segs[self.seg_from(seq)..].iter().peekable();
        let mut runs = self.runs.range(self.run_from(seq)..).peekable();
        std::iter::from_fn(move || match (segs.peek(), runs.peek()) {
            (Some(s), Some(r)) if s.meta.first_seq > r.first => runs.next().map(Part::Run),
            (None, _) => runs.next().map(Part::Run),
            _ => segs.next().map(Part::Seg),
        })
    }

    /// Segments and runs that begin at or below `seq`, descending.
    fn parts_to(&self, seq: u64) -> impl Iterator<Item = Part<'_>> {
        let segs = self.segs.partition_point(|s| s.meta.first_seq <= seq);
        let runs = self.runs.partition_point(|r| r.first <= seq);
        let mut segs = self.segs[..segs].iter().rev().peekable();
        let mut runs = self.runs.range(..runs).rev().peekable();
        std::iter::from_fn(move || match (segs.peek(), runs.peek()) {
            (Some(s), Some(r)) if s.meta.first_seq > r.first => segs.next().map(Part::Seg),
            (Some(_), None) => segs.next().map(Part::Seg),
            _ => runs.next().map(Part::Run),
        })
    }

    /// The first live record from `seq` on.
    pub(crate) fn next_live(&self, seq: u64) -> Result<Option<u64>, Unknown> {
        for part in self.parts_from(seq) {
            if let Some(found) = part.next_live(seq)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The last live record in `floor..=seq`.
    pub(crate) fn prev_live(&self, seq: u64, floor: u64) -> Result<Option<u64>, Unknown> {
        for part in self.parts_to(seq) {
            if let Some(found) = part.prev_live(seq, floor)? {
                return Ok(Some(found));
            }
            if part.first() <= floor {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Drops the records up to `upto` that lie in the WAL: a segment has them now.
    pub(crate) fn installed(&mut self, upto: u64) {
        for run in self.runs.iter_mut().filter(|r| r.in_file() && r.first <= upto) {
            let n = (upto + 1 - run.first).min(run.entries.len() as u64);
            run.entries.drain(..n as usize);
            run.first += n;
        }
        self.runs.retain(|r| !r.entries.is_empty());
        if self.runs.is_empty() {
            // A topic at rest keeps no room for records to come.
            self.runs = VecDeque::new();
        }
    }

    /// How many records are resident until a checkpoint takes them.
    pub(crate) fn resident(&self) -> u64 {
        let all = self.runs.iter().filter(|r| !r.place.ephemeral());
        all.map(|r| r.entries.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests;
