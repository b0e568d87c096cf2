//! The façade: delegation only.

pub(crate) mod background;
pub(crate) mod backup;
mod close;
mod host;
mod open;
pub(crate) mod open_engine;
mod prefix_backup;
#[cfg(test)]
mod prefix_backup_tests;
mod queues;
pub(crate) mod survey;
mod transactions;
pub(crate) mod verify;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_env::objects::ObjectStore;
use topics_env::{Env, Guards, LockError, LoopPanics};
use topics_remote::Retry;
use topics_storage::dir::Paths;
use topics_storage::recovery::RecoveryProgress;

use self::backup::BackupSummary;
use self::open_engine::OpenEngine;
use self::survey::Survey;
use crate::archive::{self, Archived, Archiver};
use crate::catalog::unloaded::summary;
use crate::checkpoint::round;
use crate::consumer;
use crate::delivery::{self, Received, Session, SessionInfo, Watch, WatchRequest};
use crate::queue;
use crate::restore;
use crate::router::{self, RouterInfo, RouterRequest};
use crate::ship::{ShipStatus, Shipped};
use crate::topic::{self, Life, SegmentMap, Topic};
use crate::types::api::{
    Append, Appended, Completion, CreatedTopic, DeleteRequest, Deleted, DeletedTopic, ReadFrom,
    ReadRequest, Sought, TopicState, TopicSummary,
};
use crate::types::batch::{ReadBatch, ReadBuffers};
use crate::types::config::ConfigPatch;
use crate::types::error::{Error, Result};
use crate::types::metrics::MetricsSnapshot;
use crate::types::name;
use crate::types::options::Options;
use crate::types::pending_calls::WaitId;
use crate::types::requests::RemoteState;
use crate::verbs::{self, Existing};

/// An open engine; cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) open: Arc<OpenEngine>,
}

impl Engine {
    /// An engine over what recovery made.
    pub(crate) fn over(engine: Arc<OpenEngine>) -> Self {
        Self { open: engine }
    }

    /// Appends a batch and waits for the topic's class.
    pub fn append(&self, topic: &str, req: &Append<'_>) -> Result<Appended> {
        verbs::append(self.open.store(), topic, req)
    }

    /// Decides and stages; `done` is called when the class is reached, by whoever reaches it.
    /// Never blocks, never syncs. Follow a tick's calls by one [`Engine::drive`]; true: that is
    /// what the class waits for, not a sync.
    pub fn append_async(&self, topic: &str, req: &Append<'_>, done: Completion<Appended>) -> bool {
        verbs::append_async(self.open.store(), topic, req, done)
    }

    /// Leads one group on every idle shard with staged batches; writes, never syncs.
    pub fn drive(&self) {
        for shard in 0..self.open.ctx().wal.shards() {
            self.open.ctx().wal.drive(shard);
        }
    }

    /// Creates a topic or updates the named fields of its config.
    pub fn create_topic(&self, topic: &str, config: &ConfigPatch) -> Result<CreatedTopic> {
        self.create_topic_if(topic, config, Existing::Any)
    }

    /// Like [`Self::create_topic`], for a topic that must be missing, or must exist.
    pub fn create_topic_if(
        &self,
        topic: &str,
        config: &ConfigPatch,
        existing: Existing,
    ) -> Result<CreatedTopic> {
        let created = verbs::create(self.open.catalog(), topic, config, existing)?;
        if let Some(topic) = self.open.catalog().table.loaded.by_id(created.topic_id)
            && !created.created
        {
            // A limit of deliveries may be lower than it was.
            queue::announce_again(&self.open.queues, &topic);
        }
        // A queue that goes on may have something for claims that wait.
        self.open.queues.claim_waiters.notify(created.topic_id);
        Ok(created)
    }

    /// Deletes a topic and all that belongs to it.
    pub fn delete_topic(&self, topic: &str, if_empty: bool) -> Result<DeletedTopic> {
        let engine = &self.open;
        verbs::delete(engine.catalog(), topic, if_empty, |id| {
            // The end of a transaction that wrote to it is durable first: without it the next open
            // would finish the transaction again, and answer its repeat without a topic that the
            // answer named.
            if engine.transactions.table.ended_behind(engine.ctx().wal.positions(0).synced) {
                engine.ctx().wal.sync(0)?;
            }
            Ok(engine.host.routers.of(id))
        })
    }

    /// The state of a topic; `touch` counts as consumption.
    pub fn state(&self, topic: &str, touch: bool) -> Result<TopicState> {
        let topic = self.find(topic)?;
        if touch {
            topic.touch(self.open.base().time.steady());
        }
        self.state_of(&topic)
    }

