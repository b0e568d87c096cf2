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
//! | `session` | keeps the cursors of a watcher between two streams |
//! | `frame` | frames, events and watch options |
//!
//! Locks, in order: a topic's `append` → a topic's groups → the gate's list, a stream's queue → a
//! ready set. None is held across I/O, and no callback runs under one.

mod frame;
mod governor;
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
pub use self::session::SessionInfo;
pub(crate) use self::session::{attach, create, end};
pub use self::watch::{Closer, Watch, WatchRequest, WatchStart, watch_names};

pub(crate) use self::workers::DeliveryWorkers;
use crate::catalog::Catalog;
use crate::checkpoint::Store;
use crate::topic::events::{Base, Ctx};

/// The delivery of an open engine.
#[derive(Debug)]
pub(crate) struct Deliverer {
    store: Arc<Store>,
    pub workers: Arc<DeliveryWorkers>,
}

impl Deliverer {
    /// The topics with their snapshots and segments.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The names and ids of topics.
    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        self.store.catalog()
    }

    /// The log, and what is around it.
    pub(crate) fn ctx(&self) -> &Arc<Ctx> {
        self.store.ctx()
    }

    /// What is there without the log.
    pub(crate) fn base(&self) -> &Base {
        self.store.base()
    }

    pub(crate) fn new(store: Arc<Store>, workers: Arc<DeliveryWorkers>) -> Arc<Self> {
        Arc::new(Self { store, workers })
    }
}
