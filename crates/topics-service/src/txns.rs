//! Transactions: the owners of writers, and the verbs. All verbs wait for syncs, so they run on worker
//! threads.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use topics_engine::{CommitRequest, Engine, Error, TxnRequest, TxnStage};
use topics_wire::limits::ARROW_LIMIT;
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::write::{Body, Table, txn, txn_answer};
use topics_wire::{Failure, Grant, page};

use super::dispatch::Answer;
use super::{Reply, Request, Service};

/// The owners of writers without a commit: the key that used the writer first since the start. The
/// engine stores the owners of all others. Without keys writers have no owner.
#[derive(Default)]
pub(super) struct WriterOwners(Mutex<HashMap<String, String>>);

/// From this number of entries on, entries that the engine now knows are removed.
const PRUNE_ABOVE: usize = 1024;

impl WriterOwners {
    /// Binds a writer to a key. Returns whether the binding is new; refuses a writer of another key.
    fn bind(&self, engine: &Engine, writer: &str, grant: &Grant) -> Result<bool, Failure> {
        if grant.owner.is_empty() {
            return Ok(false);
        }
        let known = engine.writer_owner(writer);
        let mut all = self.0.lock();
        match known.as_ref().or(all.get(writer)) {
            Some(owner) if *owner == grant.owner => Ok(false),
            Some(_) => {
                let message = format!(
                    "writer {writer:?} belongs to another key; choose another name, or have an \
                     administrator hand it over"
                );
                Err(Failure::new("forbidden", message))
            }
            None => {
                if all.len() >= PRUNE_ABOVE && all.len().is_power_of_two() {
                    all.retain(|w, _| {
                        engine.writer_owner(w).is_none() && engine.writer_state(w).is_ok()
                    });
                }
                all.insert(writer.to_owned(), grant.owner.clone());
                Ok(true)
            }
        }
    }

    /// Binds a writer without a commit to this key, whatever key it belonged to.
    fn assign(&self, writer: &str, owner: String) {
        self.0.lock().insert(writer.to_owned(), owner);
    }

    /// Removes a binding whose request failed.
    fn release(&self, writer: &str) {
        self.0.lock().remove(writer);
    }

    /// Whether a key may see a writer.
    fn may_see(&self, engine: &Engine, writer: &str, grant: &Grant) -> bool {
        grant.owner.is_empty() || self.is_owner(engine, writer, grant).unwrap_or(true)
    }

    /// Whether a key owns a writer; `None` when the owner is unknown.
    fn is_owner(&self, engine: &Engine, writer: &str, grant: &Grant) -> Option<bool> {
        match engine.writer_owner(writer) {
            Some(owner) => Some(owner == grant.owner),
            None => self.0.lock().get(writer).map(|o| *o == grant.owner),
        }
    }

    /// Whether a list shows this writer to a key. A key with prefixes sees only its own writers: one
    /// with an unknown owner may have written to other topics.
    fn may_list(&self, engine: &Engine, writer: &str, grant: &Grant) -> bool {
        self.may_see(engine, writer, grant)
            && (grant.prefixes.is_empty() || self.is_owner(engine, writer, grant) == Some(true))
    }
}

impl Service {
    /// Runs a request as the owner of a writer. A failed request that left no writer releases the name.
    fn as_writer<T>(
        &self,
        writer: &str,
        grant: &Grant,
        run: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let new = self.writers.bind(&self.engine, writer, grant)?;
        let outcome = run();
        if let Err(failure) = &outcome
            && new
            && (failure.code == "forbidden" || self.engine.writer_state(writer).is_err())
        {
            self.writers.release(writer);
        }
        outcome
    }

