//! Mutexes, locks of readers and writers, values that are made once.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::switch;

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
        switch();
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
