//! The snapshot: state per topic and the list of every segment, never records.
//!
//! ```text
//!   0  4  magic "TSNP"   4  4  version u32   8  8  number n   16  8  length of the body
//!  24  8  XXH3-64 of bytes 0…23 and the body
//!  32  .  body: SnapshotBody, bincode 2, little-endian, fixed width
//! ```

use std::path::Path;

use bincode::{Decode, Encode};
use topics_env::{Env, OpenMode};
use xxhash_rust::xxh3::Xxh3;

use crate::dir::{Paths, le_u32, le_u64, list_dir, read_file, show};
use crate::segment::SegmentMeta;
use crate::{Result, StorageError};

const MAGIC: [u8; 4] = *b"TSNP";
const VERSION: u32 = 1;
pub(crate) const HEADER: usize = 32;
const CODEC: bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Fixint,
> = bincode::config::standard().with_fixed_int_encoding();

/// A position in the logs: the layout (the generation that began with its shard count) and the
/// lsn within the topic's shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub struct ReplayPos {
    /// The layout.
    pub layout: u64,
    /// The lsn up to which nothing must be replayed.
    pub lsn: u64,
}

/// What the snapshot reflects of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct ShardSnap {
    /// The shard.
    pub shard: u32,
    /// Its layout.
    pub layout: u64,
    /// Nothing of the shard up to here must be replayed.
    pub replay_lsn: u64,
    /// The last lsn that was given.
    pub last_lsn: u64,
    /// Durable up to here.
    pub synced_lsn: u64,
}

/// A state that this layer does not understand, with its own version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Section {
    /// What it is; the numbers belong to the engine.
    pub kind: u16,
    /// The version of its encoding.
    pub version: u16,
    /// The state.
    pub bytes: Vec<u8>,
}

/// An involuntary gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct GapSnap {
    /// Its first seq.
    pub from: u64,
    /// Its last seq.
    pub to: u64,
    /// Why.
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
    /// When it is forgotten.
    pub expires_at: u64,
}

/// A topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct TopicSnap {
    /// Its id.
    pub topic_id: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its name.
    pub name: String,
    /// Its config, encoded and versioned by the engine.
    pub config: Vec<u8>,
    /// Up to where its frames are reflected.
    pub replay: ReplayPos,
    /// The last assigned seq.
    pub head: u64,
    /// The last reserved seq.
    pub reserved_to: u64,
    /// The first live record.
    pub earliest_seq: u64,
    /// The highest involuntary loss + 1.
    pub evict_floor: u64,
    /// Why it was lost.
    pub evict_reason: u8,
    /// Everything below was deleted.
    pub delete_below: u64,
    /// Involuntary loss elsewhere.
    pub gaps: Vec<GapSnap>,
    /// The commit time that the next record must not be below.
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
    /// The layout of the WAL then.
    pub layout: u64,
    /// The shards of the layout.
    pub shards: Vec<ShardSnap>,
    /// Shards outside the layout, whose folders may go.
    pub retired: Vec<ShardSnap>,
    /// The next topic id.
    pub next_topic_id: u64,
    /// Topic ids are reserved up to here.
    pub reserved_topic_id: u64,
    /// The next epoch.
    pub next_epoch: u64,
    /// Epochs are reserved up to here.
    pub reserved_epoch: u64,
    /// The topics.
    pub topics: Vec<TopicSnap>,
    /// Routers, open transactions, last epochs of transaction writers.
    pub sections: Vec<Section>,
}

/// A snapshot that was read.
#[derive(Debug)]
pub struct Loaded {
    /// The newest valid one and its number; `None`: there is none.
    pub newest: Option<(u64, SnapshotBody)>,
    /// Snapshots that are there and invalid, newest first.
    pub rejected: Vec<(u64, StorageError)>,
    /// The numbers of all snapshots, newest first.
    pub numbers: Vec<u64>,
    /// The length of the newest valid one.
    pub bytes: u64,
}

/// Encodes a snapshot file.
pub fn encode(n: u64, body: &SnapshotBody) -> Result<Vec<u8>> {
    let mut out = vec![0; HEADER];
    bincode::encode_into_std_write(body, &mut out, CODEC)
        .map_err(|e| StorageError::io("encode a snapshot", std::io::Error::other(e)))?;
    let len = (out.len() - HEADER) as u64;
    out[..4].copy_from_slice(&MAGIC);
    out[4..8].copy_from_slice(&VERSION.to_le_bytes());
    out[8..16].copy_from_slice(&n.to_le_bytes());
    out[16..24].copy_from_slice(&len.to_le_bytes());
    let sum = checksum(&out);
    out[24..HEADER].copy_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// The checksum of a snapshot: everything but the checksum itself.
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
    bytes: &[u8],
) -> Result<SnapshotBody> {
    let corrupt = |offset: usize, detail: String| StorageError::Corrupt {
        file: file.to_owned(),
        offset: offset as u64,
        detail,
    };
    if bytes.len() < HEADER || bytes[..4] != MAGIC {
        return Err(corrupt(0, "not a snapshot".into()));
    }
    let len = le_u64(bytes, 16);
    if len != (bytes.len() - HEADER) as u64 {
        return Err(corrupt(16, format!("{len} bytes are named, {} are there", bytes.len())));
    }
    if !env.check("snapshot.checksum", checksum(bytes) == le_u64(bytes, 24)) {
        return Err(corrupt(24, "the checksum does not match".into()));
    }
    let version = le_u32(bytes, 4);
    if version != VERSION {
        return Err(StorageError::Version {
            what: file.to_owned(),
            found: version,
            supported: VERSION,
        });
    }
    if !env.check("snapshot.number", le_u64(bytes, 8) == n) {
        return Err(corrupt(8, format!("it is snapshot {}", le_u64(bytes, 8))));
    }
    let body = decode_body(&bytes[HEADER..]).map_err(|e| corrupt(HEADER, e))?;
    if !env.check("snapshot.store", body.store_id == store_id) {
        return Err(corrupt(HEADER, "it belongs to another directory".into()));
    }
    Ok(body)
}

