//! What the holder of a lease does with it. Only current holders count (I6).

use std::sync::Arc;

use topics_storage::format::record::{self, LeaseEvent};

use super::Queues;
use super::{commit, config_of, stats, with};
use crate::topic::events::Ctx;
use crate::topic::state::queue::{Fence, Queue, RemovalReason};
use crate::topic::{Topic, delete};
use crate::types::api::Completion;
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result, clipped};
use crate::types::queue::{LeaseEnd, LeaseOutcome, LeasedJobs};

/// Seqs in one call, at most.
pub(crate) const MAX_SEQS: usize = 10_000;
/// The longest delay of a nack: a day.
const MAX_DELAY_MS: u64 = 86_400_000;
/// Where the delay of a nack stops doubling.
const MAX_BACKOFF_MS: u64 = 300_000;
/// What is kept of the error of a nack.
const MAX_ERROR_BYTES: usize = 1024;
/// The limits of a lease, ms.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

/// The jobs of a request: those that its worker holds, and the others.
#[derive(Debug, Default)]
struct SortedJobs {
    held: Vec<u64>,
    skipped: Vec<u64>,
    /// Why, for each of `skipped`.
    reasons: Vec<LeaseEnd>,
}

impl SortedJobs {
    fn outcome(self, queues: &Queues, topic: &Topic) -> LeaseOutcome {
        let Self { held, skipped, reasons } = self;
        LeaseOutcome { reasons, ..lease_outcome(queues, topic, held, skipped) }
    }
}

/// Sorts the request into leases that this node holds and the rest; `f` sees each that it holds.
fn sort(
    generation: u64,
    topic: &Topic,
    held: &LeasedJobs<'_>,
    mut f: impl FnMut(&mut Queue, u64),
) -> Result<SortedJobs> {
    if held.seqs.len() > MAX_SEQS {
        let (got, max) = (held.seqs.len() as u64, MAX_SEQS as u64);
        return Err(Error::BatchTooLarge { got, max, unit: "seqs" });
    }
    if held.lease_ids.is_some_and(|ids| ids.len() != held.seqs.len()) {
        return Err(Error::InvalidRequest("lease_ids must be as many as seqs".into()));
    }
    let mut sorted = SortedJobs::default();
    let mut state = topic.state.write();
    let durable = state.config.leases_durable;
    let queue = state.queue.get_or_insert_default();
    queue.begin(generation, topic.id());
    for (i, &seq) in held.seqs.iter().enumerate() {
        let id = held.lease_ids.and_then(|ids| ids.get(i).copied());
        if queue.holds(Fence { node: held.node, seq, id }) {
            f(queue, seq);
            sorted.held.push(seq);
        } else {
            sorted.skipped.push(seq);
            sorted.reasons.push(queue.lease_end(seq, id, durable));
        }
    }
    Ok(sorted)
}

pub(crate) fn lease_outcome(
    queues: &Queues,
    topic: &Topic,
    done: Vec<u64>,
    skipped: Vec<u64>,
) -> LeaseOutcome {
    queues.claim_waiters.notify(topic.id());
    LeaseOutcome {
        done,
        skipped,
        reasons: Vec::new(),
        deadline: None,
        queue: stats::counts(queues.base(), topic, queues.base().time.now()),
    }
}

/// Acks: the jobs are deleted.
pub(crate) fn ack(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    held: &LeasedJobs<'_>,
) -> Result<LeaseOutcome> {
    config_of(topic)?;
    let mut jobs = sort(queues.ctx().generation, topic, held, |q, seq| q.suspend_expiry(seq))?;
    if !jobs.held.is_empty() {
        jobs.held.sort_unstable();
        delete::delete_seqs(queues.ctx(), topic, &jobs.held, RemovalReason::REQUESTED)
            .inspect_err(|_| release_acks(topic, &jobs.held))?;
        queues.base().metrics.acked_jobs.add(jobs.held.len() as u64);
    }
    Ok(jobs.outcome(queues, topic))
}

