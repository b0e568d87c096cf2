//! What topics need from below: the environment, the log, segments, the clock, quotas, counters.
//!
//! [`Base`] is all of that but the log: enough to apply frames. Recovery has no more, so it cannot
//! stage anything. [`Ctx`] adds the log of an open engine. `H` is the layer above, as far as topics
//! call it (`topic::TopicHost`): it is a parameter, so that nothing here names a topic.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use topics_env::Env;
use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use topics_storage::dir::DirLock;
use topics_storage::recovery::RecoveryProgress;
use topics_storage::segment::Segments;
use topics_storage::wal::{Level, Ticket, Wal};

use crate::types::clock::Time;
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};
use crate::types::metrics::Metrics;
use crate::types::options::Options;
use crate::types::quota::{Charge, Quota};

/// Everything but the log.
#[derive(Debug)]
pub(crate) struct Base<H: ?Sized> {
    pub env: Env,
    pub dir: PathBuf,
    pub options: Options,
    pub segments: Arc<Segments>,
    /// How far the open has come.
    pub recovery: Arc<RecoveryProgress>,
    pub metrics: Metrics,
    pub time: Time,
    /// Idempotency keys in all.
    pub keys: Arc<Quota>,
    /// Bytes of the records of `ephemeral` topics.
    pub ephemeral: Arc<Quota>,
    /// Asynchronous writes that wait without staging room: their bytes, and how many.
    waiting: (Arc<Quota>, Arc<Quota>),
    /// Consumers in all.
    pub consumers: Arc<Quota>,
    /// The delivery's pressure: at its full value writes do not wait for staging room.
    pub pressure: Arc<Pressure>,
    /// The config of a topic that was created without one: most have it, and share it.
    default_config: Arc<TopicConfig>,
    /// Records whose index entry is resident until a checkpoint.
    resident: AtomicU64,
    /// Live payload bytes.
    live_bytes: AtomicU64,
    /// The layer above.
    pub host: Arc<H>,
}

impl<H: ?Sized> Base<H> {
    /// What recovery begins with; `keys` is the quota of idempotency keys, which transactions share.
    pub(crate) fn new(
        env: Env,
        dir: PathBuf,
        options: Options,
        segments: Arc<Segments>,
        recovery: Arc<RecoveryProgress>,
        (keys, pressure, host): (Arc<Quota>, Arc<Pressure>, Arc<H>),
    ) -> Self {
        Self {
            metrics: Metrics::default(),
            time: Time::recovering(&env),
            keys,
            ephemeral: Quota::new("ephemeral_bytes", options.ephemeral_bytes),
            waiting: (
                Quota::new("waiting_bytes", options.staging_bytes.max(1) as u64),
                Quota::new("waiting_writes", options.staging_frames.max(1) as u64),
            ),
            consumers: Quota::new("max_consumers", options.max_consumers),
            pressure,
            default_config: Arc::default(),
            resident: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            host,
            env,
            dir,
            options: options.bounded(),
            segments,
            recovery,
        }
    }

    /// The same as `Base::guarded` of topics, for a turn that concerns no topic.
    pub(crate) fn guarded_turn<R>(
        &self,
        name: &'static str,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let outcome = self.env.guards.run(name, || "one turn".into(), f);
        outcome.unwrap_or_else(|panicked| Err(Error::Internal(format!("{name}: {panicked}"))))
    }

    /// A topic's config, in memory once where many have the same.
    pub(crate) fn config(&self, config: TopicConfig) -> Arc<TopicConfig> {
        if config == *self.default_config { self.default_config.clone() } else { Arc::new(config) }
    }

