//! Counters and histograms, as plain atomics.

use std::sync::atomic::{AtomicU64, Ordering};

use topics_storage::{BUCKETS, HistogramSnapshot, bucket_of};

use super::api::GapReason;
use super::requests::RemoteSnapshot;

/// A counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A histogram of durations.
#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> HistogramSnapshot {
        let buckets = std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed));
        HistogramSnapshot {
            buckets,
            count: buckets.iter().sum(),
            sum_ns: self.sum.load(Ordering::Relaxed),
        }
    }
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The counters of an engine.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $(pub $name: Counter,)*
            pub tombstones: [Counter; GapReason::COUNT],
            pub append: Histogram,
            pub sync_wait: Histogram,
            pub delivery: Histogram,
            pub scheduling: Histogram,
        }

        /// The counters at one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct MetricsSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Tombstones served, by reason, in the order of [`GapReason`].
            pub tombstones: [u64; GapReason::COUNT],
            /// Time of a write from call to answer.
            pub append: HistogramSnapshot,
            /// Time that writes waited for a sync.
            pub sync_wait: HistogramSnapshot,
            /// Time from a topic becoming dirty until its subscribers were served.
            pub delivery: HistogramSnapshot,
            /// Time that a dirty topic waited for its worker, without coalescing.
            pub scheduling: HistogramSnapshot,
            /// Time of each sync of a log file.
            pub fsync: HistogramSnapshot,
            /// Open watch streams.
            pub watch_streams: u64,
            /// Watch sessions.
            pub watch_sessions: u64,
            /// Topics that wait for a delivery worker.
            pub ready_topics: u64,
            /// The pressure of the delivery, in millionths.
            pub pressure_ppm: u64,
            /// Topics.
            pub topics: u64,
            /// Routers.
            pub routers: u64,
            /// 1 while the engine accepts calls, 0 when it closes.
            pub ready: u64,
            /// Progress of recovery, in millionths; complete in an engine that answers.
            pub recovery_ppm: u64,
            /// Log entries that the open has replayed.
            pub recovery_frames: u64,
            /// Decisions of transactions that are not carried out yet.
            pub txns_open: u64,
            /// Parts of transactions that wait for a commit.
            pub txn_parts: u64,
            /// Their bytes on disk.
            pub txn_bytes: u64,
            /// Groups written to the log.
            pub wal_groups: u64,
            /// Batches in them.
            pub wal_batches: u64,
            /// Frames in them.
            pub wal_frames: u64,
            /// Bytes of them.
            pub wal_bytes: u64,
            /// Syncs of log files.
            pub wal_fsyncs: u64,
            /// Log files that were begun.
            pub wal_rotations: u64,
            /// Bytes of all log files, including preallocated parts.
            pub wal_disk_bytes: u64,
            /// Batches staged and not written.
            pub staged_batches: u64,
            /// Their bytes.
            pub staged_bytes: u64,
            /// Shards that accept no writes, because they failed or have no space.
            pub read_only_shards: u64,
            /// Requests for records of cold segments.
            pub cold_reads: u64,
            /// Bytes that they fetched.
            pub cold_read_bytes: u64,
            /// Those that failed.
            pub cold_read_failures: u64,
            /// Blocks of cold segments that reads found in memory.
            pub cold_block_hits: u64,
            /// Blocks of cold segments that reads had to request.
            pub cold_block_misses: u64,
            /// Reads of cold segments that waited for memory.
            pub cold_memory_waits: u64,
            /// Packs in the object store that hold segments of the directory.
            pub packs: u64,
            /// Bytes of the log that are not in a round that counts.
            pub ship_lag_bytes: u64,
            /// Age of the newest state that can be restored, 0 if nothing was logged since, ms.
            pub ship_lag_ms: u64,
            /// The time of that state, ms since the Unix epoch, 0: none since the open.
            pub ship_restorable_ms: u64,
            /// What is counted with a remote.
            pub remote: Option<RemoteSnapshot>,
            /// Live idempotency keys.
            pub idempotency_keys: u64,
            /// Bytes of the records of `ephemeral` topics.
            pub ephemeral_bytes: u64,
            /// Live payload bytes.
            pub live_bytes: u64,
            /// Records with a resident index entry.
            pub resident_records: u64,
            /// Steps of the wall clock of more than a minute, in either direction.
            pub clock_steps: u64,
        }

        impl Metrics {
            pub(crate) fn snapshot(&self) -> MetricsSnapshot {
                MetricsSnapshot {
                    $($name: self.$name.get(),)*
                    tombstones: std::array::from_fn(|i| self.tombstones[i].get()),
                    append: self.append.snapshot(),
                    sync_wait: self.sync_wait.snapshot(),
                    delivery: self.delivery.snapshot(),
                    scheduling: self.scheduling.snapshot(),
                    ..MetricsSnapshot::default()
                }
            }
        }
    };
}

