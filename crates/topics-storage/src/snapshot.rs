//! The snapshot: state per topic and the list of every segment, never records.
//!
//! ```text
//!   0  4  magic "TSNP"   4  4  version u32   8  8  number n   16  8  length of the body
//!  24  8  XXH3-64 of bytes 0…23 and the body
//!  32  .  body: SnapshotBody, encoded with fixed width (`crate::format::codec`)
//! ```
//!
//! Reading keeps topics encoded until a caller needs one ([`Table`]); writing encodes each topic as
//! it is captured ([`SnapshotBuilder`]).

use std::path::Path;

use topics_env::{Env, OpenMode};
use xxhash_rust::xxh3::Xxh3;

use crate::dir::{Paths, atomic_replace, create_temp, le_u32, le_u64, list_dir, read_file, show};
use crate::format::codec::{Decode, Encode, decode_fixed};
use crate::segment::SegmentMeta;
use crate::{Result, StorageError};

mod builder;
mod table;

pub use builder::{EncodedSnapshot, SnapshotBuilder};
pub use table::{SegmentBytes, Snapshot, Table, TopicHeader};

const MAGIC: [u8; 4] = *b"TSNP";
const VERSION: u32 = 1;
pub(crate) const HEADER: usize = 32;

/// A position in the logs: the layout (the generation that began with its shard count) and the
/// lsn within the topic's shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct ReplayPos {
    pub layout: u64,
    /// The highest lsn that needs no replay.
    pub lsn: u64,
}

/// The state of a shard that the snapshot covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ShardSnap {
    pub shard: u32,
    pub layout: u64,
    /// The highest lsn of the shard that needs no replay.
    pub replay_lsn: u64,
    /// The last assigned lsn.
    pub last_lsn: u64,
    /// The last durable lsn.
    pub synced_lsn: u64,
}

/// A state that the engine encodes, with its own version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Section {
    /// Its kind; the engine defines the numbers.
    pub kind: u16,
    /// The version of its encoding.
    pub version: u16,
    pub bytes: Vec<u8>,
}

/// An involuntary gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct GapSnap {
    /// Its first seq.
    pub from: u64,
    /// Its last seq.
    pub to: u64,
    pub reason: u8,
}

/// A remembered idempotency key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct IdempotencySnap {
    /// The hash of the key.
    pub key: u128,
    /// The hash of the request.
    pub request: u64,
    /// The first seq of the answer.
    pub first_seq: u64,
    /// The last seq of the answer.
    pub last_seq: u64,
    /// When the key is forgotten.
    pub expires_at: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TopicSnap {
    pub topic_id: u64,
    pub epoch: u64,
    pub name: String,
    /// Its config, encoded and versioned by the engine.
    pub config: Vec<u8>,
    /// The position up to which the snapshot covers its frames.
    pub replay: ReplayPos,
    /// The last assigned seq.
    pub head: u64,
    /// The last reserved seq.
    pub reserved_to: u64,
    /// The first live record.
    pub earliest_seq: u64,
    /// The highest involuntarily lost seq at the front + 1.
    pub evict_floor: u64,
    /// The reason of that loss.
    pub evict_reason: u8,
    /// No record below this seq is live.
    pub delete_below: u64,
    /// Involuntary losses above `evict_floor`.
    pub gaps: Vec<GapSnap>,
    /// The lower limit of the next record's commit time.
    pub last_ts: u64,
    /// The time of the last write.
    pub last_write_ts: u64,
    /// Live records.
    pub live_count: u64,
    /// Their payload bytes.
    pub live_bytes: u64,
    /// Every segment, ascending, the active one (not sealed) last.
    pub segments: Vec<SegmentMeta>,
    /// Unexpired idempotency keys.
    pub idempotency: Vec<IdempotencySnap>,
    /// Consumers, queue state, marks of transaction parts.
    pub sections: Vec<Section>,
}

