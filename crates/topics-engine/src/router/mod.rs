//! Routers: what is written to one topic is copied to another, asynchronously.
//!
//! | part | does |
//! |---|---|
//! | `define` | what a router is; its bytes in the log and in the snapshot |
//! | `registry` | which routers there are; their logged cursors |
//! | `verbs` | create, delete, look |
//! | `run` | copies, on the workers of the delivery |
//! | `copy` | the copy of a record |
//!
//! A run of copies is one batch in the destination's log: a `Forward` frame, which is the router's
//! cursor, and the copies. So both are there after a crash, or neither (I7), and the copies have
//! their seqs and times, and their place among direct writes and deletes, by the log.

mod copy;
mod define;
mod registry;
mod run;
#[cfg(test)]
mod tests;
mod verbs;

pub(crate) use self::define::Definition;
pub use self::define::{Guarantee, RouterInfo, RouterRequest};
pub(crate) use self::registry::{Routers, SECTION};
pub(crate) use self::run::{COPIES_LOGGED, Router, RunAgain, run};
pub(crate) use self::verbs::{create, delete, info, list};
