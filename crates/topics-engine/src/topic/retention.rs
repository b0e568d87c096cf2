//! Caps and expiry: the floor that a topic must have.
//!
//! The eviction of a cap is decided with the write that causes it, and logged in its batch. Expiry
//! follows the clock: a read computes the expired records, the sweep logs the floor.

mod caps;

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::format::record::{Body, EvictWatermark};
use topics_storage::segment::{AttrOrder, SegmentMeta};
use topics_storage::wal::Level;

pub(crate) use self::caps::{Caps, Eviction, evict_to_fit};
use super::exclusive::ExclusiveGuard;
use super::load::{self, Hints, Loader, Need};
use super::state::index::{IndexSpan, Unknown};
use super::state::queue::RemovalReason;
use super::state::{Evicted, State};
use super::write::append_state::apply_level;
use super::write::pending_batch::{Frames, Order, PendingBatch, Undo};
use super::{Life, Topic};
use crate::ctx::Wait;
use crate::topic::events::{Base, Ctx};
use crate::types::config::{TopicConfig, TopicType};
use crate::types::error::Result;

/// The expired records of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expired {
    /// Every record below was committed too long ago.
    pub below: u64,
    /// The seq after the last live one of them.
    pub floor: u64,
}

/// What must be read before expired records are known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lookup {
    /// The first seq of this segment whose ts is at least the cutoff.
    Seek(SegmentMeta),
    Dead(u64),
}

/// The expired records of a topic, committed before `cutoff`. `seek` is the answer to [`Lookup::Seek`]:
/// file number and seq.
pub(crate) fn expired(
    state: &State,
    cutoff: u64,
    seek: Option<(u64, u64)>,
) -> std::result::Result<Option<Expired>, Lookup> {
    let from = state.range.earliest;
    if state.live.count == 0
        || (state.retention.oldest.0 == from && state.retention.oldest.1 >= cutoff)
    {
        return Ok(None);
    }
    let below = first_fresh(state, from, cutoff, seek)?;
    if below <= from {
        return Ok(None);
    }
    let last = state.index.prev_live(below - 1, from).map_err(|Unknown(no)| Lookup::Dead(no))?;
    Ok(last.map(|last| Expired { below, floor: last + 1 }))
}

fn first_fresh(
    state: &State,
    from: u64,
    cutoff: u64,
    seek: Option<(u64, u64)>,
) -> std::result::Result<u64, Lookup> {
    for part in state.index.parts_from(from) {
        match part {
            IndexSpan::Seg(seg) if seg.live_count == 0 || seg.meta.last_ts < cutoff => {}
            IndexSpan::Seg(seg) if seg.meta.first_ts >= cutoff => return Ok(seg.meta.first_seq),
            IndexSpan::Seg(seg) => {
                return match seek.filter(|(no, _)| *no == seg.meta.file_no) {
                    Some((_, seq)) => Ok(seq),
                    None => Err(Lookup::Seek(seg.meta)),
                };
            }
            IndexSpan::Run(run) if run.entries.back().is_some_and(|e| e.ts >= cutoff) => {
                return Ok(run.first + run.entries.partition_point(|e| e.ts < cutoff) as u64);
            }
            IndexSpan::Run(_) => {}
        }
    }
    Ok(state.range.indexed_to + 1)
}

/// The commit time before which records of this topic have expired; `None` without a TTL.
pub(crate) fn cutoff(base: &Base, config: &TopicConfig) -> Option<u64> {
    match config.ttl_ms {
        0 => None,
        ttl => base.time.steady().checked_sub(ttl),
    }
}

/// Calls `f` under the state lock with the expired records. Reads what that needs without the lock.
pub(crate) fn with_expired<T>(
    base: &Base,
    topic: &Topic,
    mut f: impl FnMut(&State, Option<Expired>) -> T,
) -> Result<T> {
    let mut seek = None;
    loop {
        let lookup = {
            let state = topic.state.read();
            let Some(cutoff) = cutoff(base, &state.config) else { return Ok(f(&state, None)) };
            match expired(&state, cutoff, seek) {
                Ok(found) => return Ok(f(&state, found)),
                Err(lookup) => (lookup, cutoff),
            }
        };
        let loader = Loader::without_hints(&base.segments, topic.key);
        match lookup {
            (Lookup::Dead(file_no), _) => load::provide(base, topic, &Need::Dead(file_no))?,
            (Lookup::Seek(meta), cutoff) => {
                let segment = loader.segment(&meta);
                let found = segment.seek_ts(cutoff).and_then(|(seq, _)| {
                    Ok((seq, segment.entries(seq, seq)?.first().map_or(0, |e| e.ts)))
                });
                let Some((seq, oldest)) = topic.unless_gone(&meta, found)? else { continue };
                seek = Some((meta.file_no, seq));
                topic.state.write().retention.oldest = (seq, oldest);
            }
        }
    }
}

