//! Publishes: staged in the call, or queued behind a publish that waits for a staging permit.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use topics_engine::{Appended, Error};
use topics_wire::json::FieldPath;
use topics_wire::object::Performance;
use topics_wire::write::Write;
use topics_wire::{Failure, Grant, write};

use super::ack_order::AckPlace;
use super::{MessageHead, Service, Socket, message, refusal};

/// Maximum bytes of queued messages; a single larger message is accepted.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// A publish that waits for a staging permit, and every later publish of the socket: the order of
/// its records is the order of its messages.
#[derive(Clone, Default)]
pub(super) struct PublishQueue(Arc<Mutex<QueueState>>);

#[derive(Default)]
struct QueueState {
    publishes: VecDeque<Publish>,
    bytes: usize,
    /// A worker thread runs the first publish.
    running: bool,
}

struct Publish {
    text: Vec<u8>,
    context: PublishContext,
}

/// What the answer to a publish needs.
struct PublishContext {
    service: Arc<Service>,
    place: AckPlace,
    token: u64,
    topic: String,
    grant: Grant,
    request_id: Option<String>,
    return_seqs: bool,
    start_ns: u64,
}

impl PublishContext {
    fn answer(self, outcome: Result<Appended, Failure>) {
        let id = self.request_id.as_deref();
        let answer = match outcome {
            Ok(a) => self.ack(&a),
            Err(failure) => refusal(id, &failure),
        };
        let Self { place, service, token, .. } = self;
        place.answer(answer);
        service.sink.wake(token);
    }

    /// Answers what was not tried, before the publishes that it would have waited for.
    fn refuse(self, failure: &Failure) {
        let Self { place, service, token, request_id, .. } = self;
        place.answer_now(refusal(request_id.as_deref(), failure));
        service.sink.wake(token);
    }

    fn ack(&self, a: &Appended) -> Vec<u8> {
        let mut o = message("ack", self.request_id.as_deref());
        o.name("topic", &self.topic).int("count", a.count).int("first_seq", a.first_seq);
        o.int("last_seq", a.last_seq).int("head_seq", a.head_seq);
        if self.return_seqs {
            o.ints("seqs", a.first_seq..=a.last_seq);
        }
        o.flag("deduped", a.deduped).flag("created", a.created);
        o.performance(&Performance::of_write(a, self.service.elapsed(self.start_ns)));
        o.finish()
    }
}

impl Publish {
    fn run(self) {
        let Self { text, context } = self;
        let append = || {
            let mut w = write::parse_publish(&text, &context.service.limits)?;
            w.restrict(&context.grant)?;
            let engine = &context.service.engine;
            let appended = w.with_append(|append| engine.append(&context.topic, append));
            appended.map_err(|e| Write::failure(w.is_restricted, e))
        };
        let outcome = catch_unwind(AssertUnwindSafe(append));
        let panicked = |_| Err(Error::Internal("a publish panicked".into()).into());
        context.answer(outcome.unwrap_or_else(panicked));
    }
}

impl PublishQueue {
    fn is_running(&self) -> bool {
        self.0.lock().running
    }

    /// Queues a publish, and starts a worker thread unless one runs.
    fn push(&self, publish: Publish) {
        let mut queue = self.0.lock();
        if queue.running && queue.bytes + publish.text.len() > MAX_QUEUED_BYTES {
            drop(queue);
            let (limit, max) = ("waiting_publishes", MAX_QUEUED_BYTES as u64);
            let full = Error::Throttled { limit, max, retry_after_ms: 100 };
            return publish.context.refuse(&full.into());
        }
        queue.bytes += publish.text.len();
        queue.publishes.push_back(publish);
        if std::mem::replace(&mut queue.running, true) {
            return;
        }
        let Some(service) = queue.publishes.front().map(|p| p.context.service.clone()) else {
            return;
        };
        drop(queue);
        let queue = self.clone();
        service.pool.run(Box::new(move || {
            while let Some(next) = queue.next() {
                next.run();
            }
        }));
    }

    fn next(&self) -> Option<Publish> {
        let mut queue = self.0.lock();
        let next = queue.publishes.pop_front();
        queue.bytes -= next.as_ref().map_or(0, |p| p.text.len());
        queue.running = next.is_some();
        next
    }
}

impl Service {
    pub(super) fn publish(
        self: &Arc<Self>,
        token: u64,
        socket: &Socket,
        h: &MessageHead,
        text: &[u8],
    ) -> Result<(), Failure> {
        let [topic] = h.topics.as_slice() else {
            return Err(FieldPath::field("topic").invalid("must name exactly one topic"));
        };
        socket.grant.check(topic)?;
        let mut write = write::parse_publish(text, &self.limits)?;
        write.restrict(&socket.grant)?;
        let context = PublishContext {
            service: self.clone(),
            place: socket.acks.place(&socket.outbox),
            token,
            topic: topic.clone(),
            grant: socket.grant.clone(),
            request_id: h.request_id.clone(),
            return_seqs: write.return_seqs,
            start_ns: self.clock.mono_ns(),
        };
        if write.disable_backpressure || socket.publishes.is_running() {
            socket.publishes.push(Publish { text: text.to_vec(), context });
            return Ok(());
        }
        let is_restricted = write.is_restricted;
        let done = Box::new(move |outcome: topics_engine::Result<Appended>| {
            context.answer(outcome.map_err(|e| Write::failure(is_restricted, e)));
        });
        write.with_append(|append| self.engine.append_async(topic, append, done));
        self.staged.store(true, Ordering::Relaxed);
        Ok(())
    }
}
