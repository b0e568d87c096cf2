//! Reads of consumers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use topics_engine::{Consumer, ConsumerRead, Error, ReadBatch};
use topics_wire::{Failure, consumers};

use super::consumers::Key;
use super::dispatch::Answer;
use super::waiting_calls::Wait;
use super::{Reply, Request, Service};

/// A read without an answer yet.
struct WaitingRead {
    token: u64,
    consumer: Key,
    /// Whether it moves the cursor.
    moves: bool,
    start_ns: u64,
}

impl Service {
    /// Begins the read on a worker thread, because the first one of a reader may wait for the disk.
    pub(super) fn read_consumer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = consumers::read(r.body)?;
        let consumer =
            (r.name.to_owned(), r.subresource.to_owned(), asked.reader.unwrap_or_default());
        let wait =
            if self.is_ready() { Duration::from_millis(asked.wait_ms) } else { Duration::ZERO };
        let req = ConsumerRead { wait, ..asked.read };
        let read = WaitingRead { token: r.token, consumer, moves: req.checkpoint, start_ns };
        self.begin_wait(r.token);
        let service = self.clone();
        let token = r.token;
        self.pool.run(Box::new(move || {
            let begun = catch_unwind(AssertUnwindSafe(|| service.begin_read(read, req)));
            if begun.is_err() {
                service.fail_read(token, Error::Internal("a verb panicked".into()).into());
            }
        }));
        Ok(None)
    }

    fn begin_read(self: &Arc<Self>, read: WaitingRead, req: ConsumerRead) {
        let (topic, name, reader) = &read.consumer;
        let reader = Some(reader.as_str()).filter(|r| !r.is_empty());
        let handle = match self.consumer_handle(topic, name, reader) {
            Ok(handle) => handle,
            Err(failure) => return self.fail_read(read.token, failure),
        };
        let (service, token, held) = (self.clone(), read.token, handle.clone());
        let done = move |outcome| service.on_read(&read, &held, outcome);
        let id = handle.read_async(req, Box::new(done));
        self.set_wait(token, Wait::Read(id));
    }

    fn fail_read(&self, token: u64, failure: Failure) {
        if self.finish_wait(token) {
            self.sink.reply(token, failure.into());
        }
    }

    fn on_read(
        &self,
        read: &WaitingRead,
        handle: &Consumer,
        outcome: topics_engine::Result<ReadBatch>,
    ) {
        let batch = match outcome {
            Ok(batch) => batch,
            Err(e) => return self.fail_read(read.token, e.into()),
        };
        let (topic, name, _) = &read.consumer;
        let is_there = self.finish_wait(read.token);
        let reply: Reply = match self.unsent.check(batch.payload_bytes() as u64) {
            Ok(()) if is_there => {
                let ns = self.elapsed(read.start_ns);
                Reply::ok(consumers::records(topic, name, &batch, ns))
            }
            refused => {
                // The next read gets this batch. Before the reply: the client may read again immediately.
                if read.moves {
                    handle.release(batch);
                }
                match refused {
                    Err(failure) => failure.into(),
                    Ok(()) => return,
                }
            }
        };
        if is_there {
            self.sink.reply(read.token, reply);
        }
    }
}
