//! What happens after a commit: watchers are pushed to, by topic, in the order of priority.
//!
//! | part | does |
//! |---|---|
//! | `ready`, `governor` | pure: the ready set, the pressure |
//! | `workers` | the threads, parked when idle; one ready set each |
//! | `subscribers` | who wants a topic: groups of live watchers with equal options |
//! | `service` | serves one dirty topic: one read for each group, a pointer for each watcher |
//! | `stream` | a watcher's bounded queue and cursors |
//! | `watch` | the watcher's end: queue first, then what it missed through the read path |
//! | `session` | what is kept of a watcher between two streams |
//! | `frame` | what is delivered |
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

use std::ops::Deref;
use std::sync::Arc;

pub use self::frame::{Event, Frame, WatchOptions};
pub use self::session::SessionInfo;
pub(crate) use self::session::{attach, create, end};
pub use self::watch::{Closer, Watch, WatchRequest, WatchStart, watch_names};

pub(crate) use self::workers::Delivery;
use crate::checkpoint::Store;

/// The delivery of an open engine.
#[derive(Debug)]
pub(crate) struct Deliverer {
    store: Arc<Store>,
    pub delivery: Arc<Delivery>,
}

/// A layer has what the layer below has.
impl Deref for Deliverer {
    type Target = Arc<Store>;
    fn deref(&self) -> &Arc<Store> {
        &self.store
    }
}

impl Deliverer {
    pub(crate) fn new(store: Arc<Store>, delivery: Arc<Delivery>) -> Arc<Self> {
        Arc::new(Self { store, delivery })
    }
}
