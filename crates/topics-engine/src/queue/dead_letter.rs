//! Moving a record from one topic to another: dead letters, redrive.
//!
//! The copy is appended under an idempotency key that names the original, and synced; the original
//! is deleted after that; the key is held until the deletion is durable. A crash between leaves
//! both, and the open after it finishes what was begun: after recovery a job is in one place.

pub(crate) mod job_meta;
mod keys;

use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_storage::format::record::{self, LeaseEvent};

use self::job_meta::{JobOptions, Reason};
pub(crate) use self::keys::finish;
use self::keys::{REQUEST, key_of, release_when_synced};
use super::Queues;
use super::records::fetch;
use super::{commit, config_of, with};
use crate::checkpoint::Store;
use crate::topic::events::Base;
use crate::topic::state::dedupe::Key;
use crate::topic::state::queue::RemovalReason;
use crate::topic::write::prepare::Prepared;
use crate::topic::{Topic, delete, read};
use crate::types::api::{Append, Appended, NewRecord, ReadFrom, ReadRequest};
use crate::types::batch::{ReadBatch, RecordView};
use crate::types::config::TopicType;
use crate::types::error::{Error, Result};
use crate::types::queue::{Redrive, Redriven};
use crate::verbs::{perform, submit};

/// Records that are moved at a time.
const CHUNK: usize = 500;

/// A record on its way.
struct MovedRecord {
    seq: u64,
    /// Its slot in the batch that was read.
    slot: usize,
    dest: Arc<str>,
    meta: Vec<u8>,
    /// What it has there beside its record.
    options: JobOptions,
}

/// Jobs over their deliveries, taken out of the queue, go to the dead-letter topic. What cannot be
/// moved waits again: then this is false.
pub(crate) fn move_exhausted(queues: &Arc<Queues>, topic: &Arc<Topic>, seqs: &[u64]) -> bool {
    if let Err(e) = dead_letter(queues, topic, seqs, Reason::MaxDeliveries) {
        // Nobody has to do anything about a topic that is busy, or about a close: the next claim, or the
        // next open, makes the move.
        let transient = matches!(e, Error::Throttled { .. } | Error::Closed);
        let level = if transient { log::Level::Debug } else { log::Level::Warn };
        log::log!(level, "topic {:?}: dead letters stay where they are: {e}", topic.name);
        let gone = matches!(e, Error::TopicNotFound(_));
        let now = queues.base().time.now();
        // Without a dead-letter topic they are dead here.
        with(topic, |q| {
            seqs.iter().for_each(|seq| if gone { q.mark_dead(*seq, now) } else { q.undo(*seq) });
        });
        return gone;
    }
    true
}

/// Moves jobs to the dead-letter topic of their queue.
fn dead_letter(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    seqs: &[u64],
    reason: Reason,
) -> Result<u64> {
    let config = config_of(topic)?;
    let Some(dest) = &config.dead_letter else {
        return Err(Error::TopicNotFound("(no dead_letter)".into()));
    };
    let dest: Arc<str> = dest.as_str().into();
    let mut moved = 0;
    let mut sorted = seqs.to_vec();
    sorted.sort_unstable();
    for seqs in sorted.chunks(CHUNK) {
        let (batch, slots) = fetch(queues.ctx(), topic, seqs, true)?;
        let mut items = Vec::new();
        for (&seq, slot) in seqs.iter().zip(slots) {
            let record = slot.and_then(|s| batch.get(s));
            let (Some(slot), Some(record)) = (slot, record) else {
                // The record is gone.
                with(topic, |q| q.forget(seq));
                continue;
            };
            let history = with(topic, |q| q.history(seq));
            let was = (&*topic.name, &history);
            let meta = job_meta::meta_of(&record, batch.attrs(slot), was, reason);
            // Its options wait for a redrive.
            let options = JobOptions::default();
            items.push(MovedRecord { seq, slot, dest: dest.clone(), meta, options });
        }
        let how = MoveOptions { create: config.auto_create, why: reason.why() };
        moved += move_records(queues, topic, &batch, &items, how)?;
    }
    queues.base().metrics.dead_letters.add(moved);
    Ok(moved)
}

/// What has expired of a queue is a dead letter where that is set: called before records go by
/// expiry. Why the rest go.
pub(crate) fn expire_jobs(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    seqs: &[u64],
) -> Result<RemovalReason> {
    let config = topic.state.read().config.clone();
    if config.kind != TopicType::Queue {
        return Ok(RemovalReason::REQUESTED);
    }
    if config.dead_letter.is_some() {
        dead_letter(queues, topic, seqs, Reason::Expired)?;
    }
    queues.base().metrics.expired_jobs.add(seqs.len() as u64);
    Ok(RemovalReason::EXPIRED)
}

