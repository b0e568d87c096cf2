//! Every kind of call, every nth of them, every way to fail.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use topics_env::sim::CallKind;
use topics_tests::faults::{Fault, calls, kinds, run};
use topics_tests::harness::{self, Outcome, seed, setting};
use topics_tests::run::HookSpec;
use topics_tests::workloads::{ALL, Workload};

fn main() -> ExitCode {
    harness::main("faults", &[("failed_syncs", failed_syncs), ("failed_calls", failed_calls)])
}

/// Every sync of every workload fails, its pages kept, lost and reverted.
fn failed_syncs() -> Outcome {
    over(CallKind::is_sync, 1)
}

/// Every other call of every workload fails, in every way it can.
fn failed_calls() -> Outcome {
    over(|k| !k.is_sync(), setting("TOPICS_FAULT_STEP", 1) as usize)
}

fn over(wanted: fn(CallKind) -> bool, step: usize) -> Outcome {
    let mut jobs: Vec<(&'static Workload, Fault)> = Vec::new();
    let only = std::env::var("TOPICS_WORKLOAD").ok();
    for w in ALL.iter().filter(|w| only.as_ref().is_none_or(|o| o == w.name)) {
        let rec = w.run(seed(), HookSpec::None);
        for (call, n) in calls(&rec).into_iter().filter(|(k, _)| wanted(*k)) {
            for kind in kinds(call) {
                jobs.extend((1..=n).step_by(step).map(|nth| (w, Fault { call, nth, kind })));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(BTreeMap::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    let Some(&(w, fault)) = jobs.get(i) else { break };
                    let job =
                        std::panic::AssertUnwindSafe(|| run(w, seed(), fault, &HookSpec::None));
                    let found = std::panic::catch_unwind(job).unwrap_or_else(|p| {
                        vec![format!("panic: {}", topics_tests::crash::panic_text(&*p))]
                    });
                    if !found.is_empty() {
                        failures.lock().unwrap().insert(i, (w.name, fault, found));
                    }
                }
            });
        }
    });
    let mut by: BTreeMap<(CallKind, String), usize> = BTreeMap::new();
    jobs.iter().for_each(|(_, f)| *by.entry((f.call, format!("{:?}", f.kind))).or_default() += 1);
    by.iter().for_each(|((call, kind), n)| println!("  {call:?} {kind}: {n} runs"));
    let failures = failures.into_inner().unwrap();
    if failures.is_empty() {
        println!("{} runs with a fault, seed {:#x}", jobs.len(), seed());
        return Ok(());
    }
    let mut text = format!("{} of {} runs fail\n", failures.len(), jobs.len());
    for (name, fault, found) in failures.values().take(8) {
        text += &format!("  {name} {fault:?}\n");
        found.iter().take(5).for_each(|f| text += &format!("    {f}\n"));
    }
    Err(text)
}
