//! Claims: jobs are picked and reserved, their records read, the leases logged and applied.

use std::collections::VecDeque;
use std::sync::Arc;

use topics_env::sync::Instant;
use topics_storage::format::record::{self, LeaseEvent};

use super::Queues;
use super::cancel::{ClaimState, PinnedClaim};
use super::records::{fetch, load};
use super::waiters::Waiter;
use super::{commit, config_of, dead_letter, with};
use crate::topic::Topic;
use crate::topic::events::{Base, Ctx};
use crate::topic::load::{self, Need};
use crate::topic::retention;
use crate::topic::state::State;
use crate::topic::state::index::Unknown;
use crate::topic::state::queue::{Holder, Queue};
use crate::types::api::Completion;
use crate::types::batch::ReadBatch;
use crate::types::clock::Now;
use crate::types::error::{Error, Result};
use crate::types::queue::{Claim, Claimed, Lease};
use crate::types::wait::OneShot;

/// Most jobs that one claim gets.
const MAX_JOBS: usize = 10_000;
/// The longest wait.
const MAX_WAIT_MS: u64 = 30_000;
/// The limits of a lease, ms.
const LEASE_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;
/// Jobs over their deliveries that one pass puts away.
const MAX_EXHAUSTED: usize = 1000;
/// How often one claim sweeps what has expired.
pub(crate) const SWEEPS: usize = 3;

/// What one claim requests.
#[derive(Clone, Debug)]
pub(crate) struct ClaimRequest {
    pub node: Arc<[u8]>,
    pub max: usize,
    pub lease_ms: Option<u64>,
    pub stream: u64,
    /// Of a claim that may be cancelled.
    pub state: ClaimState,
}

impl ClaimRequest {
    pub(crate) fn new(base: &Base, req: &Claim<'_>, stream: u64) -> Result<Self> {
        let max = base.options.max_node_bytes;
        if req.node.is_empty() || req.node.len() > max {
            let n = req.node.len();
            let text = format!("a claim names its node in 1 to {max} bytes, not {n}");
            return Err(Error::InvalidRequest(text));
        }
        if req.max == 0 {
            return Err(Error::InvalidRequest("a claim is for at least one job".into()));
        }
        let lease_ms = req.lease_ms.map(|ms| ms.clamp(*LEASE_MS.start(), *LEASE_MS.end()));
        let state = ClaimState::default();
        Ok(Self { node: req.node.into(), max: req.max.min(MAX_JOBS), lease_ms, stream, state })
    }

    /// How many jobs it can take now.
    pub(crate) fn capacity(&self, topic: &Topic) -> usize {
        match self.stream {
            0 => self.max,
            s => with(topic, |q| q.stream_capacity(s, self.max)),
        }
    }
}

/// Claims, waiting as long as the request says when nothing is available.
pub(crate) fn claim(queues: &Arc<Queues>, topic: &Arc<Topic>, req: &Claim<'_>) -> Result<Claimed> {
    claim_for(queues, topic, req, 0)
}

/// A claim of a stream.
pub(crate) fn claim_for(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    req: &Claim<'_>,
    stream: u64,
) -> Result<Claimed> {
    let config = config_of(topic)?;
    let request = ClaimRequest::new(queues.base(), req, stream)?;
    if config.claim_jitter_ms == 0 {
        let order = vec![0; request.capacity(topic)];
        let mut given =
            claim_pass(queues, topic, std::slice::from_ref(&request), &order, ExhaustedJobs::Move)?;
        if let Some(c) = given.pop().filter(|c| !c.is_empty() || req.wait.is_zero()) {
            return Ok(c);
        }
    }
    let answer = OneShot::new();
    let answered = answer.clone();
    let done: Completion<Claimed> = Box::new(move |outcome| answered.set(outcome));
    let waiter = Waiter::new(queues.base(), request, req.wait.min(max_wait()), done);
    let id = queues.claim_waiters.enqueue(queues, topic, waiter);
    // The thread of the queues answers at the timeout; an engine without threads is driven by its
    // owner.
    let call_timeout = max_wait() + max_wait();
    let time_out = Instant::now().checked_add(if queues.base().options.background {
        call_timeout
    } else {
        req.wait
    });
    if let Some(outcome) = answer.wait(time_out) {
        return outcome;
    }
    if queues.claim_waiters.cancel(topic.id(), id) {
        return Ok(empty(queues.base(), topic));
    }
    // The claim was answered before it could be withdrawn: the answer is set, or will be.
    answer.wait(None).unwrap_or(Err(Error::Closed))
}

