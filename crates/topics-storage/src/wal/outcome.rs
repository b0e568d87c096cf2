//! What is known about tickets, and who wants to know.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use topics_env::sync::Condvar;

use super::Level;
use crate::{Result, StorageError};

pub(super) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A blocked thread. It is taken off the list by whoever wakes it.
pub(super) struct Waiter {
    pub n: u64,
    pub level: Level,
    pub wake: Arc<Condvar>,
}

/// Outcomes of tickets, and the threads and callbacks that wait for them.
#[derive(Default)]
pub(super) struct Outcomes {
    /// How far waiters of level `Written` see.
    written: u64,
    /// How far waiters of level `Synced` see.
    synced: u64,
    /// Why nothing more is acked.
    ended: Option<StorageError>,
    /// Failed tickets, ascending ranges.
    failed: VecDeque<(u64, u64, StorageError)>,
    /// The most ranges that are remembered; all tickets that are out at one time are fewer.
    most_failed: usize,
    pub waiters: Vec<Waiter>,
    callbacks: [BTreeMap<u64, Vec<Callback>>; 2],
}

impl Outcomes {
    /// Remembers at least this many failed tickets.
    pub fn new(most_failed: usize) -> Self {
        Self { most_failed: most_failed.max(4096), ..Self::default() }
    }

    /// What is known about a ticket at a level; `None`: nothing yet.
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

    /// Nothing more is acked.
    pub fn end(&mut self, error: &StorageError) {
        self.ended.get_or_insert_with(|| error.clone());
    }

    /// Writes down that tickets failed; what is known already stays.
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

    /// Bounds the table. Two ranges become one with what lies between them: a ticket whose outcome
    /// is not known any more is an error, never a success.
    fn merge_oldest(&mut self) {
        while self.failed.len() > self.most_failed {
            let (Some((from, ..)), Some((_, to, _))) =
                (self.failed.pop_front(), self.failed.pop_front())
            else {
                return;
            };
            let error = StorageError::Io {
                what: format!("learn what became of the writes {from} to {to} of the shard"),
                kind: std::io::ErrorKind::Other,
                raw: None,
                detail: "too many failed since: read the topic to see what it has".into(),
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

    /// Takes a waiter that woke by itself off the list.
    pub fn unpark(&mut self, wake: &Arc<Condvar>) {
        self.waiters.retain(|w| !Arc::ptr_eq(&w.wake, wake));
    }

    /// Has `done` called, once, when the level is reached or cannot be.
    pub fn call(&mut self, n: u64, level: Level, done: Callback) {
        self.callbacks[usize::from(level == Level::Synced)].entry(n).or_default().push(done);
    }

    /// The first ticket whose sync a callback waits for.
    pub fn first_synced_call(&self) -> Option<u64> {
        self.callbacks[1].first_key_value().map(|(n, _)| *n)
    }

    /// Whether more than one waits for a sync, `own` of them among neither waiters nor callbacks.
    pub fn has_several_syncs(&self, own: usize) -> bool {
        let blocked = self.waiters.iter().filter(|w| w.level == Level::Synced);
        let calls = self.callbacks[1].values().flatten().map(|_| ());
        blocked.map(|_| ()).chain(calls).nth(1usize.saturating_sub(own)).is_some()
    }

    /// Callbacks whose outcome is known now.
    pub fn due(&mut self) -> Vec<(Callback, Result<()>)> {
        let mut due = Vec::new();
        for (i, level) in [Level::Written, Level::Synced].into_iter().enumerate() {
            // A failure is known at both levels as soon as it is written down.
            while let Some((&n, _)) = self.callbacks[i].first_key_value() {
                let Some(outcome) = self.of(n, level) else { break };
                let calls = self.callbacks[i].pop_first().map(|(_, c)| c).unwrap_or_default();
                due.extend(calls.into_iter().map(|c| (c, outcome.clone())));
            }
        }
        due
    }

    /// Takes the waiters off the list whose outcome is known.
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
