//! The scheduler's locks with the faces of the real ones, and faults of synchronisation.
//!
//! * `lock`: mutexes, locks of readers and writers, values that are made once.
//! * `condvar`: condition variables.
//! * `atomic`: atomics.
//! * `time`: deadlines, and time that only a model lets pass.
//!
//! A *site* is a call of the program that synchronises: a notification, a store, a change that
//! reads and writes at once. A run can leave one of them out, or tear it in two ([`break_site`]): a
//! model that does not notice shows nothing about that site.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::Location;

pub mod atomic;
pub(super) mod condvar;
pub(super) mod lock;
pub(super) mod time;

pub use self::time::time_passes;
/// The scheduler.
pub use shuttle;

/// What a site does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// Wakes; broken, it does not.
    Notify,
    /// Stores; broken, it does not.
    Store,
    /// Reads and writes at once; broken, others may come between.
    Change,
    /// A step before a wait; broken, it comes after it.
    Step,
}

/// A place in the sources that synchronises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// The file, from the root of the workspace.
    pub file: &'static str,
    /// The line.
    pub line: u32,
    /// What is done there.
    pub deed: Deed,
}

thread_local! {
    // All threads of a run share one thread of the system.
    static SEEN: RefCell<BTreeSet<Site>> = const { RefCell::new(BTreeSet::new()) };
    static BROKEN: Cell<Option<Site>> = const { Cell::new(None) };
}

/// Breaks a site in the runs that follow on this thread, or none.
pub fn break_site(site: Option<Site>) {
    BROKEN.set(site);
}

/// The sites that the runs on this thread have passed since the last call.
#[must_use]
pub fn take_sites() -> BTreeSet<Site> {
    SEEN.take()
}

/// Begins a run: nobody waits, no time has passed.
pub fn begin() {
    time::begin();
}

/// Whether a model leaves out the step that follows.
#[track_caller]
#[must_use]
pub fn left_out() -> bool {
    broken(Deed::Step)
}

/// A point at which another thread may go on.
fn switch() {
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

/// Whether the site that is passed is broken.
#[track_caller]
fn broken(deed: Deed) -> bool {
    let at = Location::caller();
    let site = Site { file: at.file(), line: at.line(), deed };
    SEEN.with_borrow_mut(|seen| seen.insert(site));
    BROKEN.get() == Some(site)
}
