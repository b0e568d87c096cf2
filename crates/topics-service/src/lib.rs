//! The routes of `/v0` without sockets: a request in, a reply out, in the call or later.
//!
//! A [`Service`] belongs to one event loop. [`Service::call`] never blocks: a verb that waits for
//! the disk runs on a worker thread, and a call that waits for records or jobs, or a claim whose leases are
//! logged, waits in the engine.
//! Replies that come later go to the [`Sink`]. A [`Service::local`] answers the threads of the process that
//! has the engine open, which may block.

mod completion;
mod consumer_reads;
mod consumers;
mod dispatch;
mod large_bodies;
mod queues;
mod request_counts;
mod routers;
mod scan;
mod scan_stream;
mod service;
mod sessions;
mod socket;
mod streams;
mod timer;
mod topic_reads;
mod topics;
mod txns;
mod unsent;
mod verb;
mod waiting_calls;
mod worker_pool;

pub use completion::completion_pair;
pub use large_bodies::LARGE_BODY;
pub use request_counts::{RequestCount, RequestCounts};
pub use scan::{FFI_ArrowArrayStream, FFI_ArrowSchema, IpcStream, Scan};
pub use service::{PutBackup, Reply, Request, Service, Sink};
pub use streams::{NextAction, PULL_BYTES, StreamOutput};
pub use topics::is_prefix;
pub use unsent::UnsentBytes;
pub use verb::Verb;
pub use worker_pool::WorkerPool;

#[cfg(test)]
mod cold_tests;
#[cfg(test)]
mod scan_tests;
#[cfg(test)]
mod tests;
