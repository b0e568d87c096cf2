//! Reads for event loops: they wait for nothing, and what does not reach its reader is kept.

use std::time::Duration;

use topics_storage::wal::Level;

use super::Consumer;
use crate::ctx::Wait;
use crate::topic::Life;
use crate::types::api::Completion;
use crate::types::batch::ReadBatch;
use crate::types::consumer::{ConsumerMode, ConsumerRead};
use crate::types::error::{Error, Result};

impl Consumer {
    /// Looks once for records; `done` is called once, from here or, in `at_most_once`, when the
    /// cursor behind them is synced. Waits for nothing: another reader is `ConsumerBusy`; a cursor
    /// that cannot be staged now, for want of staging room or because a verb has the topic alone,
    /// is `Throttled` and nothing is handed out.
    pub fn read_async(&self, req: &ConsumerRead, done: Completion<ReadBatch>) {
        if self.mode == ConsumerMode::AtLeastOnce {
            return done(self.read(&ConsumerRead { wait: Duration::ZERO, ..req.clone() }));
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
            // The next reader begins behind this one, whoever that is.
            drop(reader);
            done(outcome.map(|()| batch).map_err(Error::from));
        };
        self.core.wal.notify(ticket, Level::Synced, Box::new(synced));
    }

    /// Has `call` called once, when no reader of `at_most_once` has its turn. Another may be
    /// faster then.
    pub fn on_turn(&self, call: impl FnOnce() + Send + 'static) -> Result<()> {
        self.stored()?.reader.on_release(Box::new(call));
        Ok(())
    }

    /// Has `call` called once, when there is something after `seq`, the topic goes or the engine
    /// closes. The returned id withdraws it.
    pub fn on_more(&self, seq: u64, call: impl FnOnce() + Send + 'static) -> u64 {
        let id = self.topic.gate.on_head(seq, Box::new(call));
        // A topic that went, or an engine that closed, before the entry was there wakes nobody.
        if self.topic.life() == Life::Dead || self.core.check_open().is_err() {
            self.topic.gate.release();
        }
        id
    }

    /// Withdraws an [`Self::on_more`] that has not fired.
    pub fn cancel_more(&self, id: u64) {
        self.topic.gate.cancel(id);
    }

    /// Takes back a batch that did not reach the reader: the next read of this handle hands it
    /// out, before anything else. A seek lets go of it, and so does the end of the handle.
    pub fn release(&self, batch: ReadBatch) {
        if !batch.is_empty() || batch.tombstone.is_some() {
            self.kept.lock().push_back(batch);
        }
    }

    /// What was given back.
    pub(crate) fn kept(&self, req: &ConsumerRead) -> Option<ReadBatch> {
        let mut kept = self.kept.lock();
        if req.checkpoint { kept.pop_front() } else { kept.front().cloned() }
    }
}

impl Consumer {
    /// Batches that are given up with the handle: of `at_most_once` nobody will see them.
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
