//! The context that topics get from the layers below: environment, log, segments, clock, quotas,
//! counters.
//!
//! [`Base`] has all of these except the log: enough to apply frames. Recovery has only that, so it
//! cannot stage anything. [`Ctx`] adds the log of an open engine. `H` is the layer above, as far as
//! topics call it (`topic::TopicHost`): a parameter, so that this module does not name topics.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use topics_env::Env;
use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use topics_storage::dir::DirLock;
use topics_storage::recovery::RecoveryProgress;
use topics_storage::segment::{Fetch, Segments};
use topics_storage::wal::{Level, Ticket, Wal};

use crate::tier::PackTable;
use crate::tier::cold::{ColdReader, ColdTier};
use crate::tier::requests::CountedStore;
use crate::types::clock::Time;
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};
use crate::types::metrics::Metrics;
use crate::types::options::Options;
use crate::types::pending_calls::PendingCalls;
use crate::types::quota::{Charge, Quota};
use crate::types::requests::RequestCounters;
use crate::types::wait::while_blocked;

/// The context without the log.
#[derive(Debug)]
pub(crate) struct Base<H: ?Sized> {
    pub env: Env,
    pub dir: PathBuf,
    pub options: Options,
    pub segments: Arc<Segments>,
    /// The packs that hold archived segments.
    pub packs: Arc<PackTable>,
    /// Reads of cold segments; `None` without a remote.
    pub cold: Option<Arc<ColdTier>>,
    /// Requests to the remote.
    pub requests: Arc<RequestCounters>,
    /// The progress of the open.
    pub recovery: Arc<RecoveryProgress>,
    pub metrics: Metrics,
    pub time: Time,
    /// Quota of idempotency keys.
    pub keys: Arc<Quota>,
    /// Quota of bytes of records of `ephemeral` topics.
    pub ephemeral: Arc<Quota>,
    /// Quotas of asynchronous writes that wait without a staging permit: bytes, and number.
    waiting: (Arc<Quota>, Arc<Quota>),
    pub consumers: Arc<Quota>,
    /// The last fence of a reader of a consumer.
    pub reader_fence: AtomicU64,
    /// Ids of topics with losses that no sync has logged or reported (`topic::write::losses`).
    pub losses: Mutex<BTreeSet<u64>>,
    /// The delivery's pressure: at its full value writes do not wait for a staging permit.
    pub pressure: Arc<Pressure>,
    /// The default config, shared by all topics that have it.
    default_config: Arc<TopicConfig>,
    /// Number of records whose index entry is resident until a checkpoint.
    resident: AtomicU64,
    /// Rounds that are due although little is logged, because records were deleted.
    pub owed_rounds: AtomicU64,
    /// Live payload bytes of all topics.
    live_bytes: AtomicU64,
    /// The layer above.
    pub host: Arc<H>,
}

impl<H: ?Sized> Base<H> {
    /// The context of recovery; `keys` is the quota of idempotency keys, which transactions share.
    pub(crate) fn new(
        env: Env,
        dir: PathBuf,
        options: Options,
        segments: Arc<Segments>,
        recovery: Arc<RecoveryProgress>,
        (keys, pressure, host): (Arc<Quota>, Arc<Pressure>, Arc<H>),
    ) -> Self {
        let (packs, requests) = (Arc::<PackTable>::default(), Arc::<RequestCounters>::default());
        let mut options = options.bounded();
        if let Some(remote) = &mut options.remote {
            remote.store = Arc::new(CountedStore::new(&env, remote.store.clone(), &requests));
        }
        let tier = |remote| ColdTier::new(&env, remote, packs.clone(), options.background);
        let cold = options.remote.as_ref().map(tier);
        if let Some(cold) = &cold {
            segments.set_cold(Arc::new(ColdReader(cold.clone())));
        }
        Self {
            packs,
            cold,
            requests,
            metrics: Metrics::default(),
            time: Time::recovering(&env),
            keys,
            ephemeral: Quota::new("ephemeral_bytes", options.ephemeral_bytes),
            waiting: (
                Quota::new("waiting_bytes", options.staging_bytes.max(1) as u64),
                Quota::new("waiting_writes", options.staging_frames.max(1) as u64),
            ),
            consumers: Quota::new("max_consumers", options.max_consumers),
            reader_fence: AtomicU64::new(0),
            losses: Mutex::default(),
            pressure,
            default_config: Arc::default(),
            resident: AtomicU64::new(0),
            owed_rounds: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            host,
            env,
            dir,
            options,
            segments,
            recovery,
        }
    }

    /// Waits for records that are being fetched from the object store. The caller holds no lock.
    pub(crate) fn wait_fetch(&self, fetch: &Fetch) -> Result<()> {
        match &self.cold {
            Some(cold) => Ok(while_blocked(|| cold.wait(fetch))?),
            None => Ok(fetch.wait()?),
        }
    }

    /// Runs one pass of a background loop that concerns no topic; a panic in it becomes an error.
    pub(crate) fn guarded_turn<R>(
        &self,
        name: &'static str,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let outcome = self.env.guards.run(name, || "one turn".into(), f);
        outcome.unwrap_or_else(|panicked| Err(Error::Internal(format!("{name}: {panicked}"))))
    }

    /// Shares the memory of the default config.
    pub(crate) fn config(&self, config: TopicConfig) -> Arc<TopicConfig> {
        if config == *self.default_config { self.default_config.clone() } else { Arc::new(config) }
    }

