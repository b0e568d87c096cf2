//! The codec: what requests and answers of `/v0` look like, over `topics-engine`.
//!
//! Knows JSON, Arrow and the status table; knows no sockets, no threads, no Python.
#![deny(missing_docs)]

pub mod arrow;
pub mod config;
pub mod consumers;
mod error;
mod grant;
pub mod hot;
pub mod json;
pub mod limits;
pub mod metrics;
mod nearest;
pub mod object;
pub mod page;
pub mod query;
pub mod queue;
pub mod read;
pub mod report;
pub mod routers;
pub mod split;
pub mod topics;
pub mod watch;
pub mod write;

pub use error::{Failure, status};
pub use grant::Grant;
pub use limits::Limits;
pub use nearest::{nearest, unknown_name};
