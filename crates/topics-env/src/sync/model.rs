//! The scheduler's locks with parking_lot's faces.
//!
//! A wait with a time limit ends when it is notified, or when a model says that time has passed
//! ([`time_passes`]): deadlines are not compared. A condition variable wakes nobody by itself, as
//! parking_lot's does not, and `notify_one` wakes any of those that wait.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};
use shuttle::rand::RngCore;

pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

/// A mutex that is never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A free mutex.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// What it held.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    fn hold(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, held: Some(self.hold()) }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.0.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, held: Some(held) })
    }

    /// What it holds; nobody else can have it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mutex that is held.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// None only while the guard is borrowed by a wait or by [`MutexGuard::unlocked`].
    held: Option<shuttle::sync::MutexGuard<'a, T>>,
}

/// Takes the mutex again, even where what ran without it unwinds.
struct Relock<'g, 'a, T: ?Sized>(&'g mut MutexGuard<'a, T>);

impl<T: ?Sized> Drop for Relock<'_, '_, T> {
    fn drop(&mut self) {
        self.0.held = Some(self.0.mutex.hold());
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Runs `f` while the mutex is free.
    pub fn unlocked<R>(this: &mut Self, f: impl FnOnce() -> R) -> R {
        let relock = Relock(this);
        relock.0.held = None;
        f()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(held) = &self.held else { unreachable!("the guard is borrowed") };
        held
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(held) = &mut self.held else { unreachable!("the guard is borrowed") };
        held
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A lock of readers and writers that is never poisoned.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }

    /// What it held.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes. A thread that reads already must not.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is free.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it holds; nobody else can have it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value that is made once. Who finds it being made waits.
#[derive(Debug)]
pub struct OnceLock<T> {
    making: Mutex<()>,
    made: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> OnceLock<T> {
    /// Without a value.
    pub const fn new() -> Self {
        Self { making: Mutex::new(()), made: std::sync::OnceLock::new() }
    }

    /// The value, if it has been made.
    pub fn get(&self) -> Option<&T> {
        shuttle::thread::sleep(Duration::ZERO);
        self.made.get()
    }

    /// The value, which `make` makes unless it is there.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(made) = self.get() {
            return made;
        }
        let _one = self.making.lock();
        if let Some(made) = self.made.get() {
            return made;
        }
        let made = make();
        // The system's is never entered by two at once: nothing is scheduled within.
        self.made.get_or_init(|| made)
    }
}

const WAITING: u8 = 0;
const NOTIFIED: u8 = 1;
const TIMED_OUT: u8 = 2;

/// A thread that waits; its fate is decided once.
#[derive(Debug)]
struct Waiter {
    fate: AtomicU8,
    wake: BatchSemaphore,
}

impl Waiter {
    /// Whether this call was the one that decided.
    fn decide(&self, fate: u8) -> bool {
        let decided =
            self.fate.compare_exchange(WAITING, fate, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if decided {
            self.wake.release(1);
        }
        decided
    }

    fn waits(&self) -> bool {
        self.fate.load(Ordering::SeqCst) == WAITING
    }
}

thread_local! {
    /// Who waits with a time limit. All threads of a run share one thread of the system.
    static TIMED: RefCell<Vec<Weak<Waiter>>> = const { RefCell::new(Vec::new()) };
}

/// Lets time pass: every wait with a time limit that has begun and was not notified ends.
pub fn time_passes() {
    let timed = TIMED.take();
    for waiter in timed.iter().filter_map(Weak::upgrade) {
        waiter.decide(TIMED_OUT);
    }
}

/// A condition variable.
#[derive(Default)]
pub struct Condvar {
    /// The system's lock: never held across a scheduling point.
    waiters: parking_lot::Mutex<Vec<Arc<Waiter>>>,
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condvar").finish_non_exhaustive()
    }
}

impl Condvar {
    /// One that nobody waits for.
    pub const fn new() -> Self {
        Self { waiters: parking_lot::Mutex::new(Vec::new()) }
    }

    fn park<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timed: bool) -> u8 {
        let waiter = Arc::new(Waiter {
            fate: AtomicU8::new(WAITING),
            wake: BatchSemaphore::new(0, Fairness::Unfair),
        });
        self.waiters.lock().push(waiter.clone());
        if timed {
            TIMED.with_borrow_mut(|t| t.push(Arc::downgrade(&waiter)));
        }
        MutexGuard::unlocked(guard, || {
            // An error means that the run is being torn down.
            let _ = waiter.wake.acquire_blocking(1);
        });
        self.waiters.lock().retain(|w| !Arc::ptr_eq(w, &waiter));
        waiter.fate.load(Ordering::SeqCst)
    }

    /// Frees the mutex, waits to be notified, and takes it again.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.park(guard, false);
    }

    /// As [`Self::wait`], until time has passed.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _limit: Duration,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(self.park(guard, true) == TIMED_OUT)
    }

    /// As [`Self::wait`], until time has passed.
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _deadline: Instant,
    ) -> WaitTimeoutResult {
        WaitTimeoutResult(self.park(guard, true) == TIMED_OUT)
    }

    /// Wakes one of those that wait; whether there was one.
    pub fn notify_one(&self) -> bool {
        let mut waiting: Vec<_> = self.waiters.lock().clone();
        waiting.retain(|w| w.waits());
        match waiting.len() as u64 {
            0 => false,
            n => {
                let any = (shuttle::rand::thread_rng().next_u64() % n) as usize;
                waiting[any].decide(NOTIFIED)
            }
        }
    }

    /// Wakes all that wait; how many they were.
    pub fn notify_all(&self) -> usize {
        let waiting: Vec<_> = self.waiters.lock().clone();
        waiting.iter().filter(|w| w.decide(NOTIFIED)).count()
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it was not notified in time.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}