    /// Refuses stages with topics that the key does not cover; another key may have staged them before
    /// a restart.
    fn check_staged(
        &self,
        writer: &str,
        stages: &[TxnStage<'_>],
        grant: &Grant,
    ) -> Result<(), Failure> {
        if grant.prefixes.is_empty() {
            return Ok(());
        }
        let topics = self.engine.staged_topics(writer, stages)?;
        topics.iter().try_for_each(|topic| grant.check(topic))
    }

    pub(super) fn stage(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let query = Query::new(r.query);
        let part = query
            .u64("part")?
            .ok_or_else(|| Failure::invalid("query parameter `part` is missing; send ?part=0"))?;
        let part = u32::try_from(part)
            .map_err(|_| Failure::invalid("query parameter `part` must be below 2^32"))?;
        let topic = query.get("topic")?.map(|t| t.into_owned());
        let (writer, stage) = writer_and_stage(r)?;
        let (kind, body, grant) = (r.kind, r.body_bytes(), r.grant.clone());
        let trace = r.trace.cloned();
        self.on_worker(r, move |s, _| {
            let (columns, body) = match kind {
                Body::Arrow => {
                    (Some(Table::own(body, ARROW_LIMIT, s.limits.body_bytes)?), Bytes::new())
                }
                _ => (None, body),
            };
            let mut t = match &columns {
                Some(table) => txn::stage_table(table, topic.as_deref(), &s.limits)?,
                None => txn::stage(&body, &s.limits)?,
            };
            if let Some(trace) = &trace {
                t.add_trace_context(trace, &s.limits);
            }
            t.topics().try_for_each(|topic| grant.check(topic))?;
            let staged = s.as_writer(&writer, &grant, || {
                Ok(t.with_stage(&stage, part, |request| s.engine.stage(&writer, request))?)
            })?;
            Ok(Reply::ok(s.with_timing(txn_answer::staged(&staged), start_ns)))
        })
    }

    pub(super) fn commit(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (writer, body, grant) = (r.subresource.to_owned(), r.body_bytes(), r.grant.clone());
        self.on_worker(r, move |s, _| {
            let mut t = txn::commit(&body, &s.limits)?;
            t.topics().try_for_each(|topic| grant.check(topic))?;
            t.set_fences(|topic, consumer, reader| s.reader_fence(topic, consumer, reader));
            let mut committed = s.as_writer(&writer, &grant, || {
                t.with_commit(|request| {
                    s.check_staged(&writer, request.stages, &grant)?;
                    let request = CommitRequest { owner: &grant.owner, ..*request };
                    Ok(s.engine.commit(&writer, &request)?)
                })
            })?;
            // Another key may have committed this epoch before a restart.
            committed.topics.retain(|t| grant.covers(&t.topic));
            Ok(Reply::ok(s.with_timing(txn_answer::committed(&committed), start_ns)))
        })
    }

    pub(super) fn abort(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let ((writer, stage), grant) = (writer_and_stage(r)?, r.grant.clone());
        self.on_worker(r, move |s, _| {
            let aborted = s.as_writer(&writer, &grant, || {
                let named = TxnStage { stage: &stage, parts: 0, records: None };
                s.check_staged(&writer, &[named], &grant)?;
                Ok(s.engine.abort_stage(&writer, &stage)?)
            })?;
            let mut o = Object::new(128);
            o.name("writer", &writer).name("id", &stage).flag("aborted", aborted);
            Ok(Reply::ok(s.with_timing(o.finish(), start_ns)))
        })
    }

    pub(super) fn writer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let mut state = self.engine.writer_state(r.subresource)?;
        if !self.writers.may_see(&self.engine, r.subresource, r.grant) {
            return Err(Error::TxnNotFound(r.subresource.to_owned()).into());
        }
        state.staged.retain(|staged| {
            let named = TxnStage { stage: &staged.stage, parts: 0, records: None };
            self.check_staged(r.subresource, &[named], r.grant).is_ok()
        });
        self.reply(txn_answer::writer(r.subresource, &state), start_ns)
    }

    /// Deletes the state of a writer. An administrator of all names may delete that of any key.
    pub(super) fn forget_writer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (writer, grant) = (r.subresource.to_owned(), r.grant.clone());
        self.on_worker(r, move |s, _| {
            let run = || Ok(s.engine.forget_writer(&writer)?);
            let forgotten = match grant.admin && grant.prefixes.is_empty() {
                true => run()?,
                false => s.as_writer(&writer, &grant, run)?,
            };
            s.writers.release(&writer);
            let mut o = Object::new(96);
            o.name("writer", &writer).flag("forgotten", forgotten);
            Ok(Reply::ok(s.with_timing(o.finish(), start_ns)))
        })
    }

    /// Makes a writer belong to another key. Only an administrator of all names may do that: the rows
    /// of the writer may be of any topic.
    pub(super) fn hand_over_writer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        if !r.grant.admin || !r.grant.prefixes.is_empty() {
            let message =
                "this key covers some names only; use an administrator's key for all names";
            return Err(Failure::new("forbidden", message));
        }
        let (writer, owner) = (r.subresource.to_owned(), txn::owner(r.body)?);
        self.on_worker(r, move |s, _| {
            s.engine.writer_state(&writer)?;
            let stored = s.engine.hand_over_writer(&writer, &owner)?;
            let mut o = Object::new(96);
            o.name("writer", &writer).name("owner", &owner);
            match stored {
                true => s.writers.release(&writer),
                false => s.writers.assign(&writer, owner),
            }
            Ok(Reply::ok(s.with_timing(o.finish(), start_ns)))
        })
    }

    pub(super) fn list_writers(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let page = page::parse(&Query::new(r.query))?;
        let mut found = self.engine.writers(&page.prefix, page.after.as_deref());
        found.retain(|w| self.writers.may_list(&self.engine, &w.writer, r.grant));
        let more = found.len() > page.size;
        found.truncate(page.size);
        let next = found.last().filter(|_| more).map(|w| page::cursor(&w.writer));
        self.reply(txn_answer::writers(&found, next.as_deref()), start_ns)
    }

    pub(super) fn transact(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (body, key, grant) = (r.body_bytes(), r.key.to_vec(), r.grant.clone());
        let trace = r.trace.cloned();
        self.on_worker(r, move |s, _| {
            let mut t = txn::transact(&body, &key, &s.limits)?;
            if let Some(trace) = &trace {
                t.add_trace_context(trace, &s.limits);
            }
            t.topics().try_for_each(|topic| grant.check(topic))?;
            t.set_fences(|topic, consumer, reader| s.reader_fence(topic, consumer, reader));
            let run = || {
                Ok(t.with_transact(|request| {
                    s.engine.transact(&TxnRequest { owner: &grant.owner, ..*request })
                })?)
            };
            let committed = match t.writer() {
                Some(writer) => s.as_writer(writer, &grant, run)?,
                None => run()?,
            };
            Ok(Reply::ok(s.with_timing(txn_answer::committed(&committed), start_ns)))
        })
    }
}

/// Splits `writer/stage` of the path.
fn writer_and_stage(r: &Request<'_>) -> Result<(String, String), Failure> {
    let (writer, stage) = r.subresource.split_once('/').unwrap_or((r.subresource, ""));
    if stage.is_empty() {
        return Err(Failure::invalid(
            "the path must name a writer and a stage: /v0/txn/WRITER/STAGE",
        ));
    }
    Ok((writer.to_owned(), stage.to_owned()))
}