/// The same for event loops: `done` is called once, from here or when the class is reached. Gives
/// `done` back, and changes nothing, when something has to be waited for first.
pub(crate) fn ack_async(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    held: &LeasedJobs<'_>,
    done: Completion<LeaseOutcome>,
) -> std::result::Result<(), Completion<LeaseOutcome>> {
    let (staged, jobs) = match stage_ack(queues.ctx(), topic, held) {
        Ok(Some((Some(staged), jobs))) => (staged, jobs),
        Ok(Some((None, jobs))) => {
            done(Ok(jobs.outcome(queues, topic)));
            return Ok(());
        }
        Ok(None) => return Err(done),
        Err(e) => {
            done(Err(e));
            return Ok(());
        }
    };
    let (at, queue) = (queues.clone(), topic.clone());
    let finish = move |outcome: topics_storage::Result<()>| match outcome {
        Ok(()) => {
            at.base().metrics.acked_jobs.add(jobs.held.len() as u64);
            done(Ok(jobs.outcome(&at, &queue)));
        }
        Err(e) => {
            release_acks(&queue, &jobs.held);
            done(Err(e.into()));
        }
    };
    queues.ctx().wal.on_level(staged.ticket, staged.level, Box::new(finish));
    Ok(())
}

/// What an ack deletes, if anything, and its jobs.
type StagedAck = (Option<delete::Staged>, SortedJobs);

/// Stages an ack; `None`, and nothing has changed, when something has to be waited for first.
fn stage_ack(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    held: &LeasedJobs<'_>,
) -> Result<Option<StagedAck>> {
    config_of(topic)?;
    ctx.check_open()?;
    topic.check_sound()?;
    let mut jobs = sort(ctx.generation, topic, held, |q, seq| q.suspend_expiry(seq))?;
    if jobs.held.is_empty() {
        return Ok(Some((None, jobs)));
    }
    jobs.held.sort_unstable();
    let staged = delete::stage_seqs(ctx, topic, &jobs.held);
    if !matches!(staged, Ok(Some(_))) {
        release_acks(topic, &jobs.held);
    }
    Ok(staged?.map(|staged| (Some(staged), jobs)))
}

/// Whether a nack or an extension of this queue waits for nothing.
pub(crate) fn at_once(topic: &Topic) -> bool {
    !topic.state.read().config.leases_durable
}

