//! The survey: sums over all topics, and the gauges of some, for monitoring.

use std::sync::Arc;

use super::open_engine::OpenEngine;
use crate::catalog::unloaded::{CatalogEntry, summary};
use crate::queue;
use crate::topic::Topic;
use crate::types::api::TopicSummary;
use crate::types::config::{TopicConfig, TopicType};
use crate::types::consumer::ConsumerInfo;
use crate::types::error::Result;
use crate::types::queue::QueueState;

/// Sums over all topics. The survey wakes no waiter, and its counts include expired records that were not
/// swept yet. Of a listed topic it reads what lags and ages need: the commit time of a record in a
/// segment, and once the deletes of the segment. It waits for no object store.
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
    /// Milliseconds since its oldest ready job was written, became due or was released, 0 without one.
    pub oldest_ready_ms: u64,
    /// Its consumers.
    pub consumers: Vec<ConsumerInfo>,
}

/// Looks at every topic; at most `limit` of those whose names begin with one of `prefixes` are
/// listed.
pub(crate) fn survey(engine: &OpenEngine, prefixes: &[String], limit: usize) -> Result<Survey> {
    let mut all = Survey::default();
    // Configs repeat: one is decoded once.
    let mut known: (Vec<u8>, usize) = (Vec::new(), 0);
    let mut lags_left = limit;
    engine.catalog().every(|found| {
        let matches = prefixes.iter().any(|p| found.text().starts_with(p.as_str()));
        let listed = matches && all.topics.len() < limit;
        all.truncated |= matches && !listed;
        let (queue, consumers) = match found {
            CatalogEntry::Loaded(topic) => add_loaded(engine, &mut all, topic),
            CatalogEntry::Unloaded(unloaded) => {
                // What sleeps has neither jobs nor consumers.
                let topic_header = unloaded.topic_header()?;
                if known.0 != topic_header.config {
                    let class = TopicConfig::decode(topic_header.config)?.durability as usize;
                    known = (topic_header.config.to_vec(), class);
                }
                all.by_class[known.1] += 1;
                all.records += topic_header.live_count;
                (None, 0)
            }
        };
        if listed {
            let mut surveyed = Surveyed {
                summary: summary(engine.base(), found)?,
                queue,
                oldest_ready_ms: 0,
                consumers: Vec::new(),
            };
            if let CatalogEntry::Loaded(topic) = found {
                all.lags_truncated |= consumers > lags_left;
                // What cannot be read at the moment is not known.
                surveyed.consumers =
                    topic.consumers(engine.base(), "", None, lags_left).unwrap_or_default();
                lags_left -= surveyed.consumers.len();
                if queue.is_some_and(|q| q.ready > 0) {
                    let oldest = queue::oldest_ready_ms(engine.queues.base(), topic);
                    surveyed.oldest_ready_ms = oldest.unwrap_or_default();
                }
            }
            all.topics.push(surveyed);
        }
        Ok(())
    })?;
    Ok(all)
}

/// Adds a loaded topic to the sums; returns its jobs, if it is a queue, and the number of its consumers.
fn add_loaded(
    engine: &OpenEngine,
    all: &mut Survey,
    topic: &Arc<Topic>,
) -> (Option<QueueState>, usize) {
    let (kind, consumers) = {
        let state = topic.state.read();
        all.by_class[state.config.durability as usize] += 1;
        all.records += state.live.count;
        (state.config.kind, state.consumers.as_ref().map_or(0, |c| c.0.len()))
    };
    all.consumers += consumers as u64;
    if kind == TopicType::Log {
        return (None, consumers);
    }
    let queue = queue::queue_counts(engine.queues.base(), topic, engine.base().time.now());
    let sum = &mut all.jobs;
    all.queues += 1;
    sum.ready += queue.ready;
    sum.in_flight += queue.in_flight;
    sum.delayed += queue.delayed;
    sum.dead += queue.dead;
    sum.dead_lettered += queue.dead_lettered;
    sum.expired += queue.expired;
    (Some(queue), consumers)
}

#[cfg(test)]
mod tests {
    use crate::router::RouterRequest;
    use crate::topic::tests::{CLASSES, World, class, rec};
    use crate::txn::{CommitRequest, StageRequest, TxnRows, TxnStage, TxnWork};
    use crate::types::api::Durability;
    use crate::types::config::{ConfigPatch, TopicType};
    use crate::types::consumer::{ConsumerRead, ConsumerStart};
    use crate::types::queue::{Claim, LeasedJobs, Redrive};

