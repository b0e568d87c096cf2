//! Every durability mutant is caught, or is named as equivalent with its reason.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use topics_tests::harness::{self, Outcome, seed};
use topics_tests::mutants::{EQUIVALENT, Mutant, mutants, sites};

fn main() -> ExitCode {
    // A mutant may panic; what it said is in the table.
    std::panic::set_hook(Box::new(|_| ()));
    harness::main("mutants", &[("all_caught", all_caught)])
}

fn all_caught() -> Outcome {
    let sites = sites(seed());
    let only = std::env::var("TOPICS_SITE").unwrap_or_default();
    let mut all = mutants(&sites);
    all.retain(|m| format!("{:?}", m.site).contains(&only));
    let equivalent = |m: &Mutant| {
        EQUIVALENT.iter().any(|(site, reordered, _)| (*site, *reordered) == (m.site, m.reordered))
    };
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(BTreeMap::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(m) = all.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if equivalent(m) {
                        continue;
                    }
                    let passing = sites.iter().filter(|(_, s)| s.contains(&m.site));
                    let by = passing
                        .map(|(d, _)| (d.name(), d.notices(seed(), &m.hook())))
                        .find_map(|(name, what)| what.map(|w| (name, w)));
                    caught.lock().unwrap().insert(*m, by);
                }
            });
        }
    });
    let caught = caught.into_inner().unwrap();
    let mut survivors = Vec::new();
    for m in &all {
        let how = if m.reordered { "reordered" } else { "removed" };
        let site = format!("{:?}", m.site);
        match caught.get(m) {
            Some(Some((by, what))) => {
                let what: String = what.chars().take(90).collect();
                println!("  {site:<40} {how:<9} caught by {by}: {what}");
            }
            Some(None) => {
                println!("  {site:<40} {how:<9} SURVIVES");
                survivors.push(format!("    {site} {how}"));
            }
            None => {
                let why = EQUIVALENT.iter().find(|e| (e.0, e.1) == (m.site, m.reordered));
                println!("  {site:<40} {how:<9} equivalent: {}", why.map_or("", |e| e.2));
            }
        }
    }
    println!("{} mutants, {} survive, seed {:#x}", all.len(), survivors.len(), seed());
    if all.is_empty() {
        return Err("no site was met".into());
    }
    if survivors.is_empty() { Ok(()) } else { Err(survivors.join("\n")) }
}