/// Takes the jobs that a transaction acks: all of them are held, or none is taken.
pub(crate) fn take_acks(
    generation: u64,
    topic: &Topic,
    acks: &[LeasedJobs<'_>],
) -> Result<Vec<u64>> {
    let mut taken = Vec::new();
    for held in acks {
        config_of(topic)?;
        let lost = match sort(generation, topic, held, |q, seq| q.suspend_expiry(seq)) {
            Ok(jobs) => {
                taken.extend(jobs.held);
                let queue = || topic.name.to_string();
                let first = jobs.skipped.first().zip(jobs.reasons.first());
                first.map(|(&seq, &reason)| Error::LeaseLost { queue: queue(), seq, reason })
            }
            Err(e) => Some(e),
        };
        if let Some(e) = lost {
            release_acks(topic, &taken);
            return Err(e);
        }
    }
    Ok(taken)
}

/// The leases of jobs whose ack did not come to be run out again.
pub(crate) fn release_acks(topic: &Topic, seqs: &[u64]) {
    if !seqs.is_empty() {
        with(topic, |q| seqs.iter().for_each(|seq| q.resume_expiry(*seq)));
    }
}

/// Gives jobs back that their worker has not begun, without a delay. What was not begun is no delivery:
/// the count is that of before the claim.
pub(crate) fn release(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    held: &LeasedJobs<'_>,
) -> Result<LeaseOutcome> {
    config_of(topic)?;
    let mut event = record::Lease::new(LeaseEvent::Nack, held.node, 0, Vec::new());
    let jobs = sort(queues.ctx().generation, topic, held, |q, seq| {
        let Some((id, deliveries)) = q.lease(seq) else { return };
        q.suspend_expiry(seq);
        event.jobs.push((seq, id, deliveries.saturating_sub(1)));
    })?;
    commit(queues, topic, queues.base().time.now(), &[event])
        .inspect_err(|_| release_acks(topic, &jobs.held))?;
    queues.base().metrics.released_jobs.add(jobs.held.len() as u64);
    Ok(jobs.outcome(queues, topic))
}

/// Gives jobs back, now or after a delay; without one the queue's backoff, doubled with each delivery.
/// The beginning of `error` is kept with them.
pub(crate) fn nack(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    held: &LeasedJobs<'_>,
    delay_ms: Option<u64>,
    error: &str,
) -> Result<LeaseOutcome> {
    let config = config_of(topic)?;
    let error = clipped(error, MAX_ERROR_BYTES);
    let mut events: Vec<record::Lease> = Vec::new();
    let jobs = sort(queues.ctx().generation, topic, held, |q, seq| {
        let Some((id, deliveries)) = q.lease(seq) else { return };
        let delay = delay_ms.unwrap_or_else(|| backoff(&config, deliveries)).min(MAX_DELAY_MS);
        q.suspend_expiry(seq);
        add(&mut events, LeaseEvent::Nack, held.node, delay, (seq, id, deliveries));
    })?;
    events.iter_mut().for_each(|e| e.error = error.to_owned());
    commit(queues, topic, queues.base().time.now(), &events)
        .inspect_err(|_| release_acks(topic, &jobs.held))?;
    queues.base().metrics.nacked_jobs.add(jobs.held.len() as u64);
    Ok(jobs.outcome(queues, topic))
}

/// The delay after so many deliveries.
fn backoff(config: &TopicConfig, deliveries: u32) -> u64 {
    let doublings = deliveries.saturating_sub(1).min(32);
    config.retry_backoff_ms.saturating_mul(1 << doublings).min(MAX_BACKOFF_MS)
}

fn add(
    events: &mut Vec<record::Lease>,
    event: LeaseEvent,
    node: &[u8],
    lease_ms: u64,
    job: (u64, u64, u32),
) {
    match events.iter_mut().find(|e| e.lease_ms == lease_ms) {
        Some(e) => e.jobs.push(job),
        None => events.push(record::Lease::new(event, node, lease_ms, vec![job])),
    }
}

/// The leases run out `lease_ms` from now.
pub(crate) fn extend(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    held: &LeasedJobs<'_>,
    lease_ms: Option<u64>,
) -> Result<LeaseOutcome> {
    let config = config_of(topic)?;
    let lease_ms = lease_ms.unwrap_or(config.lease_ms).clamp(*LEASE_MS.start(), *LEASE_MS.end());
    let mut events = Vec::new();
    let jobs = sort(queues.ctx().generation, topic, held, |q, seq| {
        if let Some((id, deliveries)) = q.lease(seq) {
            add(&mut events, LeaseEvent::Extend, held.node, lease_ms, (seq, id, deliveries));
        }
    })?;
    let now = queues.base().time.now();
    commit(queues, topic, now, &events)?;
    queues.base().metrics.extended_jobs.add(jobs.held.len() as u64);
    let deadline = now.wall.saturating_add(lease_ms);
    Ok(LeaseOutcome { deadline: Some(deadline), ..jobs.outcome(queues, topic) })
}

/// Renews every lease of a stream.
pub(crate) fn extend_stream(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    (node, stream): (&[u8], u64),
    lease_ms: Option<u64>,
) -> Result<LeaseOutcome> {
    config_of(topic)?;
    let seqs = with(topic, |q| q.of_stream(stream));
    extend(queues, topic, &LeasedJobs { node, seqs: &seqs, lease_ids: None }, lease_ms)
}

/// Gives back every job of a stream, as [`release`] does; the stream gets no more.
pub(crate) fn release_stream(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    (node, stream): (&[u8], u64),
) -> Result<LeaseOutcome> {
    config_of(topic)?;
    let seqs = with(topic, |q| {
        q.release_stream(stream);
        q.of_stream(stream)
    });
    release(queues, topic, &LeasedJobs { node, seqs: &seqs, lease_ids: None })
}

/// Ends the leases of a stream: its jobs can be claimed again, without a delay. They were handed to the
/// worker, which may have begun them, so they count as delivered.
pub(crate) fn end_stream(queues: &Arc<Queues>, topic: &Arc<Topic>, node: &[u8], stream: u64) {
    let seqs = with(topic, |q| q.of_stream(stream));
    for seqs in seqs.chunks(MAX_SEQS) {
        let held = LeasedJobs { node, seqs, lease_ids: None };
        if let Err(e) = nack(queues, topic, &held, Some(0), "") {
            log::debug!("topic {:?}: a stream's leases run out by themselves: {e}", topic.name);
        }
    }
    with(topic, |q| q.end_stream(stream));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_five_minutes() {
        let config = TopicConfig::default();
        let after: Vec<u64> = [1, 2, 3, 9, 10, 4000].map(|n| backoff(&config, n)).into();
        assert_eq!(after, [1000, 2000, 4000, 256_000, 300_000, 300_000]);
    }
}
