//! A read-only view of a file system: writes stay in memory and are dropped with the view.
//!
//! Code that recovers and writes a directory can run on it without changing a byte of the directory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sync::Mutex;
use crate::{DirEntry, File, Fs, LockError, LockGuard, OpenMode};

/// Bytes of one copied chunk.
const CHUNK: u64 = 64 << 10;

/// The differences from the base.
#[derive(Debug, Default)]
struct Changes {
    files: BTreeMap<PathBuf, Arc<MemFile>>,
    dirs: BTreeSet<PathBuf>,
    removed: BTreeSet<PathBuf>,
}

/// A file system over a base that it never changes.
#[derive(Debug)]
pub struct Overlay {
    base: Arc<dyn Fs>,
    changes: Mutex<Changes>,
}

impl Overlay {
    /// A view of `base` without changes.
    #[must_use]
    pub fn new(base: Arc<dyn Fs>) -> Self {
        Self { base, changes: Mutex::default() }
    }

    /// The in-memory copy of the file, created at the first change.
    fn copied(&self, changes: &mut Changes, path: &Path) -> io::Result<Arc<MemFile>> {
        if let Some(file) = changes.files.get(path) {
            return Ok(file.clone());
        }
        if changes.removed.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let base = self.base.open(path, OpenMode::Read)?;
        let visible_len = base.len()?;
        let file = Arc::new(MemFile::over(Some((base, visible_len))));
        changes.files.insert(path.to_owned(), file.clone());
        Ok(file)
    }

    fn exists_in(&self, changes: &Changes, path: &Path) -> io::Result<bool> {
        if changes.files.contains_key(path) || changes.dirs.contains(path) {
            return Ok(true);
        }
        Ok(!changes.removed.contains(path) && self.base.exists(path)?)
    }

    fn create(changes: &mut Changes, path: &Path) -> Arc<MemFile> {
        let file = Arc::new(MemFile::over(None));
        changes.files.insert(path.to_owned(), file.clone());
        file
    }
}

