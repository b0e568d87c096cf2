//! An open engine: its subsystems and its metrics.

use std::fmt;
use std::sync::Arc;

use topics_env::sync::OnceLock;
use topics_env::sync::atomic::AtomicU64;

use super::background::Background;
use super::host::Host;
use crate::archive::Archiver;
use crate::checkpoint::{Store, layers_below};
use crate::delivery::Deliverer;
use crate::queue::Queues;
use crate::restore::View;
use crate::ship::Shipper;
use crate::ship::owner::PrefixOwner;
use crate::tier::cold::ColdCounters;
use crate::txn::Transactions;
use crate::types::api::Owner;
use crate::types::metrics::{Counter, MetricsSnapshot};
use crate::types::requests::RemoteSnapshot;

/// An open engine.
pub(crate) struct OpenEngine {
    store: Arc<Store>,
    pub queues: Arc<Queues>,
    pub transactions: Arc<Transactions>,
    pub deliverer: Arc<Deliverer>,
    pub host: Arc<Host>,
    /// When the last sweep of all topics began (monotonic ms).
    pub last_sweep: AtomicU64,
    pub background: Background,
    /// With a remote in the options.
    pub archiver: Option<Arc<Archiver>>,
    /// With a remote that ships.
    pub shipper: Option<Arc<Shipper>>,
    /// Of an engine that reads a prefix.
    pub view: OnceLock<View>,
}

impl fmt::Debug for OpenEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenEngine").field("dir", &self.base().dir).finish_non_exhaustive()
    }
}

/// Fails the staged batches of an engine without threads that is dropped without a close, with
/// [`crate::types::error::Error::Closed`]: no thread would write them, and they and their callbacks
/// keep the log open. With threads, the log's threads write the last batch and then end.
impl Drop for OpenEngine {
    fn drop(&mut self) {
        if !self.base().options.background && self.ctx().begin_close() {
            // It fails only if it is clean.
            let _ = self.ctx().wal.close(false);
        }
    }
}

impl OpenEngine {
    layers_below!();

    /// The subsystems over a store; recovery has applied frames to `host`.
    pub(crate) fn new(store: Arc<Store>, host: Arc<Host>) -> Arc<Self> {
        let queues = Queues::new(store.clone(), host.claim_waiters.clone());
        host.serve_queues(&queues);
        let owner = PrefixOwner::new(&store);
        let shipper = Shipper::new(&store, owner.as_ref());
        Arc::new(Self {
            queues,
            transactions: Transactions::new(store.clone(), host.txn_table.clone()),
            deliverer: Deliverer::new(store.clone(), host.delivery_workers.clone()),
            archiver: Archiver::new(&store, owner.as_ref(), shipper.as_ref()),
            shipper,
            store,
            host,
            view: OnceLock::new(),
            last_sweep: AtomicU64::new(0),
            background: Background::default(),
        })
    }

    /// A reference that keeps the engine open for a handle.
    pub(crate) fn owner(self: &Arc<Self>) -> Owner {
        self.clone()
    }

    /// A snapshot of all metrics.
    pub(crate) fn metrics_snapshot(&self) -> MetricsSnapshot {
        let (watch_streams, watch_sessions, ready_topics, pressure_ppm) =
            self.deliverer.workers.gauges();
        let (wal, (txn_parts, txn_bytes)) =
            (self.ctx().wal.counters(), self.transactions.staging.usage());
        let cold = |of: fn(&ColdCounters) -> &Counter| {
            self.base().cold.as_ref().map_or(0, |cold| of(&cold.counters).get())
        };
        let ship = self.shipper.as_ref().map(|s| s.status()).unwrap_or_default();
        MetricsSnapshot {
            ship_lag_bytes: ship.lag_bytes,
            ship_lag_ms: ship.lag_ms,
            ship_restorable_ms: ship.restorable_ms,
            fsync: wal.syncs,
            routers: self.host.routers.len() as u64,
            ready: u64::from(self.ctx().check_open().is_ok()),
            recovery_ppm: self.base().recovery.ppm(),
            recovery_frames: self.base().recovery.replayed(),
            txns_open: self.transactions.table.pending(),
            txn_parts,
            txn_bytes,
            wal_groups: wal.groups,
            wal_batches: wal.batches,
            wal_frames: wal.frames,
            wal_bytes: wal.bytes,
            wal_fsyncs: wal.syncs.count,
            wal_rotations: wal.rotations,
            wal_disk_bytes: self.ctx().wal.bytes_on_disk(),
            staged_batches: wal.staged,
            staged_bytes: wal.staged_bytes,
            read_only_shards: wal.read_only,
            cold_reads: cold(|c| &c.fetches),
            cold_read_bytes: cold(|c| &c.bytes),
            cold_read_failures: cold(|c| &c.failures),
            cold_block_hits: cold(|c| &c.hits),
            cold_block_misses: cold(|c| &c.misses),
            cold_memory_waits: cold(|c| &c.memory_waits),
            packs: self.base().packs.len() as u64,
            remote: self.archiver.as_ref().map(|archiver| {
                let (base, condition) = (self.base(), archiver.condition());
                RemoteSnapshot::of(&base.requests, &archiver.gauges, base.packs.bytes(), condition)
            }),
            watch_streams,
            watch_sessions,
            ready_topics,
            pressure_ppm,
            topics: self.catalog().topics() as u64,
            idempotency_keys: self.base().keys.used(),
            ephemeral_bytes: self.base().ephemeral.used(),
            resident_records: self.base().resident(),
            live_bytes: self.base().live_bytes(),
            clock_steps: self.base().time.steps(),
            ..self.base().metrics.snapshot()
        }
    }
}
