//! The engine's settings.

use std::sync::Arc;
use std::time::Duration;

use topics_env::objects::ObjectStore;
use topics_storage::format::frame::MAX_FRAME_LEN;

use super::api::Durability;
use super::error::{Error, Result};
use super::name;

/// How recovery handles damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecoveryMode {
    /// It refuses to open, with an error that names the damage.
    #[default]
    Strict,
    /// It copies damaged ranges to quarantine and declares them lost as gaps.
    Salvage,
    /// Like `Salvage`, and it verifies every record of every segment.
    Repair,
}

impl RecoveryMode {
    /// Whether damaged ranges are declared lost.
    #[must_use]
    pub fn gives_up(self) -> bool {
        self != Self::Strict
    }
}

/// Which topics a write may create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AutoCreate {
    /// Any topic.
    #[default]
    On,
    /// No topic.
    Off,
    /// Topics whose names are listed, or begin with the prefix before a final `*`.
    Patterns(Vec<String>),
}

impl AutoCreate {
    /// Whether a write may create a topic of this name.
    #[must_use]
    pub fn allows(&self, topic: &str) -> bool {
        match self {
            Self::On => true,
            Self::Off => false,
            Self::Patterns(list) => list.iter().any(|p| name::matches_pattern(p, topic)),
        }
    }
}

/// The object store that sealed segments are archived in. The newest ones also stay on the disk.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// The store: a prefix of its own for each data directory.
    pub store: Arc<dyn ObjectStore>,
    /// What is archived when, and what stays local.
    pub limits: RemoteLimits,
}

/// Limits of packs, of hot segments and of cold reads. Each field states its default.
#[derive(Clone, Debug)]
pub struct RemoteLimits {
    /// Length of a pack, bytes; default 32 MiB. A segment that is larger is a pack of its own.
    pub pack_bytes: u64,
    /// Segments of a topic whose records stay on the disk, the newest ones; default 4.
    pub hot_segments: u64,
    /// Bytes of these segments; default 0: off. A segment above either limit becomes cold when it is
    /// archived.
    pub hot_bytes: u64,
    /// Maximum wait of a read for cold records; default 30 s.
    pub cold_timeout: Duration,
    /// Bytes of memory for cold records, requests in progress included; default 64 MiB. What a read waits
    /// for is kept until it is read, whatever this limit.
    pub cold_memory_bytes: u64,
    /// Time between two rounds of the log; default 1 s. A round is also due after 8 MiB. 0: no rounds, so that
    /// what was written since the last base cannot be restored.
    pub interval: Duration,
    /// Time between two bases while something is written; default 10 min. A base is also due when a process
    /// begins, after 256 MiB of the log, when rounds were given up, and at a close if without it something could
    /// not be restored.
    pub base_interval: Duration,
    /// Bytes of the log that are not shipped, above which they are given up and a new base begins;
    /// default 1 GiB.
    pub wal_bytes: u64,
    /// How far back the state of the directory can be restored: earlier bases and what they name are kept
    /// so long; default 7 d. 0: only the newest base. `None`: nothing is deleted.
    pub window: Option<Duration>,
    /// Whether no other process ever writes to the prefix; default false. Then a new prefix is accepted on
    /// a server that cannot keep two writers apart: it is not probed.
    pub single_writer: bool,
}

impl Default for RemoteLimits {
    fn default() -> Self {
        Self {
            pack_bytes: 32 << 20,
            hot_segments: 4,
            hot_bytes: 0,
            cold_timeout: Duration::from_secs(30),
            cold_memory_bytes: 64 << 20,
            interval: Duration::from_secs(1),
            base_interval: Duration::from_secs(600),
            wal_bytes: 1 << 30,
            window: Some(Duration::from_secs(7 * 86_400)),
            single_writer: false,
        }
    }
}

