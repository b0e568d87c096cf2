//! What is delivered.

use std::sync::Arc;

use topics_env::sync::OnceLock;

use crate::types::api::{NodeFilter, ReadFrom, ReadRequest, Tombstone, TopicMatch};
use crate::types::batch::ReadBatch;
use crate::types::error::Error;

/// Which records a watcher gets, and what of them: watchers with equal options share frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Nodes whose records are skipped.
    pub skip_nodes: Vec<Vec<u8>>,
    /// Only records with these tags; others are skipped silently.
    pub matching: Option<TopicMatch>,
    /// Most records in a frame, 1 to 10 000; default 256.
    pub limit: usize,
    /// Most payload bytes in a frame (one record at least), 1 to 8 MiB; default 256 KiB.
    pub max_batch_bytes: usize,
    /// Only what has been synced; otherwise as soon as it is visible.
    pub strong: bool,
    /// For whoever encodes: whether meta is wanted.
    pub include_meta: bool,
    /// For whoever encodes: whether tags are wanted.
    pub include_tags: bool,
    /// For whoever encodes: whether data is wanted.
    pub include_data: bool,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            skip_nodes: Vec::new(),
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
    /// The read that goes on at a cursor.
    pub(crate) fn request(&self, from: ReadFrom) -> ReadRequest {
        ReadRequest {
            from,
            limit: self.limit,
            max_bytes: self.max_batch_bytes,
            skip_nodes: NodeFilter(self.skip_nodes.clone()),
            matching: self.matching.clone(),
            strong: self.strong,
            ..ReadRequest::default()
        }
    }
}

/// Records of one topic, shared by every watcher that wants the same of them.
#[derive(Debug)]
pub struct Frame {
    topic: Arc<str>,
    options: Arc<WatchOptions>,
    batch: ReadBatch,
    encoded: OnceLock<Arc<[u8]>>,
}

impl Frame {
    pub(crate) fn new(topic: Arc<str>, options: Arc<WatchOptions>, batch: ReadBatch) -> Arc<Self> {
        Arc::new(Self { topic, options, batch, encoded: OnceLock::new() })
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

    /// The records. The batch's head and lag are those of the moment it was read.
    #[must_use]
    pub fn batch(&self) -> &ReadBatch {
        &self.batch
    }

    /// The bytes for the wire: made by the first who asks, shared by all others. Every caller
    /// must encode alike.
    pub fn encoded(&self, encode: impl FnOnce(&Self) -> Vec<u8>) -> Arc<[u8]> {
        self.encoded.get_or_init(|| encode(self).into()).clone()
    }

    /// The memory that it keeps.
    pub(crate) fn usage(&self) -> usize {
        self.batch.chunks.iter().map(|c| c.len()).sum::<usize>() + 64 * self.batch.len() + 256
    }

    /// The part behind a cursor, for a watcher that has read ahead of the others.
    pub(crate) fn after(&self, cursor: u64) -> Option<Arc<Self>> {
        let mut batch = self.batch.clone();
        batch.slots.retain(|s| s.seq > cursor);
        (!batch.is_empty()).then(|| Self::new(self.topic.clone(), self.options.clone(), batch))
    }
}

/// What a watcher is told. Every event moves the stream's cursors, see [`super::Watch::cursors`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Records, in seq order.
    Records(Arc<Frame>),
    /// Records are missing involuntarily.
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
    /// Everything up to `seq` was delivered; what follows is pushed as it is written.
    CaughtUp {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
        /// The cursor.
        seq: u64,
    },
    /// The topic is gone. A later one of its name joins from its start.
    TopicDeleted {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
    },
    /// The topic cannot be read any more; the others go on.
    Failed {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
        /// Why.
        error: Error,
    },
    /// The engine is under strain and the topic's priority is the lowest: what was written waits.
    /// Nothing is lost. Told only to streams that asked for it.
    Paced {
        /// The topic.
        topic: Arc<str>,
        /// Its id.
        topic_id: u64,
        /// How long it waits at most.
        retry_after_ms: u64,
    },
    /// Nothing happened for the heartbeat's time.
    Heartbeat,
}