/// Everything that a snapshot holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotBody {
    /// The directory's id.
    pub store_id: [u8; 16],
    /// The generation that wrote it.
    pub generation: u64,
    /// The layout of the WAL at that time.
    pub layout: u64,
    /// The shards of the layout.
    pub shards: Vec<ShardSnap>,
    /// Shards outside the layout, whose directories may be removed.
    pub retired: Vec<ShardSnap>,
    pub next_topic_id: u64,
    /// Topic ids are reserved up to here.
    pub reserved_topic_id: u64,
    pub next_epoch: u64,
    /// Epochs are reserved up to here.
    pub reserved_epoch: u64,
    pub topics: Vec<TopicSnap>,
    /// Routers, open transactions, last epochs of transaction writers.
    pub sections: Vec<Section>,
}

/// The snapshots of a directory.
#[derive(Debug)]
pub struct LoadedSnapshots {
    /// The newest valid snapshot and its number; `None`: there is none.
    pub newest: Option<(u64, Snapshot)>,
    /// Existing but invalid snapshots, newest first.
    pub rejected: Vec<(u64, StorageError)>,
    /// The numbers of all snapshots, newest first.
    pub numbers: Vec<u64>,
    /// The length of the newest valid one.
    pub bytes: u64,
}

/// Encodes a snapshot file.
pub fn encode(n: u64, body: &SnapshotBody) -> Result<Vec<u8>> {
    EncodedSnapshot::of(body).map(|mut e| e.file(n).to_vec())
}

/// The checksum of a snapshot: of everything except the checksum itself.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..24]);
    hash.update(&bytes[HEADER..]);
    hash.digest()
}

/// Decodes a snapshot file and checks that it is number `n` of this store.
pub fn decode(
    env: &Env,
    file: &str,
    n: u64,
    store_id: [u8; 16],
    bytes: Vec<u8>,
) -> Result<Snapshot> {
    let corrupt = |offset: usize, detail: String| StorageError::Corrupt {
        file: file.to_owned(),
        offset: offset as u64,
        detail,
    };
    if bytes.len() < HEADER || bytes[..4] != MAGIC {
        return Err(corrupt(0, "not a snapshot".into()));
    }
    let len = le_u64(&bytes, 16);
    if len != (bytes.len() - HEADER) as u64 {
        return Err(corrupt(16, format!("{len} bytes are named, {} are there", bytes.len())));
    }
    if !env.check("snapshot.checksum", checksum(&bytes) == le_u64(&bytes, 24)) {
        return Err(corrupt(24, "the checksum does not match".into()));
    }
    let version = le_u32(&bytes, 4);
    if version != VERSION {
        return Err(StorageError::Version {
            what: file.to_owned(),
            found: version,
            supported: VERSION,
        });
    }
    if !env.check("snapshot.number", le_u64(&bytes, 8) == n) {
        return Err(corrupt(8, format!("it is snapshot {}", le_u64(&bytes, 8))));
    }
    let found = decode_body(file, bytes, HEADER).map_err(|e| corrupt(HEADER, e))?;
    if !env.check("snapshot.store", found.body.store_id == store_id) {
        return Err(corrupt(HEADER, "it belongs to another directory".into()));
    }
    Ok(found)
}

/// The fields before the topics.
#[derive(Decode)]
struct Head {
    store_id: [u8; 16],
    generation: u64,
    layout: u64,
    shards: Vec<ShardSnap>,
    retired: Vec<ShardSnap>,
    next_topic_id: u64,
    reserved_topic_id: u64,
    next_epoch: u64,
    reserved_epoch: u64,
    topics: u64,
}

