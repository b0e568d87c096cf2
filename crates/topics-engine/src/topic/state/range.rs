//! Which seqs of a topic exist, and how much of them is live.

use topics_storage::format::record::{Body, EvictWatermark};

use crate::types::api::GapReason;

/// Why records below the evict floor were removed: caps, expiry, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicted(u8);

impl Evicted {
    pub(crate) const CAP: Self = Self(1);
    pub(crate) const TTL: Self = Self(2);

    /// The union of both reasons.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Decodes the number in a frame or snapshot.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        (code <= 3).then_some(Self(code))
    }

    pub(crate) fn code(self) -> u8 {
        self.0
    }

    /// The reason on a tombstone.
    pub(crate) fn reason(self) -> GapReason {
        match self.0 {
            2 => GapReason::Ttl,
            3 => GapReason::Mixed,
            _ => GapReason::Cap,
        }
    }
}

/// The seqs of a topic, by what is known about them: `evict_floor <= earliest <= indexed_to + 1`, and
/// none of the three ever goes back (I11).
#[derive(Debug)]
pub(crate) struct SeqRange {
    /// Every seq up to here is a record, in a gap, or below the floor.
    pub indexed_to: u64,
    /// No record below is live or in the index.
    pub floor: u64,
    pub evict_floor: u64,
    /// The evict floor as the log has it. A floor raised by `ephemeral` records is logged when a logged
    /// frame depends on it.
    pub floor_logged: u64,
    /// The first live seq, or a lower bound of it while `earliest_exact` is false.
    pub earliest: u64,
    pub earliest_exact: bool,
    pub evicted: Evicted,
}

impl Default for SeqRange {
    /// The range of an empty topic.
    fn default() -> Self {
        Self {
            indexed_to: 0,
            floor: 1,
            evict_floor: 1,
            floor_logged: 1,
            earliest: 1,
            earliest_exact: true,
            evicted: Evicted::default(),
        }
    }
}

impl SeqRange {
    /// Sets the first live seq, or a lower bound of it.
    pub(super) fn set_earliest(&mut self, (seq, exact): (u64, bool)) {
        assert!(seq >= self.earliest, "I11: earliest_seq went back");
        (self.earliest, self.earliest_exact) = (seq, exact);
        assert!(self.evict_floor <= self.earliest, "I11: evict_floor above earliest_seq");
    }

    /// Raises the evict floor, and the first live seq with it; false if it is as high already.
    pub(super) fn raise_evict_floor(&mut self, to: u64, why: Evicted) -> bool {
        if to <= self.evict_floor {
            return false;
        }
        self.evict_floor = to;
        self.evicted = self.evicted.and(why);
        self.earliest = self.earliest.max(to);
        true
    }

    /// Encodes the evict floor if the log does not have it, for a frame that depends on it.
    pub(crate) fn encode_floor(&self, out: &mut Vec<u8>, topic_id: u64) {
        if self.evict_floor > self.floor_logged {
            let (evict_floor, reason) = (self.evict_floor, self.evicted.code());
            EvictWatermark { evict_floor, reason }.encode_frame(out, topic_id, 0, 0);
        }
    }
}

/// Number and payload bytes of the live records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LiveRecords {
    pub count: u64,
    pub bytes: u64,
}

impl LiveRecords {
    /// Subtracts records that are live no more.
    pub(super) fn subtract(&mut self, count: u64, bytes: u64) {
        assert!(self.count >= count && self.bytes >= bytes, "I4: live counts below zero");
        self.count -= count;
        self.bytes -= bytes;
    }
}