    /// Topics in name order after `after`, with `prefix`; at most `limit`.
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicSummary> {
        let topics = self.open.catalog().list(prefix, after, limit);
        // The entry of an unloaded topic was decoded before: it cannot fail now.
        topics.iter().filter_map(|t| summary(self.open.base(), t).ok()).collect()
    }

    /// Reads records. Waits for records that are only in the object store, at most
    /// [`crate::RemoteLimits::cold_timeout`] for each request.
    pub fn read(&self, topic: &str, req: &ReadRequest) -> Result<ReadBatch> {
        self.read_with(topic, req, &mut ReadBuffers::default())
    }

    /// The same without a wait: [`Error::ColdPending`] while the next records are being fetched.
    pub fn read_present(&self, topic: &str, req: &ReadRequest) -> Result<ReadBatch> {
        topic::read(self.open.ctx(), &*self.find(topic)?, req)
    }

    /// The same, in memory of earlier reads: give the batch back with [`ReadBuffers::recycle`].
    pub fn read_with(
        &self,
        topic: &str,
        req: &ReadRequest,
        buffers: &mut ReadBuffers,
    ) -> Result<ReadBatch> {
        topic::read_waiting(self.open.ctx(), &*self.find(topic)?, req, buffers)
    }

    /// Reads records, and waits at most `wait` for the first, without blocking: `done` is called once, in
    /// this call or later, with the batch and the request from where it began. The returned id cancels the
    /// wait.
    pub fn read_async(
        &self,
        topic: &str,
        req: ReadRequest,
        wait: Duration,
        done: Completion<(ReadRequest, ReadBatch)>,
    ) -> WaitId {
        let (open, topic) = (Arc::downgrade(&self.open), topic.to_owned());
        let find = move || Self { open: open.upgrade().ok_or(Error::Closed)? }.find(&topic);
        topic::read_async(self.open.ctx(), find, req, wait, done)
    }

    /// Cancels a call that waits. False if it has ended, or is being attempted: then `done` may still be
    /// called.
    pub fn cancel_wait(&self, id: WaitId) -> bool {
        self.open.ctx().calls.cancel(id)
    }

    /// Attempts the waiting calls that are due, in an engine without threads; [`Self::tick`] does that, too.
    pub fn attempt_waits(&self) {
        self.open.ctx().calls.pass_without_thread();
    }

    /// Ends the wait of a call: it completes with what is there now.
    pub fn end_wait(&self, id: WaitId) {
        self.open.ctx().calls.end(id);
    }

    /// Waits until the topic's head is above `seq`, it is deleted, or `timeout` passed; true when
    /// there is something to read.
    pub fn wait(&self, topic: &str, seq: u64, timeout: Duration) -> Result<bool> {
        let topic = self.find(topic)?;
        consumer::wait_head(self.open.ctx(), &topic, seq, timeout)
    }

    /// The same without blocking: `done` is called once, when the head is above `seq`, when the
    /// topic is deleted or the engine closed. The returned id cancels it.
    pub fn on_head(&self, topic: &str, seq: u64, done: Box<dyn FnOnce() + Send>) -> Result<u64> {
        let topic = self.find(topic)?;
        let id = topic.gate.on_head(seq, done);
        // A delete or a close before the registration has woken no waiter.
        if topic.life() == Life::Dead || self.open.ctx().check_open().is_err() {
            topic.gate.release();
        }
        Ok(id)
    }

    /// Forgets an [`Engine::on_head`] that has not fired.
    pub fn cancel_on_head(&self, topic: &str, id: u64) {
        if let Ok(topic) = self.find(topic) {
            topic.gate.cancel(id);
        }
    }

    /// Opens a subscription.
    pub fn watch(&self, req: &WatchRequest) -> Result<Watch> {
        Ok(Watch::open(&self.open.deliverer, req)?.owned_by(self.open.owner()))
    }

    /// Creates a watch session of a client, which keeps its cursors between streams.
    pub fn create_session(&self, req: &WatchRequest, owner: &str) -> Result<SessionInfo> {
        delivery::create(&self.open.deliverer, req, owner)
    }

    /// A session of a client; [`Error::SessionGone`] if the client has none of this id.
    pub fn session(&self, id: u128, owner: &str) -> Result<Arc<Session>> {
        delivery::find(&self.open.deliverer, id, owner)
    }

