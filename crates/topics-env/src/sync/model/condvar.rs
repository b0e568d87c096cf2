//! Condition variables. They have no spurious wakeups, like parking_lot's; `notify_one` wakes an
//! arbitrary waiter, which is weaker than parking_lot's guarantee.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
use shuttle::rand::RngCore;

use super::lock::MutexGuard;
use super::time::{self, Instant};
use super::{SyncOp, is_broken, switch};

const WAITING: u8 = 0;
const NOTIFIED: u8 = 1;
const TIMED_OUT: u8 = 2;

/// A waiting thread; its outcome is decided once.
#[derive(Debug)]
pub(super) struct Waiter {
    fate: AtomicU8,
    wake: BatchSemaphore,
}

impl Waiter {
    /// Decides the outcome; `false` if it was decided before.
    fn decide(&self, fate: u8) -> bool {
        let decided =
            self.fate.compare_exchange(WAITING, fate, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if decided {
            self.wake.release(1);
        }
        decided
    }

    /// Ends the wait by its deadline.
    pub fn time_out(&self) {
        self.decide(TIMED_OUT);
    }

    fn waits(&self) -> bool {
        self.fate.load(Ordering::SeqCst) == WAITING
    }
}

/// A condition variable.
#[derive(Default)]
pub struct Condvar {
    /// A lock of the system, never held across a scheduling point.
    waiters: parking_lot::Mutex<Vec<Arc<Waiter>>>,
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

impl Condvar {
    /// A condition variable without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self { waiters: parking_lot::Mutex::new(Vec::new()) }
    }

    fn park<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Option<Instant>) -> u8 {
        if until.is_some_and(|at| at <= Instant::now()) {
            MutexGuard::unlocked(guard, switch);
            return TIMED_OUT;
        }
        let waiter = Arc::new(Waiter {
            fate: AtomicU8::new(WAITING),
            wake: BatchSemaphore::new(0, Fairness::Unfair),
        });
        self.waiters.lock().push(waiter.clone());
        if let Some(at) = until {
            time::limit(at, Arc::downgrade(&waiter));
        }
        MutexGuard::unlocked(guard, || {
            // An error means that the run is ending.
            let _ = waiter.wake.acquire_blocking(1);
        });
        self.waiters.lock().retain(|w| !Arc::ptr_eq(w, &waiter));
        waiter.fate.load(Ordering::SeqCst)
    }

    /// Releases the mutex, waits for a notification, and locks the mutex again.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.park(guard, None);
    }

    /// Like [`Self::wait`], for at most this time.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
    ) -> WaitTimeoutResult {
        self.wait_until(guard, Instant::now() + limit)
    }

    /// Like [`Self::wait`], at most until this instant.
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(self.park(guard, Some(deadline)) == TIMED_OUT)
    }

    /// The waiters whose outcome is not decided yet.
    fn waiting(&self) -> Vec<Arc<Waiter>> {
        self.waiters.lock().iter().filter(|w| w.waits()).cloned().collect()
    }

    /// Wakes one waiter; `false` if there is none.
    #[track_caller]
    pub fn notify_one(&self) -> bool {
        let silent = is_broken(SyncOp::Notify);
        switch();
        let waiting = self.waiting();
        match waiting.len() as u64 {
            n if silent || n == 0 => false,
            n => {
                let any = (shuttle::rand::thread_rng().next_u64() % n) as usize;
                waiting[any].decide(NOTIFIED)
            }
        }
    }

    /// Wakes all waiters and returns their number.
    #[track_caller]
    pub fn notify_all(&self) -> usize {
        let silent = is_broken(SyncOp::Notify);
        switch();
        match silent {
            true => 0,
            false => self.waiting().iter().filter(|w| w.decide(NOTIFIED)).count(),
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether the wait ended without a notification.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
