//! Commits a transaction: checks everything, then logs the decision as one frame.

use std::collections::BTreeSet;
use std::sync::Arc;

use topics_storage::format::record::{Body, TxnCommit, TxnTopic};
use topics_storage::wal::{Batch, Level};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::Transactions;
use super::api::{CommitRequest, Committed, TxnRequest, TxnWork};
use super::gather::{self, Gathered};
use super::participant::{self, TxnParticipant};
use super::publish::{self, Ready};
use super::staging::OWN;
use super::table::{KEYED, NAMELESS, empty_commit};
use super::work::{check_existing, find, work_by_topic};
use super::writers;
use crate::ctx::Wait;
use crate::topic::events::{Base, Ctx};
use crate::topic::{self, Applied, ExclusiveGuard, Key, Topic};
use crate::types::api::Append;
use crate::types::error::{Error, Result};
use crate::types::name;
use crate::verbs;

/// The longest name of a query.
const MAX_QUERY: usize = 256;
/// The longest idempotency key.
const MAX_KEY: usize = 256;
/// The longest decision: it is one frame.
const MAX_DECISION: usize = 16 << 20;

/// Publishes stages of a writer.
pub(crate) fn commit(
    txns: &Arc<Transactions>,
    writer: &str,
    req: &CommitRequest<'_>,
) -> Result<Committed> {
    name::check(writer)?;
    txns.ctx().check_open()?;
    check_query(req.query)?;
    let _lock = txns.table.lock_writer(writer);
    if let Some(answer) = earlier(txns, writer, Some(req.epoch), req.query)? {
        return Ok(answer);
    }
    check_epoch(writer, req.epoch)?;
    let gathered = gather::stages(txns, writer, req.stages)?;
    let author = Author { writer, epoch: req.epoch, owner: req.owner, query: req.query };
    decide(txns, &author, gathered, &req.work)
}

/// Who commits, and as which epoch.
struct Author<'a> {
    writer: &'a str,
    epoch: u64,
    /// The API key; empty: none.
    owner: &'a str,
    /// The query; empty: none.
    query: &'a str,
}

/// Refuses the last epoch: the writer could never commit again.
fn check_epoch(writer: &str, epoch: u64) -> Result<()> {
    if epoch < u64::MAX {
        return Ok(());
    }
    let text = format!(
        "writer {writer:?}: the epoch must be below {}, after which there is no other; send a \
         smaller one, or forget the writer to begin again",
        u64::MAX
    );
    Err(Error::InvalidRequest(text))
}

fn check_query(query: &str) -> Result<()> {
    if query.len() > MAX_QUERY {
        let text = format!("`query` is {} bytes; at most {MAX_QUERY} are allowed", query.len());
        return Err(Error::InvalidRequest(text));
    }
    Ok(())
}

/// A transaction in one call.
pub(crate) fn transact(txns: &Arc<Transactions>, req: &TxnRequest<'_>) -> Result<Committed> {
    txns.ctx().check_open()?;
    let (mut writer, epoch) = identity(txns.base(), req)?;
    let _lock = txns.table.lock_writer(&writer);
    let named = req.writer.is_some();
    let shown = |c: Committed| Committed { epoch: if named { c.epoch } else { 0 }, ..c };
    if let Some(answer) = earlier(txns, &writer, epoch, "")? {
        return Ok(shown(answer));
    }
    let now = txns.base().time.steady();
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => txns.table.last(&writer, now).map_or(1, |last| last.epoch.saturating_add(1)),
    };
    if named {
        check_epoch(&writer, epoch)?;
    }
    if !req.key.is_empty() {
        // The same request after the key's window is a new transaction.
        writer = format!("{writer}.{:016x}", txns.base().env.rng.next_u64());
    }
    let rows = gather::rows_of(txns.base(), &writer, OWN, req.rows)?;
    let mut gathered = Gathered::default();
    let mut charge = None;
    if !rows.is_empty() {
        gather::add(&mut gathered.rows, &rows);
        let (_, file, taken) = txns.staging.write(&writer, OWN, 0, rows, now)?;
        gathered.files.push(file);
        charge = Some(taken);
    }
    let author = Author { writer: &writer, epoch, owner: req.owner, query: "" };
    let outcome = decide(txns, &author, gathered, &req.work);
    drop(charge);
    outcome.map(shown)
}

