//! The kept snapshots, the files that they need, and the removal of all others.
//!
//! One rule trims everything. Two snapshots are kept. A WAL file is removed when it ends at or below
//! the replay position of the *older* one; a segment file when neither names it, nor a snapshot that a
//! backup has pinned. The `.data` of a cold segment stays until the object that holds its bytes was seen,
//! because it may be the only copy.

mod orphans;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use topics_env::Env;
use topics_env::sync::Mutex;

use self::orphans::{
    LocalData, Orphan, cold_data, find_orphan, find_orphans, named, no_longer_cold,
};
use crate::dir::{Paths, read_file, reserve, show};
use crate::segment::{FileKind, SegmentName, Segments};
use crate::snapshot::{
    self, EncodedSnapshot, LoadedSnapshots, SegmentBytes, Snapshot, SnapshotBody, Table,
};
use crate::wal::Wal;
use crate::{Result, StorageError};

#[derive(Debug)]
struct KeptSnapshot {
    n: u64,
    /// Replay position per shard; `None` until the snapshot was read.
    replay: Option<BTreeMap<u32, u64>>,
    segments: SegmentBytes,
}

impl KeptSnapshot {
    fn of(n: u64, body: &SnapshotBody, segments: SegmentBytes) -> Self {
        let all = body.shards.iter().chain(&body.retired);
        let replay = all.map(|s| (s.shard, s.replay_lsn)).collect();
        Self { n, replay: Some(replay), segments }
    }
}

/// The files that snapshots name, and the topics with a folder. Short-lived, because it takes memory for
/// every segment.
#[derive(Debug, Default)]
struct NamedFiles {
    files: Vec<(SegmentName, FileKind)>,
    /// The `.data` of cold segments.
    cold: LocalData,
    topics: Vec<u64>,
}

impl NamedFiles {
    fn add_snapshot(&mut self, topics: &Table) -> Result<()> {
        for i in 0..topics.len() {
            self.files.extend(named(topics, i)?);
            self.cold.extend(cold_data(topics, i)?);
            self.topics.push(topics.id(i));
        }
        self.sort();
        Ok(())
    }

    /// Adds files that no snapshot names yet.
    fn add_files(&mut self, files: &[(SegmentName, FileKind)]) {
        self.files.extend(files);
        self.topics.extend(files.iter().map(|(name, _)| name.topic_id));
        self.sort();
    }

    fn sort(&mut self) {
        self.files.sort_unstable();
        self.topics.sort_unstable();
    }

    fn names(&self, file: &(SegmentName, FileKind)) -> bool {
        self.files.binary_search(file).is_ok()
    }

    fn has(&self, topic: u64) -> bool {
        self.topics.binary_search(&topic).is_ok()
    }
}

#[derive(Debug)]
struct Inner {
    /// The number of the next snapshot.
    next: u64,
    /// Kept snapshots, oldest first, at most two.
    kept: VecDeque<KeptSnapshot>,
    /// Snapshots that are no longer kept and not removed yet.
    superseded: Vec<u64>,
    /// Files and topics that only they named.
    orphans: Vec<Orphan>,
    /// What no kept snapshot names, and is not removed before its object was seen.
    local: LocalData,
    /// Snapshots whose segment files stay while a backup takes them over.
    pinned: Vec<Arc<Snapshot>>,
    /// Snapshots that were pinned: the next trim removes what only they named.
    unpinned: Vec<Arc<Snapshot>>,
    /// Whether a trim left files behind that only a sweep finds.
    needs_sweep: bool,
    bytes: u64,
}

/// Keeps the segment files of a snapshot until it is dropped, for a backup that takes them over.
#[derive(Debug)]
pub struct Pinned<'a> {
    checkpoints: &'a Checkpoints,
    /// The number of the snapshot.
    pub n: u64,
    pub snapshot: Arc<Snapshot>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut inner = self.checkpoints.inner.lock();
        let at = inner.pinned.iter().position(|p| Arc::ptr_eq(p, &self.snapshot));
        let unpinned = at.map(|at| inner.pinned.swap_remove(at));
        inner.unpinned.extend(unpinned);
    }
}

/// The snapshots of a directory and the files that they need.
#[derive(Debug)]
pub struct Checkpoints {
    env: Env,
    paths: Paths,
    store_id: [u8; 16],
    segments: Arc<Segments>,
    inner: Mutex<Inner>,
}

