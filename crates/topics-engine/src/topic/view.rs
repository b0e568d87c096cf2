//! The state of a topic as callers see it.

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;

use super::load::Need;
use super::retention::{self, Expired};
use super::state::State;
use super::{Life, Topic, expire};
use crate::topic::events::{Base, Ctx};
use crate::topic::load;
use crate::types::api::{TopicState, TopicSummary};
use crate::types::config::TopicType;
use crate::types::error::Result;
use crate::types::priority;
use crate::types::queue::QueueState;

impl Topic {
    /// Records the time of a read, for the automatic priority.
    pub(crate) fn touch(&self, now: u64) {
        self.last_read.store(now, Ordering::Relaxed);
    }

    fn priority(&self, config: &crate::types::config::TopicConfig, now: u64) -> i32 {
        priority::effective(config, self.last_read.load(Ordering::Relaxed), now)
    }
}

/// The exact state: expired records are removed first. If the log takes no more writes, the floors
/// follow the clock all the same, and `count` and `bytes` include expired records. `queue_state`
/// returns the counts of a queue.
pub(crate) fn state(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    queue_state: impl Fn() -> Result<QueueState>,
) -> Result<TopicState> {
    topic.check_sound()?;
    loop {
        let logged = expire(ctx, topic);
        if let Err(e) = &logged {
            log::debug!("{}: what has expired is not logged: {e}", topic.name);
        }
        let exact = logged.is_ok() && topic.life() == Life::Live;
        let next_seq = topic.append.lock().next_seq;
        let kind = topic.state.read().config.kind;
        let queue = match kind {
            TopicType::Queue => Some(queue_state()?),
            TopicType::Log => None,
        };
        let shown = retention::with_expired(ctx.base(), topic, |state, expired| {
            // A batch that was written meanwhile may have expired too.
            match expired {
                Some(_) if exact => Err(None),
                _ => describe(ctx.base(), topic, state, expired, next_seq, queue),
            }
        })?;
        match shown {
            Ok(shown) => return Ok(shown),
            Err(Some(file_no)) => load::provide(ctx.base(), topic, &Need::Dead(file_no))?,
            Err(None) => topic.state.write().move_earliest(),
        }
    }
}

/// Reads the state under its lock. `Err` has the file number of a segment whose dead records must be
/// loaded first, or `None` if only `earliest` must be moved.
fn describe(
    base: &Base,
    topic: &Topic,
    state: &State,
    expired: Option<Expired>,
    next_seq: u64,
    queue: Option<QueueState>,
) -> std::result::Result<TopicState, Option<u64>> {
    if !state.range.earliest_exact {
        return Err(state.index.seg_of(state.range.earliest).map(|s| s.meta.file_no));
    }
    let head = topic.gate.head();
    let earliest = match expired {
        None => state.range.earliest,
        Some(e) => {
            let live =
                state.index.next_live(e.below.max(state.range.earliest)).map_err(|u| Some(u.0))?;
            live.unwrap_or(head + 1)
        }
    };
    let hidden = state.hidden(head);
    let some = |ts: u64| (ts > 0).then_some(ts);
    Ok(TopicState {
        topic: topic.name.to_string(),
        topic_id: topic.id(),
        epoch: topic.key.epoch,
        head_seq: head,
        earliest_seq: earliest.min(head + 1),
        evict_floor: state.range.evict_floor.max(expired.map_or(0, |e| e.floor)).min(head + 1),
        next_seq,
        count: state.live.count - hidden.0,
        bytes: state.live.bytes - hidden.1,
        gaps: state.gaps.clone(),
        config: (*state.config).clone(),
        effective_priority: topic.priority(&state.config, base.time.steady()),
        last_write_ts: some(state.last_write_ts),
        last_read_ts: some(topic.last_read.load(Ordering::Relaxed)),
        queue,
    })
}

/// An entry of a list. It does no I/O, so `earliest_seq` may lag behind deletes in segments whose dead
/// records are not loaded.
pub(crate) fn summary(topic: &Topic, now: u64) -> TopicSummary {
    let state = topic.state.read();
    let head = topic.gate.head();
    let hidden = state.hidden(head);
    TopicSummary {
        topic: topic.name.to_string(),
        kind: state.config.kind,
        head_seq: head,
        earliest_seq: state.range.earliest.min(head + 1),
        count: state.live.count - hidden.0,
        bytes: state.live.bytes - hidden.1,
        durability: state.config.durability,
        effective_priority: topic.priority(&state.config, now),
    }
}
