//! The state that all segments of an engine share.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::{Arc, Weak};

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use topics_env::{Env, FdReclaimer, File, OpenMode, is_fd_exhausted};

use super::cold::ColdFile;
use super::layout::DataHeader;
use super::lru::Lru;
use super::open::OpenSegment;
use super::{ColdFiles, FileKind, Segment, SegmentMeta, SegmentName, TopicKey, parse_file_name};
use crate::dir::{Paths, list_dir, show};
use crate::{Result, StorageError};

/// Segment settings. They affect only future seals: boundaries are read from files.
#[derive(Clone, Copy, Debug)]
pub struct SegmentOptions {
    /// Records (holes included) after which a segment is sealed.
    pub max_events: u64,
    /// Bytes of `.data` after which a segment is sealed, at most 1 GiB.
    pub max_bytes: u64,
    /// The maximum of files open for reading, two of each segment.
    pub max_open: usize,
    /// The maximum of files that a [`super::Round`] keeps open for their syncs.
    pub max_unsynced: usize,
}

impl SegmentOptions {
    /// The maximum of [`Self::max_bytes`]: offsets in `.idx` are `u32`.
    pub const MAX_BYTES: u64 = 1 << 30;
}

impl Default for SegmentOptions {
    fn default() -> Self {
        Self { max_events: 200_000, max_bytes: 64 << 20, max_open: 2048, max_unsynced: 64 }
    }
}

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Removals of names that no sync has covered: a power cut may undo them.
#[derive(Debug, Default)]
struct UnsyncedRemovals {
    /// Whether a topic's directory was removed.
    folders: bool,
    /// The topics whose directory had a file removed.
    topics: BTreeSet<u64>,
    /// Whether there are more of them than `topics` may hold.
    all: bool,
}

/// The state that all segments of an engine share: env, paths, identity, file numbers, open files.
#[derive(Debug)]
pub struct Segments {
    pub(super) env: Env,
    pub(super) paths: Paths,
    pub(super) options: SegmentOptions,
    store_id: [u8; 16],
    next_no: AtomicU64,
    open_segments: Mutex<Lru<OpenSegment>>,
    /// Numbers of files whose bytes may not be covered by any successful sync.
    suspects: Mutex<HashSet<u64>>,
    /// Active files that this process wrote from their first byte.
    fresh: Mutex<HashSet<u64>>,
    /// Files that rounds made durable since the last comparison with the snapshots.
    new_files: Mutex<Vec<(SegmentName, FileKind)>>,
    unsynced_removals: Mutex<UnsyncedRemovals>,
    sync_fs: AtomicU8,
    /// Number of failed syncs of the file system. The kernel reports an error to one sync only, so a
    /// failure counts against every round in progress.
    failed_fs_syncs: Mutex<u64>,
    corrupt: AtomicU64,
    rebuilt: AtomicU64,
    /// Whether the engine is closing: no file is opened any more.
    closed: AtomicBool,
    /// The records of cold segments, if the engine has their store.
    cold: std::sync::OnceLock<Arc<dyn ColdFiles>>,
}

impl Segments {
    /// Requires a durable topics directory. `generation` must be above every generation that has
    /// used file numbers in this directory.
    pub fn new(
        env: Env,
        paths: Paths,
        store_id: [u8; 16],
        generation: u64,
        mut options: SegmentOptions,
    ) -> Arc<Self> {
        options.max_bytes = options.max_bytes.min(SegmentOptions::MAX_BYTES);
        options.max_events = options.max_events.clamp(1, u64::from(u32::MAX));
        let this = Arc::new(Self {
            env,
            paths,
            store_id,
            next_no: AtomicU64::new((generation << 32) + 1),
            open_segments: Mutex::new(Lru::new((options.max_open / 2).max(1))),
            suspects: Mutex::default(),
            fresh: Mutex::default(),
            new_files: Mutex::default(),
            unsynced_removals: Mutex::default(),
            sync_fs: AtomicU8::new(UNKNOWN),
            failed_fs_syncs: Mutex::new(0),
            corrupt: AtomicU64::new(0),
            rebuilt: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            cold: std::sync::OnceLock::new(),
            options,
        });
        let reclaimer: Weak<Self> = Arc::downgrade(&this);
        this.env.on_fd_exhaustion(reclaimer);
        this
    }

