//! Real power cuts: ext4 on a loop device, shut down without its journal while a process writes.
//!
//! `TOPICS_GATE=release`: 1 000 cuts, else 3. `TOPICS_CUTS` says how many, `TOPICS_SEED` repeats.

use std::process::ExitCode;

use topics_tests::harness::{self, Outcome, setting};
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

/// Every synced ack is there after every cut; class `disk` loses tails and reports each of them.
fn cuts() -> Outcome {
    if let Err(e) = possible() {
        println!("  skipped: no power can be cut here (root and loop devices may): {e}");
        return Ok(());
    }
    let all = setting("TOPICS_CUTS", if harness::release() { 1000 } else { 3 });
    let first = harness::fresh_seed();
    println!("  seed {first:#x}");
    let mut dice = Dice::new(first);
    let (mut figures, mut failed, mut left) = (Figures::default(), Vec::new(), all);
    while left > 0 {
        let seed = if left == all { first } else { dice.roll() };
        let judge = run(seed, left.min(CUTS_OF_A_DISK));
        left -= left.min(CUTS_OF_A_DISK);
        figures = sum(figures, judge.figures);
        for problem in &judge.problems {
            println!("    seed {seed:#x}: {problem}");
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
        return Err(format!("seeds {failed:?} fail"));
    }
    if figures.tails == 0 {
        return Err("the control lost nothing: these cuts test nothing".into());
    }
    Ok(())
}
