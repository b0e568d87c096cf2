//! The codec of `/v0`: requests to engine types, engine types to answers.
//!
//! Covers JSON, Arrow, SSE and WebSocket frames, the status table, metrics as text, and the hot subset
//! of HTTP/1.1. Knows no threads, timers or sockets.

pub mod arrow;
pub mod config;
pub mod consumers;
mod error;
pub mod filter;
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
pub mod remote;
pub mod report;
pub mod routers;
pub mod routes;
pub mod split;
pub mod topics;
mod trace;
pub mod watch;
pub mod words;
pub mod write;

pub use error::{Failure, status};
pub use grant::Grant;
pub use limits::Limits;
pub use nearest::{nearest, unknown_name};
pub use trace::TraceContext;
