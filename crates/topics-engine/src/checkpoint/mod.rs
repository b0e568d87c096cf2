//! Checkpoints: what leaves the log for segments, the snapshot, and giving disk space back.
//!
//! | part | does |
//! |---|---|
//! | `round` | copy → sync → install → capture → wait → snapshot → trim |
//! | `snapshot` | the state of every topic at the positions that it reflects |
//! | `reclaim` | writes segments anew that are half dead, merges small neighbours |
//! | `full_disk` | what a round and a reclaim do while the disk is full |
//! | `schedule` | when a round is due |

pub(crate) mod full_disk;
pub(crate) mod reclaim;
pub(crate) mod round;
pub(crate) mod schedule;
pub(crate) mod snapshot;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU64};
use topics_storage::checkpoint::Checkpoints;
use topics_storage::snapshot::ShardSnap;

use self::round::CheckpointState;
use crate::catalog::Catalog;

/// The topics of an open engine with what makes them durable outside of the log.
pub(crate) struct Store {
    catalog: Arc<Catalog>,
    /// What only opening, checkpoints and closing look at.
    pub disk: Disk,
    /// Segments were replaced since the last snapshot.
    pub replaced: AtomicBool,
    /// The log takes more than it may: checkpoints cannot keep up.
    wal_full: AtomicBool,
    /// A shard has no space for its next log file.
    short_of_space: AtomicBool,
    /// When the last round on the timer was run, on the monotonic clock.
    last_round: AtomicU64,
}

/// The directory that is open.
#[derive(Debug)]
pub(crate) struct Disk {
    pub checkpoints: Checkpoints,
    pub store_id: [u8; 16],
    /// Shards outside the layout.
    pub outside: Vec<ShardSnap>,
    /// Held for a checkpoint round.
    pub round: Mutex<CheckpointState>,
    /// Bytes logged when the last round began.
    pub logged_at_round: AtomicU64,
    /// Snapshots in a row before which nothing, or nothing but the first, had changed.
    pub settled_rounds: AtomicU64,
    /// The last round found no descriptor: another is due soon.
    pub put_off: AtomicBool,
}

/// A layer has what the layer below has.
impl Deref for Store {
    type Target = Arc<Catalog>;
    fn deref(&self) -> &Arc<Catalog> {
        &self.catalog
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Store {
    /// `checkpoints` are those of the directory, `store_id` is its id, `outside` are the shards
    /// outside of the layout.
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
        })
    }
}
