//! Random operations against the oracle: at most 50 each, restarts and crashes among them.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use topics_tests::harness::{self, Outcome, seed, setting};
use topics_tests::model::{kind, shrink, steps, try_run};
use topics_tests::run::Dice;

fn main() -> ExitCode {
    harness::main("model", &[("random_runs", random_runs)])
}

/// `TOPICS_MODEL_RUNS` runs (20 000); a failing one is shown as its smallest part.
fn random_runs() -> Outcome {
    let wanted = setting("TOPICS_MODEL_RUNS", 20_000) as usize;
    let mut dice = Dice::new(seed());
    let seeds: Vec<u64> = (0..wanted).map(|_| dice.roll()).collect();
    let seeds = match setting("TOPICS_MODEL_SEED", 0) {
        0 => seeds,
        one => vec![one],
    };
    let (next, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let steps = steps(seed, 50);
                    total.fetch_add(steps.len(), Ordering::SeqCst);
                    let found = try_run(&steps, seed).0;
                    if !found.is_empty() {
                        failed.lock().unwrap().push((seed, found));
                    }
                }
            });
        }
    });
    println!(
        "{} runs, {} operations, seed {:#x}",
        seeds.len(),
        total.into_inner(),
        harness::seed()
    );
    let failed = failed.into_inner().unwrap();
    if failed.is_empty() {
        return Ok(());
    }
    let mut kinds: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for (seed, found) in &failed {
        kinds.entry(kind(&found[0])).or_default().push(*seed);
    }
    let mut text = format!("{} of {} runs fail\n", failed.len(), seeds.len());
    let shown = setting("TOPICS_SHOW", 3) as usize;
    for (i, (kind, seeds)) in kinds.iter().enumerate() {
        text += &format!("{} x {kind}\n", seeds.len());
        if i < shown {
            text += &trace(seeds[0]);
        }
    }
    Err(text)
}

/// A failing run as its smallest part: the steps, the calls and answers, and what is wrong.
fn trace(seed: u64) -> String {
    let small = shrink(&steps(seed, 50), seed);
    let (found, events) = try_run(&small, seed);
    let mut text = format!("  TOPICS_MODEL_SEED={seed:#x}\n");
    small.iter().for_each(|s| text += &format!("      {s:?}\n"));
    events.iter().for_each(|e| text += &format!("      {}\n", e.line()));
    found.iter().take(4).for_each(|f| text += &format!("    {f}\n"));
    text
}
