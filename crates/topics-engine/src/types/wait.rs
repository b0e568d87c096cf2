//! Waiting for a change: by callback, by a blocked thread, in turn.

use std::cell::RefCell;
use std::sync::Arc;

pub(crate) use topics_env::Callback;
use topics_env::Waiters;
use topics_env::sync::{Condvar, Instant, Mutex};

/// Called with `true` before a wait for the object store, and with `false` after it.
type OnBlocking = Box<dyn Fn(bool)>;

std::thread_local! {
    static ON_BLOCKING: RefCell<Option<OnBlocking>> = const { RefCell::new(None) };
}

/// Sets what is called on this thread before (`true`) and after a wait for the object store: a pool lets
/// another thread take its place meanwhile.
pub fn on_blocking(call: impl Fn(bool) + 'static) {
    ON_BLOCKING.set(Some(Box::new(call)));
}

/// Waits for the object store, or for a thread that does.
pub fn while_blocked<R>(wait: impl FnOnce() -> R) -> R {
    let notify = |begins| ON_BLOCKING.with_borrow(|call| call.iter().for_each(|call| call(begins)));
    notify(true);
    let out = wait();
    notify(false);
    out
}

/// A value that one thread sets, once, and another one waits for.
pub(crate) struct OneShot<T> {
    value: Mutex<Option<T>>,
    is_set: Condvar,
}

impl<T> OneShot<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { value: Mutex::new(None), is_set: Condvar::new() })
    }

    pub(crate) fn set(&self, value: T) {
        *self.value.lock() = Some(value);
        self.is_set.notify_all();
    }

    /// Waits for the value and takes it; `None` when it is not set by the deadline. No deadline:
    /// waits for as long as it takes.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<T> {
        let mut value = self.value.lock();
        while value.is_none() {
            match deadline {
                Some(at) if self.is_set.wait_until(&mut value, at).timed_out() => break,
                Some(_) => {}
                None => self.is_set.wait(&mut value),
            }
        }
        value.take()
    }
}

/// A lock without data that may be held across calls: by a blocked thread's caller, or until a
/// callback runs. Waiting threads get it one by one; waiting callbacks are all called when it is
/// released, and try again.
#[derive(Debug, Default)]
pub(crate) struct ReaderLock {
    state: Mutex<ReaderState>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct ReaderState {
    is_locked: bool,
    waiters: Waiters,
}

/// Holds a [`ReaderLock`]; releases it when dropped.
pub(crate) struct ReaderGuard(Arc<ReaderLock>);

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        let waiters = {
            let mut state = self.0.state.lock();
            state.is_locked = false;
            state.waiters.take(|()| true)
        };
        self.0.released.notify_one();
        waiters.into_iter().for_each(|call| call());
    }
}

impl ReaderLock {
    /// Takes the lock; waits for it until the deadline, `None` when it is held until then. No
    /// deadline: does not wait.
    pub(crate) fn lock(self: &Arc<Self>, deadline: Option<Instant>) -> Option<ReaderGuard> {
        let mut state = self.state.lock();
        while state.is_locked {
            let late = self.released.wait_until(&mut state, deadline?).timed_out();
            if late && state.is_locked {
                return None;
            }
        }
        state.is_locked = true;
        Some(ReaderGuard(self.clone()))
    }

    /// Has `call` called once when the lock is free: immediately if it is free now. Returns an id for
    /// [`Self::cancel`].
    pub(crate) fn on_release(&self, call: Callback) -> u64 {
        let (id, due) = {
            let mut state = self.state.lock();
            let id = state.waiters.add((), call);
            (id, if state.is_locked { Vec::new() } else { state.waiters.take(|()| true) })
        };
        due.into_iter().for_each(|call| call());
        id
    }

    /// Removes a callback that still waits.
    pub(crate) fn cancel(&self, id: u64) {
        let gone = self.state.lock().waiters.cancel(id);
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use topics_env::sync::atomic::{AtomicU64, Ordering};

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
    fn a_value_is_taken_once_and_a_deadline_ends_the_wait() {
        let slot = OneShot::new();
        assert_eq!(slot.wait(Some(Instant::now())), None);
        slot.set(7);
        assert_eq!(slot.wait(None), Some(7));
        assert_eq!(slot.wait(Some(Instant::now())), None);
    }

    #[test]
    fn a_reader_lock_is_free_after_its_guard_and_calls_those_that_wait() {
        let (calls, call) = digits();
        let lock = Arc::new(ReaderLock::default());
        let guard = lock.lock(None).unwrap();
        assert!(lock.lock(None).is_none() && lock.lock(Some(Instant::now())).is_none());
        lock.on_release(call(1));
        let id = lock.on_release(call(4));
        lock.on_release(call(2));
        lock.cancel(id);
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        drop(guard);
        assert_eq!(calls.load(Ordering::SeqCst), 12);
        lock.on_release(call(3));
        assert_eq!(calls.load(Ordering::SeqCst), 123);
        assert!(lock.lock(None).is_some());
    }
}
