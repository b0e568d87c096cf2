//! Full disks: a real engine with its threads, in a process of its own, on a small tmpfs.
//!
//! At the release gate 20 runs of every scenario, ending and size, at the full gate one of every
//! scenario and ending, at the quick gate one of every scenario; `no_byte` opens a directory without a
//! free byte. The threads of the engine are real, so runs of the same seed differ; what is judged are
//! guarantees, which hold in all of them. `TOPICS_RUNS` says how many,
//! `TOPICS_RANDOM_SEED` repeats a seed, `TOPICS_ENDING` (`close`, `kill`, `still_full`) runs one
//! ending alone, `TOPICS_DISK_MB` another size. `TOPICS_TRACE` prints the journals.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use topics_tests::harness::{self, Gate, Outcome, gate, random_seed_text, setting, sized, skipped};
use topics_tests::realfs::child::{self, Task};
use topics_tests::realfs::full_disk::{Case, Ending};
use topics_tests::realfs::mount::Mounted;
use topics_tests::realfs::scenario::{Scale, Scenario};
use topics_tests::run::Dice;

fn main() -> ExitCode {
    if let Some(task) = Task::from_args() {
        return child::main(&task);
    }
    harness::main(
        "full_disk",
        &[
            ("appends", || runs(Scenario::Appends)),
            ("delete_behind", || runs(Scenario::DeleteBehind)),
            ("creation", || runs(Scenario::Creation)),
            ("dead_letters", || runs(Scenario::DeadLetters)),
            ("router", || runs(Scenario::Router)),
            ("transactions", || runs(Scenario::Transactions)),
            ("descriptors", || runs(Scenario::Descriptors)),
            ("file_size", || runs(Scenario::FileSize)),
            ("no_byte", no_byte),
        ],
    )
}

/// Every ending of a scenario, as often as the gate says.
fn runs(scenario: Scenario) -> Outcome {
    let release = gate() == Gate::Release;
    let sizes = match setting("TOPICS_DISK_MB", 0) {
        0 if release => vec![200, 40],
        0 => vec![40],
        n => vec![n],
    };
    let scale = match gate() {
        Gate::Release => Scale { refusals: 200, rounds: 3 },
        _ => Scale { refusals: 60, rounds: 1 },
    };
    println!("  {}: {}", scenario.name(), random_seed_text());
    let seed = harness::random_seed();
    let mut dice = Dice::new(seed.wrapping_add(scenario as u64));
    // The seed of a failed run repeats it; otherwise scenarios have different ones.
    let first = if harness::repeats_seed() { seed } else { dice.roll() };
    let mut endings = harness::selected("TOPICS_ENDING", &Ending::ALL, |e| e.name());
    if gate() == Gate::Quick {
        endings = vec![endings[scenario as usize % endings.len()]];
    }
    let mut cases = Vec::new();
    for run in 0..setting("TOPICS_RUNS", sized(1, 1, 20)) {
        // The first run has the seed itself, so that a failed one is repeated by its own.
        let seed = if run == 0 { first } else { dice.roll() };
        for ending in &endings {
            let case = |mb: &u64| Case { scenario, ending: **ending, bytes: mb << 20, seed, scale };
            cases.extend(sizes.iter().map(case));
        }
    }
    run_all(&cases)
}

/// A directory that is opened without a free byte; at the release gate 20 of each scenario that needs no
/// limit of the process, else one.
fn no_byte() -> Outcome {
    let scenarios: Vec<Scenario> = Scenario::ALL
        .into_iter()
        .filter(|s| !matches!(s, Scenario::Descriptors | Scenario::FileSize))
        .collect();
    let first = harness::random_seed();
    println!("  no_byte: {}", random_seed_text());
    let mut dice = Dice::new(first);
    let runs = setting("TOPICS_RUNS", sized(1, 1, 20 * scenarios.len() as u64));
    let bytes = setting("TOPICS_DISK_MB", 40) << 20;
    let scale = Scale { refusals: 60, rounds: 1 };
    let cases: Vec<Case> = (0..runs)
        .map(|run| {
            let seed = if run == 0 { first } else { dice.roll() };
            let scenario = scenarios[(seed % scenarios.len() as u64) as usize];
            Case { scenario, ending: Ending::NoByte, bytes, seed, scale }
        })
        .collect();
    run_all(&cases)
}

/// Runs cases on disks of their own; names those that fail.
fn run_all(cases: &[Case]) -> Outcome {
    if let Err(e) = Mounted::tmpfs(1 << 20) {
        return skipped(format!("no tmpfs can be mounted here (root may): {e}"));
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Err(text) = run(case) {
                        failed.lock().unwrap().push(text);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("{} fail: {failed:?}", failed.len()).into())
    }
}

/// Runs at the same time; each waits for its disk most of the time.
const THREADS: usize = 3;

fn run(case: &Case) -> Result<(), String> {
    let started = Instant::now();
    let judge = case.run(&Mounted::tmpfs(case.bytes)?);
    let Case { ending, seed, .. } = case;
    let name = format!("{} {} MB, seed {seed:#x}", ending.name(), case.bytes >> 20);
    let (f, took) = (judge.figures, started.elapsed().as_secs_f64());
    let mut text = format!(
        "  {} {name}: {} acked, {} refused, {} read, {took:.1} s",
        case.scenario.name(),
        f.acked,
        f.refused,
        f.read
    );
    judge.problems.iter().for_each(|p| text += &format!("\n    {p}"));
    println!("{text}");
    if judge.problems.is_empty() { Ok(()) } else { Err(name) }
}
