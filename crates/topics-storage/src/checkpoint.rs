//! Which files are needed: by the snapshots that are kept, and by nobody.
//!
//! One rule trims everything. Two snapshots are kept. A WAL file goes when it ends at or below the
//! replay position of the *older* one; a segment file goes when neither names it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use topics_env::Env;

use crate::dir::{Paths, reserve};
use crate::segment::{Part, SegmentName, Segments};
use crate::snapshot::{self, Loaded, SnapshotBody};
use crate::wal::Wal;
use crate::{Result, StorageError};

/// Files that memory no longer uses, and when a snapshot could last have named them.
#[derive(Debug)]
struct Garbage {
    /// The newest snapshot that may name them.
    named_by: u64,
    files: Vec<(SegmentName, Part)>,
    /// Topics that are gone: their folders.
    topic: Option<u64>,
}

/// What a kept snapshot holds back.
#[derive(Debug)]
struct Kept {
    n: u64,
    /// Replay position per shard.
    replay: BTreeMap<u32, u64>,
}

#[derive(Debug)]
struct Inner {
    /// The number that the next snapshot gets.
    next: u64,
    /// Kept snapshots, oldest first, at most two.
    kept: VecDeque<Kept>,
    /// A capture has begun: what is dropped from now on may be named by snapshot `next`.
    capturing: bool,
    garbage: VecDeque<Garbage>,
    bytes: u64,
}

/// The snapshots of a directory and what they keep alive.
#[derive(Debug)]
pub struct Checkpoints {
    env: Env,
    paths: Paths,
    store_id: [u8; 16],
    segments: Arc<Segments>,
    inner: Mutex<Inner>,
}

fn positions(n: u64, body: &SnapshotBody) -> Kept {
    let all = body.shards.iter().chain(&body.retired);
    Kept { n, replay: all.map(|s| (s.shard, s.replay_lsn)).collect() }
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
                    kept.push_back(positions(*n, &older));
                }
            }
            kept.push_back(positions(*newest, body));
        }
        let inner = Inner {
            next: found.numbers.iter().max().map_or(1, |n| n + 1),
            kept,
            capturing: false,
            garbage: VecDeque::new(),
            bytes: found.bytes,
        };
        Ok(Self { env, paths, store_id, segments, inner: Mutex::new(inner) })
    }

    /// The number of the newest kept snapshot, 0 for none.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.inner.lock().kept.back().map_or(0, |k| k.n)
    }

    /// Says that a capture begins: what is dropped while it runs may be in it.
    pub fn begin_capture(&self) {
        self.inner.lock().capturing = true;
    }

    /// Files that memory does not use any more; they go when no kept snapshot names them.
    pub fn drop_files(&self, files: Vec<(SegmentName, Part)>) {
        self.push(files, None);
    }

    /// A topic that is gone, with its folder.
    pub fn drop_topic(&self, topic_id: u64) {
        self.push(Vec::new(), Some(topic_id));
    }

    fn push(&self, files: Vec<(SegmentName, Part)>, topic: Option<u64>) {
        let mut inner = self.inner.lock();
        let named_by = if inner.capturing { inner.next } else { inner.next - 1 };
        inner.garbage.push_back(Garbage { named_by, files, topic });
    }

    /// Writes a snapshot; `wait` returns when all that it reflects is durable in the log. It takes
    /// effect by its rename; an error before leaves the previous ones in force.
    pub fn write(&self, body: &SnapshotBody, wait: impl Fn() -> Result<()>) -> Result<u64> {
        let n = self.inner.lock().next;
        let written = snapshot::write(&self.env, &self.paths, n, body, &wait);
        let written = match written {
            Err(StorageError::Full { .. }) => {
                // The reserve is there for this: without a snapshot nothing can be freed.
                reserve::release(&self.env, &self.paths)?;
                snapshot::write(&self.env, &self.paths, n, body, &wait)
            }
            other => other,
        };
        let mut inner = self.inner.lock();
        inner.capturing = false;
        // The number is not given again: a failed write may have left a file of that name.
        inner.next = n + 1;
        inner.bytes = written?;
        inner.kept.push_back(positions(n, body));
        while inner.kept.len() > 2 {
            inner.kept.pop_front();
        }
        Ok(n)
    }

    /// Removes snapshots, WAL files and segment files that nothing needs any more.
    pub fn trim(&self, wal: &Wal) -> Result<()> {
        let (keep, replay, garbage, bytes) = {
            let mut inner = self.inner.lock();
            let keep: Vec<u64> = inner.kept.iter().map(|k| k.n).collect();
            let older = inner.kept.front().filter(|_| keep.len() == 2);
            let replay = older.map(|k| k.replay.clone()).unwrap_or_default();
            let oldest = older.map_or(0, |k| k.n);
            let due = inner.garbage.iter().take_while(|g| g.named_by < oldest).count();
            let garbage: Vec<Garbage> = inner.garbage.drain(..due).collect();
            (keep, replay, garbage, inner.bytes)
        };
        snapshot::prune(&self.env, &self.paths, &keep)?;
        for (shard, lsn) in replay {
            if (shard as usize) < wal.shards() {
                wal.trim(shard as usize, lsn)?;
            }
        }
        for g in garbage {
            self.segments.remove_files(&g.files)?;
            if let Some(topic) = g.topic {
                self.segments.remove_topic(topic)?;
            }
        }
        if let Err(e) = reserve::ensure(&self.env, &self.paths, bytes) {
            log::warn!("no reserve for snapshots on a full disk: {e}");
        }
        Ok(())
    }

    /// After an open: removes segment files of earlier generations that neither kept snapshot names
    /// and no live topic uses. `live` says what memory uses.
    pub fn sweep(&self, generation: u64, live: &HashSet<u64>) -> Result<u64> {
        let mut named: HashSet<(SegmentName, Part)> = HashSet::new();
        let mut topics = live.clone();
        let kept: Vec<u64> = self.inner.lock().kept.iter().map(|k| k.n).collect();
        for n in kept {
            let body = snapshot::load(&self.env, &self.paths, n, self.store_id)?;
            for t in &body.topics {
                topics.insert(t.topic_id);
                named.extend(t.segments.iter().flat_map(|s| s.files(t.topic_id)));
            }
        }
        let mut removed = 0;
        for topic in self.segments.list_topics()? {
            if !topics.contains(&topic) {
                self.segments.remove_topic(topic)?;
                continue;
            }
            let files = self.segments.list_files(topic)?;
            let stray: Vec<_> = files
                .into_iter()
                .filter(|f| f.0.file_no >> 32 < generation && !named.contains(f))
                .collect();
            removed += stray.len() as u64;
            self.segments.remove_files(&stray)?;
        }
        Ok(removed)
    }
}
