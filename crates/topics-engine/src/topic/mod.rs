//! One topic, composed of parts.
//!
//! | part | does |
//! |---|---|
//! | `state` | what has been applied: index, tags, keys, a queue's jobs; pure |
//! | `write` | prepares, admits, decides and stages a write; a batch on its way |
//! | `read` | plans a read, fetches, verifies |
//! | `apply` | changes the topic by finished frames, live and in recovery |
//! | `events` | the two seams to the layers above |
//! | `gate` | the visible head and who waits for it |
//! | `lifecycle` | the creation, update and deletion in the log, and what must be alone |
//! | `retention`, `delete` | floors, caps, TTL; deletes |
//! | `lease`, `cursors` | leases of jobs, stored cursors of consumers, as the log has them |
//! | `load` | what must be read from segment files to change a topic |
//! | `persist` | what a checkpoint copies, installs and captures; a topic from a snapshot |
//! | `view`, `map` | what the topic says about itself, and where its records lie |
//! | `totals` | its part of the engine's totals |
//!
//! Locks, in order: `append` → `state` → the shard's. None is held across I/O. `append` orders
//! what is staged, so seq order is queue order; `state` is what readers see.

use std::fmt;
use std::sync::Arc;

use topics_env::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use topics_env::sync::{Condvar, Mutex, OnceLock, RwLock};
use topics_storage::segment::TopicKey;

pub(crate) mod apply;
pub(crate) mod cursors;
pub(crate) mod delete;
pub(crate) mod events;
pub(crate) mod gate;
pub(crate) mod lease;
pub(crate) mod lifecycle;
pub(crate) mod load;
pub(crate) mod map;
pub(crate) mod persist;
pub(crate) mod read;
pub(crate) mod retention;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod totals;
pub(crate) mod view;
pub(crate) mod write;

pub(crate) use self::apply::{Placement, apply};
pub(crate) use self::delete::delete as delete_records;
pub(crate) use self::events::TopicObserver;
pub(crate) use self::lifecycle::{ExclusiveGuard, delete_superseded, lower};
pub(crate) use self::map::segment_map;
pub use self::map::{SegmentMap, SeqRange, Tier};
pub(crate) use self::persist::{CopyPlan, CopyRun, Install, InstallSegment};
pub(crate) use self::read::{read, read_with, seek, synced_seq};
pub(crate) use self::retention::{expire, expire_before_write, sweep_records};
pub(crate) use self::state::State;
pub(crate) use self::state::dedupe::Key;
pub(crate) use self::state::index::{Dead, Seg};
pub(crate) use self::view::state;
pub(crate) use self::write::append::AppendState;
pub(crate) use self::write::forward::{Forwarding, forward_gap};
pub(crate) use self::write::pending_batch::Applied;

use self::gate::Gate;
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};

/// Where a topic is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its creation is not committed: readers do not see it.
    Creating,
    /// It is there.
    Live,
    /// It was deleted, or its creation failed.
    Dead,
}

/// A topic.
pub(crate) struct Topic {
    pub key: TopicKey,
    pub name: Arc<str>,
    pub(crate) life: AtomicU8,
    pub(crate) append: Mutex<AppendState>,
    /// Signalled when a verb that must be alone lets go of the topic, and when the last batch has
    /// landed that such a verb waits for.
    pub(crate) exclusive_released: Condvar,
    pub(crate) state: RwLock<State>,
    pub(crate) gate: Gate,
    /// A logged frame could not be applied: memory is not what the log says.
    pub(crate) broken: AtomicBool,
    /// The files that the snapshot names were not looked at yet.
    pub(crate) files_unverified: AtomicBool,
    /// Batches staged and neither applied nor failed.
    pub(crate) pending_batches: AtomicU32,
    /// Verbs that wait until there are none.
    pub(crate) idle_waiters: AtomicU32,
    /// Deletes among them.
    pub(crate) deletes: AtomicU32,
    /// Time of the last read, ms, 0 before the first.
    pub(crate) last_read: AtomicU64,
    /// The delivery's interest in this topic, made when a watcher or a router first needs it.
    pub(crate) subscribers: OnceLock<Arc<dyn TopicObserver>>,
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic")
            .field("name", &self.name)
            .field("key", &self.key)
            .field("life", &self.life())
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

impl Topic {
    /// A topic that has not been logged.
    pub(crate) fn new(key: TopicKey, name: Arc<str>, config: Arc<TopicConfig>) -> Self {
        Self {
            key,
            name,
            life: AtomicU8::new(Life::Creating as u8),
            append: Mutex::new(AppendState::new(config.clone())),
            exclusive_released: Condvar::new(),
            state: RwLock::new(State::new(config)),
            gate: Gate::default(),
            broken: AtomicBool::new(false),
            files_unverified: AtomicBool::new(false),
            pending_batches: AtomicU32::new(0),
            idle_waiters: AtomicU32::new(0),
            deletes: AtomicU32::new(0),
            last_read: AtomicU64::new(0),
            subscribers: OnceLock::new(),
        }
    }

    pub(crate) fn life(&self) -> Life {
        match self.life.load(Ordering::Acquire) {
            0 => Life::Creating,
            1 => Life::Live,
            _ => Life::Dead,
        }
    }

    pub(crate) fn set_life(&self, life: Life) {
        self.life.store(life as u8, Ordering::Release);
    }

    pub(crate) fn id(&self) -> u64 {
        self.key.topic_id
    }

    /// Memory may not be what the log says: nothing of the topic is shown or decided on until
    /// recovery has replayed it.
    pub(crate) fn close_broken(&self, why: &dyn fmt::Display) {
        if !self.broken.swap(true, Ordering::AcqRel) {
            log::error!("topic {:?} is closed until the next open: {why}", self.name);
        }
        // Whoever waits for it looks again, and is refused.
        self.gate.release();
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Refuses when memory is not what the log says.
    pub(crate) fn check_sound(&self) -> Result<()> {
        if self.broken.load(Ordering::Acquire) {
            let detail = format!(
                "topic {:?} is closed until the next open: memory may not be what its log says",
                self.name
            );
            return Err(Error::StorageUnavailable { reason: "io", detail });
        }
        Ok(())
    }
}
