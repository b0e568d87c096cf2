//! A store in a folder: each object is a file with the object's bytes.
//!
//! A write prepares a temporary file, then takes the folder's lock to check its condition and to
//! rename the file. Processes on other machines must not write to the folder, unless the file system
//! carries `flock` between machines.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::buffer::Buffers;
use bytes::Bytes;
use topics_env::objects::{
    ByteRange, ETag, ObjectBytes, ObjectError, ObjectInfo, ObjectResult, ObjectStore, is_valid_key,
};
use topics_env::sync::Mutex;
use topics_env::{Env, LockError, LockGuard, OpenMode};
use xxhash_rust::xxh3::Xxh3;

/// The folder of temporary files and of the lock. No key begins with a dot.
const PRIVATE: &str = ".topics";
/// How the name of a temporary file ends.
const TEMP: &str = ".tmp";
/// The bytes at the beginning and at the end of an object that its ETag covers. Objects that are
/// replaced are shorter; all others end with a checksum of everything.
const ETAG_BYTES: u64 = 4096;

#[derive(Debug)]
pub struct FolderStore {
    env: Env,
    root: PathBuf,
    /// Whether the sync of a replaced object's name failed. Whether it is durable cannot be found
    /// out, so every later call fails.
    failed: AtomicBool,
    /// Held by the thread of this process that changes the folder.
    change: Mutex<()>,
    /// Whether the folder exists, and what killed writers left in it is removed.
    is_prepared: Mutex<bool>,
    buffers: Buffers,
}

fn unavailable(what: &Path, e: impl std::fmt::Display) -> ObjectError {
    ObjectError::Unavailable { detail: format!("{}: {e}", what.display()) }
}

fn ambiguous(what: &Path, e: impl std::fmt::Display) -> ObjectError {
    ObjectError::Ambiguous { detail: format!("{}: {e}", what.display()) }
}

/// What a write requires of the object that has its key.
enum Condition<'a> {
    Absent,
    Matches(&'a ETag),
}

impl FolderStore {
    /// A store in this folder. Makes no call of the file system.
    pub fn new(env: Env, root: impl Into<PathBuf>) -> Self {
        let (failed, change) = (AtomicBool::new(false), Mutex::default());
        let (is_prepared, buffers) = (Mutex::new(false), Buffers::default());
        Self { env, root: root.into(), failed, change, is_prepared, buffers }
    }