    /// Opens a stream of a session where the last one stopped, or behind what its client has
    /// `received`. The last stream ends with [`Error::SessionGone`].
    pub fn attach(&self, session: &Arc<Session>, received: &Received) -> Result<Watch> {
        self.open.ctx().check_open()?;
        let watch = delivery::attach(&self.open.deliverer, session, received)?;
        Ok(watch.owned_by(self.open.owner()))
    }

    /// Ends a session and its stream; false when there is none.
    pub fn end_session(&self, session: u128) -> bool {
        delivery::end(&self.open.deliverer, session)
    }

    /// Creates a router, or updates one between the same topics; whether it was created. It
    /// copies what is written to its source from now on.
    pub fn create_router(&self, router: &str, req: &RouterRequest) -> Result<bool> {
        let created = router::create(self.open.catalog(), &self.open.host.routers, router, req)?;
        self.open.deliverer.workers.start(&self.open.deliverer)?;
        Ok(created)
    }

    /// Deletes a router; what it copied stays. False when there is none.
    pub fn delete_router(&self, router: &str) -> Result<bool> {
        router::delete(self.open.ctx(), &self.open.host.routers, router)
    }

    /// A router.
    pub fn router(&self, router: &str) -> Result<RouterInfo> {
        router::info(self.open.catalog(), &self.open.host.routers, router)
    }

    /// The routers whose names begin with `prefix`, in name order.
    #[must_use]
    pub fn routers(&self, prefix: &str) -> Vec<RouterInfo> {
        router::list(self.open.catalog(), &self.open.host.routers, prefix)
    }

    /// Deletes records.
    pub fn delete(&self, topic: &str, req: &DeleteRequest) -> Result<Deleted> {
        self.delete_of(&self.find(topic)?, req)
    }

    fn delete_of(&self, topic: &Arc<Topic>, req: &DeleteRequest) -> Result<Deleted> {
        let (deleted, records_scanned) = topic::delete_records(self.open.ctx(), topic, req)?;
        Ok(Deleted { deleted, records_scanned, state: self.state_of(topic)? })
    }

    /// Deletes all but the newest `count` records. What is written meanwhile stays, too.
    pub fn trim(&self, topic: &str, count: u64) -> Result<Deleted> {
        let topic = self.find(topic)?;
        let begin = ReadRequest { from: ReadFrom::Tail(count), limit: 0, ..ReadRequest::default() };
        let cursor = topic::read(self.open.ctx(), &topic, &begin)?.next_from_seq;
        self.delete_of(&topic, &DeleteRequest { before_seq: Some(cursor + 1), matching: None })
    }

    /// Deletes single records; seqs that are not there are passed over.
    pub fn delete_seqs(&self, topic: &str, seqs: &[u64]) -> Result<Deleted> {
        let topic = self.find(topic)?;
        let deleted = topic::delete_single(self.open.ctx(), &topic, seqs)?;
        Ok(Deleted { deleted, records_scanned: 0, state: self.state_of(&topic)? })
    }

    /// The cursor just before the first record at or after `ts` (ms).
    pub fn seek(&self, topic: &str, ts: u64) -> Result<Sought> {
        topic::seek(self.open.base(), &*self.find(topic)?, ts)
    }

    /// The last seq of a topic up to which everything is durable.
    pub fn synced_seq(&self, topic: &str) -> Result<u64> {
        topic::synced_seq(self.open.ctx(), &*self.find(topic)?)
    }

    /// Where the records of a topic lie, from the index alone.
    pub fn segments(&self, topic: &str) -> Result<SegmentMap> {
        topic::segment_map(&*self.find(topic)?)
    }

    /// Returns when everything acked before is durable. An error if acked records were lost since the last
    /// sync: the write of a batch of class `memory` failed after its ack.
    pub fn sync(&self) -> Result<()> {
        self.open.ctx().check_open()?;
        for shard in 0..self.open.ctx().wal.shards() {
            self.open.ctx().wal.sync(shard)?;
        }
        let ids: Vec<u64> = self.open.base().losses.lock().iter().copied().collect();
        topic::report_losses(self.open.ctx(), |id| self.open.catalog().table.loaded.by_id(id), &ids)
    }

    /// The same for one topic.
    pub fn sync_topic(&self, topic: &str) -> Result<()> {
        let topic = self.find(topic)?;
        self.open.ctx().wal.sync(self.open.ctx().shard(topic.id()))?;
        let lost = self.open.base().losses.lock().contains(&topic.id());
        let ids = if lost { vec![topic.id()] } else { Vec::new() };
        topic::report_losses(self.open.ctx(), |_| Some(topic.clone()), &ids)
    }

