//! Crash states of every call of the workloads of queues, routers, consumers and transactions;
//! crashes during recovery.
//!
//! `TOPICS_DELIVERY_STATES` is the wanted total of distinct disks. The quick gate visits one point
//! in twenty; the quick and the full gate stop sampling a workload that brings no new outcomes of
//! recovery.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use topics_tests::crash::Sampling;
use topics_tests::delivery::{ALL, Report, Workload, enumerate, run, second};
use topics_tests::harness::{
    self, Gate, Outcome, all_or, gate, random_seed, seed, setting, sized, workload_seed,
};

fn main() -> ExitCode {
    harness::main(
        "delivery",
        &[
            ("deterministic", deterministic),
            ("every_call", every_call),
            ("random_seed", with_random_seed),
            ("second_crash", second_crash),
        ],
    )
}

fn selected() -> Vec<&'static Workload> {
    harness::selected("TOPICS_WORKLOAD", ALL, |w| w.name)
}

fn wanted() -> usize {
    setting("TOPICS_DELIVERY_STATES", sized(5_000, 100_000, 1_000_000)) as usize
}

/// The same seed gives the same calls, disks and verdicts.
fn deterministic() -> Outcome {
    for w in selected().iter().filter(|w| ["dead_letters", "full", "modes"].contains(&w.name)) {
        let digest = || {
            let script = run(w, seed());
            let notes = format!("{:?}", script.notes);
            let report = enumerate(&script, Sampling::new(0, 0), 1, (sized(4, 1, 1) as usize, 0));
            (notes, report.calls, report.judged, report.states.len(), report.digest)
        };
        let (a, b) = (digest(), digest());
        if a != b {
            let text = format!("{}: {:?} then {:?}", w.name, (a.1, a.4), (b.1, b.4));
            return Err(text.into());
        }
    }
    Ok(())
}

/// Every mutating call of every workload, every survival.
fn every_call() -> Outcome {
    // The share of each workload, with a minimum for large totals.
    let share = (wanted() / ALL.len()).max(if wanted() >= 100_000 { 5_000 } else { 1 });
    let mut union = Report::default();
    let mut errors = Vec::new();
    let started = Instant::now();
    for w in selected() {
        let sampling = Sampling::new(share, max_quiet());
        let report = enumerate(&run(w, workload_seed()), sampling, 9, sampled_points());
        println!("{:<16} {report}", w.name);
        if report.failed == 0 {
            errors.extend(tests_nothing(w, &report));
        }
        // The other gates count outcomes, not states.
        if report.failed == 0 && gate() == Gate::Release && report.states.len() < share {
            errors.push(format!("{}: {} states, wanted {share}", w.name, report.states.len()));
        }
        errors.extend(failed(w, &report));
        union.absorb(report);
    }
    let took = started.elapsed().as_secs_f64();
    println!(
        "every_call: {} distinct outcomes of recovery in {} distinct states, the union of all \
         workloads: {} systematic, {} sampled; {} lost something; {took:.0} s",
        union.outcomes.len(),
        union.states.len(),
        union.systematic.len(),
        union.states.len() - union.systematic.len(),
        union.lost.len(),
    );
    all_or(&errors)
}

/// The reasons why an enumeration without failures shows nothing.
fn tests_nothing(w: &Workload, report: &Report) -> Vec<String> {
    let mut out = Vec::new();
    if report.points == 0 {
        out.push(format!("{}: no crash point was visited", w.name));
    }
    if report.lost.is_empty() {
        out.push(format!("{}: nothing un-synced was ever lost", w.name));
    }
    if report.outcomes.len() < 2 {
        out.push(format!("{}: recovery had {} outcomes", w.name, report.outcomes.len()));
    }
    out
}

/// The number of judged states without a new outcome after which a workload is sampled no more.
fn max_quiet() -> usize {
    match gate() {
        Gate::Quick => 1_000,
        Gate::Full => 5_000,
        Gate::Explore | Gate::Release => usize::MAX,
    }
}

fn failed(w: &Workload, report: &Report) -> Vec<String> {
    let mut errors: Vec<String> =
        report.failures.iter().map(|f| format!("{} {f}", w.name)).collect();
    if report.failed > 0 {
        errors.insert(0, format!("{}: {} fail, for instance", w.name, report.failed));
    }
    errors
}

/// Visit one of this many crash points of a script, starting at the second number.
fn sampled_points() -> (usize, usize) {
    let step = sized(20, 1, 1) as usize;
    (step, random_seed() as usize % step)
}

/// Workloads with the second seed: some at the gates where it is fixed, all where it is random.
fn with_random_seed() -> Outcome {
    let workloads = selected();
    let all = ALL.len() as u64;
    let (share, step) =
        if gate().explores() { (all, 1) } else { (sized(3, 8, all), sized(20, 10, 1)) };
    let (share, step) = ((share as usize).min(workloads.len()), step as usize);
    let first = random_seed() as usize % workloads.len();
    let mut errors = Vec::new();
    for w in workloads.iter().cycle().skip(first).take(share) {
        let every = (step, random_seed() as usize % step);
        let report = enumerate(&run(w, random_seed()), Sampling::new(0, 0), 1, every);
        println!("{:<16} {report}", w.name);
        errors.extend(failed(w, &report));
    }
    all_or(&errors)
}

/// A second crash, at every call of the recovery from the first.
fn second_crash() -> Outcome {
    let share = (wanted() / 10).div_ceil(ALL.len());
    let workloads = selected();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(w) = workloads.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let report = second(&run(w, workload_seed()), share);
                    done.lock().unwrap().push((w.name, report));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap();
    done.sort_by_key(|d| ALL.iter().position(|w| w.name == d.0));
    let (mut total, mut lost, mut errors) = (0, 0, Vec::new());
    for (name, report) in done {
        println!("{name:<16} {report}");
        (total, lost) = (total + report.states.len(), lost + report.lost.len());
        if report.states.is_empty() {
            errors.push(format!("{name}: no recovery was crashed"));
        }
        if report.failed == 0 && gate() == Gate::Release && report.states.len() < share {
            errors.push(format!("{name}: {} states, wanted {share}", report.states.len()));
        }
        errors.extend(report.failures.into_iter().map(|f| format!("{name} {f}")));
    }
    println!("second_crash: {total} distinct states, {lost} lost something");
    all_or(&errors)
}
