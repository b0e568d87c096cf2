//! Committing: everything is checked, then decided by one frame.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_storage::format::record::{Body, TxnCommit, TxnTopic};
use topics_storage::wal::{Batch, Level};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::Transactions;
use super::api::{CommitRequest, Committed, TxnRequest, TxnWork};
use super::gather::{self, Gathered};
use super::participant::{Conditions, PartRows, TxnParticipant};
use super::publish::{self, Ready};
use super::staging::OWN;
use super::table::{KEYED, NAMELESS, empty_commit};
use super::writers;
use crate::ctx::Wait;
use crate::topic::{self, Applied, ExclusiveGuard, Key, Topic};
use crate::txn::participant;
use crate::types::api::Append;
use crate::types::config::ConfigPatch;
use crate::types::error::{Error, Result};
use crate::types::name;
use crate::types::queue::Held;
use crate::verbs;

/// The longest idempotency key.
const MAX_KEY: usize = 256;
/// The longest decision: it is one frame.
const MAX_DECISION: usize = 16 << 20;

/// Publishes stages of a writer.
pub(crate) fn commit(
    core: &Arc<Transactions>,
    writer: &str,
    req: &CommitRequest<'_>,
) -> Result<Committed> {
    name::check(writer)?;
    core.check_open()?;
    let _lock = core.txns.lock_writer(writer);
    if let Some(answer) = earlier(core, writer, Some(req.epoch))? {
        return Ok(answer);
    }
    let gathered = gather::stages(core, writer, req.stages)?;
    decide(core, (writer, req.epoch, req.owner), gathered, &req.work)
}

/// A transaction in one call.
pub(crate) fn transact(core: &Arc<Transactions>, req: &TxnRequest<'_>) -> Result<Committed> {
    core.check_open()?;
    let (mut writer, epoch) = identity(core, req)?;
    let _lock = core.txns.lock_writer(&writer);
    let named = req.writer.is_some();
    let shown = |c: Committed| Committed { epoch: if named { c.epoch } else { 0 }, ..c };
    if let Some(answer) = earlier(core, &writer, epoch)? {
        return Ok(shown(answer));
    }
    let now = core.time.steady();
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => core.txns.last(&writer, now).map_or(1, |last| last.epoch.saturating_add(1)),
    };
    if !req.key.is_empty() {
        // The same request after the key's window is another transaction.
        writer = format!("{writer}.{:016x}", core.env.rng.next_u64());
    }
    let rows = gather::rows_of(core, req.rows)?;
    let mut gathered = Gathered::default();
    let mut charge = None;
    if !rows.is_empty() {
        let (_, file, taken) = core.staging.write(&writer, OWN, 0, &rows, now)?;
        gathered.files.push(file);
        gather::add(&mut gathered.rows, rows);
        charge = Some(taken);
    }
    let outcome = decide(core, (&writer, epoch, req.owner), gathered, &req.work);
    drop(charge);
    outcome.map(shown)
}

/// The writer and epoch of a transaction in one call.
fn identity(core: &Transactions, req: &TxnRequest<'_>) -> Result<(String, Option<u64>)> {
    if req.key.len() > MAX_KEY {
        let text =
            format!("the idempotency key is {} bytes, the limit is {MAX_KEY}", req.key.len());
        return Err(Error::InvalidRequest(text));
    }
    match req.writer {
        Some(_) if !req.key.is_empty() => {
            let text = "a transaction has a writer or an idempotency key, not both";
            Err(Error::InvalidRequest(text.into()))
        }
        Some(writer) => {
            name::check(writer)?;
            Ok((writer.to_owned(), req.epoch))
        }
        None if req.epoch.is_some() => {
            Err(Error::InvalidRequest("an epoch is of a writer: name it".into()))
        }
        None if req.key.is_empty() => {
            Ok((format!("{NAMELESS}{:016x}", core.env.rng.next_u64()), Some(1)))
        }
        None => Ok((format!("{KEYED}{:032x}", key_hash(req)), Some(request_hash(req)))),
    }
}

