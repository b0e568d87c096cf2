//! The identity of a data directory, `meta/STORE`.

use std::path::PathBuf;

use topics_env::Env;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Paths, atomic_replace, create_dir, le_u32, list_dir, or_undo, read_file, show, sync_names,
    sync_parent,
};
use crate::{Result, StorageError};

/// The version of the directory as a whole.
pub const STORE_VERSION: u32 = 1;
const STORE_MAGIC: [u8; 4] = *b"TSTR";
const STORE_LEN: usize = 32;
/// The leading bytes of the id that a directory and its copies have in common. Files that a copy
/// takes over as they are carry only these, or are compared in these only.
pub const SHARED_ID: usize = 8;
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
    /// The identity of a copy: the first half of the id stays, because segments and staged rows carry
    /// it. The other half is random, so that source and copy are not taken for each other.
    #[must_use]
    pub(crate) fn for_copy(&self, env: &Env) -> Self {
        let mut id = self.id;
        env.rng.fill(&mut id[SHARED_ID..]);
        Self { id, ..*self }
    }

    /// Reads `meta/STORE`; `None` if it does not exist. An unfinished copy is refused.
    pub fn read(env: &Env, paths: &Paths) -> Result<Option<Self>> {
        paths.check_whole(env)?;
        let path = paths.meta().join(STORE_NAME);
        let Some(bytes) = read_file(env, &path, STORE_LEN as u64)? else { return Ok(None) };
        Self::decode(env, &bytes).map(Some).map_err(|e| match e {
            StorageError::Corrupt { offset, detail, .. } => {
                StorageError::Corrupt { file: show(&path), offset, detail }
            }
            e => e,
        })
    }

    /// Reads `meta/STORE`, or creates it in a directory without data. The second value tells whether it
    /// was created.
    pub fn open_or_create(env: &Env, paths: &Paths) -> Result<(Self, bool)> {
        if let Some(store) = Self::read(env, paths)? {
            // The process that created it may have died before it synced the names on its path.
            let synced = sync_names(env, "store.file", &paths.meta())
                .and_then(|()| sync_names(env, "dir.names", paths.root()))
                .and_then(|()| sync_parent(env, "dir.root", paths.root()));
            return or_undo(synced, || Self::remove_unused(env, paths)).map(|()| (store, false));
        }
        if !env.check("store.no-data", !holds_data(env, paths)?) {
            return Err(Self::missing(paths));
        }
        let mut id = [0; 16];
        env.rng.fill(&mut id);
        let store = Self { id, version: STORE_VERSION };
        or_undo(store.restore(env, paths), || Self::remove_unused(env, paths))
            .map(|()| (store, true))
    }

    /// Writes the `meta/STORE` of a directory whose other files are complete and durable.
    pub fn create(env: &Env, paths: &Paths, id: [u8; 16]) -> Result<Self> {
        let store = Self { id, version: STORE_VERSION };
        store.restore(env, paths).map(|()| store)
    }

    /// Writes `meta/STORE` and creates missing parent directories.
    pub(crate) fn restore(&self, env: &Env, paths: &Paths) -> Result<()> {
        create_dir(env, "dir.root", paths.root())?;
        create_dir(env, "dir.names", &paths.meta())?;
        atomic_replace(env, "store.file", &paths.meta(), STORE_NAME, &self.encode())
    }

    /// Whether the directory holds data, so that it must have a STORE.
    pub(crate) fn is_needed(env: &Env, paths: &Paths) -> Result<bool> {
        holds_data(env, paths)
    }

    /// The error of a directory with data and without STORE.
    pub(crate) fn missing(paths: &Paths) -> StorageError {
        let path = show(&paths.meta().join(STORE_NAME));
        StorageError::Missing { what: format!("{path} (its directory holds data)") }
    }

    /// Removes the STORE of a directory without data, and the empty directories beside it.
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

/// Whether the directory holds files that are only written after STORE.
fn holds_data(env: &Env, paths: &Paths) -> Result<bool> {
    for dir in [paths.wal(), paths.topics(), paths.txn()] {
        if !list_dir(env, &dir)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(list_dir(env, &paths.meta())?.iter().any(|e| !e.name.ends_with(".tmp")))
}
