//! Every kind of damage to a directory.

use std::collections::BTreeMap;

use topics_sim::DiskImage;

use super::corpus::{Corpus, files, is_filler};
use crate::harness::{Gate, gate};
use crate::run::Dice;

/// One damage: its description, the damaged directory, and the affected files.
pub struct Damage {
    pub what: String,
    pub image: DiskImage,
    pub touched: Vec<String>,
    /// Judged in both modes, and over a checkpoint and a reopen. Adjacent bits have the same effect
    /// on a record, so only some of them are thorough.
    pub thorough: bool,
    /// The damaged files are lost completely or in part: `salvage` must open, leave no damage, and
    /// allow a strict open afterwards.
    pub whole: bool,
}

impl Damage {
    fn of(path: &str, what: String, image: DiskImage) -> Self {
        let what = format!("{path} {what}");
        Self { what, image, touched: vec![path.to_owned()], thorough: true, whole: false }
    }

    fn whole(path: &str, what: String, image: DiskImage) -> Self {
        Self { whole: true, ..Self::of(path, what, image) }
    }
}

/// Creates one damage on demand.
pub type Make<'a> = Box<dyn Fn() -> Damage + Send + Sync + 'a>;

fn put(image: &DiskImage, path: &str, bytes: &[u8]) -> DiskImage {
    let mut image = image.clone();
    assert!(image.put(path, bytes));
    image
}

fn chosen(image: &DiskImage, of: &str) -> Vec<(String, Vec<u8>)> {
    let mut all = files(image);
    all.retain(|(path, _)| path.contains(of));
    all
}

/// The kinds, by name: a function of a corpus, a seed, and a text that the path must contain.
pub type Kind = (&'static str, for<'c> fn(&'c Corpus, u64, &str) -> Vec<Make<'c>>);

/// All kinds.
pub const KINDS: [Kind; 7] = [
    ("missing_files", missing_files),
    ("emptied_folders", emptied_folders),
    ("stale_files", stale_files),
    ("swapped_files", swapped_files),
    ("zeroed_sectors", zeroed_sectors),
    ("truncations", truncations),
    ("bit_flips", bit_flips),
];

/// Every nth byte flip is judged thoroughly; no structure has this period.
const THOROUGH: usize = 7;

/// One random bit of every byte; every bit at the release gate.
fn bit_flips<'c>(c: &'c Corpus, seed: u64, of: &str) -> Vec<Make<'c>> {
    let every = gate() == Gate::Release;
    let mut dice = Dice::new(seed);
    let mut out: Vec<Make<'c>> = Vec::new();
    for (path, bytes) in chosen(&c.image, of) {
        let bytes = std::sync::Arc::new(bytes);
        let step = if is_filler(&path) { 64 << 10 } else { 1 };
        for at in (0..bytes.len()).step_by(step) {
            let one = dice.below(8);
            for bit in if every { 0..8 } else { one..one + 1 } {
                let (path, bytes) = (path.clone(), bytes.clone());
                out.push(Box::new(move || {
                    let mut bytes = (*bytes).clone();
                    bytes[at] ^= 1 << bit;
                    let what = format!("byte {at} bit {bit}");
                    let thorough = at % THOROUGH == 0;
                    Damage { thorough, ..Damage::of(&path, what, put(&c.image, &path, &bytes)) }
                }));
            }
        }
    }
    out
}

/// Every file truncated, in steps that match no structure.
fn truncations<'c>(c: &'c Corpus, _: u64, of: &str) -> Vec<Make<'c>> {
    let mut out: Vec<Make<'c>> = Vec::new();
    for (path, bytes) in chosen(&c.image, of) {
        let step = if is_filler(&path) { 64 << 10 } else { 29 };
        for len in (0..bytes.len()).step_by(step) {
            let (path, bytes) = (path.clone(), bytes[..len].to_vec());
            out.push(Box::new(move || {
                Damage::whole(&path, format!("cut to {len}"), put(&c.image, &path, &bytes))
            }));
        }
    }
    out
}

