//! Locks, atomics, threads and deadlines, from one place.
//!
//! A normal build re-exports parking_lot's locks and the standard library's atomics and threads,
//! without cost. With the feature `shuttle`, which only the concurrency models enable, the same
//! names belong to a scheduler: every operation on them is a point at which another thread can run,
//! and a run explores one schedule.
//!
//! Statistics, ids and clocks use the standard atomics: no decision depends on them, and each
//! operation would add a scheduling point.

#[cfg(feature = "shuttle")]
pub mod model;

/// Whether a concurrency model skips the step that follows; never in a normal build. It marks a
/// step that a program must do before it waits and that no operation on a lock shows.
#[cfg(not(feature = "shuttle"))]
#[inline]
#[must_use]
pub const fn is_step_skipped() -> bool {
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
    is_step_skipped,
    lock::{Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Instant,
};
#[cfg(feature = "shuttle")]
pub use shuttle::{thread, thread_local};
