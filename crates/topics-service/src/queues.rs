//! Queues. A claim waits in the engine; a verb that waits for the disk runs on a worker thread; any
//! other is answered in the call.

use std::sync::Arc;
use std::time::Duration;

use topics_engine::{Claim, Claimed, LeaseOutcome, LeasedJobs, TopicType};
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::{Failure, queue};

use super::completion::completion_pair;
use super::dispatch::Answer;
use super::waiting_calls::Wait;
use super::{Reply, Request, Service};

impl Service {
    pub(super) fn claim(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let c = queue::claim(r.body, &self.limits)?;
        let (token, topic) = (r.token, r.name.to_owned());
        let wait = if self.is_ready() { Duration::from_millis(c.wait_ms) } else { Duration::ZERO };
        self.begin_wait(token);
        let (service, node) = (self.clone(), c.node.clone());
        let sink = self.sink.clone();
        let (done, left) = completion_pair(move |reply| sink.reply(token, reply));
        let answered = Box::new(move |outcome: topics_engine::Result<Claimed>| {
            if let Some(reply) = service.on_claimed((token, start_ns), &topic, &node, outcome) {
                done(reply);
            }
        });
        let ask = Claim { node: c.node.as_bytes(), max: c.max, lease_ms: c.lease_ms, wait };
        let id = self.engine.claim_async(r.name, &ask, answered);
        self.set_wait(token, Wait::Claim { queue: r.name.to_owned(), id, start_ns });
        Ok(left())
    }

    /// The reply to a claim. `None` for a client that has gone: its jobs are released.
    pub(super) fn on_claimed(
        self: &Arc<Self>,
        (token, start_ns): (u64, u64),
        topic: &str,
        node: &str,
        outcome: topics_engine::Result<Claimed>,
    ) -> Option<Reply> {
        if !self.finish_wait(token) {
            if let Ok(claimed) = outcome
                && !claimed.is_empty()
            {
                self.release_jobs(topic.to_owned(), node.to_owned(), claimed);
            }
            return None;
        }
        Some(match outcome {
            Ok(c) => Reply::ok(self.with_timing(queue::claimed(topic, &c), start_ns)),
            Err(e) => Failure::from(e).into(),
        })
    }

    fn release_jobs(self: &Arc<Self>, topic: String, node: String, claimed: Claimed) {
        let service = self.clone();
        self.pool.run(Box::new(move || service.release_unsent(&topic, &node, &claimed)));
    }

    /// Gives back jobs that were not sent to their worker.
    pub(super) fn release_unsent(&self, topic: &str, node: &str, claimed: &Claimed) {
        let (seqs, ids): (Vec<u64>, Vec<u64>) =
            claimed.iter().map(|(lease, _)| (lease.seq, lease.lease_id)).unzip();
        let held = LeasedJobs { node: node.as_bytes(), seqs: &seqs, lease_ids: Some(&ids) };
        if let Err(e) = self.engine.release(topic, &held) {
            log::debug!("queue {topic:?}: unwanted leases run out by themselves: {e}");
        }
    }

    /// The reply to a claim that gets no job.
    pub(super) fn no_jobs(&self, queue: &str, start_ns: u64) -> Reply {
        let mut none = Claimed::default();
        none.ready = self.engine.queue_state(queue).map_or(0, |state| state.ready);
        Reply::ok(self.with_timing(queue::claimed(queue, &none), start_ns))
    }

    pub(super) fn ack(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = queue::ack(r.body)?;
        let (service, topic) = (self.clone(), r.name.to_owned());
        let answer = self.stage_verb(r.token, |done| {
            let answered = Box::new(move |outcome: topics_engine::Result<LeaseOutcome>| {
                done(match outcome {
                    Ok(update) => service.lease_reply(&topic, "acked", &update, start_ns),
                    Err(e) => Failure::from(e).into(),
                });
            });
            self.engine.ack_async(r.name, &asked.jobs(), answered).is_ok()
        });
        match answer {
            Some(answer) => Ok(answer),
            None => self.update_leases_on_worker(r, start_ns, asked, "acked", |s, queue, asked| {
                s.engine.ack(queue, &asked.jobs())
            }),
        }
    }

