//! Leased queues: which job a claim gets, who holds it, until when.
//!
//! | part | does |
//! |---|---|
//! | `job` | what is known of one |
//! | `machine` | jobs that are leased, waiting again, delayed or dead; fences; the claim cursor |
//! | `order` | lanes with their turns, groups |
//! | `tally` | counts of jobs that expired or were dead-lettered |
//! | `codec` | the queue's section of a snapshot |
//!
//! Nothing here does I/O or looks at a clock: time is an argument. What is kept follows what is in
//! flight; a job without options costs nothing until it is claimed, one with options (lane, group,
//! due time) an entry until it is gone.

pub(crate) mod codec;
mod job;
mod machine;
mod order;
mod tally;
#[cfg(test)]
mod tests;

pub(crate) use self::job::{Fence, Holder, JobHistory, JobView};
pub(crate) use self::machine::Queue;
pub(crate) use self::tally::RemovalReason;
