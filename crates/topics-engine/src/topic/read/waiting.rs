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

/// A read that waits for a record, a gap or cold records.
struct WaitingRead<F> {
    find: F,
    request: ReadRequest,
    /// The fetch of cold records that it waited for.
    fetch: Option<Arc<Fetch>>,
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
    let mut read = WaitingRead { find, request, fetch: None };
    let mut done = Some(done);
    let attempt = move |turn| {
        let outcome = match weak.upgrade() {
            Some(ctx) => read.attempt(&ctx, turn),
            None => Err(Error::Closed),
        };
        let outcome = match outcome {
            Ok(Attempted::Waits(next)) => return next,
            Ok(Attempted::Read(batch)) => Ok((read.request.clone(), batch)),
            Err(e) => Err(e),
        };
        if let Some(done) = done.take() {
            done(outcome);
        }
        Next::Done
    };
    ctx.calls.start(Box::new(attempt), until(ctx, wait))
}

/// The time after a wait, monotonic ns.
pub(crate) fn until(ctx: &Ctx, wait: Duration) -> u64 {
    let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    ctx.base().time.mono_ns().saturating_add(ns)
}

enum Attempted {
    Read(ReadBatch),
    Waits(Next),
}

impl<F: Fn() -> Result<Arc<Topic>>> WaitingRead<F> {
    fn attempt(&mut self, ctx: &Arc<Ctx>, turn: Turn) -> Result<Attempted> {
        if let Some(Err(e)) = self.fetch.take().and_then(|fetch| fetch.outcome()) {
            return Err(e.into());
        }
        let topic = (self.find)()?;
        // Before the read: a sync that comes during it is not missed. A record may be shown before it is
        // applied, and is durable after that.
        let positions = ctx.wal.positions(ctx.shard(topic.id()));
        let synced = positions.synced.min(positions.applied);
        let outcome = ctx.base().guarded_turn("read", || read(ctx, &topic, &self.request));
        let batch = match outcome {
            Err(Error::ColdPending(fetch)) => {
                self.fetch = Some(fetch.clone());
                return Ok(Attempted::Waits(Next::WaitForSure(on_fetched(fetch))));
            }
            batch => batch?,
        };
        let seq = batch.next_from_seq;
        let is_unmoved = self.request.from == ReadFrom::After(seq);
        // An empty page, and no visible record after it.
        let is_idle = batch.is_empty() && batch.tombstone.is_none();
        // Written records that a strong read does not see yet.
        let is_unsynced = self.request.strong && !batch.caught_up && is_unmoved;
        if turn != Turn::InTime || !is_idle || !(batch.caught_up || is_unsynced) {
            return Ok(Attempted::Read(batch));
        }
        self.request.from = ReadFrom::After(seq);
        self.request.topic_id = Some(batch.topic_id);
        let register = match is_unsynced {
            true => on_synced(ctx, topic, synced),
            false => on_head(ctx, topic, seq),
        };
        Ok(Attempted::Waits(Next::Wait(register)))
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

/// For a sync of frames above the lsn `synced`; if there will be none, for the end of the topic. The callback
/// stays until then.
fn on_synced(ctx: &Arc<Ctx>, topic: Arc<Topic>, synced: u64) -> Register {
    let (weak, shard) = (Arc::downgrade(ctx), ctx.shard(topic.id()));
    Box::new(move |wake| {
        let Some(ctx) = weak.upgrade() else {
            wake();
            return Box::new(|| {});
        };
        let observed = move |outcome: topics_storage::Result<()>| match outcome {
            Ok(()) => wake(),
            Err(_) => drop(topic.gate.on_head(u64::MAX - 1, wake)),
        };
        ctx.wal.observe_sync(shard, synced, Box::new(observed));
        Box::new(|| {})
    })
}

/// For the end of a fetch.
pub(crate) fn on_fetched(fetch: Arc<Fetch>) -> Register {
    Box::new(move |wake| {
        fetch.on_end(Box::new(move |_| wake()));
        Box::new(|| {})
    })
}