    /// Sets where the records of cold segments come from, once.
    pub fn set_cold(&self, cold: Arc<dyn ColdFiles>) {
        let _ = self.cold.set(cold);
    }

    pub(crate) fn cold(&self) -> Option<&Arc<dyn ColdFiles>> {
        self.cold.get()
    }

    /// A new file number.
    pub fn next_file_no(&self) -> u64 {
        self.next_no.fetch_add(1, Ordering::Relaxed)
    }

    /// A reader of a segment. It opens files on first use.
    pub fn segment(self: &Arc<Self>, topic: TopicKey, meta: SegmentMeta) -> Segment {
        Segment::new(self.clone(), topic, meta)
    }

    /// Checks that the files that `metas` name exist and are not shorter than named (`lengths`: by
    /// opening each; otherwise only by a directory listing). A missing or short `.data` or `.del`
    /// is damage; `.idx`, `.tags` and `.attrs` can be rebuilt when needed. Skips segments outside
    /// the directory.
    pub fn check_named(&self, topic: TopicKey, metas: &[SegmentMeta], lengths: bool) -> Result<()> {
        let id = topic.topic_id;
        let here: HashSet<_> = self.list_files(id)?.into_iter().collect();
        for meta in metas {
            let data = (!meta.cold).then(|| (meta.data_name(id), FileKind::Data));
            for (name, kind) in
                data.into_iter().chain(meta.del_name(id).map(|n| (n, FileKind::Del)))
            {
                let path = self.paths.segment(&name, kind);
                if !self.env.check("segment.named", here.contains(&(name, kind))) {
                    return Err(StorageError::Missing { what: show(&path) });
                }
                if !lengths || kind != FileKind::Data {
                    continue;
                }
                let len = self
                    .env
                    .fs
                    .open(&path, topics_env::OpenMode::Read)
                    .and_then(|f| f.len())
                    .map_err(|e| super::open::io_error(&path, e))?;
                if !self.env.check("segment.length", len >= meta.data_len) {
                    return Err(StorageError::Corrupt {
                        file: show(&path),
                        offset: len,
                        detail: format!("the snapshot names {} bytes", meta.data_len),
                    });
                }
            }
        }
        Ok(())
    }

    /// The ids of the topics that have a directory.
    pub fn list_topics(&self) -> Result<Vec<u64>> {
        let names = list_dir(&self.env, &self.paths.topics())?;
        Ok(names.iter().filter_map(|e| e.name.parse().ok()).collect())
    }

    /// The segment files in a topic's directory.
    pub fn list_files(&self, topic_id: u64) -> Result<Vec<(SegmentName, FileKind)>> {
        let names = list_dir(&self.env, &self.paths.topic(topic_id))?;
        Ok(names.iter().filter_map(|e| parse_file_name(topic_id, &e.name)).collect())
    }

    /// Removes files; a missing file is not an error. Readers keep files that they opened.
    pub fn remove_files(&self, files: &[(SegmentName, FileKind)]) -> Result<()> {
        for (name, kind) in files {
            self.remove_file(name.topic_id, &self.paths.segment(name, *kind))?;
            if matches!(kind, FileKind::Data | FileKind::Idx) {
                self.forget(name.file_no);
            }
        }
        Ok(())
    }