/// Positions in a log file are 32 bits: of a file of this size, with a batch of the largest size at its end.
const MAX_LOG_FILE: u64 = 2 << 30;
/// The largest batch, payload bytes.
const MAX_BATCH: u64 = 1 << 30;
const MAX_SEGMENT: u64 = 1 << 30;
const MAX_PACK: u64 = 1 << 30;
/// The longest time that a caller waits, and the longest of all.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);
const MAX_TIME: Duration = Duration::from_secs(10 * 366 * 86_400);

/// Settings of an engine. Each field states its default; 0 switches a limit off if the field says so.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that sync, checkpoint and sweep; default true. Without them the caller drives
    /// [`crate::engine::Engine::tick`], [`crate::engine::Engine::checkpoint`] and [`crate::engine::Engine::sync`]
    /// (simulation).
    pub background: bool,
    /// How recovery handles damage; default `Strict`.
    pub recovery: RecoveryMode,
    /// Which topics a write may create; default `On`.
    pub auto_create: AutoCreate,
    /// Class of a topic that is created without one; default `Disk`.
    pub default_durability: Durability,

    /// Threads that deliver to watchers, started with the first watcher; default 0: the number of cpus.
    pub delivery_workers: u32,
    /// WAL shards; default 1. 0: `min(cpus, 8)`.
    pub wal_shards: u32,
    /// Size of a shard's first WAL file; default 1 MiB, doubling from file to file.
    pub wal_file_min: u64,
    /// Size of a shard's largest WAL file; default 0: `min(64 MiB, 256 MiB / (4 × shards))`.
    pub wal_file_max: u64,
    /// WAL bytes on disk above which writes are refused; default 4 GiB.
    pub wal_max_bytes: u64,
    /// Bytes staged per shard and not written yet; default 64 MiB. A larger single write is
    /// admitted alone.
    pub staging_bytes: usize,
    /// Frames staged per shard and not written yet; default 1 000 000.
    pub staging_frames: usize,
    /// Maximum wait of a write for a staging permit; default 1 s.
    pub staging_wait: Duration,
    /// Maximum time that records of class `disk` stay unsynced; default 50 ms.
    pub sync_interval: Duration,
    /// Memory for the newest WAL groups, all shards together, bytes; default 16 MiB.
    pub tail_cache_bytes: usize,
    /// WAL bytes after which a checkpoint is due; default 64 MiB.
    pub checkpoint_bytes: u64,
    /// Time after which a checkpoint is due if there is anything to do; default 60 s.
    pub checkpoint_interval: Duration,

    /// Records per segment; default 200 000.
    pub segment_max_events: u64,
    /// Bytes of `.data` per segment, at most 1 GiB; default 64 MiB.
    pub segment_max_bytes: u64,
    /// Age at which a segment is sealed if TTL or tiers gain by that; default 1 h. 0: off.
    pub segment_max_age: Duration,

    /// Maximum number of segment files that stay open after a read; default 2 048, less if the process
    /// has a lower limit, see [`Self::open_files`]. 0: as many as that limit allows.
    pub max_open_files: usize,

    /// Maximum number of topics; default 100 000. 0: off.
    pub max_topics: u64,
    /// Maximum number of routers; default 10 000. 0: off.
    pub max_routers: u64,
    /// Maximum number of watch sessions; default 10 000. 0: off.
    pub max_watch_sessions: u64,
    /// Maximum number of consumers; default 100 000. 0: off.
    pub max_consumers: u64,
    /// Maximum number of remembered transaction writers; default 100 000. 0: off.
    pub max_txn_writers: u64,
    /// Maximum number of remembered writers of one API key; default 10 000. 0: off.
    pub max_txn_writers_per_key: u64,
    /// Idle time after which a transaction writer may be forgotten in favour of a new one; default 30 d.
    pub txn_writer_ttl: Duration,
    /// Maximum records per write; default 10 000 000. 0: off.
    pub max_batch_records: usize,
    /// Maximum payload bytes per write, at most 1 GiB (0: that much); default 1 GiB.
    pub max_batch_bytes: u64,
    /// Maximum bytes of `data` and `meta` per record, at most what a frame holds (0: that much);
    /// default 16 MiB.
    pub max_record_bytes: usize,
    /// Maximum bytes of `meta` per record; default 16 KiB. 0: off.
    pub max_meta_bytes: usize,
    /// Maximum bytes of `tag` per record, at most what a frame holds (0: that much); default 256.
    pub max_tag_bytes: usize,
    /// Maximum bytes of `node` per record, like `tag`; default 128.
    pub max_node_bytes: usize,
    /// Maximum number of live idempotency keys of all topics; default 1 000 000. 0: off.
    pub max_idempotency_keys: u64,
    /// Maximum live payload bytes of all topics; default 0: off.
    pub max_total_bytes: u64,
    /// Bytes of the records of all `ephemeral` topics together; default 256 MiB.
    pub ephemeral_bytes: u64,
    /// Maximum bytes of staged transaction rows; default 0: as the disk has space.
    pub txn_bytes: u64,
    /// Maximum time that staged rows wait for their commit; default 1 h.
    pub txn_ttl: Duration,
    /// Bytes of resident index above which a checkpoint runs early; writes wait above twice as
    /// much; default 128 MiB.
    pub memory_bytes: u64,
    /// Where sealed segments are archived; default `None`: nowhere.
    pub remote: Option<RemoteOptions>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            background: true,
            recovery: RecoveryMode::Strict,
            auto_create: AutoCreate::On,
            default_durability: Durability::Disk,
            delivery_workers: 0,
            wal_shards: 1,
            wal_file_min: 1 << 20,
            wal_file_max: 0,
            wal_max_bytes: 4 << 30,
            staging_bytes: 64 << 20,
            staging_frames: 1_000_000,
            staging_wait: Duration::from_secs(1),
            sync_interval: Duration::from_millis(50),
            tail_cache_bytes: 16 << 20,
            checkpoint_bytes: 64 << 20,
            checkpoint_interval: Duration::from_secs(60),
            segment_max_events: 200_000,
            segment_max_bytes: 64 << 20,
            segment_max_age: Duration::from_secs(3600),
            max_open_files: 2048,
            max_topics: 100_000,
            max_routers: 10_000,
            max_watch_sessions: 10_000,
            max_consumers: 100_000,
            max_txn_writers: 100_000,
            max_txn_writers_per_key: 10_000,
            txn_writer_ttl: Duration::from_secs(30 * 86_400),
            max_batch_records: 10_000_000,
            max_batch_bytes: 1 << 30,
            max_record_bytes: 16 << 20,
            max_meta_bytes: 16 << 10,
            max_tag_bytes: 256,
            max_node_bytes: 128,
            max_idempotency_keys: 1_000_000,
            max_total_bytes: 0,
            ephemeral_bytes: 256 << 20,
            txn_bytes: 0,
            txn_ttl: Duration::from_secs(3600),
            memory_bytes: 128 << 20,
            remote: None,
        }
    }
}

