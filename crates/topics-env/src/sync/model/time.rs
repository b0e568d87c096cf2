//! Deadlines, and a clock that only a model advances.

use std::cell::{Cell, RefCell};
use std::ops::Add;
use std::sync::Weak;
use std::time::Duration;

use super::condvar::Waiter;

thread_local! {
    // All threads of a run share one thread of the system.
    static NOW: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static TIMED: RefCell<Vec<(Instant, Weak<Waiter>)>> = const { RefCell::new(Vec::new()) };
}

/// A point in the time of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// The current time of the run.
    #[must_use]
    pub fn now() -> Self {
        Self(NOW.get())
    }

    /// The instant after a duration.
    #[must_use]
    pub fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// The duration since an earlier instant.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

pub(super) fn begin() {
    NOW.set(Duration::ZERO);
    TIMED.take();
}

/// Sets the deadline of a waiting thread.
pub(super) fn limit(at: Instant, waiter: Weak<Waiter>) {
    TIMED.with_borrow_mut(|t| t.push((at, waiter)));
}

/// Advances the clock: waits whose deadline has passed end.
pub fn time_passes(time: Duration) {
    super::switch();
    NOW.set(NOW.get().saturating_add(time));
    let all = TIMED.take();
    let (due, later): (Vec<_>, Vec<_>) = all.into_iter().partition(|t| t.0 <= Instant::now());
    TIMED.with_borrow_mut(|t| t.extend(later));
    for waiter in due.iter().filter_map(|t| t.1.upgrade()) {
        waiter.time_out();
    }
}