impl Checkpoints {
    /// Starts with the snapshots that an open found. The older one is read when it is first needed.
    pub fn new(
        env: Env,
        paths: Paths,
        store_id: [u8; 16],
        segments: Arc<Segments>,
        found: &LoadedSnapshots,
    ) -> Self {
        let mut kept = VecDeque::new();
        if let Some((newest, snapshot)) = &found.newest {
            let older = found.numbers.iter().filter(|n| *n < newest).take(1);
            let unread =
                |n: &u64| KeptSnapshot { n: *n, replay: None, segments: SegmentBytes::default() };
            kept.extend(older.map(unread));
            kept.push_back(KeptSnapshot::of(*newest, &snapshot.body, snapshot.segments));
        }
        let inner = Inner {
            next: found.numbers.iter().max().map_or(1, |n| n + 1),
            kept,
            superseded: Vec::new(),
            orphans: Vec::new(),
            local: LocalData::new(),
            pinned: Vec::new(),
            unpinned: Vec::new(),
            needs_sweep: false,
            bytes: found.bytes,
        };
        Self { env, paths, store_id, segments, inner: Mutex::new(inner) }
    }

    fn load(&self, n: u64) -> Result<Snapshot> {
        snapshot::load(&self.env, &self.paths, n, self.store_id)
    }

    /// Reads the older snapshot unless it was read before. A damaged one is dropped.
    fn load_older(&self, inner: &mut Inner) -> Result<()> {
        let unread = inner.kept.iter().position(|k| k.replay.is_none());
        let Some(at) = unread else { return Ok(()) };
        let n = inner.kept[at].n;
        match self.load(n) {
            Ok(found) => inner.kept[at] = KeptSnapshot::of(n, &found.body, found.segments),
            Err(
                e @ (StorageError::Corrupt { .. }
                | StorageError::Missing { .. }
                | StorageError::Version { .. }),
            ) => {
                log::warn!("snapshot {n} is not kept: {e}");
                inner.kept.remove(at);
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// The number of the newest kept snapshot, 0 for none.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.inner.lock().kept.back().map_or(0, |k| k.n)
    }

    /// The replay position of each shard in that snapshot; empty without one.
    #[must_use]
    pub fn newest_replay(&self) -> BTreeMap<u32, u64> {
        let inner = self.inner.lock();
        inner.kept.back().and_then(|k| k.replay.clone()).unwrap_or_default()
    }

    /// The length of that snapshot.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// Writes the snapshot of `body`. `wait` returns when everything that it reflects is durable in the
    /// log. The snapshot takes effect with its rename; an earlier error leaves the previous ones valid.
    /// `on_full` is called before a part of the reserve is released for it: no one else may take that.
    pub fn write(
        &self,
        body: &SnapshotBody,
        mut snapshot: EncodedSnapshot,
        wait: impl Fn() -> Result<()>,
        on_full: impl FnOnce(),
    ) -> Result<u64> {
        let n = self.inner.lock().next;
        let (bytes, segments) = (snapshot.bytes(), snapshot.segments());
        let mut attempt = || snapshot::write(&self.env, &self.paths, n, &mut snapshot, &wait);
        let full = |r: &Result<u64>| matches!(r, Err(StorageError::Full { .. }));
        let mut written = attempt();
        if full(&written) {
            // The reserve is for this: without a snapshot no file can be removed.
            on_full();
            reserve::release_part(&self.env, &self.paths, bytes)?;
            written = attempt();
        }
        if full(&written) {
            reserve::release_all(&self.env, &self.paths)?;
            written = attempt();
        }
        let mut inner = self.inner.lock();
        // The number is not used again: a failed write may have left a file of that name.
        inner.next = n + 1;
        inner.bytes = written?;
        inner.kept.push_back(KeptSnapshot::of(n, body, segments));
        while inner.kept.len() > 2 {
            let gone = inner.kept.pop_front().map(|k| k.n);
            inner.superseded.extend(gone);
        }
        Ok(n)
    }

    /// Releases a part of the reserve for files of this many bytes that free more than they take.
    pub fn release_reserve(&self, bytes: u64) -> Result<()> {
        reserve::release_part(&self.env, &self.paths, bytes)
    }

    /// Bytes available to files that free more than they take: the free space, plus the part of the
    /// reserve that no snapshot needs.
    pub fn free_with_reserve(&self) -> Result<u64> {
        Ok(self.free().saturating_add(self.spare_reserve()?).saturating_sub(reserve::SLACK))
    }

    /// Releases up to `bytes` of the part of the reserve that no snapshot needs.
    pub fn release_spare_reserve(&self, bytes: u64) -> Result<()> {
        self.release_reserve(bytes.min(self.spare_reserve()?))
    }

    /// Bytes of the reserve that no snapshot needs.
    fn spare_reserve(&self) -> Result<u64> {
        let keep = reserve::for_snapshots(self.inner.lock().bytes);
        Ok(reserve::size(&self.env, &self.paths)?.saturating_sub(keep))
    }

    /// Free bytes on the disk, 0 if unknown.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.env.fs.free_space(self.paths.root()).unwrap_or(0)
    }

    /// Grows the reserve to its target size again, as far as the disk has space.
    pub fn refill(&self, wal: &Wal) {
        let (bytes, segments) = {
            let inner = self.inner.lock();
            (inner.bytes, inner.kept.back().map_or_else(SegmentBytes::default, |k| k.segments))
        };
        let ensured = reserve::size(&self.env, &self.paths).and_then(|have| {
            let free = self.env.fs.free_space(self.paths.root()).unwrap_or(u64::MAX >> 1);
            let used = [have, wal.bytes_on_disk(), segments.total];
            let space = used.into_iter().fold(free, u64::saturating_add);
            let want = wal.set_reserve(bytes, space, segments.largest);
            reserve::ensure(&self.env, &self.paths, want)
        });
        if let Err(e) = ensured {
            log::warn!("the reserve for a full disk cannot be made: {e}");
        }
    }

    /// The file of the newest kept snapshot with what it holds, if there is one.
    pub fn read_newest(&self) -> Result<Option<(Vec<u8>, Snapshot)>> {
        let n = self.newest();
        if n == 0 {
            return Ok(None);
        }
        let path = self.paths.snapshot(n);
        let bytes = read_file(&self.env, &path, u64::MAX)?
            .ok_or_else(|| StorageError::Missing { what: show(&path) })?;
        let decoded = snapshot::decode(&self.env, &show(&path), n, self.store_id, bytes.clone())?;
        Ok(Some((bytes, decoded)))
    }

    /// Every kept snapshot.
    pub fn read_kept(&self) -> Result<Vec<Snapshot>> {
        let kept: Vec<u64> = self.inner.lock().kept.iter().map(|k| k.n).collect();
        kept.into_iter().map(|n| self.load(n)).collect()
    }

    /// Pins the newest kept snapshot, if there is one. Its log files are not kept.
    pub fn pin_newest(&self) -> Result<Option<Pinned<'_>>> {
        let mut inner = self.inner.lock();
        let Some(n) = inner.kept.back().map(|k| k.n) else { return Ok(None) };
        let snapshot = Arc::new(self.load(n)?);
        inner.pinned.push(snapshot.clone());
        Ok(Some(Pinned { checkpoints: self, n, snapshot }))
    }

