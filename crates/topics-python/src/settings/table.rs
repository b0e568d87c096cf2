//! The one table of settings: what an engine is opened with, by name, each with what it is for. The
//! defaults are those of the Rust types.

use topics_engine::{Durability, Options, RecoveryMode, RemoteLimits};
use topics_env::real::Backend;
use topics_wire::Limits;

use super::slot::{Choice, Slot};

/// The values of all settings.
#[derive(Clone, Debug, Default)]
pub(super) struct AllSettings {
    pub(super) remote_url: String,
    pub(super) remote: RemoteLimits,
    pub(super) options: Options,
    pub(super) backend: Backend,
    /// The address of the server that serves the directory.
    pub(super) url: String,
    pub(super) limits: Limits,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    /// The field that it reads and writes.
    pub(super) slot: fn(&mut AllSettings) -> Slot<'_>,
}

const fn setting(
    name: &'static str,
    summary: &'static str,
    slot: fn(&mut AllSettings) -> Slot<'_>,
) -> Setting {
    Setting { name, summary, slot }
}

/// Every setting. A limit that holds for HTTP requests and calls in process has one name; limits of
/// calls in process alone begin with `max_embedded_`.
#[rustfmt::skip]
pub(super) const SETTINGS: &[Setting] = &[
    setting("url", "the server's address, which its lock file shows to other processes", |all| Slot::Text(&mut all.url)),
    setting("io_backend", "`posix` or `uring`; `auto` selects the faster one in measurements, currently `posix`. The bytes on disk are the same", |all| Slot::Words(&mut all.backend)),
    setting("recovery", "`strict` refuses a damaged directory; `salvage` opens it without the damaged parts and reports the losses", |all| Slot::Words(&mut all.options.recovery)),
    setting("auto_create", "whether a write creates its topic; or patterns of the names for which it does", |all| Slot::AutoCreate(&mut all.options.auto_create)),
    setting("default_durability", "class of topics that are created without one: `ephemeral`, `memory`, `disk` or `fsync`", |all| Slot::Words(&mut all.options.default_durability)),
    setting("wal_shards", "number of logs that topics are distributed over; 0: one per processor, at most 8", |all| Slot::Count32(&mut all.options.wal_shards)),
    setting("wal_file_min", "size of a shard's first log file; the next ones double. At most 2 GiB", |all| Slot::Bytes64(&mut all.options.wal_file_min)),
    setting("wal_file_max", "size of a shard's largest log file, at most 2 GiB; 0: 64 MiB, less with many shards", |all| Slot::Bytes64(&mut all.options.wal_file_max)),
    setting("wal_max_bytes", "size of the log above which writes are refused", |all| Slot::Bytes64(&mut all.options.wal_max_bytes)),
    setting("staging_bytes", "bytes that each shard accepts before they are written", |all| Slot::Bytes(&mut all.options.staging_bytes)),
    setting("staging_frames", "records that each shard accepts before they are written", |all| Slot::Count(&mut all.options.staging_frames)),
    setting("staging_wait_ms", "how long a write waits for staging space", |all| Slot::Millis(&mut all.options.staging_wait)),
    setting("sync_interval_ms", "how long records of class `disk` stay unsynced", |all| Slot::Millis(&mut all.options.sync_interval)),
    setting("tail_cache_bytes", "memory for the newest records, for readers near the head", |all| Slot::Bytes(&mut all.options.tail_cache_bytes)),
    setting("checkpoint_bytes", "log bytes after which a checkpoint moves records to segments", |all| Slot::Bytes64(&mut all.options.checkpoint_bytes)),
    setting("checkpoint_interval_ms", "time after which a checkpoint moves records to segments", |all| Slot::Millis(&mut all.options.checkpoint_interval)),
    setting("segment_max_events", "most records of a segment", |all| Slot::Count64(&mut all.options.segment_max_events)),
    setting("segment_max_bytes", "most bytes of a segment", |all| Slot::Bytes64(&mut all.options.segment_max_bytes)),
    setting("segment_max_age_ms", "age at which a segment is sealed if that helps expiry; 0: never", |all| Slot::Millis(&mut all.options.segment_max_age)),
    setting("remote_url", "the object store for old segments and backups, `s3://bucket/prefix` or `file:///directory`", |all| Slot::Text(&mut all.remote_url)),
    setting("remote_interval_ms", "time between two rounds of the log; 0: bases only", |all| Slot::Millis(&mut all.remote.interval)),
    setting("remote_base_interval_ms", "time between two bases while something is written", |all| Slot::Millis(&mut all.remote.base_interval)),
    setting("remote_wal_bytes", "log that waits to be shipped, above which it is given up and a new base begins", |all| Slot::Bytes64(&mut all.remote.wal_bytes)),
    setting("remote_window_ms", "how far back a state can be restored; 0: the newest base only; `never`: nothing is deleted from the object store", |all| Slot::Window(&mut all.remote.window)),
    setting("pack_bytes", "size of an object of the object store, which holds several segments", |all| Slot::Bytes64(&mut all.remote.pack_bytes)),
    setting("hot_retain_segments", "newest segments of a topic whose records stay on the disk", |all| Slot::Count64(&mut all.remote.hot_segments)),
    setting("hot_retain_bytes", "bytes of the newest segments of a topic that stay on the disk; 0: no bound of bytes", |all| Slot::Bytes64(&mut all.remote.hot_bytes)),
    setting("cold_timeout_ms", "how long a read waits for the object store", |all| Slot::Millis(&mut all.remote.cold_timeout)),
    setting("cold_memory_bytes", "memory for records from the object store", |all| Slot::Bytes64(&mut all.remote.cold_memory_bytes)),
    setting("remote_single_writer", "no other process writes to the prefix: its server is not probed", |all| Slot::Flag(&mut all.remote.single_writer)),
    setting("memory_bytes", "memory for the index of records that are in no segment: above it a checkpoint starts early, above twice as much writes wait", |all| Slot::Bytes64(&mut all.options.memory_bytes)),
    setting("ephemeral_bytes", "bytes of all records of class `ephemeral`", |all| Slot::Bytes64(&mut all.options.ephemeral_bytes)),
    setting("txn_bytes", "most bytes staged for transactions; 0: as the disk has space", |all| Slot::Bytes64(&mut all.options.txn_bytes)),
    setting("txn_ttl_ms", "how long staged rows wait for their commit", |all| Slot::Millis(&mut all.options.txn_ttl)),
    setting("max_topics", "most topics", |all| Slot::Count64(&mut all.options.max_topics)),
    setting("max_routers", "most routers", |all| Slot::Count64(&mut all.options.max_routers)),
    setting("max_watch_sessions", "most watch sessions", |all| Slot::Count64(&mut all.options.max_watch_sessions)),
    setting("max_consumers", "most consumers of all topics", |all| Slot::Count64(&mut all.options.max_consumers)),
    setting("max_txn_writers", "most transaction writers whose last epoch is remembered", |all| Slot::Count64(&mut all.options.max_txn_writers)),
    setting("max_txn_writers_per_key", "most transaction writers of one API key", |all| Slot::Count64(&mut all.options.max_txn_writers_per_key)),
    setting("txn_writer_ttl_ms", "idle time after which a transaction writer may be removed for a new one; never while it has staged rows", |all| Slot::Millis(&mut all.options.txn_writer_ttl)),
    setting("max_open_files", "most files of segments that stay open; 0: as many as the process limit allows", |all| Slot::Count(&mut all.options.max_open_files)),
    setting("max_total_bytes", "most payload bytes of all topics, of records that are kept", |all| Slot::Bytes64(&mut all.options.max_total_bytes)),
    setting("max_idempotency_keys", "most stored idempotency keys", |all| Slot::Count64(&mut all.options.max_idempotency_keys)),
    setting("max_embedded_batch_records", "most records of a write in process", |all| Slot::Count(&mut all.options.max_batch_records)),
    setting("max_embedded_batch_bytes", "most payload bytes of a write in process, at most 1 GiB", |all| Slot::Bytes64(&mut all.options.max_batch_bytes)),
    setting("max_embedded_record_bytes", "most bytes of `data` and `meta` of a record written in process", |all| Slot::Bytes(&mut all.options.max_record_bytes)),
    setting("max_batch_records", "most records of a write over HTTP", |all| Slot::Count(&mut all.limits.batch_records)),
    setting("max_record_bytes", "most bytes of `data` and `meta` of a record written over HTTP", |all| Slot::Bytes(&mut all.limits.record_bytes)),
    setting("max_meta_bytes", "most bytes of a record's `meta`", |all| Slot::Bytes(&mut all.limits.meta_bytes)),
    setting("max_tag_bytes", "most bytes of a record's `tag`", |all| Slot::Bytes(&mut all.limits.tag_bytes)),
    setting("max_node_bytes", "most bytes of a record's `node`", |all| Slot::Bytes(&mut all.limits.node_bytes)),
    setting("max_limit", "most records of a read over HTTP", |all| Slot::Count(&mut all.limits.limit)),
    setting("max_claim", "most jobs of a claim or a peek", |all| Slot::Count(&mut all.limits.claim)),
    setting("max_watch_topics", "most topics and patterns of a watch over HTTP", |all| Slot::Count(&mut all.limits.watch_topics)),
];

impl Choice for RecoveryMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("strict", Self::Strict), ("salvage", Self::Salvage)];
}

impl Choice for Durability {
    const WORDS: &'static [(&'static str, Self)] = &topics_wire::words::DURABILITIES;
}

impl Choice for Backend {
    const WORDS: &'static [(&'static str, Self)] = &Self::NAMES;
}
