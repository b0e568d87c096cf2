//! Looking at a queue without touching it.

use std::sync::Arc;

use topics_storage::format::attrs::Attrs;

use super::claim::{SWEEPS, sweep_expired};
use super::config_of;
use super::records::{fetch, load};
use crate::topic::Topic;
use crate::topic::events::{Base, Ctx};
use crate::topic::load::{self, Need};
use crate::topic::read::age;
use crate::topic::state::State;
use crate::topic::state::index::Unknown;
use crate::topic::state::queue::{JobView, Queue};
use crate::types::batch::RecordSlot;
use crate::types::clock::Now;
use crate::types::error::Result;
use crate::types::queue::{JobState, Peeked, PeekedJob, QueueState};

/// Counts of a queue, as far as its jobs are known (see `load`).
pub(crate) fn counts(base: &Base, topic: &Topic, now: Now) -> QueueState {
    let head = topic.gate.head();
    let mut state = topic.state.write();
    let hidden = state.hidden(head).0;
    let live = state.live.count.saturating_sub(hidden);
    let queue = state.queue.get_or_insert_default();
    base.metrics.lease_expiries.add(queue.sweep(now));
    let (in_flight, delayed, dead) = queue.counts();
    QueueState {
        ready: live.saturating_sub(in_flight + delayed + dead),
        in_flight,
        delayed,
        dead,
        dead_lettered: queue.tally.dead_lettered,
        expired: queue.tally.expired,
    }
}

/// The exact counts.
pub(crate) fn queue_state(base: &Base, topic: &Arc<Topic>) -> Result<QueueState> {
    topic.check_sound()?;
    load(base, topic)?;
    Ok(counts(base, topic, base.time.now()))
}

/// Milliseconds since the oldest ready job was written, became due or was released: of the next job of
/// each lane, the one that waits longest. 0 without a ready job.
pub(crate) fn oldest_ready_ms(base: &Base, topic: &Topic) -> Result<u64> {
    load(base, topic)?;
    let now = base.time.now();
    let (written, again) = loop {
        let found = {
            let head = topic.gate.head();
            let mut state = topic.state.write();
            let State { queue, index, range, .. } = &mut *state;
            let queue = queue.get_or_insert_default();
            base.metrics.lease_expiries.add(queue.sweep(now));
            queue.oldest_ready(|from| {
                let found = index.next_live(from.max(range.floor))?;
                Ok::<_, Unknown>(found.filter(|seq| *seq <= head))
            })
        };
        match found {
            Ok(found) => break found,
            Err(unknown) => load::provide(base, topic, &unknown.into())?,
        }
    };
    let written = written.map_or(Ok(0), |seq| age(base, topic, seq))?;
    Ok(written.max(again.map_or(0, |since| now.wall.saturating_sub(since))))
}

/// Jobs whose records are read at once.
const PEEK_CHUNK: usize = 16;
/// Payload bytes after which a peek shows no further job.
const PEEK_BYTES: usize = 8 << 20;

/// What claims would get next, and jobs by state: at most `max` of each state asked for, and no more
/// after [`PEEK_BYTES`].
pub(crate) fn peek(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    state: Option<JobState>,
    max: usize,
) -> Result<Peeked> {
    config_of(topic)?;
    topic.check_sound()?;
    load(ctx.base(), topic)?;
    let mut sweeps = 0;
    loop {
        let jobs = list(ctx.base(), topic, state, max)?;
        let (shown, has_all) = with_records(ctx, topic, jobs)?;
        if has_all || sweeps == SWEEPS {
            return Ok(shown);
        }
        // What has expired hides others from a claim no more than from here.
        sweeps += 1;
        if let Err(e) = sweep_expired(ctx, topic) {
            log::debug!("topic {:?}: what has expired stays for now: {e}", topic.name);
        }
    }
}