impl Options {
    /// The number of WAL shards by these settings.
    #[must_use]
    pub fn shards(&self) -> u32 {
        match self.wal_shards {
            0 => topics_env::cores().min(8) as u32,
            n => n,
        }
    }

    /// The number of delivery threads by these settings.
    #[must_use]
    pub fn workers(&self) -> usize {
        match self.delivery_workers {
            0 => topics_env::cores(),
            n => n as usize,
        }
    }

    /// The size of a shard's largest WAL file by these settings, bytes.
    #[must_use]
    pub fn largest_wal_file(&self) -> u64 {
        match self.wal_file_max {
            0 => (64 << 20).min((256 << 20) / (4 * u64::from(self.shards()))),
            n => n,
        }
    }

    /// Maximum number of open segment files in a process with a limit of `descriptors`: the setting, but
    /// at most the engine's half of the limit. The other half is left to the application.
    #[must_use]
    pub fn open_files(&self, descriptors: Option<u64>) -> usize {
        let rounds = self.unsynced_files(descriptors);
        within(self.max_open_files, self.segment_descriptors(descriptors) - rounds)
    }

    /// Number of files that a checkpoint keeps open until they are synced.
    #[must_use]
    pub(crate) fn unsynced_files(&self, descriptors: Option<u64>) -> usize {
        (self.segment_descriptors(descriptors) / 4).clamp(4, 64)
    }

