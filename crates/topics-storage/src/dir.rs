//! The data directory: its paths and how names in it become durable.
//!
//! * `lineage`: how a restored directory differs from its origin, [`Lineage`].
//! * `lock`: the lock of the directory, [`DirLock`].
//! * `remote`: the prefix of an object store that it writes to, [`RemoteRecord`].
//! * `store`: its identity, [`Store`].
//! * [`reserve`]: space kept for a full disk.

mod lineage;
mod lock;
mod remote;
pub mod reserve;
mod store;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use topics_env::{Env, File, OpenMode};

pub use self::lineage::Lineage;
pub(crate) use self::lock::locked;
pub use self::lock::{DirLock, LockWatch};
pub use self::remote::RemoteRecord;
pub(crate) use self::store::STORE_NAME;
pub use self::store::{SHARED_ID, STORE_VERSION, Store};
use crate::segment::{FileKind, SegmentName};
use crate::{Result, StorageError};

/// The name of the marker of an unfinished copy, see [`crate::backup`].
pub(crate) const INCOMPLETE: &str = ".topics.incomplete";

/// The paths of the files in a data directory.
#[derive(Clone, Debug)]
pub struct Paths {
    root: Arc<Path>,
}

impl Paths {
    /// The paths of a data directory.
    pub fn new(root: impl AsRef<Path>) -> Self {
        Self { root: Arc::from(root.as_ref()) }
    }

    /// The data directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The lock file.
    pub fn lock(&self) -> PathBuf {
        self.root.join(".topics.lock")
    }

    /// The marker of an unfinished copy.
    pub fn incomplete(&self) -> PathBuf {
        self.root.join(INCOMPLETE)
    }

    /// Refuses a directory with that marker.
    pub(crate) fn check_whole(&self, env: &Env) -> Result<()> {
        let marker = self.incomplete();
        let is_there = env.fs.exists(&marker).map_err(|e| StorageError::io(show(&marker), e))?;
        match env.check("store.whole", !is_there) {
            true => Ok(()),
            false => Err(self.incomplete_error()),
        }
    }

    /// The error of a directory with that marker.
    pub(crate) fn incomplete_error(&self) -> StorageError {
        let detail =
            "it is an unfinished backup or clone: remove it, and make the copy again".into();
        StorageError::Directory { dir: show(&self.root), detail }
    }

    /// The directory of STORE, the snapshots and the reserve.
    pub fn meta(&self) -> PathBuf {
        self.root.join("meta")
    }

    pub fn snapshot(&self, n: u64) -> PathBuf {
        self.meta().join(format!("snapshot.{n}.bin"))
    }

    /// The preallocated file that is released when the disk is full.
    pub fn reserve(&self) -> PathBuf {
        self.meta().join("reserve")
    }

    /// The directory of the shards.
    pub fn wal(&self) -> PathBuf {
        self.root.join("wal")
    }

    /// A shard's directory.
    pub fn shard(&self, shard: u32) -> PathBuf {
        self.wal().join(format!("shard-{shard:02}"))
    }

    /// The directory of the topics.
    pub fn topics(&self) -> PathBuf {
        self.root.join("topics")
    }

    /// A topic's directory.
    pub fn topic(&self, topic_id: u64) -> PathBuf {
        self.topics().join(topic_id.to_string())
    }

    /// A file of a segment.
    pub fn segment(&self, name: &SegmentName, kind: FileKind) -> PathBuf {
        self.topic(name.topic_id).join(name.file(kind))
    }

    /// The directory of copies of damaged bytes.
    pub fn damaged(&self) -> PathBuf {
        self.root.join("damaged")
    }

    /// The directory of staged transaction rows.
    pub fn txn(&self) -> PathBuf {
        self.root.join("txn")
    }
}

/// The path as shown in error messages.
pub(crate) fn show(path: &Path) -> String {
    path.display().to_string()
}

/// The names in a directory; empty if the directory does not exist.
pub fn list_dir(env: &Env, dir: &Path) -> Result<Vec<topics_env::DirEntry>> {
    match env.fs.list(dir) {
        Ok(names) => Ok(names),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(StorageError::io(show(dir), e)),
    }
}

/// Creates a directory if it is missing, and makes its name durable in any case: an existing one may
/// come from a process that died before it synced the name. If the sync fails, an empty directory is
/// removed. Returns whether it was created.
pub fn create_dir(env: &Env, site: &'static str, dir: &Path) -> Result<bool> {
    let created = match env.fs.create_dir(dir) {
        Ok(()) => true,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(e) => return Err(StorageError::io(show(dir), e)),
    };
    or_undo(sync_parent(env, site, dir), || _ = env.fs.remove_dir(dir)).map(|()| created)
}

/// Removes a name whose sync failed, so that the next attempt creates it again. Such a name may be
/// visible and never become durable, whatever later syncs return. Nothing may depend on it yet.
fn or_undo(synced: Result<()>, undo: impl FnOnce()) -> Result<()> {
    if synced.is_err() {
        undo();
    }
    synced
}

/// Creates the data directory if it is missing. The error says what prevents it.
fn create_root(env: &Env, paths: &Paths) -> Result<()> {
    let root = paths.root();
    create_dir(env, "dir.root", root).map(|_| ()).map_err(|e| match e {
        StorageError::Io { kind, .. } => unusable_root(root, kind, e),
        e => e,
    })
}

