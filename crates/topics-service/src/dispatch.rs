//! Dispatch from a verb to its method, and the three ways to answer: in the call, on a worker thread,
//! or when the group commit of a staged verb completes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use topics_engine::Error;
use topics_wire::Failure;
use topics_wire::json::expect_no_fields;
use topics_wire::object::{Object, Performance};
use topics_wire::query::Query;
use topics_wire::routes;

use super::{Reply, Request, Service, Verb, completion_pair};

pub(super) type Answer = Result<Option<Reply>, Failure>;

impl Service {
    pub(super) fn dispatch(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        self.check(r)?;
        // A topic of the wrong type is refused before the fields are read.
        if r.verb.needs_queue()
            && let Err(e @ Error::NotAQueue(_)) = self.engine.check_queue(r.name)
        {
            return Err(e.into());
        }
        match r.verb {
            Verb::Write => self.write(r, start_ns),
            Verb::Diff => self.diff(r, start_ns),
            Verb::State => self.reply(self.state(r)?, start_ns),
            Verb::List => self.reply(self.list(r)?, start_ns),
            Verb::States => self.reply(self.states(r)?, start_ns),
            Verb::Seek => self.seek(r, start_ns),
            Verb::Create => self.create(r, start_ns),
            Verb::Drop => self.drop_topic(r, start_ns),
            Verb::Delete => self.delete(r, start_ns),
            Verb::Trim => self.trim(r, start_ns),
            Verb::Scan => self.open_scan(r),
            Verb::Split => self.reply(self.split(r)?, start_ns),
            Verb::Segments => self.reply(self.segments(r)?, start_ns),
            Verb::Claim => self.claim(r, start_ns),
            Verb::Ack => self.ack(r, start_ns),
            Verb::Nack => self.nack(r, start_ns),
            Verb::Release => self.release(r, start_ns),
            Verb::Extend => self.extend(r, start_ns),
            Verb::Jobs => self.jobs(r, start_ns),
            Verb::RemoveJobs => self.remove_jobs(r, start_ns),
            Verb::PromoteJobs => self.promote_jobs(r, start_ns),
            Verb::Redrive => self.redrive(r, start_ns),
            Verb::Work => self.open_work(r),
            Verb::CreateSession => self.create_session(r, start_ns),
            Verb::Watch => self.open_session(r),
            Verb::WatchQuery => self.open_query(r),
            Verb::EndSession => self.end_session(r, start_ns),
            Verb::Socket => self.open_socket(r),
            Verb::PutConsumer => self.put_consumer(r, start_ns),
            Verb::Consumer => self.consumer(r, start_ns),
            Verb::DropConsumer => self.drop_consumer(r, start_ns),
            Verb::ReadConsumer => self.read_consumer(r, start_ns),
            Verb::CommitConsumer => self.commit_consumer(r, start_ns),
            Verb::SeekConsumer => self.seek_consumer(r, start_ns),
            Verb::Consumers => self.list_consumers(r, start_ns),
            Verb::PutRouter => self.put_router(r, start_ns),
            Verb::Router => self.router(r, start_ns),
            Verb::DropRouter => self.drop_router(r, start_ns),
            Verb::Routers => self.reply(self.list_routers(r)?, start_ns),
            Verb::Transact => self.transact(r, start_ns),
            Verb::Stage => self.stage(r, start_ns),
            Verb::Commit => self.commit(r, start_ns),
            Verb::Abort => self.abort(r, start_ns),
            Verb::Writer => self.writer(r, start_ns),
            Verb::ForgetWriter => self.forget_writer(r, start_ns),
            Verb::HandOverWriter => self.hand_over_writer(r, start_ns),
            Verb::Writers => self.list_writers(r, start_ns),
            Verb::Sync => self.sync(r, start_ns),
            Verb::Checkpoint => self.checkpoint(r, start_ns),
            Verb::Backup => self.backup(r, start_ns),
            Verb::Verify => self.verify(r, start_ns),
            Verb::Metrics => self.metrics(r),
            Verb::Health => self.reply(self.health(), start_ns),
            Verb::Ready => self.ready(start_ns),
            Verb::Unknown => Err(Failure::new("not_found", "there is no such verb")),
        }
    }

