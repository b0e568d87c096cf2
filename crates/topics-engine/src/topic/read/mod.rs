//! Reading: position → one piece after the other → a batch.
//!
//! A piece (a run of resident records in one file, or a range of one segment) is planned under the
//! state lock, then read without it, verified and filtered. The next piece sees changes of the topic
//! since. A gap ends the read before it.
//!
//! A read never waits for the object store: it ends before cold records that are not fetched, or fails
//! with [`Error::ColdPending`] if it begins there. Only [`read_waiting`] waits, without any lock.

mod fetch;
mod lag;
mod plan;
mod position;
mod waiting;

use topics_env::sync::atomic::Ordering;
use topics_storage::StorageError;

pub(crate) use self::lag::{age, lag};
use self::plan::Piece;
use self::position::position;
pub(crate) use self::position::{seek, synced_seq};
pub(crate) use self::waiting::{PendingFetch, on_head, read_async, until};
use super::load::Need;
use super::retention::{Expired, with_expired};
use super::{Topic, delete};
use crate::topic::events::Ctx;
use crate::topic::load;
use crate::types::api::{ReadRequest, Tombstone};
use crate::types::batch::{ReadBatch, ReadBuffers};
use crate::types::error::{Error, Result};

/// Maximum number of records that one call scans, however few it returns.
const MAX_SCANNED: u64 = 200_000;
/// Maximum number of pieces that one call reads, so that a filter without matches does not read the
/// whole topic.
const MAX_PIECES: usize = 1024;
/// Bytes of one read from a WAL file, unless one record is larger.
const BLOCK: usize = 1 << 20;
/// Maximum bytes between two records of a topic that one read spans.
const BRIDGE: u64 = 8 << 10;
/// How often a plan is repeated because its files were removed meanwhile.
const RETRIES: usize = 64;

/// Reads records.
pub(crate) fn read(ctx: &Ctx, topic: &Topic, req: &ReadRequest) -> Result<ReadBatch> {
    read_from(ctx, topic, req, Reads::ForClient, &mut ReadBuffers::default())
}

/// Reads records, and waits for cold ones.
pub(crate) fn read_waiting(
    ctx: &Ctx,
    topic: &Topic,
    req: &ReadRequest,
    buffers: &mut ReadBuffers,
) -> Result<ReadBatch> {
    loop {
        match read_from(ctx, topic, req, Reads::ForClient, buffers) {
            Err(Error::ColdPending(fetch)) => ctx.base().wait_fetch(&fetch)?,
            done => return done,
        }
    }
}

/// Reads jobs, without their lag; with `expired`, also expired ones that were not removed yet.
pub(crate) fn read_jobs(
    ctx: &Ctx,
    topic: &Topic,
    req: &ReadRequest,
    expired: bool,
) -> Result<ReadBatch> {
    read_from(ctx, topic, req, Reads::Jobs { expired }, &mut ReadBuffers::default())
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// What a client asked for.
    ForClient,
    /// Jobs by their seqs; `expired` ones too.
    Jobs { expired: bool },
}

fn read_from(
    ctx: &Ctx,
    topic: &Topic,
    req: &ReadRequest,
    reads: Reads,
    buffers: &mut ReadBuffers,
) -> Result<ReadBatch> {
    topic.check_sound()?;
    ctx.base().metrics.reads.add(1);
    if req.touch {
        topic.last_read.store(ctx.base().time.steady(), Ordering::Relaxed);
    }
    if req.matching.is_some() {
        delete::load_active_tags(ctx.base(), topic)?;
    }
    let mut r = Reader::new(ctx, topic, req, reads, buffers)?;
    r.run()?;
    r.finish()
}

/// A read in progress.
struct Reader<'a> {
    ctx: &'a Ctx,
    topic: &'a Topic,
    req: &'a ReadRequest,
    /// Whether node filtering applies.
    skip_nodes: bool,
    reads: Reads,
    /// The time of the first look at a record that expires by itself; fixed, so that the clock
    /// cannot change the read.
    now: Option<u64>,
    /// Every seq up to here is returned or skipped.
    at: u64,
    /// Where the read began.
    start: u64,
    /// The last seq to read.
    bound: u64,
    /// The records that had expired when the read began; fixed, so that the clock cannot change it
    /// during the read.
    expired: Option<Expired>,
    out: ReadBatch,
    bytes: usize,
    buffers: &'a mut ReadBuffers,
}