    /// What the engine counts.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.open.metrics_snapshot()
    }

    /// The background loops that have panicked since the open. Each went on; a topic at fault is
    /// closed until the next open.
    #[must_use]
    pub fn loop_panics(&self) -> Vec<LoopPanics> {
        self.open.base().env.guards.panics()
    }

    /// The unwind guards of this engine, for loops that serve it.
    #[must_use]
    pub fn guards(&self) -> Arc<Guards> {
        self.open.base().env.guards.clone()
    }

    /// Looks at every topic: sums, and the gauges of at most `limit` topics whose names begin with
    /// one of `prefixes`. Takes about 100 ns for each topic.
    pub fn survey(&self, prefixes: &[String], limit: usize) -> Result<Survey> {
        self::survey::survey(&self.open, prefixes, limit)
    }

    /// What segments have met since the open: records that failed their checksum, and uses of a
    /// derived file that was damaged or missing and was made anew.
    #[must_use]
    pub fn damage_counts(&self) -> (u64, u64) {
        self.open.base().segments.damage_counts()
    }

    /// The engine's time, ms since the Unix epoch: that of commits, time to live, delays and
    /// windows. It follows the wall clock, never goes back, and waits for a large step forward to
    /// persist.
    #[must_use]
    pub fn time_ms(&self) -> u64 {
        self.open.base().time.steady()
    }

    /// The settings it was opened with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.open.base().options
    }

    #[cfg(test)]
    pub(crate) fn open_engine(&self) -> &Arc<OpenEngine> {
        &self.open
    }

    fn state_of(&self, topic: &Arc<Topic>) -> Result<TopicState> {
        topic::state(self.open.ctx(), topic, || queue::queue_state(self.open.queues.base(), topic))
    }

    pub(crate) fn find(&self, topic: &str) -> Result<Arc<Topic>> {
        self.open.ctx().check_open()?;
        self.open.catalog().live(topic)?.ok_or_else(|| match name::check(topic) {
            Ok(()) => Error::TopicNotFound(topic.to_owned()),
            Err(e) => e,
        })
    }
}

impl Engine {
    /// Opens a directory, creating it when missing, and recovers.
    pub fn open(env: Env, dir: &Path, options: Options) -> Result<Self> {
        Self::open_reporting(env, dir, options, Arc::default())
    }

    /// The same; `progress` says meanwhile how far recovery has come.
    pub fn open_reporting(
        env: Env,
        dir: &Path,
        options: Options,
        progress: Arc<RecoveryProgress>,
    ) -> Result<Self> {
        open::open(env, dir, options, progress).map(Self::over)
    }

    /// Opens a directory to read what it holds. Nothing in it changes, in whatever state it was
    /// left; every write is refused. Others may read it in this way at the same time, but nobody
    /// may have it open to write.
    pub fn open_read_only(env: Env, dir: &Path, options: Options) -> Result<Self> {
        open::open_read_only(env, dir, options).map(Self::over)
    }

    /// Whether an engine has a directory open to write to it, in any process.
    #[must_use]
    pub fn is_open(env: &Env, dir: &Path) -> bool {
        let lock = env.fs.lock_shared(&Paths::new(dir).lock());
        matches!(lock, Err(LockError::Held(_)))
    }

    /// Reads a prefix of an object store: the state at a time, ms since the Unix epoch, `None`: the newest
    /// one. Every write is refused, and what is shipped later is not seen. `dir`, which must be missing or
    /// empty, gets what is not read from the prefix: the log, and files of segments that were read. It is
    /// of no use after the engine is closed.
    pub fn open_prefix(
        env: &Env,
        store: Arc<dyn ObjectStore>,
        dir: &Path,
        at_ms: Option<u64>,
        options: Options,
    ) -> Result<Self> {
        open::open_prefix(env, store, dir, at_ms, options).map(Self::over)
    }

    /// Reads the sealed segments that a base of a prefix names: `None` the newest one, else that of
    /// [`Self::base`]. Neither the log nor active segments are fetched, and each topic ends with its last sealed
    /// segment. No record expires by the TTL of its topic. Otherwise like [`Self::open_prefix`].
    pub fn open_sealed(
        env: &Env,
        store: Arc<dyn ObjectStore>,
        dir: &Path,
        base: Option<&str>,
        options: Options,
    ) -> Result<Self> {
        open::open_sealed(env, store, dir, base, options).map(Self::over)
    }

