//! The push mode: a connection keeps jobs leased, and releases them when it drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Queues;
use super::{ack, claim, config_of};
use crate::topic::Topic;
use crate::types::api::{Completion, Owner};
use crate::types::error::Result;
use crate::types::queue::{Claim, Claimed};

/// Streams of this process; each has a number.
static STREAMS: AtomicU64 = AtomicU64::new(1);

/// A worker's stream of jobs: at most `max` are leased to it at a time. Dropping it makes them
/// claimable again. They count as delivered, unless [`crate::engine::Engine::release_stream`] gave them
/// back before.
pub struct Work {
    queues: Arc<Queues>,
    topic: Arc<Topic>,
    node: Vec<u8>,
    max: usize,
    lease_ms: Option<u64>,
    stream: u64,
    _owner: Owner,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("topic", &self.topic.name).finish_non_exhaustive()
    }
}

impl Work {
    /// A stream for a node.
    pub(crate) fn open(
        queues: &Arc<Queues>,
        owner: Owner,
        topic: &Arc<Topic>,
        node: &[u8],
        max: usize,
        lease_ms: Option<u64>,
    ) -> Result<Self> {
        config_of(topic)?;
        let claim = Claim { node, max, lease_ms, ..Claim::default() };
        claim::ClaimRequest::new(queues.base(), &claim, 0)?;
        let stream = STREAMS.fetch_add(1, Ordering::Relaxed);
        let (queues, topic, node) = (queues.clone(), topic.clone(), node.to_vec());
        Ok(Self { queues, topic, node, max, lease_ms, stream, _owner: owner })
    }

    /// Its number, which is unique in this process.
    #[must_use]
    pub fn stream(&self) -> u64 {
        self.stream
    }

    fn claim(&self, wait: Duration) -> Claim<'_> {
        Claim { node: &self.node, max: self.max, lease_ms: self.lease_ms, wait }
    }

    /// The next jobs: as many as are available and the stream has room for. Waits up to `wait`
    /// for the first.
    pub fn next(&self, wait: Duration) -> Result<Claimed> {
        claim::claim_for(&self.queues, &self.topic, &self.claim(wait), self.stream)
    }

    /// The same without blocking; the returned id is for [`crate::engine::Engine::cancel_claim`].
    pub fn next_async(&self, wait: Duration, done: Completion<Claimed>) -> u64 {
        claim::claim_async(&self.queues, &self.topic, &self.claim(wait), self.stream, done)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        ack::end_stream(&self.queues, &self.topic, &self.node, self.stream);
    }
}
