//! Reads for event loops: they never block, and batches that do not reach the reader are kept.

use topics_env::sync::Instant;
use topics_storage::wal::Level;

use super::Consumer;
use crate::ctx::Wait;
use crate::topic::Life;
use crate::types::api::Completion;
use crate::types::batch::ReadBatch;
use crate::types::consumer::{ConsumerMode, ConsumerRead};
use crate::types::error::{Error, Result};

impl Consumer {
    /// Reads without waiting for records; the first read of a reader waits until it has taken the consumer
    /// over. Calls `done` once: in this call or, with `at_most_once`, when the cursor behind the records is
    /// synced. Returns `ConsumerBusy` while another reader has the cursor, `ColdPending` while the records
    /// are being fetched from the object store, and `Throttled` while the cursor cannot be staged, because no
    /// staging permit is free or a verb has exclusive access to the topic.
    pub fn read_async(&self, req: &ConsumerRead, done: Completion<ReadBatch>) {
        if self.mode == ConsumerMode::AtLeastOnce {
            return done(self.read_until(req, Instant::now()));
        }
        let begun = self.stored().and_then(|s| match self.kept(req) {
            Some(batch) => Ok((batch, None)),
            None => {
                let reader = s.reader.lock(None).ok_or_else(|| self.busy())?;
                let (batch, staged) = self.take(req, Wait::No)?;
                Ok((batch, staged.map(|ticket| (ticket, reader))))
            }
        });
        let (batch, ticket, reader) = match begun {
            Err(e) => return done(Err(e)),
            Ok((batch, None)) => return done(Ok(batch)),
            Ok((batch, Some((ticket, reader)))) => (batch, ticket, reader),
        };
        let synced = move |outcome: topics_storage::Result<()>| {
            // The next reader begins behind these records.
            drop(reader);
            done(outcome.map(|()| batch).map_err(Error::from));
        };
        self.ctx.wal.notify(ticket, Level::Synced, Box::new(synced));
    }

    /// Calls `call` once, when no reader of `at_most_once` holds the cursor. Another reader may take it
    /// first.
    pub fn on_reader_lock(&self, call: impl FnOnce() + Send + 'static) -> Result<()> {
        self.stored()?.reader.on_release(Box::new(call));
        Ok(())
    }

    /// Calls `call` once, when the head is above `seq`, the topic is deleted or the engine is closed. The
    /// returned id cancels it.
    pub fn on_more(&self, seq: u64, call: impl FnOnce() + Send + 'static) -> u64 {
        let id = self.topic.gate.on_head(seq, Box::new(call));
        // A delete or a close before the registration has woken no waiter.
        if self.topic.life() == Life::Dead || self.ctx.check_open().is_err() {
            self.topic.gate.release();
        }
        id
    }

    /// Cancels an [`Self::on_more`] that has not fired.
    pub fn cancel_more(&self, id: u64) {
        self.topic.gate.cancel(id);
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