    /// Adds to the totals, modulo 2^64: a wrapped difference subtracts.
    pub(crate) fn add_totals(&self, resident: u64, bytes: u64) {
        if resident != 0 {
            self.resident.fetch_add(resident, Ordering::Relaxed);
        }
        if bytes != 0 {
            self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Number of records with a resident entry.
    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Live payload bytes of all topics.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Refuses `further` of something of which there are `used`, over a limit; 0 is no limit.
    pub(crate) fn check_limit(
        &self,
        limit: &'static str,
        max: u64,
        used: u64,
        further: u64,
    ) -> Result<()> {
        let fits = max == 0 || further == 0 || used.saturating_add(further) <= max;
        if fits { Ok(()) } else { Err(self.throttled(limit, max, 1000)) }
    }

    /// The refusal of a limit, counted.
    pub(crate) fn throttled(&self, limit: &'static str, max: u64, retry_after_ms: u64) -> Error {
        self.metrics.throttled.add(1);
        Error::Throttled { limit, max, retry_after_ms }
    }

    /// Counts the refusal of a quota.
    pub(crate) fn counted<T>(&self, charged: Result<T>) -> Result<T> {
        charged.inspect_err(|_| self.metrics.throttled.add(1))
    }
}

/// The context of an open engine.
pub(crate) struct Ctx<H: ?Sized> {
    base: Base<H>,
    pub wal: Wal,
    pub generation: u64,
    pub layout: u64,
    /// Calls that wait.
    pub calls: PendingCalls,
    /// The directory lock, released by a close. Dropped after the log, so that it is held while the log
    /// may be written.
    pub lock: Mutex<Option<DirLock>>,
    closing: AtomicBool,
    /// Whether writes are refused: another engine has the directory, or it must stay as it is.
    read_only: AtomicBool,
}

impl<H: ?Sized> fmt::Debug for Ctx<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx").field("dir", &self.base.dir).finish_non_exhaustive()
    }
}

impl<H: ?Sized> Ctx<H> {
    /// What is there without the log.
    pub(crate) fn base(&self) -> &Base<H> {
        &self.base
    }

    /// The context of an open engine from that of its recovery.
    pub(crate) fn new(
        base: Base<H>,
        wal: Wal,
        lock: DirLock,
        (generation, layout): (u64, u64),
    ) -> Arc<Self> {
        let (clock, guards) = (base.env.clock.clone(), base.env.guards.clone());
        Arc::new(Self {
            calls: PendingCalls::new(clock, guards, base.options.background),
            base,
            wal,
            generation,
            layout,
            lock: Mutex::new(Some(lock)),
            closing: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
        })
    }

    /// Refuses after the lock file was removed or replaced: the files of the directory may be another
    /// engine's.
    pub(crate) fn check_lock(&self) -> Result<()> {
        let watch = self.lock.lock().as_ref().map(DirLock::watch);
        watch.map_or(Ok(()), |watch| Ok(watch.check(&self.base().env)?))
    }

    /// Refuses when the engine is closing or closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Begins the close; false if it has begun before.
    pub(crate) fn begin_close(&self) -> bool {
        !self.closing.swap(true, Ordering::AcqRel)
    }

    /// Refuses all writes from here on.
    pub(crate) fn freeze(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// Whether writes are refused.
    pub(crate) fn frozen(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Refuses a write if writes are refused.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if !self.frozen() {
            return Ok(());
        }
        let detail = "the directory was opened to be read only".to_owned();
        Err(Error::StorageUnavailable { reason: "read_only", detail })
    }

    /// The shard of a topic.
    pub(crate) fn shard(&self, topic_id: u64) -> usize {
        self.wal.shard_of(topic_id)
    }

    /// Charges an asynchronous write of this many bytes that waits for an exclusive topic, for an id, or
    /// for another write. The quotas are those of staged writes.
    pub(crate) fn charge_wait(&self, bytes: usize) -> Result<WaitCharge> {
        let (most, writes) = &self.base.waiting;
        let charge = writes.take(1).and_then(|one| {
            // A write larger than the whole quota waits alone.
            let bytes = (bytes as u64).min(self.base().options.staging_bytes.max(1) as u64);
            Ok(WaitCharge(one, most.take(bytes)?))
        });
        self.base().counted(charge)
    }

    /// Waits for a staged batch.
    pub(crate) fn wait(&self, ticket: Ticket, level: Level) -> Result<()> {
        Ok(self.wal.wait(ticket, level)?)
    }
}

/// See [`Ctx::charge_wait`].
#[derive(Debug)]
pub(crate) struct WaitCharge(#[allow(dead_code)] Charge, #[allow(dead_code)] Charge);

/// How long a caller waits for a staging permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It does not wait.
    No,
    /// At most the time of the settings.
    Bounded,
    /// Without limit: the caller holds nothing that others wait for.
    Patient,
    /// As long as a log that makes progress may take: the caller has topics exclusively, or stages a
    /// decision that is made.
    Exclusive,
}

/// The pressure that the delivery's governor sees, in millionths.
#[derive(Debug, Default)]
pub(crate) struct Pressure(AtomicU64);

/// Full pressure, in millionths.
const FULL_PPM: u64 = 950_000;

impl Pressure {
    pub(crate) fn ppm(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, ppm: u64) {
        self.0.store(ppm, Ordering::Relaxed);
    }

    /// Whether the pressure is full: then a write without a free permit is refused without a wait.
    pub(crate) fn is_full(&self) -> bool {
        self.ppm() >= FULL_PPM
    }
}