    /// Removes a topic's directory with its content.
    pub fn remove_topic(&self, topic_id: u64) -> Result<()> {
        let dir = self.paths.topic(topic_id);
        for entry in list_dir(&self.env, &dir)? {
            self.remove_file(topic_id, &dir.join(&entry.name))?;
            // Forget the file after its removal: before it, a reader could open the file again.
            if let Some((name, _)) = parse_file_name(topic_id, &entry.name) {
                self.forget(name.file_no);
            }
        }
        match self.remove_dir(topic_id) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StorageError::io(show(&dir), e))
            }
            _ => Ok(()),
        }
    }

    /// Removes a topic's directory if it is empty. The next writer creates it again.
    pub(crate) fn remove_if_empty(&self, topic_id: u64) {
        let _ = self.remove_dir(topic_id);
    }

    fn remove_dir(&self, topic_id: u64) -> std::io::Result<()> {
        self.env.fs.remove_dir(&self.paths.topic(topic_id))?;
        let mut removals = self.unsynced_removals.lock();
        removals.folders = true;
        removals.topics.remove(&topic_id);
        Ok(())
    }

    /// Removes a file that no snapshot names, as far as that is possible.
    pub(super) fn discard_file(&self, name: &SegmentName, kind: FileKind) {
        let _ = self.remove_file(name.topic_id, &self.paths.segment(name, kind));
    }

    /// Removes a file; a missing one is not an error.
    fn remove_file(&self, topic_id: u64, path: &Path) -> Result<()> {
        match self.env.fs.remove_file(path) {
            Ok(()) => self.add_removals(topic_id),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(StorageError::io(show(path), e)),
        }
        Ok(())
    }

    /// Notes that files may have been removed from a topic's directory, by this process or by an
    /// earlier one that did not close.
    pub(crate) fn add_removals(&self, topic_id: u64) {
        let mut removals = self.unsynced_removals.lock();
        if !removals.all {
            removals.topics.insert(topic_id);
        }
        if removals.topics.len() > self.options.max_unsynced {
            removals.all = true;
            removals.topics.clear();
        }
    }

    /// Notes that directories of topics may have been removed by an earlier process that did not close.
    pub(crate) fn add_folder_removals(&self) {
        self.unsynced_removals.lock().folders = true;
    }

    /// Makes the removal of files and of directories durable: no power cut brings them back.
    pub fn sync_removals(&self) -> Result<()> {
        let removals = std::mem::take(&mut *self.unsynced_removals.lock());
        if removals.all && self.can_sync_fs() {
            return self.sync_fs(self.fs_sync_mark());
        }
        let sync = |dir: &Path| match self.env.sync_dir("segment.removed", dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StorageError::io(show(dir), e))
            }
            _ => Ok(()),
        };
        let topics = match removals.all {
            true => self.list_topics()?,
            false => removals.topics.into_iter().collect(),
        };
        topics.iter().try_for_each(|id| sync(&self.paths.topic(*id)))?;
        if removals.folders || removals.all { sync(&self.paths.topics()) } else { Ok(()) }
    }

    /// Counts since the start: records that failed their checksum, and times that a damaged or
    /// missing `.idx`, `.tags` or `.attrs` was rebuilt from the records.
    pub fn damage_counts(&self) -> (u64, u64) {
        (self.corrupt.load(Ordering::Relaxed), self.rebuilt.load(Ordering::Relaxed))
    }

    pub(super) fn count_corrupt(&self, file: &str, seq: u64, offset: u32) {
        self.corrupt.fetch_add(1, Ordering::Relaxed);
        log::error!("{file} is damaged at offset {offset}: the record {seq} fails its checksum");
    }

    /// Counts an unusable `.idx`, `.tags` or `.attrs`.
    pub(super) fn count_rebuilt(&self, why: &StorageError) {
        self.rebuilt.fetch_add(1, Ordering::Relaxed);
        log::warn!("{why}; its contents are read from the records instead");
    }

    /// Keeps a file that was fetched, if the directory may be written to: the next open finds it there. It is
    /// not synced: the store has it.
    pub(super) fn keep_side(&self, path: &Path, file: ColdFile) -> Arc<dyn File> {
        let written = || {
            let new = self.env.fs.open(path, OpenMode::CreateNew)?;
            new.write_all_at(file.bytes(), 0)?;
            self.env.fs.open(path, OpenMode::Read)
        };
        if self.env.is_read_only() {
            return Arc::new(file);
        }
        written().unwrap_or_else(|e| {
            log::warn!("{} was fetched, and is not kept: {e}", show(path));
            // Part of it, if this call created it.
            let _ = self.env.fs.remove_file(path);
            Arc::new(file)
        })
    }

    pub(super) fn open_segment(&self, topic: TopicKey, file_no: u64) -> Arc<OpenSegment> {
        if self.is_closed() {
            return Arc::new(OpenSegment::new(topic));
        }
        self.open_segments.lock().get_or_insert(file_no, || Arc::new(OpenSegment::new(topic)))
    }

    /// Closes every file. A read in progress keeps its files; later reads fail with `Closed`.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // The files close after the lock is released.
        let all = self.open_segments.lock().take_all();
        drop(all);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Closes the files of a segment. A read in progress keeps them.
    pub(super) fn forget(&self, file_no: u64) {
        let _ = self.open_segments.lock().remove(file_no);
        self.fresh.lock().remove(&file_no);
    }

    pub(super) fn data_header(
        &self,
        topic: TopicKey,
        first_seq: u64,
        file_no: u64,
        salt: u64,
    ) -> DataHeader {
        DataHeader { store_id: self.store_id, topic, first_seq, file_no, salt }
    }

    /// Marks files whose bytes may never reach the disk.
    pub(super) fn suspect(&self, file_nos: &[u64]) {
        self.suspects.lock().extend(file_nos);
    }

    /// Whether a sync of the file failed. The next writer creates such a file again under a new
    /// number.
    pub fn is_suspect(&self, file_no: u64) -> bool {
        let suspects = self.suspects.lock();
        !self.env.check("segment.suspect", !suspects.contains(&file_no))
    }

    pub(crate) fn add_new_files(&self, files: &[(SegmentName, FileKind)]) {
        self.new_files.lock().extend(files);
    }

    pub(crate) fn has_new_files(&self) -> bool {
        !self.new_files.lock().is_empty()
    }

    /// The files that rounds made durable since the last call, grouped by topic.
    pub(crate) fn take_new_files(&self) -> Vec<(SegmentName, FileKind)> {
        let mut new_files = std::mem::take(&mut *self.new_files.lock());
        new_files.sort_unstable();
        new_files
    }

    pub(super) fn set_fresh(&self, file_no: u64, fresh: bool) {
        let mut set = self.fresh.lock();
        if fresh {
            set.insert(file_no)
        } else {
            set.remove(&file_no)
        };
    }

    pub(super) fn is_fresh(&self, file_no: u64) -> bool {
        self.fresh.lock().contains(&file_no)
    }

    /// Whether one sync of the file system can replace many file syncs; determined once.
    pub(super) fn can_sync_fs(&self) -> bool {
        match self.sync_fs.load(Ordering::Relaxed) {
            UNKNOWN => {
                let tried = self.env.fs.sync_fs(self.paths.root());
                if !tried.as_ref().is_err_and(is_fd_exhausted) {
                    self.sync_fs.store(if tried.is_ok() { YES } else { NO }, Ordering::Relaxed);
                }
                tried.is_ok()
            }
            known => known == YES,
        }
    }

    /// The failure count to pass to [`Self::sync_fs`].
    pub(super) fn fs_sync_mark(&self) -> u64 {
        *self.failed_fs_syncs.lock()
    }

    /// Makes everything written durable. Fails also if another sync has failed since `mark`.
    pub(super) fn sync_fs(&self, mark: u64) -> Result<()> {
        let mut failed = self.failed_fs_syncs.lock();
        let dir = self.paths.topics();
        let outcome = self.env.sync_fs("segment.sync-fs", &dir);
        if let Err(e) = &outcome
            && !is_fd_exhausted(e)
        {
            *failed += 1;
            if e.kind() == std::io::ErrorKind::Unsupported {
                self.sync_fs.store(NO, Ordering::Relaxed);
            }
        }
        let lost = || std::io::Error::other("another sync of the file system failed meanwhile");
        let outcome = outcome.and_then(|()| if *failed == mark { Ok(()) } else { Err(lost()) });
        outcome.map_err(|e| StorageError::io(show(&dir), e))
    }
}

impl FdReclaimer for Segments {
    /// Closes all cached files. The next read of a segment opens and checks them again.
    fn reclaim_fds(&self) {
        // The files close after the lock is released.
        let all = self.open_segments.lock().take_all();
        if !all.is_empty() {
            log::debug!("no file descriptor is left: {} segments are closed", all.len());
        }
    }
}