impl<'a> Reader<'a> {
    fn new(
        ctx: &'a Ctx,
        topic: &'a Topic,
        req: &'a ReadRequest,
        reads: Reads,
        buffers: &'a mut ReadBuffers,
    ) -> Result<Self> {
        let also_expired = reads == Reads::Jobs { expired: true };
        let synced = req.strong.then(|| ctx.wal.positions(ctx.shard(topic.id())).synced);
        let p = loop {
            let p = with_expired(ctx.base(), topic, |state, expired| {
                let expired = expired.filter(|_| !also_expired);
                position(topic, state, expired, req, synced)
            })?;
            match p {
                Ok(p) => break p,
                Err(unknown) => load::provide(ctx.base(), topic, &Need::Dead(unknown))?,
            }
        };
        let mut out = ReadBatch {
            topic_id: topic.id(),
            head_seq: p.head,
            earliest_seq: p.earliest,
            slots: std::mem::take(&mut buffers.slots),
            ..ReadBatch::default()
        };
        if let Some((gap_from, gap_to, reason)) = p.tombstone {
            ctx.base().metrics.tombstones[reason as usize].add(1);
            out.tombstone = Some(Tombstone {
                gap_from,
                gap_to,
                reason,
                missed_estimate: gap_to + 1 - gap_from,
                earliest_seq: p.earliest,
                head_seq: p.head,
            });
        }
        Ok(Self {
            ctx,
            topic,
            req,
            skip_nodes: p.skip_nodes && !req.skip_nodes.0.is_empty(),
            reads,
            now: also_expired.then_some(0),
            at: p.at,
            start: p.at,
            bound: p.bound,
            expired: p.expired,
            out,
            bytes: 0,
            buffers,
        })
    }

    fn run(&mut self) -> Result<()> {
        let (mut retries, mut pieces) = (0, 0);
        while self.has_capacity()
            && self.at < self.bound
            && self.out.records_scanned < MAX_SCANNED
            && pieces < MAX_PIECES
        {
            pieces += 1;
            let piece = self.plan();
            let before = self.at;
            let done = match piece {
                Piece::End => break,
                Piece::Skip(to) => {
                    self.at = to;
                    Ok(true)
                }
                Piece::Unknown(file_no) => {
                    load::provide(self.ctx.base(), self.topic, &Need::Dead(file_no))?;
                    Ok(true)
                }
                Piece::Run { place, lsn, records, upto } => {
                    self.run_piece(&place, lsn, &records, upto)
                }
                Piece::Segment { segment, dead, from, to } => {
                    if self.only_seqs() && segment.meta().earliest_expires == 0 {
                        self.segment_seqs(&segment, &dead, from, to)
                    } else {
                        self.segment_piece(&segment, &dead, from, to)
                    }
                }
                Piece::Seqs { seqs, upto } => Ok(self.seqs(seqs, upto)),
            };
            match done {
                Ok(true) => {}
                Ok(false) => break,
                // A checkpoint moved the records between plan and read: the next plan finds them.
                Err(Error::StorageUnavailable { reason: "missing", detail }) => {
                    retries += 1;
                    if retries > RETRIES {
                        return Err(Error::StorageUnavailable { reason: "io", detail });
                    }
                }
                // What was read so far is returned; the next read waits for the others.
                Err(Error::ColdPending(_)) if self.has_progress() => break,
                Err(e) => return Err(e),
            }
            debug_assert!(self.at >= before);
        }
        Ok(())
    }

    fn has_progress(&self) -> bool {
        self.at > self.start || self.out.tombstone.is_some() || !self.out.slots.is_empty()
    }

    /// Whether another record may be returned.
    fn has_capacity(&self) -> bool {
        self.out.slots.len() < self.req.limit
            && (self.out.slots.is_empty() || self.bytes < self.req.max_bytes)
    }

    /// Whether only the seqs are wanted, and no filter looks into the records.
    fn only_seqs(&self) -> bool {
        self.req.only_seqs && !self.skip_nodes
    }

    fn left(&self) -> usize {
        self.req.max_bytes.saturating_sub(self.bytes)
    }

    fn finish(mut self) -> Result<ReadBatch> {
        let out = &mut self.out;
        out.next_from_seq = self.at;
        out.caught_up = self.at >= out.head_seq;
        self.ctx.base().metrics.read_records.add(out.slots.len() as u64);
        self.ctx.base().metrics.read_bytes.add(self.bytes as u64);
        let next = (self.at + 1).max(self.expired.map_or(0, |e| e.below));
        if !self.out.caught_up
            && self.reads == Reads::ForClient
            && let Some((records, first)) =
                lag::unread(self.ctx.base(), self.topic, next, self.out.head_seq)?
        {
            self.out.lag = records;
            if !self.req.only_seqs {
                self.out.lag_ms = age(self.ctx.base(), self.topic, first)?;
            }
        }
        Ok(self.out)
    }
}

fn missing(what: &str) -> Error {
    Error::StorageUnavailable { reason: "missing", detail: format!("{what} is gone") }
}

/// Turns a missing file into the error that makes the read plan again.
fn gone(e: StorageError) -> Error {
    match e {
        StorageError::Missing { what } => missing(&what),
        e => e.into(),
    }
}
