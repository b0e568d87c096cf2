//! A plain test runner: named tests in order, their figures on stdout, a count at the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::crash::panic_text;

/// What a test returns: `Err` says what failed.
pub type Outcome = Result<(), String>;

/// A named test.
pub type Test = (&'static str, fn() -> Outcome);

/// Runs the tests that the arguments select; the value is the exit code.
#[must_use]
pub fn main(suite: &str, tests: &[Test]) -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return std::process::ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
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

/// A number from the environment, or this one.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_default();
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.replace('_', "").parse().ok(),
    };
    parsed.unwrap_or(default)
}

/// The seed of a suite: `TOPICS_SEED`, or a fixed one, so that a commit is judged by what it is.
#[must_use]
pub fn seed() -> u64 {
    setting("TOPICS_SEED", 0x7091_c5ee_d001)
}

/// A seed that no run had before, or `TOPICS_SEED`: for suites that explore. Print it.
#[must_use]
pub fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let random = crate::run::Dice::new(now.map_or(0, |t| t.as_nanos() as u64)).roll();
    setting("TOPICS_SEED", random)
}

/// Whether everything is to be run: `TOPICS_GATE=release`.
#[must_use]
pub fn release() -> bool {
    std::env::var("TOPICS_GATE").is_ok_and(|g| g == "release")
}