    pub(super) fn nack(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        self.update_leases(r, start_ns, queue::nack(r.body), "nacked", |s, queue, asked| {
            s.engine.nack_with_error(queue, &asked.jobs(), asked.delay_ms, &asked.error)
        })
    }

    pub(super) fn release(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        self.update_leases(r, start_ns, queue::release(r.body), "released", |s, queue, asked| {
            match asked.stream {
                Some(stream) => s.engine.release_stream(queue, asked.node.as_bytes(), stream),
                None => s.engine.release(queue, &asked.jobs()),
            }
        })
    }

    pub(super) fn extend(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        self.update_leases(r, start_ns, queue::extend(r.body), "extended", |s, queue, asked| {
            let (node, lease_ms) = (asked.node.as_bytes(), asked.lease_ms);
            match asked.stream {
                Some(stream) => s.engine.extend_stream(queue, node, stream, lease_ms),
                None => s.engine.extend(queue, &asked.jobs(), lease_ms),
            }
        })
    }

    fn lease_reply(&self, topic: &str, done: &str, update: &LeaseOutcome, start_ns: u64) -> Reply {
        Reply::ok(self.with_timing(queue::counted(topic, done, update), start_ns))
    }

    fn update_leases(
        self: &Arc<Self>,
        r: &Request<'_>,
        start_ns: u64,
        asked: Result<queue::LeaseRequest, Failure>,
        done: &'static str,
        verb: impl FnOnce(&Self, &str, &queue::LeaseRequest) -> topics_engine::Result<LeaseOutcome>
        + Send
        + 'static,
    ) -> Answer {
        let asked = asked?;
        if self.engine.leases_at_once(r.name)? {
            let update = verb(self, r.name, &asked)?;
            return Ok(Some(self.lease_reply(r.name, done, &update, start_ns)));
        }
        self.update_leases_on_worker(r, start_ns, asked, done, verb)
    }

    fn update_leases_on_worker(
        self: &Arc<Self>,
        r: &Request<'_>,
        start_ns: u64,
        asked: queue::LeaseRequest,
        done: &'static str,
        verb: impl FnOnce(&Self, &str, &queue::LeaseRequest) -> topics_engine::Result<LeaseOutcome>
        + Send
        + 'static,
    ) -> Answer {
        self.on_worker(r, move |s, topic| {
            let update = verb(s, topic, &asked)?;
            Ok(s.lease_reply(topic, done, &update, start_ns))
        })
    }

    pub(super) fn jobs(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (state, max) = queue::jobs(&Query::new(r.query), &self.limits)?;
        self.on_worker(r, move |s, topic| {
            let found = s.engine.peek(topic, state, max)?;
            s.unsent.check(found.records().payload_bytes() as u64)?;
            let body = queue::peeked(topic, &found);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    pub(super) fn remove_jobs(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (seqs, force) = queue::remove(r.body)?;
        self.on_worker(r, move |s, topic| {
            let update = s.engine.remove_jobs(topic, &seqs, force)?;
            Ok(s.lease_reply(topic, "removed", &update, start_ns))
        })
    }

    pub(super) fn promote_jobs(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let seqs = queue::promote(r.body)?;
        self.on_worker(r, move |s, topic| {
            let update = s.engine.promote_jobs(topic, &seqs)?;
            Ok(s.lease_reply(topic, "promoted", &update, start_ns))
        })
    }

    pub(super) fn redrive(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = queue::redrive(r.body)?;
        if let Some(to) = &asked.to {
            r.grant.check(to)?;
        } else if !r.grant.prefixes.is_empty()
            && self.engine.state(r.name, false)?.config.kind == TopicType::Log
        {
            // Without `to`, dead letters go to the topics that they name, which this key may not cover.
            let message = "this key covers some names only; name the destination in `to`";
            return Err(Failure::new("forbidden", message));
        }
        self.on_worker(r, move |s, topic| {
            let done = s.engine.redrive(topic, &asked)?;
            let mut o = Object::new(160);
            o.name("topic", topic).int("moved", done.moved).flag("dry_run", asked.dry_run);
            Ok(Reply::ok(s.with_scan_cost(o.finish(), done.records_scanned, start_ns)))
        })
    }
}