    fn queue(dead_letter: &str) -> ConfigPatch {
        ConfigPatch {
            kind: Some(TopicType::Queue),
            dead_letter: Some(Some(dead_letter.into())),
            max_deliveries: Some(2),
            lease_ms: Some(1000),
            ..ConfigPatch::default()
        }
    }

    fn claim(w: &World, max: usize) -> Vec<u64> {
        let claim = Claim { node: b"n", max, ..Claim::default() };
        w.engine().claim("q", &claim).unwrap().iter().map(|(l, _)| l.seq).collect()
    }

    #[test]
    fn a_survey_counts_topics_awake_and_asleep() {
        let mut w = World::new();
        for (i, c) in CLASSES.into_iter().enumerate() {
            for n in 0..=i {
                w.create(&format!("{}.{n}", c.as_str()), class(c));
                w.put(&format!("{}.{n}", c.as_str()), &["1", "2"]);
            }
        }
        let all = [String::new()];
        let live = w.engine().survey(&all, 100).unwrap();
        assert_eq!((live.by_class, live.records), ([1, 2, 3, 4], 20));
        assert_eq!((live.topics.len(), live.truncated), (10, false));
        w.close();
        w.open();
        let s = w.engine().survey(&all, 100).unwrap();
        assert_eq!((s.by_class, s.records), ([1, 2, 3, 4], 18), "those of ephemeral ones are gone");
        let s = w.engine().survey(&["disk.".into(), "fsync.".into()], 5).unwrap();
        let names: Vec<_> = s.topics.iter().map(|t| &*t.summary.topic).collect();
        assert_eq!(names, ["disk.0", "disk.1", "disk.2", "fsync.0", "fsync.1"]);
        assert!(s.truncated && s.topics.iter().all(|t| t.summary.durability >= Durability::Disk));
        assert_eq!(s.by_class, [1, 2, 3, 4], "sums are of all");
    }

    #[test]
    fn queues_and_consumers_are_counted() {
        let w = World::new();
        w.create("q", queue("dead"));
        w.put("q", &["1", "2", "3", "4"]);
        w.put("t", &["1", "2", "3"]);
        let e = w.engine();
        assert_eq!(claim(&w, 3), [1, 2, 3]);
        let held = |seqs| LeasedJobs { node: b"n", seqs, lease_ids: None };
        e.ack("q", &held(&[1])).unwrap();
        e.nack("q", &held(&[2]), Some(0)).unwrap();
        e.extend("q", &held(&[3]), None).unwrap();
        let consumer = e.consumer("t", "c", None, ConsumerStart::Start, false).unwrap();
        consumer.read(&ConsumerRead { max_records: 1, ..ConsumerRead::default() }).unwrap();
        consumer.commit(1).unwrap();
        let s = e.survey(&[String::new()], 10).unwrap();
        assert_eq!((s.jobs.ready, s.jobs.in_flight, s.queues, s.consumers), (2, 1, 1, 1));
        assert_eq!(s.topics[0].queue, Some(s.jobs));
        let behind: Vec<_> = s.topics[1].consumers.iter().map(|c| (&*c.name, c.lag)).collect();
        assert_eq!(behind, [("c", 2)]);
        // The lease of 3 runs out; 2 and 3 are delivered once more, then dead.
        w.clock.advance_ms(1000);
        assert_eq!(claim(&w, 9), [2, 3, 4]);
        e.ack("q", &held(&[4])).unwrap();
        w.clock.advance_ms(1000);
        assert_eq!(claim(&w, 9), [0_u64; 0]);
        assert_eq!(
            e.redrive("dead", &Redrive { limit: Some(1), ..Redrive::default() }).unwrap().moved,
            1
        );
        let m = e.metrics();
        assert_eq!((m.claims, m.acked_jobs, m.nacked_jobs, m.extended_jobs), (6, 2, 1, 1));
        assert_eq!((m.lease_expiries, m.dead_letters, m.redriven_jobs), (3, 2, 1));
        w.put("q", &["5", "6"]);
        assert_eq!(claim(&w, 1), [5]);
        e.nack("q", &held(&[5]), Some(1000)).unwrap();
        e.promote_jobs("q", &[5, 6]).unwrap();
        e.remove_jobs("q", &[5, 6, 99], false).unwrap();
        let m = e.metrics();
        assert_eq!((m.promoted_jobs, m.removed_jobs), (1, 2), "others were skipped");
        w.put("q", &["7"]);
        assert_eq!(claim(&w, 1), [7]);
        e.release("q", &held(&[7])).unwrap();
        let m = e.metrics();
        assert_eq!((m.released_jobs, m.nacked_jobs), (1, 2));
    }

