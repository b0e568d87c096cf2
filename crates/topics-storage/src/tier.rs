//! Where segments lie: the trait of a tier, and the tier that is a local folder.

use std::path::{Path, PathBuf};

use topics_env::{Env, OpenMode};

use crate::dir::{create_dir, list_dir, show};
use crate::segment::{Part, SegmentName, parse_file_name};
use crate::{Result, StorageError};

/// A place for the files of sealed segments. Calls block; they run on the storage pool.
pub trait SegmentStore: Send + Sync + std::fmt::Debug {
    /// Stores a file whole and durably; it replaces one of the same name.
    fn put(&self, name: &SegmentName, part: Part, bytes: &[u8]) -> Result<()>;
    /// Reads `len` bytes at `offset`, fewer at the end of the file. A file that is not there is
    /// [`StorageError::Missing`].
    fn read_range(
        &self,
        name: &SegmentName,
        part: Part,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>>;
    /// Removes a file; one that is not there is no error.
    fn delete(&self, name: &SegmentName, part: Part) -> Result<()>;
    /// Every file of the tier.
    fn list(&self) -> Result<Vec<(SegmentName, Part)>>;
    /// Whether a file is there.
    fn exists(&self, name: &SegmentName, part: Part) -> Result<bool>;
    /// A file's length.
    fn len(&self, name: &SegmentName, part: Part) -> Result<u64>;
}

/// A tier that is a folder: `<root>/<topic id>/seg-….<part>`.
#[derive(Clone, Debug)]
pub struct SegmentStoreLocal {
    env: Env,
    root: PathBuf,
}

impl SegmentStoreLocal {
    /// The tier below `root`, which is created when it is missing.
    pub fn open(env: Env, root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref().to_path_buf();
        create_dir(&env, "tier.root", &root)?;
        Ok(Self { env, root })
    }

    fn path(&self, name: &SegmentName, part: Part) -> PathBuf {
        self.root.join(name.topic_id.to_string()).join(name.file(part))
    }

    fn open_file(
        &self,
        name: &SegmentName,
        part: Part,
    ) -> Result<std::sync::Arc<dyn topics_env::File>> {
        let path = self.path(name, part);
        self.env.fs.open(&path, OpenMode::Read).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => StorageError::Missing { what: show(&path) },
            _ => StorageError::io(show(&path), e),
        })
    }
}

impl SegmentStore for SegmentStoreLocal {
    fn put(&self, name: &SegmentName, part: Part, bytes: &[u8]) -> Result<()> {
        let dir = self.root.join(name.topic_id.to_string());
        create_dir(&self.env, "tier.dir", &dir)?;
        crate::dir::atomic_replace(&self.env, "tier.put", &dir, &name.file(part), bytes)
    }

    fn read_range(
        &self,
        name: &SegmentName,
        part: Part,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>> {
        let file = self.open_file(name, part)?;
        let io = |e| StorageError::io(show(&self.path(name, part)), e);
        let have = file.len().map_err(io)?.saturating_sub(offset);
        let mut out = vec![0; len.min(usize::try_from(have).unwrap_or(usize::MAX))];
        file.read_exact_at(&mut out, offset).map_err(io)?;
        Ok(out)
    }

    fn delete(&self, name: &SegmentName, part: Part) -> Result<()> {
        match self.env.fs.remove_file(&self.path(name, part)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(StorageError::io(show(&self.path(name, part)), e))
            }
            _ => Ok(()),
        }
    }

    fn list(&self) -> Result<Vec<(SegmentName, Part)>> {
        let mut out = Vec::new();
        for dir in list_dir(&self.env, &self.root)? {
            let Ok(topic_id) = dir.name.parse() else { continue };
            for entry in list_dir(&self.env, &self.root.join(&dir.name))? {
                out.extend(parse_file_name(topic_id, &entry.name));
            }
        }
        Ok(out)
    }

    fn exists(&self, name: &SegmentName, part: Part) -> Result<bool> {
        let path = self.path(name, part);
        self.env.fs.exists(&path).map_err(|e| StorageError::io(show(&path), e))
    }

    fn len(&self, name: &SegmentName, part: Part) -> Result<u64> {
        let file = self.open_file(name, part)?;
        file.len().map_err(|e| StorageError::io(show(&self.path(name, part)), e))
    }
}
