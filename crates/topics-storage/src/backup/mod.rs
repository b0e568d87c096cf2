//! Copies of a data directory: backups of an open one, clones of a closed one.
//!
//! ```text
//! marker → staged rows → log → segments → snapshot → STORE → syncs → the marker goes
//! ```
//!
//! Sealed segment files and staged rows never change, so the copy shares them with the source by hard
//! links, and copies them where it cannot. Everything else is copied: active segments up to the length
//! that the snapshot names, and the log. The copy has a store id of its own: half of it is the
//! source's, which is the half that segments and staged rows carry.
//!
//! * `log`: the bytes of log files that a copy needs.
//! * `closed`: the copy of a directory that no engine has open.

mod closed;
mod log;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use topics_env::{Env, File, LockError, LockGuard, OpenMode};

pub use self::closed::clone_closed;
pub use self::log::{LogCopy, consistent_cut, log_upto};
use crate::dir::{INCOMPLETE, Lineage, Paths, Store, create_dir, list_dir, remove_tree, show};
use crate::format::wal_file::{self, WAL_HEADER, WalFileHeader};
use crate::segment::{FileKind, SegmentMeta, SegmentName};
use crate::snapshot::{self, EncodedSnapshot, Snapshot, SnapshotBuilder};
use crate::txn;
use crate::{Result, StorageError};

/// Bytes of one read of a copy.
const CHUNK: usize = 1 << 20;
/// The number of copied files, or of directories, from which on one sync of the file system replaces
/// theirs.
const MAX_UNSYNCED: usize = 512;

/// What a finished copy has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Files that the copy shares with the source.
    pub linked: u64,
    /// Files that were copied, those of the log included.
    pub copied: u64,
    /// The bytes of these.
    pub copied_bytes: u64,
}

/// A directory that is being written as the copy of another one. Until [`Self::finish`] it has a marker,
/// with which no engine opens it.
#[derive(Debug)]
pub struct CopyTarget {
    env: Env,
    source: Paths,
    paths: Paths,
    store: Store,
    /// Whether hard links are tried.
    links: bool,
    /// Directories with new names.
    dirs: BTreeSet<PathBuf>,
    max_unsynced: usize,
    /// Whether one sync of the file system replaces the syncs of the files from here on.
    wide: bool,
    report: CopyReport,
    done: bool,
    /// The locked marker.
    _marker: Box<dyn LockGuard>,
}

impl CopyTarget {
    /// Creates `root`, which must be missing or empty, for a copy of `source`.
    pub fn create(env: &Env, source: &Paths, store: &Store, root: &Path) -> Result<Self> {
        let paths = Paths::new(root);
        let refused = |detail: String| StorageError::Directory { dir: show(root), detail };
        if root.starts_with(source.root()) {
            let detail = "a copy cannot be inside of its source: choose another directory";
            return Err(refused(detail.into()));
        }
        crate::dir::make_root(env, &paths)?;
        let names = list_dir(env, root)?;
        if names.iter().any(|e| e.name != INCOMPLETE) {
            return Err(match names.iter().any(|e| e.name == INCOMPLETE) {
                true => paths.incomplete_error(),
                false => refused("it is not empty: choose a new directory, or an empty one".into()),
            });
        }
        // A later sync of the file system reports the errors of every write from here on.
        env.fs.mount_id(root).map_err(|e| StorageError::io(show(root), e))?;
        let text = format!("an unfinished copy of {}\n", source.root().display());
        let marker = match env.fs.lock(&paths.incomplete(), text.as_bytes()) {
            Ok(marker) => marker,
            Err(LockError::Held(_)) => {
                return Err(refused("another process is writing a copy there".into()));
            }
            Err(LockError::Io(e)) => return Err(StorageError::io(show(&paths.incomplete()), e)),
        };
        if list_dir(env, root)?.iter().any(|e| e.name != INCOMPLETE) {
            return Err(paths.incomplete_error());
        }
        // Syncs the names in the root, so the marker is durable before there is anything else.
        create_dir(env, "dir.names", &paths.meta())?;
        Ok(Self {
            env: env.clone(),
            source: source.clone(),
            store: store.for_copy(env),
            paths,
            links: true,
            dirs: BTreeSet::new(),
            max_unsynced: MAX_UNSYNCED,
            wide: false,
            report: CopyReport::default(),
            done: false,
            _marker: marker,
        })
    }

    /// Makes the first writing open of the copy skip seqs as `lineage` says.
    pub fn set_lineage(&self, lineage: Lineage) -> Result<()> {
        lineage.write(&self.env, &self.paths)
    }

    /// Takes over the files of a segment. `.idx`, `.tags` and `.attrs` may be missing: an engine makes
    /// them from the records.
    pub fn add_segment(&mut self, topic_id: u64, meta: &SegmentMeta) -> Result<()> {
        for (name, kind) in meta.files(topic_id) {
            let taken = self.add_file(&name, kind, meta);
            match (taken, kind) {
                (
                    Err(StorageError::Missing { .. }),
                    FileKind::Idx | FileKind::Tags | FileKind::Attrs,
                ) => {}
                (taken, _) => taken?,
            }
        }
        Ok(())
    }

