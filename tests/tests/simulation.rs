//! Crash states of every call of every workload; crashes during recovery; short sequences.
//!
//! `TOPICS_SIM_STATES` is the wanted total of distinct disks, `TOPICS_SEED` the seed. The quick
//! gate visits one point in twenty; the quick and the full gate stop sampling a workload that brings
//! no new outcomes of recovery. `random_seed` records workloads with the second seed and enumerates
//! them.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use topics_tests::crash::{Limits, Report, again, enumerate, second};
use topics_tests::harness::{
    self, Gate, Outcome, all_or, gate, random_seed, seed, setting, sized, skipped, workload_seed,
};
use topics_tests::run::{HookSpec, Recording};
use topics_tests::workloads::{ALL, Workload, pairs, run_sequence};

fn main() -> ExitCode {
    harness::main(
        "simulation",
        &[
            ("trace", trace),
            ("live", live),
            ("deterministic", deterministic),
            ("every_call", every_call),
            ("random_seed", with_random_seed),
            ("sequences", sequences),
            ("second_crash", second_crash),
            ("recovering_again", recovering_again),
        ],
    )
}

fn selected() -> std::vec::IntoIter<&'static Workload> {
    harness::selected("TOPICS_WORKLOAD", ALL, |w| w.name).into_iter()
}

fn recorded(w: &Workload) -> Result<Recording, String> {
    recorded_with(w, workload_seed())
}

fn recorded_with(w: &Workload, seed: u64) -> Result<Recording, String> {
    let rec = w.run(seed, HookSpec::None);
    if rec.problems.is_empty() { Ok(rec) } else { Err(running(&rec)) }
}

fn running(rec: &Recording) -> String {
    let mut text = format!("{}: {} problems while running\n", rec.workload, rec.problems.len());
    rec.problems.iter().take(6).for_each(|p| _ = writeln!(text, "    {p}"));
    text
}

fn failed(report: &Report) -> Option<String> {
    (report.failed > 0).then(|| {
        let mut text = format!("{report}\n");
        for f in report.failures.iter().take(6) {
            let n = report.kinds.get(&f.kind()).copied().unwrap_or(0);
            text += &format!("  {n} times, for instance:\n{f}");
        }
        text
    })
}

/// With `TOPICS_TRACE`: prints a recording, the calls of the disk and the events in order.
fn trace() -> Outcome {
    if std::env::var("TOPICS_TRACE").is_err() {
        return skipped("TOPICS_TRACE is not set");
    }
    for w in selected() {
        w.run(seed(), HookSpec::None).trace();
    }
    Ok(())
}

/// No workload detects a problem while it runs.
fn live() -> Outcome {
    let errors: Vec<String> = selected().filter_map(|w| recorded(w).err()).collect();
    all_or(&errors)
}

/// The same seed gives the same log, disks and verdicts.
fn deterministic() -> Outcome {
    for w in selected().filter(|w| ["classes", "crashes", "shards"].contains(&w.name)) {
        let digest = || {
            let rec = w.run(seed(), HookSpec::None);
            let every = (sized(4, 1, 1) as usize, 0);
            let limits = Limits { rounds: 1, every, ..Limits::default() };
            let report = enumerate(&rec, &limits);
            (rec.events.len(), report.judged, report.states(), report.digest)
        };
        let (a, b) = (digest(), digest());
        if a != b {
            return Err(format!("{}: {a:x?} then {b:x?}", w.name).into());
        }
    }
    Ok(())
}

/// Every mutating call of every workload, every survival.
fn every_call() -> Outcome {
    let wanted = wanted();
    let per_workload = (wanted / ALL.len()).max(sized(500, 5_000, 5_000) as usize);
    let mut union = Report::default();
    let mut errors = Vec::new();
    let started = Instant::now();
    for w in selected() {
        let rec = match recorded(w) {
            Ok(rec) => rec,
            Err(e) => {
                errors.push(e);
                continue;
            }
        };
        let limits = Limits {
            states: per_workload,
            quiet: max_quiet(),
            every: sampled_points(),
            ..Limits::default()
        };
        let report = enumerate(&rec, &limits);
        println!("{report}");
        errors.extend(failed(&report));
        if report.failed == 0 {
            errors.extend(tests_nothing(&report));
        }
        union.absorb(report);
    }
    let took = started.elapsed().as_secs_f64();
    let total = union.states();
    println!(
        "every_call: {} distinct outcomes of recovery in {total} distinct states, the union of all \
         workloads: {} systematic, {} sampled; {} lost something; {} kills with failed write-back \
         judged; {took:.0} s",
        union.outcomes.len(),
        union.systematic.len(),
        total - union.systematic.len(),
        union.lost.len(),
        union.write_backs,
    );
    if errors.is_empty() && union.write_backs == 0 {
        errors.push("no kill with failed write-back was judged".into());
    }
    // The other gates count outcomes, not states.
    let counts_states = gate() == Gate::Release && std::env::var("TOPICS_WORKLOAD").is_err();
    if errors.is_empty() && counts_states && total < wanted {
        errors.push(format!("{total} states, wanted {wanted}"));
    }
    all_or(&errors)
}

