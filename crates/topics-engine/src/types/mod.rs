//! Types of all layers above: requests and answers, configs, errors, settings, clocks, quotas, counters,
//! waiters. Nothing here uses a topic, the log or a file.

pub(crate) mod api;
pub(crate) mod batch;
pub(crate) mod clock;
pub(crate) mod config;
pub(crate) mod consumer;
pub(crate) mod error;
pub(crate) mod meta;
pub(crate) mod metrics;
pub mod name;
pub(crate) mod options;
pub(crate) mod pending_calls;
pub(crate) mod priority;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod requests;
pub(crate) mod section;
pub(crate) mod wait;