    /// Checks the rights of the client and the parameters of the query.
    pub(super) fn check(&self, r: &Request<'_>) -> Result<(), Failure> {
        if !r.name.is_empty() {
            r.grant.check(r.name)?;
        }
        if !r.query.is_empty() {
            let known = routes::query_of(r.verb.name(), !r.name.is_empty());
            let token: &[&str] = if r.verb.takes_token() { &["token"] } else { &[] };
            Query::new(r.query).reject_unknown(known, token)?;
        }
        Ok(())
    }

    /// Replies in the call.
    pub(super) fn reply(&self, body: Vec<u8>, start_ns: u64) -> Answer {
        Ok(Some(Reply::ok(self.with_timing(body, start_ns))))
    }

    /// Adds `performance` to a finished object.
    pub(super) fn with_timing(&self, body: Vec<u8>, start_ns: u64) -> Vec<u8> {
        let server_total_ns = self.elapsed(start_ns);
        with_performance(body, &Performance { server_total_ns, ..Performance::default() })
    }

    /// Adds `performance` of a verb that scanned `records` records.
    pub(super) fn with_scan_cost(&self, body: Vec<u8>, records: u64, start_ns: u64) -> Vec<u8> {
        with_performance(body, &Performance::of_scan(records, self.elapsed(start_ns)))
    }

    /// Runs a verb on a worker thread, because it may wait for the disk.
    pub(super) fn on_worker(
        self: &Arc<Self>,
        r: &Request<'_>,
        verb: impl FnOnce(&Self, &str) -> Result<Reply, Failure> + Send + 'static,
    ) -> Answer {
        self.run_on_worker(r.token, r.name, move |s, topic| verb(s, topic))
    }

    /// Runs a verb whose body has no fields on a worker thread.
    pub(super) fn on_worker_without_body(
        self: &Arc<Self>,
        r: &Request<'_>,
        verb: impl FnOnce(&Self, &str) -> Result<Reply, Failure> + Send + 'static,
    ) -> Answer {
        expect_no_fields(r.body)?;
        self.on_worker(r, verb)
    }

    /// Runs a verb of the call with this token on a worker thread.
    pub(super) fn run_on_worker(
        self: &Arc<Self>,
        token: u64,
        topic: &str,
        verb: impl FnOnce(&Arc<Self>, &str) -> Result<Reply, Failure> + Send + 'static,
    ) -> Answer {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let (service, topic) = (self.clone(), topic.to_owned());
        self.pool.run(Box::new(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| verb(&service, &topic)));
            let reply = match outcome {
                Ok(Ok(reply)) => reply,
                Ok(Err(failure)) => failure.into(),
                Err(_) => Failure::from(Error::Internal("a verb panicked".into())).into(),
            };
            service.pending.fetch_sub(1, Ordering::Relaxed);
            service.sink.reply(token, reply);
        }));
        Ok(None)
    }

    /// Runs a verb that `begin` stages. The reply is available when `begin` returns, or comes with
    /// the group commit. `None`: `begin` staged nothing.
    pub(super) fn stage_verb(
        self: &Arc<Self>,
        token: u64,
        begin: impl FnOnce(Box<dyn FnOnce(Reply) + Send>) -> bool,
    ) -> Option<Option<Reply>> {
        let service = self.clone();
        let (done, left) = completion_pair(move |reply| {
            service.pending.fetch_sub(1, Ordering::Relaxed);
            service.sink.reply(token, reply);
        });
        self.pending.fetch_add(1, Ordering::Relaxed);
        let begun = begin(Box::new(done));
        let answer = left();
        if begun && answer.is_none() {
            self.staged.store(true, Ordering::Relaxed);
        } else {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        begun.then_some(answer)
    }
}

fn with_performance(body: Vec<u8>, cost: &Performance) -> Vec<u8> {
    let mut o = Object::reopen(body);
    o.performance(cost);
    o.finish()
}
