//! Reads for event loops: they wait without a thread, and batches that do not reach the reader are kept.

use std::sync::Arc;

use topics_storage::wal::Level;

use super::{Consumer, MAX_WAIT};
use crate::ctx::Wait;
use crate::topic::{PendingFetch, on_head, until};
use crate::types::api::Completion;
use crate::types::batch::ReadBatch;
use crate::types::consumer::{ConsumerMode, ConsumerRead};
use crate::types::error::{Error, Result};
use crate::types::pending_calls::{Next, Register, Turn, WaitId};
use crate::types::wait::ReaderLock;

/// A read that waits for a record or the reader lock.
struct WaitingRead {
    req: ConsumerRead,
    /// Until when it waits for the reader lock, monotonic ns.
    busy_until: u64,
    done: Option<Completion<ReadBatch>>,
}

impl WaitingRead {
    fn attempt(&mut self, consumer: &Arc<Consumer>, turn: Turn) -> Result<Next> {
        let s = consumer.stored()?;
        consumer.begin_read(&self.req, &s)?;
        if let Some(batch) = consumer.kept(&self.req) {
            return Ok(self.complete(Ok(batch)));
        }
        let batch = match consumer.mode {
            ConsumerMode::AtLeastOnce => consumer.read_again(&self.req, self.req.after)?,
            ConsumerMode::AtMostOnce => {
                let Some(reader) = s.reader.lock(None) else {
                    return self.wait_for_reader(consumer, s.reader, turn);
                };
                let (batch, staged) = consumer.take(&self.req, Wait::No)?;
                if let Some(ticket) = staged
                    && let Some(done) = self.done.take()
                {
                    let synced = move |outcome: topics_storage::Result<()>| {
                        // The next reader begins behind these records.
                        drop(reader);
                        done(outcome.map(|()| batch).map_err(Error::from));
                    };
                    consumer.ctx.wal.on_level(ticket, Level::Synced, Box::new(synced));
                    return Ok(Next::Done);
                }
                batch
            }
        };
        if !batch.is_empty() || batch.tombstone.is_some() || turn != Turn::InTime {
            return Ok(self.complete(Ok(batch)));
        }
        let seq = batch.next_from_seq;
        self.req.after = self.req.after.map(|_| seq);
        Ok(Next::Wait(match batch.caught_up || !self.req.checkpoint {
            true => on_head(&consumer.ctx, consumer.topic.clone(), seq),
            // The filter dropped every record of the page. Other calls have their turn first.
            false => Box::new(|wake| {
                wake();
                Box::new(|| {})
            }),
        }))
    }

    /// Waits for the reader lock for as long as its holder may keep it.
    fn wait_for_reader(
        &self,
        consumer: &Consumer,
        lock: Arc<ReaderLock>,
        turn: Turn,
    ) -> Result<Next> {
        let is_late = consumer.ctx.base().time.mono_ns() >= self.busy_until;
        if self.req.fail_if_busy || turn == Turn::Ended || is_late {
            return Err(consumer.busy());
        }
        let register: Register = Box::new(move |wake| {
            let id = lock.on_release(wake);
            Box::new(move || lock.cancel(id))
        });
        Ok(Next::WaitUntil(register, self.busy_until))
    }

    fn complete(&mut self, outcome: Result<ReadBatch>) -> Next {
        if let Some(done) = self.done.take() {
            done(outcome);
        }
        Next::Done
    }
}

impl Consumer {
    /// Reads like [`Self::read`], and waits without a thread, however long; but the first read of a reader
    /// waits until it has taken the consumer over. Calls `done` once: in this call, when there is a record,
    /// when the cursor of `at_most_once` behind the records is synced, or when the time is over. Returns
    /// `Throttled` while the cursor cannot be staged, because no staging permit is free or a verb has
    /// exclusive access to the topic. The returned id cancels the wait ([`crate::Engine::cancel_wait`]);
    /// `done` keeps the handle.
    pub fn read_async(self: &Arc<Self>, req: ConsumerRead, done: Completion<ReadBatch>) -> WaitId {
        let ends = until(&self.ctx, req.wait);
        let busy_until = ends.max(until(&self.ctx, MAX_WAIT));
        let weak = Arc::downgrade(self);
        let mut read = WaitingRead { req, busy_until, done: Some(done) };
        let mut fetch = PendingFetch::default();
        let attempt = move |turn| {
            let consumer = weak.upgrade().ok_or(Error::Closed);
            let next = consumer.and_then(|c| {
                let base = c.ctx.base();
                fetch.attempt(|| base.guarded_turn("read", || read.attempt(&c, turn)))
            });
            next.unwrap_or_else(|e| read.complete(Err(e)))
        };
        self.ctx.calls.start(Box::new(attempt), ends)
    }

    /// Keeps a batch that did not reach the reader: the next read of this handle returns it first. A seek
    /// and the drop of the handle discard it.
    pub fn release(&self, batch: ReadBatch) {
        if !batch.is_empty() || batch.tombstone.is_some() {
            self.kept.lock().push_back(batch);
        }
    }

    /// The oldest kept batch.
    pub(crate) fn kept(&self, req: &ConsumerRead) -> Option<ReadBatch> {
        let mut kept = self.kept.lock();
        if req.checkpoint { kept.pop_front() } else { kept.front().cloned() }
    }
}

impl Consumer {
    /// Discards the kept batches: with `at_most_once` no reader gets their records.
    pub(crate) fn release_kept(&mut self) {
        let kept = self.kept.get_mut();
        let lost: usize = kept.drain(..).map(|b| b.len()).sum();
        if lost > 0 && self.mode == ConsumerMode::AtMostOnce {
            log::warn!("consumer {:?}: {lost} records did not reach their reader", self.name);
        }
    }
}

#[cfg(test)]
#[path = "nonblocking_tests.rs"]
mod tests;