fn max_wait() -> std::time::Duration {
    std::time::Duration::from_millis(MAX_WAIT_MS)
}

/// The same without blocking: `done` is called once: inside this call, by the thread of the queues, or by
/// the caller of `tick`. The returned id withdraws it, 0: it was answered.
pub(crate) fn claim_async(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    req: &Claim<'_>,
    stream: u64,
    done: Completion<Claimed>,
) -> u64 {
    match config_of(topic)
        .and_then(|config| Ok((config, ClaimRequest::new(queues.base(), req, stream)?)))
    {
        Ok((config, request)) => {
            // Logging a lease would block, and claims that wait are served first.
            let here = config.claim_jitter_ms == 0
                && !config.leases_durable
                && !queues.claim_waiters.serves(topic.id());
            if here {
                let order = vec![0; request.capacity(topic)];
                let given = claim_pass(
                    queues,
                    topic,
                    std::slice::from_ref(&request),
                    &order,
                    ExhaustedJobs::Leave,
                );
                match given.map(|mut given| given.pop().filter(|c| !c.is_empty())) {
                    Ok(None) => {}
                    Ok(Some(claimed)) => {
                        done(Ok(claimed));
                        return 0;
                    }
                    Err(e) => {
                        done(Err(e));
                        return 0;
                    }
                }
            }
            let waiter = Waiter::new(queues.base(), request, req.wait.min(max_wait()), done);
            queues.claim_waiters.enqueue(queues, topic, waiter)
        }
        Err(e) => {
            done(Err(e));
            0
        }
    }
}

/// The answer of a claim that got nothing.
pub(crate) fn empty(base: &Base, topic: &Topic) -> Claimed {
    let ready = super::stats::counts(base, topic, base.time.now()).ready;
    Claimed { topic_id: topic.id(), ready, ..Claimed::default() }
}

/// A job that was reserved for one of the requests.
#[derive(Clone, Copy, Debug)]
struct ReservedJob {
    request: usize,
    lease: Lease,
}

/// What a pass picked.
#[derive(Debug, Default)]
struct Pass {
    /// The requests that the next jobs are for, by index.
    order: VecDeque<usize>,
    jobs: Vec<ReservedJob>,
    /// Over their deliveries, to be moved to the dead-letter topic.
    over: Vec<u64>,
    /// Jobs that leave their place without a lease, and their latest: that it ran out is logged.
    ended: Vec<(u64, u64, u32)>,
}

impl Pass {
    fn end(&mut self, queue: &Queue, seq: u64) {
        self.ended.extend(ended(queue, seq));
    }
}

/// What the log says of a job that is claimable no more without having been leased again: that its
/// latest lease ran out.
pub(crate) fn ended(queue: &Queue, seq: u64) -> Option<(u64, u64, u32)> {
    let last = queue.last_lease(seq);
    (last != 0).then(|| (seq, last, queue.deliveries(seq)))
}

/// What a pass does with jobs that have had all their deliveries and go to another topic, which is
/// waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExhaustedJobs {
    /// They go there.
    Move,
    /// It ends at the first of them.
    Leave,
}

/// One pass for all of the requests: the `i`-th job goes to the request that `order` names.
pub(crate) fn claim_pass(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    requests: &[ClaimRequest],
    order: &[usize],
    dead: ExhaustedJobs,
) -> Result<Vec<Claimed>> {
    queues.ctx().check_open()?;
    topic.check_sound()?;
    load(queues.base(), topic)?;
    let now = queues.base().time.now();
    topic.touch(now.wall);
    let mut pass = Pass { order: order.iter().copied().collect(), ..Pass::default() };
    let outcome = reserve_and_read(queues, topic, (requests, dead), now, &mut pass)
        .and_then(|records| lease(queues, topic, requests, &mut pass, records));
    if outcome.is_err() {
        with(topic, |q| pass.jobs.iter().for_each(|p| q.undo(p.lease.seq)));
    }
    outcome
}

