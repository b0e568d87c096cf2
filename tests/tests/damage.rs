//! Damage to every byte, every sector and every file of a data directory.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use peak_alloc::PeakAlloc;
use topics_env::sim::DiskImage;
use topics_tests::damage::{Corpus, Met, corpora, files, judge};
use topics_tests::harness::{self, Outcome, seed};
use topics_tests::run::{Dice, HookSpec};

#[global_allocator]
static ALLOC: PeakAlloc = PeakAlloc;

/// What two opens at once may add to the peak.
const MEMORY: usize = 64 << 20;

fn main() -> ExitCode {
    harness::main(
        "damage",
        &[
            ("corpus", corpus),
            ("bit_flips", bit_flips),
            ("truncations", truncations),
            ("zeroed_sectors", zeroed_sectors),
            ("missing_files", missing_files),
            ("stale_files", stale_files),
            ("swapped_files", swapped_files),
        ],
    )
}

/// One damage: what it is, and the directory.
type Damage = (String, DiskImage);
/// Makes the `i`-th damage, when it is its turn.
type Make<'a> = Box<dyn Fn() -> Damage + Send + Sync + 'a>;

fn put(image: &DiskImage, path: &str, bytes: &[u8]) -> DiskImage {
    let mut image = image.clone();
    assert!(image.put(path, bytes));
    image
}

fn over(what: fn(&Corpus) -> Vec<Make<'_>>) -> Outcome {
    let mut errors = Vec::new();
    for c in corpora(seed(), &HookSpec::None) {
        let damages = what(&c);
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
                    let (what, image) = make();
                    match judge(c, &image, salvage) {
                        Ok(met) => *counts.lock().unwrap().entry(met).or_default() += 1,
                        Err(e) => drop(failures.lock().unwrap().insert(i, format!("{what}: {e}"))),
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
    failures.values().take(12).for_each(|f| text += &format!("    {f}\n"));
    Some(text)
}

/// The corpus is what it claims to be.
fn corpus() -> Outcome {
    for c in corpora(seed(), &HookSpec::None) {
        let files = files(&c.image);
        let bytes: usize = files.iter().map(|f| f.1.len()).sum();
        println!("  {}: {} files, {} KiB", c.name, files.len(), bytes >> 10);
        if !(32 << 10..=128 << 10).contains(&bytes) {
            return Err(format!("{} has {bytes} bytes", c.name));
        }
        let wanted = ["STORE", "snapshot.", "CURRENT", ".log", ".data", ".idx", ".del", ".tags", ".attrs"];
        if let Some(kind) = wanted.iter().find(|w| !files.iter().any(|f| f.0.contains(**w))) {
            return Err(format!("{} has no {kind}", c.name));
        }
        if judge(&c, &c.image, false)? != Met::Same {
            return Err(format!("{} is not the same when it is whole", c.name));
        }
    }
    Ok(())
}

/// One random bit of every byte.
fn bit_flips() -> Outcome {
    over(|c| {
        let mut dice = Dice::new(seed());
        let mut out: Vec<Make<'_>> = Vec::new();
        for (path, bytes) in files(&c.image) {
            let bytes = std::sync::Arc::new(bytes);
            for at in 0..bytes.len() {
                let (bit, path, bytes) = (dice.below(8), path.clone(), bytes.clone());
                out.push(Box::new(move || {
                    let mut bytes = (*bytes).clone();
                    bytes[at] ^= 1 << bit;
                    (format!("{path} byte {at} bit {bit}"), put(&c.image, &path, &bytes))
                }));
            }
        }
        out
    })
}

/// Every file cut, at steps that meet no structure.
fn truncations() -> Outcome {
    over(|c| {
        let mut out: Vec<Make<'_>> = Vec::new();
        for (path, bytes) in files(&c.image) {
            for len in (0..bytes.len()).step_by(29) {
                let (path, bytes) = (path.clone(), bytes[..len].to_vec());
                out.push(Box::new(move || {
                    (format!("{path} cut to {len}"), put(&c.image, &path, &bytes))
                }));
            }
        }
        out
    })
}

/// Every sector of every file, zeroed.
fn zeroed_sectors() -> Outcome {
    over(|c| {
        let mut out: Vec<Make<'_>> = Vec::new();
        for (path, bytes) in files(&c.image) {
            for at in (0..bytes.len()).step_by(512) {
                let (path, mut bytes) = (path.clone(), bytes.clone());
                let end = bytes.len().min(at + 512);
                bytes[at..end].fill(0);
                out.push(Box::new(move || {
                    (format!("{path} sector at {at}"), put(&c.image, &path, &bytes))
                }));
            }
        }
        out
    })
}

/// Every file, gone.
fn missing_files() -> Outcome {
    over(|c| {
        let one = |(path, _): (String, Vec<u8>)| -> Make<'_> {
            Box::new(move || {
                let mut image = c.image.clone();
                assert!(image.remove(&path));
                (format!("{path} missing"), image)
            })
        };
        files(&c.image).into_iter().map(one).collect()
    })
}

/// Every file as it was some time ago, and files that have since gone.
fn stale_files() -> Outcome {
    over(|c| {
        let now: BTreeMap<String, Vec<u8>> = files(&c.image).into_iter().collect();
        let stale = files(&c.older).into_iter().filter(|(p, b)| now.get(p) != Some(b));
        let one = |(path, bytes): (String, Vec<u8>)| -> Make<'_> {
            Box::new(move || {
                let mut image = c.image.clone();
                image.put(&path, &bytes);
                (format!("{path} stale"), image)
            })
        };
        stale.map(one).collect()
    })
}

/// Two files of one kind in each other's place, those of the twin topics among them.
fn swapped_files() -> Outcome {
    over(|c| {
        let all = files(&c.image);
        let kind = |p: &str| p.rsplit(['.', '/']).next().unwrap_or("").to_owned();
        let mut out: Vec<Make<'_>> = Vec::new();
        for (i, a) in all.iter().enumerate() {
            for b in all[i + 1..].iter().filter(|b| kind(&a.0) == kind(&b.0) && a.1 != b.1) {
                let (a, b) = (a.clone(), b.clone());
                out.push(Box::new(move || {
                    let image = put(&put(&c.image, &a.0, &b.1), &b.0, &a.1);
                    (format!("{} and {} swapped", a.0, b.0), image)
                }));
            }
        }
        out
    })
}
