//! The verbs of a queue: decide under the topic's locks → log where leases are durable → apply.
//!
//! | part | does |
//! |---|---|
//! | `claim` | claims: picks, reads, logs, leases |
//! | `ack` | ack, nack, release, extend |
//! | `manage` | remove, promote |
//! | `dead_letter` | dead letters and redrive: a record goes from one topic to another, once |
//! | `waiters` | claims that wait, and the thread that serves them |
//! | `records` | the records of jobs, and the options of those in segments |
//! | `cancel` | claims that are cancelled |
//! | `deadlines` | leases that end and jobs that are dead while there is no claim |
//! | `work` | the push mode |
//! | `stats` | counts and peek |

mod ack;
mod cancel;
mod claim;
mod cohort;
mod dead_letter;
#[cfg(test)]
mod dead_letter_tests;
mod deadlines;
#[cfg(test)]
mod loop_tests;
mod manage;
#[cfg(test)]
mod manage_tests;
mod records;
mod stats;
#[cfg(test)]
mod tests;
mod waiters;
mod work;

use std::sync::Arc;

use topics_storage::format::record::{self, Body};
use topics_storage::wal::{Level, Ticket};

pub(crate) use self::ack::{ack, ack_async, at_once, extend, extend_stream, nack, release};
pub(crate) use self::ack::{release_acks, release_stream, take_acks};
pub(crate) use self::claim::{claim, claim_async};
pub(crate) use self::dead_letter::{expire_jobs, finish, redrive};
use self::deadlines::announce;
pub(crate) use self::deadlines::announce_again;
pub(crate) use self::manage::{promote, remove};
pub(crate) use self::stats::{counts as queue_counts, oldest_ready_ms, peek, queue_state};
pub(crate) use self::waiters::ClaimWaiters;
pub use self::work::Work;

use crate::checkpoint::{Store, layers_below};
use crate::ctx::Wait;
use crate::topic::events::Ctx;
use crate::topic::state::queue::Queue;
use crate::topic::write::control::stage_with;
use crate::topic::write::pending_batch::{Frames, Undo};
use crate::topic::{Life, Topic};
use crate::types::clock::Now;
use crate::types::config::{TopicConfig, TopicType};
use crate::types::error::{Error, Result};

/// The queues of an open engine.
#[derive(Debug)]
pub(crate) struct Queues {
    store: Arc<Store>,
    /// Claims that wait.
    pub claim_waiters: Arc<ClaimWaiters>,
}

impl Queues {
    layers_below!();

    pub(crate) fn new(store: Arc<Store>, claim_waiters: Arc<ClaimWaiters>) -> Arc<Self> {
        Arc::new(Self { store, claim_waiters })
    }
}

/// The config of a topic that must be a queue.
pub(crate) fn config_of(topic: &Topic) -> Result<Arc<TopicConfig>> {
    topic.check_sound()?;
    let config = topic.state.read().config.clone();
    match config.kind {
        TopicType::Queue => Ok(config),
        // What is gone has no config any more.
        TopicType::Log if topic.life() == Life::Dead => {
            Err(Error::TopicNotFound(topic.name.to_string()))
        }
        TopicType::Log => Err(Error::NotAQueue(topic.name.to_string())),
    }
}

/// Changes a topic's queue.
fn with<R>(topic: &Topic, f: impl FnOnce(&mut Queue) -> R) -> R {
    f(topic.state.write().queue.get_or_insert_default())
}

/// Makes lease events take effect: by the log where leases are durable. When this returns an
/// error, nothing of it counts and the caller takes its reservations back.
fn commit(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    now: Now,
    events: &[record::Lease],
) -> Result<()> {
    if events.iter().all(|e| e.jobs.is_empty()) {
        return Ok(());
    }
    if !topic.state.read().config.leases_durable {
        let earlier = {
            let mut state = topic.state.write();
            events.iter().filter(|e| !e.jobs.is_empty()).for_each(|e| state.apply_lease(now, e));
            deadlines::earlier(&mut state)
        };
        deadlines::set(queues, topic, earlier);
        return Ok(());
    }
    let outcome = log(queues.ctx(), topic, events);
    announce(queues, topic);
    outcome
}

/// Logs lease events, which take effect when they are applied.
fn log(ctx: &Arc<Ctx>, topic: &Arc<Topic>, events: &[record::Lease]) -> Result<()> {
    let mut frames = Frames::default();
    for e in events.iter().filter(|e| !e.jobs.is_empty()) {
        e.encode_frame(&mut frames.head, topic.id(), 0, 0);
    }
    let (ticket, level) = stage(ctx, topic, frames, Wait::Bounded)?;
    ctx.wait(ticket, level)
}

/// Stages control frames of a topic, to be waited for as its class demands.
fn stage(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    frames: Frames,
    wait: Wait,
) -> Result<(Ticket, Level)> {
    let bytes = frames.head.len();
    let staged = stage_with(ctx, topic, bytes, wait, |_| Ok(Some((frames, Undo::None))))?;
    staged.ok_or_else(|| Error::Internal("nothing was staged".into()))
}