/// Removes expired records before a write to a topic with a cap, so that they do not count. A caller
/// that must not wait skips this while batches are pending.
pub(crate) fn expire_before_write(ctx: &Arc<Ctx>, topic: &Arc<Topic>, wait: Wait) -> Result<()> {
    let capped = {
        let a = topic.append.lock();
        a.config.ttl_ms > 0 && (a.config.cap_records > 0 || a.config.cap_bytes > 0)
    };
    if capped && (wait != Wait::No || topic.quiet()) {
        expire(ctx, topic)?;
    }
    Ok(())
}

/// Logs the floor of expired records; returns whether there were any. On return the topic's counts are
/// exact.
pub(crate) fn expire(ctx: &Arc<Ctx>, topic: &Arc<Topic>) -> Result<bool> {
    if topic.life() != Life::Live || !with_expired(ctx.base(), topic, |_, found| found.is_some())? {
        return Ok(false);
    }
    let config = topic.state.read().config.clone();
    let mut upto = u64::MAX;
    if config.kind == TopicType::Queue {
        let jobs = expired_jobs(ctx.base(), topic)?;
        ctx.base().host.jobs_expire(topic, &jobs)?;
        // Jobs that expired since were not moved to the dead-letter topic yet.
        upto = jobs.last().map_or(0, |seq| seq + 1);
    }
    let capped = config.cap_records > 0 || config.cap_bytes > 0;
    let exclusive = if capped { Some(topic.exclusive(ctx)?) } else { None };
    log_expired(ctx, topic, exclusive.as_ref(), upto)
}

/// The expired live records.
fn expired_jobs(base: &Base, topic: &Topic) -> Result<Vec<u64>> {
    loop {
        let found = with_expired(base, topic, |state, found| {
            let mut seqs = Vec::new();
            let (mut at, below) = (state.range.earliest, found.map_or(0, |e| e.below));
            while at < below {
                match state.index.next_live(at)?.filter(|s| *s < below) {
                    Some(seq) => seqs.push(seq),
                    None => break,
                }
                at = seqs.last().map_or(below, |s| s + 1);
            }
            Ok::<_, Unknown>(seqs)
        })?;
        match found {
            Ok(seqs) => return Ok(seqs),
            Err(unknown) => load::provide(base, topic, &unknown.into())?,
        }
    }
}

/// Logs the floor of expired records below `upto`; `exclusive` if the caller has the topic exclusively.
pub(crate) fn log_expired(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    exclusive: Option<&ExclusiveGuard>,
    upto: u64,
) -> Result<bool> {
    loop {
        let (found, structure, cut) = with_expired(ctx.base(), topic, |state, found| {
            let found = found.map(|e| Expired { floor: e.floor.min(upto), ..e });
            let found = found.filter(|e| e.floor > state.range.earliest);
            let cut = found.and_then(|e| state.cut_by(e.floor));
            (found, state.checkpoint.structure, cut)
        })?;
        let Some(found) = found else { return Ok(false) };
        let mut hints = Hints::default();
        if let Some((meta, from)) = cut {
            if topic.state.read().unknown_dead(meta.file_no) {
                load::provide(ctx.base(), topic, &Need::Dead(meta.file_no))?;
            }
            let loader = Loader::without_hints(&ctx.base().segments, topic.key);
            let window = loader.window(&meta, from, found.floor - 1);
            let Some(window) = topic.unless_gone(&meta, window)? else { continue };
            hints.windows.push(window);
        }
        let mut body = Vec::new();
        let reason = Evicted::TTL.code();
        EvictWatermark { evict_floor: found.floor, reason }.encode_frame(
            &mut body,
            topic.id(),
            0,
            0,
        );
        let mut a = match exclusive {
            Some(exclusive) => topic.admit_exclusive(ctx, body.len(), Wait::Bounded, exclusive)?,
            None => topic.admit(ctx, body.len(), Wait::Bounded)?,
        };
        if a.closed {
            return Ok(false);
        }
        if topic.state.read().checkpoint.structure != structure {
            continue;
        }
        let pending = PendingBatch::plain(ctx, topic, hints, Undo::None);
        let frames = Frames { head: body, ..Frames::default() };
        // The frame concerns applied records only, so it need not wait for a sync. After a pending
        // batch that does, it waits like that batch (I1): a topic applies its frames in log order,
        // because a snapshot reflects all of them up to the last applied one.
        let level = match topic.pending_batches.load(Ordering::Acquire) {
            0 => Level::Written,
            _ => apply_level(a.config.durability),
        };
        let order = Order { ts: ctx.base().time.steady(), level, frees_space: true };
        let (ticket, _) = a.stage(pending, frames, order)?;
        drop(a);
        ctx.wait(ticket, level)?;
        return Ok(true);
    }
}

