//! The product model: an in-memory record of attempted, acked and observed calls, and the verdict
//! about the state that an engine serves after a crash.
//!
//! acked ⊆ readable ∪ reported; readable ⊆ attempted; batches complete; seq → value never changes;
//! a failed write is undetermined, never contradictory.

mod check;
mod config;
mod learn;
mod log;
mod observe;
mod retries;
mod topic;
mod world;

pub use config::apply_patch;
pub use log::{Body, CallId, Event, Op, Rec, Reply, tag_of};
pub use observe::{Observation, Seen, TopicObs, observe, observe_damaged};
pub use retries::Retried;
pub use topic::{Cause, Inc, Keep, Mark, Slot};
pub use world::{Attempt, AttemptState, World};
