//! Requests and answers of consumers.

use std::time::Duration;

use super::api::TopicMatch;

/// Maximum number of records of one read.
pub(crate) const MAX_RECORDS: usize = 2_000;

/// The delivery promise of a consumer, for records that its reader may not have processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsumerMode {
    /// Such records are delivered again.
    #[default]
    AtLeastOnce,
    /// Such records are not delivered again.
    AtMostOnce,
}

impl ConsumerMode {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtLeastOnce => "at_least_once",
            Self::AtMostOnce => "at_most_once",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::AtLeastOnce, Self::AtMostOnce].get(usize::from(code)).copied()
    }
}

/// Where a new consumer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsumerStart {
    /// At the first record that is kept.
    #[default]
    Start,
    /// After the last record.
    End,
}

/// Where a cursor is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// After this seq.
    Seq(u64),
    /// Just before the first record at or after this time, ms.
    Ts(u64),
    /// Before the first record that is kept.
    Start,
    /// After the last record.
    End,
}

/// A read by a consumer.
#[derive(Clone, Debug)]
pub struct ConsumerRead {
    /// Maximum bytes of `data` and `meta`; at least one record is returned if there is any.
    pub max_bytes: usize,
    /// Maximum number of records, at most 2000.
    pub max_records: usize,
    /// Whether the cursor moves; false peeks.
    pub checkpoint: bool,
    /// Maximum wait for a record; at most 30 s.
    pub wait: Duration,
    /// Returns only records with these tags.
    pub matching: Option<TopicMatch>,
    /// `at_most_once`: whether to fail with `consumer_busy` instead of waiting for the current reader.
    pub fail_if_busy: bool,
    /// A reader of `at_least_once` that keeps its own position: the read begins after this seq, and not
    /// before the position at which the reader took the consumer over.
    pub after: Option<u64>,
}

impl Default for ConsumerRead {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 20,
            max_records: MAX_RECORDS,
            checkpoint: true,
            wait: Duration::ZERO,
            matching: None,
            fail_if_busy: false,
            after: None,
        }
    }
}

/// An entry of a list of consumers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its topic.
    pub topic: String,
    /// Its name.
    pub name: String,
    /// Its mode.
    pub mode: ConsumerMode,
    /// The stored cursor.
    pub cursor: u64,
    /// The records after the cursor that a read could still return: those that were deleted, evicted,
    /// lost or have expired do not count.
    pub lag: u64,
    /// Milliseconds since the first of them was committed, 0 without one.
    pub lag_ms: u64,
}
