//! Deletes records: plan without locks → stage with the bound head → apply at the commit.

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::format::record::{self, Body, MatchKind};
use topics_storage::ranges_of;
use topics_storage::segment::{SegmentMeta, TagMatch};
use topics_storage::wal::{Level, Ticket};

use super::exclusive::ExclusiveGuard;
use super::load::{self, Need};
use super::load::{Hints, Loader};
use super::state::queue::RemovalReason;
use super::write::append_state::apply_level;
use super::write::pending_batch::{Frames, Order, PendingBatch, Undo};
use super::{Life, Topic};
use crate::ctx::Wait;
use crate::topic::events::{Base, Ctx};
use crate::types::api::{DeleteRequest, TopicMatch};
use crate::types::error::{Error, Result};

impl TopicMatch {
    /// The match as segments take it.
    pub(crate) fn as_tags(&self) -> TagMatch<'_> {
        match self {
            Self::Eq(tag) => TagMatch::Eq(tag),
            Self::Glob(prefix) => TagMatch::Prefix(prefix),
        }
    }

    /// Whether the match selects a tag.
    pub(crate) fn selects(&self, tag: &[u8]) -> bool {
        match self {
            Self::Eq(want) => !tag.is_empty() && tag == want,
            Self::Glob(prefix) => !tag.is_empty() && tag.starts_with(prefix),
        }
    }

    /// The match of a logged delete.
    pub(crate) fn from_record(kind: MatchKind, pattern: &[u8]) -> Self {
        match kind {
            MatchKind::Eq => Self::Eq(pattern.to_vec()),
            MatchKind::Glob => Self::Glob(pattern.to_vec()),
        }
    }

    fn to_record(&self) -> (MatchKind, Vec<u8>) {
        match self {
            Self::Eq(tag) => (MatchKind::Eq, tag.clone()),
            Self::Glob(prefix) => (MatchKind::Glob, prefix.clone()),
        }
    }
}

/// Deletes records by request. Returns how many were removed, and how many its match found.
pub(crate) fn delete(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    req: &DeleteRequest,
) -> Result<(u64, u64)> {
    if req.before_seq.is_none() && req.matching.is_none() {
        return Err(Error::InvalidRequest("a delete needs before_seq, match, or both".into()));
    }
    if let Some(m) = &req.matching {
        check_match(m, ctx.base().options.max_tag_bytes)?;
    }
    if req.before_seq == Some(0) {
        return Ok((0, 0));
    }
    let body = record::Delete {
        before_seq: req.before_seq,
        matching: req.matching.as_ref().map(TopicMatch::to_record),
        ..record::Delete::default()
    };
    let (pending, _) = run(ctx, topic, body)?;
    Ok((pending.gone(), pending.removed.scanned.load(Ordering::Acquire)))
}

/// The most records that one call deletes by their seqs.
const MAX_SEQS: usize = 1000;

/// Deletes single records, in any order; returns how many went.
pub(crate) fn delete_single(ctx: &Arc<Ctx>, topic: &Arc<Topic>, seqs: &[u64]) -> Result<u64> {
    if seqs.len() > MAX_SEQS {
        let (got, max) = (seqs.len() as u64, MAX_SEQS as u64);
        return Err(Error::BatchTooLarge { got, max, unit: "seqs" });
    }
    let mut seqs = seqs.to_vec();
    seqs.sort_unstable();
    seqs.dedup();
    if seqs.is_empty() {
        ctx.check_open()?;
        return Ok(0);
    }
    delete_seqs(ctx, topic, &seqs, RemovalReason::REQUESTED).map(|(gone, _)| gone)
}

/// Deletes exactly these ascending seqs. Returns how many were removed, and the ticket whose sync makes
/// that durable.
pub(crate) fn delete_seqs(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    seqs: &[u64],
    why: RemovalReason,
) -> Result<(u64, Ticket)> {
    if seqs.is_empty() {
        // Without seqs the frame would mean everything below the head.
        return Err(Error::Internal("a delete of no records".into()));
    }
    let (seqs, why) = (ranges_of(seqs.iter().copied()), why.code());
    let body = record::Delete { seqs, why, ..record::Delete::default() };
    run(ctx, topic, body).map(|(pending, ticket)| (pending.gone(), ticket))
}

