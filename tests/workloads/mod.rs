//! Deterministic scripts; each exercises another part of the engine before the crash.

mod lifecycle;
mod log;
mod retention;
mod segments;
mod sequences;
mod trouble;

use topics_engine::{ConfigPatch, Durability};

use crate::run::{Driver, HookSpec, Recording, Setup};

pub use sequences::{KINDS, Kind, pairs, run as run_sequence};

/// A named script.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    /// Whether calls are expected to fail (a full disk).
    pub faults: bool,
    pub script: fn(&mut Driver),
}

const fn plain(name: &'static str, script: fn(&mut Driver)) -> Workload {
    Workload { name, faults: false, script }
}

/// All scripts.
pub const ALL: &[Workload] = &[
    plain("classes", log::classes),
    plain("batches", log::batches),
    plain("idempotency", log::idempotency),
    plain("rotation", log::rotation),
    plain("conditions", log::conditions),
    plain("shards", log::shards),
    plain("checkpoints", segments::checkpoints),
    plain("seals", segments::seals),
    plain("snapshots", segments::snapshots),
    plain("deletes", retention::deletes),
    plain("rewrites", retention::rewrites),
    plain("caps", retention::caps),
    plain("expiry", retention::expiry),
    plain("topics", lifecycle::topics),
    plain("configs", lifecycle::configs),
    plain("reopens", lifecycle::reopens),
    plain("resharding", lifecycle::resharding),
    plain("retired", lifecycle::retired),
    plain("crashes", lifecycle::crashes),
    Workload { name: "no_space", faults: true, script: trouble::no_space },
];

/// Only for the durability mutants: short scripts that reach specific calls.
pub const AIMED: &[Workload] = &[
    plain("wide", segments::wide),
    Workload { name: "broken", faults: true, script: trouble::broken },
];

impl Workload {
    /// Runs the script on an empty disk.
    pub fn run(&self, seed: u64, hook: HookSpec) -> Recording {
        self.run_with(seed, hook, self.faults, |_| ())
    }

    /// Runs the script on a prepared disk, for instance with faults.
    pub fn run_with(
        &self,
        seed: u64,
        hook: HookSpec,
        faults: bool,
        prepare: impl FnOnce(&Driver),
    ) -> Recording {
        let mut d = Driver::new(Setup { workload: self.name, seed, hook, faults });
        prepare(&d);
        (self.script)(&mut d);
        d.look();
        d.finish()
    }
}

/// A config patch that sets only the class.
pub fn class(durability: Durability) -> ConfigPatch {
    ConfigPatch { durability: Some(durability), ..ConfigPatch::default() }
}

pub const CLASSES: [Durability; 4] =
    [Durability::Ephemeral, Durability::Memory, Durability::Disk, Durability::Fsync];
