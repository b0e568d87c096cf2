//! The snapshot: state per topic and the list of every segment, never records.

use bincode::{Decode, Encode};
use topics_env::Env;

use crate::dir::Paths;
use crate::segment::SegmentMeta;
use crate::{Result, StorageError};

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
    let _ = (n, body);
    todo!()
}

/// Decodes a snapshot file and checks that it is number `n` of this store.
pub fn decode(env: &Env, file: &str, n: u64, store_id: [u8; 16], bytes: &[u8]) -> Result<SnapshotBody> {
    let _ = (env, file, n, store_id, bytes);
    todo!()
}

/// Writes a snapshot: temp → sync → `before_rename` → rename → directory sync → read back and
/// verify. Returns its length.
pub fn write(
    env: &Env,
    paths: &Paths,
    n: u64,
    body: &SnapshotBody,
    before_rename: impl FnOnce() -> Result<()>,
) -> Result<u64> {
    let _ = (env, paths, n, body, before_rename());
    todo!()
}

/// Reads the newest valid one of the two newest snapshots. An I/O error and an unknown version
/// are errors; a damaged one is passed over and reported.
pub fn load_newest(env: &Env, paths: &Paths, store_id: [u8; 16]) -> Result<Loaded> {
    let _ = (env, paths, store_id);
    todo!()
}

/// Reads one snapshot.
pub fn load(env: &Env, paths: &Paths, n: u64, store_id: [u8; 16]) -> Result<SnapshotBody> {
    let _ = (env, paths, n, store_id);
    todo!()
}

/// The numbers of the snapshots, newest first.
pub fn list(env: &Env, paths: &Paths) -> Result<Vec<u64>> {
    let _ = (env, paths);
    todo!()
}

/// Removes every snapshot but these, and unfinished ones.
pub fn prune(env: &Env, paths: &Paths, keep: &[u64]) -> Result<()> {
    let _ = (env, paths, keep);
    todo!()
}
