//! The visible head of a topic, and the callbacks that wait for it to rise.

use std::fmt;

use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::events::TopicObserver;
use topics_env::{Callback, Waiters};

#[derive(Default)]
struct List {
    /// By the seq that the head must be above.
    waiters: Waiters<u64>,
    /// Called each time that the head rises.
    observer: Option<Arc<dyn TopicObserver>>,
}

impl List {
    /// How many a publisher has to call, the observer included.
    fn len(&self) -> usize {
        self.waiters.len() + usize::from(self.observer.is_some())
    }
}

/// The visible head of a topic, and the waiters for a higher one.
///
/// I3: the head rises only over records that their class calls committed. It never goes back
/// (I11).
#[derive(Default)]
pub(crate) struct Gate {
    head: AtomicU64,
    /// Length of the list: a publisher takes its lock only if this is not 0.
    waiters: AtomicUsize,
    list: Mutex<Option<Box<List>>>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("head", &self.head()).finish_non_exhaustive()
    }
}

impl Gate {
    /// The last seq that readers may see.
    pub(crate) fn head(&self) -> u64 {
        self.head.load(Ordering::SeqCst)
    }

    /// The number of waiters, the observer included.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.load(Ordering::SeqCst)
    }

    /// Raises the head to `head` if that is higher, and wakes the waiters below it.
    pub(crate) fn publish(&self, head: u64) {
        let before = self.head.fetch_max(head, Ordering::SeqCst);
        if before < head && self.waiters.load(Ordering::SeqCst) > 0 {
            self.wake_below(head);
        }
    }

    /// Has `wake` called once when the head is above `seq`, or on [`Self::release`]. Returns an id for
    /// [`Self::cancel`].
    pub(crate) fn on_head(&self, seq: u64, wake: Callback) -> u64 {
        let id = {
            let mut list = self.list.lock();
            let list = list.get_or_insert_default();
            let id = list.waiters.add(seq, wake);
            self.waiters.store(list.len(), Ordering::SeqCst);
            id
        };
        // A publisher that raised the head before the entry above was in the list did not wake it.
        let head = self.head();
        if head > seq {
            self.wake_below(head);
        }
        id
    }

    /// Removes a waiter that was not woken.
    pub(crate) fn cancel(&self, id: u64) {
        let mut gone = None;
        let mut list = self.list.lock();
        if let Some(l) = list.as_mut() {
            gone = l.waiters.cancel(id);
            self.waiters.store(l.len(), Ordering::SeqCst);
        }
        drop(list);
        drop(gone);
    }

    /// Sets the observer that is called when the head rises and on [`Self::release`]; `None` removes it.
    pub(crate) fn set_observer(&self, observer: Option<Arc<dyn TopicObserver>>) {
        let mut list = self.list.lock();
        if observer.is_none() && list.is_none() {
            return;
        }
        let list = list.get_or_insert_default();
        list.observer = observer;
        self.waiters.store(list.len(), Ordering::SeqCst);
    }

    /// Wakes all waiters: the topic was deleted, or the engine closes.
    pub(crate) fn release(&self) {
        self.wake_below(u64::MAX);
    }

    fn wake_below(&self, head: u64) {
        let (woken, observer) = {
            let mut list = self.list.lock();
            let Some(l) = list.as_mut() else { return };
            let woken = l.waiters.take(|seq| *seq < head);
            self.waiters.store(l.len(), Ordering::SeqCst);
            (woken, l.observer.clone())
        };
        if let Some(observer) = observer {
            observer.head_raised();
        }
        woken.into_iter().for_each(|wake| wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn counter() -> (Arc<AtomicUsize>, impl Fn() -> Callback) {
        let n = Arc::new(AtomicUsize::new(0));
        let m = n.clone();
        (n, move || {
            let m = m.clone();
            Box::new(move || {
                m.fetch_add(1, Ordering::SeqCst);
            })
        })
    }

    #[test]
    fn wakes_those_below_the_head_once() {
        let (n, wake) = counter();
        let gate = Gate::default();
        gate.on_head(0, wake());
        gate.on_head(5, wake());
        gate.publish(5);
        assert_eq!(n.load(Ordering::SeqCst), 1);
        gate.publish(4);
        assert_eq!(gate.head(), 5, "I11: the head never goes back");
        gate.publish(6);
        gate.publish(7);
        assert_eq!(n.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_late_waiter_fires_at_once_and_a_cancelled_one_never() {
        let (n, wake) = counter();
        let gate = Gate::default();
        gate.publish(3);
        gate.on_head(2, wake());
        assert_eq!(n.load(Ordering::SeqCst), 1);
        let id = gate.on_head(3, wake());
        gate.cancel(id);
        gate.publish(9);
        assert_eq!(n.load(Ordering::SeqCst), 1);
        gate.on_head(9, wake());
        gate.release();
        assert_eq!(n.load(Ordering::SeqCst), 2);
    }
}