    /// The newest kept snapshot, if there is one.
    pub fn load_newest(&self) -> Result<Option<SnapshotBody>> {
        match self.newest() {
            0 => Ok(None),
            n => self.load(n)?.whole().map(Some),
        }
    }

    /// Removes snapshots, WAL files and segment files that are no longer needed.
    pub fn trim(&self, wal: &Wal) -> Result<()> {
        let mut inner = self.inner.lock();
        self.load_older(&mut inner)?;
        let made = self.segments.take_new_files();
        if !(inner.superseded.is_empty() && inner.unpinned.is_empty() && made.is_empty()) {
            match self.unnamed(&mut inner, &made) {
                Ok(orphans) => inner.orphans.extend(orphans),
                // Nothing was compared: the next trim does it.
                Err(e @ StorageError::NoDescriptor { .. }) => {
                    self.segments.add_new_files(&made);
                    return Err(e);
                }
                // The files stay until the next open that sweeps every folder.
                Err(e) => {
                    log::warn!("files that no snapshot names are not removed: {e}");
                    inner.needs_sweep = true;
                }
            }
            inner.superseded.clear();
            inner.unpinned.clear();
        }
        let keep: Vec<u64> = inner.kept.iter().map(|k| k.n).collect();
        snapshot::prune(&self.env, &self.paths, &keep)?;
        if let Some(older) = inner.kept.front().filter(|_| keep.len() == 2) {
            for (shard, lsn) in older.replay.iter().flatten() {
                if (*shard as usize) < wal.shards() {
                    wal.trim(*shard as usize, *lsn)?;
                }
            }
        }
        while let Some(orphan) = inner.orphans.last() {
            match orphan {
                Orphan::Files(files) => self.segments.remove_files(files)?,
                Orphan::Topic(id) => self.segments.remove_topic(*id)?,
            }
            inner.orphans.pop();
        }
        self.drop_seen(&mut inner)?;
        drop(inner);
        self.refill(wal);
        Ok(())
    }

    /// Whether every file and folder that no kept snapshot names was removed, and no pinned snapshot
    /// keeps one.
    #[must_use]
    pub fn is_trimmed(&self) -> bool {
        let inner = self.inner.lock();
        let is_compared = inner.superseded.is_empty()
            && inner.pinned.is_empty()
            && inner.unpinned.is_empty()
            && !self.segments.has_new_files();
        is_compared && inner.orphans.is_empty() && !inner.needs_sweep
    }