/// The key as it is remembered: keys of different API keys are different ones.
fn key_hash(req: &TxnRequest<'_>) -> u128 {
    if req.owner.is_empty() {
        return xxh3_128(req.key);
    }
    let mut h = Xxh3::new();
    h.update(&(req.owner.len() as u64).to_le_bytes());
    h.update(req.owner.as_bytes());
    h.update(req.key);
    h.digest128()
}

/// What a repeat under a key must have in common with the first call.
fn request_hash(req: &TxnRequest<'_>) -> u64 {
    let mut h = Xxh3::new();
    let mut part = |bytes: &[u8]| {
        h.update(&(bytes.len() as u64).to_le_bytes());
        h.update(bytes);
    };
    for r in req.rows {
        part(r.topic.as_bytes());
        let append = Append { records: r.records, node: r.node, key: b"-", ..Append::default() };
        part(&Key::of(&append).map_or(0, |k| k.request).to_le_bytes());
    }
    for (topic, head) in req.work.expect_heads {
        part(topic.as_bytes());
        part(&head.to_le_bytes());
    }
    for c in req.work.commits {
        part(c.topic.as_bytes());
        part(c.consumer.as_bytes());
        part(&c.seq.to_le_bytes());
    }
    for a in req.work.acks {
        part(a.queue.as_bytes());
        part(a.held.node);
        a.held.seqs.iter().for_each(|s| part(&s.to_le_bytes()));
        a.held.lease_ids.into_iter().flatten().for_each(|id| part(&id.to_le_bytes()));
    }
    h.digest()
}

/// What is known of an epoch already; finishes what was decided before. The caller has the
/// writer's turn.
fn earlier(
    core: &Arc<Transactions>,
    writer: &str,
    epoch: Option<u64>,
) -> Result<Option<Committed>> {
    for (writer, epoch) in core.txns.all_open(Some(writer)) {
        publish::finish(core, &writer, epoch)?;
    }
    let last = core.txns.last(writer, core.time.steady());
    let (Some(last), Some(epoch)) = (last, epoch) else { return undecided(core) };
    if last.epoch == epoch {
        return Ok(Some(Committed { deduped: true, ..last }));
    }
    if writer.starts_with(KEYED) {
        return Err(Error::IdempotencyMismatch { topic: "(a transaction)".into() });
    }
    if epoch < last.epoch {
        let (writer, last) = (writer.to_owned(), last.epoch);
        return Err(Error::StaleEpoch { writer, epoch, last });
    }
    undecided(core)
}

/// Nothing is known, unless the shard of the decisions has failed: then it may hold one.
fn undecided(core: &Transactions) -> Result<Option<Committed>> {
    core.wal.poisoned(0).map_or(Ok(None), |e| Err(e.into()))
}

/// The work of a transaction in one topic.
#[derive(Default)]
struct TopicWork<'a> {
    rows: PartRows,
    expect_head: Option<u64>,
    cursors: Vec<(String, u64)>,
    acks: Vec<Held<'a>>,
}

impl TopicWork<'_> {
    /// Checks everything that may stand against it; the jobs that it acks.
    fn check(
        &mut self,
        core: &Arc<Transactions>,
        topic: &Arc<Topic>,
        exclusive: &ExclusiveGuard,
    ) -> Result<Vec<u64>> {
        let (cursors, acks) = (&self.cursors[..], &self.acks[..]);
        let conditions = Conditions { expect_head: self.expect_head, cursors, acks };
        participant::check_part(core, topic, exclusive, &mut self.rows, &conditions)
    }
}

/// By topic name.
type WorkByTopic<'a> = BTreeMap<String, TopicWork<'a>>;

fn work_by_topic<'a>(rows: gather::ByTopic, work: &TxnWork<'a>) -> Result<WorkByTopic<'a>> {
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
        let cursors = &mut all.entry(c.topic.to_owned()).or_default().cursors;
        match cursors.iter_mut().find(|(name, _)| name == c.consumer) {
            Some((_, seq)) => *seq = c.seq.max(*seq),
            None => cursors.push((c.consumer.to_owned(), c.seq)),
        }
    }
    for a in work.acks {
        all.entry(a.queue.to_owned()).or_default().acks.push(a.held);
    }
    Ok(all)
}

