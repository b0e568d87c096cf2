//! Frames and events that a watcher gets, and the options that select them.

use std::sync::Arc;

use topics_env::sync::OnceLock;

use crate::types::api::{NodeFilter, ReadFrom, ReadRequest, Tombstone, TopicMatch};
use crate::types::batch::ReadBatch;
use crate::types::error::Error;

/// Selects records, and their fields, for a watcher. Watchers with equal options share frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Nodes whose records are skipped.
    pub skip_nodes: NodeFilter,
    /// Only records with these tags; others are skipped silently.
    pub matching: Option<TopicMatch>,
    /// Maximum number of records in a frame, 1 to 10 000; default 256.
    pub limit: usize,
    /// Maximum payload bytes of a frame (which has at least one record), 1 to 8 MiB; default 256 KiB.
    pub max_batch_bytes: usize,
    /// Delivers only synced records; otherwise a record is delivered as soon as it is visible.
    pub strong: bool,
    /// Whether the encoder includes meta.
    pub include_meta: bool,
    /// Whether the encoder includes tags.
    pub include_tags: bool,
    /// Whether the encoder includes data.
    pub include_data: bool,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            skip_nodes: NodeFilter::default(),
            matching: None,
            limit: 256,
            max_batch_bytes: 256 << 10,
            strong: false,
            include_meta: true,
            include_tags: true,
            include_data: true,
        }
    }
}

impl WatchOptions {
    /// The request that reads from a cursor on.
    pub(crate) fn request(&self, from: ReadFrom) -> ReadRequest {
        ReadRequest {
            from,
            limit: self.limit,
            max_bytes: self.max_batch_bytes,
            skip_nodes: self.skip_nodes.clone(),
            matching: self.matching.clone(),
            strong: self.strong,
            ..ReadRequest::default()
        }
    }
}

/// Records of one topic, shared by all watchers with equal options.
#[derive(Debug)]
pub struct Frame {
    topic: Arc<str>,
    options: Arc<WatchOptions>,
    from: u64,
    batch: ReadBatch,
    encoded: OnceLock<Arc<[u8]>>,
}

impl Frame {
    /// `cursor` is where the batch was read. A gap before its records moves the start behind the
    /// gap, and never beyond the first record: the seqs of a recreated topic begin again.
    pub(crate) fn new(
        topic: Arc<str>,
        options: Arc<WatchOptions>,
        cursor: u64,
        batch: ReadBatch,
    ) -> Arc<Self> {
        let cursor = batch.tombstone.map_or(cursor, |t| cursor.max(t.gap_to));
        let first = batch.slots.first().map_or(batch.next_from_seq, |s| s.seq.saturating_sub(1));
        Arc::new(Self { topic, options, from: cursor.min(first), batch, encoded: OnceLock::new() })
    }

    /// The topic's name.
    #[must_use]
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// The options that the frame was made for.
    #[must_use]
    pub fn options(&self) -> &WatchOptions {
        &self.options
    }

    /// The cursor before the records.
    #[must_use]
    pub fn from_seq(&self) -> u64 {
        self.from
    }

    /// The records. Head and lag of the batch are as of the read.
    #[must_use]
    pub fn batch(&self) -> &ReadBatch {
        &self.batch
    }

    /// The encoded frame. The first caller encodes it, later callers share the bytes; so every caller
    /// must pass the same encoding.
    pub fn encoded(&self, encode: impl FnOnce(&Self) -> Vec<u8>) -> Arc<[u8]> {
        self.encoded.get_or_init(|| encode(self).into()).clone()
    }

    /// Bytes of memory that the frame keeps.
    pub(crate) fn usage(&self) -> usize {
        self.batch.chunks.iter().map(|c| c.len()).sum::<usize>() + 64 * self.batch.len() + 256
    }

    /// The records after `cursor`, for a watcher that has read further than the others; `None` when
    /// there are none.
    pub(crate) fn after(&self, cursor: u64) -> Option<Arc<Self>> {
        let mut batch = self.batch.clone();
        batch.slots.retain(|s| s.seq > cursor);
        (!batch.is_empty())
            .then(|| Self::new(self.topic.clone(), self.options.clone(), cursor, batch))
    }
}

/// An event of a watch. Every event moves the stream's cursors, see [`super::Watch::cursors`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Records, in seq order.
    Records(Arc<Frame>),
    /// Records are missing that the reader did not ask to delete.
    Tombstone {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
        /// What is missing.
        tombstone: Tombstone,
        /// The reason on the wire: `from_seq_too_old` where the watch began below the floor.
        reason: &'static str,
    },
    /// Every record up to `seq` was delivered; later records are pushed as they are written.
    CaughtUp {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
        /// The cursor.
        seq: u64,
    },
    /// The topic was deleted. A new topic of this name joins from its start.
    TopicDeleted {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
    },
    /// The topic cannot be read any more; the watch goes on with its other topics.
    Failed {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
        /// Why.
        error: Error,
    },
    /// The engine is under strain and the topic is in the lowest priority band, so its new records
    /// wait. No record is lost. Only streams with [`super::WatchRequest::paced`] get this event.
    Paced {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
        /// Maximum wait, ms.
        retry_after_ms: u64,
    },
    /// No event was delivered for the heartbeat interval.
    Heartbeat,
}