/// Every sector of every file set to zero.
fn zeroed_sectors<'c>(c: &'c Corpus, _: u64, of: &str) -> Vec<Make<'c>> {
    let mut out: Vec<Make<'c>> = Vec::new();
    for (path, bytes) in chosen(&c.image, of) {
        for at in (0..bytes.len()).step_by(512) {
            let (path, mut bytes) = (path.clone(), bytes.clone());
            let end = bytes.len().min(at + 512);
            if bytes[at..end].iter().all(|b| *b == 0) {
                continue;
            }
            bytes[at..end].fill(0);
            out.push(Box::new(move || {
                Damage::of(&path, format!("sector at {at}"), put(&c.image, &path, &bytes))
            }));
        }
    }
    out
}

/// Every file removed.
fn missing_files<'c>(c: &'c Corpus, _: u64, of: &str) -> Vec<Make<'c>> {
    let one = |(path, _): (String, Vec<u8>)| -> Make<'c> {
        Box::new(move || {
            let mut image = c.image.clone();
            assert!(image.remove(&path));
            Damage::whole(&path, "missing".into(), image)
        })
    };
    chosen(&c.image, of).into_iter().map(one).collect()
}

/// Every directory of the logs and topics emptied: one at a time, and all of them.
fn emptied_folders<'c>(c: &'c Corpus, _: u64, of: &str) -> Vec<Make<'c>> {
    let all = chosen(&c.image, of);
    let folders: std::collections::BTreeSet<String> = all
        .iter()
        .filter(|f| f.0.contains("/wal/") || f.0.contains("/topics/"))
        .flat_map(|f| {
            let folder = f.0.rsplit_once('/').map_or("", |f| f.0);
            let above = folder.rsplit_once('/').map_or("", |f| f.0);
            [folder.to_owned(), above.to_owned()]
        })
        .collect();
    let one = |folder: String| -> Make<'c> {
        let all = all.clone();
        Box::new(move || {
            let mut image = c.image.clone();
            let mut touched = Vec::new();
            for (path, _) in all.iter().filter(|f| f.0.starts_with(&format!("{folder}/"))) {
                assert!(image.remove(path));
                touched.push(path.clone());
            }
            Damage { touched, ..Damage::whole(&folder, "emptied".into(), image) }
        })
    };
    folders.into_iter().map(one).collect()
}

/// Every file in an earlier version, and files that were removed since.
fn stale_files<'c>(c: &'c Corpus, _: u64, of: &str) -> Vec<Make<'c>> {
    let now: BTreeMap<String, Vec<u8>> = files(&c.image).into_iter().collect();
    let stale = chosen(&c.older, of).into_iter().filter(|(p, b)| now.get(p) != Some(b));
    let one = |(path, bytes): (String, Vec<u8>)| -> Make<'c> {
        Box::new(move || {
            let mut image = c.image.clone();
            image.put(&path, &bytes);
            Damage::of(&path, "stale".into(), image)
        })
    };
    stale.map(one).collect()
}

/// Two files of one kind exchanged, including those of the two equal topics.
fn swapped_files<'c>(c: &'c Corpus, _: u64, of: &str) -> Vec<Make<'c>> {
    let all = files(&c.image);
    let kind = |p: &str| p.rsplit(['.', '/']).next().unwrap_or("").to_owned();
    let mut out: Vec<Make<'c>> = Vec::new();
    for (i, a) in all.iter().enumerate() {
        for b in all[i + 1..].iter().filter(|b| kind(&a.0) == kind(&b.0) && a.1 != b.1) {
            if !a.0.contains(of) && !b.0.contains(of) {
                continue;
            }
            let (a, b) = (a.clone(), b.clone());
            out.push(Box::new(move || {
                let image = put(&put(&c.image, &a.0, &b.1), &b.0, &a.1);
                let what = format!("{} and {} swapped", a.0, b.0);
                let touched = vec![a.0.clone(), b.0.clone()];
                Damage { what, image, touched, thorough: true, whole: true }
            }));
        }
    }
    out
}
