//! Which store a directory is, when `meta/STORE` is lost or damaged.
//!
//! Every snapshot and every log file repeats the store id. The version of the directory follows from
//! that of the file: a directory of a newer version has snapshots and log files of one too.

use topics_env::{Env, OpenMode};

use super::quarantine::quarantine_file;
use super::survey;
use crate::dir::{Paths, STORE_NAME, STORE_VERSION, Store, list_dir, show};
use crate::format::wal_file::{self, WalFileHeader};
use crate::snapshot;
use crate::{Result, StorageError};

/// A directory's identity.
#[derive(Debug)]
pub(crate) struct Identity {
    pub store: Store,
    /// What is wrong with `meta/STORE`, where other files had to say it.
    pub damage: Option<StorageError>,
}

/// Finds the identity of a directory without changing it. `None`: the directory holds no data.
pub(crate) fn find(env: &Env, paths: &Paths) -> Result<Option<Identity>> {
    let damage = match Store::read(env, paths) {
        Ok(None) if !Store::is_needed(env, paths)? => return Ok(None),
        Ok(None) => Err(Store::missing(paths)),
        Ok(Some(store)) => Ok(store),
        Err(e @ StorageError::Corrupt { .. }) => Err(e),
        Err(e) => return Err(e),
    };
    let repeated = repeated(env, paths)?;
    let damage = match damage {
        Ok(store) if repeated.is_empty() || repeated.contains(&store.id) => {
            return Ok(Some(Identity { store, damage: None }));
        }
        Ok(_) => {
            let path = show(&paths.meta().join(STORE_NAME));
            StorageError::corrupt(path, 8, "it is the STORE of another directory")
        }
        Err(e) => e,
    };
    match repeated.first() {
        Some(id) => {
            let store = Store { id: *id, version: STORE_VERSION };
            Ok(Some(Identity { store, damage: Some(damage) }))
        }
        None => Err(damage),
    }
}

/// [`Store::open_or_create`], which makes a lost or damaged STORE again from what repeats it. The
/// damaged one is kept in `damaged/`. The caller holds the lock of the directory.
pub(crate) fn open_or_restore(env: &Env, paths: &Paths) -> Result<Store> {
    let Some(Identity { store, damage: Some(damage) }) = find(env, paths)? else {
        return Store::open_or_create(env, paths).map(|(store, _)| store);
    };
    quarantine_file(env, paths, &paths.meta().join(STORE_NAME), "meta/STORE")?;
    store.restore(env, paths)?;
    log::error!("{damage}; it was made again from what the other files say");
    Ok(store)
}

/// The store ids that valid files repeat: those of the kept snapshots, newest first, then those of
/// the log files, newest first.
fn repeated(env: &Env, paths: &Paths) -> Result<Vec<[u8; 16]>> {
    let mut ids = Vec::new();
    for n in snapshot::list(env, paths)?.into_iter().take(2) {
        ids.extend(unless_damaged(snapshot::store_id(env, paths, n))?);
    }
    let mut logs = Vec::new();
    for folder in list_dir(env, &paths.wal())? {
        let Some(shard) = survey::shard_id(&folder.name) else { continue };
        for entry in list_dir(env, &paths.shard(shard))? {
            if let Some(name) = wal_file::parse_name(&entry.name) {
                logs.push((name, shard, entry.name));
            }
        }
    }
    logs.sort_unstable_by(|a, b| b.cmp(a));
    for (name, shard, file) in logs {
        let path = paths.shard(shard).join(file);
        let io = |e| StorageError::io(show(&path), e);
        let opened = env.fs.open(&path, OpenMode::Read).map_err(io)?;
        let header = unless_damaged(WalFileHeader::read(env, &*opened, &show(&path)))?;
        let right =
            |h: &WalFileHeader| (h.shard, h.generation, h.ordinal) == (shard, name.0, name.1);
        ids.extend(header.filter(right).map(|h| h.store_id));
    }
    Ok(ids)
}

/// A damaged file says nothing; any other error is one.
fn unless_damaged<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(StorageError::Corrupt { .. } | StorageError::Missing { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}