/// Records, and the slot of each job that was picked.
type Records = (ReadBatch, Vec<usize>);

/// Reserves jobs and reads their records. Expired records hide no job: a pass that may
/// wait sweeps them and goes on.
fn reserve_and_read(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    asked: (&[ClaimRequest], ExhaustedJobs),
    mut now: Now,
    pass: &mut Pass,
) -> Result<Records> {
    for round in 0.. {
        let picked = reserve_jobs(queues.ctx(), topic, asked, now, pass);
        if !pass.over.is_empty() {
            dead_letter::move_exhausted(queues, topic, &std::mem::take(&mut pass.over));
        }
        picked?;
        let seqs: Vec<u64> = pass.jobs.iter().map(|p| p.lease.seq).collect();
        let (batch, slots) = fetch(queues.ctx(), topic, &seqs, false)?;
        let gone = drop_gone(topic, pass, &slots);
        if gone.is_empty() || round == SWEEPS || asked.1 == ExhaustedJobs::Leave {
            return Ok((batch, slots.into_iter().flatten().collect()));
        }
        let swept = sweep_expired(queues.ctx(), topic);
        with(topic, |q| gone.iter().for_each(|seq| q.undo(*seq)));
        swept?;
        now = queues.base().time.now();
    }
    Err(Error::Internal("a claim has no end".into()))
}

/// What has expired goes now, not with the next sweep of all topics.
pub(crate) fn sweep_expired(ctx: &Arc<Ctx>, topic: &Arc<Topic>) -> Result<()> {
    retention::expire(ctx, topic)?;
    retention::sweep_records(ctx, topic)?;
    Ok(())
}

/// Drops the jobs whose record expired or was deleted since; returns their seqs. No claim gets an
/// expired one again, and it keeps its history for its dead letter, until the sweep removes it.
fn drop_gone(topic: &Topic, pass: &mut Pass, slots: &[Option<usize>]) -> Vec<u64> {
    let mut gone = Vec::new();
    let mut slots = slots.iter();
    pass.jobs.retain(|p| {
        let there = slots.next().is_some_and(Option::is_some);
        if !there {
            gone.push(*p);
        }
        there
    });
    if !gone.is_empty() {
        with(topic, |q| {
            for p in &gone {
                pass.order.push_front(p.request);
                // The deletion of a record removes its job.
                if q.lease(p.lease.seq).is_some() {
                    q.undo(p.lease.seq);
                    pass.end(q, p.lease.seq);
                    q.take_exhausted(p.lease.seq, false);
                }
            }
        });
    }
    gone.iter().map(|p| p.lease.seq).collect()
}

/// Reserves jobs for the requests in `pass.order`.
fn reserve_jobs(
    ctx: &Ctx,
    topic: &Topic,
    asked: (&[ClaimRequest], ExhaustedJobs),
    mut now: Now,
    pass: &mut Pass,
) -> Result<()> {
    loop {
        let head = topic.gate.head();
        let unknown = {
            let mut state = topic.state.write();
            match reserve_known(ctx, topic.id(), &mut state, asked, now, head, pass) {
                Ok(()) => return Ok(()),
                Err(Unknown(file_no)) => file_no,
            }
        };
        load::provide(ctx.base(), topic, &Need::Dead(unknown))?;
        now = ctx.base().time.now();
    }
}

