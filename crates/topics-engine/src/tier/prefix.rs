//! A prefix of an object store as a data directory in memory, for an engine that only reads.
//!
//! The directory consists of the snapshot in the newest base, whose segments are all cold. So
//! topics are found, and records are read, by the code that serves a directory. What a snapshot names
//! and no pack has, the segments that were still active and the log, is not part of the view.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_env::objects::{ByteRange, ObjectError, ObjectStore};
use topics_env::{DirEntry, Env, File, Fs, LockError, LockGuard, OpenMode};
use topics_remote::format::base::{Base, Place};
use topics_remote::{RemoteError, Retry, read};
use topics_storage::backup::write_view;
use topics_storage::dir::Paths;
use topics_storage::segment::{FileKind, SegmentMeta, SegmentName, parse_file_name};
use topics_storage::snapshot::{self, ShardSnap, SnapshotBody, TopicSnap};

use super::{PackTable, of_base};
use crate::types::clock;
use crate::types::error::{Error, Result};

/// The directory of the view, in memory.
pub(crate) const ROOT: &str = "/prefix";

pub(crate) struct PrefixView {
    /// An env whose file system has the directory [`ROOT`]. What is written to it stays in memory.
    pub env: Env,
    /// The number of shards of its log.
    pub shards: u32,
}

impl PrefixView {
    /// Reads the newest base of a prefix.
    pub(crate) fn read(
        env: &Env,
        store: &Arc<dyn ObjectStore>,
        deadline: Duration,
    ) -> Result<Self> {
        let mut retry = Retry::new(env.clone(), std::thread::sleep);
        retry.deadline = deadline;
        let head = read::head(&**store, &retry).map_err(remote_error)?;
        let Some((head, _)) = head else {
            return Err(Error::InvalidRequest(
                "the prefix has no object HEAD: no engine has archived to it".into(),
            ));
        };
        let Some(object) = &head.base else {
            return Err(Error::InvalidRequest(
                "the prefix has no base yet: no engine has published one".into(),
            ));
        };
        let base = read::base(&**store, &retry, object).map_err(remote_error)?;
        let body = body(env, &base)?;
        let shards = body.shards.len() as u32;
        let paths = Paths::new(ROOT);
        let packs = PackTable::default();
        body.sections.iter().try_for_each(|s| packs.restore(s).map(drop))?;
        let known = base.deletes_by_number();
        let named = body.topics.iter().flat_map(|t| t.segments.iter().map(|m| (t.topic_id, m)));
        let place = |(topic_id, m): (u64, &SegmentMeta)| {
            Some(((topic_id, m.first_seq, m.del_no), *known.get(&m.del_no)?))
        };
        let deletes = named.filter_map(place).collect();
        let files = SegmentFiles { store: store.clone(), retry, packs, deletes };
        let view = Env::new(Arc::new(files), env.clock.clone(), env.rng.clone()).read_only();
        write_view(&view, &paths, &body)?;
        Ok(Self { env: view, shards })
    }
}

fn remote_error(e: RemoteError) -> Error {
    match e {
        RemoteError::Storage(e) => e.into(),
        e => Error::ColdUnavailable { detail: e.to_string() },
    }
}

/// The snapshot of a base, reduced to the sealed segments that are archived.
fn body(env: &Env, base: &Base) -> Result<SnapshotBody> {
    let found = snapshot::decode_any(env, "the snapshot of the base", &base.snapshot)?;
    let mut body = found.whole()?;
    let packs = of_base(base, &body.topics)?;
    let archived: BTreeSet<u64> =
        packs.iter().flat_map(|p| &p.segments).map(|s| s.file_no).collect();
    body.topics.iter_mut().for_each(|topic| reduce(topic, &archived));
    for (i, shard) in body.shards.iter_mut().enumerate() {
        // Nothing of the log is needed.
        let last_lsn = shard.last_lsn.max(shard.replay_lsn).max(shard.synced_lsn);
        let layout = body.layout;
        *shard = ShardSnap {
            shard: i as u32,
            layout,
            replay_lsn: last_lsn,
            last_lsn,
            synced_lsn: last_lsn,
        };
    }
    body.retired.clear();
    // Routers and transactions would go on with work of the writer.
    body.sections.retain(|s| s.kind == clock::SECTION);
    let table = PackTable::default();
    packs.into_iter().for_each(|p| table.add(p));
    body.sections.extend(table.capture());
    Ok(body)
}

/// Ends a topic before its first segment that no pack has.
fn reduce(topic: &mut TopicSnap, archived: &BTreeSet<u64>) {
    let is_there = |s: &SegmentMeta| archived.contains(&s.file_no);
    let kept = topic.segments.iter().take_while(|s| is_there(s)).count();
    let cut: Vec<SegmentMeta> = topic.segments.drain(kept..).collect();
    topic.segments.iter_mut().for_each(|s| s.cold = true);
    let last = topic.segments.last().map_or(0, |s| s.last_seq);
    let head = last.max(topic.earliest_seq.saturating_sub(1)).min(topic.head);
    if head < topic.head {
        let logged = cut.last().map_or(last, |s| s.last_seq);
        let above = topic.head - logged.max(head);
        let records = cut.iter().map(|s| s.live_count).sum::<u64>() + above;
        topic.live_count = topic.live_count.saturating_sub(records);
        topic.live_bytes = topic.segments.iter().map(|s| s.live_bytes).sum();
        topic.last_ts = topic.segments.last().map_or(0, |s| s.last_ts);
        topic.last_write_ts = topic.last_ts;
        topic.gaps.retain(|g| g.to <= head);
        // Jobs and cursors may be those of records that are not here.
        topic.sections.clear();
    }
    topic.head = head;
    topic.reserved_to = head;
    topic.idempotency.clear();
}