/// Decodes with an allocation limit near the length of what is decoded: the encoding is of fixed
/// width, so a value takes at most about twice its encoded bytes in memory.
fn decode_body(bytes: &[u8]) -> std::result::Result<SnapshotBody, String> {
    fn limited<const LIMIT: usize>(bytes: &[u8]) -> Decoded {
        bincode::decode_from_slice(bytes, CODEC.with_limit::<LIMIT>())
    }
    type Decoded = std::result::Result<(SnapshotBody, usize), bincode::error::DecodeError>;
    const LIMITS: [usize; 4] = [1 << 20, 1 << 24, 1 << 28, 1 << 32];
    let most = bytes.len().saturating_mul(4);
    let (body, used) = match LIMITS.iter().position(|limit| most <= *limit) {
        Some(0) => limited::<{ LIMITS[0] }>(bytes),
        Some(1) => limited::<{ LIMITS[1] }>(bytes),
        Some(2) => limited::<{ LIMITS[2] }>(bytes),
        Some(_) => limited::<{ LIMITS[3] }>(bytes),
        None => limited::<{ LIMITS[3] << 8 }>(bytes),
    }
    .map_err(|e| e.to_string())?;
    if used != bytes.len() {
        return Err(format!("{} bytes follow the body", bytes.len() - used));
    }
    Ok(body)
}

/// Writes a snapshot: temp → sync → `before_rename` → rename → directory sync → read back and
/// verify. Returns its length. After an error the snapshot may be there or not; the number must
/// not be used again.
pub fn write(
    env: &Env,
    paths: &Paths,
    n: u64,
    body: &SnapshotBody,
    before_rename: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let bytes = encode(n, body)?;
    let (path, dir) = (paths.snapshot(n), paths.meta());
    let temp = dir.join(format!("snapshot.{n}.bin.tmp"));
    let ready = write_temp(env, &temp, &bytes).and_then(|()| before_rename()).and_then(|()| {
        env.rename("snapshot.rename", &temp, &path).map_err(|e| StorageError::io(show(&path), e))
    });
    if let Err(e) = ready {
        let _ = env.fs.remove_file(&temp);
        return Err(e);
    }
    env.sync_dir("snapshot.dir", &dir).map_err(|e| StorageError::io(show(&dir), e))?;
    let back = read_file(env, &path, u64::MAX)?.unwrap_or_default();
    if back != bytes {
        let _ = env.fs.remove_file(&path);
        return Err(StorageError::Corrupt {
            file: show(&path),
            offset: back.iter().zip(&bytes).take_while(|(a, b)| a == b).count() as u64,
            detail: "it does not read back as it was written".into(),
        });
    }
    Ok(bytes.len() as u64)
}

fn write_temp(env: &Env, temp: &Path, bytes: &[u8]) -> Result<()> {
    let io = |e| StorageError::io(show(temp), e);
    let file = env.fs.open(temp, OpenMode::Truncate).map_err(io)?;
    file.write_all_at(bytes, 0).map_err(io)?;
    env.sync("snapshot.sync", &*file).map_err(io)
}

/// Reads the newest valid one of the two newest snapshots. An I/O error and an unknown version
/// are errors; a damaged one is passed over and reported.
pub fn load_newest(env: &Env, paths: &Paths, store_id: [u8; 16]) -> Result<Loaded> {
    let numbers = list(env, paths)?;
    let mut rejected = Vec::new();
    for &n in numbers.iter().take(2) {
        match read(env, paths, n, store_id) {
            Ok((body, bytes)) => {
                return Ok(Loaded { newest: Some((n, body)), rejected, numbers, bytes });
            }
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => {
                log::error!("snapshot {n}: {e}");
                rejected.push((n, e));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(Loaded { newest: None, rejected, numbers, bytes: 0 })
}

/// Reads one snapshot.
pub fn load(env: &Env, paths: &Paths, n: u64, store_id: [u8; 16]) -> Result<SnapshotBody> {
    read(env, paths, n, store_id).map(|(body, _)| body)
}

fn read(env: &Env, paths: &Paths, n: u64, store_id: [u8; 16]) -> Result<(SnapshotBody, u64)> {
    let path = paths.snapshot(n);
    let Some(bytes) = read_file(env, &path, u64::MAX)? else {
        return Err(StorageError::Missing { what: show(&path) });
    };
    let body = decode(env, &show(&path), n, store_id, &bytes)?;
    Ok((body, bytes.len() as u64))
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

/// Removes every snapshot but these, and unfinished ones.
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
