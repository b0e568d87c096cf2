//! What the parts of an engine share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Bound, Deref};
use std::path::PathBuf;
use std::sync::Arc;

use dashmap::DashMap;
use topics_env::Env;
use topics_env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use topics_env::sync::{Mutex, RwLock};
use topics_storage::checkpoint::Checkpoints;
use topics_storage::dir::{DirLock, Paths};
use topics_storage::recovery::RecoveryProgress;
use topics_storage::segment::Segments;
use topics_storage::snapshot::ShardSnap;
use topics_storage::txn::Stages;
use topics_storage::wal::{Level, Ticket, Wal};

use crate::catalog::ids::Ids;
use crate::catalog::unloaded::Dormitory;
use crate::checkpoint::round::{self, Rounds};
use crate::delivery::Delivery;
use crate::engine::background::{Background, Sweeps};
use crate::queue::Desk;
use crate::router::Routers;
use crate::topic::{Entry, State, Topic, Weight};
use crate::txn::{Staging, Txns};
use crate::types::clock::Time;
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};
use crate::types::metrics::{HistogramSnapshot, Metrics, MetricsSnapshot};
use crate::types::options::Options;
use crate::types::quota::{Charge, Quota};

/// Everything but the log: enough to apply frames.
#[derive(Debug)]
pub(crate) struct Base {
    pub env: Env,
    pub dir: PathBuf,
    pub options: Options,
    pub segments: Arc<Segments>,
    /// How far the open has come.
    pub recovery: Arc<RecoveryProgress>,
    /// The topics that are awake; [`Base::named`] finds the others too.
    pub registry: Registry,
    pub dormitory: Dormitory,
    pub ids: Ids,
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
    /// The config of a topic that was created without one: most have it, and share it.
    usual: Arc<TopicConfig>,
    /// Claims that wait.
    pub desk: Desk,
    /// Records whose index entry is resident until a checkpoint.
    resident: AtomicU64,
    /// Live payload bytes.
    live_bytes: AtomicU64,
    pub delivery: Delivery,
    pub routers: Routers,
    pub txns: Txns,
}

impl Base {
    /// What recovery begins with.
    pub(crate) fn new(
        env: Env,
        dir: PathBuf,
        options: Options,
        segments: Arc<Segments>,
        recovery: Arc<RecoveryProgress>,
    ) -> Self {
        let keys = Quota::new("idempotency_keys", options.max_idempotency_keys);
        Self {
            registry: Registry::default(),
            dormitory: Dormitory::default(),
            ids: Ids::default(),
            metrics: Metrics::default(),
            time: Time::recovering(&env),
            keys: keys.clone(),
            ephemeral: Quota::new("ephemeral_bytes", options.ephemeral_bytes),
            waiting: (
                Quota::new("waiting_bytes", options.staging_bytes.max(1) as u64),
                Quota::new("waiting_writes", options.staging_frames.max(1) as u64),
            ),
            consumers: Quota::new("max_consumers", options.max_consumers),
            usual: Arc::default(),
            desk: Desk::default(),
            resident: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            routers: Routers::default(),
            txns: Txns::new(keys),
            delivery: Delivery::new(env.clock.clone(), env.guards.clone(), options.workers()),
            env,
            dir,
            options: options.bounded(),
            segments,
            recovery,
        }
    }

    /// Runs one turn of a background loop, or one change of a topic, that concerns this topic. A
    /// panic in it closes the topic until the next open, and is its error.
    pub(crate) fn guarded<R>(
        &self,
        name: &'static str,
        topic: &Topic,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let at = || format!("topic {:?}", topic.name);
        self.env.guards.run(name, at, f).unwrap_or_else(|panicked| {
            topic.close_broken(&panicked);
            let detail = format!("{name} of topic {:?}: {panicked}", topic.name);
            Err(Error::StorageUnavailable { reason: "io", detail })
        })
    }

