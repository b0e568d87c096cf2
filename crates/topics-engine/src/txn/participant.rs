//! The work of a transaction in one topic: rows, cursors and acks as one batch with a `TxnPart`.
//!
//! A check or a publish has the topic exclusively: a part is applied when it is synced, in every class,
//! and no other frame of the topic may be applied in between.

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::format::attrs::Attrs;
use topics_storage::format::frame::{self, Frame};
use topics_storage::format::record::{self, TxnPart};
use topics_storage::ranges_of;
use topics_storage::wal::{GROUP_HEADROOM, Level, Ticket};

use super::Transactions;
use crate::ctx::Wait;
use crate::topic::events::{Base, Ctx};
use crate::topic::exclusive::ExclusiveGuard;
use crate::topic::load;
use crate::topic::load::Hints;
use crate::topic::write::admit::Admission;
use crate::topic::write::append_state::Halt;
use crate::topic::write::decide::Decision;
use crate::topic::write::part::PartFrames;
use crate::topic::write::pending_batch::{Frames, Order, PendingBatch, Undo};
use crate::topic::write::prepare::Prepared;
use crate::topic::{Life, Topic, delete};
use crate::types::error::{Error, Result};
use crate::types::queue::LeasedJobs;
use crate::{consumer, queue};

/// Encoded rows of one topic, not sealed, after [`GROUP_HEADROOM`] bytes. A write has the same layout, so
/// neither a check nor a publish copies them.
#[derive(Debug, Default)]
pub(crate) struct PartRows {
    records: Vec<u8>,
    count: u64,
    /// Payload bytes.
    bytes: u64,
    /// Whether a row has options that only jobs have.
    jobs: bool,
}

impl PartRows {
    /// No rows, with capacity for `len` bytes of frames.
    pub fn expecting(len: usize) -> Self {
        let mut records = Vec::new();
        // If the capacity cannot be reserved, the buffer grows with the rows.
        if records.try_reserve_exact(GROUP_HEADROOM + len).is_ok() {
            records.resize(GROUP_HEADROOM, 0);
        }
        Self { records, ..Self::default() }
    }

    /// Adds a row: its frame, the frame's bytes, sealed or not, and its inner hash.
    pub fn add(&mut self, f: &Frame<'_>, bytes: &[u8], inner: u64) {
        if self.records.is_empty() {
            self.records.resize(GROUP_HEADROOM, 0);
        }
        let content = bytes.len() - frame::FRAME_TRAILER;
        self.records.extend_from_slice(&bytes[..content]);
        self.records.extend_from_slice(&inner.to_le_bytes());
        self.count += 1;
        self.bytes += f.payload_bytes();
        let attrs = Attrs::decode(f.attrs).unwrap_or_default();
        self.jobs |= attrs.visible_at.is_some() || attrs.lane.is_some() || attrs.group.is_some();
    }

    /// Number of rows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of the frames.
    pub fn len(&self) -> usize {
        self.frames().len()
    }

    fn frames(&self) -> &[u8] {
        self.records.get(GROUP_HEADROOM..).unwrap_or_default()
    }
}

/// The content of a part.
#[derive(Debug, Default)]
pub(crate) struct TxnParticipant {
    /// The rows that it appends.
    pub rows: PartRows,
    /// Jobs that are acked.
    pub acks: Vec<u64>,
    /// Consumers and their new cursors.
    pub cursors: Vec<(String, u64)>,
}

/// The write of encoded rows.
fn prepared(base: &Base, topic: &Topic, rows: PartRows) -> Prepared {
    Prepared {
        topic: topic.name.clone(),
        records: rows.records,
        count: rows.count,
        bytes: rows.bytes,
        key: None,
        expect_head: None,
        waited: true,
        sync: true,
        create: false,
        config: None,
        jobs: rows.jobs,
        is_pinned: false,
        patient: true,
        began: base.time.mono_ns(),
        throttled_ns: 0,
        forward: None,
        part: None,
    }
}

