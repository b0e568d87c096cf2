//! Directories of every released format version open and serve their records.
//!
//! `TOPICS_WRITE_FIXTURE=1` writes those of the current version again.

use std::process::ExitCode;

use topics_tests::crash::{Mounted, Plan};
use topics_tests::damage::corpora;
use topics_tests::fixture::{load, names, render, write};
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
    if std::env::var("TOPICS_WRITE_FIXTURE").is_ok() {
        for corpus in corpora(seed(), &HookSpec::None) {
            write(VERSION, &corpus).map_err(|e| e.to_string())?;
        }
    }
    for version in 1..=VERSION {
        let found = names(version).map_err(|e| format!("fixtures of version {version}: {e}"))?;
        if found.is_empty() {
            return Err(format!("version {version} has no fixture"));
        }
        for name in found {
            opens(version, &name).map_err(|e| format!("v{version}/{name}: {e}"))?;
        }
    }
    Ok(())
}

fn opens(version: u32, name: &str) -> Outcome {
    let (image, expected) = load(version, name).map_err(|e| e.to_string())?;
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
    let mut disk = Mounted::new(&image, &plan);
    for n in 1..=2 {
        let engine = disk.open().map_err(|e| format!("open {n}: {e}"))?;
        let (seen, problems) = observe(&engine, WALL, 50);
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let shown = render(&seen);
        if shown != expected {
            let pair = shown.lines().zip(expected.lines()).find(|(a, b)| a != b);
            return Err(format!("open {n} differs: {pair:?}"));
        }
        engine.checkpoint().map_err(|e| e.to_string())?;
        engine.close().map_err(|e| e.to_string())?;
    }
    Ok(())
}
