//! A running router: reads its source, writes its destination, one batch at a time.

use std::fmt;
use std::sync::Arc;

use topics_env::sync::{Mutex, RwLock};
use topics_storage::format::record::Forward;

use super::copy;
use super::define::Definition;
use crate::checkpoint::Store;
use crate::topic::{self, Forwarding, Topic};
use crate::types::api::{Append, Durability, ReadFrom, ReadRequest, Tombstone};
use crate::types::batch::ReadBatch;
use crate::types::error::{Error, Result};
use crate::verbs;

/// Maximum records of a batch.
const BATCH: usize = 1000;
/// Maximum payload bytes of a batch.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum source seqs that one Forward frame covers.
const SPAN: u64 = 1 << 16;
/// The first and the longest backoff after an error.
const BACKOFF_MS: (u64, u64) = (10, 1000);
/// The copies follow the Forward frame in its batch.
pub(crate) const COPIES_LOGGED: u32 = 1;

pub(crate) struct Router {
    definition: RwLock<Arc<Definition>>,
    work: Mutex<Work>,
}

struct Work {
    /// The last source seq that was copied or filtered out.
    at: u64,
    /// A batch is pending.
    busy: bool,
    /// The worker has left before the end of that batch: its completion schedules the next run.
    left: bool,
    ended: bool,
    /// Maximum records of the next batch; halved after an error.
    batch: usize,
    backoff_ms: u64,
    /// The earliest time of the next batch (monotonic ns).
    not_before: u64,
    forwarded: u64,
    stopped_by: Option<Error>,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("name", &self.definition().name).finish_non_exhaustive()
    }
}

impl Router {
    pub(crate) fn new(definition: Definition) -> Arc<Self> {
        let work = Work {
            at: definition.start,
            busy: false,
            left: false,
            ended: false,
            batch: BATCH,
            backoff_ms: 0,
            not_before: 0,
            forwarded: 0,
            stopped_by: None,
        };
        Arc::new(Self { definition: RwLock::new(Arc::new(definition)), work: Mutex::new(work) })
    }

    pub(crate) fn definition(&self) -> Arc<Definition> {
        self.definition.read().clone()
    }

    pub(crate) fn redefine(&self, definition: Definition) {
        *self.definition.write() = Arc::new(definition);
    }

    /// Continues from its logged cursor.
    pub(crate) fn resume(&self, at: u64) {
        let mut work = self.work.lock();
        work.at = at.max(work.at);
    }

    /// Stops the router after a panic. The next open continues behind the last logged copy; until then the
    /// router copies nothing, so that no record is copied twice.
    pub(crate) fn fail(&self, error: Error) {
        let mut work = self.work.lock();
        work.ended = true;
        work.stopped_by = Some(error);
    }

    pub(crate) fn end(&self) {
        self.work.lock().ended = true;
    }

    /// Copies made, source records left, the last error.
    pub(crate) fn progress(&self, head: u64) -> (u64, u64, Option<Error>) {
        let work = self.work.lock();
        (work.forwarded, head.saturating_sub(work.at), work.stopped_by.clone())
    }

    /// Starts a batch, unless one is pending; returns its position and its maximum number of records.
    fn begin(&self, now: u64) -> Option<(u64, usize)> {
        let mut work = self.work.lock();
        if work.busy || work.ended || now < work.not_before {
            return None;
        }
        (work.busy, work.left) = (true, false);
        Some((work.at, work.batch))
    }

    /// Ends a batch. Returns whether its completion must schedule the next run, and when to retry.
    fn done(
        &self,
        outcome: std::result::Result<(u64, u64), Error>,
        now: u64,
    ) -> (bool, Option<u64>) {
        let mut work = self.work.lock();
        work.busy = false;
        let mut again = None;
        match outcome {
            Ok((to, copies)) => {
                assert!(to >= work.at, "I7: a router's cursor goes back");
                work.at = to;
                work.forwarded += copies;
                (work.backoff_ms, work.not_before) = (0, 0);
                if !work.ended {
                    work.stopped_by = None;
                }
                if copies > 0 {
                    work.batch = (work.batch * 2).min(BATCH);
                }
            }
            Err(e) => {
                work.batch = (work.batch / 2).max(1);
                work.backoff_ms = (work.backoff_ms * 2).clamp(BACKOFF_MS.0, BACKOFF_MS.1);
                work.not_before = now + work.backoff_ms * 1_000_000;
                again = Some(work.not_before);
                work.stopped_by = Some(e);
            }
        }
        (work.left, again)
    }

    /// Leaves the batch to its completion, if it is still pending. Returns whether it is.
    fn leave(&self) -> bool {
        let mut work = self.work.lock();
        work.left = work.busy;
        work.busy
    }
}

/// When a router runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunAgain {
    /// As soon as a worker is free.
    Now,
    /// At this monotonic time, ns.
    At(u64),
    /// When the visible records of the source are synced.
    WhenSynced,
}

/// Schedules the next run of the source's routers; called on the thread that completes a batch.
pub(crate) type Schedule = Arc<dyn Fn(RunAgain) + Send + Sync>;

/// One run of a router.
#[derive(Clone)]
struct Run {
    store: Arc<Store>,
    router: Arc<Router>,
    source: Arc<Topic>,
    again: Schedule,
}

/// Copies the records of the source up to its current head.
pub(crate) fn run(store: &Arc<Store>, router: &Arc<Router>, source: &Arc<Topic>, again: Schedule) {
    let (store, router, source) = (store.clone(), router.clone(), source.clone());
    Run { store, router, source, again }.run();
}

