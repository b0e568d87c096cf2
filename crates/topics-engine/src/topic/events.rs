//! The two seams between topics and the layers above.
//!
//! Nothing in `topic` imports a layer above. Topics call the layers above by
//! [`ApplySink`] (frames that are not one topic's) and [`TopicObserver`] (a topic has changed). The
//! engine implements both for all topics; a delivery's interest in one topic implements
//! [`TopicObserver::head_raised`] for that one.

use std::any::Any;
use std::sync::Arc;

use topics_storage::format::frame::Frame;
use topics_storage::snapshot::{ReplayPos, Section};

use super::Topic;
use super::state::queue::RemovalReason;
use crate::types::error::Result;

/// [`crate::ctx::Base`] as topics have it.
pub(crate) type Base = crate::ctx::Base<dyn TopicHost>;
/// [`crate::ctx::Ctx`] as topics have it.
pub(crate) type Ctx = crate::ctx::Ctx<dyn TopicHost>;

/// Is called when topics change. The calls must not block; some are made under the topic's locks.
pub(crate) trait TopicObserver: Any + Send + Sync {
    /// The head has risen, the topic was deleted, or the engine closes.
    fn head_raised(self: Arc<Self>) {}

    /// A creation was applied: readers may see the topic.
    fn created(&self, _topic: &Arc<Topic>) {}

    /// A deletion was applied, or a creation failed: the topic's name and id are free.
    fn deleted(&self, _topic: &Topic) {}

    /// The queue changed: a waiting claim may get a job.
    fn queue_changed(&self, _topic_id: u64) {}

    /// Called before expired jobs are removed. Moves them to the dead-letter topic if the queue's
    /// config has one, which may block. Returns the reason that is counted for the others.
    fn jobs_expire(&self, _topic: &Arc<Topic>, _seqs: &[u64]) -> Result<RemovalReason> {
        Ok(RemovalReason::REQUESTED)
    }
}

/// A logged frame and its position.
pub(crate) struct LoggedFrame<'a> {
    pub frame: Frame<'a>,
    pub len: u32,
    pub offset: u32,
    pub lsn: u64,
    /// The layout of the log that has it.
    pub layout: u64,
}

/// The topic of a frame in the log.
pub(crate) enum FrameTopic {
    /// A loaded topic.
    Loaded(Arc<Topic>),
    /// An unloaded topic whose snapshot reflects the frame.
    Reflected,
    /// A deleted topic.
    Gone,
}

/// Applies frames that do not change one topic.
pub(crate) trait ApplySink: Send + Sync {
    /// The topic of a frame in the log.
    fn topic(&self, base: &Base, id: u64, here: ReplayPos) -> Result<FrameTopic>;

    /// Applies such a frame. `known` is the topic of the batch, if it has one; its creation frame makes
    /// it visible.
    fn apply(&self, base: &Base, at: &LoggedFrame<'_>, known: Option<&Arc<Topic>>) -> Result<()>;

    /// The sections of a snapshot with the state that such frames produced.
    fn capture(&self) -> Vec<Section>;

    /// Restores a section of a snapshot. Returns false if it is of another kind.
    fn restore(&self, base: &Base, section: &Section) -> Result<bool>;

    /// Whether `before`, the sections of the newest snapshot, and the sections captured now stay true
    /// whatever the next open finds in the shards whose log has failed.
    fn holds_without(&self, shards: &[usize], before: &[Section]) -> bool;
}

/// [`ApplySink`] and [`TopicObserver`] for all topics.
pub(crate) trait TopicHost: ApplySink + TopicObserver {}

impl<T: ApplySink + TopicObserver> TopicHost for T {}

impl std::fmt::Debug for dyn TopicHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TopicHost")
    }
}