fn reserve_known(
    ctx: &Ctx,
    topic_id: u64,
    state: &mut State,
    (requests, dead): (&[ClaimRequest], ExhaustedJobs),
    now: Now,
    head: u64,
    pass: &mut Pass,
) -> std::result::Result<(), Unknown> {
    let State { queue, index, config, range, .. } = state;
    let queue = queue.get_or_insert_default();
    queue.begin(ctx.generation, topic_id);
    ctx.base().metrics.lease_expiries.add(queue.sweep(now));
    if config.paused {
        return Ok(());
    }
    let mut exhausted = 0;
    while let Some(&request_no) = pass.order.front() {
        let fresh = |from: u64| {
            let found = index.next_live(from.max(range.floor))?;
            Ok(found.filter(|seq| *seq <= head))
        };
        let Some(t) = queue.next(now, fresh)? else { return Ok(()) };
        if config.max_deliveries > 0 && u64::from(t.deliveries) >= config.max_deliveries {
            if config.dead_letter.is_none() {
                queue.mark_dead(t.seq, now);
                pass.end(queue, t.seq);
            } else if dead == ExhaustedJobs::Leave {
                return Ok(());
            } else {
                queue.begin_move(t.seq, now);
                pass.over.push(t.seq);
            }
            exhausted += 1;
            if exhausted == MAX_EXHAUSTED {
                return Ok(());
            }
            continue;
        }
        let Some(request) = requests.get(request_no) else { return Ok(()) };
        let lease_ms = request.lease_ms.unwrap_or(config.lease_ms);
        let holder = Holder { node: request.node.clone(), lease_ms, stream: request.stream };
        let lease_id = queue.reserve(t.seq, &holder, now);
        let deadline = now.wall.saturating_add(lease_ms);
        let lease = Lease { seq: t.seq, lease_id, deadline, deliveries: t.deliveries + 1 };
        pass.jobs.push(ReservedJob { request: request_no, lease });
        pass.order.pop_front();
    }
    Ok(())
}

/// Undoes what was reserved for claims that were cancelled since; the others cannot be cancelled
/// while the guards live.
fn pin<'a>(
    topic: &Topic,
    requests: &'a [ClaimRequest],
    pass: &mut Pass,
    slots: &mut Vec<usize>,
) -> Vec<PinnedClaim<'a>> {
    let pinned: Vec<_> = requests.iter().map(|request| request.state.pin()).collect();
    let kept: Vec<bool> = pass.jobs.iter().map(|p| pinned[p.request].is_some()).collect();
    if kept.contains(&false) {
        with(topic, |q| {
            let dropped = pass.jobs.iter().zip(&kept).filter(|(_, kept)| !**kept);
            dropped.for_each(|(p, _)| q.undo(p.lease.seq));
        });
        let mut keep = kept.iter();
        slots.retain(|_| keep.next().is_none_or(|k| *k));
        let mut keep = kept.iter();
        pass.jobs.retain(|_| keep.next().is_none_or(|k| *k));
    }
    pinned.into_iter().flatten().collect()
}

/// Logs and applies the leases, makes the answers.
fn lease(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    requests: &[ClaimRequest],
    pass: &mut Pass,
    (batch, mut slots): Records,
) -> Result<Vec<Claimed>> {
    let pinned = pin(topic, requests, pass, &mut slots);
    let mut out: Vec<Claimed> = Vec::with_capacity(requests.len());
    // First what makes way: after a crash there are no two leases in a group (I6).
    let mut events = vec![record::Lease::new(LeaseEvent::Nack, b"", 0, pass.ended.clone())];
    let default = topic.state.read().config.lease_ms;
    for (i, request) in requests.iter().enumerate() {
        let lease_ms = request.lease_ms.unwrap_or(default);
        let mut c = Claimed { topic_id: topic.id(), lease_ms, ..Claimed::default() };
        c.records.chunks.clone_from(&batch.chunks);
        for (p, slot) in pass.jobs.iter().zip(&slots).filter(|(p, _)| p.request == i) {
            if let Some(slot) = batch.slots.get(*slot) {
                c.leases.push(p.lease);
                c.records.slots.push(*slot);
            }
        }
        let jobs = c.leases.iter().map(|l| (l.seq, l.lease_id, l.deliveries)).collect();
        events.push(record::Lease::new(LeaseEvent::Claim, &request.node, lease_ms, jobs));
        out.push(c);
    }
    let now = queues.base().time.now();
    if topic.state.read().config.leases_durable {
        // A claim that is cancelled while its lease is logged gives it back after that.
        drop(pinned);
        commit(queues, topic, now, &events)?;
    } else {
        commit(queues, topic, now, &events)?;
        drop(pinned);
    }
    queues.base().metrics.claims.add(pass.jobs.len() as u64);
    let ready = super::stats::counts(queues.base(), topic, now).ready;
    out.iter_mut().for_each(|c| c.ready = ready);
    Ok(out)
}
