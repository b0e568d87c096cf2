//! The copy of a directory that no engine has open.

use std::path::Path;

use topics_env::{Env, File, LockError, OpenMode};

use super::{CopyReport, CopyTarget, LogCopy};
use crate::dir::{Lineage, Paths, STORE_NAME, Store, list_dir, show};
use crate::format::wal_file::{self, WAL_HEADER, WalFileHeader};
use crate::recovery::folder::folder_name;
use crate::recovery::survey::shard_id;
use crate::segment::FileKind;
use crate::snapshot;
use crate::{Result, StorageError};

/// Bytes of one read when the end of a log file is searched.
const CHUNK: u64 = 256 << 10;

/// Copies a directory that is not open, in whatever state its last process left it, and changes nothing
/// in it. An open of the copy finds what an open of the source after a power cut would have found, but
/// the copy loses nothing of the log. `drops` are the sections of the snapshot that are left out.
pub fn clone_closed(
    env: &Env,
    source: &Path,
    target: &Path,
    drops: impl Fn(u16) -> bool,
) -> Result<CopyReport> {
    let paths = Paths::new(source);
    let no_data =
        |detail: &str| StorageError::Directory { dir: show(source), detail: detail.into() };
    let store = Store::read(env, &paths)?.ok_or_else(|| no_data("it is no data directory"))?;
    // A shared lock is enough, and works for a source that may only be read.
    let _locks = [lock(env, &paths.lock())?, lock(env, &paths.meta().join(STORE_NAME))?];
    let loaded = snapshot::load_newest(env, &paths, store.id)?;
    if let Some((_, e)) = loaded.rejected.first() {
        return Err(e.clone());
    }
    let mut copy = CopyTarget::create(env, &paths, &store, target)?;
    if let Some(lineage) = Lineage::read(env, &paths)?.filter(|l| l.skip > 0) {
        // The source is a backup, or was restored, and was never opened for writing.
        copy.set_lineage(lineage)?;
    }
    copy.add_stages()?;
    for entry in list_dir(env, &paths.wal())? {
        let Some(shard) = shard_id(&entry.name) else { continue };
        let files = log_files(env, &paths, shard)?;
        copy.add_log(shard, &files)?;
    }
    if let Some((_, found)) = &loaded.newest {
        for i in 0..found.topics.len() {
            let topic = found.topics.topic_header(i)?;
            for meta in &topic.segments {
                copy.add_segment(topic.topic_id, meta)?;
                if meta.cold && !copy.add_local_data(topic.topic_id, meta)? {
                    return Err(cold(&show(
                        &paths.segment(&meta.data_name(topic.topic_id), FileKind::Data),
                    )));
                }
            }
        }
    }
    copy.finish(loaded.newest.as_ref().map(|(n, found)| (*n, found)), drops)
}

/// The error of a segment whose records are in an object store only.
fn cold(what: &str) -> StorageError {
    StorageError::Unreachable {
        detail: format!(
            "{what} is in an object store: open the directory with its remote and make a backup, which \
             fetches it"
        ),
    }
}

/// Locks a file of the source, if it is there.
fn lock(env: &Env, path: &Path) -> Result<Option<Box<dyn topics_env::LockGuard>>> {
    match env.fs.lock_shared(path) {
        Ok(guard) => Ok(Some(guard)),
        Err(LockError::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(LockError::Io(e)) => Err(StorageError::io(show(path), e)),
        Err(LockError::Held(content)) => Err(crate::dir::locked(&content)),
    }
}

/// The files of a shard's log, whole except the zeros at their end.
fn log_files(env: &Env, paths: &Paths, shard: u32) -> Result<Vec<LogCopy>> {
    let dir = paths.shard(shard);
    let Some(current) = wal_file::read_current(env, &dir)? else { return Ok(Vec::new()) };
    let mut names: Vec<String> = list_dir(env, &dir)?.into_iter().map(|e| e.name).collect();
    let newest = wal_file::parse_name(&current);
    names.retain(|name| wal_file::parse_name(name).is_some_and(|n| Some(n) <= newest));
    names.sort_by_key(|name| wal_file::parse_name(name));
    if names.last() != Some(&current) {
        return Err(StorageError::Missing { what: folder_name(shard, &current) });
    }
    let mut out = Vec::new();
    for name in names {
        let path = dir.join(&name);
        let io = |e| StorageError::io(show(&path), e);
        let file = env.fs.open(&path, OpenMode::Read).map_err(io)?;
        let header = WalFileHeader::read(env, &*file, &folder_name(shard, &name))?;
        // The last frame may end with zeros, so that the copy is as long as the file.
        let end = end_of_bytes(&*file).map_err(io)?.max(WAL_HEADER as u64);
        let len = file.len().map_err(io)?.max(end);
        out.push(LogCopy { name, header, file, end, len });
    }
    Ok(out)
}

/// The offset behind the last byte that is not zero.
fn end_of_bytes(file: &dyn File) -> std::io::Result<u64> {
    let mut end = file.len()?;
    let mut buf = vec![0; CHUNK as usize];
    while end > 0 {
        let from = end.saturating_sub(CHUNK);
        let part = &mut buf[..(end - from) as usize];
        file.read_exact_at(part, from)?;
        if let Some(last) = part.iter().rposition(|b| *b != 0) {
            return Ok(from + last as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}
