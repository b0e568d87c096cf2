//! Panic guards of background loops: a panic is counted and logged, and the loop continues.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A loop that has panicked since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopPanics {
    pub name: &'static str,
    /// How often.
    pub count: u64,
    /// The message of the last panic and the work that the loop was doing.
    pub last: String,
}

/// The message of a caught panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(pub String);

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a panic: {}", self.0)
    }
}

/// Pause between a panic of a loop and its restart, so that a loop that panics immediately does not
/// take all processor time.
const PAUSE: Duration = Duration::from_millis(100);

/// The guards of one engine: what they have caught.
#[derive(Debug, Default)]
pub struct Guards {
    caught: Mutex<BTreeMap<&'static str, (u64, String)>>,
    injected: Mutex<BTreeMap<&'static str, usize>>,
    armed: AtomicBool,
}

impl Guards {
    /// Runs one iteration of a loop. A panic in it is counted under the loop's name and logged with `at`,
    /// a description of the current work.
    ///
    /// After a panic the changes of `f` may be incomplete: the caller repairs or closes what it changed.
    /// Under the concurrency model checker a panic is the result of a model and is not caught.
    pub fn run<R>(
        &self,
        name: &'static str,
        at: impl FnOnce() -> String,
        f: impl FnOnce() -> R,
    ) -> Result<R, Panicked> {
        let body = || {
            self.fail_if_injected(name);
            f()
        };
        if cfg!(feature = "shuttle") {
            return Ok(body());
        }
        catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("no text").to_owned();
            let at = at();
            log::error!("{name} panicked at {at} and continues: {text}");
            let mut caught = self.caught.lock().unwrap_or_else(|e| e.into_inner());
            let entry = caught.entry(name).or_default();
            entry.0 += 1;
            entry.1 = format!("{at}: {text}");
            Panicked(text)
        })
    }

    /// Runs the body of a thread again, after a pause, until it ends without a panic.
    pub fn run_loop(&self, name: &'static str, mut body: impl FnMut()) {
        while self.run(name, || "between two iterations".into(), &mut body).is_err() {
            std::thread::sleep(PAUSE);
        }
    }

    /// The loops that have panicked, by name.
    #[must_use]
    pub fn panics(&self) -> Vec<LoopPanics> {
        let caught = self.caught.lock().unwrap_or_else(|e| e.into_inner());
        let of = |(name, (count, last)): (&&'static str, &(u64, String))| LoopPanics {
            name,
            count: *count,
            last: last.clone(),
        };
        caught.iter().map(of).collect()
    }

    /// Makes the next `iterations` iterations of a loop panic. Only tests do.
    pub fn inject(&self, name: &'static str, iterations: usize) {
        self.injected.lock().unwrap_or_else(|e| e.into_inner()).insert(name, iterations);
        self.armed.store(true, Ordering::Release);
    }

    #[allow(clippy::panic, reason = "a test asked for it")]
    fn fail_if_injected(&self, name: &'static str) {
        if !self.armed.load(Ordering::Acquire) {
            return;
        }
        let mut injected = self.injected.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(left) = injected.get_mut(name).filter(|n| **n > 0) {
            *left -= 1;
            drop(injected);
            panic!("injected into {name}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_and_the_next_iteration_runs() {
        let guards = Guards::default();
        guards.inject("sweep", 2);
        let turn = || guards.run("sweep", || "topic \"a\"".into(), || 7);
        assert_eq!((turn(), turn(), turn()).2, Ok(7));
        let other = guards.run("claims", String::new, || panic!("at {}", 1));
        assert_eq!(other, Err::<(), _>(Panicked("at 1".into())));
        let seen: Vec<_> = guards.panics().into_iter().map(|p| (p.name, p.count, p.last)).collect();
        let sweep = "topic \"a\": injected into sweep".to_owned();
        assert_eq!(seen, [("claims", 1, ": at 1".to_owned()), ("sweep", 2, sweep)]);
    }
}