    /// The same for a turn that concerns no topic.
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
        if config == *self.usual { self.usual.clone() } else { Arc::new(config) }
    }

    /// A topic's part of the totals has changed.
    pub(crate) fn weighed(&self, before: Weight, after: Weight) {
        // Unsigned differences that wrap: the sums come out right.
        let resident = after.resident.wrapping_sub(before.resident);
        let bytes = after.bytes.wrapping_sub(before.bytes);
        if resident != 0 {
            self.resident.fetch_add(resident, Ordering::Relaxed);
        }
        if bytes != 0 {
            self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Changes the state of a topic, keeping the totals.
    pub(crate) fn change<R>(&self, topic: &Topic, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = topic.state.write();
        let before = state.weight();
        let out = f(&mut state);
        self.weighed(before, state.weight());
        out
    }

    /// Topics with so many live bytes fell asleep; a number that wraps: they woke.
    pub(crate) fn slept(&self, bytes: u64) {
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records with a resident entry.
    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Live payload bytes of all topics.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that the resident index takes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident() * size_of::<Entry>() as u64
    }
}

/// An open engine.
pub(crate) struct Core {
    base: Base,
    pub wal: Wal,
    closing: AtomicBool,
    /// Nothing is written any more: the directory is another's, or is to stay as it is.
    read_only: AtomicBool,
    /// The log takes more than it may: checkpoints cannot keep up.
    wal_full: AtomicBool,
    /// A shard has no space for its next log file.
    short_of_space: AtomicBool,
    /// Segments were replaced since the last snapshot.
    pub replaced: AtomicBool,
    pub sweeps: Sweeps,
    pub background: Background,
    /// Rows that wait for a commit.
    pub staging: Staging,
    /// What only opening, checkpoints and closing look at.
    pub disk: Disk,
}

/// The directory that is open.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Given back by closing.
    pub lock: Mutex<Option<DirLock>>,
    pub checkpoints: Checkpoints,
    pub store_id: [u8; 16],
    pub generation: u64,
    pub layout: u64,
    /// Shards outside the layout.
    pub outside: Vec<ShardSnap>,
    /// Held for a checkpoint round.
    pub round: Mutex<Rounds>,
    /// Bytes logged when the last round began.
    pub logged_at_round: AtomicU64,
    /// Snapshots in a row before which nothing, or nothing but the first, had changed.
    pub settled_rounds: AtomicU64,
    /// The last round found no descriptor: another is due soon.
    pub put_off: AtomicBool,
}

impl Disk {
    /// Refuses once the lock file was removed or replaced: what lies under the directory's names may
    /// be another engine's.
    pub(crate) fn check_lock(&self, env: &Env) -> Result<()> {
        let watch = self.lock.lock().as_ref().map(DirLock::watch);
        watch.map_or(Ok(()), |watch| Ok(watch.check(env)?))
    }
}

