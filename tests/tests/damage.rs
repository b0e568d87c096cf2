//! Damage to every byte, every sector and every file of a data directory. The quick gate covers
//! every tenth byte and truncation; the second seed chooses the tenth.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use peak_alloc::PeakAlloc;
use topics_storage::format::frame::FrameType;
use topics_tests::damage::{
    Corpus, Damage, KINDS, Make, OpenOutcome, corpora, files, is_filler, judge,
};
use topics_tests::harness::{self, Outcome, all_or, random_seed, seed, sized};
use topics_tests::run::HookSpec;

#[global_allocator]
static ALLOC: PeakAlloc = PeakAlloc;

/// The frame types that this engine writes.
const WRITTEN: [FrameType; 13] = [
    FrameType::Append,
    FrameType::TopicCreate,
    FrameType::TopicDelete,
    FrameType::Delete,
    FrameType::EvictWatermark,
    FrameType::CheckpointMark,
    FrameType::ConfigUpdate,
    FrameType::HeadWatermark,
    FrameType::Idempotency,
    FrameType::Group,
    FrameType::CleanClose,
    FrameType::Gap,
    FrameType::Start,
];

/// The memory that two concurrent opens may add to the peak.
const MEMORY: usize = 64 << 20;

fn main() -> ExitCode {
    harness::main(
        "damage",
        &[
            ("corpus", corpus),
            ("missing_files", || over("missing_files")),
            ("emptied_folders", || over("emptied_folders")),
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
    let corpora = corpora(seed(), &HookSpec::None);
    let judged = |c| {
        let mut damages = what(c, seed(), "");
        sample(&mut damages);
        all(c, &damages)
    };
    let errors: Vec<String> = corpora.iter().filter_map(judged).collect();
    all_or(&errors)
}

/// Keeps the share of damages that the gate requests; small numbers are kept completely.
fn sample<T>(damages: &mut Vec<T>) {
    let step = sized(10, 1, 1);
    if damages.len() > 500 {
        let mut n = random_seed() % step;
        damages.retain(|_| {
            n += 1;
            n.is_multiple_of(step)
        });
    }
}

/// The shared results of the threads.
#[derive(Default)]
struct Tally {
    counts: BTreeMap<(&'static str, OpenOutcome), usize>,
    failures: BTreeMap<usize, String>,
}

/// Judges in both modes. `salvage` differs from `strict` only if `strict` refuses; the thorough
/// cases show that the other results are equal.
fn both(c: &Corpus, damage: &Damage, i: usize, tally: &Mutex<Tally>) {
    for (mode, salvage) in [("strict", false), ("salvage", true)] {
        let outcome = judge(c, damage, salvage);
        let on = damage.thorough || matches!(outcome, Ok(OpenOutcome::Refused));
        let mut tally = tally.lock().unwrap();
        match outcome {
            Ok(outcome) => *tally.counts.entry((mode, outcome)).or_default() += 1,
            Err(e) => drop(tally.failures.insert(i, format!("{mode}: {}: {e}", damage.what))),
        }
        if !on {
            break;
        }
    }
}

fn all(c: &Corpus, damages: &[Make<'_>]) -> Option<String> {
    ALLOC.reset_peak_usage();
    let floor = ALLOC.current_usage();
    let next = AtomicUsize::new(0);
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    let Some(make) = damages.get(i) else { break };
                    both(c, &make(), i, &tally);
                }
            });
        }
    });
    let peak = ALLOC.peak_usage().saturating_sub(floor);
    let Tally { counts, failures } = tally.into_inner().unwrap();
    let (name, n) = (c.name, damages.len());
    println!("  {name}: {n} damages, {counts:?}, peak {} KiB", peak >> 10);
    if peak > MEMORY {
        return Some(format!("{name}: the peak is {peak} bytes"));
    }
    if failures.is_empty() {
        return None;
    }
    let mut text = format!("{name}: {} of {n}\n", failures.len());
    let shown = harness::setting("TOPICS_SHOWN", 12) as usize;
    failures.values().take(shown).for_each(|f| text += &format!("    {f}\n"));
    Some(text)
}

/// The frame types in a log, found by the frame lengths from offset 104 on.
fn frame_types(log: &[u8], seen: &mut BTreeSet<u8>) {
    let mut at = 104;
    while let Some(head) = log.get(at..at + 5) {
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if len == 0 {
            break;
        }
        seen.insert(head[4]);
        at += 4 + len;
    }
}

/// The corpus contains everything that it must.
fn corpus() -> Outcome {
    let mut types = BTreeSet::new();
    for c in corpora(seed(), &HookSpec::None) {
        let files = files(&c.image);
        let bytes: usize = files.iter().filter(|f| !is_filler(&f.0)).map(|f| f.1.len()).sum();
        let logs = files.iter().filter(|f| f.0.ends_with(".log"));
        logs.for_each(|f| frame_types(&f.1, &mut types));
        println!("  {}: {} files, {} KiB", c.name, files.len(), bytes >> 10);
        if !(32 << 10..=128 << 10).contains(&bytes) {
            return Err(format!("{} has {bytes} bytes", c.name).into());
        }
        let wanted =
            ["STORE", "snapshot.", "CURRENT", ".log", ".data", ".idx", ".del", ".tags", ".attrs"];
        if let Some(kind) = wanted.iter().find(|w| !files.iter().any(|f| f.0.contains(**w))) {
            return Err(format!("{} has no {kind}", c.name).into());
        }
        let none = Damage {
            what: "none".into(),
            image: c.image.clone(),
            touched: Vec::new(),
            thorough: true,
            whole: true,
        };
        if judge(&c, &none, false)? != OpenOutcome::Same {
            return Err(format!("{} is not the same when it is whole", c.name).into());
        }
    }
    match WRITTEN.iter().find(|t| !types.contains(&(**t as u8))) {
        Some(t) => Err(format!("no frame of type {t:?}, only {types:?}").into()),
        None => Ok(()),
    }
}