/// Decodes the body that starts at `at`, except the topics.
fn decode_body(file: &str, bytes: Vec<u8>, at: usize) -> std::result::Result<Snapshot, String> {
    let (head, used) = decode_fixed::<Head>(bytes.get(at..).unwrap_or_default())?;
    let topics = Table::read(file, bytes, at + used, head.topics)?;
    let (sections, used) = decode_fixed::<Vec<Section>>(topics.rest())?;
    if used != topics.rest().len() {
        return Err(format!("{} bytes follow the body", topics.rest().len() - used));
    }
    let body = SnapshotBody {
        store_id: head.store_id,
        generation: head.generation,
        layout: head.layout,
        shards: head.shards,
        retired: head.retired,
        next_topic_id: head.next_topic_id,
        reserved_topic_id: head.reserved_topic_id,
        next_epoch: head.next_epoch,
        reserved_epoch: head.reserved_epoch,
        topics: Vec::new(),
        sections,
    };
    Ok(Snapshot { body, segments: topics.segments(), topics })
}

/// Writes a snapshot: temp → sync → `before_rename` → rename → directory sync → read back and
/// verify. Returns its length. After an error the snapshot may or may not exist; the number must
/// not be used again.
pub fn write(
    env: &Env,
    paths: &Paths,
    n: u64,
    snapshot: &mut EncodedSnapshot,
    before_rename: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let bytes = snapshot.file(n);
    let (path, dir) = (paths.snapshot(n), paths.meta());
    let temp = dir.join(format!("snapshot.{n}.bin.tmp"));
    let ready = write_temp(env, &temp, bytes).and_then(|()| before_rename()).and_then(|()| {
        env.rename("snapshot.rename", &temp, &path).map_err(|e| StorageError::io(show(&path), e))
    });
    if let Err(e) = ready {
        let _ = env.fs.remove_file(&temp);
        return Err(e);
    }
    env.sync_dir("snapshot.dir", &dir).map_err(|e| StorageError::io(show(&dir), e))?;
    if let Some(offset) = differs(env, &path, bytes)? {
        let _ = env.fs.remove_file(&path);
        return Err(StorageError::Corrupt {
            file: show(&path),
            offset,
            detail: "it does not read back as it was written".into(),
        });
    }
    Ok(bytes.len() as u64)
}

/// The first offset at which a file differs from the written bytes, if any.
fn differs(env: &Env, path: &Path, bytes: &[u8]) -> Result<Option<u64>> {
    let io = |e| StorageError::io(show(path), e);
    let file = match env.fs.open(path, OpenMode::Read) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Some(0)),
        other => other.map_err(io)?,
    };
    let mut back = vec![0; bytes.len().min(BACK)];
    for (at, part) in (0u64..).step_by(BACK).zip(bytes.chunks(BACK)) {
        let back = &mut back[..part.len()];
        match file.read_exact_at(back, at) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(Some(at)),
            other => other.map_err(io)?,
        }
        if back != part {
            let same = back.iter().zip(part).take_while(|(a, b)| a == b).count();
            return Ok(Some(at + same as u64));
        }
    }
    let len = file.len().map_err(io)?;
    Ok((len != bytes.len() as u64).then_some(len.min(bytes.len() as u64)))
}

/// The number of bytes that are read back in one call.
const BACK: usize = 256 << 10;

fn write_temp(env: &Env, temp: &Path, bytes: &[u8]) -> Result<()> {
    let io = |e| StorageError::io(show(temp), e);
    let file = create_temp(env, temp).map_err(io)?;
    file.write_all_at(bytes, 0).map_err(io)?;
    env.sync("snapshot.sync", &*file).map_err(io)
}

