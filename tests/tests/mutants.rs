//! Every durability mutant is detected; the quick gate tries one in four, chosen by the second seed.
//! Prints the table: the mutant, the time, its detector and the problem that it reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use topics_env::Site;
use topics_tests::harness::{self, Outcome, all_or, random_seed, seed, sized};
use topics_tests::mutants::{Detector, Mutant, SITES, UNREACHED, mutants};
use topics_tests::run::HookSpec;

fn main() -> ExitCode {
    // A mutant may panic; the message is in the table.
    std::panic::set_hook(Box::new(|_| ()));
    harness::main(
        "mutants",
        &[("complete", complete), ("control", control), ("all_caught", all_caught)],
    )
}

fn name(site: Site) -> &'static str {
    match site {
        Site::Sync(n) | Site::SyncDir(n) | Site::Rename(n) | Site::Check(n) => n,
    }
}

/// The table contains every site that the sources name, and no other.
fn complete() -> Outcome {
    let mut named = BTreeSet::new();
    for krate in ["topics-storage", "topics-engine"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(krate).join("src");
        sources(&root, &mut named);
    }
    let table: BTreeSet<String> = SITES.iter().map(|s| name(s.0).to_owned()).collect();
    let exempt = |n: &String| UNREACHED.iter().any(|(prefix, _)| n.starts_with(prefix));
    let missing: Vec<_> = named.difference(&table).filter(|n| !exempt(n)).collect();
    let stale: Vec<_> = table.difference(&named).collect();
    UNREACHED.iter().for_each(|(prefix, why)| println!("  {prefix}* has no mutants: {why}"));
    if missing.is_empty() && stale.is_empty() {
        return Ok(());
    }
    Err(format!("not in the table: {missing:?}; in no source: {stale:?}").into())
}

/// Strings in the sources of a crate that look like the name of a site, without its tests.
fn sources(dir: &Path, named: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with("tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, named);
        } else {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            named.extend(
                code.split('"').skip(1).step_by(2).filter(|t| is_site(t)).map(String::from),
            );
        }
    }
}

fn is_site(text: &str) -> bool {
    const AREAS: [&str; 12] = [
        "backup",
        "checkpoint",
        "damaged",
        "dir",
        "lock",
        "read",
        "recovery",
        "segment",
        "snapshot",
        "store",
        "txn",
        "wal",
    ];
    let area = text.split('.').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_lowercase() || c == '.' || c == '-';
    text.contains('.') && !text.ends_with('.') && AREAS.contains(&area) && text.chars().all(plain)
}

/// Every pinned expectation of the table holds without a mutant.
fn control() -> Outcome {
    let mut detectors: Vec<Detector> = SITES.iter().flat_map(|s| s.1.iter().copied()).collect();
    detectors.retain(|d| d.is_pinned());
    detectors.sort_unstable();
    detectors.dedup();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some(d) = detectors.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if let Ok(Some(what)) | Err(what) = d.notices(seed(), &HookSpec::None) {
                        let text = format!("    {} without a mutant: {what}", d.name());
                        wrong.lock().unwrap().insert(text);
                    }
                }
            });
        }
    });
    all_or(&wrong.into_inner().unwrap().into_iter().collect::<Vec<_>>())
}

/// The result of the search for one mutant.
struct Search {
    found: Option<(String, String)>,
    broken: Vec<String>,
    hits: usize,
}

/// Runs these detectors in order.
fn search(m: Mutant, by: &[Detector]) -> Search {
    let mut out = Search { found: None, broken: Vec::new(), hits: 0 };
    for d in by {
        let hook = HookSpec::mutant(m.site, m.reordered);
        let what = d.notices(seed(), &hook);
        out.hits += hook.hits();
        match what {
            Ok(Some(what)) => {
                out.found = Some((d.name(), what));
                return out;
            }
            Ok(None) => {}
            Err(e) => out.broken.push(format!("    {} {e}", d.name())),
        }
    }
    out
}

fn all_caught() -> Outcome {
    let only = std::env::var("TOPICS_SITE").unwrap_or_default();
    // Tries all detectors instead of those in the table; use it to fill the table.
    let all_detectors = std::env::var("TOPICS_MUTANTS").is_ok_and(|v| v == "search");
    let mut all = mutants();
    all.retain(|(m, _)| format!("{m:?}").contains(&only));
    if only.is_empty() {
        let part = sized(4, 1, 1) as usize;
        let first = (random_seed() % part as u64) as usize;
        all = all.into_iter().skip(first).step_by(part).collect();
    }
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(BTreeMap::new());
    let broken = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some((m, by)) = all.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let by = if all_detectors { Detector::all() } else { by.to_vec() };
                    let started = Instant::now();
                    let searched = search(*m, &by);
                    println!("{}", line(*m, started.elapsed().as_secs_f64(), &searched));
                    broken.lock().unwrap().extend(searched.broken);
                    caught.lock().unwrap().insert(*m, searched.found.is_some());
                }
            });
        }
    });
    let all: Vec<Mutant> = all.iter().map(|m| m.0).collect();
    report(&all, &caught.into_inner().unwrap(), broken.into_inner().unwrap())
}

fn line(m: Mutant, took: f64, searched: &Search) -> String {
    let what = match &searched.found {
        None => format!("SURVIVES, {} hits", searched.hits),
        Some((by, what)) => format!("{by}: {}", what.chars().take(70).collect::<String>()),
    };
    format!("  {:<40} {} {took:5.1} s {what}", format!("{:?}", m.site), how(m))
}

fn report(all: &[Mutant], caught: &BTreeMap<Mutant, bool>, broken: Vec<String>) -> Outcome {
    let mut wrong = broken;
    for m in all {
        let what = match caught.get(m) {
            Some(true) => continue,
            Some(false) => "survives",
            None => "was not tried",
        };
        wrong.push(format!("    {:?} {} {what}", m.site, how(*m)));
    }
    let all = all.len();
    let caught = caught.values().filter(|c| **c).count();
    println!("{all} mutants, {caught} caught, {} wrong, seed {:#x}", wrong.len(), seed());
    all_or(&wrong)
}

fn how(m: Mutant) -> &'static str {
    if m.reordered { "late   " } else { "removed" }
}
