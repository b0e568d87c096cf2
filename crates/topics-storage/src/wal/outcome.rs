//! Outcomes of tickets, and the threads and callbacks that wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use topics_env::sync::Condvar;

use super::Level;
use crate::{Result, StorageError};

pub(super) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A blocked thread. The thread that wakes it removes it from the list.
pub(super) struct Waiter {
    pub n: u64,
    pub level: Level,
    pub wake: Arc<Condvar>,
}

/// Outcomes of tickets, and the threads and callbacks that wait for them.
#[derive(Default)]
pub(super) struct Outcomes {
    /// Tickets up to here have reached `Written`.
    written: u64,
    /// Tickets up to here have reached `Synced`.
    synced: u64,
    /// The error after which nothing more is acked.
    ended: Option<StorageError>,
    /// Failed tickets, ascending ranges.
    failed: VecDeque<(u64, u64, StorageError)>,
    /// Maximum number of remembered ranges; more than the tickets that can be pending at one time.
    most_failed: usize,
    pub waiters: Vec<Waiter>,
    callbacks: [BTreeMap<u64, Vec<Callback>>; 2],
}

impl Outcomes {
    /// Remembers at least this many failed tickets.
    pub fn new(most_failed: usize) -> Self {
        Self { most_failed: most_failed.max(4096), ..Self::default() }
    }

    /// The outcome of a ticket at a level; `None` while it is pending.
    pub fn of(&self, n: u64, level: Level) -> Option<Result<()>> {
        let done = match level {
            Level::Staged => return Some(Ok(())),
            Level::Written => n <= self.written,
            Level::Synced => n <= self.synced,
        };
        if !self.failed.is_empty() {
            let i = self.failed.partition_point(|f| f.1 < n);
            if let Some((_, _, e)) = self.failed.get(i).filter(|f| f.0 <= n) {
                return Some(Err(e.clone()));
            }
        }
        if done {
            return Some(Ok(()));
        }
        self.ended.clone().map(Err)
    }

    /// Tickets up to `n` have reached a level, except those that failed.
    pub fn reached(&mut self, n: u64, level: Level) {
        match level {
            Level::Staged => {}
            Level::Written => self.written = self.written.max(n),
            Level::Synced => self.synced = self.synced.max(n),
        }
    }

    /// Fails every ticket that is still pending or comes later.
    pub fn end(&mut self, error: &StorageError) {
        self.ended.get_or_insert_with(|| error.clone());
    }

    /// Records that tickets failed. Earlier recorded failures keep their error.
    pub fn fail(&mut self, from: u64, to: u64, error: &StorageError) {
        if from > to {
            return;
        }
        let known = self.failed.partition_point(|f| f.1 < from);
        let known: Vec<_> = self.failed.drain(known..).collect();
        let mut at = from;
        for (f, t, e) in known {
            if at < f && at <= to {
                self.push(at, to.min(f - 1), error.clone());
            }
            self.push(f, t, e);
            at = t + 1;
        }
        if at <= to {
            self.push(at, to, error.clone());
        }
        self.merge_oldest();
    }

    /// Bounds the table: merges the two oldest ranges and the tickets between them. A ticket whose
    /// outcome was dropped counts as failed, never as a success.
    fn merge_oldest(&mut self) {
        while self.failed.len() > self.most_failed {
            let (Some((from, ..)), Some((_, to, _))) =
                (self.failed.pop_front(), self.failed.pop_front())
            else {
                return;
            };
            let error = StorageError::Io {
                what: format!("look up the outcome of the writes {from} to {to} of the shard"),
                kind: std::io::ErrorKind::Other,
                raw: None,
                detail: "it was dropped because too many writes failed since; read the topic to see which records it has".into(),
            };
            self.failed.push_front((from, to, error));
        }
    }

    fn push(&mut self, from: u64, to: u64, error: StorageError) {
        let same = |a: &StorageError| std::mem::discriminant(a) == std::mem::discriminant(&error);
        match self.failed.back_mut() {
            Some(f) if f.1 + 1 == from && same(&f.2) => f.1 = to,
            _ => self.failed.push_back((from, to, error)),
        }
    }

    /// Removes a waiter that woke by itself.
    pub fn unpark(&mut self, wake: &Arc<Condvar>) {
        self.waiters.retain(|w| !Arc::ptr_eq(&w.wake, wake));
    }

    /// Registers `done`, which is called once when the level is reached or has become impossible.
    pub fn on_level(&mut self, n: u64, level: Level, done: Callback) {
        self.callbacks[usize::from(level == Level::Synced)].entry(n).or_default().push(done);
    }

    /// The lowest ticket whose sync a callback waits for.
    pub fn first_synced_call(&self) -> Option<u64> {
        self.callbacks[1].first_key_value().map(|(n, _)| *n)
    }

    /// Removes and returns the callbacks whose outcome is known.
    pub fn due(&mut self) -> Vec<(Callback, Result<()>)> {
        let mut due = Vec::new();
        for (i, level) in [Level::Written, Level::Synced].into_iter().enumerate() {
            // A recorded failure is the outcome at both levels.
            while let Some((&n, _)) = self.callbacks[i].first_key_value() {
                let Some(outcome) = self.of(n, level) else { break };
                let calls = self.callbacks[i].pop_first().map(|(_, c)| c).unwrap_or_default();
                due.extend(calls.into_iter().map(|c| (c, outcome.clone())));
            }
        }
        due
    }

    /// Removes and returns the waiters whose outcome is known.
    pub fn known(&mut self) -> Vec<Arc<Condvar>> {
        let mut woken = Vec::new();
        let mut i = 0;
        while i < self.waiters.len() {
            if self.of(self.waiters[i].n, self.waiters[i].level).is_some() {
                woken.push(self.waiters.swap_remove(i).wake);
            } else {
                i += 1;
            }
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Failures come in any order: batches of one topic fail around those of others, which fail later.
    #[test]
    fn i1_what_failed_is_no_success_later_in_whatever_order_ranges_fail() {
        let full = StorageError::Full { detail: "test".into() };
        let mut ranges = Vec::new();
        for from in 1..=6 {
            ranges.extend((from..=6).map(|to| (from, to)));
        }
        for a in &ranges {
            for b in &ranges {
                for c in &ranges {
                    let mut all = Outcomes::new(0);
                    [a, b, c].iter().for_each(|r| all.fail(r.0, r.1, &full));
                    all.reached(6, Level::Written);
                    for n in 1..=6 {
                        let failed = [a, b, c].iter().any(|r| (r.0..=r.1).contains(&n));
                        let outcome = all.of(n, Level::Written).unwrap();
                        assert_eq!(outcome.is_err(), failed, "{n} of {a:?}, {b:?}, {c:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_outcome_that_is_forgotten_is_an_error() {
        let most = 4096;
        let mut all = Outcomes::new(most);
        let full = StorageError::Full { detail: "test".into() };
        let n = 4 * most as u64;
        for ticket in (1..=n).step_by(2) {
            all.fail(ticket, ticket, &full);
            all.reached(ticket + 1, Level::Written);
        }
        assert!(all.failed.len() <= most);
        for ticket in (1..=n).step_by(2) {
            assert!(all.of(ticket, Level::Written).unwrap().is_err(), "{ticket}");
        }
        // What is newer than the merged range is exact.
        assert!(matches!(all.of(n, Level::Written), Some(Ok(()))));
        assert!(matches!(all.of(n - 1, Level::Written), Some(Err(StorageError::Full { .. }))));
        assert!(all.of(2, Level::Written).unwrap().is_err());
    }
}