/// The files of segments that are small, `.idx`, `.tags`, `.attrs` and `.del`. Each is fetched when it is
/// opened, by the thread that opens it; `.data` is read by [`super::cold`].
#[derive(Debug)]
struct SegmentFiles {
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    packs: PackTable,
    /// By topic id, first seq and number of the `.del`.
    deletes: BTreeMap<(u64, u64, u64), Place>,
}

/// The topic of a path of the view, and what is behind it.
fn within(path: &Path) -> Option<(u64, &str)> {
    let below = path.strip_prefix(ROOT).ok()?.strip_prefix("topics").ok()?.to_str()?;
    let (id, name) = below.split_once('/').unwrap_or((below, ""));
    Some((id.parse().ok()?, name))
}

fn named_file(path: &Path) -> Option<(SegmentName, FileKind)> {
    let (topic_id, name) = within(path)?;
    parse_file_name(topic_id, name)
}

impl SegmentFiles {
    /// The part of a pack that is a file; none: no pack has it.
    fn locate(&self, path: &Path) -> Option<(String, Range<u64>)> {
        let (name, kind) = named_file(path)?;
        if kind == FileKind::Del {
            let place = self.deletes.get(&(name.topic_id, name.first_seq, name.file_no))?;
            let from = u64::from(place.offset);
            return Some((place.pack.object().key, from..from + u64::from(place.len)));
        }
        let (pack, segment) = self.packs.find(name.file_no)?;
        let (offset, len) = segment.part(kind);
        let is_small = kind != FileKind::Data && len > 0;
        is_small.then(|| (pack.object().key, offset..offset + len))
    }

    fn fetch(&self, path: &Path) -> io::Result<Vec<u8>> {
        let Some((key, range)) = self.locate(path) else { return absent() };
        let get = || self.store.get(&key, ByteRange::Span(range.clone()), None);
        let found = read::retrying(&self.retry, get).map_err(|e| match e {
            // Not `NotFound`: the base names it, so its absence is an error of the store.
            e @ ObjectError::NotFound { .. } => io::Error::other(format!("it is missing: {e}")),
            e => io::Error::other(e.to_string()),
        })?;
        Ok(found.bytes.to_vec())
    }
}

fn absent<T>() -> io::Result<T> {
    Err(io::ErrorKind::NotFound.into())
}

fn read_only<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Fs for SegmentFiles {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        match mode {
            OpenMode::Read => Ok(Arc::new(FetchedFile(Arc::new(self.fetch(path)?)))),
            _ => read_only(),
        }
    }

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        read_only()
    }

    fn hard_link(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn remove_dir(&self, _path: &Path) -> io::Result<()> {
        read_only()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        // Only `.del` files are looked for in a listing.
        let Some((id, "")) = within(dir) else { return Ok(Vec::new()) };
        let entry = |&(topic_id, first_seq, file_no): &(u64, u64, u64)| DirEntry {
            name: SegmentName { topic_id, first_seq, file_no }.file(FileKind::Del),
            is_dir: false,
        };
        Ok(self.deletes.range((id, 0, 0)..(id + 1, 0, 0)).map(|(key, _)| entry(key)).collect())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_fs(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.locate(path).is_some())
    }

    fn lock(
        &self,
        _path: &Path,
        _content: &[u8],
    ) -> std::result::Result<Box<dyn LockGuard>, LockError> {
        absent().map_err(LockError::Io)
    }

    fn lock_file(&self, _path: &Path) -> std::result::Result<Box<dyn LockGuard>, LockError> {
        absent().map_err(LockError::Io)
    }

    fn lock_shared(&self, _path: &Path) -> std::result::Result<Box<dyn LockGuard>, LockError> {
        absent().map_err(LockError::Io)
    }

    fn free_space(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn boot_id(&self) -> io::Result<[u8; 16]> {
        Ok([0; 16])
    }

    fn mount_id(&self, _dir: &Path) -> io::Result<u64> {
        Ok(0)
    }

    fn modified_ms(&self, _path: &Path) -> io::Result<u64> {
        Ok(0)
    }

    fn fd_limit(&self) -> Option<u64> {
        None
    }

    fn backend(&self) -> &'static str {
        "prefix"
    }
}

/// A file that was fetched as a whole.
#[derive(Debug)]
struct FetchedFile(Arc<Vec<u8>>);

impl File for FetchedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = self.0.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let n = buf.len().min(self.0.len() - from);
        buf[..n].copy_from_slice(&self.0[from..from + n]);
        Ok(n)
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<usize> {
        read_only()
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn allocate(&self, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn links(&self) -> io::Result<u64> {
        Ok(1)
    }

    fn map(&self, len: u64) -> io::Result<Arc<dyn AsRef<[u8]> + Send + Sync>> {
        match len <= self.0.len() as u64 {
            true => Ok(self.0.clone()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