impl Run {
    fn run(&self) {
        let Self { store, router, source, .. } = self;
        let target = source.gate.head();
        let mut idle = 0;
        loop {
            let Some((at, batch)) = router.begin(store.base().time.mono_ns()) else { return };
            if at >= target || idle > 1 {
                self.finish(Ok((at, 0)));
                return;
            }
            match self.step(at, batch) {
                Ok(true) => idle = 0,
                Ok(false) => {
                    idle += 1;
                    self.finish(Ok((at, 0)));
                }
                Err(e) => self.finish(Err(e)),
            }
            if router.leave() {
                return;
            }
        }
    }

    /// Processes one batch. Returns false if there was none.
    fn step(&self, at: u64, batch: usize) -> Result<bool> {
        let Self { store, router, source, .. } = self;
        let d = router.definition();
        let Some(dest) = store.catalog().table.loaded.by_id(d.dest.topic_id) else {
            return Err(Error::TopicNotFound(d.request.dest.clone()));
        };
        let class = |t: &Topic| t.state.read().config.durability;
        let from = class(source);
        let strong = class(&dest) == Durability::Fsync
            && !matches!(from, Durability::Fsync | Durability::Ephemeral);
        let req = ReadRequest {
            from: ReadFrom::After(at),
            limit: batch,
            max_bytes: BATCH_BYTES,
            matching: d.request.filter.clone(),
            topic_id: Some(d.source.topic_id),
            strong,
            touch: false,
            ..ReadRequest::default()
        };
        let found = match topic::read(store.ctx(), source, &req) {
            Err(Error::ColdPending(fetch)) => {
                // The batch stays pending until the records are here.
                let run = self.clone();
                let done = move |outcome: topics_storage::Result<()>| {
                    run.finish(outcome.map(|()| (at, 0)).map_err(Error::from));
                };
                fetch.on_end(Box::new(done));
                return Ok(true);
            }
            found => found?,
        };
        if let Some(t) = found.tombstone {
            if t.gap_from != at + 1 {
                let text = format!("the source of router {:?} is behind it", d.name);
                return Err(Error::Internal(text));
            }
            self.lost(&dest, &d, t)?;
            return Ok(true);
        }
        if found.next_from_seq == at {
            if strong {
                (self.again)(RunAgain::WhenSynced);
            }
            return Ok(false);
        }
        self.forward(&dest, &d, &found, at);
        Ok(true)
    }

    /// Writes the copies of the records that were read.
    fn forward(&self, dest: &Arc<Topic>, d: &Arc<Definition>, found: &ReadBatch, at: u64) {
        let store = &self.store;
        // Records far apart go into several frames; seqs before the first one need no bit.
        let first = found.get(0).map_or(at + 1, |r| r.seq);
        let near = found.iter().take_while(|r| r.seq < first + SPAN);
        let near: Vec<_> = near.collect();
        let whole = near.len() == found.len();
        let to = if whole { found.next_from_seq } else { near.last().map_or(at, |r| r.seq) };
        let kept = copy::metas(d, near.into_iter());
        if kept.is_empty() {
            // Filtered records are filtered again after a restart.
            self.finish(Ok((to, 0)));
            return;
        }
        let last = kept.last().map_or(first, |(r, _)| r.seq);
        let mut bits = vec![0u8; ((last - first) / 8 + 1) as usize];
        for (r, _) in &kept {
            let bit = r.seq - first;
            bits[(bit / 8) as usize] |= 1 << (bit % 8);
        }
        let all = kept.len() as u64 == last + 1 - first;
        let body = Forward {
            router_id: d.id,
            source_id: d.source.topic_id,
            source_epoch: d.source.epoch,
            source_from: first,
            source_to: last,
            forwarded: if all { Vec::new() } else { bits },
            first_seq: 0,
            options: COPIES_LOGGED,
        };
        let records = copy::copies(d, &kept);
        let copies = records.len() as u64;
        let append = Append { records: &records, create: Some(false), ..Append::default() };
        let run = self.clone();
        let done = Box::new(move |outcome: Result<_>| {
            if outcome.is_ok() {
                run.store.base().metrics.router_copies.add(copies);
            }
            run.finish(outcome.map(|_| (to, copies)));
        });
        verbs::forward(store, dest, &append, Forwarding { dest: dest.id(), body }, done);
        store.ctx().wal.drive(store.ctx().shard(dest.id()));
    }

    /// Logs a gap in the destination for records that the source lost before they were copied.
    fn lost(&self, dest: &Arc<Topic>, d: &Arc<Definition>, t: Tombstone) -> Result<()> {
        let store = &self.store;
        let body = Forward {
            router_id: d.id,
            source_id: d.source.topic_id,
            source_epoch: d.source.epoch,
            source_from: t.gap_from,
            source_to: t.gap_to,
            forwarded: Vec::new(),
            first_seq: 0,
            options: COPIES_LOGGED,
        };
        let run = self.clone();
        let done = Box::new(move |outcome: Result<()>| {
            run.finish(outcome.map(|()| (t.gap_to, 0)));
        });
        topic::forward_gap(store.ctx(), dest, t.gap_to + 1 - t.gap_from, body, done)?;
        store.ctx().wal.drive(store.ctx().shard(dest.id()));
        Ok(())
    }

    fn finish(&self, outcome: std::result::Result<(u64, u64), Error>) {
        let Self { store, router, again, .. } = self;
        if let Err(e) = &outcome {
            log::debug!("router {:?}: {e}", router.definition().name);
        }
        let (left, at) = router.done(outcome, store.base().time.mono_ns());
        if let Some(at) = at {
            again(RunAgain::At(at));
        }
        if left {
            again(RunAgain::Now);
        }
    }
}