/// How records move.
#[derive(Clone, Copy, Debug)]
struct MoveOptions {
    /// Whether the topic that they go to may be created.
    create: bool,
    /// What the one that they leave counts.
    why: RemovalReason,
}

impl MoveOptions {
    /// By a redrive.
    const REQUESTED: Self = Self { create: false, why: RemovalReason::REQUESTED };
}

/// Copies, syncs, deletes, releases the keys. Returns how many were moved.
fn move_records(
    queues: &Arc<Queues>,
    source: &Arc<Topic>,
    batch: &ReadBatch,
    items: &[MovedRecord],
    how: MoveOptions,
) -> Result<u64> {
    let mut moved: Vec<(u64, Arc<str>, Appended)> = Vec::new();
    let mut failed = None;
    let mut done = 0;
    while done < items.len() && failed.is_none() {
        let dest = &items[done].dest;
        let n = items[done..].iter().take_while(|i| i.dest == *dest).count();
        let copied = copies(queues.store(), source, batch, &items[done..done + n], how.create);
        failed = copied.1;
        moved.extend(copied.0.into_iter().map(|(seq, a)| (seq, dest.clone(), a)));
        done += n;
    }
    if moved.is_empty() {
        return failed.map_or(Ok(0), Err);
    }
    moved.sort_unstable_by_key(|m| m.0);
    let seqs: Vec<u64> = moved.iter().map(|m| m.0).collect();
    let (_, ticket) = delete::delete_seqs(queues.ctx(), source, &seqs, how.why)?;
    release_when_synced(queues, source.id(), ticket, moved);
    queues.claim_waiters.notify(source.id());
    match failed {
        Some(e) => Err(e),
        None => Ok(seqs.len() as u64),
    }
}

/// Appends copies to one topic and syncs them, whatever its class.
fn copies(
    store: &Arc<Store>,
    source: &Arc<Topic>,
    batch: &ReadBatch,
    items: &[MovedRecord],
    create: bool,
) -> (Vec<(u64, Appended)>, Option<Error>) {
    let mut done = Vec::new();
    let Some((first, rest)) = items.split_first() else { return (done, None) };
    let queue = match store.catalog().named(&first.dest) {
        Ok(dest) => dest.is_some_and(|t| t.state.read().config.kind == TopicType::Queue),
        Err(e) => return (done, Some(e)),
    };
    let prepared = |item| prepared(store.base(), source, batch, item, (create, queue));
    // The first alone: it may create the topic.
    match prepared(first).and_then(|p| perform(store, p)) {
        Ok(a) => done.push((first.seq, a)),
        Err(e) => return (done, Some(e)),
    }
    let Some(dest) = store.catalog().table.loaded.named(&first.dest) else { return (done, None) };
    let answers = Arc::new(Mutex::new((done, None)));
    for item in rest {
        let (slot, seq) = (answers.clone(), item.seq);
        match prepared(item) {
            Ok(p) => {
                let done = move |outcome| match outcome {
                    Ok(a) => slot.lock().0.push((seq, a)),
                    Err(e) => slot.lock().1 = Some(e),
                };
                submit(store, p, Box::new(done));
            }
            Err(e) => slot.lock().1 = Some(e),
        }
    }
    if let Err(e) = store.ctx().wal.sync(store.ctx().shard(dest.id())) {
        answers.lock().1 = Some(e.into());
    }
    // What has no answer yet counts as not copied: its key keeps a repeat from copying it twice.
    let mut answers = answers.lock();
    if answers.0.len() < items.len() && answers.1.is_none() {
        let (limit, max) = ("topic_busy", 0);
        answers.1 = Some(Error::Throttled { limit, max, retry_after_ms: 10 });
    }
    std::mem::take(&mut *answers)
}

fn prepared(
    base: &Base,
    source: &Topic,
    batch: &ReadBatch,
    item: &MovedRecord,
    (create, job): (bool, bool),
) -> Result<Prepared> {
    let record = batch.get(item.slot);
    let r = record.ok_or_else(|| Error::Internal("a record to move is not there".into()))?;
    let now = base.time.steady();
    let mut record = NewRecord {
        data: r.data,
        binary: r.binary,
        tag: r.tag,
        node: r.node,
        meta: &item.meta,
        ..NewRecord::default()
    };
    item.options.give(&mut record, job, now);
    let req = Append { records: &[record], sync: true, create: Some(create), ..Append::default() };
    let began = base.time.mono_ns();
    let mut p = Prepared::of_copies(&base.options, &item.dest, &req, now, began)?;
    p.key = Some(Key { hash: key_of(source.id(), item.seq), request: REQUEST });
    p.is_pinned = true;
    Ok(p)
}

