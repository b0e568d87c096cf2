//! The two seams between topics and the layers above: what topics hand up, and to whom.
//!
//! Nothing in `topic` imports a layer above. What the layers above must do or know of reaches them by
//! [`ApplySink`] (frames that are not one topic's) and [`TopicObserver`] (a topic has changed). The
//! engine implements both for all topics; a delivery's interest in one topic implements
//! [`TopicObserver::head_raised`] for that one.

use std::any::Any;
use std::sync::Arc;

use topics_storage::format::frame::Frame;
use topics_storage::snapshot::{ReplayPos, Section};

use super::Topic;
use super::state::queue::Why;
use crate::types::error::Result;

/// [`crate::ctx::Base`] as topics have it.
pub(crate) type Base = crate::ctx::Base<dyn TopicHost>;
/// [`crate::ctx::Ctx`] as topics have it.
pub(crate) type Ctx = crate::ctx::Ctx<dyn TopicHost>;

/// Who hears of changes. None of the calls may block, and some are made under the topic's locks.
pub(crate) trait TopicObserver: Any + Send + Sync {
    /// The head has risen, or the topic is gone, or the engine closes.
    fn head_raised(self: Arc<Self>) {}

    /// A creation was applied: readers may see the topic.
    fn created(&self, _topic: &Arc<Topic>) {}

    /// A delete was applied, or a creation came to nothing: the topic's name and id are free.
    fn deleted(&self, _topic: &Topic) {}

    /// A waiting claim of this queue may have something to do.
    fn queue_changed(&self, _topic_id: u64) {}

    /// These jobs have expired and are about to go. Moves them elsewhere first, where the queue's
    /// config says so, which may block; returns why those that are left go.
    fn jobs_expire(&self, _topic: &Arc<Topic>, _seqs: &[u64]) -> Result<Why> {
        Ok(Why::ASKED)
    }
}

/// A frame as it was logged.
pub(crate) struct LoggedFrame<'a> {
    pub frame: Frame<'a>,
    pub len: u32,
    pub offset: u32,
    pub lsn: u64,
    /// The layout that it was logged in.
    pub layout: u64,
}

/// Which topic a frame found in the log is for.
pub(crate) enum FrameTopic {
    /// This one.
    Loaded(Arc<Topic>),
    /// One that is not loaded, whose snapshot reflects the frame.
    Reflected,
    /// One that is gone.
    Gone,
}

/// Takes what the log says beside the topics.
pub(crate) trait ApplySink: Send + Sync {
    /// The topic of a frame found in the log.
    fn topic(&self, base: &Base, id: u64, here: ReplayPos) -> Result<FrameTopic>;

    /// Applies a frame that is not one topic's. `known` is the topic of the batch, if it has one: its
    /// creation makes this topic visible.
    fn apply(&self, base: &Base, at: &LoggedFrame<'_>, known: Option<&Arc<Topic>>) -> Result<()>;

    /// The sections of a snapshot that say what such frames have come to.
    fn capture(&self) -> Vec<Section>;

    /// Takes a section of a snapshot. False: it is of another kind.
    fn restore(&self, base: &Base, section: &Section) -> Result<bool>;

    /// Whether these sections, of the newest snapshot, and what is captured now stay true whatever
    /// becomes of the shards whose log has failed.
    fn holds_without(&self, shards: &[usize], before: &[Section]) -> bool;
}

/// Both, for all topics.
pub(crate) trait TopicHost: ApplySink + TopicObserver {}

impl<T: ApplySink + TopicObserver> TopicHost for T {}

impl std::fmt::Debug for dyn TopicHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TopicHost")
    }
}
