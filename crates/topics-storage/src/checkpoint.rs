//! Which files are needed: by the snapshots that are kept, and by nobody.
//!
//! One rule trims everything. Two snapshots are kept. A WAL file goes when it ends at or below the
//! replay position of the *older* one; a segment file goes when neither names it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use topics_env::Env;

use crate::dir::{Paths, reserve};
use crate::segment::{Part, SegmentName, Segments};
use crate::snapshot::{self, Loaded, SnapshotBody};
use crate::wal::Wal;
use crate::{Result, StorageError};

/// What a record takes in an `.idx`.
const IDX_ENTRY: u64 = 20;

/// What a kept snapshot holds back.
#[derive(Debug)]
struct Kept {
    n: u64,
    /// Replay position per shard.
    replay: BTreeMap<u32, u64>,
    /// The files that it names, ascending.
    files: Vec<(SegmentName, Part)>,
    /// Its topics, ascending.
    topics: Vec<u64>,
    /// Bytes of the largest segment, that is not in the cold tier.
    largest: u64,
}

impl Kept {
    fn of(n: u64, body: &SnapshotBody) -> Self {
        let all = body.shards.iter().chain(&body.retired);
        let named = |t: &snapshot::TopicSnap| {
            t.segments.iter().flat_map(|s| s.files(t.topic_id)).collect::<Vec<_>>()
        };
        let mut files: Vec<_> = body.topics.iter().flat_map(named).collect();
        let mut topics: Vec<u64> = body.topics.iter().map(|t| t.topic_id).collect();
        files.sort_unstable();
        topics.sort_unstable();
        let hot = body.topics.iter().flat_map(|t| &t.segments).filter(|s| !s.cold);
        let largest = hot.map(|s| s.data_len + IDX_ENTRY * s.span()).max().unwrap_or(0);
        Self { n, replay: all.map(|s| (s.shard, s.replay_lsn)).collect(), files, topics, largest }
    }

    fn names(&self, file: &(SegmentName, Part)) -> bool {
        self.files.binary_search(file).is_ok()
    }

    fn has(&self, topic: u64) -> bool {
        self.topics.binary_search(&topic).is_ok()
    }
}

#[derive(Debug)]
struct Inner {
    /// The number that the next snapshot gets.
    next: u64,
    /// Kept snapshots, oldest first, at most two.
    kept: VecDeque<Kept>,
    /// Snapshots that are not kept any more, until what only they name is gone.
    leaving: Vec<Kept>,
    bytes: u64,
}

/// The snapshots of a directory and what they keep alive.
#[derive(Debug)]
pub struct Checkpoints {
    env: Env,
    paths: Paths,
    segments: Arc<Segments>,
    inner: Mutex<Inner>,
}

impl Checkpoints {
    /// Goes on from what an open found.
    pub fn new(
        env: Env,
        paths: Paths,
        store_id: [u8; 16],
        segments: Arc<Segments>,
        found: &Loaded,
    ) -> Result<Self> {
        let mut kept = VecDeque::new();
        if let Some((newest, body)) = &found.newest {
            for n in found.numbers.iter().filter(|n| *n < newest).take(1) {
                if let Ok(older) = snapshot::load(&env, &paths, *n, store_id) {
                    kept.push_back(Kept::of(*n, &older));
                }
            }
            kept.push_back(Kept::of(*newest, body));
        }
        let inner = Inner {
            next: found.numbers.iter().max().map_or(1, |n| n + 1),
            kept,
            leaving: Vec::new(),
            bytes: found.bytes,
        };
        Ok(Self { env, paths, segments, inner: Mutex::new(inner) })
    }