/// Moves dead letters to where they came from, or elsewhere; revives the dead jobs of a queue.
pub(crate) fn redrive(queues: &Arc<Queues>, topic: &Arc<Topic>, req: &Redrive) -> Result<Redriven> {
    queues.ctx().check_open()?;
    topic.check_sound()?;
    if let Some(to) = &req.to {
        crate::types::name::check(to)?;
        if **to == *topic.name {
            return Err(Error::InvalidRequest(format!("{to:?} cannot be redriven to itself")));
        }
    }
    let queue = topic.state.read().config.kind == TopicType::Queue;
    let done =
        if queue { revive(queues, topic, req) } else { redrive_dead_letters(queues, topic, req) }?;
    if !req.dry_run {
        queues.base().metrics.redriven_jobs.add(done.moved);
    }
    Ok(done)
}

/// Dead jobs of a queue.
fn revive(queues: &Arc<Queues>, topic: &Arc<Topic>, req: &Redrive) -> Result<Redriven> {
    let mut seqs: Vec<u64> = with(topic, |q| q.dead().collect());
    if let Some(only) = &req.seqs {
        seqs.retain(|s| only.contains(s));
    }
    let limit = req.limit.unwrap_or(usize::MAX);
    let (mut moved, mut records_scanned) = (0, 0);
    for seqs in seqs.chunks(CHUNK) {
        let (batch, slots) = fetch(queues.ctx(), topic, seqs, false)?;
        records_scanned += batch.len() as u64;
        let found = seqs.iter().zip(slots).filter_map(|(s, slot)| Some((*s, slot?)));
        let fits = |slot: usize| batch.get(slot).is_some_and(|r| selects(req, &r));
        let found: Vec<(u64, usize)> =
            found.filter(|(_, slot)| fits(*slot)).take(limit - moved as usize).collect();
        if req.dry_run {
            moved += found.len() as u64;
        } else if let Some(to) = &req.to {
            let dest: Arc<str> = to.as_str().into();
            let item = |(seq, slot): &(u64, usize)| {
                let meta = batch.get(*slot).map(|r| r.meta.to_vec()).unwrap_or_default();
                let options = JobOptions::of(batch.attrs(*slot), &with(topic, |q| q.history(*seq)));
                MovedRecord { seq: *seq, slot: *slot, dest: dest.clone(), meta, options }
            };
            let items: Vec<MovedRecord> = found.iter().map(item).collect();
            moved += move_records(queues, topic, &batch, &items, MoveOptions::REQUESTED)?;
        } else {
            let jobs = found.iter().map(|(seq, _)| (*seq, 0, 0)).collect();
            commit(
                queues,
                topic,
                queues.base().time.now(),
                &[record::Lease::new(LeaseEvent::Nack, b"", 0, jobs)],
            )?;
            moved += found.len() as u64;
        }
    }
    queues.claim_waiters.notify(topic.id());
    Ok(Redriven { moved, records_scanned })
}

/// Records of a dead-letter topic.
fn redrive_dead_letters(
    queues: &Arc<Queues>,
    topic: &Arc<Topic>,
    req: &Redrive,
) -> Result<Redriven> {
    let limit = req.limit.unwrap_or(usize::MAX);
    let (mut at, mut moved, upto) = (0, 0, topic.gate.head());
    let mut records_scanned = 0;
    let mut from = ReadFrom::Earliest;
    while moved < limit as u64 && at < upto {
        let page = ReadRequest {
            from,
            upto: Some(upto),
            limit: CHUNK,
            matching: req.matching.clone(),
            touch: false,
            ..ReadRequest::default()
        };
        let batch = read(queues.ctx(), topic, &page)?;
        records_scanned += batch.records_scanned;
        if batch.next_from_seq <= at {
            break;
        }
        at = batch.next_from_seq;
        from = ReadFrom::After(at);
        let mut items = Vec::new();
        for (slot, r) in batch.iter().enumerate() {
            let Some(came) = job_meta::came_from(r.meta) else { continue };
            if !selects(req, &r) || items.len() as u64 + moved >= limit as u64 {
                continue;
            }
            let dest: Arc<str> = req.to.as_deref().unwrap_or(&came).into();
            let (meta, options) =
                (job_meta::meta_before(r.meta), JobOptions::of_dead_letter(r.meta));
            items.push(MovedRecord { seq: r.seq, slot, dest, meta, options });
        }
        moved += match req.dry_run {
            true => items.len() as u64,
            false => move_records(queues, topic, &batch, &items, MoveOptions::REQUESTED)?,
        };
    }
    Ok(Redriven { moved, records_scanned })
}

fn selects(req: &Redrive, r: &RecordView<'_>) -> bool {
    req.seqs.as_ref().is_none_or(|only| only.contains(&r.seq))
        && req.matching.as_ref().is_none_or(|m| m.selects(r.tag))
}