    /// Creates the folder if it is missing; its parent must exist. Removes what killed writers have left in it.
    /// The first write does it too.
    pub fn prepare(&self) -> ObjectResult<()> {
        let mut is_prepared = self.is_prepared.lock();
        if *is_prepared {
            return Ok(());
        }
        let (env, root) = (&self.env, &self.root);
        let failed = |e| unavailable(root, e);
        let private = root.join(PRIVATE);
        for dir in [root, &private] {
            match env.fs.create_dir(dir) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    let root = root.display();
                    return Err(ObjectError::Refused {
                        detail: format!(
                            "the parent directory of {root} is missing: create it, or mount it"
                        ),
                    });
                }
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(e)),
                _ => {}
            }
            let parent = dir.parent().filter(|p| !p.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            env.sync_dir("remote.folder", parent).map_err(failed)?;
        }
        for entry in env.fs.list(&private).map_err(failed)? {
            let path = private.join(&entry.name);
            // The file of a writer that lives is locked.
            if entry.name.ends_with(TEMP)
                && let Ok(_lock) = env.fs.lock_file(&path)
            {
                let _ = env.fs.remove_file(&path);
            }
        }
        *is_prepared = true;
        Ok(())
    }

    fn path(&self, key: &str) -> ObjectResult<PathBuf> {
        if self.failed.load(Ordering::Acquire) {
            let detail =
                format!("a sync of {} failed: check the disk, then restart", self.root.display());
            return Err(ObjectError::Refused { detail });
        }
        match is_valid_key(key) {
            true => Ok(self.root.join(key)),
            false => Err(ObjectError::Refused { detail: format!("invalid key {key:?}") }),
        }
    }

    /// Reads a part of a file, with the ETag of the whole.
    fn read(&self, key: &str, range: &ByteRange) -> ObjectResult<ObjectBytes> {
        let path = self.path(key)?;
        let io = |e: std::io::Error| match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                ObjectError::NotFound { key: key.to_owned() }
            }
            _ => unavailable(&path, e),
        };
        let file = self.env.fs.open(&path, OpenMode::Read).map_err(io)?;
        let len = file.len().map_err(io)?;
        let part = |span: std::ops::Range<u64>| {
            let mut out = self.buffers.get((span.end - span.start) as usize);
            file.read_exact_at(out.as_mut(), span.start).map(|()| out)
        };
        let mut hash = Xxh3::new();
        hash.update(part(ByteRange::Span(0..ETAG_BYTES).within(len)).map_err(io)?.as_ref());
        hash.update(part(ByteRange::Last(ETAG_BYTES).within(len)).map_err(io)?.as_ref());
        let etag = ETag(format!("\"{len:x}-{:032x}\"", hash.digest128()));
        let bytes = part(range.within(len)).map_err(io)?.into();
        Ok(ObjectBytes { bytes, etag, len })
    }

    /// Writes an object if the condition holds.
    fn write(&self, key: &str, body: &Bytes, condition: &Condition<'_>) -> ObjectResult<ETag> {
        let path = self.path(key)?;
        self.prepare()?;
        self.check(key, condition)?;
        let private = self.root.join(PRIVATE);
        let temp = private.join(format!("{:016x}{TEMP}", self.env.rng.next_u64()));
        let written = self.write_temp(&temp, body).and_then(|_lock| {
            let dir = self.create_dirs(key)?;
            self.locked(|| {
                self.check(key, condition)?;
                // From here on the object may exist.
                let unsure = |e| ambiguous(&path, e);
                self.env.rename("remote.object", &temp, &path).map_err(unsure)?;
                self.env.sync_dir("remote.object", &dir).map_err(|e| {
                    // The name is visible and may never become durable: it must not be read back.
                    match condition {
                        Condition::Absent => _ = self.env.fs.remove_file(&path),
                        Condition::Matches(_) => self.failed.store(true, Ordering::Release),
                    }
                    unsure(e)
                })
            })
        });
        if let Err(e) = written {
            let _ = self.env.fs.remove_file(&temp);
            return Err(e);
        }
        self.read(key, &ByteRange::Last(0)).map(|o| o.etag).map_err(|e| ambiguous(&path, e))
    }

    /// Writes a temporary file, which stays locked: [`prepare`](Self::prepare) removes others.
    fn write_temp(&self, temp: &Path, body: &Bytes) -> ObjectResult<Box<dyn LockGuard>> {
        let io = |e| unavailable(temp, e);
        let file = self.env.fs.open(temp, OpenMode::CreateNew).map_err(io)?;
        let lock = self.env.fs.lock_file(temp).map_err(|e| match e {
            LockError::Held(_) => {
                unavailable(temp, "another process took it for one that was left")
            }
            LockError::Io(e) => io(e),
        })?;
        file.write_all_at(body, 0).map_err(io)?;
        self.env.sync("remote.object", &*file).map_err(io)?;
        Ok(lock)
    }

    /// Creates the folders of a key and makes their names durable. Returns the last one.
    fn create_dirs(&self, key: &str) -> ObjectResult<PathBuf> {
        let mut dir = self.root.clone();
        let mut names: Vec<&str> = key.split('/').collect();
        names.pop();
        for name in names {
            let child = dir.join(name);
            match self.env.fs.create_dir(&child) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    return Err(unavailable(&child, e));
                }
                _ => {}
            }
            // An existing one may come from a process that died before it synced the name.
            self.env.sync_dir("remote.dirs", &dir).map_err(|e| unavailable(&dir, e))?;
            dir = child;
        }
        Ok(dir)
    }

    fn check(&self, key: &str, condition: &Condition<'_>) -> ObjectResult<()> {
        let found = match self.read(key, &ByteRange::Last(0)) {
            Ok(found) => Some(found.etag),
            Err(ObjectError::NotFound { .. }) => None,
            Err(e) => return Err(e),
        };
        let holds = match condition {
            Condition::Absent => found.is_none(),
            Condition::Matches(etag) => found.as_ref() == Some(etag),
        };
        match holds {
            true => Ok(()),
            false => Err(ObjectError::Precondition { key: key.to_owned() }),
        }
    }

    /// Runs `change` while no other writer of the folder runs one. Waits for the other threads of this
    /// store; fails with `Unavailable` instead of waiting for another process: the caller retries.
    fn locked<T>(&self, change: impl FnOnce() -> ObjectResult<T>) -> ObjectResult<T> {
        let _change = self.change.lock();
        let path = self.root.join(PRIVATE).join("lock");
        let guard = self.env.fs.lock(&path, b"").map_err(|e| match e {
            LockError::Held(_) => unavailable(&path, "another process writes to the folder"),
            LockError::Io(e) => unavailable(&path, e),
        })?;
        let out = change();
        drop(guard);
        out
    }
}

impl ObjectStore for FolderStore {
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag> {
        self.write(key, body, &Condition::Absent)
    }

    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag> {
        if body.len() as u64 > ETAG_BYTES {
            let detail = format!("object {key} is too long to be replaced in a folder");
            return Err(ObjectError::Refused { detail });
        }
        self.write(key, body, &Condition::Matches(etag))
    }

    fn get(
        &self,
        key: &str,
        range: ByteRange,
        if_match: Option<&ETag>,
    ) -> ObjectResult<ObjectBytes> {
        let found = self.read(key, &range)?;
        match if_match.is_none_or(|etag| *etag == found.etag) {
            true => Ok(found),
            false => Err(ObjectError::Precondition { key: key.to_owned() }),
        }
    }

    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>> {
        Ok(Some(self.read(key, &ByteRange::Full)?).filter(|found| found.etag != *etag))
    }

    fn head(&self, key: &str) -> ObjectResult<ObjectInfo> {
        let found = self.read(key, &ByteRange::Last(0))?;
        let path = self.path(key)?;
        let modified_ms = self.env.fs.modified_ms(&path).map_err(|e| unavailable(&path, e))?;
        Ok(ObjectInfo { key: key.to_owned(), len: found.len, etag: found.etag, modified_ms })
    }

    fn delete(&self, key: &str) -> ObjectResult<()> {
        let path = self.path(key)?;
        self.locked(|| match self.env.fs.remove_file(&path) {
            Ok(()) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
            Err(e) => Err(unavailable(&path, e)),
        })?;
        let dir = path.parent().unwrap_or(&self.root);
        match self.env.sync_dir("remote.delete", dir) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(ambiguous(dir, e)),
            _ => Ok(()),
        }
    }
}
