//! The work of a transaction by topic, checked before topics are created and again before the decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Transactions;
use super::api::TxnWork;
use super::commit::take_exclusive;
use super::gather;
use super::participant::{self, Conditions, PartRows};
use crate::catalog::Catalog;
use crate::topic::events::Base;
use crate::topic::{ExclusiveGuard, Topic};
use crate::types::config::ConfigPatch;
use crate::types::error::{Error, Result};
use crate::types::name;
use crate::types::queue::LeasedJobs;
use crate::verbs::{self, Existing};

/// The work of a transaction in one topic.
#[derive(Default)]
pub(super) struct TopicWork<'a> {
    pub rows: PartRows,
    pub expect_head: Option<u64>,
    pub cursors: Vec<(String, u64)>,
    /// Consumers, and the fences of the readers that commit.
    pub fences: Vec<(String, u64)>,
    pub acks: Vec<LeasedJobs<'a>>,
}

impl TopicWork<'_> {
    /// Checks every condition. Returns the jobs that it acks.
    pub fn check(
        &mut self,
        txns: &Arc<Transactions>,
        topic: &Arc<Topic>,
        exclusive: &ExclusiveGuard,
    ) -> Result<Vec<u64>> {
        let (cursors, fences, acks) = (&self.cursors[..], &self.fences[..], &self.acks[..]);
        let conditions = Conditions { expect_head: self.expect_head, cursors, fences, acks };
        participant::check_part(txns, topic, exclusive, &mut self.rows, &conditions)
    }
}

/// Work by topic name.
pub(super) type WorkByTopic<'a> = BTreeMap<String, TopicWork<'a>>;

/// Collects rows, conditions, cursors and acks by topic.
pub(super) fn work_by_topic<'a>(
    rows: gather::ByTopic,
    work: &TxnWork<'a>,
) -> Result<WorkByTopic<'a>> {
    let mut all = WorkByTopic::new();
    for (topic, rows) in rows {
        all.entry(topic).or_default().rows = rows;
    }
    for (topic, head) in work.expect_heads {
        let before = all.entry((*topic).to_owned()).or_default().expect_head.replace(*head);
        if before.is_some_and(|b| b != *head) {
            let text = format!("topic {topic:?} cannot have two heads");
            return Err(Error::InvalidRequest(text));
        }
    }
    for c in work.commits {
        let work = all.entry(c.topic.to_owned()).or_default();
        work.fences.extend(c.fence.map(|fence| (c.consumer.to_owned(), fence)));
        let cursors = &mut work.cursors;
        match cursors.iter_mut().find(|(name, _)| name == c.consumer) {
            Some((_, seq)) => *seq = c.seq.max(*seq),
            None => cursors.push((c.consumer.to_owned(), c.seq)),
        }
    }
    for a in work.acks {
        all.entry(a.queue.to_owned()).or_default().acks.push(a.jobs);
    }
    Ok(all)
}

/// Checks the work on existing topics before missing ones are created, so that a refused transaction
/// creates none.
pub(super) fn check_existing(
    txns: &Arc<Transactions>,
    by_topic: &mut WorkByTopic<'_>,
) -> Result<()> {
    let (mut existing, all) = (Vec::new(), by_topic.len());
    for (name, work) in by_topic {
        match txns.catalog().live(name)? {
            Some(topic) => existing.push((topic, work)),
            None => may_create(txns.base(), name, work)?,
        }
    }
    if existing.len() == all {
        return Ok(());
    }
    verbs::check_topics(txns.catalog(), (all - existing.len()) as u64)?;
    existing.sort_by_key(|(topic, _)| topic.id());
    let guards = take_exclusive(txns.ctx(), existing.iter().map(|(topic, _)| topic))?;
    for ((topic, work), exclusive) in existing.into_iter().zip(guards) {
        let acks = work.check(txns, &topic, &exclusive)?;
        participant::release_acks(&topic, &acks);
    }
    Ok(())
}

/// Whether a missing topic may be created for this work.
fn may_create(base: &Base, name: &str, work: &TopicWork<'_>) -> Result<()> {
    name::check(name)?;
    let only_rows = work.rows.count() > 0 && work.cursors.is_empty() && work.acks.is_empty();
    if !only_rows || !base.options.auto_create.allows(name) {
        return Err(Error::TopicNotFound(name.to_owned()));
    }
    if let Some(expected) = work.expect_head.filter(|head| *head > 0) {
        return Err(Error::HeadMismatch { topic: name.to_owned(), expected, actual: 0 });
    }
    Ok(())
}

/// The topic of a name; created for rows if that is allowed.
pub(super) fn find(catalog: &Arc<Catalog>, name: &str, work: &TopicWork<'_>) -> Result<Arc<Topic>> {
    if let Some(topic) = catalog.live(name)? {
        return Ok(topic);
    }
    may_create(catalog.base(), name, work)?;
    verbs::create(catalog, name, &ConfigPatch::default(), Existing::Any)?;
    catalog.live(name)?.ok_or_else(|| Error::TopicNotFound(name.to_owned()))
}
