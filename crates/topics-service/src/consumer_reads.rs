//! Reads of consumers. They wait for records or for the reader lock without holding a thread.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use topics_engine::{Consumer, ConsumerRead, Error, Fetch, ReadBatch};
use topics_wire::limits::MAX_WAIT_MS;
use topics_wire::{Failure, consumers};

use super::consumers::{Handles, Key};
use super::dispatch::Answer;
use super::{Reply, Request, Service};

/// A read without an answer yet.
struct WaitingRead {
    consumer: Key,
    asked: ConsumerRead,
    start_ns: u64,
    deadline_ns: u64,
    /// Its waiters; `None` while a worker thread reads for it.
    parked: Option<Parked>,
}

#[derive(Clone, Copy)]
struct Parked {
    timer_ns: u64,
    head: Option<u64>,
}

/// The open reads by token, and the consumer handles.
#[derive(Default)]
pub(super) struct ConsumerReads {
    waiting: Mutex<HashMap<u64, WaitingRead>>,
    pub(super) handles: Handles,
}

impl ConsumerReads {
    /// The tokens of the open reads.
    pub fn close(&self) -> Vec<u64> {
        self.waiting.lock().keys().copied().collect()
    }
}

/// What a read does after an attempt.
enum NextStep {
    Answer,
    /// Waits for a record after this seq.
    Wait(u64),
    /// Reads on: the filter dropped every record of the page.
    Again,
    /// Waits for the reader lock, until this time.
    Busy(u64),
}

