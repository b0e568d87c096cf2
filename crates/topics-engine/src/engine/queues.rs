//! The façade of queues and consumers: delegation only.

use super::{Completion, Engine};
use crate::consumer;
use crate::consumer::Consumer;
use crate::queue;
use crate::queue::Work;
use crate::types::consumer::{ConsumerInfo, ConsumerMode, ConsumerStart};
use crate::types::error::Result;
use crate::types::queue::{
    Claim, Claimed, JobState, LeaseOutcome, LeasedJobs, Peeked, QueueState, Redrive, Redriven,
};

impl Engine {
    /// Fails with [`Error::NotAQueue`](crate::Error::NotAQueue) if the topic is a log, and with
    /// [`Error::TopicNotFound`](crate::Error::TopicNotFound) if it does not exist.
    pub fn check_queue(&self, queue: &str) -> Result<()> {
        let topic = self.find(queue)?;
        queue::config_of(&topic).map(drop)
    }

    /// Claims jobs, waiting as long as the request says when nothing is available.
    pub fn claim(&self, queue: &str, req: &Claim<'_>) -> Result<Claimed> {
        queue::claim(&self.open.queues, &self.find(queue)?, req)
    }

    /// The same without blocking: `done` is called once, from here when jobs are there at once, else
    /// from the thread that serves queues (of an engine without threads: from [`Engine::tick`]). The
    /// returned id withdraws it.
    pub fn claim_async(&self, queue: &str, req: &Claim<'_>, done: Completion<Claimed>) -> u64 {
        match self.find(queue) {
            Ok(topic) => queue::claim_async(&self.open.queues, &topic, req, 0, done),
            Err(e) => {
                done(Err(e));
                0
            }
        }
    }

    /// Cancels a [`Engine::claim_async`]: it will not be answered, and holds no job. False when it
    /// was answered before.
    pub fn cancel_claim(&self, queue: &str, id: u64) -> bool {
        self.find(queue).is_ok_and(|topic| self.open.queues.claim_waiters.cancel(topic.id(), id))
    }

    /// Acks jobs: they are deleted.
    pub fn ack(&self, queue: &str, held: &LeasedJobs<'_>) -> Result<LeaseOutcome> {
        queue::ack(&self.open.queues, &self.find(queue)?, held)
    }

    /// The same for event loops: `done` is called once, from here or when the class is reached; a
    /// group is led by [`Engine::drive`]. Gives `done` back, and changes nothing, when something has
    /// to be waited for first: that is for a thread that may.
    pub fn ack_async(
        &self,
        queue: &str,
        held: &LeasedJobs<'_>,
        done: Completion<LeaseOutcome>,
    ) -> std::result::Result<(), Completion<LeaseOutcome>> {
        match self.find(queue) {
            Ok(topic) => queue::ack_async(&self.open.queues, &topic, held, done),
            Err(e) => {
                done(Err(e));
                Ok(())
            }
        }
    }

    /// Whether [`Engine::nack`], [`Engine::release`] and [`Engine::extend`] of this queue wait for nothing.
    pub fn leases_at_once(&self, queue: &str) -> Result<bool> {
        self.find(queue).map(|topic| queue::at_once(&topic))
    }

    /// Releases jobs, now or after a delay of at most a day; `None`: after the queue's backoff.
    pub fn nack(
        &self,
        queue: &str,
        held: &LeasedJobs<'_>,
        delay_ms: Option<u64>,
    ) -> Result<LeaseOutcome> {
        self.nack_with_error(queue, held, delay_ms, "")
    }

    /// The same; the first KiB of `error` is kept with the jobs, unless it is empty. A peek shows it,
    /// and a dead letter has it in its meta.
    pub fn nack_with_error(
        &self,
        queue: &str,
        held: &LeasedJobs<'_>,
        delay_ms: Option<u64>,
        error: &str,
    ) -> Result<LeaseOutcome> {
        queue::nack(&self.open.queues, &self.find(queue)?, held, delay_ms, error)
    }

    /// Gives back jobs that their worker has not begun: they can be claimed again, and their claim does
    /// not count as a delivery.
    pub fn release(&self, queue: &str, held: &LeasedJobs<'_>) -> Result<LeaseOutcome> {
        queue::release(&self.open.queues, &self.find(queue)?, held)
    }

