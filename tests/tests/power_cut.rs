//! Real power cuts: ext4 on a loop device, shut down without its journal while a process writes.
//!
//! 1 000 cuts at the release gate, 3 at the full gate, and more until class `disk` has lost a tail.
//! Skipped at the quick gate: which tails a cut loses depends on the speed of the machine.
//! `TOPICS_CUTS` sets the number, `TOPICS_RANDOM_SEED` repeats a seed. `TOPICS_TRACE` prints the
//! journals.

use std::process::ExitCode;

use topics_tests::harness::{self, Gate, Outcome, gate, random_seed_text, setting, sized, skipped};
use topics_tests::realfs::child::Task;
use topics_tests::realfs::judge::Figures;
use topics_tests::realfs::power_cut::{CUTS_OF_A_DISK, child, possible, run, sum};
use topics_tests::run::Dice;

fn main() -> ExitCode {
    match Task::from_args() {
        Some(task) => child(&task),
        None => harness::main("power_cut", &[("i1_every_synced_ack_survives", cuts)]),
    }
}

/// Additional cuts if the control group lost nothing by chance.
const MOST_MORE: u64 = 21;

/// Every synced ack survives every cut; class `disk` loses tails and reports each of them.
fn cuts() -> Outcome {
    if gate() == Gate::Quick {
        return skipped("not at the quick gate: the moment of a cut depends on the machine");
    }
    if let Err(e) = possible() {
        return skipped(format!("no power can be cut here (root and loop devices may): {e}"));
    }
    let planned = setting("TOPICS_CUTS", sized(3, 3, 1000));
    let first = harness::random_seed();
    println!("  {}", random_seed_text());
    let mut dice = Dice::new(first);
    let (mut figures, mut failed, mut all) = (Figures::default(), Vec::new(), 0);
    while all < planned || (figures.tails == 0 && all < planned + MOST_MORE) {
        let seed = if all == 0 { first } else { dice.roll() };
        let cuts = if all < planned { (planned - all).min(CUTS_OF_A_DISK) } else { 3 };
        let judge = run(seed, cuts);
        all += cuts;
        figures = sum(figures, judge.figures);
        for problem in &judge.problems {
            println!("    {cuts} cuts, seed {seed:#x}: {problem}");
        }
        if !judge.problems.is_empty() {
            failed.push(format!("{seed:#x}"));
        }
    }
    println!(
        "  {all} cuts: {} records acked, {} of them synced, none of these missing: {}; {} of the \
         others lost and reported, by {} cuts",
        figures.acked,
        figures.synced,
        failed.is_empty(),
        figures.lost,
        figures.tails
    );
    if !failed.is_empty() {
        return Err(format!("seeds {failed:?} fail").into());
    }
    if figures.tails == 0 {
        return Err("the control lost nothing: these cuts test nothing".into());
    }
    Ok(())
}