    /// The number of the newest kept snapshot, 0 for none.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.inner.lock().kept.back().map_or(0, |k| k.n)
    }

    /// Writes a snapshot; `wait` returns when all that it reflects is durable in the log. It takes
    /// effect by its rename; an error before leaves the previous ones in force.
    pub fn write(&self, body: &SnapshotBody, wait: impl Fn() -> Result<()>) -> Result<u64> {
        let n = self.inner.lock().next;
        let attempt = || snapshot::write(&self.env, &self.paths, n, body, &wait);
        let full = |r: &Result<u64>| matches!(r, Err(StorageError::Full { .. }));
        let mut written = attempt();
        if full(&written) {
            // The reserve is there for this: without a snapshot nothing can be freed.
            let bytes = snapshot::encode(n, body)?.len() as u64;
            reserve::give(&self.env, &self.paths, bytes)?;
            written = attempt();
        }
        if full(&written) {
            reserve::release(&self.env, &self.paths)?;
            written = attempt();
        }
        let mut inner = self.inner.lock();
        // The number is not given again: a failed write may have left a file of that name.
        inner.next = n + 1;
        inner.bytes = written?;
        inner.kept.push_back(Kept::of(n, body));
        while inner.kept.len() > 2 {
            let gone = inner.kept.pop_front();
            inner.leaving.extend(gone);
        }
        Ok(n)
    }

    /// Gives up a part of the reserve for files of this many bytes that free more than they take.
    pub fn give_way(&self, bytes: u64) -> Result<()> {
        reserve::give(&self.env, &self.paths, bytes)
    }

    /// Bytes that files may have which free more than they take: the free ones, and those of the
    /// reserve that no snapshot needs.
    pub fn room(&self) -> Result<u64> {
        let keep = reserve::for_snapshots(self.inner.lock().bytes);
        let spare = reserve::size(&self.env, &self.paths)?.saturating_sub(keep);
        Ok(self.free().saturating_add(spare).saturating_sub(reserve::SLACK))
    }

    /// Free bytes, 0 when that cannot be told.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.env.fs.free_space(self.paths.root()).unwrap_or(0)
    }

    /// Takes back what was given up of the reserve, as far as there is room.
    pub fn refill(&self, wal: &Wal) {
        let (bytes, largest) = {
            let inner = self.inner.lock();
            (inner.bytes, inner.kept.back().map_or(0, |k| k.largest))
        };
        let copies = largest.max(wal.largest_file());
        if let Err(e) = reserve::ensure(&self.env, &self.paths, bytes, copies) {
            log::warn!("no reserve for a full disk: {e}");
        }
    }

    /// A kept snapshot, the newest; `None`: there is none.
    pub fn load_newest(&self, store_id: [u8; 16]) -> Result<Option<SnapshotBody>> {
        match self.newest() {
            0 => Ok(None),
            n => snapshot::load(&self.env, &self.paths, n, store_id).map(Some),
        }
    }

    /// Removes snapshots, WAL files and segment files that nothing needs any more.
    pub fn trim(&self, wal: &Wal) -> Result<()> {
        let mut inner = self.inner.lock();
        let keep: Vec<u64> = inner.kept.iter().map(|k| k.n).collect();
        snapshot::prune(&self.env, &self.paths, &keep)?;
        if let Some(older) = inner.kept.front().filter(|_| keep.len() == 2) {
            for (shard, lsn) in &older.replay {
                if (*shard as usize) < wal.shards() {
                    wal.trim(*shard as usize, *lsn)?;
                }
            }
        }
        while let Some(gone) = inner.leaving.last() {
            let unnamed = gone.files.iter().filter(|f| !inner.kept.iter().any(|k| k.names(f)));
            let files: Vec<_> = unnamed.copied().collect();
            self.segments.remove_files(&files)?;
            for topic in &gone.topics {
                if !inner.kept.iter().any(|k| k.has(*topic)) {
                    self.segments.remove_topic(*topic)?;
                }
            }
            inner.leaving.pop();
        }
        drop(inner);
        self.refill(wal);
        Ok(())
    }

    /// After an open, before the first write: removes segment files that neither kept snapshot
    /// names, and folders of topics that are in neither and not `live`.
    pub fn sweep(&self, live: &BTreeSet<u64>) -> Result<u64> {
        let inner = self.inner.lock();
        let mut removed = 0;
        for topic in self.segments.list_topics()? {
            let known = inner.kept.iter().any(|k| k.has(topic));
            if !known && !live.contains(&topic) {
                self.segments.remove_topic(topic)?;
                continue;
            }
            let files = self.segments.list_files(topic)?;
            let stray: Vec<_> =
                files.into_iter().filter(|f| !inner.kept.iter().any(|k| k.names(f))).collect();
            removed += stray.len() as u64;
            self.segments.remove_files(&stray)?;
        }
        Ok(removed)
    }
}
