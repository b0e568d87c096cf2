//! Models: what the engine must do, in memory and as simply as possible. They look at everything on every
//! call, know no bytes and no threads, and depend on nothing.
//!
//! Tests of one structure and tests of the whole engine compare with the same model.

pub mod queue;
pub mod topic;
