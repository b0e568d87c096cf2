//! What an operator does with jobs that no worker holds: deletes them, ends their delay.

use std::collections::HashSet;
use std::sync::Arc;

use topics_storage::format::record::{self, LeaseEvent};

use super::Queues;
use super::ack::{MAX_SEQS, lease_outcome};
use super::records::load;
use super::{announce, commit, config_of, log, with};
use crate::topic::events::Ctx;
use crate::topic::load::{self, Need};
use crate::topic::state::State;
use crate::topic::state::index::Unknown;
use crate::topic::state::queue::RemovalReason;
use crate::topic::{Topic, delete};
use crate::types::clock::Now;
use crate::types::error::{Error, Result};
use crate::types::queue::LeaseOutcome;

/// Deletes jobs, whatever state they are in; leased ones only with `force`.
pub(crate) fn remove(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    seqs: &[u64],
    force: bool,
) -> Result<LeaseOutcome> {
    check(queues.ctx(), topic, seqs)?;
    let (mut removed, skipped) = loop {
        let (now, head) = (queues.base().time.now(), topic.gate.head());
        let reserved = reserve(&mut topic.state.write(), (now, head), seqs, force);
        match reserved {
            Ok(sorted) => break sorted,
            Err(Unknown(file_no)) => load::provide(queues.base(), topic, &Need::Dead(file_no))?,
        }
    };
    if !removed.is_empty() {
        removed.sort_unstable();
        delete::delete_seqs(queues.ctx(), topic, &removed, RemovalReason::REQUESTED)
            .inspect_err(|_| with(topic, |q| removed.iter().for_each(|seq| q.undo(*seq))))?;
        queues.base().metrics.removed_jobs.add(removed.len() as u64);
    }
    Ok(lease_outcome(queues, topic, removed, skipped))
}

/// Reserves the jobs that a removal deletes, so that no claim gets them meanwhile; returns them, and
/// the others. Reserves none where it is unknown which records of a segment are deleted.
fn reserve(
    state: &mut State,
    (now, head): (Now, u64),
    seqs: &[u64],
    force: bool,
) -> std::result::Result<(Vec<u64>, Vec<u64>), Unknown> {
    let State { queue, index, range, .. } = state;
    let mut live = Vec::with_capacity(seqs.len());
    for &seq in seqs {
        live.push(seq <= head && index.next_live(seq.max(range.floor))? == Some(seq));
    }
    let queue = queue.get_or_insert_default();
    queue.sweep(now);
    let (mut removed, mut skipped) = (Vec::new(), Vec::new());
    for (&seq, live) in seqs.iter().zip(live) {
        match live && queue.begin_removal(seq, force) {
            true => removed.push(seq),
            false => skipped.push(seq),
        }
    }
    Ok((removed, skipped))
}

/// Makes delayed jobs claimable now. For one that waits for the due time of its record that is in the
/// log, whether or not leases are durable: the record says otherwise.
pub(crate) fn promote(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    seqs: &[u64],
) -> Result<LeaseOutcome> {
    check(queues.ctx(), topic, seqs)?;
    let durable = topic.state.read().config.leases_durable;
    let (mut released, mut due) = (Vec::new(), Vec::new());
    let (mut promoted, mut skipped, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    let now = queues.base().time.now();
    with(topic, |queue| {
        queues.base().metrics.lease_expiries.add(queue.sweep(now));
        for &seq in seqs {
            match queue.promotion(seq).filter(|_| seen.insert(seq)) {
                Some((id, deliveries)) => {
                    let jobs = if durable || id > 0 { &mut released } else { &mut due };
                    jobs.push((seq, id, deliveries));
                    promoted.push(seq);
                }
                None => skipped.push(seq),
            }
        }
    });
    let event = |jobs| [record::Lease::new(LeaseEvent::Nack, b"", 0, jobs)];
    commit(queues, topic, now, &event(released))?;
    if !due.is_empty() {
        log(queues.ctx(), topic, &event(due))?;
        announce(queues, topic);
    }
    queues.base().metrics.promoted_jobs.add(promoted.len() as u64);
    Ok(lease_outcome(queues, topic, promoted, skipped))
}

fn check(ctx: &Arc<Ctx>, topic: &Arc<Topic>, seqs: &[u64]) -> Result<()> {
    config_of(topic)?;
    ctx.check_open()?;
    if seqs.len() > MAX_SEQS {
        let (got, max) = (seqs.len() as u64, MAX_SEQS as u64);
        return Err(Error::BatchTooLarge { got, max, unit: "seqs" });
    }
    load(ctx.base(), topic)
}
