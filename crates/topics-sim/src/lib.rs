//! A simulated environment: a disk that keeps pending and durable bytes and names apart, faults, a
//! monitor of ordering rules, a manual clock and seeded randomness.
//!
//! [`SimFs`] is a file system in memory with a journal of every mutating call. After a run,
//! [`SimFs::crash_states`] returns every disk that a power cut during the run can leave;
//! [`SimFs::from_image`] mounts one of them for the next process. No result depends on time,
//! addresses or hash order: the same calls with the same seeds give the same states.

use std::sync::Arc;

use topics_env::Env;

mod clock;
mod control;
mod crash;
mod disk;
mod fault;
mod file;
mod fs;
mod hook;
mod journal;
mod objects;
mod state;
#[cfg(test)]
mod tests;

pub use clock::{SimClock, SimRng};
pub use control::{DeferUntil, SimFs, Violation};
pub use crash::{CrashCursor, CrashOptions, CrashState, DataFate, Survival};
pub use disk::DiskImage;
pub use fault::{CallFilter, CallKind, FaultKind};

pub use hook::{Mutant, SiteLog};
pub use journal::PageFate;
pub use objects::{
    Bucket, ObjectFault, ObjectOp, ObjectViolation, RequestGate, ServerFlaw, SimStore,
};

/// The process id of every simulated env: what lock files say, and how long they are, does not differ
/// between two runs.
const PROCESS_ID: u32 = 4321;

/// An env over an empty disk, with its components. The wall clock starts at 2023-11-14T22:13:20Z.
pub fn sim_env(seed: u64) -> (Env, Arc<SimFs>, Arc<SimClock>) {
    let fs = Arc::new(SimFs::new());
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    (env_on(&fs, &clock, seed), fs, clock)
}

/// An env over these components, for a restart on the same disk or clock.
pub fn env_on(fs: &Arc<SimFs>, clock: &Arc<SimClock>, seed: u64) -> Env {
    let env = Env::new(fs.clone(), clock.clone(), Arc::new(SimRng::new(seed)));
    env.with_process_id(PROCESS_ID)
}
