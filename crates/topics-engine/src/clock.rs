//! Time as retention sees it: the wall clock, guarded against steps.

use std::sync::Arc;

use topics_env::Clock;
use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, Ordering};

/// A step of the wall clock against the monotonic one that is larger than this is not believed at
/// once.
const STEP_MS: u64 = 3_600_000;
/// How long a step must persist to be believed.
const PERSIST_MS: u64 = 600_000;

#[derive(Debug)]
struct Guard {
    wall: u64,
    mono: u64,
    stepped_at: Option<u64>,
}

/// The engine's clock.
#[derive(Debug)]
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    guard: Mutex<Guard>,
    steps: AtomicU64,
}

impl Time {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let guard = Guard { wall: clock.wall_ms(), mono: mono_ms(&*clock), stepped_at: None };
        Self { clock, guard: Mutex::new(guard), steps: AtomicU64::new(0) }
    }

    /// The wall clock, for commit times (which never decrease within a topic all the same).
    pub(crate) fn wall(&self) -> u64 {
        self.clock.wall_ms()
    }

    /// Nanoseconds that never go back.
    pub(crate) fn mono_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    /// Milliseconds that never go back.
    pub(crate) fn mono_ms(&self) -> u64 {
        mono_ms(&*self.clock)
    }

    /// The time that expiry goes by. A step of more than an hour is followed only after it has
    /// persisted for ten minutes; until then time goes on from before the step.
    pub(crate) fn steady(&self) -> u64 {
        let (wall, mono) = (self.wall(), self.mono_ms());
        let mut g = self.guard.lock();
        let expected = g.wall + mono.saturating_sub(g.mono);
        if wall.abs_diff(expected) > STEP_MS {
            match g.stepped_at {
                None => {
                    g.stepped_at = Some(mono);
                    self.steps.fetch_add(1, Ordering::Relaxed);
                    log::warn!(
                        "the wall clock stepped from {expected} to {wall} ms: expiry waits for it \
                         to persist"
                    );
                    return expected;
                }
                Some(at) if mono.saturating_sub(at) < PERSIST_MS => return expected,
                Some(_) => {}
            }
        }
        *g = Guard { wall, mono, stepped_at: None };
        wall
    }

    /// Steps of the wall clock seen.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}

fn mono_ms(clock: &dyn Clock) -> u64 {
    clock.mono_ns() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Hands {
        wall: AtomicU64,
        mono: AtomicU64,
    }

    impl Clock for Hands {
        fn wall_ms(&self) -> u64 {
            self.wall.load(Ordering::Relaxed)
        }
        fn mono_ns(&self) -> u64 {
            self.mono.load(Ordering::Relaxed) * 1_000_000
        }
    }

    impl Hands {
        fn pass(&self, ms: u64) {
            self.wall.fetch_add(ms, Ordering::Relaxed);
            self.mono.fetch_add(ms, Ordering::Relaxed);
        }
    }

    const YEARS: u64 = 10 * 365 * 86_400_000;

    #[test]
    fn small_steps_are_followed() {
        let h = Arc::new(Hands::default());
        h.pass(YEARS);
        let t = Time::new(h.clone());
        h.wall.fetch_add(STEP_MS, Ordering::Relaxed);
        assert_eq!(t.steady(), t.wall());
        h.wall.fetch_sub(STEP_MS, Ordering::Relaxed);
        assert_eq!(t.steady(), t.wall());
        assert_eq!(t.steps(), 0);
    }

    #[test]
    fn a_large_step_must_persist() {
        for up in [true, false] {
            let h = Arc::new(Hands::default());
            h.pass(2 * YEARS);
            let t = Time::new(h.clone());
            let before = t.steady();
            if up {
                h.wall.fetch_add(YEARS, Ordering::Relaxed);
            } else {
                h.wall.fetch_sub(YEARS, Ordering::Relaxed);
            }
            assert_eq!(t.steady(), before);
            h.pass(PERSIST_MS - 1);
            assert_eq!(t.steady(), before + PERSIST_MS - 1);
            h.pass(1);
            assert_eq!(t.steady(), t.wall());
            assert_eq!(t.steps(), 1);
        }
    }

    #[test]
    fn a_step_that_goes_back_is_forgotten() {
        let h = Arc::new(Hands::default());
        h.pass(YEARS);
        let t = Time::new(h.clone());
        h.wall.fetch_add(YEARS, Ordering::Relaxed);
        t.steady();
        h.pass(1000);
        h.wall.fetch_sub(YEARS, Ordering::Relaxed);
        assert_eq!(t.steady(), t.wall());
        h.pass(PERSIST_MS);
        assert_eq!(t.steady(), t.wall());
    }
}
