//! Random runs of queues, routers, watches, consumers and transactions against a simple model in
//! memory: after every step the engine must have the state of the model. Runs include restarts,
//! kills and power cuts; before a power cut everything is synced, so that the model knows the
//! surviving state.
//!
//! * `check`: compares the engine's state with the model's.
//! * `flaw`: deliberately wrong engines.
//! * `driver`, `lives`: execute steps on both sides; restarts and crashes.
//! * `jobs`, `readers`, `consumers`, `txns`: the steps of queues, of routers and watches, of
//!   consumers, of transactions.
//! * `model`: the model; its queue is that of `topics-model`.
//! * `shortage`: steps during a shortage.
//! * `step`: the operations and their choice.

mod check;
mod consumers;
mod driver;
mod flaw;
mod jobs;
mod lives;
mod model;
mod readers;
mod shortage;
mod step;
mod txns;

pub use flaw::Flaw;
pub use step::{Step, steps};

use crate::crash::panic_text;

/// Runs steps on an empty disk; returns the first problem.
#[must_use]
pub fn run(steps: &[Step], seed: u64) -> Option<String> {
    run_flawed(steps, seed, None).1
}

/// The same with a flaw: returns how often it took effect, and the first problem.
#[must_use]
pub fn run_flawed(steps: &[Step], seed: u64, flaw: Option<Flaw>) -> (usize, Option<String>) {
    let mut hits = 0;
    let go = std::panic::AssertUnwindSafe(|| {
        let mut driver = driver::Driver::new(seed, flaw);
        let mut found = None;
        for (i, step) in steps.iter().enumerate() {
            if let Err(problem) = driver.take(step) {
                found = Some(format!("step {i} {step:?}: {problem}"));
                break;
            }
        }
        let found = found.or_else(|| driver.finish().err().map(|e| format!("at the end: {e}")));
        hits = driver.hits;
        found
    });
    let found = std::panic::catch_unwind(go);
    let found = found.unwrap_or_else(|p| Some(format!("panic: {}", panic_text(&*p))));
    (hits, found)
}
