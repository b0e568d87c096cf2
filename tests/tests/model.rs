//! Random operations, at most 50 each, restarts and crashes among them: topics against the oracle,
//! queues, routers, watches, consumers and transactions against a plain model.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use topics_tests::harness::{
    self, Outcome, gate, random_seed, random_seed_text, seed, setting, sized,
};
use topics_tests::model::{Step, kind, shrink, steps, try_run};
use topics_tests::plain;
use topics_tests::run::Dice;

fn main() -> ExitCode {
    harness::main("model", &[("topics", topics), ("delivery", delivery), ("flaws", flaws)])
}

/// `TOPICS_MODEL_RUNS` runs of delivery (20 000 at the full gate); others a share of as many.
fn share(of_ten: u64) -> usize {
    (setting("TOPICS_MODEL_RUNS", sized(2_000, 20_000, 1_000_000)) * of_ten / 10) as usize
}

/// The first word of a step.
fn word(step: &Step) -> String {
    let text = format!("{step:?}");
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

/// Operations on topics against the oracle; a failing run is shown as its smallest part.
fn topics() -> Outcome {
    let run = |seed: u64| {
        let steps = steps(seed, 50);
        (steps.iter().map(word).collect(), try_run(&steps, seed).0)
    };
    random_runs(share(4), run, trace)
}

/// Operations of the delivery side against the plain model.
fn delivery() -> Outcome {
    let run = |seed: u64| {
        let steps = plain::steps(seed, 50);
        let kinds = steps.iter().map(plain::Step::kind).collect();
        (kinds, plain::run(&steps, seed).into_iter().collect())
    };
    random_runs(share(10), run, plain_trace)
}

/// An engine that is wrong in one way is noticed, and what shows it is short.
fn flaws() -> Outcome {
    let mut missed = String::new();
    for flaw in plain::Flaw::ALL {
        let mut dice = Dice::new(seed());
        let (mut hit, mut noticed, mut example) = (0, 0, None);
        for _ in 0..sized(400, 600, 600) {
            let seed = dice.roll();
            let steps = plain::steps(seed, 50);
            let (hits, found) = plain::run_flawed(&steps, seed, Some(flaw));
            hit += usize::from(hits > 0);
            noticed += usize::from(hits > 0 && found.is_some());
            example = example.or_else(|| (hits > 0 && found.is_some()).then_some((seed, steps)));
        }
        let small = example.map_or(usize::MAX, |(seed, steps)| {
            let run = |s: &[plain::Step]| plain::run_flawed(s, seed, Some(flaw)).1;
            shrink(&steps, |s| run(s).into_iter().collect()).len()
        });
        println!("    {flaw:?}: {noticed} of {hit} runs, shown by {small} steps");
        // A flaw may take effect where it makes no difference: a filter that would keep nothing out.
        if noticed == 0 || noticed * 4 < hit || small > LONGEST {
            missed += &format!("{flaw:?}: {noticed} of {hit} runs, {small} steps\n");
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.into()) }
}

/// The most steps that show one.
const LONGEST: usize = 12;

type Run = (Vec<String>, Vec<String>);

fn random_runs(
    wanted: usize,
    run: impl Fn(u64) -> Run + Sync,
    trace: impl Fn(u64) -> String,
) -> Outcome {
    // One run in forty comes from the second seed; where that is random, all but one in forty.
    let few = wanted.div_ceil(40);
    let (fixed, fresh) = if gate().explores() { (few, wanted) } else { (wanted, few) };
    let rolls = |seed, n| {
        let mut dice = Dice::new(seed);
        (0..n).map(move |_| dice.roll())
    };
    let (fresh, seeds): (usize, Vec<u64>) = match setting("TOPICS_MODEL_SEED", 0) {
        0 => (fresh, rolls(seed(), fixed).chain(rolls(random_seed(), fresh)).collect()),
        one => (0, vec![one]),
    };
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let kinds: Mutex<BTreeMap<String, usize>> = Mutex::default();
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                let mut mine: BTreeMap<String, usize> = BTreeMap::new();
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let (ops, found) = run(seed);
                    ops.into_iter().for_each(|k| *mine.entry(k).or_default() += 1);
                    if !found.is_empty() {
                        failed.lock().unwrap().push((seed, found));
                    }
                }
                let mut all = kinds.lock().unwrap();
                mine.into_iter().for_each(|(k, n)| *all.entry(k).or_default() += n);
            });
        }
    });
    let kinds_of = kinds.into_inner().unwrap();
    println!(
        "{} runs, {fresh} of them from the {}, {} operations of {} kinds",
        seeds.len(),
        random_seed_text(),
        kinds_of.values().sum::<usize>(),
        kinds_of.len(),
    );
    let line: Vec<String> = kinds_of.iter().map(|(k, n)| format!("{k} {n}")).collect();
    println!("    {}", line.join(", "));
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
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
    Err(text.into())
}

/// A failing run as its smallest part: the steps, the calls and answers, and what is wrong.
fn trace(seed: u64) -> String {
    let small = shrink(&steps(seed, 50), |s| try_run(s, seed).0);
    let (found, events) = try_run(&small, seed);
    let mut text = format!("  TOPICS_MODEL_SEED={seed:#x}\n");
    small.iter().for_each(|s| text += &format!("      {s:?}\n"));
    events.iter().for_each(|e| text += &format!("      {}\n", e.line()));
    found.iter().take(4).for_each(|f| text += &format!("    {f}\n"));
    text
}

fn plain_trace(seed: u64) -> String {
    let run = |s: &[plain::Step]| plain::run(s, seed).into_iter().collect::<Vec<_>>();
    let small = shrink(&plain::steps(seed, 50), run);
    let mut text = format!("  TOPICS_MODEL_SEED={seed:#x}\n");
    small.iter().for_each(|s| text += &format!("      {s:?}\n"));
    run(&small).iter().for_each(|f| text += &format!("    {f}\n"));
    text
}