fn gone(topic: &Topic) -> Error {
    Error::TopicNotFound(topic.name.to_string())
}

/// The conditions of a part.
pub(crate) struct Conditions<'a> {
    pub expect_head: Option<u64>,
    /// Consumers and their new cursors.
    pub cursors: &'a [(String, u64)],
    /// Consumers, and the fences of the readers that commit.
    pub fences: &'a [(String, u64)],
    pub acks: &'a [LeasedJobs<'a>],
}

/// Checks every condition of a part. Returns the jobs that it acks: their leases do not expire until the
/// part is applied or [`release_acks`] is called.
pub(crate) fn check_part(
    txns: &Arc<Transactions>,
    topic: &Arc<Topic>,
    _alone: &ExclusiveGuard,
    rows: &mut PartRows,
    c: &Conditions<'_>,
) -> Result<Vec<u64>> {
    topic.check_sound()?;
    if topic.append.lock().closed || topic.life() != Life::Live {
        return Err(gone(topic));
    }
    for (name, seq) in c.cursors {
        consumer::check_cursor(topic, name, *seq)?;
    }
    for (name, fence) in c.fences {
        consumer::check_fence(topic, name, *fence)?;
    }
    if rows.count > 0 {
        check_limits(txns.base(), rows)?;
        let mut p = prepared(txns.base(), topic, std::mem::take(rows));
        p.expect_head = c.expect_head;
        let fits = check_write(txns, topic, &mut p);
        *rows = PartRows { records: p.records, count: p.count, bytes: p.bytes, jobs: p.jobs };
        fits?;
    } else if let Some(expected) = c.expect_head {
        let actual = topic.append.lock().head();
        if expected != actual {
            let topic = topic.name.to_string();
            return Err(Error::HeadMismatch { topic, expected, actual });
        }
    }
    queue::take_acks(txns.ctx().generation, topic, c.acks)
}

/// Checks whether a write would be accepted now.
fn check_write(txns: &Arc<Transactions>, topic: &Arc<Topic>, p: &mut Prepared) -> Result<()> {
    loop {
        let planned = {
            let mut a = topic.append.lock();
            Decision { ctx: txns.ctx(), topic, p }.plan(&mut a)?.map(drop)
        };
        match planned {
            Ok(()) => return Ok(()),
            Err(need) => load::provide(txns.base(), topic, &need)?,
        }
    }
}

fn check_limits(base: &Base, rows: &PartRows) -> Result<()> {
    let o = &base.options;
    let bounds = [
        (rows.count, o.max_batch_records as u64, "records"),
        (rows.len() as u64, o.max_batch_bytes.saturating_mul(2), "bytes"),
    ];
    match bounds.into_iter().find(|(got, max, _)| got > max) {
        Some((got, max, unit)) => Err(Error::BatchTooLarge { got, max, unit }),
        None => Ok(()),
    }
}

/// Lets the leases of [`check_part`] expire again.
pub(crate) fn release_acks(topic: &Topic, seqs: &[u64]) {
    queue::release_acks(topic, seqs);
}

/// Counts a pending delete, so that no checkpoint changes the topic's segments.
struct Deleting(Arc<Topic>);

impl Deleting {
    fn begin(topic: &Arc<Topic>) -> Self {
        topic.deletes.fetch_add(1, Ordering::AcqRel);
        Self(topic.clone())
    }
}