    /// Descriptors of the engine's half that remain without the log, the lock and temporarily open files.
    fn segment_descriptors(&self, descriptors: Option<u64>) -> usize {
        let half = descriptors.map_or(usize::MAX, |n| usize::try_from(n / 2).unwrap_or(usize::MAX));
        half.saturating_sub(16 + 4 * self.shards() as usize).max(6)
    }

    /// Refuses sizes that do not fit into the 32 bits of a position in a file, and times that do not fit
    /// into a clock.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("wal_file_min", self.wal_file_min, MAX_LOG_FILE),
            ("wal_file_max", self.wal_file_max, MAX_LOG_FILE),
            ("segment_max_bytes", self.segment_max_bytes, MAX_SEGMENT),
        ];
        let times = [
            ("staging_wait_ms", self.staging_wait, MAX_TIMEOUT),
            ("sync_interval_ms", self.sync_interval, MAX_TIMEOUT),
            ("checkpoint_interval_ms", self.checkpoint_interval, MAX_TIME),
            ("segment_max_age_ms", self.segment_max_age, MAX_TIME),
            ("txn_ttl_ms", self.txn_ttl, MAX_TIME),
            ("txn_writer_ttl_ms", self.txn_writer_ttl, MAX_TIME),
        ];
        let (remote_sizes, remote_times) = match &self.remote {
            Some(remote) => {
                let l = &remote.limits;
                (
                    vec![("pack_bytes", l.pack_bytes, MAX_PACK)],
                    vec![
                        ("cold_timeout_ms", l.cold_timeout, MAX_TIMEOUT),
                        ("remote_interval_ms", l.interval, MAX_TIME),
                        ("remote_base_interval_ms", l.base_interval, MAX_TIME),
                        ("remote_window_ms", l.window.unwrap_or_default(), MAX_TIME),
                    ],
                )
            }
            None => (Vec::new(), Vec::new()),
        };
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let times = times.into_iter().chain(remote_times);
        let times = times.map(|(name, value, most)| (name, millis(value), millis(most)));
        let all = sizes.into_iter().chain(remote_sizes).chain(times);
        for (name, value, most) in all {
            if value > most {
                let text = format!("{name} is {value}: it must be at most {most}");
                return Err(Error::InvalidRequest(text));
            }
        }
        Ok(())
    }

    /// The settings with limits of a write that a frame and a log file can hold; 0 becomes the maximum.
    pub(crate) fn bounded(self) -> Self {
        let part = usize::from(u16::MAX);
        // Names, attributes, and the meta that a move or a router adds to a record.
        let payload = MAX_FRAME_LEN as usize - 8 * part;
        Self {
            max_batch_records: within(self.max_batch_records, usize::MAX),
            max_batch_bytes: within(
                usize::try_from(self.max_batch_bytes).unwrap_or(usize::MAX),
                MAX_BATCH as usize,
            ) as u64,
            max_record_bytes: within(self.max_record_bytes, payload),
            max_meta_bytes: within(self.max_meta_bytes, payload),
            max_tag_bytes: within(self.max_tag_bytes, part),
            max_node_bytes: within(self.max_node_bytes, part),
            ..self
        }
    }
}

