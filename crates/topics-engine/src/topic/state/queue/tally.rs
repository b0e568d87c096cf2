//! What a queue counts of jobs that went without an ack.

use topics_storage::snapshot::ReplayPos;

/// Why records go. The log says it of jobs, whose queue counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemovalReason(u8);

impl RemovalReason {
    /// It was asked for: nothing is counted.
    pub const REQUESTED: Self = Self(0);
    pub const EXPIRED: Self = Self(1);
    /// They are in the dead-letter topic.
    pub const DEAD_LETTER: Self = Self(2);
    /// Moved there because they expired.
    pub const EXPIRED_DEAD_LETTER: Self = Self(1 | 2);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// From the number in a frame.
    pub fn from_code(code: u8) -> Option<Self> {
        (code <= Self::EXPIRED_DEAD_LETTER.0).then_some(Self(code))
    }

    pub fn code(self) -> u8 {
        self.0
    }
}

/// The counts. They change where frames are applied, by the records that a frame removed: replay
/// makes them again. A snapshot reflects frames that are replayed over it all the same, and says up
/// to where it has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub dead_lettered: u64,
    pub expired: u64,
    /// Frames up to here are counted.
    pub counted: ReplayPos,
}

impl Tally {
    /// A frame removed so many jobs.
    pub fn count(&mut self, n: u64, why: RemovalReason, here: ReplayPos) {
        if here <= self.counted {
            return;
        }
        if why.has(RemovalReason::EXPIRED) {
            self.expired += n;
        }
        if why.has(RemovalReason::DEAD_LETTER) {
            self.dead_lettered += n;
        }
    }

    pub fn is_zero(&self) -> bool {
        (self.dead_lettered, self.expired) == (0, 0)
    }
}