    /// The name of the base that an engine reads a prefix from, for [`Self::open_sealed`].
    #[must_use]
    pub fn base(&self) -> Option<String> {
        self.open.view.get().map(restore::View::base)
    }

    /// Whether an engine that reads a prefix has its newest state, or its newest base if it reads sealed segments
    /// only. True for every other one.
    pub fn is_current(&self) -> Result<bool> {
        self.open.ctx().check_open()?;
        self.open.view.get().map_or(Ok(true), restore::View::is_current)
    }

    /// Stages nothing more, syncs, snapshots, wakes every waiter with `Closed`. Idempotent.
    pub fn close(&self) -> Result<()> {
        close::close(&self.open)
    }

    /// Says in the lock file where this engine is served.
    pub fn set_url(&self, url: &str) -> Result<()> {
        self.open.ctx().check_open()?;
        match &*self.open.ctx().lock.lock() {
            Some(lock) => Ok(lock.set_url(url)?),
            None => Err(Error::Closed),
        }
    }

    /// One checkpoint round.
    pub fn checkpoint(&self) -> Result<()> {
        self.open.ctx().check_open()?;
        self.open.ctx().check_writable()?;
        round::checkpoint(self.open.store()).map(|_| ())
    }

    /// Copies the directory to `dir`, which must be missing or empty, while others go on writing. The copy
    /// has everything that was acked before the call, and opens like a directory after a power cut.
    pub fn backup(&self, dir: &Path) -> Result<BackupSummary> {
        self.open.ctx().check_writable()?;
        self.sync()?;
        backup::backup(&self.open, dir)
    }

    /// Whether a path lies in the directory of the engine.
    #[must_use]
    pub fn is_inside(&self, path: &Path) -> bool {
        std::path::absolute(path).is_ok_and(|path| path.starts_with(&self.open.base().dir))
    }

    /// The same into a prefix of an object store that nobody has written to. It can be restored and read like
    /// the prefix of a remote. It blocks on requests, on the thread of the caller.
    pub fn backup_to(&self, store: &Arc<dyn ObjectStore>, retry: &Retry) -> Result<BackupSummary> {
        self.open.ctx().check_writable()?;
        self.sync()?;
        prefix_backup::backup(&self.open, store, retry)
    }

    /// Copies a directory that is not open to `target`, which must be missing or empty. Files that never
    /// change are shared by hard links where that is possible. Nothing in the source changes.
    pub fn clone_directory(env: &Env, source: &Path, target: &Path) -> Result<BackupSummary> {
        backup::clone_directory(env, source, target)
    }

    /// Copies to the remote what it does not have, and publishes a base if anything has changed since the last
    /// one of this process. It blocks on requests, on the thread of the caller.
    pub fn archive(&self) -> Result<Archived> {
        self.archiver()?.archive()
    }

    /// The state of the remote; `None`: none is configured.
    #[must_use]
    pub fn remote_state(&self) -> Option<RemoteState> {
        self.open.archiver.as_ref().map(|archiver| archiver.condition().0)
    }

    /// Forgets the prefix that the directory has written to, so that it can write to another one. Its
    /// objects stay. The engine must have no remote. Refused while records are only in the prefix.
    pub fn forget_remote(&self) -> Result<()> {
        self.open.ctx().check_writable()?;
        if self.open.archiver.is_some() {
            let detail = "the remote is in use: open the directory without a remote to forget it";
            return Err(Error::InvalidRequest(detail.to_owned()));
        }
        archive::forget(self.open.store())
    }

    fn archiver(&self) -> Result<&Arc<Archiver>> {
        self.open.archiver.as_ref().ok_or_else(|| {
            Error::InvalidRequest("no remote is configured: set remote_url".to_owned())
        })
    }

    /// Ships what was logged before the call. It blocks on requests, on the thread of the caller.
    pub fn ship(&self) -> Result<Shipped> {
        match &self.open.shipper {
            Some(shipper) => shipper.ship(),
            None => Err(Error::InvalidRequest(
                "no remote that ships is configured: set `Options::remote`".to_owned(),
            )),
        }
    }

    /// The state of continuous backup; `None`: the log is not shipped.
    #[must_use]
    pub fn ship_status(&self) -> Option<ShipStatus> {
        self.open.shipper.as_ref().map(|shipper| shipper.status())
    }

    /// One pass of the background work that is no checkpoint: limits, deliveries and cold reads; each five
    /// seconds also what expires, idle reservations, transactions to complete, files of deleted topics.
    /// The first error of a topic, after all have had their turn.
    pub fn tick(&self) -> Result<()> {
        background::tick(&self.open)
    }
}