impl Service {
    pub(super) fn read_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = consumers::read(r.body)?;
        let reader = asked.reader.unwrap_or_default();
        let consumer = (r.name.to_owned(), r.subresource.to_owned(), reader);
        let (asked, deadline_ns) = (asked.read, start_ns + asked.wait_ms * 1_000_000);
        let waiting = WaitingRead { consumer, asked, start_ns, deadline_ns, parked: None };
        self.consumer_reads.waiting.lock().insert(r.token, waiting);
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.start_read(r.token);
        Ok(None)
    }

    /// Attempts a read on a worker thread. The attempt never waits.
    fn start_read(self: &Arc<Self>, token: u64) {
        let service = self.clone();
        self.pool.run(Box::new(move || {
            let attempt = catch_unwind(AssertUnwindSafe(|| service.try_read(token)));
            if attempt.is_err() {
                service.on_read(token, None, Err(Error::Internal("a verb panicked".into()).into()));
            }
        }));
    }

    fn try_read(self: &Arc<Self>, token: u64) {
        let waiting = self.consumer_reads.waiting.lock().get(&token).map(|r| {
            let asked = ConsumerRead { fail_if_busy: true, ..r.asked.clone() };
            (r.consumer.clone(), asked)
        });
        let Some((consumer, asked)) = waiting else { return };
        let reader = Some(consumer.2.as_str()).filter(|r| !r.is_empty());
        match self.handle(&consumer.0, &consumer.1, reader) {
            Ok(handle) => {
                let (service, held) = (self.clone(), handle.clone());
                let moves = asked.checkpoint;
                let done = move |outcome: topics_engine::Result<ReadBatch>| {
                    if let Err(Error::ColdPending(fetch)) = outcome {
                        return service.read_after(token, &fetch);
                    }
                    let outcome = outcome.map_err(Failure::from);
                    if let Some(batch) = service.on_read(token, Some(&held), outcome)
                        && moves
                    {
                        // The client has gone; the next read gets this batch.
                        held.release(batch);
                    }
                };
                handle.read_async(&asked, Box::new(done));
            }
            Err(failure) => drop(self.on_read(token, None, Err(failure))),
        }
    }

    /// Attempts a read again when a fetch of cold records has ended.
    fn read_after(self: &Arc<Self>, token: u64, fetch: &Fetch) {
        let service = self.clone();
        fetch.on_end(Box::new(move |outcome| match outcome {
            Ok(()) => service.start_read(token),
            Err(e) => drop(service.on_read(token, None, Err(Error::from(e).into()))),
        }));
    }

    /// Handles the outcome of an attempt: answers, waits or reads again. Returns the batch of a read
    /// that was cancelled meanwhile.
    fn on_read(
        self: &Arc<Self>,
        token: u64,
        handle: Option<&Arc<Consumer>>,
        outcome: Result<ReadBatch, Failure>,
    ) -> Option<ReadBatch> {
        let mut all = self.consumer_reads.waiting.lock();
        let Some(r) = all.get_mut(&token) else { return outcome.ok() };
        let (open, now) = (self.is_ready(), self.clock.mono_ns());
        let next = match &outcome {
            Ok(b) if b.is_empty() && b.tombstone.is_none() && open && now < r.deadline_ns => {
                match b.caught_up || !r.asked.checkpoint {
                    true => NextStep::Wait(b.next_from_seq),
                    false => NextStep::Again,
                }
            }
            // A reader waits for the lock as long as its holder may keep it.
            Err(failure) if failure.code == "consumer_busy" => {
                let busy_deadline = r.deadline_ns.max(r.start_ns + MAX_WAIT_MS * 1_000_000);
                match !r.asked.fail_if_busy && open && now < busy_deadline {
                    true => NextStep::Busy(busy_deadline),
                    false => NextStep::Answer,
                }
            }
            _ => NextStep::Answer,
        };
        if let (NextStep::Wait(_) | NextStep::Again, Ok(batch)) = (&next, &outcome) {
            r.asked.after = r.asked.after.map(|_| batch.next_from_seq);
        }
        match (next, outcome) {
            (NextStep::Wait(seq), _) => {
                drop(all);
                self.park_reader(token, Some(seq), None);
            }
            (NextStep::Again, _) => {
                drop(all);
                self.start_read(token);
            }
            (NextStep::Busy(until), _) => {
                drop(all);
                self.park_reader(token, None, handle.map(|h| (h, until)));
            }
            (NextStep::Answer, outcome) => {
                let r = all.remove(&token)?;
                drop(all);
                let full = match &outcome {
                    Ok(batch) => self.unsent.check(batch.payload_bytes() as u64).err(),
                    Err(_) => None,
                };
                if let Some(failure) = full {
                    if let (Ok(batch), Some(handle), true) = (outcome, handle, r.asked.checkpoint) {
                        // Before the reply: a client that reads again at once gets this batch.
                        handle.release(batch);
                    }
                    self.pending.fetch_sub(1, Ordering::Relaxed);
                    self.sink.reply(token, failure.into());
                    return None;
                }
                let reply = match outcome {
                    Ok(batch) => {
                        let ns = self.elapsed(r.start_ns);
                        Reply::ok(consumers::records(&r.consumer.0, &r.consumer.1, &batch, ns))
                    }
                    Err(failure) => failure.into(),
                };
                self.pending.fetch_sub(1, Ordering::Relaxed);
                self.sink.reply(token, reply);
            }
        }
        None
    }

    /// Waits for records after `seq`, or for the reader lock of a consumer.
    fn park_reader(
        self: &Arc<Self>,
        token: u64,
        seq: Option<u64>,
        reader_lock: Option<(&Arc<Consumer>, u64)>,
    ) {
        let (topic, timer_ns) = {
            let mut all = self.consumer_reads.waiting.lock();
            let Some(waiting) = all.get_mut(&token) else { return };
            let timer_ns = reader_lock.map_or(waiting.deadline_ns, |(_, until)| until);
            waiting.parked = Some(Parked { timer_ns, head: None });
            (waiting.consumer.0.clone(), timer_ns)
        };
        self.timer.set(timer_ns, token);
        if !self.is_ready() {
            // `close` may have missed this read.
            return self.sink.wake(token);
        }
        let sink = self.sink.clone();
        let due = Box::new(move || sink.wake(token));
        if let Some((handle, _)) = reader_lock
            && handle.on_reader_lock(due.clone()).is_err()
        {
            // The next attempt reports the error.
            return self.sink.wake(token);
        }
        let Some(seq) = seq else { return };
        match self.engine.on_head(&topic, seq, due) {
            Ok(id) => {
                let mut all = self.consumer_reads.waiting.lock();
                if let Some(p) = all.get_mut(&token).and_then(|r| r.parked.as_mut()) {
                    p.head = Some(id);
                } else {
                    drop(all);
                    self.engine.cancel_on_head(&topic, id);
                }
            }
            // The next attempt reports the error.
            Err(_) => self.sink.wake(token),
        }
    }

    /// Attempts a waiting read again.
    pub(super) fn resume_reader(self: &Arc<Self>, token: u64) {
        let parked = {
            let mut all = self.consumer_reads.waiting.lock();
            let Some(waiting) = all.get_mut(&token) else { return };
            let Some(parked) = waiting.parked.take() else { return };
            (waiting.consumer.0.clone(), parked)
        };
        self.unpark(token, &parked.0, parked.1);
        self.start_read(token);
    }

    pub(super) fn cancel_reader(&self, token: u64) -> bool {
        let Some(waiting) = self.consumer_reads.waiting.lock().remove(&token) else { return false };
        if let Some(parked) = waiting.parked {
            self.unpark(token, &waiting.consumer.0, parked);
        }
        true
    }

    fn unpark(&self, token: u64, topic: &str, parked: Parked) {
        self.timer.unset(parked.timer_ns, token);
        if let Some(id) = parked.head {
            self.engine.cancel_on_head(topic, id);
        }
    }
}
