//! Queues and consumers through crashes: scripts that note what was promised, every crash state of
//! the disk under them, and what a recovery must show.
//!
//! * `script`: drives an engine and notes calls and answers.
//! * `judge`: what is noted against what a recovery shows (I6, I8).
//! * `workloads`: the scripts.

mod judge;
mod script;
mod workloads;

use std::collections::HashSet;
use std::sync::Arc;

use topics_env::sim::{CrashOptions, DiskImage, Survival};

pub use judge::judge;
pub use script::{Note, Script};
pub use workloads::ALL;

/// What an enumeration found.
#[derive(Debug, Default)]
pub struct Report {
    /// Distinct disks.
    pub states: HashSet<u64>,
    /// Disks that lost something un-synced.
    pub lost: HashSet<u64>,
    pub judged: usize,
    pub failures: Vec<String>,
}

/// Judges every crash state of a finished script; more random survivals until there are `wanted`.
pub fn enumerate(script: &Script, seed: u64, wanted: usize) -> Report {
    let mut report = Report::default();
    let mut options = CrashOptions::default();
    for round in 0..5u64 {
        walk(script, seed ^ (round << 48), &options, &mut report);
        if report.states.len() >= wanted || !report.failures.is_empty() {
            break;
        }
        options = CrashOptions {
            random: options.random * 2,
            torn_bytes: options.torn_bytes * 2,
            ..options
        };
    }
    report
}

fn walk(script: &Script, seed: u64, options: &CrashOptions, report: &mut Report) {
    let mut cursor = script.fs.crash_cursor();
    for at in 0..=script.fs.ops_len() {
        cursor.seek(at);
        let mut states: Vec<(Survival, DiskImage, bool)> = Vec::new();
        let killed = cursor.image(Survival::KeepAll).with_boot(1).with_mount(1);
        states.push((Survival::KeepAll, killed, true));
        cursor.states(seed, options, &mut |s| states.push((s.survival, s.image, false)));
        for (survival, image, killed) in states {
            let hash = image.hash();
            let lost = image.lost_something();
            // What was promised differs from call to call: the same disk is judged again.
            report.judged += 1;
            report.states.insert(hash);
            if lost {
                report.lost.insert(hash);
            }
            let problems = judge(script, at, &image, killed);
            if !problems.is_empty() && report.failures.len() < 6 {
                let call = at.checked_sub(1).map(|i| script.fs.describe_op(i));
                let mut text =
                    format!("after call {at} ({call:?}), {survival:?}, killed {killed}:");
                problems.iter().take(6).for_each(|p| text += &format!("\n    {p}"));
                report.failures.push(text);
            }
        }
        if report.failures.len() >= 6 {
            return;
        }
    }
}

/// Runs a workload on an empty disk.
pub fn run(workload: fn(&mut Script), seed: u64) -> Script {
    let mut script = Script::new(seed);
    workload(&mut script);
    script.end();
    script
}

/// The clock of a recovery.
pub(crate) fn clock(wall: u64) -> Arc<topics_env::sim::SimClock> {
    Arc::new(topics_env::sim::SimClock::new(wall))
}
