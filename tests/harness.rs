//! A plain test runner: runs named tests in order, prints their figures, and counts the failures.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Instant;

use crate::crash::panic_text;

/// Why a test did not pass.
#[derive(Debug)]
pub enum NotPassed {
    /// The reason of the failure.
    Failed(String),
    /// What this machine or this gate lacks. The run goes on, and the verdict counts the test.
    Skipped(String),
}

impl From<String> for NotPassed {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<&str> for NotPassed {
    fn from(reason: &str) -> Self {
        Self::Failed(reason.to_owned())
    }
}

/// The result of a test.
pub type Outcome = Result<(), NotPassed>;

/// The result of a test that cannot run here.
pub fn skipped(reason: impl Into<String>) -> Outcome {
    Err(NotPassed::Skipped(reason.into()))
}

/// The result of a test that collected these failures.
pub fn all_or(errors: &[String]) -> Outcome {
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n").into()) }
}

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
    println!("{suite}: gate {:?}, seed {:#x}, {}", gate(), seed(), random_seed_text());
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, test) in tests {
        if !filters.is_empty() && !filters.iter().any(|f| name.contains(f.as_str())) {
            continue;
        }
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(test))
            .unwrap_or_else(|p| Err(format!("panic: {}", panic_text(&*p)).into()));
        let took = started.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => {
                passed += 1;
                println!("test {suite}::{name} ... ok ({took:.1} s)");
            }
            Err(NotPassed::Failed(e)) => {
                failed += 1;
                println!("test {suite}::{name} ... FAILED ({took:.1} s)\n{e}");
            }
            Err(NotPassed::Skipped(reason)) => {
                skipped += 1;
                println!("test {suite}::{name} ... skipped: {reason}");
            }
        }
    }
    println!("{suite}: {passed} passed, {failed} failed, {skipped} skipped");
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
    /// Each suite at about a tenth of its full size, with the same verdict in every run of the same
    /// tree. The default; a commit must pass it.
    Quick,
    /// The whole programme at its commit size, with the same verdict in every run.
    Full,
    /// The size of `Full` with random seeds.
    Explore,
    /// Before a release: exhaustive where the full gate samples, with random seeds.
    Release,
}

impl Gate {
    /// Whether runs of the same tree differ: seeds are random.
    #[must_use]
    pub fn explores(self) -> bool {
        matches!(self, Self::Explore | Self::Release)
    }
}

/// The gate of this run.
///
/// # Panics
/// If `TOPICS_GATE` names no gate.
#[must_use]
pub fn gate() -> Gate {
    match std::env::var("TOPICS_GATE").as_deref() {
        Err(_) | Ok("" | "quick") => Gate::Quick,
        Ok("full") => Gate::Full,
        Ok("explore") => Gate::Explore,
        Ok("release") => Gate::Release,
        Ok(other) => panic!("TOPICS_GATE={other:?}: expected quick, full, explore or release"),
    }
}

/// The size for the gate of this run; `explore` has that of `full`.
#[must_use]
pub fn sized(quick: u64, full: u64, release: u64) -> u64 {
    match gate() {
        Gate::Quick => quick,
        Gate::Full | Gate::Explore => full,
        Gate::Release => release,
    }
}

/// The variable that sets the random seed, to repeat a run.
const RANDOM_SEED: &str = "TOPICS_RANDOM_SEED";

/// Whether `TOPICS_RANDOM_SEED` sets the seed of this run.
#[must_use]
pub fn repeats_seed() -> bool {
    std::env::var(RANDOM_SEED).is_ok_and(|v| !v.is_empty())
}

/// Whether [`random_seed`] is random or set for this run, instead of fixed.
fn has_random_seed() -> bool {
    gate().explores() || repeats_seed()
}

/// The second seed of a run. Where the gate explores, it is random, one per process, so that runs
/// explore more than [`seed`] does; `TOPICS_RANDOM_SEED` repeats one. Otherwise it is fixed.
#[must_use]
pub fn random_seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let default = if has_random_seed() {
            RandomState::new().hash_one(std::process::id()) // random: where the gate explores
        } else {
            0x2bad_5eed_0c0d_e002
        };
        setting(RANDOM_SEED, default)
    })
}

/// [`random_seed`] for the output; it is called random only where it is.
#[must_use]
pub fn random_seed_text() -> String {
    let kind = if has_random_seed() { "random" } else { "second" };
    format!("{kind} seed {:#x}", random_seed())
}

/// The fixed seed of a suite, or the one that `TOPICS_SEED` sets: the result depends only on the
/// code.
#[must_use]
pub fn seed() -> u64 {
    setting("TOPICS_SEED", 0x7091_c5ee_d001)
}

/// The seed of the suites that judge any workload: [`seed`], but the random one at the explore gate,
/// where a repetition of the full gate would show nothing new.
#[must_use]
pub fn workload_seed() -> u64 {
    if gate() == Gate::Explore { random_seed() } else { seed() }
}