/// Reads the newest valid one of the two newest snapshots. An I/O error and an unknown version are
/// errors; a damaged snapshot is skipped and reported.
pub fn load_newest(env: &Env, paths: &Paths, store_id: [u8; 16]) -> Result<LoadedSnapshots> {
    let numbers = list(env, paths)?;
    let mut rejected = Vec::new();
    for &n in numbers.iter().take(2) {
        match read(env, paths, n, store_id) {
            Ok((found, bytes)) => {
                return Ok(LoadedSnapshots { newest: Some((n, found)), rejected, numbers, bytes });
            }
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => {
                log::error!("snapshot {n}: {e}");
                rejected.push((n, e));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(LoadedSnapshots { newest: None, rejected, numbers, bytes: 0 })
}

/// Decodes a snapshot file of any number and store; `file` is its name in errors.
pub fn decode_any(env: &Env, file: &str, bytes: &[u8]) -> Result<Snapshot> {
    let id = bytes.get(HEADER..).and_then(|b| b.first_chunk::<16>()).copied();
    let n = if bytes.len() < HEADER { 0 } else { le_u64(bytes, 8) };
    decode(env, file, n, id.unwrap_or_default(), bytes.to_vec())
}

/// The store id in a snapshot with a valid checksum.
pub(crate) fn store_id(env: &Env, paths: &Paths, n: u64) -> Result<[u8; 16]> {
    let path = paths.snapshot(n);
    let bytes = read_file(env, &path, u64::MAX)?;
    let bytes = bytes.ok_or_else(|| StorageError::Missing { what: show(&path) })?;
    let named = bytes.get(HEADER..).and_then(|b| b.first_chunk::<16>()).copied();
    decode(env, &show(&path), n, named.unwrap_or_default(), bytes).map(|s| s.body.store_id)
}

/// Renames valid snapshots that were stored under each other's names to their own; calls `keep`
/// with each name before its file is replaced.
pub(crate) fn restore_names(
    env: &Env,
    paths: &Paths,
    store_id: [u8; 16],
    keep: impl Fn(u64) -> Result<()>,
) -> Result<()> {
    let mut misnamed = Vec::new();
    for n in list(env, paths)?.into_iter().take(2) {
        let path = paths.snapshot(n);
        let Some(bytes) = read_file(env, &path, u64::MAX)?.filter(|b| b.len() >= HEADER) else {
            continue;
        };
        let own = le_u64(&bytes, 8);
        if own != n && decode(env, &show(&path), own, store_id, bytes.clone()).is_ok() {
            misnamed.push((own, bytes));
        }
    }
    for (n, bytes) in misnamed {
        if load(env, paths, n, store_id).is_err() {
            keep(n)?;
            let name = format!("snapshot.{n}.bin");
            atomic_replace(env, "snapshot.names", &paths.meta(), &name, &bytes)?;
            log::warn!("{name} lay under another name");
        }
    }
    Ok(())
}

/// Reads one snapshot.
pub fn load(env: &Env, paths: &Paths, n: u64, store_id: [u8; 16]) -> Result<Snapshot> {
    read(env, paths, n, store_id).map(|(found, _)| found)
}

fn read(env: &Env, paths: &Paths, n: u64, store_id: [u8; 16]) -> Result<(Snapshot, u64)> {
    let path = paths.snapshot(n);
    let Some(bytes) = read_file(env, &path, u64::MAX)? else {
        return Err(StorageError::Missing { what: show(&path) });
    };
    let len = bytes.len() as u64;
    Ok((decode(env, &show(&path), n, store_id, bytes)?, len))
}

/// The number in the name of a snapshot.
fn number(name: &str) -> Option<u64> {
    name.strip_prefix("snapshot.")?.strip_suffix(".bin")?.parse().ok()
}

/// The numbers of the snapshots, newest first.
pub fn list(env: &Env, paths: &Paths) -> Result<Vec<u64>> {
    let names = list_dir(env, &paths.meta())?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|e| number(&e.name)).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    Ok(numbers)
}

/// Removes every snapshot except these, and unfinished ones.
pub fn prune(env: &Env, paths: &Paths, keep: &[u64]) -> Result<()> {
    for entry in list_dir(env, &paths.meta())? {
        let unfinished = entry.name.strip_suffix(".tmp").and_then(number).is_some();
        if unfinished || number(&entry.name).is_some_and(|n| !keep.contains(&n)) {
            let path = paths.meta().join(&entry.name);
            env.fs.remove_file(&path).map_err(|e| StorageError::io(show(&path), e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