    /// The files that a superseded snapshot names, or that are in `made`, and no kept or pinned one names.
    /// Entries that are equal in a kept snapshot are skipped without decoding.
    fn unnamed(&self, inner: &mut Inner, made: &[(SegmentName, FileKind)]) -> Result<Vec<Orphan>> {
        let kept: Vec<Snapshot> =
            inner.kept.iter().map(|k| self.load(k.n)).collect::<Result<_>>()?;
        let pinned = inner.pinned.iter().map(|p| &p.topics);
        let kept: Vec<&Table> = kept.iter().map(|k| &k.topics).chain(pinned).collect();
        let local = &mut inner.local;
        let mut out = no_longer_cold(&kept, local)?;
        for files in made.chunk_by(|(a, _), (b, _)| a.topic_id == b.topic_id) {
            out.extend(find_orphan(&kept, files[0].0.topic_id, files.to_vec(), local)?);
        }
        for n in &inner.superseded {
            find_orphans(&kept, &self.load(*n)?.topics, &mut out, local)?;
        }
        for unpinned in &inner.unpinned {
            find_orphans(&kept, &unpinned.topics, &mut out, local)?;
        }
        Ok(out)
    }

    /// Removes the `.data` of cold segments whose objects were seen.
    fn drop_seen(&self, inner: &mut Inner) -> Result<()> {
        let Some(cold) = self.segments.cold() else { return Ok(()) };
        let is_seen = |file_no| self.env.check("cold.seen", cold.is_seen(file_no));
        let seen: Vec<SegmentName> =
            inner.local.iter().filter(|(_, no)| is_seen(**no)).map(|(name, _)| *name).collect();
        for name in seen {
            self.segments.remove_files(&[(name, FileKind::Data)])?;
            inner.local.remove(&name);
        }
        Ok(())
    }

    /// Removes the `.data` of cold segments whose objects were seen since the last trim.
    pub fn drop_local(&self) -> Result<()> {
        self.drop_seen(&mut self.inner.lock())
    }

    /// The file numbers of cold segments whose `.data` waits until their objects are seen. After a clean
    /// close nothing is known of them: `search` looks for them in the folders.
    pub fn local_cold(&self, search: bool) -> Result<Vec<u64>> {
        let mut inner = self.inner.lock();
        if search {
            self.load_older(&mut inner)?;
            let kept: Vec<Snapshot> =
                inner.kept.iter().map(|k| self.load(k.n)).collect::<Result<_>>()?;
            let tables: Vec<&Table> = kept.iter().map(|k| &k.topics).collect();
            let Some(newest) = kept.last() else { return Ok(Vec::new()) };
            for i in 0..newest.topics.len() {
                let cold = cold_data(&newest.topics, i)?;
                if cold.is_empty() {
                    continue;
                }
                let id = newest.topics.id(i);
                let mut files = self.segments.list_files(id)?;
                // Other files may be new ones, which no snapshot names yet.
                let is_cold = |name: &SegmentName| cold.iter().any(|(n, _)| n == name);
                files.retain(|(name, kind)| *kind == FileKind::Data && is_cold(name));
                find_orphan(&tables, id, files, &mut inner.local)?;
            }
        }
        Ok(inner.local.values().copied().collect())
    }

    /// After an open, before the first write: removes the segment files that no kept snapshot names, and
    /// the folders of the topics that none names. Files that this open created stay, with their folders.
    pub fn sweep(&self) -> Result<u64> {
        let mut inner = self.inner.lock();
        self.load_older(&mut inner)?;
        let mut named = NamedFiles::default();
        for kept in &inner.kept {
            named.add_snapshot(&self.load(kept.n)?.topics)?;
        }
        // The next snapshot names the files that this open created.
        let made = self.segments.take_new_files();
        named.add_files(&made);
        self.segments.add_new_files(&made);
        let mut removed = 0;
        // The process before may have removed names without a sync.
        self.segments.add_folder_removals();
        for topic in self.segments.list_topics()? {
            if !named.has(topic) {
                self.segments.remove_topic(topic)?;
                continue;
            }
            self.segments.add_removals(topic);
            let files = self.segments.list_files(topic)?;
            let mut orphans: Vec<_> = files.into_iter().filter(|f| !named.names(f)).collect();
            orphans.retain(|(name, kind)| {
                let cold = named.cold.get(name).filter(|_| *kind == FileKind::Data);
                inner.local.extend(cold.map(|no| (*name, *no)));
                cold.is_none()
            });
            removed += orphans.len() as u64;
            self.segments.remove_files(&orphans)?;
        }
        Ok(removed)
    }
}
