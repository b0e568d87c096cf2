//! Every kind of call, every nth of them, every kind of failure.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use topics_sim::CallKind;
use topics_tests::crash::panic_text;
use topics_tests::faults::{Fault, calls, kinds, run};
use topics_tests::harness::{self, Outcome, random_seed, setting, sized, workload_seed};
use topics_tests::run::HookSpec;
use topics_tests::workloads::{ALL, Workload};

fn main() -> ExitCode {
    harness::main("faults", &[("failed_syncs", failed_syncs), ("failed_calls", failed_calls)])
}

/// Syncs of every workload fail, with their pages kept, lost and reverted: all syncs at the release
/// gate, every third at the full gate, every thirtieth at the quick gate.
fn failed_syncs() -> Outcome {
    over(CallKind::is_sync, step(30, 3))
}

/// Other calls of every workload fail, in every way: all calls at the release gate, one in 25 at
/// the full gate, one in 250 at the quick gate.
fn failed_calls() -> Outcome {
    over(|k| !k.is_sync(), step(250, 25))
}

/// One of this many calls fails.
fn step(quick: u64, full: u64) -> usize {
    setting("TOPICS_FAULT_STEP", sized(quick, full, 1)) as usize
}

type Job = (&'static Workload, Fault);

fn jobs(wanted: fn(CallKind) -> bool, step: usize) -> Vec<Job> {
    // The second seed chooses the failing calls.
    let offset = (random_seed() % 1_000_000) as usize;
    let mut jobs = Vec::new();
    for w in harness::selected("TOPICS_WORKLOAD", ALL, |w| w.name) {
        let rec = w.run(workload_seed(), HookSpec::None);
        for (call, n) in calls(&rec).into_iter().filter(|(k, _)| wanted(*k)) {
            for (i, kind) in kinds(call).into_iter().enumerate() {
                // Each kind of failure has another offset, so that together they cover more calls.
                let first = 1 + (i * 7 + jobs.len() + offset) % step;
                jobs.extend((first..=n).step_by(step).map(|nth| (w, Fault { call, nth, kind })));
            }
        }
    }
    if let Ok(one) = std::env::var("TOPICS_FAULT") {
        jobs.retain(|(_, f)| format!("{f:?}").contains(&one));
    }
    jobs
}

fn over(wanted: fn(CallKind) -> bool, step: usize) -> Outcome {
    let jobs = jobs(wanted, step);
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(BTreeMap::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some((i, &(w, fault))) = {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    jobs.get(i).map(|job| (i, job))
                } {
                    let job = std::panic::AssertUnwindSafe(|| {
                        run(w, workload_seed(), fault, &HookSpec::None)
                    });
                    let found = std::panic::catch_unwind(job)
                        .unwrap_or_else(|p| vec![format!("panic: {}", panic_text(&*p))]);
                    if !found.is_empty() {
                        failures.lock().unwrap().insert(i, found);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    let mut table: BTreeMap<(CallKind, String), (usize, usize)> = BTreeMap::new();
    for (i, (_, f)) in jobs.iter().enumerate() {
        let line = table.entry((f.call, format!("{:?}", f.kind))).or_default();
        line.0 += 1;
        line.1 += usize::from(failures.contains_key(&i));
    }
    for ((call, kind), (runs, failed)) in table {
        println!("  {call:?} {kind}: {runs} runs, {failed} fail");
    }
    println!("{} runs with a fault, seed {:#x}", jobs.len(), workload_seed());
    if failures.is_empty() { Ok(()) } else { Err(summary(&jobs, &failures).into()) }
}

/// The number of failures of each kind, with one of each in full.
fn summary(jobs: &[Job], failures: &BTreeMap<usize, Vec<String>>) -> String {
    let plain = |text: &String| text.replace(|c: char| c.is_ascii_digit(), "#");
    let mut by: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (i, found) in failures {
        let fault = jobs[*i].1;
        let told: String =
            found.iter().map(plain).find(|t| !t.starts_with("power")).unwrap_or_default();
        let kind = format!(
            "{:?} {:?} {}",
            fault.call,
            fault.kind,
            told.chars().take(80).collect::<String>()
        );
        by.entry(kind).or_default().push(*i);
    }
    let mut text = format!("{} of {} runs fail\n", failures.len(), jobs.len());
    for (kind, of) in by {
        text += &format!("  {} times {kind}\n", of.len());
        let (w, fault) = jobs[of[0]];
        text += &format!("    {} {fault:?}\n", w.name);
        failures[&of[0]].iter().take(5).for_each(|f| text += &format!("      {f}\n"));
    }
    text
}
