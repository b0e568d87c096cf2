//! What a topic says about itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::retention::{self, Need};
use super::{Topic, expire};
use crate::api::{TopicState, TopicSummary};
use crate::config::TopicType;
use crate::core::Core;
use crate::error::Result;
use crate::priority;

impl Topic {
    /// Notes that the topic was consumed.
    pub(crate) fn touch(&self, now: u64) {
        self.last_read.store(now, Ordering::Relaxed);
    }

    fn priority(&self, config: &crate::config::TopicConfig, now: u64) -> i32 {
        priority::effective(config, self.last_read.load(Ordering::Relaxed), now)
    }
}

/// The exact state: what has expired is taken out first.
pub(crate) fn state(core: &Arc<Core>, topic: &Arc<Topic>) -> Result<TopicState> {
    topic.check_sound()?;
    expire(core, topic)?;
    loop {
        let next_seq = topic.append.lock().next_seq;
        let kind = topic.state.read().config.kind;
        let queue = match kind {
            TopicType::Queue => Some(super::queue_state(core, topic)?),
            TopicType::Log => None,
        };
        let unknown = {
            let state = topic.state.read();
            if state.earliest_exact {
                let head = topic.gate.head();
                let hidden = state.hidden(head);
                let some = |ts: u64| (ts > 0).then_some(ts);
                return Ok(TopicState {
                    topic: topic.name.to_string(),
                    topic_id: topic.id(),
                    epoch: topic.key.epoch,
                    head_seq: head,
                    earliest_seq: state.earliest.min(head + 1),
                    evict_floor: state.evict_floor.min(head + 1),
                    next_seq,
                    count: state.count - hidden.0,
                    bytes: state.bytes - hidden.1,
                    gaps: state.gaps.clone(),
                    config: (*state.config).clone(),
                    effective_priority: topic.priority(&state.config, core.time.wall()),
                    last_write_ts: some(state.last_write_ts),
                    last_read_ts: some(topic.last_read.load(Ordering::Relaxed)),
                    queue,
                });
            }
            state.index.seg_of(state.earliest).map(|s| s.meta.file_no)
        };
        match unknown {
            Some(file_no) => retention::provide(core, topic, &Need::Dead(file_no))?,
            None => topic.state.write().move_earliest(),
        }
    }
}

/// A line of a list: no I/O, so `earliest_seq` may lag behind deletes of records in segments that
/// have not been looked into since the engine opened.
pub(crate) fn summary(core: &Core, topic: &Topic) -> TopicSummary {
    let state = topic.state.read();
    let head = topic.gate.head();
    let hidden = state.hidden(head);
    TopicSummary {
        topic: topic.name.to_string(),
        head_seq: head,
        earliest_seq: state.earliest.min(head + 1),
        count: state.count - hidden.0,
        bytes: state.bytes - hidden.1,
        durability: state.config.durability,
        effective_priority: topic.priority(&state.config, core.time.wall()),
    }
}
