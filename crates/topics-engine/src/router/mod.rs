//! Routers copy the records of one topic to another, asynchronously.
//!
//! | module | purpose |
//! |---|---|
//! | `define` | the definition of a router, and its bytes in the log and in the snapshot |
//! | `registry` | the routers of an engine and their logged cursors |
//! | `verbs` | create, delete, get, list |
//! | `run` | copies records, on the delivery workers |
//! | `copy` | the copy of one record |
//!
//! A run of copies is one batch in the destination's log: a `Forward` frame, which is the router's
//! cursor, and the copies. After a crash the log has both or neither (I7). The log also determines the
//! seqs and times of the copies and their order among direct writes and deletes.

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
