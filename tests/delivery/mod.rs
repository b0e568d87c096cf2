//! Queues, routers, consumers and transactions across crashes: scripts that note calls and answers,
//! every crash state of their disks, and an oracle of what a recovery must serve.
//!
//! * `enumerate`: every call, every survival; crashes during recovery.
//! * `judge`: the oracle: compares the notes with the state after a recovery.
//! * `note`: the calls and their answers.
//! * `script`: drives an engine and takes notes.
//! * `see`: recovers a disk and probes it.
//! * `workloads`: the scripts.

mod enumerate;
mod judge;
pub mod note;
mod script;
pub mod see;
mod workloads;

use crate::run::HookSpec;

pub use enumerate::{Report, enumerate, first_failure, past, second};
pub use judge::judge;
pub use note::{Facts, Note, Past, Span, Unit};
pub use script::{Script, options};
pub use see::{Seen, see};
pub use workloads::{ALL, FIXTURE, Workload};

/// Runs a workload on an empty disk.
#[must_use]
pub fn run(workload: &Workload, seed: u64) -> Script {
    run_with(workload, seed, HookSpec::None)
}

/// The same with a hook.
#[must_use]
pub fn run_with(workload: &Workload, seed: u64, hook: HookSpec) -> Script {
    let mut script = Script::new(seed, workload.shards, hook);
    (workload.run)(&mut script);
    script.end();
    script
}
