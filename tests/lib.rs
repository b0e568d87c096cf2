//! The suites that test the engine as a whole: an oracle of its guarantees, workloads over the
//! simulated disk, and suites that enumerate crashes, inject faults and damage files.
//!
//! * [`crash`]: crash states, recoveries, verdicts.
//! * [`damage`]: damaged directories.
//! * [`delivery`]: queues, routers, consumers and transactions through crashes.
//! * [`faults`]: calls that fail while the engine runs.
//! * [`fixture`]: directories of released format versions.
//! * [`harness`]: a plain test runner.
//! * [`model`]: random operations against the oracle.
//! * [`mutants`]: the engine without one of its syncs, renames or checks.
//! * [`oracle`]: the attempted, acked and observed calls, and the state that must therefore be
//!   readable.
//! * [`plain`]: random operations of queues, routers, watches and consumers against a simple model.
//! * [`realfs`]: a real engine in its own process, on a full disk and through power cuts.
//! * [`run`]: drives an engine on the simulated disk and writes the oracle's log.
//! * [`workloads`]: deterministic scripts.

pub mod crash;
pub mod damage;
pub mod delivery;
pub mod faults;
pub mod fixture;
pub mod harness;
pub mod model;
pub mod mutants;
pub mod oracle;
pub mod plain;
pub mod realfs;
pub mod run;
pub mod workloads;
