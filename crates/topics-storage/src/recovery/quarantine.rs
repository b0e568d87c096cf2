//! Quarantine: copies of damaged bytes in `damaged/`, made before they are dropped.

use std::path::{Path, PathBuf};

use topics_env::{Env, File, OpenMode};

use super::folder::{Folder, folder_name};
use super::shard_plan::ShardPlan;
use crate::dir::{Paths, create_dir, read_file};
use crate::{Result, StorageError};

/// Maximum number of copies of one range with different contents.
const COPIES: u32 = 1000;
const CHUNK: usize = 1 << 20;

/// Copies the bytes `from..to` of a file durably into `damaged/`, without trailing zeros, under a name
/// made of `shown` and `from`. An earlier copy is never replaced; one with the same bytes is reused.
/// Returns its path, `None` if all bytes are zero.
pub fn quarantine_range(
    env: &Env,
    paths: &Paths,
    file: &dyn File,
    shown: &str,
    (from, to): (u64, u64),
) -> Result<Option<PathBuf>> {
    let mut bytes = read_range(file, shown, (from, to))?;
    let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    bytes.truncate(used);
    write_copy(env, paths, &bytes, shown, from)
}

fn read_range(file: &dyn File, shown: &str, (from, to): (u64, u64)) -> Result<Vec<u8>> {
    let io = |e| StorageError::io(format!("read {shown}"), e);
    let len = file.len().map_err(io)?.min(to).saturating_sub(from);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len {
        let at = bytes.len();
        let n = usize::try_from(len - at as u64).unwrap_or(CHUNK).min(CHUNK);
        bytes.resize(at + n, 0);
        file.read_exact_at(&mut bytes[at..], from + at as u64).map_err(io)?;
    }
    Ok(bytes)
}

fn write_copy(
    env: &Env,
    paths: &Paths,
    bytes: &[u8],
    shown: &str,
    from: u64,
) -> Result<Option<PathBuf>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let dir = paths.damaged();
    create_dir(env, "damaged.dir", &dir)?;
    let name = format!("{}.{from}", shown.trim_start_matches('/').replace('/', "."));
    for n in 0..COPIES {
        let path = dir.join(if n == 0 { name.clone() } else { format!("{name}.{n}") });
        if let Some(there) = read_file(env, &path, u64::MAX)? {
            if there == bytes {
                sync(env, &path, &dir)?;
                return Ok(Some(path));
            }
            continue;
        }
        write(env, &path, bytes).inspect_err(|_| {
            let _ = env.fs.remove_file(&path);
        })?;
        sync(env, &path, &dir)?;
        return Ok(Some(path));
    }
    Err(StorageError::io(
        format!("copy {shown} to {}", dir.display()),
        std::io::Error::other(format!("{COPIES} different copies exist; move some of them away")),
    ))
}

/// Copies a whole file, if it exists, like [`quarantine_range`] but with its trailing zeros.
pub(crate) fn quarantine_file(env: &Env, paths: &Paths, path: &Path, shown: &str) -> Result<()> {
    match env.fs.open(path, OpenMode::Read) {
        Ok(file) => {
            let bytes = read_range(&*file, shown, (0, u64::MAX))?;
            write_copy(env, paths, &bytes, shown, 0).map(drop)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(StorageError::io(format!("read {shown}"), e)),
    }
}

fn write(env: &Env, path: &Path, bytes: &[u8]) -> Result<()> {
    let io = |e| StorageError::io(format!("write {}", path.display()), e);
    let out = env.fs.open(path, OpenMode::CreateNew).map_err(io)?;
    out.write_all_at(bytes, 0).map_err(io)
}

fn sync(env: &Env, path: &Path, dir: &Path) -> Result<()> {
    let io = |e| StorageError::io(format!("sync {}", path.display()), e);
    let file = env.fs.open(path, OpenMode::Write).map_err(io)?;
    env.sync("damaged.sync", &*file).map_err(io)?;
    env.sync_dir("damaged.names", dir).map_err(io)
}

/// Copies the lost ranges of a shard to `damaged/`. Returns the names of the unreadable files that were
/// copied whole. A failed copy is logged, and its file stays in place.
pub(super) fn quarantine_losses(
    env: &Env,
    paths: &Paths,
    folder: &Folder,
    plan: &ShardPlan,
) -> Vec<String> {
    let dir = paths.shard(folder.shard);
    let copy = |name: &str, bytes| {
        let shown = folder_name(folder.shard, name);
        if env.fs.exists(&dir.join(name)).is_ok_and(|there| !there) {
            return true;
        }
        let copied = env
            .fs
            .open(&dir.join(name), OpenMode::Read)
            .map_err(|e| StorageError::io(format!("read {shown}"), e))
            .and_then(|file| quarantine_range(env, paths, &*file, &shown, bytes));
        match copied {
            Ok(Some(path)) => {
                log::warn!("damaged bytes of {shown} were copied to {}", path.display());
                true
            }
            Ok(None) => true,
            Err(e) => {
                log::error!("damaged bytes of {shown} cannot be copied: {e}");
                false
            }
        }
    };
    for loss in plan.fresh().filter(|l| l.bytes.0 < l.bytes.1) {
        if let Some(name) = loss.file.rsplit('/').next() {
            copy(name, loss.bytes);
        }
    }
    if folder.bad_current {
        copy("CURRENT", (0, u64::MAX));
    }
    let whole = |u: &&super::folder::Unreadable| copy(&u.name, (0, u64::MAX));
    folder.unreadable.iter().filter(whole).map(|u| u.name.clone()).collect()
}
