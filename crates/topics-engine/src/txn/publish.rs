//! Carries a decision out: live, at a repeat, in a background pass, in recovery. It checks nothing again.

use std::sync::Arc;
use std::time::Duration;

use topics_storage::format::record::{Body, TxnCommit, TxnDone};
use topics_storage::wal::{Batch, Level};

use super::Transactions;
use super::api::{Committed, CommittedTopic};
use super::commit::take_exclusive;
use super::gather;
use super::participant::{PartRows, TxnParticipant};
use super::table::{Open, base};
use crate::catalog::Catalog;
use crate::ctx::Wait;
use crate::topic::events::Ctx;
use crate::topic::{Applied, ExclusiveGuard, Life, Topic};
use crate::txn::participant;
use crate::types::error::{Error, Result};

/// An exclusive topic, and its part of the transaction.
pub(crate) struct Ready {
    pub topic: Arc<Topic>,
    pub exclusive: ExclusiveGuard,
    pub part: TxnParticipant,
}

/// Stages all parts, then waits for them. A part that fails is published later.
pub(crate) fn publish(txns: &Arc<Transactions>, who: (&str, u64), ready: Vec<Ready>) -> Result<()> {
    let mut outcome = Ok(());
    let mut sent = Vec::new();
    for r in ready {
        match participant::publish_part(txns, &r.topic, &r.exclusive, who, r.part) {
            Ok(Some(part)) => sent.push((part, r.exclusive)),
            Ok(None) => {}
            Err(e) => outcome = outcome.and(Err(e)),
        }
    }
    for (part, exclusive) in sent {
        outcome = outcome.and(part.wait(txns.ctx()));
        drop(exclusive);
    }
    outcome
}

/// The topic of a part, if it still exists.
fn alive(catalog: &Catalog, topic_id: u64, epoch: u64) -> Result<Option<Arc<Topic>>> {
    let topic = catalog.by_id(topic_id)?;
    Ok(topic.filter(|topic| topic.key.epoch == epoch && topic.life() == Life::Live))
}

/// The existing topics of a decision whose parts are not logged.
fn missing(catalog: &Catalog, open: &Open) -> Result<Vec<Arc<Topic>>> {
    let todo = open.body.topics.iter().filter(|t| !open.parts.contains_key(&t.topic_id));
    let found = todo.filter_map(|t| alive(catalog, t.topic_id, t.epoch).transpose());
    let mut topics = found.collect::<Result<Vec<_>>>()?;
    topics.sort_by_key(|t| t.id());
    Ok(topics)
}

/// Publishes the remaining parts of a decision. The caller has the writer's lock, or is recovery.
pub(crate) fn finish(txns: &Arc<Transactions>, writer: &str, epoch: u64) -> Result<Committed> {
    let Some(open) = txns.table.open(writer, epoch) else {
        return Err(Error::Internal(format!("writer {writer:?}: epoch {epoch} is not open")));
    };
    let topics = missing(txns.catalog(), &open)?;
    let rows_in = |t: &&Arc<Topic>| {
        let row = |w: &&topics_storage::format::record::TxnTopic| w.topic_id == t.id();
        open.body.topics.iter().find(row).is_some_and(|w| w.rows > 0)
    };
    let mut rows = match topics.iter().any(|t| rows_in(&t)) {
        true => gather::decided(txns, &open.body.files)?,
        false => gather::ByTopic::new(),
    };
    let guards = take_exclusive(txns.ctx(), topics.iter())?;
    let ready = topics.into_iter().zip(guards).map(|(topic, exclusive)| {
        let rows = rows.remove(&*topic.name).unwrap_or_default();
        let part = part_of(&open.body, topic.id(), rows);
        Ready { topic, exclusive, part }
    });
    publish(txns, (writer, epoch), ready.collect())?;
    end(txns, writer, epoch)
}

fn part_of(body: &TxnCommit, id: u64, rows: PartRows) -> TxnParticipant {
    let acks = body.acks.iter().filter(|a| a.0 == id).flat_map(|a| a.1.clone()).collect();
    let cursors = body.commits.iter().filter(|c| c.0 == id);
    TxnParticipant { rows, acks, cursors: cursors.map(|c| (c.1.clone(), c.2)).collect() }
}

