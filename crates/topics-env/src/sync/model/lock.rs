//! Mutexes, reader-writer locks and values that are initialised once.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::switch;

/// A mutex that is never poisoned.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// The inner value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    fn lock_inner(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the mutex is free and locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { mutex: self, inner: Some(self.lock_inner()) }
    }

    /// Locks the mutex if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = match self.0.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, inner: Some(inner) })
    }

    /// The inner value; `&mut` excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A locked mutex.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    /// None only while the guard is borrowed by a wait or by [`MutexGuard::unlocked`].
    inner: Option<shuttle::sync::MutexGuard<'a, T>>,
}

/// Locks the mutex again, also when the code that ran without it panics.
struct Relock<'g, 'a, T: ?Sized>(&'g mut MutexGuard<'a, T>);

impl<T: ?Sized> Drop for Relock<'_, '_, T> {
    fn drop(&mut self) {
        self.0.inner = Some(self.0.mutex.lock_inner());
    }
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Runs `f` with the mutex unlocked.
    pub fn unlocked<R>(this: &mut Self, f: impl FnOnce() -> R) -> R {
        let relock = Relock(this);
        relock.0.inner = None;
        f()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(inner) = &self.inner else { unreachable!("the guard is borrowed") };
        inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(inner) = &mut self.inner else { unreachable!("the guard is borrowed") };
        inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// A reader-writer lock that is never poisoned.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }

    /// The inner value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no thread writes. A thread that already reads must not call it.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the lock is free.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inner value; `&mut` excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value that is initialised once. A second caller waits for the initialisation.
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
    /// Creates one without a value.
    pub const fn new() -> Self {
        Self { making: Mutex::new(()), made: std::sync::OnceLock::new() }
    }

    /// The value, if it is initialised.
    pub fn get(&self) -> Option<&T> {
        switch();
        self.made.get()
    }

    /// Initialises the value, unless it has one: then `value` comes back as the error.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _one = self.making.lock();
        self.made.set(value)
    }

    /// The value; `make` initialises it first if needed.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(made) = self.get() {
            return made;
        }
        let _one = self.making.lock();
        if let Some(made) = self.made.get() {
            return made;
        }
        let made = make();
        // Two threads never enter the system's lock together: this call has no scheduling point.
        self.made.get_or_init(|| made)
    }
}