/// A limit that is off at 0, and never above `most`.
fn within(n: usize, most: usize) -> usize {
    if n == 0 { most } else { n.min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_create() {
        assert!(AutoCreate::On.allows("x"));
        assert!(!AutoCreate::Off.allows("x"));
        let p = AutoCreate::Patterns(vec!["a.*".into(), "b".into()]);
        assert!(p.allows("a.1") && p.allows("b"));
        assert!(!p.allows("a") && !p.allows("b1"));
    }

    #[test]
    fn derived_sizes() {
        let o = |wal_shards| Options { wal_shards, ..Options::default() };
        assert_eq!(o(1).largest_wal_file(), 64 << 20);
        assert_eq!(o(8).largest_wal_file(), 8 << 20);
        assert!((1..=8).contains(&o(0).shards()));
    }

    #[test]
    fn open_files_leave_half_of_the_descriptors() {
        let of = |max_open_files, wal_shards, descriptors| {
            let o = Options { max_open_files, wal_shards, ..Options::default() };
            (o.open_files(descriptors), o.unsynced_files(descriptors))
        };
        assert_eq!(of(2048, 1, None), (2048, 64));
        assert_eq!(of(2048, 1, Some(1 << 20)), (2048, 64));
        assert_eq!(of(2048, 1, Some(1024)), (428, 64));
        assert_eq!(of(2048, 1, Some(256)), (81, 27));
        assert_eq!(of(2048, 8, Some(256)), (60, 20));
        assert_eq!(of(50, 1, Some(256)), (50, 27));
        assert_eq!(of(1, 1, Some(256)), (1, 27));
        assert_eq!(of(0, 1, Some(256)), (81, 27));
        assert_eq!(of(0, 1, None).0, usize::MAX - 84);
        for few in [0, 16, 32] {
            assert_eq!(of(2048, 1, Some(few)), (2, 4), "always one segment at a time");
        }
    }

    #[test]
    fn a_setting_above_its_bound_is_refused_with_the_bound() {
        Options::default().check().unwrap();
        let refused = |o: Options| o.check().unwrap_err().to_string();
        let o = Options { wal_file_max: (2 << 30) + 1, ..Options::default() };
        assert_eq!(refused(o), "wal_file_max is 2147483649: it must be at most 2147483648");
        let o = Options { wal_file_min: u64::MAX, ..Options::default() };
        assert!(refused(o).starts_with("wal_file_min is "));
        let o = Options { segment_max_bytes: 4 << 30, ..Options::default() };
        assert!(refused(o).ends_with("at most 1073741824"));
        let o = Options { txn_ttl: Duration::MAX, ..Options::default() };
        assert!(refused(o).starts_with("txn_ttl_ms is "));
    }

    #[test]
    fn bounds_of_writes_are_off_at_0_and_never_wider_than_a_frame() {
        let all = |n: usize| Options {
            max_batch_records: n,
            max_batch_bytes: n as u64,
            max_record_bytes: n,
            max_meta_bytes: n,
            max_tag_bytes: n,
            max_node_bytes: n,
            ..Options::default()
        };
        let (off, wide, narrow) = (all(0).bounded(), all(1 << 40).bounded(), all(7).bounded());
        assert_eq!((off.max_batch_records, off.max_batch_bytes), (usize::MAX, MAX_BATCH));
        assert_eq!((wide.max_batch_records, wide.max_batch_bytes), (1 << 40, MAX_BATCH));
        for o in [&off, &wide] {
            assert!(o.max_record_bytes + 6 * 65_535 < MAX_FRAME_LEN as usize);
            assert!(o.max_record_bytes > 31 << 20 && o.max_meta_bytes == o.max_record_bytes);
            assert_eq!((o.max_tag_bytes, o.max_node_bytes), (65_535, 65_535));
        }
        assert_eq!(
            (narrow.max_record_bytes, narrow.max_tag_bytes, narrow.max_node_bytes),
            (7, 7, 7)
        );
    }
}
