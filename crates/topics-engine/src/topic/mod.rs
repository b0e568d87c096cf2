//! One topic, composed of modules.
//!
//! | module | does |
//! |---|---|
//! | `state` | the applied state: index, tags, keys, a queue's jobs; pure |
//! | `write` | prepares, admits, decides and stages a write; a pending batch |
//! | `read` | plans a read, fetches, verifies |
//! | `apply` | changes the topic by finished frames, live and in recovery |
//! | `events` | the two seams to the layers above |
//! | `gate` | the visible head, and the callbacks that wait for it |
//! | `lifecycle` | creation, update and deletion in the log; exclusive access |
//! | `retention`, `delete` | floors, caps, TTL; deletes |
//! | `lease`, `cursors` | leases of jobs and stored cursors of consumers, as logged |
//! | `load` | reads from segment files what a change of the topic needs |
//! | `persist` | the copy, installation and capture of a checkpoint; a topic from a snapshot |
//! | `view`, `map` | the topic's state as callers see it, and where its records lie |
//! | `totals` | its part of the engine's totals |
//!
//! Locks, in order: `append` → `state` → the shard's. None is held across I/O. `append` orders staged
//! batches, so that seq order is queue order; readers see `state`.

use std::fmt;
use std::sync::Arc;

use topics_env::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use topics_env::sync::{Condvar, Mutex, OnceLock, RwLock};
use topics_storage::segment::TopicKey;

pub(crate) mod apply;
pub(crate) mod cursors;
pub(crate) mod delete;
pub(crate) mod events;
pub(crate) mod exclusive;
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
pub(crate) use self::delete::{delete as delete_records, delete_single};
pub(crate) use self::events::TopicObserver;
pub(crate) use self::exclusive::ExclusiveGuard;
pub(crate) use self::lifecycle::{delete_superseded, lower, report_losses};
pub(crate) use self::map::segment_map;
pub use self::map::{SegmentMap, SeqRange, Tier};
pub(crate) use self::persist::{CopyPlan, CopyRun, Install, InstallSegment};
pub(crate) use self::read::{
    PendingFetch, lag, on_head, read, read_async, read_waiting, seek, synced_seq, until,
};
pub(crate) use self::retention::{expire, expire_before_write, sweep_records};
pub(crate) use self::state::State;
pub(crate) use self::state::dedupe::Key;
pub(crate) use self::state::index::{Dead, Seg};
pub(crate) use self::totals::ROUNDS_TO_FREE;
pub(crate) use self::view::state;
pub(crate) use self::write::append_state::AppendState;
pub(crate) use self::write::forward::{Forwarding, forward_gap};
pub(crate) use self::write::pending_batch::Applied;

use self::gate::Gate;
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};

/// The phase of a topic's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// The creation is not committed, so readers do not see the topic.
    Creating,
    /// The topic exists.
    Live,
    /// The topic was deleted, or its creation failed.
    Dead,
}

pub(crate) struct Topic {
    pub key: TopicKey,
    pub name: Arc<str>,
    pub(crate) life: AtomicU8,
    pub(crate) append: Mutex<AppendState>,
    /// Notified when an [`ExclusiveGuard`] is dropped, and when the last pending batch has finished
    /// that a verb waits for.
    pub(crate) exclusive_released: Condvar,
    pub(crate) state: RwLock<State>,
    pub(crate) gate: Gate,
    /// Whether a logged frame could not be applied, so that memory differs from the log.
    pub(crate) broken: AtomicBool,
    /// Whether the files that the snapshot names were not verified yet.
    pub(crate) files_unverified: AtomicBool,
    /// Batches staged and neither applied nor failed.
    pub(crate) pending_batches: AtomicU32,
    /// Verbs that wait until no batch is pending.
    pub(crate) idle_waiters: AtomicU32,
    /// Pending batches that are deletes.
    pub(crate) deletes: AtomicU32,
    /// Time of the last read, ms; 0 before the first.
    pub(crate) last_read: AtomicU64,
    /// The delivery's subscribers of this topic, created with the first watcher or router.
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

    /// Closes the topic until the next open, because memory may differ from the log. Recovery replays
    /// it.
    pub(crate) fn close_broken(&self, why: &dyn fmt::Display) {
        if !self.broken.swap(true, Ordering::AcqRel) {
            log::error!("topic {:?} is closed until the next open: {why}", self.name);
        }
        // Waiting callers check the topic again, and are refused.
        self.gate.release();
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Refuses a topic that [`Self::close_broken`] has closed.
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