    /// Takes over the `.data` of a cold segment if the source still has it; whether it has.
    pub fn add_local_data(&mut self, topic_id: u64, meta: &SegmentMeta) -> Result<bool> {
        match self.add_file(&meta.data_name(topic_id), FileKind::Data, meta) {
            Err(StorageError::Missing { .. }) => Ok(false),
            added => added.map(|()| true),
        }
    }

    /// Writes the `.data` of a cold segment, which the source does not have.
    pub fn add_data(&mut self, topic_id: u64, meta: &SegmentMeta, data: &[u8]) -> Result<()> {
        let to = self.place(&meta.data_name(topic_id), FileKind::Data)?;
        let io = |e| StorageError::io(show(&to), e);
        let file = self.env.fs.open(&to, OpenMode::CreateNew).map_err(io)?;
        file.write_all_at(data, 0).map_err(io)?;
        self.copied(&*file, &to, data.len() as u64)
    }

    fn add_file(&mut self, name: &SegmentName, kind: FileKind, meta: &SegmentMeta) -> Result<()> {
        let from = self.source.segment(name, kind);
        let to = self.place(name, kind)?;
        match kind {
            _ if meta.sealed || kind == FileKind::Del => self.link(&from, &to),
            FileKind::Data => self.copy(&from, &to, Some(meta.data_len)),
            _ => self.copy(&from, &to, Some(crate::segment::idx_len(meta.span()))),
        }
    }

    /// The path of a segment file. Creates the directory of its topic.
    fn place(&mut self, name: &SegmentName, kind: FileKind) -> Result<PathBuf> {
        let dir = self.paths.topic(name.topic_id);
        if !self.dirs.contains(&dir) {
            self.make_dir(self.paths.topics())?;
            self.make_dir(dir)?;
        }
        Ok(self.paths.segment(name, kind))
    }