metrics! {
    /// Records delivered to watchers.
    watch_records,
    /// Copies that routers made.
    router_copies,
    /// How often a watcher's queue was full.
    watch_lags,
    /// How often the delivery came under strain.
    strains,
    /// Writes applied.
    appends,
    /// Their records.
    append_records,
    /// Their payload bytes.
    append_bytes,
    /// Writes answered from an idempotency key.
    dedupe_hits,
    /// Calls refused as throttled.
    throttled,
    /// Batches that failed after they were staged.
    failed_batches,
    /// Reads.
    reads,
    /// Records returned.
    read_records,
    /// Payload bytes returned.
    read_bytes,
    /// Deletes applied.
    deletes,
    /// Records that they removed.
    deleted_records,
    /// Records evicted by a cap or by TTL.
    evicted_records,
    /// Segments that were rewritten or merged.
    segments_rewritten,
    /// Records that failed their checksum on a read.
    corrupt_records,
    /// Log entries that this recovery, or an earlier one whose quarantined files still exist, declared
    /// lost.
    lost_lsns,
    /// Topics created.
    topics_created,
    /// Topics deleted.
    topics_deleted,
    /// Frames of deleted topics that recovery skipped.
    orphan_frames,
    /// Jobs that workers claimed.
    claims,
    /// Jobs acked.
    acked_jobs,
    /// Jobs that their workers nacked.
    nacked_jobs,
    /// Jobs that their workers released: given back without a delivery.
    released_jobs,
    /// Leases extended.
    extended_jobs,
    /// Leases that expired.
    lease_expiries,
    /// Jobs that expired before they were done.
    expired_jobs,
    /// Dead letters moved back, and dead jobs revived.
    redriven_jobs,
    /// Jobs deleted by an operator.
    removed_jobs,
    /// Delayed jobs made ready by an operator.
    promoted_jobs,
    /// Parts of transactions staged.
    txn_stages,
    /// Transactions decided.
    txn_commits,
    /// Transactions refused, or not logged.
    txn_refused,
    /// Stages that their writers aborted.
    txn_aborts,
    /// Stages that expired before a commit.
    txn_expired,
    /// Checkpoints that succeeded.
    checkpoints,
    /// Checkpoints that failed.
    checkpoint_failures,
    /// Rounds of the log that were shipped.
    ship_rounds,
    /// Bytes of the log in them.
    ship_bytes,
    /// Chains of rounds that were broken on purpose.
    ship_chain_broken,
    /// Jobs moved to dead-letter topics.
    dead_letters,
    /// How often applying a frame read a file: 0 in an open engine, recovery may.
    apply_reads,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_buckets() {
        let h = Histogram::default();
        for ns in [0, 255, 256, 511, 512, u64::MAX >> 1] {
            h.record(ns);
        }
        let s = h.snapshot();
        assert_eq!(
            (s.buckets[0], s.buckets[1], s.buckets[2], s.buckets[BUCKETS - 1]),
            (2, 2, 1, 1)
        );
        assert_eq!(s.count, 6);
    }

    #[test]
    fn a_snapshot_has_what_was_counted() {
        let m = Metrics::default();
        m.appends.add(3);
        m.tombstones[GapReason::Ttl as usize].add(2);
        let s = m.snapshot();
        assert_eq!((s.appends, s.tombstones[1]), (3, 2));
    }
}
