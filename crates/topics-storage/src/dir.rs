//! The data directory: its paths, its lock, its identity, the replacement of small files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use topics_env::{Env, File, LockError, LockGuard, OpenMode};
use xxhash_rust::xxh3::xxh3_64;

use crate::segment::{FileKind, SegmentName};
use crate::{Result, StorageError};

/// Where everything lies.
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

    /// The folder of STORE, the snapshots and the reserve.
    pub fn meta(&self) -> PathBuf {
        self.root.join("meta")
    }

    /// A snapshot.
    pub fn snapshot(&self, n: u64) -> PathBuf {
        self.meta().join(format!("snapshot.{n}.bin"))
    }

    /// The preallocated file that is given up when the disk is full.
    pub fn reserve(&self) -> PathBuf {
        self.meta().join("reserve")
    }

    /// The folder of the shards.
    pub fn wal(&self) -> PathBuf {
        self.root.join("wal")
    }

    /// A shard's folder.
    pub fn shard(&self, shard: u32) -> PathBuf {
        self.wal().join(format!("shard-{shard:02}"))
    }

    /// The folder of the topics.
    pub fn topics(&self) -> PathBuf {
        self.root.join("topics")
    }

    /// A topic's folder.
    pub fn topic(&self, topic_id: u64) -> PathBuf {
        self.topics().join(topic_id.to_string())
    }

    /// A file of a segment.
    pub fn segment(&self, name: &SegmentName, kind: FileKind) -> PathBuf {
        self.topic(name.topic_id).join(name.file(kind))
    }

    /// The folder of damaged bytes that were set aside.
    pub fn damaged(&self) -> PathBuf {
        self.root.join("damaged")
    }

    /// The folder of staged transaction rows.
    pub fn txn(&self) -> PathBuf {
        self.root.join("txn")
    }
}

/// The path as an error names it.
pub(crate) fn show(path: &Path) -> String {
    path.display().to_string()
}

/// The lock of a data directory, held while it is open: that of the lock file, which says who holds
/// it, and that of `meta/STORE`. Either of them may be removed or replaced by mistake while the
/// directory is open; the other one keeps a second engine out.
#[derive(Debug)]
pub struct DirLock {
    guard: Arc<dyn LockGuard>,
    store: Option<Box<dyn LockGuard>>,
    pid: u32,
}

/// Tells whether the lock file of a directory is still the one that was locked. Keeps no lock.
#[derive(Clone, Debug)]
pub struct LockWatch(Weak<dyn LockGuard>);

impl LockWatch {
    /// [`StorageError::LockLost`] when the lock file is no longer the file of its name: somebody
    /// removed or replaced it, perhaps with the whole directory, and another engine may find what
    /// is there now. A released lock is not lost.
    pub fn check(&self, env: &Env) -> Result<()> {
        let Some(guard) = self.0.upgrade() else { return Ok(()) };
        match guard.is_named() {
            Ok(named) if env.check("lock.named", named) => Ok(()),
            Ok(_) => Err(StorageError::LockLost),
            Err(e) => Err(StorageError::io("look at the lock file", e)),
        }
    }
}

impl DirLock {
    /// Takes the lock, creating the directory when it is missing. A held lock is
    /// [`StorageError::Locked`] at once, naming the holder.
    pub fn acquire(env: &Env, paths: &Paths, pid: u32) -> Result<Self> {
        create_root(env, paths)?;
        match env.fs.lock(&paths.lock(), &holder(pid, None)) {
            Ok(guard) => Ok(Self { guard: Arc::from(guard), store: None, pid }),
            Err(LockError::Held(content)) => {
                let (pid, url) = parse_holder(&content);
                Err(StorageError::Locked { pid, url })
            }
            Err(LockError::Io(e)) => {
                let kind = e.kind();
                Err(in_the_way(paths.root(), kind, StorageError::io(show(&paths.lock()), e)))
            }
        }
    }

    /// Also locks `meta/STORE`, which must be there.
    pub(crate) fn lock_store(&mut self, env: &Env, paths: &Paths) -> Result<()> {
        let path = paths.meta().join(STORE_NAME);
        // A second descriptor of this process would find the file locked.
        self.store = None;
        self.store = match env.fs.lock_file(&path) {
            Ok(guard) => Some(guard),
            Err(LockError::Held(_)) if env.check("lock.store", false) => None,
            Err(LockError::Held(_)) => return Err(StorageError::Locked { pid: 0, url: None }),
            Err(LockError::Io(e)) => return Err(StorageError::io(show(&path), e)),
        };
        Ok(())
    }

