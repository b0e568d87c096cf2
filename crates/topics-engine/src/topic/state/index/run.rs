//! Resident records, which no segment has.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use topics_storage::format::frame::{FRAME_HEADER, FRAME_TRAILER, Flags};
use topics_storage::wal::FileKey;

use crate::types::quota::Charge;

/// A resident record, 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Commit time.
    pub ts: u64,
    /// Where its frame begins in the run's file or buffer.
    pub off: u32,
    /// Length of the whole frame.
    pub len: u32,
    /// Its lsn as a difference to the run's lsn.
    pub lsn: u32,
    /// The frame's flags, and [`Self::DEAD`].
    pub(crate) flags: u8,
}

impl Entry {
    pub(crate) const DEAD: u8 = 128;

    pub(crate) fn new(ts: u64, off: u32, len: u32, lsn: u32, flags: Flags) -> Self {
        Self { ts, off, len, lsn, flags: flags.0 & !Self::DEAD }
    }

    pub(crate) fn dead(&self) -> bool {
        self.flags & Self::DEAD != 0
    }

    /// Payload bytes: data, meta, tag, node and attributes.
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

/// The place that holds the bytes of a run.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A WAL file.
    File {
        shard: u32,
        /// Its key in the shard.
        file: FileKey,
    },
    /// Memory: the encoded frames of one write, with inner hashes. `ephemeral` records have a charge;
    /// records of class `memory` move to a file when they are written.
    Memory {
        bytes: Arc<Vec<u8>>,
        /// Their charge on the budget of `ephemeral` topics.
        charge: Option<Arc<Charge>>,
    },
}

impl Place {
    /// Whether the records never reach a file.
    pub(crate) fn ephemeral(&self) -> bool {
        matches!(self, Self::Memory { charge: Some(_), .. })
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File { shard: a, file: x }, Self::File { shard: b, file: y }) => {
                a == b && x == y
            }
            (Self::Memory { bytes: a, .. }, Self::Memory { bytes: b, .. }) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// The entries of a run. A checkpoint shares them while it copies; a change meanwhile copies the
/// entries of this run first.
#[derive(Clone, Debug)]
pub(crate) enum Entries {
    /// Only this run has the entries.
    Own(VecDeque<Entry>),
    /// A checkpoint may share the entries.
    Shared(Arc<VecDeque<Entry>>),
}

impl Entries {
    pub(crate) fn one(entry: Entry) -> Self {
        Self::Own(VecDeque::from(vec![entry]))
    }

    #[inline]
    pub(crate) fn make_mut(&mut self) -> &mut VecDeque<Entry> {
        if let Self::Shared(all) = self {
            *self = Self::Own(Arc::unwrap_or_clone(std::mem::take(all)));
        }
        match self {
            Self::Own(own) => own,
            Self::Shared(all) => Arc::make_mut(all),
        }
    }

    /// Shares the entries as they are now.
    pub(crate) fn share(&mut self) -> Arc<VecDeque<Entry>> {
        let all = match self {
            Self::Own(own) => Arc::new(std::mem::take(own)),
            Self::Shared(all) => return all.clone(),
        };
        *self = Self::Shared(all.clone());
        all
    }
}

impl Deref for Entries {
    type Target = VecDeque<Entry>;

    #[inline]
    fn deref(&self) -> &VecDeque<Entry> {
        match self {
            Self::Own(own) => own,
            Self::Shared(all) => all,
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
    pub entries: Entries,
    /// How many of them are dead.
    pub dead: u32,
}

impl Run {
    /// Maximum records of a run. Its 96 KiB are below the size that allocators return to the system,
    /// and cheap to copy for a change beside a checkpoint.
    pub(crate) const MOST: usize = 4096;

    /// A run of one record.
    pub(crate) fn one(first: u64, lsn: u64, place: &Place, mut entry: Entry) -> Self {
        entry.lsn = 0;
        let (place, dead) = (place.clone(), u32::from(entry.dead()));
        Self { first, lsn, place, entries: Entries::one(entry), dead }
    }

    /// Appends the record `seq`. Returns false if it belongs into another run.
    #[inline]
    pub(crate) fn push(&mut self, seq: u64, place: &Place, lsn: u64, mut entry: Entry) -> bool {
        if seq != self.first + self.entries.len() as u64
            || self.entries.len() >= Self::MOST
            || !self.place.same(place)
        {
            return false;
        }
        let Ok(delta) = u32::try_from(lsn.wrapping_sub(self.lsn)) else { return false };
        entry.lsn = delta;
        self.dead += u32::from(entry.dead());
        self.entries.make_mut().push_back(entry);
        true
    }

    /// Drops the first `n` records.
    pub(crate) fn drop_front(&mut self, n: usize) {
        let gone = self.entries.make_mut().drain(..n).filter(Entry::dead).count();
        self.dead -= gone as u32;
        self.first += n as u64;
    }

    /// The number of live records in `from..=to`.
    pub(crate) fn live_in(&self, from: u64, to: u64) -> u64 {
        let (from, to) = (from.max(self.first), to.min(self.last()));
        let span = (to + 1).saturating_sub(from);
        if self.dead == 0 || span == 0 {
            return span;
        }
        if span == self.entries.len() as u64 {
            return span - u64::from(self.dead);
        }
        self.from(from).take(span as usize).filter(|(_, e)| !e.dead()).count() as u64
    }

    /// The last seq.
    pub(crate) fn last(&self) -> u64 {
        (self.first + self.entries.len() as u64).saturating_sub(1)
    }

    pub(crate) fn at(&self, seq: u64) -> Option<usize> {
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
            Place::Memory { .. } => None,
        }
    }

    /// Whether the records are in the WAL.
    pub(crate) fn in_file(&self) -> bool {
        matches!(self.place, Place::File { .. })
    }
}
