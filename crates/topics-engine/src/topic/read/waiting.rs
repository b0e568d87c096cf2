//! Reads that wait for records.

use std::sync::Arc;
use std::time::Duration;

use topics_storage::segment::Fetch;

use super::read;
use crate::topic::events::Ctx;
use crate::topic::{Life, Topic};
use crate::types::api::{Completion, ReadFrom, ReadRequest};
use crate::types::batch::ReadBatch;
use crate::types::error::{Error, Result};
use crate::types::pending_calls::{Next, Register, Turn, WaitId};

/// The fetch of cold records that a read waits for.
#[derive(Default)]
pub(crate) struct PendingFetch(Option<Arc<Fetch>>);

impl PendingFetch {
    /// Attempts a read; waits if its records are being fetched. Fails if the last fetch has failed.
    pub(crate) fn attempt(&mut self, read: impl FnOnce() -> Result<Next>) -> Result<Next> {
        if let Some(Err(e)) = self.0.take().and_then(|fetch| fetch.outcome()) {
            return Err(e.into());
        }
        match read() {
            Err(Error::ColdPending(fetch)) => {
                self.0 = Some(fetch.clone());
                Ok(Next::WaitForSure(on_fetched(fetch)))
            }
            next => next,
        }
    }
}

/// A read that waits for a record or a gap.
struct WaitingRead<F> {
    find: F,
    request: ReadRequest,
    done: Option<Completion<(ReadRequest, ReadBatch)>>,
}

/// Reads records, and waits at most `wait` for the first. `find` finds the topic at each attempt, because it
/// may be deleted and created again meanwhile. Calls `done` once, with the batch and the request from where
/// it began: in this call if there is something to return, or without a wait. Cold records are waited for
/// in any case.
pub(crate) fn read_async(
    ctx: &Arc<Ctx>,
    find: impl Fn() -> Result<Arc<Topic>> + Send + 'static,
    request: ReadRequest,
    wait: Duration,
    done: Completion<(ReadRequest, ReadBatch)>,
) -> WaitId {
    let weak = Arc::downgrade(ctx);
    let mut read = WaitingRead { find, request, done: Some(done) };
    let mut fetch = PendingFetch::default();
    let attempt = move |turn| {
        let ctx = weak.upgrade().ok_or(Error::Closed);
        let next = ctx.and_then(|ctx| fetch.attempt(|| read.attempt(&ctx, turn)));
        next.unwrap_or_else(|e| read.complete(Err(e)))
    };
    ctx.calls.start(Box::new(attempt), until(ctx, wait))
}

/// The time after a wait, monotonic ns.
pub(crate) fn until(ctx: &Ctx, wait: Duration) -> u64 {
    let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    ctx.base().time.mono_ns().saturating_add(ns)
}

impl<F: Fn() -> Result<Arc<Topic>>> WaitingRead<F> {
    fn attempt(&mut self, ctx: &Arc<Ctx>, turn: Turn) -> Result<Next> {
        let topic = (self.find)()?;
        // Before the read: a sync that comes during it is not missed. A record may be shown before it is
        // applied, and is durable after that.
        let shard = ctx.shard(topic.id());
        let positions = ctx.wal.positions(shard);
        let synced = positions.synced.min(positions.applied);
        let batch = ctx.base().guarded_turn("read", || read(ctx, &topic, &self.request))?;
        let seq = batch.next_from_seq;
        let is_unmoved = self.request.from == ReadFrom::After(seq);
        // An empty page, and no visible record after it.
        let is_idle = batch.is_empty() && batch.tombstone.is_none();
        // Written records that a strong read does not see yet.
        let is_unsynced = self.request.strong && !batch.caught_up && is_unmoved;
        if turn != Turn::InTime || !is_idle || !(batch.caught_up || is_unsynced) {
            return Ok(self.complete(Ok((self.request.clone(), batch))));
        }
        self.request.from = ReadFrom::After(seq);
        self.request.topic_id = Some(batch.topic_id);
        Ok(Next::Wait(match is_unsynced {
            true => on_synced(ctx, shard, synced),
            false => on_head(ctx, topic, seq),
        }))
    }

    fn complete(&mut self, outcome: Result<(ReadRequest, ReadBatch)>) -> Next {
        if let Some(done) = self.done.take() {
            done(outcome);
        }
        Next::Done
    }
}

/// For a head above `seq`, the deletion of the topic, or the close of the engine.
pub(crate) fn on_head(ctx: &Arc<Ctx>, topic: Arc<Topic>, seq: u64) -> Register {
    let weak = Arc::downgrade(ctx);
    Box::new(move |wake| {
        let id = topic.gate.on_head(seq, wake);
        // A delete or a close before the registration has woken no waiter.
        let is_open = weak.upgrade().is_some_and(|ctx| ctx.check_open().is_ok());
        if topic.life() == Life::Dead || !is_open {
            topic.gate.release();
        }
        Box::new(move || topic.gate.cancel(id))
    })
}

/// For a sync of frames above the lsn `synced`.
fn on_synced(ctx: &Arc<Ctx>, shard: usize, synced: u64) -> Register {
    let weak = Arc::downgrade(ctx);
    Box::new(move |wake| {
        let id = weak.upgrade().map(|ctx| ctx.wal.observe_sync(shard, synced, wake));
        Box::new(move || {
            if let (Some(id), Some(ctx)) = (id, weak.upgrade()) {
                ctx.wal.cancel_observer(shard, id);
            }
        })
    })
}

/// For the end of a fetch.
fn on_fetched(fetch: Arc<Fetch>) -> Register {
    Box::new(move |wake| {
        fetch.on_end(Box::new(move |_| wake()));
        Box::new(|| {})
    })
}
