//! A plain test runner: runs named tests in order, prints their figures, and counts the failures.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Instant;

use crate::crash::panic_text;

/// The result of a test: `Err` contains the reason of the failure.
pub type Outcome = Result<(), String>;

/// A named test.
pub type Test = (&'static str, fn() -> Outcome);

/// Runs the tests that the arguments select; returns the exit code.
#[must_use]
pub fn main(suite: &str, tests: &[Test]) -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return std::process::ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let unmatched: Vec<&&String> =
        filters.iter().filter(|f| !tests.iter().any(|t| t.0.contains(f.as_str()))).collect();
    if !unmatched.is_empty() {
        println!("{suite}: no test matches {unmatched:?}; `--list` prints the names");
        return std::process::ExitCode::FAILURE;
    }
    println!("{suite}: gate {:?}, seed {:#x}, random seed {:#x}", gate(), seed(), random_seed());
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests {
        if !filters.is_empty() && !filters.iter().any(|f| name.contains(f.as_str())) {
            continue;
        }
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(test))
            .unwrap_or_else(|p| Err(format!("panic: {}", panic_text(&*p))));
        let took = started.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("test {suite}::{name} ... ok ({took:.1} s)");
            }
            Err(e) => {
                failed += 1;
                println!("test {suite}::{name} ... FAILED ({took:.1} s)\n{e}");
            }
        }
    }
    println!("{suite}: {passed} passed, {failed} failed");
    if failed == 0 { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}

/// A number from the environment, or the default.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.replace('_', "").parse().ok(),
    };
    parsed.unwrap_or(default)
}

/// All items, or the one that an environment variable names.
///
/// # Panics
/// If it names none of them: a selection that matches nothing must not pass.
#[must_use]
pub fn selected<'a, T>(variable: &str, all: &'a [T], name: fn(&T) -> &str) -> Vec<&'a T> {
    let only = std::env::var(variable).ok();
    let found: Vec<&T> =
        all.iter().filter(|t| only.as_deref().is_none_or(|o| o == name(t))).collect();
    let names: Vec<&str> = all.iter().map(name).collect();
    assert!(!found.is_empty(), "{variable}={only:?}: expected one of {names:?}");
    found
}

/// How much of the programme runs (`TOPICS_GATE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `make test`: each suite at about a tenth of its commit size. The default.
    Quick,
    /// The tests that a commit must pass.
    Commit,
    /// Before a release: exhaustive where the commit gate samples.
    Release,
}

/// The gate of this run.
///
/// # Panics
/// If `TOPICS_GATE` is none of `quick`, `commit` and `release`.
#[must_use]
pub fn gate() -> Gate {
    match std::env::var("TOPICS_GATE").as_deref() {
        Err(_) | Ok("" | "quick") => Gate::Quick,
        Ok("commit") => Gate::Commit,
        Ok("release") => Gate::Release,
        Ok(other) => panic!("TOPICS_GATE={other:?}: expected quick, commit or release"),
    }
}

/// The size for the gate of this run.
#[must_use]
pub fn sized(quick: u64, commit: u64, release: u64) -> u64 {
    match gate() {
        Gate::Quick => quick,
        Gate::Commit => commit,
        Gate::Release => release,
    }
}

/// A random seed, one per process, so that runs explore more than the fixed seed does.
/// `TOPICS_RANDOM_SEED` repeats a run.
#[must_use]
pub fn random_seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let fresh = RandomState::new().hash_one(std::process::id());
        setting("TOPICS_RANDOM_SEED", fresh)
    })
}

/// The seed of a suite: `TOPICS_SEED`, or a fixed one, so that the result depends only on the code.
#[must_use]
pub fn seed() -> u64 {
    setting("TOPICS_SEED", 0x7091_c5ee_d001)
}
