//! Locks, atomics, threads and deadlines, from one place.
//!
//! A normal build re-exports parking_lot's locks and the standard library's atomics and threads:
//! the names are theirs and cost nothing. With the feature `shuttle`, which only the concurrency
//! models turn on, the same names are a scheduler's: every operation on them is a point at which
//! another thread may go on, and a run explores one of the schedules.
//!
//! Statistics, ids and clocks keep the standard atomics: nothing is decided on them, and each
//! would be one more scheduling point.

#[cfg(feature = "shuttle")]
pub mod model;

/// Whether a model leaves out the step that follows: never in a normal build. It names what a
/// program must do before it waits, where no operation on a lock shows that.
#[cfg(not(feature = "shuttle"))]
#[inline]
#[must_use]
pub const fn left_out() -> bool {
    false
}

#[cfg(not(feature = "shuttle"))]
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
#[cfg(not(feature = "shuttle"))]
pub use std::{sync::OnceLock, sync::atomic, thread, thread_local, time::Instant};

#[cfg(feature = "shuttle")]
pub use self::model::{
    atomic,
    condvar::{Condvar, WaitTimeoutResult},
    left_out,
    lock::{Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Instant,
};
#[cfg(feature = "shuttle")]
pub use shuttle::{thread, thread_local};