    /// Also locks `meta/STORE` if there is one, whatever it says.
    pub(crate) fn lock_store_if_there(&mut self, env: &Env, paths: &Paths) -> Result<()> {
        let path = paths.meta().join(STORE_NAME);
        match env.fs.exists(&path).map_err(|e| StorageError::io(show(&path), e))? {
            true => self.lock_store(env, paths),
            false => Ok(()),
        }
    }

    /// Watches the lock file without keeping the lock.
    pub fn watch(&self) -> LockWatch {
        LockWatch(Arc::downgrade(&self.guard))
    }

    /// Adds the address of the server to what the lock file says.
    pub fn set_url(&self, url: &str) -> Result<()> {
        self.guard
            .describe(&holder(self.pid, Some(url)))
            .map_err(|e| StorageError::io("describe the lock", e))
    }
}

fn holder(pid: u32, url: Option<&str>) -> Vec<u8> {
    format!("{pid}\n{}\n", url.unwrap_or_default()).into_bytes()
}

fn parse_holder(content: &[u8]) -> (u32, Option<String>) {
    let text = String::from_utf8_lossy(content);
    let mut lines = text.lines();
    let pid = lines.next().and_then(|l| l.trim().parse().ok()).unwrap_or(0);
    (pid, lines.next().filter(|l| !l.is_empty()).map(str::to_owned))
}

/// The version of the directory as a whole.
pub const STORE_VERSION: u32 = 1;
const STORE_MAGIC: [u8; 4] = *b"TSTR";
const STORE_LEN: usize = 32;
pub(crate) const STORE_NAME: &str = "STORE";

/// The identity of a data directory, `meta/STORE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The random id that every file carries.
    pub id: [u8; 16],
    /// The version of the directory's format.
    pub version: u32,
}

impl Store {
    /// Reads `meta/STORE`; `None` when there is none.
    pub fn read(env: &Env, paths: &Paths) -> Result<Option<Self>> {
        let path = paths.meta().join(STORE_NAME);
        let Some(bytes) = read_file(env, &path, STORE_LEN as u64)? else { return Ok(None) };
        Self::decode(env, &bytes).map(Some).map_err(|e| match e {
            StorageError::Corrupt { offset, detail, .. } => {
                StorageError::Corrupt { file: show(&path), offset, detail }
            }
            e => e,
        })
    }

    /// Reads `meta/STORE`, or makes it in a directory that holds no data yet. The second value
    /// says whether it was made.
    pub fn open_or_create(env: &Env, paths: &Paths) -> Result<(Self, bool)> {
        if let Some(store) = Self::read(env, paths)? {
            // It is seen, which does not say that whoever made it lived to sync its names.
            let synced = sync_names(env, "store.file", &paths.meta())
                .and_then(|()| sync_names(env, "dir.names", paths.root()))
                .and_then(|()| sync_parent(env, "dir.root", paths.root()));
            return undo(synced, || Self::remove_unused(env, paths)).map(|()| (store, false));
        }
        if !env.check("store.no-data", !holds_data(env, paths)?) {
            return Err(Self::missing(paths));
        }
        let mut id = [0; 16];
        env.rng.fill(&mut id);
        let store = Self { id, version: STORE_VERSION };
        undo(store.restore(env, paths), || Self::remove_unused(env, paths)).map(|()| (store, true))
    }

    /// Writes `meta/STORE`, and the folders that lead to it where they are missing.
    pub(crate) fn restore(&self, env: &Env, paths: &Paths) -> Result<()> {
        create_dir(env, "dir.root", paths.root())?;
        create_dir(env, "dir.names", &paths.meta())?;
        atomic_replace(env, "store.file", &paths.meta(), STORE_NAME, &self.encode())
    }

    /// Whether the directory holds data, so that it must have a STORE.
    pub(crate) fn is_needed(env: &Env, paths: &Paths) -> Result<bool> {
        holds_data(env, paths)
    }

    /// There is no STORE, and the directory holds data.
    pub(crate) fn missing(paths: &Paths) -> StorageError {
        let path = show(&paths.meta().join(STORE_NAME));
        StorageError::Missing { what: format!("{path} (its directory holds data)") }
    }

