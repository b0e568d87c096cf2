//! Exclusive access to a topic.
//!
//! A verb takes a topic *exclusively*: it waits until no batch of the topic is pending, and keeps other
//! writes out. Blocking writes wait; asynchronous ones are parked and resumed in their order.

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::wal::{Level, Ticket};

use super::Topic;
use crate::topic::events::Ctx;
use crate::types::error::{Error, Result};

/// Exclusive access to a topic; released when dropped.
pub(crate) struct ExclusiveGuard {
    topic: Arc<Topic>,
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        let parked = {
            let mut a = self.topic.append.lock();
            a.is_exclusive = false;
            a.parked.take(|()| true)
        };
        self.topic.exclusive_released.notify_all();
        parked.into_iter().for_each(|resume| resume());
    }
}

impl Topic {
    /// Parks a write while a verb has the topic exclusively, and has it resumed afterwards. Returns the
    /// write when no verb has the topic.
    pub(crate) fn park<W: Send + 'static>(
        &self,
        waiting: W,
        resume: impl FnOnce(W) + Send + 'static,
    ) -> Option<W> {
        let mut a = self.append.lock();
        if a.is_exclusive {
            a.parked.add((), Box::new(move || resume(waiting)));
            None
        } else {
            Some(waiting)
        }
    }

    /// Whether no batch of the topic is pending and no verb has it exclusively.
    pub(crate) fn quiet(&self) -> bool {
        self.pending_batches.load(Ordering::Acquire) == 0 && !self.append.lock().is_exclusive
    }

    /// Takes the topic exclusively and waits until no batch of it is pending.
    pub(crate) fn exclusive(self: &Arc<Self>, ctx: &Arc<Ctx>) -> Result<ExclusiveGuard> {
        let last = {
            let mut a = self.append.lock();
            while a.is_exclusive {
                self.exclusive_released.wait(&mut a);
            }
            a.is_exclusive = true;
            a.last
        };
        let exclusive = ExclusiveGuard { topic: self.clone() };
        self.wait_idle(ctx, last)?;
        Ok(exclusive)
    }

    /// Waits until the newest batch, and so every batch before it, has finished.
    pub(crate) fn wait_idle(&self, ctx: &Ctx, last: Option<(Ticket, Level)>) -> Result<()> {
        let outcome = last.map_or(Ok(()), |(ticket, level)| ctx.wait(ticket, level));
        if let Err(Error::Closed) = outcome {
            return outcome;
        }
        // The count rises before the check: either the last batch sees it, or this sees that batch finished.
        self.idle_waiters.fetch_add(1, Ordering::SeqCst);
        let mut a = self.append.lock();
        while self.pending_batches.load(Ordering::SeqCst) > 0 {
            self.exclusive_released.wait(&mut a);
        }
        drop(a);
        self.idle_waiters.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    /// Counts off a batch that was applied, has failed, or was dropped by a failed log.
    pub(crate) fn batch_finished(&self) {
        let last = self.pending_batches.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.idle_waiters.load(Ordering::SeqCst) > 0 {
            let _locked = self.append.lock();
            self.exclusive_released.notify_all();
        }
    }
}
