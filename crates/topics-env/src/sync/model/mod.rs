//! The scheduler's locks with the interface of the real ones, and faults of synchronisation.
//!
//! * `lock`: mutexes, reader-writer locks, values that are initialised once.
//! * `condvar`: condition variables.
//! * `atomic`: atomics.
//! * `time`: deadlines, and a clock that only a model advances.
//!
//! A *site* is a synchronising call of the program: a notification, a store, an atomic
//! read-modify-write. A run can skip one site, or tear it in two ([`break_site`]). A model whose
//! result does not change then proves nothing about that site.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::Location;

pub mod atomic;
pub(super) mod condvar;
pub(super) mod lock;
pub(super) mod time;

pub use self::time::time_passes;
pub use shuttle;

/// The kind of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SyncOp {
    /// A notification; broken, it wakes no thread.
    Notify,
    /// A store; broken, it stores nothing.
    Store,
    /// An atomic read-modify-write; broken, other threads can run in between.
    Change,
    /// A step before a wait; broken, it runs after the wait.
    Step,
}

/// A synchronising call in the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The file, from the root of the workspace.
    pub file: &'static str,
    pub line: u32,
    pub op: SyncOp,
}

thread_local! {
    // All threads of a run share one thread of the system.
    static SEEN: RefCell<BTreeSet<Site>> = const { RefCell::new(BTreeSet::new()) };
    static BROKEN: Cell<Option<Site>> = const { Cell::new(None) };
}

/// Breaks a site in the later runs on this thread; `None` breaks no site.
pub fn break_site(site: Option<Site>) {
    BROKEN.set(site);
}

/// The sites that the runs on this thread passed since the last call.
#[must_use]
pub fn visited_sites() -> BTreeSet<Site> {
    SEEN.take()
}

/// Resets the state for a new run: no waiters, no elapsed time.
pub fn begin() {
    time::begin();
}

/// Whether a model skips the step that follows.
#[track_caller]
#[must_use]
pub fn is_step_skipped() -> bool {
    is_broken(SyncOp::Step)
}

/// A point at which another thread can run.
fn switch() {
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

/// Whether the calling site is the broken one.
#[track_caller]
fn is_broken(op: SyncOp) -> bool {
    let at = Location::caller();
    let site = Site { file: at.file(), line: at.line(), op };
    SEEN.with_borrow_mut(|seen| seen.insert(site));
    BROKEN.get() == Some(site)
}