impl Drop for Deleting {
    fn drop(&mut self) {
        self.0.deletes.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A staged part.
pub(crate) struct Sent {
    topic: Arc<Topic>,
    ticket: Ticket,
    /// The end of the reservation that it logs.
    reserved: u64,
    part: TxnParticipant,
    _deleting: Option<Deleting>,
}

/// Stages a part without checks. `None`: the topic was deleted.
pub(crate) fn publish_part(
    txns: &Arc<Transactions>,
    topic: &Arc<Topic>,
    exclusive: &ExclusiveGuard,
    writer: (&str, u64),
    part: TxnParticipant,
) -> Result<Option<Sent>> {
    let cursors = part.cursors.clone();
    let sent = stage_part(txns, topic, exclusive, writer, part);
    if !matches!(sent, Ok(Some(_))) {
        consumer::unplan_cursors(topic, &cursors);
    }
    sent
}

fn stage_part(
    txns: &Arc<Transactions>,
    topic: &Arc<Topic>,
    exclusive: &ExclusiveGuard,
    writer: (&str, u64),
    mut part: TxnParticipant,
) -> Result<Option<Sent>> {
    topic.check_sound()?;
    part.acks.sort_unstable();
    part.acks.dedup();
    let delete = (!part.acks.is_empty()).then(|| {
        let seqs = ranges_of(part.acks.iter().copied());
        record::Delete { seqs, ..record::Delete::default() }
    });
    let rows = std::mem::take(&mut part.rows);
    let mut p = (rows.count > 0).then(|| prepared(txns.base(), topic, rows));
    loop {
        let (hints, structure) = match &delete {
            Some(body) => delete::plan(txns.base(), topic, body)?,
            None => (Hints::default(), topic.state.read().checkpoint.structure),
        };
        let size = p.as_ref().map_or(0, |p| p.frames().len())
            + 4096
            + part.acks.len() * 20
            + part.cursors.len() * 320;
        let mut a = topic.admit_exclusive(txns.ctx(), size, Wait::Exclusive, exclusive)?;
        if a.closed || topic.life() != Life::Live {
            return Ok(None);
        }
        if topic.state.read().checkpoint.structure != structure {
            continue;
        }
        let deleting = delete.is_some().then(|| Deleting::begin(topic));
        let frames = PartFrames {
            part: TxnPart { writer: writer.0.to_owned(), epoch: writer.1 },
            delete: delete.clone(),
            consumers: consumer::plan_cursors(topic, &part.cursors),
            hints,
        };
        let (ticket, reserved) = match &mut p {
            None => (exclusive_frames(txns.ctx(), topic, &mut a, frames)?, 0),
            Some(p) => {
                p.part = Some(Box::new(frames));
                match (Decision { ctx: txns.ctx(), topic, p }).run(&mut a)? {
                    Ok(d) => (d.ticket.ok_or_else(|| gone(topic))?, d.reserved),
                    Err(Halt::Read(need)) => {
                        drop(a);
                        drop(deleting);
                        load::provide(txns.base(), topic, &need)?;
                        continue;
                    }
                    // An exclusive topic has no pending batch to wait for.
                    Err(Halt::Until(..)) => return Err(gone(topic)),
                }
            }
        };
        let topic = topic.clone();
        return Ok(Some(Sent { topic, ticket, reserved, part, _deleting: deleting }));
    }
}

/// Stages a part without rows.
fn exclusive_frames(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    a: &mut Admission<'_>,
    part: PartFrames,
) -> Result<Ticket> {
    let mut frames = Frames::default();
    part.encode(&mut frames.head, topic, 0, a.head());
    let ts = a.last_ts.max(ctx.base().time.steady());
    let order = Order { ts, level: Level::Synced, frees_space: true };
    let pending = PendingBatch::plain(ctx, topic, part.hints, Undo::None);
    Ok(a.stage(pending, frames, order)?.0)
}

impl Sent {
    /// Waits until the part is durable and visible.
    pub(crate) fn wait(self, ctx: &Ctx) -> Result<()> {
        let topic = &self.topic;
        if let Err(e) = ctx.wait(self.ticket, Level::Synced) {
            consumer::unplan_cursors(topic, &self.part.cursors);
            return Err(e);
        }
        if self.reserved > 0 {
            topic.reservation_synced(self.reserved);
        }
        if !self.part.acks.is_empty() {
            ctx.base().metrics.acked_jobs.add(self.part.acks.len() as u64);
        }
        ctx.base().host.queue_changed(topic.id());
        Ok(())
    }
}
