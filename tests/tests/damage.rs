//! Damage to every byte, every sector and every file of a data directory.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use peak_alloc::PeakAlloc;
use topics_tests::damage::{Corpus, Damage, KINDS, Make, Met, corpora, files, is_filler, judge};
use topics_tests::harness::{self, Outcome, seed};
use topics_tests::run::HookSpec;

#[global_allocator]
static ALLOC: PeakAlloc = PeakAlloc;

/// What two opens at once may add to the peak.
const MEMORY: usize = 64 << 20;

fn main() -> ExitCode {
    harness::main(
        "damage",
        &[
            ("corpus", corpus),
            ("missing_files", || over("missing_files")),
            ("stale_files", || over("stale_files")),
            ("swapped_files", || over("swapped_files")),
            ("zeroed_sectors", || over("zeroed_sectors")),
            ("truncations", || over("truncations")),
            ("bit_flips", || over("bit_flips")),
        ],
    )
}

fn over(kind: &str) -> Outcome {
    let what = KINDS.iter().find(|k| k.0 == kind).ok_or("no such kind")?.1;
    let mut errors = Vec::new();
    for c in corpora(seed(), &HookSpec::None) {
        let damages = what(&c, seed());
        for salvage in [false, true] {
            errors.extend(all(&c, &damages, salvage));
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

fn all(c: &Corpus, damages: &[Make<'_>], salvage: bool) -> Option<String> {
    ALLOC.reset_peak_usage();
    let floor = ALLOC.current_usage();
    let next = AtomicUsize::new(0);
    let counts = Mutex::new(BTreeMap::<Met, usize>::new());
    let failures = Mutex::new(BTreeMap::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    let Some(make) = damages.get(i) else { break };
                    let damage = make();
                    match judge(c, &damage, salvage) {
                        Ok(met) => *counts.lock().unwrap().entry(met).or_default() += 1,
                        Err(e) => {
                            let text = format!("{}: {e}", damage.what);
                            failures.lock().unwrap().insert(i, text);
                        }
                    }
                }
            });
        }
    });
    let peak = ALLOC.peak_usage().saturating_sub(floor);
    let mode = if salvage { "salvage" } else { "strict" };
    let (counts, failures) = (counts.into_inner().unwrap(), failures.into_inner().unwrap());
    println!("  {} {mode}: {} damages, {counts:?}, peak {} KiB", c.name, damages.len(), peak >> 10);
    if peak > MEMORY {
        return Some(format!("{} {mode}: the peak is {peak} bytes", c.name));
    }
    if failures.is_empty() {
        return None;
    }
    let mut text = format!("{} {mode}: {} of {}\n", c.name, failures.len(), damages.len());
    failures
        .values()
        .take(harness::setting("TOPICS_SHOWN", 12) as usize)
        .for_each(|f| text += &format!("    {f}\n"));
    Some(text)
}

/// The corpus is what it claims to be.
fn corpus() -> Outcome {
    for c in corpora(seed(), &HookSpec::None) {
        let files = files(&c.image);
        let bytes: usize = files.iter().filter(|f| !is_filler(&f.0)).map(|f| f.1.len()).sum();
        println!("  {}: {} files, {} KiB", c.name, files.len(), bytes >> 10);
        if !(32 << 10..=128 << 10).contains(&bytes) {
            return Err(format!("{} has {bytes} bytes", c.name));
        }
        let wanted =
            ["STORE", "snapshot.", "CURRENT", ".log", ".data", ".idx", ".del", ".tags", ".attrs"];
        if let Some(kind) = wanted.iter().find(|w| !files.iter().any(|f| f.0.contains(**w))) {
            return Err(format!("{} has no {kind}", c.name));
        }
        let none = Damage { what: "none".into(), image: c.image.clone(), touched: Vec::new() };
        if judge(&c, &none, false)? != Met::Same {
            return Err(format!("{} is not the same when it is whole", c.name));
        }
    }
    Ok(())
}