    /// Deletes jobs, whatever state they are in. Leased ones are skipped unless `force` is set: their
    /// workers find out when they ack.
    pub fn remove_jobs(&self, queue: &str, seqs: &[u64], force: bool) -> Result<LeaseOutcome> {
        queue::remove(&self.open.queues, &self.find(queue)?, seqs, force)
    }

    /// Makes delayed jobs claimable now. Others are skipped.
    pub fn promote_jobs(&self, queue: &str, seqs: &[u64]) -> Result<LeaseOutcome> {
        queue::promote(&self.open.queues, &self.find(queue)?, seqs)
    }

    /// Leases run out `lease_ms` from now (`None`: the queue's).
    pub fn extend(
        &self,
        queue: &str,
        held: &LeasedJobs<'_>,
        lease_ms: Option<u64>,
    ) -> Result<LeaseOutcome> {
        queue::extend(&self.open.queues, &self.find(queue)?, held, lease_ms)
    }

    /// [`Engine::extend`] for every job of a [`Work`], by its number.
    pub fn extend_stream(
        &self,
        queue: &str,
        node: &[u8],
        stream: u64,
        lease_ms: Option<u64>,
    ) -> Result<LeaseOutcome> {
        let topic = self.find(queue)?;
        queue::extend_stream(&self.open.queues, &topic, (node, stream), lease_ms)
    }

    /// [`Engine::release`] for every job of a [`Work`], which gets no more.
    pub fn release_stream(&self, queue: &str, node: &[u8], stream: u64) -> Result<LeaseOutcome> {
        queue::release_stream(&self.open.queues, &self.find(queue)?, (node, stream))
    }

    /// A stream of jobs: at most `max` are leased to it at a time; dropping it ends their leases.
    pub fn work(
        &self,
        queue: &str,
        node: &[u8],
        max: usize,
        lease_ms: Option<u64>,
    ) -> Result<Work> {
        Work::open(&self.open.queues, self.open.owner(), &self.find(queue)?, node, max, lease_ms)
    }

    /// What claims would get next, and jobs by state; at most `max` of each, and no more after 8 MiB of
    /// payload.
    pub fn peek(&self, queue: &str, state: Option<JobState>, max: usize) -> Result<Peeked> {
        queue::peek(self.open.queues.ctx(), &self.find(queue)?, state, max)
    }

    /// Moves dead letters back, or revives the dead jobs of a queue.
    pub fn redrive(&self, topic: &str, req: &Redrive) -> Result<Redriven> {
        queue::redrive(&self.open.queues, &self.find(topic)?, req)
    }

    /// Counts of a queue.
    pub fn queue_state(&self, queue: &str) -> Result<QueueState> {
        queue::queue_state(self.open.queues.base(), &self.find(queue)?)
    }

    /// A consumer of a topic, created when it is new. `mode` is `at_least_once` unless said
    /// otherwise; an existing consumer keeps its mode. With `auto_commit` a read stores where the
    /// one before ended.
    pub fn consumer(
        &self,
        topic: &str,
        name: &str,
        mode: Option<ConsumerMode>,
        start: ConsumerStart,
        auto_commit: bool,
    ) -> Result<Consumer> {
        Consumer::open(
            self.open.ctx(),
            self.open.owner(),
            &self.find(topic)?,
            name,
            mode,
            start,
            auto_commit,
        )
    }

    /// The consumers of a topic, in name order.
    pub fn consumers(&self, topic: &str) -> Result<Vec<ConsumerInfo>> {
        self.consumers_page(topic, "", None, usize::MAX)
    }

    /// At most `limit` of the consumers of a topic whose names begin with `prefix` and come after
    /// `after`, in name order.
    pub fn consumers_page(
        &self,
        topic: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ConsumerInfo>> {
        self.find(topic)?.consumers(self.open.base(), prefix, after, limit)
    }

    /// A consumer as lists show it.
    pub fn consumer_info(&self, topic: &str, name: &str) -> Result<ConsumerInfo> {
        self.find(topic)?.consumer(self.open.base(), name)
    }

    /// Deletes a consumer; false when there was none.
    pub fn delete_consumer(&self, topic: &str, name: &str) -> Result<bool> {
        consumer::delete_consumer(self.open.ctx(), &self.find(topic)?, name)
    }
}