impl Deref for Core {
    type Target = Base;
    fn deref(&self) -> &Base {
        &self.base
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Core {
    /// An engine over what recovery made.
    pub(crate) fn new(base: Base, wal: Wal, disk: Disk) -> Arc<Self> {
        let files = Stages::new(base.env.clone(), Paths::new(&base.dir), disk.store_id);
        let staging = Staging::new(files, &base.options, disk.generation);
        Arc::new(Self {
            base,
            wal,
            staging,
            closing: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            wal_full: AtomicBool::new(false),
            short_of_space: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            sweeps: Sweeps::default(),
            background: Background::default(),
            disk,
        })
    }

    /// What the engine counts.
    pub(crate) fn metrics_snapshot(&self) -> MetricsSnapshot {
        let (watch_streams, watch_sessions, ready_topics, pressure_ppm) = self.delivery.gauges();
        let (wal, (txn_parts, txn_bytes)) = (self.wal.counters(), self.staging.held());
        let fsync =
            HistogramSnapshot { buckets: wal.sync_times, count: wal.syncs, sum_ns: wal.sync_ns };
        MetricsSnapshot {
            fsync,
            routers: self.routers.len() as u64,
            ready: u64::from(self.check_open().is_ok()),
            recovery_ppm: self.recovery.ppm(),
            recovery_frames: self.recovery.replayed(),
            txns_open: self.txns.pending(),
            txn_parts,
            txn_bytes,
            wal_groups: wal.groups,
            wal_batches: wal.batches,
            wal_frames: wal.frames,
            wal_bytes: wal.bytes,
            wal_fsyncs: wal.syncs,
            wal_gathered: wal.gathered,
            wal_rotations: wal.rotations,
            wal_disk_bytes: self.wal.bytes_on_disk(),
            staged_batches: wal.staged,
            staged_bytes: wal.staged_bytes,
            read_only_shards: wal.read_only,
            cold_reads: self.segments.cold_reads(),
            watch_streams,
            watch_sessions,
            ready_topics,
            pressure_ppm,
            topics: self.topics() as u64,
            idempotency_keys: self.keys.used(),
            ephemeral_bytes: self.ephemeral.used(),
            resident_records: self.resident(),
            live_bytes: self.live_bytes(),
            clock_steps: self.time.steps(),
            ..self.metrics.snapshot()
        }
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

    /// Refuses a write that the engine as a whole has no room for. A caller that may wait makes
    /// some first; for how long, in ns.
    pub(crate) fn check_load(self: &Arc<Self>, bytes: u64, wait: Wait) -> Result<u64> {
        self.check_writable()?;
        let o = &self.options;
        let refuse = |limit, max, retry_after_ms| {
            self.metrics.throttled.add(1);
            Err(Error::Throttled { limit, max, retry_after_ms })
        };
        if o.max_total_bytes > 0 && self.live_bytes().saturating_add(bytes) > o.max_total_bytes {
            return refuse("total_bytes", o.max_total_bytes, 1000);
        }
        if self.wal_full.load(Ordering::Relaxed) {
            return refuse("wal_bytes", o.wal_max_bytes, 1000);
        }
        let most = o.memory_bytes.saturating_mul(2);
        if self.resident_bytes() <= most {
            return Ok(0);
        }
        let began = self.time.mono_ns();
        if wait != Wait::No {
            for shard in 0..self.wal.shards() {
                if self.wal.poisoned(shard).is_none() {
                    self.wal.sync(shard)?;
                }
            }
            round::checkpoint(self)?;
        }
        if self.resident_bytes() > most {
            return refuse("memory_bytes", o.memory_bytes, 100);
        }
        Ok(self.time.mono_ns().saturating_sub(began))
    }

    /// Whether a shard had no space for its next log file at the last look.
    pub(crate) fn short_of_space(&self) -> bool {
        self.short_of_space.load(Ordering::Relaxed)
    }

    /// Looks at the size of the log, and at whether it can go on.
    pub(crate) fn look_at_load(&self) {
        let short = (0..self.wal.shards()).filter(|s| self.wal.full(*s)).count() > 0;
        self.short_of_space.store(short, Ordering::Relaxed);
        let full = self.wal.bytes_on_disk() > self.options.wal_max_bytes;
        self.wal_full.store(full, Ordering::Relaxed);
    }

    /// The shard of a topic.
    pub(crate) fn shard(&self, topic_id: u64) -> usize {
        self.wal.shard_of(topic_id)
    }

    /// What an asynchronous write of this many bytes holds while it waits for a topic that a verb
    /// has alone, for an id, or for another write. As many may wait as may be staged.
    pub(crate) fn charge_wait(&self, bytes: usize) -> Result<WaitCharge> {
        let (most, writes) = &self.waiting;
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

/// See [`Core::charge_wait`].
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

/// The topics by name and id.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    names: DashMap<Arc<str>, Arc<Topic>>,
    ids: DashMap<u64, Arc<Topic>>,
    /// The same names in order, without those that are not born.
    listed: RwLock<BTreeMap<Arc<str>, Arc<Topic>>>,
    creating: Mutex<()>,
}

impl Registry {
    /// The topic that a name means now, born or not.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Topic>> {
        self.names.get(name).map(|t| t.clone())
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<Arc<Topic>> {
        self.ids.get(&id).map(|t| t.clone())
    }

    /// How many names there are.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Gives a name to a topic that `make` makes, unless it has one.
    pub(crate) fn claim(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<Arc<Topic>>,
    ) -> Result<Arc<Topic>> {
        let _one = self.creating.lock();
        if let Some(topic) = self.named(name) {
            return Ok(topic);
        }
        let topic = make()?;
        self.ids.insert(topic.id(), topic.clone());
        self.names.insert(topic.name.clone(), topic.clone());
        Ok(topic)
    }

    /// Takes in a topic that is born. Of two with one name the higher epoch has it; the other is
    /// known by its id until its delete is replayed, or [`Self::settle`].
    pub(crate) fn adopt(&self, topic: Arc<Topic>) {
        self.ids.insert(topic.id(), topic.clone());
        let mut listed = self.listed.write();
        if listed.get(&topic.name).is_none_or(|t| t.key.epoch <= topic.key.epoch) {
            listed.insert(topic.name.clone(), topic.clone());
            self.names.insert(topic.name.clone(), topic);
        }
    }

    /// Forgets a topic; its name too, if that means it.
    pub(crate) fn remove(&self, topic: &Topic) {
        self.ids.remove(&topic.id());
        let mut listed = self.listed.write();
        if listed.get(&topic.name).is_some_and(|t| t.key == topic.key) {
            listed.remove(&topic.name);
        }
        self.names.remove_if(&topic.name, |_, t| t.key == topic.key);
    }

    /// After a replay: topics whose name another has. Their deletes were lost, or are still in a log
    /// that was not read; their records cannot be reached.
    pub(crate) fn outlived(&self) -> Vec<Arc<Topic>> {
        let other = |t: &Topic| self.names.get(&t.name).is_none_or(|n| n.key != t.key);
        let mut found: Vec<_> =
            self.ids.iter().filter(|t| other(t)).map(|t| t.value().clone()).collect();
        found.sort_unstable_by_key(|t| t.id());
        found
    }

    /// Born topics in name order after `after`, with `prefix`; at most `limit`.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Arc<Topic>> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let listed = self.listed.read();
        listed
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(prefix))
            .take(limit)
            .map(|(_, t)| t.clone())
            .collect()
    }

    /// The ids of all topics.
    pub(crate) fn all_ids(&self) -> BTreeSet<u64> {
        self.ids.iter().map(|t| *t.key()).collect()
    }

    /// Every topic, in pages, so that the list is never held for long.
    pub(crate) fn each(&self, mut f: impl FnMut(&Arc<Topic>)) {
        let mut after: Option<Arc<str>> = None;
        loop {
            let page = self.list("", after.as_deref(), 256);
            let Some(last) = page.last() else { return };
            after = Some(last.name.clone());
            page.iter().for_each(&mut f);
        }
    }
}