/// The writer and epoch of a transaction in one call.
fn identity(base: &Base, req: &TxnRequest<'_>) -> Result<(String, Option<u64>)> {
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
            Ok((format!("{NAMELESS}{:016x}", base.env.rng.next_u64()), Some(1)))
        }
        None => Ok((format!("{KEYED}{:032x}", key_hash(req)), Some(request_hash(req)))),
    }
}

/// The hash of a key. Equal keys of different API keys have different hashes.
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

/// The hash that a repeat under a key must share with the first call.
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
        part(a.jobs.node);
        a.jobs.seqs.iter().for_each(|s| part(&s.to_le_bytes()));
        a.jobs.lease_ids.into_iter().flatten().for_each(|id| part(&id.to_le_bytes()));
    }
    h.digest()
}

/// The earlier answer to an epoch, if there is one. Finishes earlier decisions of the writer first. The
/// caller has the writer's lock.
fn earlier(
    txns: &Arc<Transactions>,
    writer: &str,
    epoch: Option<u64>,
    query: &str,
) -> Result<Option<Committed>> {
    for (writer, epoch) in txns.table.all_open(Some(writer)) {
        publish::finish(txns, &writer, epoch)?;
    }
    let last = txns.table.last(writer, txns.base().time.steady());
    let (Some(last), Some(epoch)) = (last, epoch) else { return undecided(txns.ctx()) };
    if writer.starts_with(KEYED) && last.epoch != epoch {
        return Err(Error::IdempotencyMismatch { topic: "(a transaction)".into() });
    }
    if epoch > last.epoch {
        return undecided(txns.ctx());
    }
    let (writer, last_epoch) = (writer.to_owned(), last.epoch);
    // Another query's epoch is no repeat of this one: its rows are other rows.
    let committed_by = txns.table.query_of(&writer);
    if !txns.base().env.check("txn.query", committed_by == query) {
        let query = query.to_owned();
        return Err(Error::EpochOfOtherQuery {
            writer,
            epoch,
            last: last_epoch,
            committed_by,
            query,
        });
    }
    if epoch < last_epoch {
        return Err(Error::StaleEpoch { writer, epoch, last: last_epoch });
    }
    Ok(Some(Committed { deduped: true, ..last }))
}

/// No earlier answer; an error if the shard of the decisions has failed, because it may have one.
fn undecided(ctx: &Ctx) -> Result<Option<Committed>> {
    ctx.wal.poisoned(0).map_or(Ok(None), |e| Err(e.into()))
}

/// Checks, decides and publishes. The caller has the writer's lock.
fn decide(
    txns: &Arc<Transactions>,
    author: &Author<'_>,
    gathered: Gathered,
    work: &TxnWork<'_>,
) -> Result<Committed> {
    let Gathered { files, rows, staged } = gathered;
    let who = (author.writer, author.epoch);
    let mut tried = false;
    // Kept until the end frame is applied, which counts the remembered writer or key.
    let admission = writers::admit(txns, author.writer, author.owner);
    let admitted = admission.as_ref().map_err(Clone::clone);
    let decided = admitted.and_then(|_| check(txns, rows, work)).and_then(|ready| {
        tried = true;
        let (owner, query) = (author.owner.to_owned(), author.query.to_owned());
        let decision = TxnCommit { files: files.clone(), owner, query, ..body(who, &ready) };
        log(txns.ctx(), &decision).inspect_err(|_| {
            // A failed shard may have the decision after a restart, which acks these jobs: their
            // leases stay, so that no other worker gets them.
            if txns.ctx().wal.poisoned(0).is_none() {
                ready.iter().for_each(|h| participant::release_acks(&h.topic, &h.part.acks));
            }
        })?;
        Ok(ready)
    });
    let ready = match decided {
        Ok(ready) => ready,
        Err(e) => {
            // The log may have a failed decision all the same, until a later frame is written.
            txns.base().metrics.txn_refused.add(1);
            let lsn = if tried { txns.ctx().wal.positions(0).written + 1 } else { 0 };
            if staged {
                txns.staging.doubt(who.0, &files, lsn);
            } else {
                files.into_iter().for_each(|f| txns.table.spend(f.name, lsn));
            }
            return Err(e);
        }
    };
    txns.base().metrics.txn_commits.add(1);
    txns.staging.decided(who.0, &files);
    publish::publish(txns, who, ready)?;
    publish::end(txns, who.0, who.1)
}

