//! The routes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use topics_engine::{Appended, Error, TopicState, TopicSummary};
use topics_wire::query::Query;
use topics_wire::render::{self, Object, Performance};
use topics_wire::write::{Body, Table};
use topics_wire::{Failure, Grant, config, limits, small, write};

use super::{Reply, Request, Service, handover};

pub(super) type Answer = Result<Option<Reply>, Failure>;

impl Service {
    pub(super) fn route(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        if !r.name.is_empty() {
            r.grant.check(r.name)?;
        }
        Query::new(r.query).only(parameters(r.route, !r.name.is_empty()))?;
        let families = [
            Self::topics,
            Self::queues,
            Self::streams,
            Self::scans,
            Self::txns,
            Self::sessions,
            Self::routers,
            Self::consumers,
        ];
        for family in families {
            if let Some(answer) = family(self, r, start_ns) {
                return answer;
            }
        }
        Err(Failure::new("not_found", format!("there is no route {:?}", r.route)))
    }

    fn topics(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Option<Answer> {
        Some(match r.route {
            "write" => self.write(r, start_ns),
            "diff" => self.diff(r, start_ns),
            "state" => self.state(r).and_then(|body| self.now(body, start_ns)),
            "list" => self.list(r).and_then(|body| self.now(body, start_ns)),
            "states" => self.states(r).and_then(|body| self.now(body, start_ns)),
            "seek" => self.seek(r, start_ns),
            "create" => self.create(r, start_ns),
            "drop" => self.drop_topic(r, start_ns),
            "delete" => self.delete(r, start_ns),
            "sync" => self.bare(r, move |s, _| {
                s.engine.sync()?;
                Ok(Reply::ok(s.timed(done("synced"), start_ns)))
            }),
            "checkpoint" => self.bare(r, move |s, _| {
                s.engine.checkpoint()?;
                Ok(Reply::ok(s.timed(done("checkpointed"), start_ns)))
            }),
            "verify" => self.bare(r, move |s, _| {
                Ok(Reply::ok(s.timed(render::report(&s.engine.verify()?), start_ns)))
            }),
            // All topics are looked at.
            "metrics" => {
                let text = if r.json {
                    topics_wire::metrics::json
                } else {
                    topics_wire::metrics::prometheus
                };
                let grant = r.grant.clone();
                self.later(r, move |s, _| Ok(Reply::ok(text(&s.engine, &grant))))
            }
            "health" => self.now(self.health(), start_ns),
            "ready" => self.ready(start_ns),
            _ => return None,
        })
    }

    fn state(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let touch = Query::new(r.query).flag("touch")?.unwrap_or(true);
        Ok(render::state(&self.engine.state(r.name, touch)?))
    }

    fn seek(&self, r: &Request<'_>, start_ns: u64) -> Answer {
        let found = self.engine.seek(r.name, small::seek(r.body)?)?;
        let mut o = Object::new(128);
        o.int("seq", found.seq);
        Ok(Some(Reply::ok(self.scanned(o.finish(), found.records_scanned, start_ns))))
    }

    fn create(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let patch = if r.body.is_empty() { Default::default() } else { config::parse(r.body)? };
        r.grant.check_names(&patch)?;
        self.later(r, move |s, topic| {
            let (status, body) = render::created(topic, &s.engine.create_topic(topic, &patch)?);
            Ok(Reply { status, body: s.timed(body, start_ns) })
        })
    }

    fn drop_topic(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let if_empty = Query::new(r.query).flag("if_empty")?.unwrap_or(false);
        let grant = r.grant.clone();
        self.later(r, move |s, topic| {
            let mut dropped = s.engine.delete_topic(topic, if_empty)?;
            dropped.routers_removed.retain(|router| grant.covers(router));
            let body = render::dropped(topic, &dropped);
            Ok(Reply::ok(s.timed(body, start_ns)))
        })
    }

    fn delete(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let request = small::delete(r.body)?;
        self.later(r, move |s, topic| {
            let done = s.engine.delete(topic, &request)?;
            let body = render::deleted(topic, &done);
            Ok(Reply::ok(match request.matching {
                Some(_) => s.scanned(body, done.records_scanned, start_ns),
                None => s.timed(body, start_ns),
            }))
        })
    }

    /// An answer that is there.
    pub(super) fn now(&self, body: Vec<u8>, start_ns: u64) -> Answer {
        Ok(Some(Reply::ok(self.timed(body, start_ns))))
    }

    /// Adds to an object what it cost.
    pub(super) fn timed(&self, body: Vec<u8>, start_ns: u64) -> Vec<u8> {
        let server_total_ns = self.elapsed(start_ns);
        costing(body, &Performance { server_total_ns, ..Performance::default() })
    }

    /// The same of what looked at so many records.
    pub(super) fn scanned(&self, body: Vec<u8>, records: u64, start_ns: u64) -> Vec<u8> {
        costing(body, &Performance::of_scan(records, self.elapsed(start_ns)))
    }

    /// An answer that a thread of the pool makes, because it may wait for the disk.
    pub(super) fn later(
        self: &Arc<Self>,
        r: &Request<'_>,
        verb: impl FnOnce(&Self, &str) -> Result<Reply, Failure> + Send + 'static,
    ) -> Answer {
        self.on_pool(r.token, r.name, move |s, topic| verb(s, topic))
    }

    /// The same of a verb whose body has no fields.
    fn bare(
        self: &Arc<Self>,
        r: &Request<'_>,
        verb: impl FnOnce(&Self, &str) -> Result<Reply, Failure> + Send + 'static,
    ) -> Answer {
        small::nothing(r.body)?;
        self.later(r, verb)
    }

    /// The same for a call that has waited.
    pub(super) fn on_pool(
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

    fn write(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let query = Query::new(r.query);
        let table;
        let w = match r.kind {
            Body::Arrow => {
                table = Table::read(r.body, self.limits.batch_records)?;
                write::parse_table(&table, &query, r.key, &self.limits)?
            }
            kind => write::parse(kind, r.body, &query, r.key, &self.limits)?,
        };
        if let Some(config) = &w.config {
            r.grant.check_config(config)?;
        }
        if w.disable_backpressure {
            return self.patient_write(r, start_ns);
        }
        let (return_seqs, topic, service) = (w.return_seqs, r.name.to_owned(), self.clone());
        let reply = move |outcome: topics_engine::Result<Appended>| match outcome {
            Ok(a) => {
                let ns = service.elapsed(start_ns);
                let (status, body) = write::answer(&topic, &a, return_seqs, ns);
                Reply { status, body }
            }
            Err(e) => Failure::from(e).into(),
        };
        let answer = self.staging(r.token, |done| {
            w.with_append(|append| {
                self.engine.append_async(r.name, append, Box::new(move |o| done(reply(o))))
            });
            true
        });
        Ok(answer.flatten())
    }

    /// A verb that `begin` stages: its reply is there when that returns, or comes when a group has
    /// been led. `None`: it began nothing.
    pub(super) fn staging(
        self: &Arc<Self>,
        token: u64,
        begin: impl FnOnce(Box<dyn FnOnce(Reply) + Send>) -> bool,
    ) -> Option<Option<Reply>> {
        let sink = self.clone();
        let (done, left) = handover(move |reply| {
            sink.pending.fetch_sub(1, Ordering::Relaxed);
            sink.sink.reply(token, reply);
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

    /// A write that waits for room: on a thread, over bytes of its own.
    fn patient_write(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (body, query, key) = (r.body.to_vec(), r.query.to_vec(), r.key.to_vec());
        let kind = r.kind;
        self.later(r, move |s, topic| {
            let query = Query::new(&query);
            let w = write::parse(kind, &body, &query, &key, &s.limits)?;
            let a = w.with_append(|append| s.engine.append(topic, append))?;
            let (status, body) = write::answer(topic, &a, w.return_seqs, s.elapsed(start_ns));
            Ok(Reply { status, body })
        })
    }

    fn list(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let query = Query::new(r.query);
        let page = small::page(&query)?;
        let touch = query.flag("touch")?.unwrap_or(false);
        let mut found = self.names(r.grant, &page.prefix, page.after.as_deref(), page.size + 1);
        let more = found.len() > page.size;
        found.truncate(page.size);
        let next = found.last().filter(|_| more).map(|t| small::cursor(&t.topic));
        if touch {
            // One that has gone meanwhile is nobody's to count.
            found.iter().for_each(|t| drop(self.engine.state(&t.topic, true)));
        }
        Ok(render::list(&found, next.as_deref()))
    }

    /// Topics in name order, as far as the client may see them.
    pub(super) fn names(
        &self,
        grant: &Grant,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<TopicSummary> {
        let mut found = Vec::new();
        for prefix in grant.within(prefix) {
            found.extend(self.engine.list(&prefix, after, limit - found.len()));
        }
        found
    }

    fn states(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let wanted = small::states(r.body)?;
        let mut names = wanted.topics;
        names.iter().try_for_each(|name| r.grant.check(name))?;
        for prefix in &wanted.prefixes {
            let found = self.names(r.grant, prefix, None, limits::MAX_STATES + 1);
            names.extend(found.into_iter().map(|t| t.topic));
            if names.len() > limits::MAX_STATES {
                let message = format!("more than {} topics: name fewer", limits::MAX_STATES);
                return Err(Failure::invalid(message));
            }
        }
        names.sort();
        names.dedup();
        let mut found: Vec<TopicState> = Vec::with_capacity(names.len());
        let mut missing = Vec::new();
        for name in names {
            match self.engine.state(&name, true) {
                Ok(state) => found.push(state),
                Err(Error::TopicNotFound(_)) => missing.push(name),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(render::states(&found, &missing))
    }

    fn health(&self) -> Vec<u8> {
        let mut o = Object::new(96);
        o.name("status", "ok").name("version", env!("CARGO_PKG_VERSION"));
        o.int("uptime_ms", self.elapsed(self.born_ns) / 1_000_000);
        o.finish()
    }

    fn ready(&self, start_ns: u64) -> Answer {
        if !self.ready.load(Ordering::Relaxed) {
            return Err(Failure::from(Error::Closed));
        }
        let mut o = Object::new(96);
        o.name("status", "ready").flag("wal_replay_complete", true);
        o.int("topics", self.engine.metrics().topics);
        // Names only: whoever asks needs no key. What they were at is in the log.
        let mut loops = Object::new(32);
        for p in self.engine.loop_panics() {
            loops.int(p.name, p.count);
        }
        o.raw("loop_panics", &loops.finish());
        self.now(o.finish(), start_ns)
    }
}

/// The parameters that the query of a route may have. `named`: its path names a topic.
///
/// `token` is a stream's key, for a server that has none.
fn parameters(route: &str, named: bool) -> &'static [&'static str] {
    match route {
        "list" => &["prefix", "page_size", "cursor", "touch"],
        "state" => &["touch"],
        "drop" => &["if_empty"],
        "write" => &["return_seqs", "tag", "node", "key"],
        "txn_stage" => &["part", "topic"],
        "jobs" => &["state", "max"],
        "work" => &["node", "max", "lease_ms", "heartbeat_ms", "token"],
        "watch_create" => &["lenient"],
        "watch" => &["token"],
        "watch_query" => topics_wire::watch::PARAMETERS,
        "routers" => &["prefix", "page_size", "cursor", "source", "dest"],
        "consumers" if !named => &["prefix", "page_size", "cursor", "topic"],
        "consumers" | "txns" => &["prefix", "page_size", "cursor"],
        _ => &[],
    }
}

fn costing(body: Vec<u8>, cost: &Performance) -> Vec<u8> {
    let mut o = Object::reopen(body);
    o.performance(cost);
    o.finish()
}

fn done(what: &str) -> Vec<u8> {
    let mut o = Object::new(96);
    o.flag(what, true);
    o.finish()
}
