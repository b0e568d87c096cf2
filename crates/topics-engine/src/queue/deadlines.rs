//! Leases and delays that end, and jobs without deliveries left, while no claim is made.
//!
//! The engine has one timer, set to the earliest deadline of any queue: the thread of the queues
//! waits for it, an engine without background threads looks at it in its `tick`. The sweep of all
//! topics looks at every queue again, which bounds how late a deadline without a timer is met. The
//! options of jobs that were in segments when the engine opened are loaded by the first step.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use topics_storage::format::record::{self, LeaseEvent};

use super::Queues;
use super::{claim, commit, dead_letter, records};
use crate::topic::state::State;
use crate::topic::{Life, Topic};
use crate::types::config::TopicType;
use crate::types::error::Result;

/// Jobs that one step moves; claims that wait are served between two steps.
const STEP: usize = 500;
/// After this time jobs that could not be moved are tried again, ms.
const RETRY_MS: u64 = 1_000;

/// Queues by their next deadline, monotonic ms.
#[derive(Default)]
pub(crate) struct Deadlines {
    by_time: BTreeSet<(u64, u64)>,
    topics: HashMap<u64, (u64, Weak<Topic>)>,
}

impl Deadlines {
    /// Sets the deadline of a queue; true when it is the earliest now.
    pub fn set(&mut self, topic: &Arc<Topic>, at: u64) -> bool {
        let id = topic.id();
        if let Some((before, _)) = self.topics.insert(id, (at, Arc::downgrade(topic))) {
            self.by_time.remove(&(before, id));
        }
        self.by_time.insert((at, id));
        self.by_time.first() == Some(&(at, id))
    }

    /// Takes out a queue whose deadline has passed.
    pub fn take_due(&mut self, now: u64) -> Option<Arc<Topic>> {
        while let Some((at, id)) = self.by_time.first().copied().filter(|d| d.0 <= now) {
            self.by_time.remove(&(at, id));
            let topic = self.topics.remove(&id).and_then(|(_, topic)| topic.upgrade());
            if let Some(topic) = topic.filter(|t| t.life() == Life::Live) {
                return Some(topic);
            }
        }
        None
    }

    /// The earliest deadline.
    pub fn next(&self) -> Option<u64> {
        self.by_time.first().map(|d| d.0)
    }

    pub fn clear(&mut self) {
        (self.by_time, self.topics) = Default::default();
    }
}

/// When a queue's state changes next by itself, where that is earlier than its timer knows.
pub(crate) fn earlier(state: &mut State) -> Option<u64> {
    let max = state.config.max_deliveries;
    state.queue.as_mut().and_then(|q| q.earlier_deadline(max))
}

/// Sets the timer of a queue to what [`earlier`] said.
pub(crate) fn set(queues: &Arc<Queues>, topic: &Arc<Topic>, earlier: Option<u64>) {
    if let Some(at) = earlier {
        queues.claim_waiters.set_deadline(queues, topic, at);
    }
}

/// Both.
pub(crate) fn announce(queues: &Arc<Queues>, topic: &Arc<Topic>) {
    let earlier = earlier(&mut topic.state.write());
    set(queues, topic, earlier);
}

/// The same for a queue whose timer may not stand any more: after an open, and in the sweep of all
/// topics.
pub(crate) fn announce_again(queues: &Arc<Queues>, topic: &Arc<Topic>) {
    let (is_queue, needs_load) = {
        let state = topic.state.read();
        let is_queue = state.config.kind == TopicType::Queue;
        (is_queue && state.queue.is_some(), is_queue && records::needs_load(&state))
    };
    if needs_load {
        // Its counts are right only when the options of all jobs are known.
        queues.claim_waiters.set_deadline(queues, topic, queues.base().time.mono_ms());
    } else if is_queue {
        if let Some(queue) = &mut topic.state.write().queue {
            queue.deadline_passed();
        }
        announce(queues, topic);
    }
}

/// One step of what a queue does when its deadline has passed: leases and delays end, jobs without
/// deliveries left become dead letters, or are dead here.
pub(crate) fn sweep(queues: &Arc<Queues>, topic: &Arc<Topic>) {
    let outcome = queues.base().guarded("deadlines", topic, || step(queues, topic));
    if let Err(e) = &outcome {
        log::debug!("topic {:?}: jobs without deliveries left stay for now: {e}", topic.name);
    }
    if !matches!(outcome, Ok(true)) {
        let at = queues.base().time.mono_ms().saturating_add(RETRY_MS);
        super::with(topic, |q| q.retry_exhausted_at(at));
    }
    announce(queues, topic);
}

/// False when jobs could not be moved.
fn step(queues: &Arc<Queues>, topic: &Arc<Topic>) -> Result<bool> {
    queues.ctx().check_open()?;
    topic.check_sound()?;
    records::load(queues.base(), topic)?;
    let now = queues.base().time.now();
    let (mut ended, mut moving) = (Vec::new(), Vec::new());
    {
        let mut state = topic.state.write();
        let config = state.config.clone();
        let Some(queue) = &mut state.queue else { return Ok(true) };
        queue.deadline_passed();
        queues.base().metrics.lease_expiries.add(queue.sweep(now));
        for seq in queue.exhausted(config.max_deliveries, STEP, now) {
            let dead = config.dead_letter.is_none();
            if dead {
                ended.extend(claim::ended(queue, seq));
            } else {
                moving.push(seq);
            }
            queue.take_exhausted(seq, dead);
        }
    }
    commit(queues, topic, now, &[record::Lease::new(LeaseEvent::Nack, b"", 0, ended)])?;
    Ok(moving.is_empty() || dead_letter::move_exhausted(queues, topic, &moving))
}