/// The jobs with their records, and whether each that was looked at has one.
fn with_records(ctx: &Ctx, topic: &Topic, mut jobs: Vec<PeekedJob>) -> Result<(Peeked, bool)> {
    let mut out = Peeked { topic_id: topic.id(), ..Peeked::default() };
    let (mut has_all, mut bytes) = (true, 0);
    for some in jobs.chunks_mut(PEEK_CHUNK) {
        let seqs: Vec<u64> = some.iter().map(|j| j.seq).collect();
        let (batch, slots) = fetch(ctx, topic, &seqs, false)?;
        let chunks = out.records.chunks.len() as u32;
        out.records.chunks.extend(batch.chunks.iter().cloned());
        for (job, slot) in some.iter_mut().zip(slots) {
            let Some((i, slot)) = slot.and_then(|s| Some((s, batch.slots.get(s)?))) else {
                has_all = false;
                continue;
            };
            job.group = group_of(batch.attrs(i));
            out.jobs.push(job.clone());
            out.records.slots.push(RecordSlot { chunk: slot.chunk + chunks, ..*slot });
            bytes += slot.data_len as usize;
            if bytes >= PEEK_BYTES {
                return Ok((out, has_all));
            }
        }
    }
    Ok((out, has_all))
}

/// The group that a record's attributes name.
fn group_of(attrs: &[u8]) -> Option<Vec<u8>> {
    Attrs::decode(attrs)?.group.map(<[u8]>::to_vec)
}

fn list(base: &Base, topic: &Topic, state: Option<JobState>, max: usize) -> Result<Vec<PeekedJob>> {
    loop {
        let unknown = {
            let mut s = topic.state.write();
            match listed(base, &mut s, topic.gate.head(), state, max) {
                Ok(jobs) => return Ok(jobs),
                Err(Unknown(file_no)) => file_no,
            }
        };
        load::provide(base, topic, &Need::Dead(unknown))?;
    }
}

fn listed(
    base: &Base,
    state: &mut State,
    head: u64,
    want: Option<JobState>,
    max: usize,
) -> std::result::Result<Vec<PeekedJob>, Unknown> {
    let State { queue, index, range, .. } = state;
    let queue = queue.get_or_insert_default();
    let now = base.time.now();
    base.metrics.lease_expiries.add(queue.sweep(now));
    let mut out = Vec::new();
    if want.is_none_or(|w| w == JobState::Ready) {
        let fresh = |from: u64| {
            let found = index.next_live(from.max(range.floor))?;
            Ok(found.filter(|seq| *seq <= head))
        };
        let seqs = queue.preview(max, fresh)?;
        out.extend(seqs.into_iter().map(|seq| ready(queue, seq)));
    }
    let mut left = [max; 4];
    for (seq, deliveries, shown) in queue.views() {
        let Some(job) = other(seq, deliveries, shown, now) else { continue };
        let room = &mut left[job.state as usize];
        if *room > 0 && want.is_none_or(|w| w == job.state) {
            *room -= 1;
            out.push(job);
        }
    }
    for job in &mut out {
        job.lane = queue.lane(job.seq);
        job.error = queue.error(job.seq).map(str::to_owned);
    }
    Ok(out)
}

fn ready(queue: &Queue, seq: u64) -> PeekedJob {
    PeekedJob { deliveries: queue.deliveries(seq), ..bare(seq, JobState::Ready) }
}

fn bare(seq: u64, state: JobState) -> PeekedJob {
    PeekedJob {
        seq,
        state,
        deliveries: 0,
        node: None,
        lease_id: None,
        deadline: None,
        visible_at: None,
        lane: 0,
        group: None,
        error: None,
    }
}

/// A job that no claim gets now.
fn other(seq: u64, deliveries: u32, shown: JobView, now: Now) -> Option<PeekedJob> {
    let at = |mono: u64| Some(now.wall.saturating_add(mono.saturating_sub(now.mono)));
    let job = match shown {
        JobView::Ready => return None,
        JobView::Scheduled(at) => {
            PeekedJob { visible_at: Some(at), ..bare(seq, JobState::Delayed) }
        }
        JobView::Delayed(until) => {
            PeekedJob { visible_at: at(until), ..bare(seq, JobState::Delayed) }
        }
        JobView::Dead => bare(seq, JobState::Dead),
        JobView::Leased { id, node, deadline, .. } => PeekedJob {
            node: Some(node.to_vec()),
            lease_id: Some(id),
            deadline: at(deadline),
            ..bare(seq, JobState::Leased)
        },
    };
    Some(PeekedJob { deliveries, ..job })
}
