//! The suites that prove the engine: an oracle of what was promised, workloads over the simulated
//! disk, and everything that enumerates, breaks and damages them.
//!
//! * [`oracle`]: what was attempted, acked and shown, and what must therefore be readable.
//! * [`run`]: drives an engine on the simulated disk and writes the oracle's log.
//! * [`workloads`]: deterministic scripts.

pub mod oracle;
pub mod run;
pub mod workloads;