fn check_match(m: &TopicMatch, max: usize) -> Result<()> {
    let (TopicMatch::Eq(tag) | TopicMatch::Glob(tag)) = m;
    if tag.len() > max {
        return Err(Error::InvalidRequest(format!(
            "the tag to match is {} bytes, the limit is {max}",
            tag.len()
        )));
    }
    if matches!(m, TopicMatch::Eq(tag) if tag.is_empty()) {
        return Err(Error::InvalidRequest("the tag to match is empty".into()));
    }
    Ok(())
}

/// A staged delete.
pub(crate) struct Staged {
    pub ticket: Ticket,
    /// The level at which the delete is applied.
    pub level: Level,
    pending: Arc<PendingBatch>,
}

/// Stages a delete of these seqs without waiting: `None` when the caller would have to wait.
pub(crate) fn stage_seqs(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    seqs: &[u64],
) -> Result<Option<Staged>> {
    if capped(topic) {
        return Ok(None);
    }
    let mut body =
        record::Delete { seqs: ranges_of(seqs.iter().copied()), ..record::Delete::default() };
    match stage(ctx, topic, &mut body, Wait::No, None) {
        Err(Error::Throttled { limit: "staging_bytes", .. }) => Ok(None),
        outcome => outcome,
    }
}

fn capped(topic: &Topic) -> bool {
    let config = topic.append.lock().config.clone();
    config.cap_records > 0 || config.cap_bytes > 0
}

impl PendingBatch {
    fn gone(&self) -> u64 {
        self.removed.records.load(Ordering::Acquire)
    }
}

fn run(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    mut body: record::Delete,
) -> Result<(Arc<PendingBatch>, Ticket)> {
    ctx.check_open()?;
    // Before the records are looked up, which may wait for the object store.
    ctx.check_writable()?;
    topic.check_sound()?;
    // Writes of a topic with a cap must see exactly the live records, so the delete is exclusive.
    if !capped(topic) {
        match run_once(ctx, topic, &mut body, None) {
            // The delete may have failed only with an earlier write of its topic, which needed more
            // space. It is decided again with no write of its topic before it.
            Err(e) if e.is_shortage() => {}
            outcome => return outcome,
        }
    }
    let exclusive = topic.exclusive(ctx)?;
    run_once(ctx, topic, &mut body, Some(&exclusive))
}

/// Stages a delete and waits for its outcome.
fn run_once(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    body: &mut record::Delete,
    exclusive: Option<&ExclusiveGuard>,
) -> Result<(Arc<PendingBatch>, Ticket)> {
    let staged = stage(ctx, topic, body, Wait::Bounded, exclusive)?;
    let Staged { ticket, level, pending } =
        staged.ok_or_else(|| Error::Internal("a delete that waits was not staged".into()))?;
    ctx.wait(ticket, level)?;
    Ok((pending, ticket))
}

fn stage(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    body: &mut record::Delete,
    wait: Wait,
    exclusive: Option<&ExclusiveGuard>,
) -> Result<Option<Staged>> {
    loop {
        let (hints, structure) = plan(ctx.base(), topic, body)?;
        let bytes = 4096 + body.seqs.len() * 20;
        let mut a = match exclusive {
            Some(exclusive) => topic.admit_exclusive(ctx, bytes, wait, exclusive)?,
            None if wait == Wait::No => match topic.try_admit(ctx, bytes, wait)? {
                Some(a) => a,
                None => return Ok(None),
            },
            None => topic.admit(ctx, bytes, wait)?,
        };
        if a.closed || topic.life() != Life::Live {
            return Err(Error::TopicNotFound(topic.name.to_string()));
        }
        let mut frames = Frames::default();
        {
            let state = topic.state.read();
            if state.checkpoint.structure != structure {
                continue;
            }
            // Evicted records must not turn into deleted ones, which readers are not told of.
            state.range.encode_floor(&mut frames.head, topic.id());
        }
        body.bound = a.head();
        body.encode_frame(&mut frames.head, topic.id(), 0, 0);
        let level = apply_level(a.config.durability);
        let order = Order { ts: a.last_ts.max(ctx.base().time.steady()), level, frees_space: true };
        topic.deletes.fetch_add(1, Ordering::AcqRel);
        let staged = a.stage(PendingBatch::plain(ctx, topic, hints, Undo::Delete), frames, order);
        drop(a);
        let (ticket, pending) = staged.inspect_err(|_| {
            topic.deletes.fetch_sub(1, Ordering::AcqRel);
        })?;
        return Ok(Some(Staged { ticket, level, pending }));
    }
}