/// Logs the end of a transaction whose parts are durable, and returns its answer.
pub(crate) fn end(txns: &Arc<Transactions>, writer: &str, epoch: u64) -> Result<Committed> {
    let Some(open) = txns.table.open(writer, epoch) else {
        return Err(Error::Internal(format!("writer {writer:?}: epoch {epoch} is not open")));
    };
    if let Some(topic) = missing(txns.catalog(), &open)?.first() {
        // The log has the part and memory does not: the next open finishes the transaction.
        let detail = format!("topic {:?} could not be brought up to its log", topic.name);
        return Err(Error::StorageUnavailable { reason: "io", detail });
    }
    let mut topics = Vec::new();
    for t in open.body.topics.iter().filter(|t| t.rows > 0) {
        let first = open.parts.get(&t.topic_id).copied().unwrap_or(0);
        if let Some(topic) = alive(txns.catalog(), t.topic_id, t.epoch)?.filter(|_| first > 0) {
            topics.push((t.topic_id, topic.name.to_string(), first, first + t.rows - 1));
        }
    }
    topics.sort_by(|a, b| a.1.cmp(&b.1));
    let answer = topics.iter().map(|(topic_id, topic, first_seq, last_seq)| CommittedTopic {
        topic: topic.clone(),
        topic_id: *topic_id,
        first_seq: *first_seq,
        last_seq: *last_seq,
    });
    let answer = Committed { epoch, deduped: false, topics: answer.collect() };
    log_end(txns.ctx(), &done(&open.body, topics), Level::Written)?;
    Ok(answer)
}

/// The frame that ends a transaction, with the topics that got rows.
fn done(decision: &TxnCommit, topics: Vec<(u64, String, u64, u64)>) -> TxnDone {
    TxnDone {
        writer: decision.writer.clone(),
        epoch: decision.epoch,
        topics,
        owner: decision.owner.clone(),
        forgets: false,
        query: decision.query.clone(),
    }
}

pub(crate) fn log_end(ctx: &Arc<Ctx>, body: &TxnDone, level: Level) -> Result<()> {
    let mut head = Vec::new();
    body.encode_frame(&mut head, 0, 0, 0);
    let commit = Arc::new(Applied::new(ctx, "a transaction's end"));
    let batch = Batch::control(head, ctx.base().time.steady(), Level::Written, commit);
    let batch = Batch { frees_space: true, ..batch };
    let ticket = ctx.stage_control(0, batch, Wait::Exclusive)?;
    ctx.wait(ticket, level)
}

/// Finishes open decisions after recovery has replayed every shard, before other writes.
pub(crate) fn recovered(txns: &Arc<Transactions>) -> Result<()> {
    txns.table.replayed();
    txns.staging.load(&txns.table)?;
    for (writer, epoch) in txns.table.all_open(None) {
        match finish(txns, &writer, epoch) {
            Ok(_) => {}
            Err(e @ Error::Corrupt { .. }) if txns.base().options.recovery.gives_up() => {
                log::error!("what is left of epoch {epoch} of writer {writer:?} is given up: {e}");
                // The published parts stay; the others are never published.
                if let Some(open) = txns.table.open(&writer, epoch) {
                    log_end(txns.ctx(), &done(&open.body, Vec::new()), Level::Written)?;
                }
            }
            Err(e @ (Error::StorageUnavailable { .. } | Error::Throttled { .. })) => {
                // The engine opens; a pass, a repeat or the next open finishes the decision.
                log::warn!("epoch {epoch} of writer {writer:?} is not published yet: {e}");
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A background pass: removes old stages and spent files, and finishes decisions that a full disk
/// stopped. Cheap when nothing is due.
pub(crate) fn pass(txns: &Arc<Transactions>) -> Result<()> {
    let now = txns.base().time.steady();
    txns.table.expire(now);
    let ttl = txns.base().options.txn_ttl.max(Duration::from_millis(1)).as_millis() as u64;
    txns.base().metrics.txn_expired.add(txns.staging.expire(&txns.table, now.saturating_sub(ttl)));
    if txns.ctx().wal.poisoned(0).is_none() {
        txns.staging.sweep(&txns.table, txns.ctx().wal.positions(0).synced)?;
    }
    for (writer, epoch) in txns.table.all_open(None) {
        let Some(_lock) = txns.table.try_lock_writer(base(&writer)) else { continue };
        if txns.table.open(&writer, epoch).is_some()
            && let Err(e) = finish(txns, &writer, epoch)
        {
            log::debug!("epoch {epoch} of writer {writer:?} is not published yet: {e}");
        }
    }
    Ok(())
}
