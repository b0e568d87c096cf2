//! Readers of `at_least_once` consumers. The read of a second one takes the consumer over and begins at the
//! stored cursor; after that the reads, commits and seeks of the first are refused.

use std::cell::Cell;

use topics_env::sync::atomic::Ordering;

use super::stored::{log, no_consumer};
use super::{Consumer, ConsumerMode, ConsumerRead};
use crate::topic::Topic;
use crate::topic::cursors::{Stored, Takeover, stored};
use crate::topic::events::Base;
use crate::types::error::{Error, Result};

/// A handle that does not share its consumer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    /// Above the fence of every takeover before the handle was opened, and before its own.
    fence: u64,
    has_read: bool,
}

fn next_fence(base: &Base) -> u64 {
    base.reader_fence.fetch_add(1, Ordering::Relaxed) + 1
}

fn check(topic: &Topic, name: &str, takeover: Takeover, fence: u64) -> Result<()> {
    if takeover.fence <= fence {
        return Ok(());
    }
    let (topic, consumer) = (topic.name.to_string(), name.to_owned());
    Err(Error::ConsumerFenced { topic, consumer, taken_at: takeover.at })
}

/// Refuses the commit of a reader if another one took the consumer over. The caller has exclusive access
/// to the topic, so that no reader takes the consumer over before the commit is applied.
pub(crate) fn check_fence(topic: &Topic, name: &str, fence: u64) -> Result<()> {
    let s = stored(topic, name).ok_or_else(|| no_consumer(topic, name))?;
    check(topic, name, s.takeover, fence)
}

impl Consumer {
    /// Makes the handle a reader of its own: its first read takes an `at_least_once` consumer over, and a
    /// reader that takes it over later ends this one. `at_most_once` has no such readers.
    #[must_use]
    pub fn into_reader(mut self) -> Self {
        if self.mode == ConsumerMode::AtLeastOnce {
            let fence = next_fence(self.ctx.base());
            self.delivered.get_mut().reader = Some(Reader { fence, has_read: false });
        }
        self
    }

    /// What a transaction that commits for this reader needs: see `TxnCursor`.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.delivered.lock().reader.map(|r| r.fence)
    }

    /// Refuses a reader whose consumer another one took over.
    pub(super) fn check_takeover(&self, s: &Stored, reader: Option<Reader>) -> Result<()> {
        reader.map_or(Ok(()), |r| check(&self.topic, &self.name, s.takeover, r.fence))
    }

    /// The same, for the reader of this handle now.
    pub(super) fn check_reader(&self) -> Result<()> {
        let s = self.stored()?;
        let reader = self.delivered.lock().reader;
        self.check_takeover(&s, reader)
    }

    /// Takes the consumer over before the first read of a reader; refuses one that another reader ended.
    pub(super) fn begin_read(&self, req: &ConsumerRead, s: &Stored) -> Result<()> {
        if self.has_consumer(s)? {
            if req.after.is_some() {
                // The reader asks for these records again.
                self.kept.lock().clear();
            }
            return Ok(());
        }
        if !req.checkpoint {
            let mut d = self.delivered.lock();
            (d.at, d.begin) = (s.cursor, s.cursor);
            return Ok(());
        }
        let _one = self.taking_over.lock();
        if self.has_consumer(&self.stored()?)? {
            return Ok(());
        }
        let fence = Cell::new(0);
        // Commits of the reader before are applied first: this one begins behind them.
        let taken = log(&self.ctx, &self.topic, &self.name, Some(false), |all| {
            let Some(s) = all.0.get_mut(&self.name) else {
                return Err(no_consumer(&self.topic, &self.name));
            };
            fence.set(next_fence(self.ctx.base()));
            s.takeover = Takeover { fence: fence.get(), at: self.ctx.base().time.steady() };
            Ok(None)
        });
        let begin = taken.and_then(|()| Ok(self.stored()?.cursor));
        let mut d = self.delivered.lock();
        if fence.get() > 0 {
            d.reader = Some(Reader { fence: fence.get(), has_read: begin.is_ok() });
        }
        let begin = begin?;
        (d.at, d.begin, d.done, d.saved) = (begin, begin, None, begin);
        drop(d);
        self.kept.lock().clear();
        Ok(())
    }

    /// Whether a read needs no takeover: this reader has the consumer, or the handle shares it.
    pub(super) fn has_consumer(&self, s: &Stored) -> Result<bool> {
        let Some(reader) = self.delivered.lock().reader else { return Ok(true) };
        if !reader.has_read {
            return Ok(false);
        }
        check(&self.topic, &self.name, s.takeover, reader.fence)?;
        // A consumer of this name that was created meanwhile has no reader.
        Ok(s.takeover.fence == reader.fence)
    }
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;