/// Logs the deletion of records whose own time to live has passed. Returns how many were removed.
pub(crate) fn sweep_records(ctx: &Arc<Ctx>, topic: &Arc<Topic>) -> Result<u64> {
    let now = ctx.base().time.steady();
    let due = due_records(ctx.base(), topic, now)?;
    let mut gone = 0;
    for seqs in due.chunks(10_000) {
        let why = match topic.state.read().config.kind {
            TopicType::Queue => None,
            TopicType::Log => Some(RemovalReason::REQUESTED),
        };
        let why = why.map_or_else(|| ctx.base().host.jobs_expire(topic, seqs), Ok)?;
        gone += super::delete::delete_seqs(ctx, topic, seqs, why)?.0;
    }
    Ok(gone)
}

/// The ascending seqs of live records whose own time to live has passed.
fn due_records(base: &Base, topic: &Topic, now: u64) -> Result<Vec<u64>> {
    let (mut due, segs) = {
        let mut guard = topic.state.write();
        let state = &mut *guard;
        let mut due = Vec::new();
        if let Some(expiries) = &mut state.retention.expiries {
            let later = expiries.split_off(&(now, 0));
            let past = std::mem::replace(expiries, later);
            for (at, seq) in past {
                // Live records stay listed until their deletion is applied.
                if state.index.entry(seq).is_some_and(|e| !e.dead()) {
                    due.push(seq);
                    expiries.insert((at, seq));
                }
            }
        }
        let waiting = |m: &SegmentMeta| m.earliest_expires != 0 && m.earliest_expires < now;
        let segs: Vec<_> = state
            .index
            .segs
            .iter()
            .filter(|s| s.live_count > 0 && waiting(&s.meta))
            .map(|s| s.meta)
            .collect();
        (due, segs)
    };
    for meta in segs {
        let loader = Loader::without_hints(&base.segments, topic.key);
        let table = loader.segment(&meta).attrs();
        // The next sweep checks the segment that replaced it.
        let Some(table) = topic.unless_gone(&meta, table)? else { continue };
        let rows = table.ordered(AttrOrder::Expiry).filter(|r| r.expires_at != 0);
        let mut next = 0;
        let mut hits = Vec::new();
        for row in rows {
            if row.expires_at >= now {
                next = row.expires_at;
                break;
            }
            hits.push(row.seq);
        }
        if topic.state.read().unknown_dead(meta.file_no) {
            load::provide(base, topic, &Need::Dead(meta.file_no))?;
        }
        let mut state = topic.state.write();
        let floor = state.range.floor;
        if let Some(seg) = state.index.seg_numbered(meta.file_no) {
            hits.retain(|s| *s >= floor && !seg.is_dead(*s));
            if hits.is_empty() {
                // The segment is due again when its next record expires.
                seg.meta.earliest_expires = next;
            }
            due.append(&mut hits);
        }
    }
    due.sort_unstable();
    Ok(due)
}

impl State {
    /// The segment that a floor cuts in two, and the first of its records that the floor removes.
    pub(crate) fn cut_by(&self, floor: u64) -> Option<(SegmentMeta, u64)> {
        let seg = self.index.seg_of(floor)?;
        (seg.meta.first_seq < floor && seg.live_count > 0)
            .then(|| (seg.meta, seg.meta.first_seq.max(self.range.floor)))
    }
}
