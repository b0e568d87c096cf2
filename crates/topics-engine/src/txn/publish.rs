//! Carrying a decision out: live, at a repeat, in a pass, in recovery. Nothing is checked again.

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
use crate::ctx::Wait;
use crate::topic::{Applied, ExclusiveGuard, Life, Topic};
use crate::txn::participant;
use crate::types::error::{Error, Result};

/// A topic that is held, and what happens to it.
pub(crate) struct Ready {
    pub topic: Arc<Topic>,
    pub exclusive: ExclusiveGuard,
    pub part: TxnParticipant,
}

/// Logs the parts, all of them before the first is waited for. A part that fails stays to be done.
pub(crate) fn publish(core: &Arc<Transactions>, who: (&str, u64), ready: Vec<Ready>) -> Result<()> {
    let mut outcome = Ok(());
    let mut sent = Vec::new();
    for r in ready {
        match participant::publish_part(core, &r.topic, &r.exclusive, who, r.part) {
            Ok(Some(part)) => sent.push((part, r.exclusive)),
            Ok(None) => {}
            Err(e) => outcome = outcome.and(Err(e)),
        }
    }
    for (part, exclusive) in sent {
        outcome = outcome.and(part.wait(core));
        drop(exclusive);
    }
    outcome
}

/// The topic of a part, while it is there.
fn alive(core: &Transactions, topic_id: u64, epoch: u64) -> Result<Option<Arc<Topic>>> {
    let topic = core.by_id(topic_id)?;
    Ok(topic.filter(|topic| topic.key.epoch == epoch && topic.life() == Life::Live))
}

/// The parts of a decision that are not logged, with the topics that are there.
fn missing(core: &Transactions, open: &Open) -> Result<Vec<Arc<Topic>>> {
    let todo = open.body.topics.iter().filter(|t| !open.parts.contains_key(&t.topic_id));
    let found = todo.filter_map(|t| alive(core, t.topic_id, t.epoch).transpose());
    let mut topics = found.collect::<Result<Vec<_>>>()?;
    topics.sort_by_key(|t| t.id());
    Ok(topics)
}

/// Does what is left of a decision. The caller has the writer's turn, or nobody else is there.
pub(crate) fn finish(core: &Arc<Transactions>, writer: &str, epoch: u64) -> Result<Committed> {
    let Some(open) = core.txns.open(writer, epoch) else {
        return Err(Error::Internal(format!("writer {writer:?}: epoch {epoch} is not open")));
    };
    let topics = missing(core, &open)?;
    let rows_in = |t: &&Arc<Topic>| {
        let row = |w: &&topics_storage::format::record::TxnTopic| w.topic_id == t.id();
        open.body.topics.iter().find(row).is_some_and(|w| w.rows > 0)
    };
    let mut rows = match topics.iter().any(|t| rows_in(&t)) {
        true => gather::decided(core, &open.body.files)?,
        false => gather::ByTopic::new(),
    };
    let guards = take_exclusive(core, topics.iter())?;
    let ready = topics.into_iter().zip(guards).map(|(topic, exclusive)| {
        let rows = rows.remove(&*topic.name).unwrap_or_default();
        let part = part_of(&open.body, topic.id(), rows);
        Ready { topic, exclusive, part }
    });
    publish(core, (writer, epoch), ready.collect())?;
    end(core, writer, epoch)
}

fn part_of(body: &TxnCommit, id: u64, rows: PartRows) -> TxnParticipant {
    let acks = body.acks.iter().filter(|a| a.0 == id).flat_map(|a| a.1.clone()).collect();
    let cursors = body.commits.iter().filter(|c| c.0 == id);
    TxnParticipant { rows, acks, cursors: cursors.map(|c| (c.1.clone(), c.2)).collect() }
}

/// All parts are durable: says so in the log, and answers.
pub(crate) fn end(core: &Arc<Transactions>, writer: &str, epoch: u64) -> Result<Committed> {
    let Some(open) = core.txns.open(writer, epoch) else {
        return Err(Error::Internal(format!("writer {writer:?}: epoch {epoch} is not open")));
    };
    if let Some(topic) = missing(core, &open)?.first() {
        // The log has its part and memory does not: the next open finishes.
        let detail = format!("topic {:?} could not be brought up to its log", topic.name);
        return Err(Error::StorageUnavailable { reason: "io", detail });
    }
    let mut topics = Vec::new();
    for t in open.body.topics.iter().filter(|t| t.rows > 0) {
        let first = open.parts.get(&t.topic_id).copied().unwrap_or(0);
        if let Some(topic) = alive(core, t.topic_id, t.epoch)?.filter(|_| first > 0) {
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
    let owner = open.body.owner.clone();
    let body = TxnDone { writer: writer.to_owned(), epoch, topics, owner, forgets: false };
    log_end(core, &body, Level::Written)?;
    Ok(answer)
}

pub(crate) fn log_end(core: &Arc<Transactions>, body: &TxnDone, level: Level) -> Result<()> {
    let mut head = Vec::new();
    body.encode_frame(&mut head, 0, 0, 0);
    let commit = Arc::new(Applied::new(core, "a transaction's end"));
    let batch = Batch::control(head, core.time.steady(), Level::Written, commit);
    let batch = Batch { frees_space: true, ..batch };
    let ticket = core.stage_control(0, batch, Wait::Exclusive)?;
    core.wait(ticket, level)
}

/// After recovery has replayed every shard, before anything else is written.
pub(crate) fn recovered(core: &Arc<Transactions>) -> Result<()> {
    core.txns.replayed();
    core.staging.load(&core.txns)?;
    for (writer, epoch) in core.txns.all_open(None) {
        match finish(core, &writer, epoch) {
            Ok(_) => {}
            Err(e @ Error::Corrupt { .. }) if core.options.recovery.gives_up() => {
                log::error!("what is left of epoch {epoch} of writer {writer:?} is given up: {e}");
                // The parts that are there stay, the others never come.
                let (topics, owner) = (Vec::new(), String::new());
                let body = TxnDone { writer, epoch, topics, owner, forgets: false };
                log_end(core, &body, Level::Written)?;
            }
            Err(e @ (Error::StorageUnavailable { .. } | Error::Throttled { .. })) => {
                // Readers may come; a pass, a repeat or the next open goes on.
                log::warn!("epoch {epoch} of writer {writer:?} is not published yet: {e}");
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// What happens without being asked: old stages and spent files go, what a full disk stopped goes
/// on. Cheap when nothing is due.
pub(crate) fn pass(core: &Arc<Transactions>) -> Result<()> {
    let now = core.time.steady();
    core.txns.expire(now);
    let ttl = core.options.txn_ttl.max(Duration::from_millis(1)).as_millis() as u64;
    core.metrics.txn_expired.add(core.staging.expire(&core.txns, now.saturating_sub(ttl)));
    if core.wal.poisoned(0).is_none() {
        core.staging.sweep(&core.txns, core.wal.positions(0).synced)?;
    }
    for (writer, epoch) in core.txns.all_open(None) {
        let Some(_lock) = core.txns.try_lock_writer(base(&writer)) else { continue };
        if core.txns.open(&writer, epoch).is_some()
            && let Err(e) = finish(core, &writer, epoch)
        {
            log::debug!("epoch {epoch} of writer {writer:?} is not published yet: {e}");
        }
    }
    Ok(())
}
