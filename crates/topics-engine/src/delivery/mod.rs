//! Delivery: after a commit, workers push the new records of a topic to its watchers, topics of high
//! priority first.
//!
//! | module | does |
//! |---|---|
//! | `ready`, `governor` | pure: the ready set, the pressure |
//! | `workers` | the threads, parked when idle; one ready set each |
//! | `subscribers` | the subscribers of a topic: groups of live watchers with equal options, and routers |
//! | `service` | serves one dirty topic: one read for each group, a pointer for each watcher |
//! | `stream` | a watcher's bounded queue and cursors |
//! | `watch` | the watcher's end: reads the queue first, then the backlog by the read path |
//! | `history` | numbers the events of a session, to go back to one |
//! | `session` | keeps the cursors of a watcher between two streams |
//! | `frame` | frames, events and watch options |
//!
//! Locks, in order: a topic's `append` → a topic's groups → the gate's list, a stream's queue → a
//! ready set. None is held across I/O, and no callback runs under one.

mod frame;
mod governor;
mod history;
mod ready;
mod service;
mod session;
mod stream;
mod subscribers;
#[cfg(test)]
mod tests;
mod watch;
mod workers;

use std::sync::Arc;

pub use self::frame::{Event, Frame, WatchOptions};
pub use self::history::EventHistory;
pub use self::session::{Received, Session, SessionInfo};
pub(crate) use self::session::{attach, create, end, find};
pub use self::watch::{Closer, Watch, WatchRequest, WatchStart, watch_names};

pub(crate) use self::workers::DeliveryWorkers;
use crate::checkpoint::{Store, layers_below};

/// The delivery of an open engine.
#[derive(Debug)]
pub(crate) struct Deliverer {
    store: Arc<Store>,
    pub workers: Arc<DeliveryWorkers>,
}

impl Deliverer {
    layers_below!();

    pub(crate) fn new(store: Arc<Store>, workers: Arc<DeliveryWorkers>) -> Arc<Self> {
        Arc::new(Self { store, workers })
    }
}
