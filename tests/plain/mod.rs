//! Random runs of queues, routers, watches and consumers against a plain model in memory: after
//! every step the engine shows what the model says. Restarts, kills and power cuts among them;
//! what is not synced is synced before a power cut, so that the model knows what is left.
//!
//! * `check`: the engine's state against the model's.
//! * `hand`: takes steps on both sides.
//! * `jobs`, `readers`: the steps of queues; those of routers, watches and consumers.
//! * `model`, `queue`: the model; that of the queue.
//! * `step`: the operations and their choice.

mod check;
mod hand;
mod jobs;
mod model;
mod queue;
mod readers;
mod step;

pub use step::{Step, steps};

use crate::crash::panic_text;

/// Runs steps on an empty disk; what is wrong first.
#[must_use]
pub fn run(steps: &[Step], seed: u64) -> Option<String> {
    let go = std::panic::AssertUnwindSafe(|| {
        let mut hand = hand::Hand::new(seed);
        for (i, step) in steps.iter().enumerate() {
            if let Err(problem) = hand.take(step) {
                return Some(format!("step {i} {step:?}: {problem}"));
            }
        }
        hand.finish().err().map(|e| format!("at the end: {e}"))
    });
    std::panic::catch_unwind(go).unwrap_or_else(|p| Some(format!("panic: {}", panic_text(&*p))))
}
