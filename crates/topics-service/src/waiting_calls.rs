//! Calls that wait in the engine: one table, by token.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use topics_engine::WaitId;

use super::Service;

/// What a call waits for.
#[derive(Debug)]
pub(super) enum Wait {
    /// A record.
    Read(WaitId),
    /// A job of a queue.
    Claim { queue: String, id: WaitId, start_ns: u64 },
}

#[derive(Default)]
struct Table {
    /// `None` until the engine has returned the id.
    by_token: HashMap<u64, Option<Wait>>,
    closed: bool,
}

/// The waiting calls of a service.
#[derive(Default)]
pub(super) struct WaitingCalls(Mutex<Table>);

impl WaitingCalls {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().by_token.len()
    }
}

impl Service {
    /// Adds a call, before the engine may complete it.
    pub(super) fn begin_wait(&self, token: u64) {
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.waiting.0.lock().by_token.insert(token, None);
    }

    /// Notes what the call waits for, unless it has been completed meanwhile.
    pub(super) fn set_wait(&self, token: u64, wait: Wait) {
        let mut table = self.waiting.0.lock();
        let closed = table.closed;
        match table.by_token.get_mut(&token) {
            Some(entry) if closed => {
                *entry = None;
                drop(table);
                self.end_wait(token, &wait);
            }
            Some(entry) => *entry = Some(wait),
            // Completed, or its client has gone.
            None => {
                drop(table);
                self.cancel_in_engine(&wait);
            }
        }
    }

    /// Removes a call that is completed; false if its client has gone.
    pub(super) fn finish_wait(&self, token: u64) -> bool {
        let found = self.waiting.0.lock().by_token.remove(&token).is_some();
        if found {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
        found
    }

    /// Cancels a call, because its client has gone.
    pub(super) fn cancel_wait(&self, token: u64) -> bool {
        let Some(wait) = self.waiting.0.lock().by_token.remove(&token) else { return false };
        if let Some(wait) = wait {
            self.cancel_in_engine(&wait);
        }
        true
    }

    fn cancel_in_engine(&self, wait: &Wait) {
        match wait {
            Wait::Read(id) => drop(self.engine.cancel_wait(*id)),
            Wait::Claim { queue, id, .. } => drop(self.engine.cancel_claim(queue, *id)),
        }
    }

    /// Has a call complete with what is there.
    fn end_wait(&self, token: u64, wait: &Wait) {
        match wait {
            Wait::Read(id) => self.engine.end_wait(*id),
            Wait::Claim { queue, id, start_ns } => {
                if self.finish_wait(token) {
                    self.engine.cancel_claim(queue, *id);
                    self.sink.reply(token, self.no_jobs(queue, *start_ns));
                }
            }
        }
    }

    /// Completes every waiting call with what is there, and lets none wait from now on.
    pub(super) fn close_waits(self: &Arc<Self>) {
        let all: Vec<(u64, Wait)> = {
            let mut table = self.waiting.0.lock();
            table.closed = true;
            let waits = table.by_token.iter_mut();
            waits.filter_map(|(token, wait)| Some((*token, wait.take()?))).collect()
        };
        all.iter().for_each(|(token, wait)| self.end_wait(*token, wait));
    }

    /// Whether a stream with this token is open: one that was woken may have ended since.
    #[must_use]
    pub fn has_stream(&self, token: u64) -> bool {
        self.streams.has(token)
    }

    /// Cancels the waiting call or stream with this token, because its client has gone. Verbs that
    /// already run are not cancelled.
    pub fn cancel(self: &Arc<Self>, token: u64) {
        if self.leave_large_call(token) {
            return;
        }
        if self.cancel_wait(token) || self.cancel_stream(token) {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