    /// Removes a STORE that nothing was written under yet, and the empty folders beside it.
    fn remove_unused(env: &Env, paths: &Paths) {
        let data = [paths.wal(), paths.topics(), paths.txn()];
        let empty = |dir: &PathBuf| list_dir(env, dir).is_ok_and(|names| names.is_empty());
        let alone = |e: &topics_env::DirEntry| e.name == STORE_NAME || e.name.ends_with(".tmp");
        let meta = list_dir(env, &paths.meta());
        if data.iter().all(empty) && meta.is_ok_and(|names| names.iter().all(alone)) {
            let _ = env.fs.remove_file(&paths.meta().join(STORE_NAME));
            for dir in data.iter().chain([&paths.meta()]) {
                let _ = env.fs.remove_dir(dir);
            }
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(STORE_LEN);
        out.extend_from_slice(&STORE_MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.id);
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    fn decode(env: &Env, bytes: &[u8]) -> Result<Self> {
        let corrupt = |offset, detail: &str| StorageError::Corrupt {
            file: String::new(),
            offset,
            detail: detail.to_owned(),
        };
        let Some((head, sum)) = bytes.split_at_checked(STORE_LEN - 8) else {
            return Err(corrupt(bytes.len() as u64, "too short"));
        };
        if head[..4] != STORE_MAGIC {
            return Err(corrupt(0, "not a STORE file"));
        }
        if !env.check("store.checksum", xxh3_64(head).to_le_bytes() == *sum) {
            return Err(corrupt(24, "checksum mismatch"));
        }
        let version = le_u32(head, 4);
        if version != STORE_VERSION {
            return Err(StorageError::Version {
                what: "the data directory".into(),
                found: version,
                supported: STORE_VERSION,
            });
        }
        let mut id = [0; 16];
        id.copy_from_slice(&head[8..24]);
        Ok(Self { id, version })
    }
}

/// Whether the directory holds anything that a STORE file should have been written before.
fn holds_data(env: &Env, paths: &Paths) -> Result<bool> {
    for dir in [paths.wal(), paths.topics(), paths.txn()] {
        if !list_dir(env, &dir)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(list_dir(env, &paths.meta())?.iter().any(|e| !e.name.ends_with(".tmp")))
}

/// The names in a directory; none when it does not exist.
pub fn list_dir(env: &Env, dir: &Path) -> Result<Vec<topics_env::DirEntry>> {
    match env.fs.list(dir) {
        Ok(names) => Ok(names),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(StorageError::io(show(dir), e)),
    }
}

/// Creates a directory when it is missing, and makes its name durable either way: one that is
/// there may have been made by a process that did not live to sync it. One that is still empty when
/// that fails is removed. Returns whether it was created.
pub fn create_dir(env: &Env, site: &'static str, dir: &Path) -> Result<bool> {
    let created = match env.fs.create_dir(dir) {
        Ok(()) => true,
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(e) => return Err(StorageError::io(show(dir), e)),
    };
    undo(sync_parent(env, site, dir), || _ = env.fs.remove_dir(dir)).map(|()| created)
}

/// After a failed sync a name may be seen and yet never be durable, whatever later syncs return:
/// it is taken back, so that the next attempt makes it anew. Nothing may rest on it yet.
fn undo(synced: Result<()>, take_back: impl FnOnce()) -> Result<()> {
    if synced.is_err() {
        take_back();
    }
    synced
}

/// Creates the data directory when it is missing. What stands in the way is named.
fn create_root(env: &Env, paths: &Paths) -> Result<()> {
    let root = paths.root();
    create_dir(env, "dir.root", root).map(|_| ()).map_err(|e| match e {
        StorageError::Io { kind, .. } => in_the_way(root, kind, e),
        e => e,
    })
}

/// The same for whoever does not open it yet: says so too if what is there is no folder.
pub fn make_root(env: &Env, paths: &Paths) -> Result<()> {
    create_root(env, paths)?;
    let root = paths.root();
    env.fs.list(root).map(|_| ()).map_err(|e| {
        let kind = e.kind();
        in_the_way(root, kind, StorageError::io(show(root), e))
    })
}

/// An error of the root as its owner can mend it.
fn in_the_way(root: &Path, kind: ErrorKind, e: StorageError) -> StorageError {
    let parent = root.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (dir, parent) = (show(root), show(parent));
    let detail = match kind {
        ErrorKind::NotFound => {
            format!("there is no folder {parent}: create it, or name another data directory")
        }
        ErrorKind::NotADirectory => {
            format!("{dir} or {parent} is a file, not a folder: name another data directory")
        }
        ErrorKind::PermissionDenied => {
            let there = "this user may not read and write there";
            format!("{there}: change who owns {dir} or {parent}, or name another data directory")
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

/// Reads a whole file of at most `cap` bytes; `None` when there is none.
pub(crate) fn read_file(env: &Env, path: &Path, cap: u64) -> Result<Option<Vec<u8>>> {
    let file = match env.fs.open(path, OpenMode::Read) {
        Ok(f) => f,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(StorageError::io(show(path), e)),
    };
    let io = |e| StorageError::io(show(path), e);
    let len = file.len().map_err(io)?.min(cap);
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    Ok(Some(bytes))
}

/// Creates a temporary file, never over one that an earlier process left: a sync of that one may
/// report what went wrong then.
pub(crate) fn create_temp(env: &Env, path: &Path) -> std::io::Result<Arc<dyn File>> {
    match env.fs.open(path, OpenMode::CreateNew) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            env.fs.remove_file(path)?;
            env.fs.open(path, OpenMode::CreateNew)
        }
        other => other,
    }
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

/// Keeps damaged bytes that are given up, in `damaged/`; a copy made before is never replaced.
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

/// `N` bytes at `at`; the caller has checked that they are there.
fn array<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}

/// Gives disk space back when the disk is full: a preallocated file of twice the newest
/// snapshot's size, at least 1 MiB, and what it takes to copy the largest file that holds others
/// back, as far as that is an eighth of the free space.
pub mod reserve {
    use super::*;

    /// The least size.
    pub const MIN: u64 = 1 << 20;

    /// What is taken back at once, beside what was asked for: names and rounding.
    pub const SLACK: u64 = 16 << 10;

    /// Which part of the space that is free may be for copies.
    const PART: u64 = 8;

    /// What snapshots need of it.
    pub(crate) fn for_snapshots(newest_snapshot: u64) -> u64 {
        newest_snapshot.saturating_mul(2).saturating_add(SLACK)
    }

    /// Makes the reserve as large as it should be, or as there is room for; `copies` bytes of it
    /// are for copies. `false`: it is smaller.
    pub fn ensure(env: &Env, paths: &Paths, newest_snapshot: u64, copies: u64) -> Result<bool> {
        let path = paths.reserve();
        let io = |e| StorageError::io(show(&path), e);
        let file = match env.fs.open(&path, OpenMode::Write) {
            Ok(f) => f,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                env.fs.open(&path, OpenMode::CreateNew).map_err(io)?
            }
            Err(e) => return Err(io(e)),
        };
        let have = file.len().map_err(io)?;
        let least = newest_snapshot.saturating_mul(2).max(MIN);
        if have >= least.saturating_add(copies) {
            return Ok(true);
        }
        let free = env.fs.free_space(paths.root()).unwrap_or(u64::MAX >> 1);
        let want = least.saturating_add(copies.min(free.saturating_add(have) / PART));
        // As much as there is, where that is less: a smaller one is better than none.
        let mut more = want.saturating_sub(have).min(free);
        while more > 0 {
            match file.allocate(have + more).map_err(io) {
                Ok(()) => break,
                Err(StorageError::Full { .. }) if more > SLACK => more -= (more / 4).max(SLACK),
                Err(StorageError::Full { .. }) => more = 0,
                Err(e) => return Err(e),
            }
        }
        Ok(have + more >= want)
    }

    /// Its size.
    pub(crate) fn size(env: &Env, paths: &Paths) -> Result<u64> {
        let path = paths.reserve();
        match env.fs.open(&path, OpenMode::Read).and_then(|f| f.len()) {
            Ok(len) => Ok(len),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(e) => Err(StorageError::io(show(&path), e)),
        }
    }

    /// Gives up what `bytes` more need: not all, which somebody else would take.
    pub fn release_part(env: &Env, paths: &Paths, bytes: u64) -> Result<()> {
        let path = paths.reserve();
        let io = |e| StorageError::io(show(&path), e);
        let file = match env.fs.open(&path, OpenMode::Write) {
            Ok(f) => f,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(io(e)),
        };
        let have = file.len().map_err(io)?;
        file.set_len(have.saturating_sub(bytes.saturating_add(SLACK))).map_err(io)
    }

    /// Gives all of it up.
    pub fn release_all(env: &Env, paths: &Paths) -> Result<()> {
        match env.fs.remove_file(&paths.reserve()) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(StorageError::io(show(&paths.reserve()), e)),
        }
    }
}

#[cfg(test)]
mod tests;
