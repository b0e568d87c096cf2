//! Callbacks that wait for a change.

use std::fmt;

/// A callback that is called once.
pub type Callback = Box<dyn FnOnce() + Send>;

/// Callbacks that wait for a change, oldest first. `K` says what each of them waits for.
///
/// The owner's lock guards the list. The owner calls what [`Self::take`] returns, and drops what
/// [`Self::cancel`] returns, without that lock, because a callback may call back into the owner.
pub struct Waiters<K = ()> {
    last_id: u64,
    entries: Vec<(u64, K, Callback)>,
}

impl<K> Default for Waiters<K> {
    fn default() -> Self {
        Self { last_id: 0, entries: Vec::new() }
    }
}

impl<K> fmt::Debug for Waiters<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("waiting", &self.len()).finish_non_exhaustive()
    }
}

impl<K> Waiters<K> {
    /// Adds a callback. Returns an id for [`Self::cancel`], never 0.
    pub fn add(&mut self, key: K, call: Callback) -> u64 {
        self.last_id += 1;
        self.entries.push((self.last_id, key, call));
        self.last_id
    }

    /// Removes and returns a callback that still waits.
    pub fn cancel(&mut self, id: u64) -> Option<Callback> {
        // Ids ascend: entries are only added at the end.
        let at = self.entries.binary_search_by_key(&id, |e| e.0).ok()?;
        Some(self.entries.remove(at).2)
    }

    /// Removes and returns the callbacks whose change has come, oldest first.
    pub fn take(&mut self, is_due: impl Fn(&K) -> bool) -> Vec<Callback> {
        let due = self.entries.extract_if(.., |(_, key, _)| is_due(key));
        due.map(|(_, _, call)| call).collect()
    }

    /// How many callbacks wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no callback waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Appends digits to a number: the order of calls.
    fn digits() -> (Arc<AtomicU64>, impl Fn(u64) -> Callback) {
        let calls = Arc::new(AtomicU64::new(0));
        let shared = calls.clone();
        (calls, move |digit| {
            let calls = shared.clone();
            Box::new(move || {
                let before = calls.load(Ordering::SeqCst);
                calls.store(10 * before + digit, Ordering::SeqCst);
            })
        })
    }

    #[test]
    fn waiters_are_taken_oldest_first_and_cancelled_ones_never() {
        let (calls, call) = digits();
        let mut waiters = Waiters::default();
        let ids: Vec<u64> = (1..=5).map(|n| waiters.add(n % 2, call(n))).collect();
        assert!(waiters.cancel(ids[2]).is_some() && waiters.cancel(ids[2]).is_none());
        assert!(waiters.cancel(0).is_none() && waiters.cancel(6).is_none());
        waiters.take(|odd| *odd == 1).into_iter().for_each(|call| call());
        assert_eq!((calls.load(Ordering::SeqCst), waiters.len()), (15, 2));
        waiters.take(|_| true).into_iter().for_each(|call| call());
        assert_eq!((calls.load(Ordering::SeqCst), waiters.len()), (1524, 0));
    }
}