    #[test]
    fn the_oldest_ready_job_has_an_age() {
        let mut w = World::new();
        w.create("q", queue("dead"));
        w.put("q", &["1"]);
        let age = |w: &World| {
            let s = w.engine().survey(&["q".into()], 10).unwrap();
            s.topics[0].oldest_ready_ms
        };
        let held = |seqs| LeasedJobs { node: b"n", seqs, lease_ids: None };
        w.clock.advance_ms(700);
        w.put("q", &["2"]);
        assert_eq!(age(&w), 700);
        w.checkpoint();
        assert_eq!(age(&w), 700, "in a segment");
        assert_eq!(claim(&w, 1), [1]);
        w.clock.advance_ms(300);
        assert_eq!(age(&w), 300, "the next one");
        assert_eq!(claim(&w, 1), [2]);
        assert_eq!(age(&w), 0, "none is ready");
        w.engine().nack("q", &held(&[1]), Some(400)).unwrap();
        w.engine().ack("q", &held(&[2])).unwrap();
        assert_eq!(age(&w), 0, "it is delayed");
        w.clock.advance_ms(450);
        assert_eq!(age(&w), 50, "since its delay has ended");
        assert_eq!(claim(&w, 1), [1]);
        w.clock.advance_ms(1200);
        assert!(age(&w) <= 200, "since its lease has ended, if it is not dead");
        w.reopen();
        w.put("q", &["3"]);
        w.clock.advance_ms(10);
        assert!(age(&w) >= 10, "opened again");
    }

    #[test]
    fn transactions_routers_and_the_log_are_counted() {
        let w = World::new();
        let e = w.engine();
        w.put("t", &["1"]);
        let records = [rec("1")];
        let rows = [TxnRows { topic: "t", records: &records, ..TxnRows::default() }];
        for stage in ["a", "b", "c"] {
            e.stage("w", &StageRequest { stage, part: 0, rows: &rows }).unwrap();
        }
        let m = e.metrics();
        assert_eq!((m.txn_stages, m.txn_parts), (3, 3));
        assert!(m.txn_bytes > 0);
        assert!(e.abort_stage("w", "b").unwrap());
        let stages = [TxnStage { stage: "a", parts: 1, records: None }];
        let req = CommitRequest { epoch: 1, stages: &stages, ..CommitRequest::default() };
        e.commit("w", &req).unwrap();
        let stages = [TxnStage { stage: "c", parts: 1, records: None }];
        let acks = TxnWork { expect_heads: &[("t", 77)], ..TxnWork::default() };
        let req =
            CommitRequest { epoch: 2, stages: &stages, work: acks, ..CommitRequest::default() };
        e.commit("w", &req).unwrap_err();
        w.clock.advance_ms(3_700_000);
        e.tick().unwrap();
        let m = e.metrics();
        assert_eq!((m.txn_commits, m.txn_aborts, m.txn_refused, m.txn_expired), (1, 1, 1, 1));
        assert_eq!((m.txn_parts, m.txns_open), (0, 0));
        let route =
            RouterRequest { source: "t".into(), dest: "d".into(), ..RouterRequest::default() };
        e.create_router("r", &route).unwrap();
        e.sync().unwrap();
        e.checkpoint().unwrap();
        let m = e.metrics();
        assert_eq!((m.routers, m.ready, m.recovery_ppm, m.checkpoints), (1, 1, 1_000_000, 1));
        assert!(m.wal_fsyncs > 0 && m.fsync.count == m.wal_fsyncs, "{m:?}");
        assert!(m.wal_frames >= m.wal_batches && m.wal_batches >= m.wal_groups);
        assert_eq!((m.read_only_shards, m.staged_batches, m.staged_bytes), (0, 0, 0));
        assert!(m.wal_bytes > 0 && m.wal_disk_bytes > m.wal_bytes);
    }
}