/// Checks, decides, publishes. The caller has the writer's turn.
fn decide(
    core: &Arc<Transactions>,
    (writer, epoch, owner): (&str, u64, &str),
    gathered: Gathered,
    work: &TxnWork<'_>,
) -> Result<Committed> {
    let Gathered { files, rows, staged } = gathered;
    let who = (writer, epoch);
    let mut tried = false;
    // Kept until the end is applied, which counts what is remembered.
    let admission = writers::admit(core, writer, owner);
    let admitted = admission.as_ref().map_err(Clone::clone);
    let decided = admitted.and_then(|_| check(core, rows, work)).and_then(|ready| {
        tried = true;
        let owner = owner.to_owned();
        log(core, &TxnCommit { files: files.clone(), owner, ..body(who, &ready) }).inspect_err(
            |_| {
                // Of a shard that has failed nobody knows what it will say after a restart: jobs that
                // may be acked then are not given to others.
                if core.wal.poisoned(0).is_none() {
                    ready.iter().for_each(|h| participant::release_acks(&h.topic, &h.part.acks));
                }
            },
        )?;
        Ok(ready)
    });
    let ready = match decided {
        Ok(ready) => ready,
        Err(e) => {
            // A decision that failed may be in the log all the same, until that has gone on.
            core.metrics.txn_refused.add(1);
            let lsn = if tried { core.wal.positions(0).written + 1 } else { 0 };
            if staged {
                core.staging.doubt(who.0, &files, lsn);
            } else {
                files.into_iter().for_each(|f| core.txns.spend(f.name, lsn));
            }
            return Err(e);
        }
    };
    core.metrics.txn_commits.add(1);
    core.staging.decided(who.0, &files);
    publish::publish(core, who, ready)?;
    publish::end(core, who.0, who.1)
}

/// Takes every topic alone and checks everything. What is returned can only fail by the disk.
fn check(
    core: &Arc<Transactions>,
    rows: gather::ByTopic,
    work: &TxnWork<'_>,
) -> Result<Vec<Ready>> {
    let mut by_topic = work_by_topic(rows, work)?;
    if by_topic.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = by_topic.values().map(|w| w.rows.len() as u64).sum();
    verbs::check_load(core, bytes, Wait::Bounded)?;
    check_existing(core, &mut by_topic)?;
    let mut topics = Vec::new();
    for (name, work) in &by_topic {
        let topic = find(core, name, work)?;
        topic::expire_before_write(core, &topic, Wait::Bounded)?;
        topics.push(topic);
    }
    let mut order: Vec<_> = topics.into_iter().zip(by_topic.into_values()).collect();
    order.sort_by_key(|(topic, _)| topic.id());
    let guards = take_exclusive(core, order.iter().map(|(topic, _)| topic))?;
    let mut ready: Vec<Ready> = Vec::new();
    for ((topic, mut work), exclusive) in order.into_iter().zip(guards) {
        match work.check(core, &topic, &exclusive) {
            Ok(acks) => {
                let part = TxnParticipant { rows: work.rows, acks, cursors: work.cursors };
                ready.push(Ready { topic, exclusive, part });
            }
            Err(e) => {
                ready.iter().for_each(|r| participant::release_acks(&r.topic, &r.part.acks));
                return Err(e);
            }
        }
    }
    sync_dependencies(core, &ready).inspect_err(|_| {
        ready.iter().for_each(|r| participant::release_acks(&r.topic, &r.part.acks));
    })?;
    Ok(ready)
}

/// Takes topics alone, in the order in which they are given: that of their ids.
pub(crate) fn take_exclusive<'a>(
    core: &Arc<Transactions>,
    topics: impl Iterator<Item = &'a Arc<Topic>>,
) -> Result<Vec<ExclusiveGuard>> {
    topics.map(|topic| topic.exclusive(core)).collect()
}

