//! Checkpoints: move records from the log to segments, write snapshots, free disk space.
//!
//! | module | purpose |
//! |---|---|
//! | `round` | copy → sync → install → capture → wait → snapshot → trim |
//! | `snapshot` | the state of every topic at the positions that it reflects |
//! | `reclaim` | rewrites segments that are half dead, merges small neighbours |
//! | `full_disk` | rounds and reclaim on a full disk |
//! | `schedule` | when a round is due |
//! | `memory` | writes that wait until a round has made memory free |

pub(crate) mod full_disk;
pub(crate) mod memory;
pub(crate) mod reclaim;
pub(crate) mod round;
pub(crate) mod schedule;
pub(crate) mod snapshot;

use std::fmt;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU64};
use topics_storage::checkpoint::Checkpoints;
use topics_storage::snapshot::ShardSnap;

use self::memory::MemoryWaiters;
use self::round::CheckpointState;
use crate::catalog::Catalog;
use crate::topic::events::{Base, Ctx};

/// The topics of an open engine, and the snapshots and segments that make them durable outside of the
/// log.
pub(crate) struct Store {
    catalog: Arc<Catalog>,
    /// Used by open, checkpoints and close.
    pub disk: Disk,
    /// Segments were replaced since the last snapshot.
    pub replaced: AtomicBool,
    /// The log is larger than its limit: checkpoints cannot keep up.
    wal_full: AtomicBool,
    /// A shard has no space for its next log file.
    short_of_space: AtomicBool,
    /// When the last scheduled round began (monotonic ms).
    last_round: AtomicU64,
    /// Writes that wait until a round has made memory free.
    pub memory: Arc<MemoryWaiters>,
}

/// The directory that is open.
#[derive(Debug)]
pub(crate) struct Disk {
    pub checkpoints: Checkpoints,
    pub store_id: [u8; 16],
    /// Shards outside the layout.
    pub outside: Vec<ShardSnap>,
    /// Locked during a checkpoint round.
    pub round: Mutex<CheckpointState>,
    /// Bytes logged when the last round began.
    pub logged_at_round: AtomicU64,
    /// Consecutive snapshots without a change before them, except before the first.
    pub settled_rounds: AtomicU64,
    /// The last round found no free descriptor: another one is due soon.
    pub put_off: AtomicBool,
}

/// The methods of a context with a field `store` that name that store and the layers below it.
macro_rules! layers_below {
    () => {
        /// The topics with their snapshots and segments.
        pub(crate) fn store(&self) -> &std::sync::Arc<$crate::checkpoint::Store> {
            &self.store
        }

        /// The names and ids of topics.
        pub(crate) fn catalog(&self) -> &std::sync::Arc<$crate::catalog::Catalog> {
            self.store.catalog()
        }

        /// The log, and what is around it.
        pub(crate) fn ctx(&self) -> &std::sync::Arc<$crate::topic::events::Ctx> {
            self.store.ctx()
        }

        /// What is there without the log.
        pub(crate) fn base(&self) -> &$crate::topic::events::Base {
            self.store.base()
        }
    };
}
pub(crate) use layers_below;

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("dir", &self.base().dir).finish_non_exhaustive()
    }
}

impl Store {
    /// The names and ids of topics.
    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The log, and what is around it.
    pub(crate) fn ctx(&self) -> &Arc<Ctx> {
        self.catalog.ctx()
    }

    /// What is there without the log.
    pub(crate) fn base(&self) -> &Base {
        self.catalog.base()
    }

    /// `checkpoints` are those of the directory with this id, `outside` are the shards outside of the
    /// layout.
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        checkpoints: Checkpoints,
        store_id: [u8; 16],
        outside: Vec<ShardSnap>,
    ) -> Arc<Self> {
        let disk = Disk {
            checkpoints,
            store_id,
            outside,
            round: Mutex::new(CheckpointState::default()),
            logged_at_round: AtomicU64::new(0),
            settled_rounds: AtomicU64::new(0),
            put_off: AtomicBool::new(false),
        };
        Arc::new(Self {
            catalog,
            disk,
            replaced: AtomicBool::new(false),
            wal_full: AtomicBool::new(false),
            short_of_space: AtomicBool::new(false),
            last_round: AtomicU64::new(0),
            memory: Arc::default(),
        })
    }
}