impl Fs for Overlay {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let mut changes = self.changes.lock();
        Ok(match mode {
            OpenMode::Read => match changes.files.get(path) {
                Some(file) => file.clone(),
                None if changes.removed.contains(path) => {
                    return Err(io::ErrorKind::NotFound.into());
                }
                None => return self.base.open(path, mode),
            },
            OpenMode::Write => self.copied(&mut changes, path)?,
            OpenMode::CreateNew if self.exists_in(&changes, path)? => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            OpenMode::CreateNew | OpenMode::Truncate => Self::create(&mut changes, path),
        })
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut changes = self.changes.lock();
        if self.exists_in(&changes, path)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        changes.dirs.insert(path.to_owned());
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut changes = self.changes.lock();
        let file = self.copied(&mut changes, from)?;
        changes.files.remove(from);
        changes.removed.insert(from.to_owned());
        changes.files.insert(to.to_owned(), file);
        Ok(())
    }

    /// A link would be a change of the base.
    fn hard_link(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut changes = self.changes.lock();
        if !self.exists_in(&changes, path)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        changes.files.remove(path);
        changes.removed.insert(path.to_owned());
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        if !self.list(path)?.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        let mut changes = self.changes.lock();
        changes.dirs.remove(path);
        changes.removed.insert(path.to_owned());
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let changes = self.changes.lock();
        let mut all: BTreeSet<DirEntry> = match self.base.list(dir) {
            Ok(names) => {
                let kept = |e: &DirEntry| !changes.removed.contains(&dir.join(&e.name));
                names.into_iter().filter(kept).collect()
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && changes.dirs.contains(dir) => {
                BTreeSet::new()
            }
            Err(e) => return Err(e),
        };
        let files = changes.files.keys().map(|path| (path, false));
        for (path, is_dir) in files.chain(changes.dirs.iter().map(|path| (path, true))) {
            if path.parent() == Some(dir)
                && let Some(name) = path.file_name()
            {
                all.insert(DirEntry { name: name.to_string_lossy().into_owned(), is_dir });
            }
        }
        Ok(all.into_iter().collect())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_fs(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.exists_in(&self.changes.lock(), path)
    }

    /// Takes a shared lock, because several readers are possible. A directory without a lock file
    /// was never opened, so it needs no lock.
    fn lock(&self, path: &Path, _content: &[u8]) -> Result<Box<dyn LockGuard>, LockError> {
        match self.base.lock_shared(path) {
            Err(LockError::Io(e)) if e.kind() == io::ErrorKind::NotFound => Ok(Box::new(NoLock)),
            other => other,
        }
    }

    /// The base is not written, and the shared lock excludes writers.
    fn lock_file(&self, _path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        Ok(Box::new(NoLock))
    }

    fn lock_shared(&self, path: &Path) -> Result<Box<dyn LockGuard>, LockError> {
        self.base.lock_shared(path)
    }

    fn free_space(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn release(&self) {
        // The changes of a view end with its reader.
        self.changes.lock().files.clear();
        self.base.release();
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        self.base.boot_id()
    }

    fn mount_id(&self, dir: &Path) -> io::Result<u64> {
        self.base.mount_id(dir)
    }

    fn modified_ms(&self, path: &Path) -> io::Result<u64> {
        self.base.modified_ms(path)
    }

    fn fd_limit(&self) -> Option<u64> {
        self.base.fd_limit()
    }

    fn backend(&self) -> &'static str {
        "posix"
    }
}

/// No lock: no process can have the directory open.
#[derive(Debug)]
struct NoLock;

impl LockGuard for NoLock {
    fn describe(&self, _content: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn is_named(&self) -> io::Result<bool> {
        Ok(true)
    }
}

#[derive(Debug, Default)]
struct Bytes {
    len: u64,
    /// Written chunks by number.
    chunks: BTreeMap<u64, Box<[u8]>>,
    /// Bytes of the base file that are visible where no chunk was written.
    visible_len: u64,
}

/// A file whose changes are in memory.
#[derive(Debug)]
struct MemFile {
    base: Option<Arc<dyn File>>,
    bytes: Mutex<Bytes>,
}

impl MemFile {
    fn over(base: Option<(Arc<dyn File>, u64)>) -> Self {
        let (base, visible_len) = base.map_or((None, 0), |(file, len)| (Some(file), len));
        let bytes = Bytes { len: visible_len, chunks: BTreeMap::new(), visible_len };
        Self { base, bytes: Mutex::new(bytes) }
    }

    /// Reads the base at `offset`; fills zeros beyond `visible_len`.
    fn read_base(&self, visible_len: u64, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let in_base = visible_len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (from_base, rest) = buf.split_at_mut(in_base);
        rest.fill(0);
        match &self.base {
            Some(base) => base.read_exact_at(from_base, offset),
            None => Ok(()),
        }
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock();
        let at = (offset % CHUNK) as usize;
        let left = bytes.len.saturating_sub(offset).min(CHUNK - at as u64) as usize;
        let n = buf.len().min(left);
        match bytes.chunks.get(&(offset / CHUNK)) {
            Some(chunk) => buf[..n].copy_from_slice(&chunk[at..at + n]),
            None => self.read_base(bytes.visible_len, &mut buf[..n], offset)?,
        }
        Ok(n)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut bytes = self.bytes.lock();
        let (number, at) = (offset / CHUNK, (offset % CHUNK) as usize);
        let n = buf.len().min(CHUNK as usize - at);
        if !bytes.chunks.contains_key(&number) {
            let mut chunk = vec![0; CHUNK as usize];
            self.read_base(bytes.visible_len, &mut chunk, number * CHUNK)?;
            bytes.chunks.insert(number, chunk.into());
        }
        if let Some(chunk) = bytes.chunks.get_mut(&number) {
            chunk[at..at + n].copy_from_slice(&buf[..n]);
        }
        bytes.len = bytes.len.max(offset + n as u64);
        Ok(n)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        if len < bytes.len {
            // Truncated bytes read as zeros if the file grows again.
            bytes.visible_len = bytes.visible_len.min(len);
            bytes.chunks.retain(|number, _| number * CHUNK < len);
            if let Some(chunk) = bytes.chunks.get_mut(&(len / CHUNK)) {
                chunk[(len % CHUNK) as usize..].fill(0);
            }
        }
        bytes.len = len;
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut bytes = self.bytes.lock();
        bytes.len = bytes.len.max(len);
        Ok(())
    }

    fn links(&self) -> io::Result<u64> {
        self.base.as_ref().map_or(Ok(1), |base| base.links())
    }
}
