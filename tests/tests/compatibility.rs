//! Directories of every released format version open and serve their records, jobs, cursors and
//! transactions.
//!
//! `TOPICS_WRITE_FIXTURE=1` writes those of the current version again; `TOPICS_WRITE_FIXTURE=NAME`
//! writes one of them.

use std::process::ExitCode;

use topics_sim::DiskImage;
use topics_tests::crash::{Mounted, Plan};
use topics_tests::damage::corpora;
use topics_tests::delivery::{FIXTURE, Script};
use topics_tests::fixture::{load, names, render, render_work, write};
use topics_tests::harness::{self, Outcome, seed};
use topics_tests::oracle::observe;
use topics_tests::run::{HookSpec, Tuning};

/// The format version of this build.
const VERSION: u32 = 1;
const WALL: u64 = 1_700_000_000_000;

fn main() -> ExitCode {
    harness::main("compatibility", &[("every_version_opens", every_version_opens)])
}

fn every_version_opens() -> Outcome {
    if let Ok(only) = std::env::var("TOPICS_WRITE_FIXTURE") {
        for (name, image) in images().into_iter().filter(|i| ["1", i.0].contains(&&*only)) {
            let state = opened(&image, 1)?.remove(0);
            write(VERSION, name, &image, &state).map_err(|e| e.to_string())?;
        }
    }
    for version in 1..=VERSION {
        let found = names(version).map_err(|e| format!("fixtures of version {version}: {e}"))?;
        if found.is_empty() {
            return Err(format!("version {version} has no fixture").into());
        }
        for name in found {
            opens(version, &name).map_err(|e| format!("v{version}/{name}: {e}"))?;
        }
    }
    Ok(())
}

/// The directories of this build, by the names of their fixtures.
fn images() -> Vec<(&'static str, DiskImage)> {
    let mut all: Vec<_> =
        corpora(seed(), &HookSpec::None).into_iter().map(|c| (c.name, c.image)).collect();
    let mut script = Script::new(seed(), FIXTURE.shards, HookSpec::None);
    (FIXTURE.run)(&mut script);
    let (fs, _) = &script.lives[0];
    all.push((FIXTURE.name, fs.kill_image().with_boot(2).with_mount(2)));
    all
}

fn opens(version: u32, name: &str) -> Result<(), String> {
    let (image, expected) = load(version, name).map_err(|e| e.to_string())?;
    for (n, shown) in opened(&image, 2)?.into_iter().enumerate() {
        if shown != expected {
            let pair = shown.lines().zip(expected.lines()).find(|(a, b)| a != b);
            let lines = [shown.lines().count(), expected.lines().count()];
            return Err(format!("open {} differs: {pair:?}, lines {lines:?}", n + 1));
        }
    }
    Ok(())
}

/// The states that a directory serves in several opens, one after another.
fn opened(image: &DiskImage, opens: usize) -> Result<Vec<String>, String> {
    let plan = Plan {
        tuning: Tuning::default(),
        wall: WALL,
        seed: seed(),
        hook: HookSpec::None,
        retries: Vec::new().into(),
        thorough: true,
        journal: false,
        sound: true,
    };
    let mut disk = Mounted::new(image, &plan);
    let mut states = Vec::new();
    for n in 1..=opens {
        let engine = disk.open().map_err(|e| format!("open {n}: {e}"))?;
        let (seen, problems) = observe(&engine, WALL, 50);
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let work = render_work(&engine, &seen).map_err(|e| e.to_string())?;
        states.push(render(&seen) + &work);
        engine.checkpoint().map_err(|e| e.to_string())?;
        engine.close().map_err(|e| e.to_string())?;
    }
    Ok(states)
}
