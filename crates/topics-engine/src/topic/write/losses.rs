//! Losses that only memory knows: lost ranges and evict floors that readers have seen and the log lacks,
//! and acked records that a failed batch lost.
//!
//! A batch of class `memory` is acked and shown before it is written. If it fails, its records become a gap
//! immediately, and the next batch of the topic logs that gap. A sync or a close that comes first logs it
//! too; a sync also reports the records, because their caller has an ack and expects them to be durable.

use topics_storage::StorageError;
use topics_storage::format::record::{Body, Gap as GapBody};

use crate::topic::Topic;
use crate::types::api::Gap;
use crate::types::error::Error;

/// Acked records that failed batches lost.
#[derive(Debug)]
pub(crate) struct LostAcks {
    first: u64,
    last: u64,
    /// Why the first of these batches failed.
    error: StorageError,
}

/// What readers have seen and the log lacks: the next write, sync or close of the topic logs it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unlogged {
    /// Lost ranges.
    pub gaps: Vec<Gap>,
    /// Whether a failed batch was to log the evict floor.
    pub floor: bool,
}

impl Unlogged {
    pub(crate) fn is_empty(&self) -> bool {
        self.gaps.is_empty() && !self.floor
    }

    /// Adds a lost range. Failures usually come in series.
    pub(crate) fn add(&mut self, gap: Gap) {
        match self.gaps.last_mut() {
            Some(last) if last.to + 1 == gap.from && last.reason == gap.reason => last.to = gap.to,
            _ => self.gaps.push(gap),
        }
    }

    /// Appends the frames that log it.
    pub(crate) fn encode(&self, topic: &Topic, out: &mut Vec<u8>) {
        for g in &self.gaps {
            let body = GapBody { from: g.from, to: g.to, reason: g.reason.code() };
            body.encode_frame(out, topic.id(), 0, 0);
        }
        if self.floor {
            // I11: evicted records must not come back, nor count beside the new ones.
            topic.state.read().range.encode_floor(out, topic.id());
        }
    }
}

impl Topic {
    /// The error that the next sync would report, for a close, which fails for no shortage.
    pub(crate) fn take_lost_acks(&self) -> Option<Error> {
        self.append.lock().lost_acks.take().map(|lost| lost.error(self))
    }
}

impl LostAcks {
    /// Records the loss of acked records for the next sync.
    pub(crate) fn add(kept: &mut Option<Self>, first: u64, last: u64, error: &StorageError) {
        match kept {
            Some(lost) => (lost.first, lost.last) = (lost.first.min(first), lost.last.max(last)),
            none => *none = Some(Self { first, last, error: error.clone() }),
        }
    }

    /// The error of a sync that reports them.
    pub(crate) fn error(self, topic: &Topic) -> Error {
        let Self { first: from, last: to, error } = self;
        Error::DataLoss { topic: topic.name.to_string(), from, to, detail: error.to_string() }
    }
}
