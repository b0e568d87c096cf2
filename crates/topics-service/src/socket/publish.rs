//! A publish: staged within the call, or in a line behind one that waits for room.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use topics_engine::{Appended, Error};
use topics_wire::json::FieldPath;
use topics_wire::render::Performance;
use topics_wire::{Failure, write};

use super::{Head, Outbox, Service, Socket, message, refusal};

/// Bytes of messages that wait in a line, unless one has more.
const WAITING: usize = 1 << 20;

/// A publish that waits for room, and whatever came after it: the records of a socket are in the
/// order of its messages.
#[derive(Clone, Default)]
pub(super) struct Line(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    publishes: VecDeque<Publish>,
    bytes: usize,
    /// A thread is at the first of them.
    running: bool,
}

struct Publish {
    text: Vec<u8>,
    told: Told,
}

/// Whom the outcome is told, and as what.
struct Told {
    service: Arc<Service>,
    outbox: Outbox,
    token: u64,
    topic: String,
    request_id: Option<String>,
    return_seqs: bool,
    start_ns: u64,
}

impl Told {
    fn tell(self, outcome: Result<Appended, Failure>) {
        let id = self.request_id.as_deref();
        let answer = match outcome {
            Ok(a) => self.ack(&a),
            Err(failure) => refusal(id, &failure),
        };
        self.outbox.lock().push(answer);
        self.service.sink.due(self.token);
    }

    fn ack(&self, a: &Appended) -> Vec<u8> {
        let mut o = message("ack", self.request_id.as_deref());
        o.name("topic", &self.topic).int("first_seq", a.first_seq);
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
        let Self { text, told } = self;
        let append = || {
            let w = write::parse_publish(&text, &told.service.limits)?;
            Ok(w.with_append(|append| told.service.engine.append(&told.topic, append))?)
        };
        let outcome = catch_unwind(AssertUnwindSafe(append));
        let panicked = |_| Err(Error::Internal("a publish panicked".into()).into());
        told.tell(outcome.unwrap_or_else(panicked));
    }
}

impl Line {
    fn is_running(&self) -> bool {
        self.0.lock().running
    }

    /// Takes a publish in; has a thread work through the line if none is.
    fn join(&self, publish: Publish) {
        let mut line = self.0.lock();
        if line.running && line.bytes + publish.text.len() > WAITING {
            drop(line);
            let (limit, max) = ("waiting_publishes", WAITING as u64);
            let full = Error::Throttled { limit, max, retry_after_ms: 100 };
            return publish.told.tell(Err(full.into()));
        }
        line.bytes += publish.text.len();
        line.publishes.push_back(publish);
        if std::mem::replace(&mut line.running, true) {
            return;
        }
        let Some(service) = line.publishes.front().map(|p| p.told.service.clone()) else { return };
        drop(line);
        let line = self.clone();
        service.pool.run(Box::new(move || {
            while let Some(next) = line.next() {
                next.run();
            }
        }));
    }

    fn next(&self) -> Option<Publish> {
        let mut line = self.0.lock();
        let next = line.publishes.pop_front();
        line.bytes -= next.as_ref().map_or(0, |p| p.text.len());
        line.running = next.is_some();
        next
    }
}

impl Service {
    pub(super) fn publish(
        self: &Arc<Self>,
        token: u64,
        socket: &Socket,
        h: &Head,
        text: &[u8],
    ) -> Result<(), Failure> {
        let [topic] = h.topics.as_slice() else {
            return Err(FieldPath::field("topic").invalid("is missing: a publish names one"));
        };
        socket.grant.check(topic)?;
        let write = write::parse_publish(text, &self.limits)?;
        if let Some(config) = &write.config {
            socket.grant.check_config(config)?;
        }
        let told = Told {
            service: self.clone(),
            outbox: socket.outbox.clone(),
            token,
            topic: topic.clone(),
            request_id: h.request_id.clone(),
            return_seqs: write.return_seqs,
            start_ns: self.clock.mono_ns(),
        };
        if write.disable_backpressure || socket.line.is_running() {
            socket.line.join(Publish { text: text.to_vec(), told });
            return Ok(());
        }
        let done = Box::new(move |outcome: topics_engine::Result<Appended>| {
            told.tell(outcome.map_err(Failure::from));
        });
        write.with_append(|append| self.engine.append_async(topic, append, done));
        self.staged.store(true, Ordering::Relaxed);
        Ok(())
    }
}