/// The reasons why an enumeration without failures shows nothing.
fn tests_nothing(report: &Report) -> Vec<String> {
    let name = &report.workload;
    let mut out = Vec::new();
    if report.points == 0 {
        out.push(format!("{name}: no crash point was visited"));
    }
    if report.lost.is_empty() {
        out.push(format!("{name}: nothing un-synced was ever lost"));
    }
    if report.outcomes.len() < 2 {
        out.push(format!("{name}: recovery had {} outcomes", report.outcomes.len()));
    }
    out
}

/// The number of judged states without a new outcome after which a workload is sampled no more.
fn max_quiet() -> usize {
    match gate() {
        Gate::Quick => 2_000,
        Gate::Full => 10_000,
        Gate::Explore | Gate::Release => usize::MAX,
    }
}

/// The wanted total of distinct disks of all workloads.
fn wanted() -> usize {
    setting("TOPICS_SIM_STATES", sized(10_000, 200_000, 2_000_000)) as usize
}

/// Visit one of this many crash points of a recording, starting at the second number.
fn sampled_points() -> (usize, usize) {
    let step = sized(20, 1, 1) as usize;
    (step, random_seed() as usize % step)
}

/// Workloads with the second seed: some at the gates where it is fixed, all where it is random.
fn with_random_seed() -> Outcome {
    let all = ALL.len() as u64;
    let (share, step) =
        if gate().explores() { (all, 1) } else { (sized(2, 5, all), sized(20, 10, 1)) };
    let (share, step) = (share as usize, step as usize);
    let first = random_seed() as usize % ALL.len();
    let chosen = selected().cycle().skip(first).take(share.min(selected().count()));
    let mut errors = Vec::new();
    for w in chosen {
        match recorded_with(w, random_seed()) {
            Ok(rec) => {
                let every = (step, random_seed() as usize % step);
                let report = enumerate(&rec, &Limits { rounds: 1, every, ..Limits::default() });
                println!("{report}");
                errors.extend(failed(&report));
            }
            Err(e) => errors.push(e),
        }
    }
    all_or(&errors)
}

/// All sequences of at most two operations, with a crash at every call.
fn sequences() -> Outcome {
    let mut all =
        Report { workload: "sequences".into(), seed: workload_seed(), ..Report::default() };
    let mut errors = Vec::new();
    let (step, first) = sampled_points();
    for sequence in pairs().into_iter().skip(first).step_by(step) {
        let rec = run_sequence(&sequence, workload_seed());
        if !rec.problems.is_empty() {
            errors.push(format!("{sequence:?} {}", running(&rec)));
            continue;
        }
        let report = enumerate(&rec, &Limits { rounds: 1, ..Limits::default() });
        errors.extend(failed(&report).map(|f| format!("{sequence:?} {f}")));
        all.points += report.points;
        all.absorb(report);
    }
    println!("{all}");
    errors.truncate(8);
    all_or(&errors)
}

fn over_workloads(run: fn(&Recording, usize, &HookSpec, bool) -> Report, wanted: usize) -> Outcome {
    // Some workloads have fewer states than their share.
    let share = wanted.div_ceil(ALL.len()) * 5 / 4;
    let workloads: Vec<&Workload> = selected().collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let done = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let Some(w) = workloads.get(i) else { break };
                    let outcome = recorded(w).map(|rec| run(&rec, share, &HookSpec::None, false));
                    done.lock().unwrap().push((i, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|d| d.0);
    let (mut total, mut errors) = (0, Vec::new());
    for (_, outcome) in done {
        match outcome {
            Ok(report) => {
                println!("{report}");
                total += report.states();
                errors.extend(failed(&report));
                if report.failed == 0 && report.lost.is_empty() {
                    errors.push(format!("{}: nothing un-synced was ever lost", report.workload));
                }
            }
            Err(e) => errors.push(e),
        }
    }
    println!("{total} states, wanted {wanted}");
    if errors.is_empty()
        && gate() == Gate::Release
        && workloads.len() == ALL.len()
        && total < wanted
    {
        errors.push(format!("{total} states, wanted {wanted}"));
    }
    all_or(&errors)
}

/// A second crash, at every call of the recovery from the first.
fn second_crash() -> Outcome {
    over_workloads(second, wanted() / 10)
}

/// One to three recoveries give the same state.
fn recovering_again() -> Outcome {
    over_workloads(again, wanted() / 20)
}