/// Takes every topic exclusively and checks everything. After that only the disk can fail.
fn check(
    txns: &Arc<Transactions>,
    rows: gather::ByTopic,
    work: &TxnWork<'_>,
) -> Result<Vec<Ready>> {
    let mut by_topic = work_by_topic(rows, work)?;
    if by_topic.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = by_topic.values().map(|w| w.rows.len() as u64).sum();
    verbs::check_load(txns.store(), bytes, Wait::Bounded)?;
    check_existing(txns, &mut by_topic)?;
    let mut topics = Vec::new();
    for (name, work) in &by_topic {
        let topic = find(txns.catalog(), name, work)?;
        topic::expire_before_write(txns.ctx(), &topic, Wait::Bounded)?;
        topics.push(topic);
    }
    let mut order: Vec<_> = topics.into_iter().zip(by_topic.into_values()).collect();
    order.sort_by_key(|(topic, _)| topic.id());
    let guards = take_exclusive(txns.ctx(), order.iter().map(|(topic, _)| topic))?;
    let mut ready: Vec<Ready> = Vec::new();
    for ((topic, mut work), exclusive) in order.into_iter().zip(guards) {
        match work.check(txns, &topic, &exclusive) {
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
    sync_dependencies(txns.ctx(), &ready).inspect_err(|_| {
        ready.iter().for_each(|r| participant::release_acks(&r.topic, &r.part.acks));
    })?;
    Ok(ready)
}

/// Takes topics exclusively, in the given order, which is ascending by id.
pub(crate) fn take_exclusive<'a>(
    ctx: &Arc<Ctx>,
    topics: impl Iterator<Item = &'a Arc<Topic>>,
) -> Result<Vec<ExclusiveGuard>> {
    topics.map(|topic| topic.exclusive(ctx)).collect()
}

/// Syncs the shards that the decision depends on, with creations, consumers and jobs. The decision's own
/// sync covers shard 0.
fn sync_dependencies(ctx: &Ctx, ready: &[Ready]) -> Result<()> {
    let shards: BTreeSet<usize> = ready.iter().map(|r| ctx.shard(r.topic.id())).collect();
    for shard in shards.into_iter().filter(|s| *s > 0) {
        let at = ctx.wal.positions(shard);
        if !ctx.base().env.check("txn.settled", at.synced >= at.written) {
            ctx.wal.sync(shard)?;
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
fn log(ctx: &Arc<Ctx>, body: &TxnCommit) -> Result<()> {
    let names: usize = body.commits.iter().map(|c| c.1.len() + 24).sum();
    let acks: usize = body.acks.iter().map(|a| a.1.len() * 9 + 24).sum();
    let size = names + acks + body.files.len() * 64 + body.topics.len() * 27 + 512;
    if size > MAX_DECISION {
        let (got, max) = (size as u64, MAX_DECISION as u64);
        return Err(Error::BatchTooLarge { got, max, unit: "bytes of names and seqs" });
    }
    let mut head = Vec::new();
    body.encode_frame(&mut head, 0, 0, 0);
    let commit = Arc::new(Applied::new(ctx, "a transaction's decision"));
    let batch = Batch::control(head, ctx.base().time.steady(), Level::Synced, commit);
    let ticket = ctx.stage_control(0, batch, Wait::Bounded)?;
    ctx.wait(ticket, Level::Synced)
}
