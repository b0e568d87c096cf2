//! Looking at all topics at once: sums for whoever watches over the engine, and the gauges of some.

use std::sync::Arc;

use crate::api::TopicSummary;
use crate::asleep::Found;
use crate::config::{TopicConfig, TopicType};
use crate::core::Core;
use crate::error::Result;
use crate::queue::api::QueueState;
use crate::topic::{self, Topic};

/// What all topics come to. Nothing is read from files, and nobody is woken: counts of what has
/// expired and was not swept yet are included.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Topics by durability class, in the order of [`crate::Durability`].
    pub by_class: [u64; 4],
    /// Queues among them.
    pub queues: u64,
    /// Live records.
    pub records: u64,
    /// The jobs of all queues.
    pub jobs: QueueState,
    /// Consumers.
    pub consumers: u64,
    /// The topics with the prefixes asked for, in name order.
    pub topics: Vec<Surveyed>,
    /// There are more of these than were asked for.
    pub truncated: bool,
    /// They have more consumers than are listed: as many as topics were asked for.
    pub lags_truncated: bool,
}

/// A topic of a survey.
#[derive(Clone, Debug)]
pub struct Surveyed {
    /// As a list has it.
    pub summary: TopicSummary,
    /// Its jobs, if it is a queue.
    pub queue: Option<QueueState>,
    /// Its consumers: name, and records between the stored cursor and the head.
    pub lags: Vec<(Arc<str>, u64)>,
}

/// Looks at every topic; at most `limit` of those whose names begin with one of `prefixes` are
/// listed.
pub(crate) fn survey(core: &Core, prefixes: &[String], limit: usize) -> Result<Survey> {
    let mut all = Survey::default();
    // Configs repeat: one is decoded once.
    let mut known: (Vec<u8>, usize) = (Vec::new(), 0);
    let mut lags_left = limit;
    core.every(|found| {
        let listed = prefixes.iter().any(|p| found.text().starts_with(p.as_str()));
        let room = all.topics.len() < limit;
        all.truncated |= listed && !room;
        let (queue, mut lags) = match found {
            Found::Awake(topic) => add_awake(core, &mut all, topic),
            Found::Asleep(sleeper) => {
                // What sleeps has neither jobs nor consumers.
                let glance = sleeper.glance()?;
                if known.0 != glance.config {
                    let class = TopicConfig::decode(glance.config)?.durability as usize;
                    known = (glance.config.to_vec(), class);
                }
                all.by_class[known.1] += 1;
                all.records += glance.live_count;
                (None, Vec::new())
            }
        };
        if listed && room {
            all.lags_truncated |= lags.len() > lags_left;
            lags.truncate(lags_left);
            lags_left -= lags.len();
            let summary = topic::summary(core, found)?;
            all.topics.push(Surveyed { summary, queue, lags });
        }
        Ok(())
    })?;
    Ok(all)
}

fn add_awake(
    core: &Core,
    all: &mut Survey,
    topic: &Arc<Topic>,
) -> (Option<QueueState>, Vec<(Arc<str>, u64)>) {
    let (kind, lags) = {
        let state = topic.state.read();
        all.by_class[state.config.durability as usize] += 1;
        all.records += state.count;
        (state.config.kind, state.lags(topic.gate.head()))
    };
    all.consumers += lags.len() as u64;
    if kind == TopicType::Log {
        return (None, lags);
    }
    let queue = topic::queue_counts(core, topic);
    let sum = &mut all.jobs;
    all.queues += 1;
    sum.ready += queue.ready;
    sum.in_flight += queue.in_flight;
    sum.delayed += queue.delayed;
    sum.dead += queue.dead;
    sum.dead_lettered += queue.dead_lettered;
    sum.expired += queue.expired;
    (Some(queue), lags)
}
