//! Queues, routers, consumers and transactions through crashes: scripts that note what was promised, every
//! crash state of the disk under them, and what a recovery must show.
//!
//! * `enumerate`: every call, every survival; crashes in recovery.
//! * `judge`: the oracle: what was noted against what a recovery shows.
//! * `note`: what was called and answered.
//! * `script`: drives an engine and notes.
//! * `see`: recovers a disk and probes it.
//! * `workloads`: the scripts.

mod enumerate;
mod judge;
mod note;
mod script;
mod see;
#[cfg(test)]
mod tests;
mod workloads;

use crate::run::HookSpec;

pub use enumerate::{Report, enumerate, first_failure, second};
pub use judge::judge;
pub use note::{Facts, Note, Past, Span, Unit};
pub use script::{Script, options};
pub use see::{Seen, see};
pub use workloads::{ALL, Workload};

/// Runs a workload on an empty disk.
#[must_use]
pub fn run(workload: &Workload, seed: u64) -> Script {
    run_with(workload, seed, HookSpec::None)
}

/// The same under a hook.
#[must_use]
pub fn run_with(workload: &Workload, seed: u64, hook: HookSpec) -> Script {
    let mut script = Script::new(seed, workload.shards, hook);
    (workload.run)(&mut script);
    script.end();
    script
}