    /// Adds to the totals; numbers that wrap subtract.
    pub(crate) fn add_totals(&self, resident: u64, bytes: u64) {
        if resident != 0 {
            self.resident.fetch_add(resident, Ordering::Relaxed);
        }
        if bytes != 0 {
            self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Records with a resident entry.
    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Live payload bytes of all topics.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }
}

/// What topics need of an open engine.
pub(crate) struct Ctx<H: ?Sized> {
    base: Base<H>,
    pub wal: Wal,
    pub generation: u64,
    pub layout: u64,
    /// Given back by closing. Behind the log: it is held for as long as that may be written.
    pub lock: Mutex<Option<DirLock>>,
    closing: AtomicBool,
    /// Nothing is written any more: the directory is another's, or is to stay as it is.
    read_only: AtomicBool,
}

impl<H: ?Sized> Deref for Ctx<H> {
    type Target = Base<H>;
    fn deref(&self) -> &Base<H> {
        &self.base
    }
}

impl<H: ?Sized> fmt::Debug for Ctx<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx").field("dir", &self.base.dir).finish_non_exhaustive()
    }
}

impl<H: ?Sized> Ctx<H> {
    /// The log of an engine over what recovery made.
    pub(crate) fn new(
        base: Base<H>,
        wal: Wal,
        lock: DirLock,
        (generation, layout): (u64, u64),
    ) -> Arc<Self> {
        Arc::new(Self {
            base,
            wal,
            generation,
            layout,
            lock: Mutex::new(Some(lock)),
            closing: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
        })
    }

    /// Refuses once the lock file was removed or replaced: what lies under the directory's names may
    /// be another engine's.
    pub(crate) fn check_lock(&self) -> Result<()> {
        let watch = self.lock.lock().as_ref().map(DirLock::watch);
        watch.map_or(Ok(()), |watch| Ok(watch.check(&self.env)?))
    }

    /// Refuses once the engine is closing.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Begins to close; false when that was done before.
    pub(crate) fn begin_close(&self) -> bool {
        !self.closing.swap(true, Ordering::AcqRel)
    }

    /// From here on nothing is written.
    pub(crate) fn freeze(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// Whether nothing is written.
    pub(crate) fn frozen(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Refuses what would be written.
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

    /// What an asynchronous write of this many bytes holds while it waits for a topic that a verb
    /// has alone, for an id, or for another write. As many may wait as may be staged.
    pub(crate) fn charge_wait(&self, bytes: usize) -> Result<WaitCharge> {
        let (most, writes) = &self.base.waiting;
        let charge = writes.take(1).and_then(|one| {
            // One that is larger than the whole quota waits alone.
            let bytes = (bytes as u64).min(self.options.staging_bytes.max(1) as u64);
            Ok(WaitCharge(one, most.take(bytes)?))
        });
        charge.inspect_err(|_| self.metrics.throttled.add(1))
    }

    /// Waits for a staged batch.
    pub(crate) fn wait(&self, ticket: Ticket, level: Level) -> Result<()> {
        Ok(self.wal.wait(ticket, level)?)
    }
}

/// See [`Ctx::charge_wait`].
#[derive(Debug)]
pub(crate) struct WaitCharge(#[allow(dead_code)] Charge, #[allow(dead_code)] Charge);

/// Whether a caller waits for a staging permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Never.
    No,
    /// As long as the settings say.
    Bounded,
    /// Until there is one: the caller has nothing that others wait for.
    Patient,
    /// As long as a log that makes progress may take: the caller has topics exclusively, or what it
    /// stages is decided already.
    Exclusive,
}

/// The pressure that the delivery's governor sees, in millionths.
#[derive(Debug, Default)]
pub(crate) struct Pressure(AtomicU64);

/// The pressure, in millionths, that counts as full.
const FULL_PPM: u64 = 950_000;

impl Pressure {
    pub(crate) fn ppm(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, ppm: u64) {
        self.0.store(ppm, Ordering::Relaxed);
    }

    /// The pressure is full: a write that finds no staging permit is refused without a wait.
    pub(crate) fn is_full(&self) -> bool {
        self.ppm() >= FULL_PPM
    }
}