/// Reads the data of segments that apply needs for the delete. Valid while the topic has the same
/// segments (`structure`).
pub(crate) fn plan(base: &Base, topic: &Topic, body: &record::Delete) -> Result<(Hints, u64)> {
    loop {
        if let Some(planned) = try_plan(base, topic, body)? {
            return Ok(planned);
        }
    }
}

/// The same; `None` if a segment was removed while it was read.
fn try_plan(base: &Base, topic: &Topic, body: &record::Delete) -> Result<Option<(Hints, u64)>> {
    let loader = Loader::without_hints(&base.segments, topic.key);
    let below = body.before_seq.unwrap_or(u64::MAX);
    if body.matching.is_some() {
        load_active_tags(base, topic)?;
    }
    let (structure, floor, segs, tags_from) = {
        let state = topic.state.read();
        let segs: Vec<SegmentMeta> = state
            .index
            .segs
            .iter()
            .filter(|s| s.live_count > 0 && s.meta.first_seq < below)
            .filter(|s| body.seqs.is_empty() || !listed(&body.seqs, &s.meta).is_empty())
            .map(|s| s.meta)
            .collect();
        (state.checkpoint.structure, state.range.floor, segs, state.tag_index.from)
    };
    let mut hints = Hints::default();
    let floor_only = body.matching.is_none() && body.seqs.is_empty();
    for meta in segs {
        let (from, to) = if floor_only {
            // Only the segment that the new floor cuts is read.
            if !meta.contains(below) || meta.first_seq >= below {
                continue;
            }
            (meta.first_seq.max(floor), below - 1)
        } else {
            let hits = match &body.matching {
                Some((kind, pattern)) if meta.first_seq < tags_from => {
                    let want = TopicMatch::from_record(*kind, pattern);
                    let hits = loader.tag_seqs(&meta, want.as_tags(), below - 1);
                    let Some(hits) = topic.unless_gone(&meta, hits)? else { return Ok(None) };
                    hints.tagged.push((meta.file_no, hits.clone()));
                    hits
                }
                Some((kind, pattern)) => {
                    let want = TopicMatch::from_record(*kind, pattern);
                    let state = topic.state.read();
                    let upto = meta.last_seq.min(below - 1);
                    let tags = state.tag_index.tags.as_ref();
                    tags.map(|t| t.find(want.as_tags(), meta.first_seq, upto)).unwrap_or_default()
                }
                None => listed(&body.seqs, &meta),
            };
            let live = hits.partition_point(|s| *s < floor);
            let (Some(first), Some(last)) = (hits.get(live), hits.last()) else { continue };
            (*first, *last)
        };
        if topic.state.read().unknown_dead(meta.file_no) {
            load::provide(base, topic, &Need::Dead(meta.file_no))?;
        }
        let window = topic.unless_gone(&meta, loader.window(&meta, from, to))?;
        let Some(window) = window else { return Ok(None) };
        hints.windows.push(window);
    }
    Ok(Some((hints, structure)))
}

/// The first and the last seq that the ranges share with a segment.
fn listed(ranges: &[(u64, u64)], meta: &SegmentMeta) -> Vec<u64> {
    let within = |r: &&(u64, u64)| r.1 >= meta.first_seq && r.0 <= meta.last_seq;
    let first = ranges.iter().find(within).map(|r| r.0.max(meta.first_seq));
    let last = ranges.iter().rev().find(within).map(|r| r.1.min(meta.last_seq));
    first.into_iter().chain(last).collect()
}

/// Loads the tags of the active segment, as it was when the engine opened, into memory.
pub(crate) fn load_active_tags(base: &Base, topic: &Topic) -> Result<()> {
    let (meta, tags) = loop {
        let active = {
            let state = topic.state.read();
            let last = state.index.segs.last();
            last.filter(|s| {
                !s.meta.sealed && s.meta.first_seq < state.tag_index.from && s.meta.has_tags
            })
            .map(|s| s.meta)
        };
        let Some(meta) = active else { return Ok(()) };
        let tags = base.segments.segment(topic.key, meta).scan_side();
        if let Some((tags, _)) = topic.unless_gone(&meta, tags)? {
            break (meta, tags);
        }
    };
    let mut state = topic.state.write();
    if meta.first_seq >= state.tag_index.from {
        return Ok(());
    }
    let below = state.tag_index.from;
    let map = state.tag_index.tags.get_or_insert_default();
    for (tag, offsets) in tags {
        let seqs = offsets.into_iter().map(|o| meta.first_seq + u64::from(o));
        map.load(&tag, seqs.filter(|s| *s < below).collect());
    }
    state.tag_index.from = meta.first_seq;
    Ok(())
}
