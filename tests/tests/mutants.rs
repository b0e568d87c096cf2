//! Every durability mutant is caught, or is named as equivalent with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use topics_env::Site;
use topics_tests::harness::{self, Outcome, seed};
use topics_tests::mutants::{Detector, EQUIVALENT, Mutant, SITES, UNREACHED, mutants};
use topics_tests::run::HookSpec;

fn main() -> ExitCode {
    // A mutant may panic; what it said is in the table.
    std::panic::set_hook(Box::new(|_| ()));
    harness::main("mutants", &[("complete", complete), ("all_caught", all_caught)])
}

fn name(site: Site) -> &'static str {
    match site {
        Site::Sync(n) | Site::SyncDir(n) | Site::Rename(n) | Site::Check(n) => n,
    }
}

/// Every site that the sources name is in the table, and nothing else is.
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
    Err(format!("not in the table: {missing:?}; in no source: {stale:?}"))
}

/// What looks like a site's name in the sources of a crate, its tests left out.
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
    const AREAS: [&str; 9] =
        ["checkpoint", "dir", "read", "recovery", "segment", "snapshot", "store", "tier", "wal"];
    let area = text.split('.').next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_lowercase() || c == '.' || c == '-';
    text.contains('.') && !text.ends_with('.') && AREAS.contains(&area) && text.chars().all(plain)
}

fn all_caught() -> Outcome {
    let only = std::env::var("TOPICS_SITE").unwrap_or_default();
    // Instead of those in the table, tries all detectors: for a person, to fill the table.
    let search = std::env::var("TOPICS_MUTANTS").is_ok_and(|v| v == "search");
    let mut all = mutants();
    all.retain(|(m, _)| format!("{m:?}").contains(&only));
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(BTreeMap::new());
    let broken = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while let Some((m, by)) = all.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if equivalent(*m).is_some() {
                        continue;
                    }
                    let by = if search { Detector::all() } else { by.to_vec() };
                    let started = Instant::now();
                    let found = by.into_iter().find_map(|d| {
                        let hook = HookSpec::mutant(m.site, m.reordered);
                        let what = d.notices(seed(), &hook);
                        if search && hook.hits() > 0 {
                            let took = started.elapsed().as_secs_f64();
                            println!("    {m:?} {d:?} {} hits, {took:.1} s", hook.hits());
                        }
                        match what {
                            Ok(what) => what.map(|w| (d.name(), w)),
                            Err(e) => {
                                broken.lock().unwrap().push(format!("    {d:?} {e}"));
                                None
                            }
                        }
                    });
                    let took = started.elapsed().as_secs_f64();
                    println!("{}", line(*m, took, found.as_ref()));
                    caught.lock().unwrap().insert(*m, found.is_some());
                }
            });
        }
    });
    let all: Vec<Mutant> = all.iter().map(|m| m.0).collect();
    report(&all, &caught.into_inner().unwrap(), broken.into_inner().unwrap())
}

fn equivalent(m: Mutant) -> Option<&'static str> {
    EQUIVALENT.iter().find(|e| (e.0, e.1) == (m.site, m.reordered)).map(|e| e.2)
}

fn line(m: Mutant, took: f64, found: Option<&(String, String)>) -> String {
    let what = found.map_or("SURVIVES".into(), |(by, what)| {
        let what: String = what.chars().take(70).collect();
        format!("{by}: {what}")
    });
    format!("  {:<40} {} {took:5.1} s {what}", format!("{:?}", m.site), how(m))
}

fn report(all: &[Mutant], caught: &BTreeMap<Mutant, bool>, broken: Vec<String>) -> Outcome {
    let mut wrong = broken;
    for m in all {
        match (caught.get(m), equivalent(*m)) {
            (None, why) => println!("  {:?} {} equivalent: {}", m.site, how(*m), why.unwrap_or("")),
            (Some(false), _) => wrong.push(format!("    {:?} {} survives", m.site, how(*m))),
            (Some(true), _) => {}
        }
    }
    println!("{} mutants, {} wrong, seed {:#x}", all.len(), wrong.len(), seed());
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn how(m: Mutant) -> &'static str {
    if m.reordered { "late   " } else { "removed" }
}