/// Refuses what can be refused without the topics that are missing, before these are created.
fn check_existing(core: &Arc<Transactions>, by_topic: &mut WorkByTopic<'_>) -> Result<()> {
    let (mut existing, all) = (Vec::new(), by_topic.len());
    for (name, work) in by_topic {
        match live(core, name)? {
            Some(topic) => existing.push((topic, work)),
            None => may_create(core, name, work)?,
        }
    }
    if existing.len() == all {
        return Ok(());
    }
    existing.sort_by_key(|(topic, _)| topic.id());
    let guards = take_exclusive(core, existing.iter().map(|(topic, _)| topic))?;
    for ((topic, work), exclusive) in existing.into_iter().zip(guards) {
        let acks = work.check(core, &topic, &exclusive)?;
        participant::release_acks(&topic, &acks);
    }
    Ok(())
}

fn live(core: &Transactions, name: &str) -> Result<Option<Arc<Topic>>> {
    core.live(name)
}

/// Whether a topic that is missing may be created for this work.
fn may_create(core: &Transactions, name: &str, work: &TopicWork<'_>) -> Result<()> {
    name::check(name)?;
    let only_rows = work.rows.count() > 0 && work.cursors.is_empty() && work.acks.is_empty();
    if !only_rows || !core.options.auto_create.allows(name) {
        return Err(Error::TopicNotFound(name.to_owned()));
    }
    if let Some(expected) = work.expect_head.filter(|head| *head > 0) {
        return Err(Error::HeadMismatch { topic: name.to_owned(), expected, actual: 0 });
    }
    Ok(())
}

/// The topic of a name; created for rows, where that is allowed.
fn find(core: &Arc<Transactions>, name: &str, work: &TopicWork<'_>) -> Result<Arc<Topic>> {
    if let Some(topic) = live(core, name)? {
        return Ok(topic);
    }
    may_create(core, name, work)?;
    verbs::create(core, name, &ConfigPatch::default())?;
    live(core, name)?.ok_or_else(|| Error::TopicNotFound(name.to_owned()))
}

/// What the decision rests on is durable before it: creations, consumers, jobs. What lies on shard
/// 0 is so by its sync.
fn sync_dependencies(core: &Arc<Transactions>, ready: &[Ready]) -> Result<()> {
    let shards: BTreeSet<usize> = ready.iter().map(|r| core.shard(r.topic.id())).collect();
    for shard in shards.into_iter().filter(|s| *s > 0) {
        let at = core.wal.positions(shard);
        if !core.env.check("txn.settled", at.synced >= at.written) {
            core.wal.sync(shard)?;
        }
    }
    Ok(())
}

fn body(who: (&str, u64), ready: &[Ready]) -> TxnCommit {
    let mut body = TxnCommit { writer: who.0.to_owned(), epoch: who.1, ..empty_commit() };
    for r in ready {
        let key = r.topic.key;
        let (topic_id, epoch, rows) = (key.topic_id, key.epoch, r.part.rows.count());
        body.topics.push(TxnTopic { topic_id, epoch, rows });
        let cursors = r.part.cursors.iter();
        body.commits.extend(cursors.map(|(name, seq)| (topic_id, name.clone(), *seq)));
        if !r.part.acks.is_empty() {
            body.acks.push((topic_id, r.part.acks.clone()));
        }
    }
    body
}

/// Logs the decision, durably.
fn log(core: &Arc<Transactions>, body: &TxnCommit) -> Result<()> {
    let names: usize = body.commits.iter().map(|c| c.1.len() + 24).sum();
    let acks: usize = body.acks.iter().map(|a| a.1.len() * 9 + 24).sum();
    let size = names + acks + body.files.len() * 64 + body.topics.len() * 27 + 512;
    if size > MAX_DECISION {
        let (got, max) = (size as u64, MAX_DECISION as u64);
        return Err(Error::BatchTooLarge { got, max, unit: "bytes of names and seqs" });
    }
    let mut head = Vec::new();
    body.encode_frame(&mut head, 0, 0, 0);
    let commit = Arc::new(Applied::new(core, "a transaction's decision"));
    let batch = Batch::control(head, core.time.steady(), Level::Synced, commit);
    let ticket = core.stage_control(0, batch, Wait::Bounded)?;
    core.wait(ticket, Level::Synced)
}