/// Creates the data directory for a caller that does not open it yet. Fails if the path is not a
/// directory.
pub fn make_root(env: &Env, paths: &Paths) -> Result<()> {
    create_root(env, paths)?;
    let root = paths.root();
    env.fs.list(root).map(|_| ()).map_err(|e| {
        let kind = e.kind();
        unusable_root(root, kind, StorageError::io(show(root), e))
    })
}

/// The error of an unusable data directory, with what its owner can do.
fn unusable_root(root: &Path, kind: ErrorKind, e: StorageError) -> StorageError {
    let parent = root.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (dir, parent) = (show(root), show(parent));
    let detail = match kind {
        ErrorKind::NotFound => {
            format!("there is no folder {parent}: create it, or choose another data directory")
        }
        ErrorKind::NotADirectory => {
            format!("{dir} or {parent} is a file, not a folder: choose another data directory")
        }
        ErrorKind::PermissionDenied => {
            let there = "this user may not read and write there";
            format!("{there}: change who owns {dir} or {parent}, or choose another data directory")
        }
        _ => return e,
    };
    StorageError::Directory { dir, detail }
}

fn sync_parent(env: &Env, site: &'static str, path: &Path) -> Result<()> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_names(env, site, Path::new(".")),
        Some(parent) => sync_names(env, site, parent),
        None => Ok(()),
    }
}

fn sync_names(env: &Env, site: &'static str, dir: &Path) -> Result<()> {
    env.sync_dir(site, dir).map_err(|e| StorageError::io(show(dir), e))
}

/// Reads a whole file of at most `cap` bytes; `None` if it does not exist.
pub fn read_file(env: &Env, path: &Path, cap: u64) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    Ok(read_into(env, path, cap, &mut bytes)?.then_some(bytes))
}

/// The same into a buffer, whose content and length it replaces; returns whether the file exists.
pub(crate) fn read_into(env: &Env, path: &Path, cap: u64, bytes: &mut Vec<u8>) -> Result<bool> {
    let file = match env.fs.open(path, OpenMode::Read) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(StorageError::io(show(path), e)),
    };
    let io = |e| StorageError::io(show(path), e);
    let len = file.len().map_err(io)?.min(cap);
    bytes.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
    file.read_exact_at(bytes, 0).map_err(io)?;
    Ok(true)
}

/// Creates a temporary file. Removes one that an earlier process left first, because a sync of that
/// one could report an old error.
pub(crate) fn create_temp(env: &Env, path: &Path) -> std::io::Result<Arc<dyn File>> {
    match env.fs.open(path, OpenMode::CreateNew) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            env.fs.remove_file(path)?;
            env.fs.open(path, OpenMode::CreateNew)
        }
        other => other,
    }
}

/// Writes a new file and syncs it at `site`. The caller syncs its folder.
pub fn write_file(env: &Env, site: &'static str, path: &Path, bytes: &[u8]) -> Result<()> {
    let file = env.fs.open(path, OpenMode::CreateNew);
    let written = file.and_then(|file| {
        file.write_all_at(bytes, 0)?;
        env.sync(site, &*file)
    });
    written.map_err(|e| StorageError::io(show(path), e))
}

/// Removes a directory with its content, as far as that is possible.
pub fn remove_tree(env: &Env, path: &Path) {
    for entry in list_dir(env, path).unwrap_or_default() {
        let below = path.join(&entry.name);
        match entry.is_dir {
            true => remove_tree(env, &below),
            false => _ = env.fs.remove_file(&below),
        }
    }
    let _ = env.fs.remove_dir(path);
}

/// Replaces a small file atomically: temp → sync → rename → directory sync, all at `site`.
pub fn atomic_replace(
    env: &Env,
    site: &'static str,
    dir: &Path,
    name: &str,
    bytes: &[u8],
) -> Result<()> {
    let temp = dir.join(format!("{name}.tmp"));
    let path = dir.join(name);
    let io = |p: &Path| {
        let p = show(p);
        move |e| StorageError::io(p, e)
    };
    let file = create_temp(env, &temp).map_err(io(&temp))?;
    let written = file.write_all_at(bytes, 0).and_then(|()| env.sync(site, &*file));
    drop(file);
    if let Err(e) = written.and_then(|()| env.rename(site, &temp, &path)) {
        let _ = env.fs.remove_file(&temp);
        return Err(StorageError::io(show(&temp), e));
    }
    env.sync_dir(site, dir).map_err(io(dir))
}

/// Writes damaged bytes to `damaged/` before they are dropped. An earlier copy is never replaced.
pub fn quarantine(env: &Env, paths: &Paths, name: &str, bytes: &[u8]) -> Result<()> {
    let dir = paths.root().join("damaged");
    create_dir(env, "dir.names", &dir)?;
    let path = dir.join(name);
    let io = |e| StorageError::io(show(&path), e);
    if env.fs.exists(&path).map_err(io)? {
        return Ok(());
    }
    let file = env.fs.open(&path, topics_env::OpenMode::CreateNew).map_err(io)?;
    file.write_all_at(bytes, 0).map_err(io)?;
    env.sync("dir.damaged", &*file).map_err(io)?;
    env.sync_dir("dir.names", &dir).map_err(io)
}

pub(crate) fn le_u16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(b, at))
}

pub(crate) fn le_u32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(b, at))
}

pub(crate) fn le_u64(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(b, at))
}

/// `N` bytes at `at`; the caller has checked the length.
fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}

#[cfg(test)]
mod tests;