    /// Creates a directory whose names [`Self::finish`] syncs.
    fn make_dir(&mut self, dir: PathBuf) -> Result<()> {
        match self.env.fs.create_dir(&dir) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                return Err(StorageError::io(show(&dir), e));
            }
            _ => {}
        }
        self.dirs.insert(dir);
        Ok(())
    }

    /// Takes over every file of staged rows.
    pub fn add_stages(&mut self) -> Result<()> {
        self.make_dir(self.paths.txn())?;
        for entry in list_dir(&self.env, &self.source.txn())? {
            if txn::number(&entry.name).is_some() {
                let (from, to) = (self.source.txn(), self.paths.txn());
                self.link(&from.join(&entry.name), &to.join(&entry.name))?;
            }
        }
        Ok(())
    }

    /// Writes the log of a shard. The last file becomes the newest one of the copy.
    pub fn add_log(&mut self, shard: u32, files: &[LogCopy]) -> Result<()> {
        let dir = self.paths.shard(shard);
        self.make_dir(self.paths.wal())?;
        self.make_dir(dir.clone())?;
        for log in files {
            // Nothing is known of the page cache in which the source was written.
            let header = WalFileHeader {
                store_id: self.store.id,
                boot_id: [0; 16],
                mount_id: 0,
                ..log.header.clone()
            };
            let to = dir.join(&log.name);
            let io = |e| StorageError::io(show(&to), e);
            let file = self.env.fs.open(&to, OpenMode::CreateNew).map_err(io)?;
            file.write_all_at(&header.encode(), 0).map_err(io)?;
            copy_bytes(&*log.file, &*file, WAL_HEADER as u64..log.end)
                .map_err(|e| StorageError::io(format!("copy {} to {}", log.name, show(&to)), e))?;
            if log.len > log.end {
                file.set_len(log.len).map_err(io)?;
            }
            self.copied(&*file, &to, log.end)?;
        }
        match files.last() {
            Some(last) => wal_file::write_current(&self.env, &dir, &last.name),
            None => Ok(()),
        }
    }

    /// Gives a file that never changes a second name, or copies it.
    fn link(&mut self, from: &Path, to: &Path) -> Result<()> {
        if self.links {
            match self.env.fs.hard_link(from, to) {
                Ok(()) => {
                    self.report.linked += 1;
                    return Ok(());
                }
                Err(e) if is_unlinkable(e.kind()) => {
                    // A file with as many names as it can have says nothing about others.
                    self.links = e.kind() == ErrorKind::TooManyLinks;
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(StorageError::Missing { what: show(from) });
                }
                Err(e) => return Err(StorageError::io(show(to), e)),
            }
        }
        self.copy(from, to, None)
    }

    /// Copies the first `len` bytes of a file, or all.
    fn copy(&mut self, from: &Path, to: &Path, len: Option<u64>) -> Result<()> {
        let source = self.env.fs.open(from, OpenMode::Read).map_err(|e| match e.kind() {
            ErrorKind::NotFound => StorageError::Missing { what: show(from) },
            _ => StorageError::io(show(from), e),
        })?;
        let there = source.len().map_err(|e| StorageError::io(show(from), e))?;
        let len = len.unwrap_or(there);
        if there < len {
            let detail = format!("the snapshot names {len} bytes");
            return Err(StorageError::corrupt(show(from), there, detail));
        }
        let made = self.env.fs.open(to, OpenMode::CreateNew);
        let file = made.map_err(|e| StorageError::io(show(to), e))?;
        copy_bytes(&*source, &*file, 0..len)
            .map_err(|e| StorageError::io(format!("copy {} to {}", show(from), show(to)), e))?;
        self.copied(&*file, to, len)
    }

    /// Counts a copied file and makes its bytes durable, unless a sync of the file system will.
    fn copied(&mut self, file: &dyn File, path: &Path, bytes: u64) -> Result<()> {
        self.report.copied += 1;
        self.report.copied_bytes += bytes;
        if self.report.copied as usize == self.max_unsynced {
            self.wide = self.env.fs.sync_fs(self.paths.root()).is_ok();
        }
        if self.wide {
            return Ok(());
        }
        self.env.sync("backup.file", file).map_err(|e| StorageError::io(show(path), e))
    }

    /// Writes the snapshot and the identity, makes everything durable, and removes the marker. The
    /// snapshot has the number `n` and leaves out the sections for which `drops` is true; no segment
    /// of the copy is cold.
    pub fn finish(
        mut self,
        snapshot: Option<(u64, &Snapshot)>,
        drops: impl Fn(u16) -> bool,
    ) -> Result<CopyReport> {
        for dir in [self.paths.topics(), self.paths.wal(), self.paths.txn()] {
            self.make_dir(dir)?;
        }
        if let Some((n, found)) = snapshot {
            let mut encoded = self.encode(found, drops)?;
            snapshot::write(&self.env, &self.paths, n, &mut encoded, || Ok(()))?;
        }
        self.store.restore(&self.env, &self.paths)?;
        self.sync()?;
        let marker = self.paths.incomplete();
        self.env.fs.remove_file(&marker).map_err(|e| StorageError::io(show(&marker), e))?;
        let root = self.paths.root();
        self.env.sync_dir("backup.done", root).map_err(|e| StorageError::io(show(root), e))?;
        self.done = true;
        Ok(self.report)
    }

    fn encode(&self, found: &Snapshot, drops: impl Fn(u16) -> bool) -> Result<EncodedSnapshot> {
        let mut body = found.body.clone();
        body.store_id = self.store.id;
        body.sections.retain(|s| !drops(s.kind));
        let mut draft = SnapshotBuilder::begin(&body, found.topics.bytes())?;
        for i in 0..found.topics.len() {
            if found.topics.topic_header(i)?.segments.iter().any(|s| s.cold) {
                let mut topic = found.topics.topic(i)?;
                topic.segments.iter_mut().for_each(|s| s.cold = false);
                draft.topic(&topic)?;
            } else {
                draft.entry(found.topics.entry(i));
            }
        }
        draft.finish(&body)
    }

    /// Makes the copied files and all names durable. The bytes of linked files are: a snapshot, or a
    /// transaction, names them.
    fn sync(&self) -> Result<()> {
        let root = self.paths.root();
        if self.wide || self.dirs.len() > self.max_unsynced {
            let synced = self.env.sync_fs("backup.fs", root);
            match synced {
                Err(e) if !self.wide && e.kind() == ErrorKind::Unsupported => {}
                synced => return synced.map_err(|e| StorageError::io(show(root), e)),
            }
        }
        for dir in self.dirs.iter().map(PathBuf::as_path).chain([root]) {
            self.env.sync_dir("backup.dir", dir).map_err(|e| StorageError::io(show(dir), e))?;
        }
        Ok(())
    }
}

/// A copy that failed frees its space. The marker stays: the names that are removed here are not
/// durably gone. The next copy to this directory takes it over.
impl Drop for CopyTarget {
    fn drop(&mut self) {
        if !self.done {
            for dir in [self.paths.meta(), self.paths.topics(), self.paths.wal(), self.paths.txn()]
            {
                remove_tree(&self.env, &dir);
            }
        }
    }
}

/// Whether a file cannot get a second name there, and can be copied.
fn is_unlinkable(kind: ErrorKind) -> bool {
    use ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(kind, CrossesDevices | PermissionDenied | TooManyLinks | Unsupported)
}

/// Copies a range of bytes to the same place in another file.
fn copy_bytes(from: &dyn File, to: &dyn File, range: std::ops::Range<u64>) -> std::io::Result<()> {
    let mut buf = vec![0; CHUNK.min((range.end - range.start.min(range.end)) as usize)];
    let mut at = range.start;
    while at < range.end {
        let n = buf.len().min((range.end - at) as usize);
        from.read_exact_at(&mut buf[..n], at)?;
        to.write_all_at(&buf[..n], at)?;
        at += n as u64;
    }
    Ok(())
}
