//! The position where a read begins: cursor, tombstone and bound; cursors by seq and by time.

use crate::topic::Topic;
use crate::topic::events::{Base, Ctx};
use crate::topic::retention::Expired;
use crate::topic::state::index::{Entry, Place, Unknown};
use crate::topic::state::{Evicted, State};
use crate::types::api::{Gap, GapReason, ReadFrom, ReadRequest, Sought};
use crate::types::error::Result;

/// The position of a read after its tombstone.
pub(crate) struct Position {
    pub at: u64,
    pub tombstone: Option<(u64, u64, GapReason)>,
    pub bound: u64,
    pub head: u64,
    pub earliest: u64,
    pub skip_nodes: bool,
    pub expired: Option<Expired>,
}

/// The position where a read begins. `Err`: the dead records of this segment must be loaded first.
pub(crate) fn position(
    topic: &Topic,
    state: &State,
    expired: Option<Expired>,
    req: &ReadRequest,
    synced: Option<u64>,
) -> std::result::Result<Position, u64> {
    let head = topic.gate.head();
    let unknown = |u: Unknown| u.0;
    let fresh = expired.map_or(0, |e| e.below);
    let earliest = match state.index.next_live(state.range.earliest.max(fresh)).map_err(unknown)? {
        Some(seq) => seq.min(head + 1),
        None => head + 1,
    };
    // Records above the head may have been evicted; that is announced when the head has passed them.
    let evict_floor = state.range.evict_floor.max(expired.map_or(0, |e| e.floor)).min(head + 1);
    let evicted = match expired {
        Some(_) if state.range.evict_floor > 1 => state.range.evicted.and(Evicted::TTL),
        Some(_) => Evicted::TTL,
        None => state.range.evicted,
    };
    let mut bound = head.min(synced.map_or(u64::MAX, |lsn| state.synced_to(lsn)));
    let mut announce = true;
    let mut at = match req.from {
        ReadFrom::After(seq) => seq,
        ReadFrom::Earliest => earliest - 1,
        ReadFrom::Tail(n) => state.back(head, n, earliest).map_err(unknown)?,
        ReadFrom::Before { seq, tail } => {
            let last = seq.saturating_sub(1).min(head);
            bound = bound.min(last);
            state.back(last, tail, earliest).map_err(unknown)?
        }
    };
    if !matches!(req.from, ReadFrom::After(_)) {
        announce = false;
    }
    if let Some(upto) = req.upto {
        bound = bound.min(upto);
    }
    let mut tombstone = None;
    let other = req.topic_id.is_some_and(|id| id != topic.id());
    if other || at > head {
        tombstone = Some((1, head, GapReason::Recreated));
        at = earliest - 1;
    } else if announce && at + 1 < evict_floor {
        tombstone = Some((at + 1, evict_floor - 1, evicted.reason()));
        at = evict_floor - 1;
    } else if announce
        && at < head
        && let Some(Gap { to, reason, .. }) = state.gap_from(at + 1).filter(|g| g.from <= at + 1)
    {
        let to = to.min(head);
        tombstone = Some((at + 1, to, reason));
        at = to;
    }
    let skip_nodes = state.config.dedupe_node;
    Ok(Position { at, tombstone, bound, head, earliest, skip_nodes, expired })
}

impl State {
    /// The cursor that has `n` live records behind it up to `last`, none below `earliest`.
    fn back(&self, last: u64, n: u64, earliest: u64) -> std::result::Result<u64, Unknown> {
        let mut at = last + 1;
        for _ in 0..n {
            match self.index.prev_live(at.saturating_sub(1), earliest)? {
                Some(seq) => at = seq,
                None => return Ok(earliest.min(at) - 1),
            }
        }
        Ok(at - 1)
    }

    /// The last seq that is durable when `lsn` is.
    fn synced_to(&self, lsn: u64) -> u64 {
        for run in self.index.runs() {
            match run.place {
                Place::Memory { .. } => return run.first - 1,
                Place::File { .. } => {
                    let n = run.entries.partition_point(|e| run.lsn + u64::from(e.lsn) <= lsn);
                    if n < run.entries.len() {
                        return run.first + n as u64 - 1;
                    }
                }
            }
        }
        u64::MAX
    }
}

/// The last seq up to which every record is durable.
pub(crate) fn synced_seq(ctx: &Ctx, topic: &Topic) -> Result<u64> {
    topic.check_sound()?;
    let synced = ctx.wal.positions(ctx.shard(topic.id())).synced;
    let head = topic.gate.head();
    Ok(topic.state.read().synced_to(synced).min(head))
}

/// The cursor just before the first record at or after `ts`.
pub(crate) fn seek(base: &Base, topic: &Topic, ts: u64) -> Result<Sought> {
    topic.check_sound()?;
    let head = topic.gate.head();
    let mut looked = 0;
    let mut before = |e: &Entry| {
        looked += 1;
        e.ts < ts
    };
    let found = {
        let state = topic.state.read();
        let (segs, runs) = (&state.index.segs, state.index.runs());
        match segs.get(segs.partition_point(|s| s.meta.last_ts < ts)) {
            Some(seg) => Err(seg.meta),
            None => Ok(runs
                .iter()
                .find(|r| r.entries.back().is_some_and(|e| !before(e)))
                .map_or(state.range.indexed_to + 1, |r| {
                    r.first + r.entries.partition_point(&mut before) as u64
                })),
        }
    };
    let (seq, records_scanned) = match found {
        Ok(seq) => (seq, looked),
        Err(meta) => base.segments.segment(topic.key, meta).seek_ts(ts)?,
    };
    let earliest = topic.state.read().range.earliest;
    Ok(Sought { seq: seq.max(earliest).saturating_sub(1).min(head), records_scanned })
}
