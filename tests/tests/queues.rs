//! Crash states of every call of the workloads of queues and consumers.
//!
//! `TOPICS_QUEUE_STATES` is how many distinct disks are wanted in all.

use std::process::ExitCode;

use topics_tests::harness::{self, Outcome, seed, setting};
use topics_tests::queues::{ALL, enumerate, run};

fn main() -> ExitCode {
    harness::main("queues", &[("every_call", every_call)])
}

fn every_call() -> Outcome {
    let wanted = setting("TOPICS_QUEUE_STATES", 14_000) as usize;
    let only = std::env::var("TOPICS_WORKLOAD").ok();
    let (mut total, mut errors) = (0, Vec::new());
    for (name, workload) in ALL.iter().filter(|w| only.as_ref().is_none_or(|o| o == w.0)) {
        let script = run(*workload, seed());
        let report = enumerate(&script, seed(), wanted / ALL.len());
        println!(
            "{name}: {} calls, {} states, {} lost something, {} judged, {} failures",
            script.fs.ops_len(),
            report.states.len(),
            report.lost.len(),
            report.judged,
            report.failures.len()
        );
        if report.lost.is_empty() {
            errors.push(format!("{name}: nothing un-synced was ever lost"));
        }
        total += report.states.len();
        errors.extend(report.failures.iter().take(2).map(|f| format!("{name} {f}")));
    }
    println!("{total} distinct states");
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}
