//! The applied state of a topic: the effect of all frames that its class calls committed.

pub(crate) mod dedupe;
mod gaps;
pub(crate) mod index;
pub(crate) mod queue;
pub(crate) mod tags;

use std::collections::BTreeSet;
use std::sync::Arc;

use topics_storage::format::record::{Body, EvictWatermark};
use topics_storage::segment::SegmentMeta;
use topics_storage::snapshot::ReplayPos;

use self::dedupe::Dedupe;
use self::index::{Dead, Dirty, Entry, Index, Unknown};
use self::queue::Queue;
use self::tags::Tags;
use super::cursors::Consumers;
use super::load::Window;
use crate::types::api::{Durability, Gap, GapReason};
use crate::types::config::TopicConfig;

/// Why records below the evict floor were removed: caps, expiry, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicted(u8);

impl Evicted {
    pub(crate) const CAP: Self = Self(1);
    pub(crate) const TTL: Self = Self(2);

    /// The union of both reasons.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Decodes the number in a frame or snapshot.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        (code <= 3).then_some(Self(code))
    }

    pub(crate) fn code(self) -> u8 {
        self.0
    }

    /// The reason on a tombstone.
    pub(crate) fn reason(self) -> GapReason {
        match self.0 {
            2 => GapReason::Ttl,
            3 => GapReason::Mixed,
            _ => GapReason::Cap,
        }
    }
}

/// A topic's part of the engine's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub resident: u64,
    pub bytes: u64,
}

/// Changes since a checkpoint planned its copy of the resident records.
#[derive(Debug, Default)]
pub(crate) struct SincePlan {
    /// Lsn of the first delete.
    pub first_delete: Option<u64>,
}

/// The applied state.
#[derive(Debug)]
pub(crate) struct State {
    pub config: Arc<TopicConfig>,
    /// Every seq up to here is a record, in a gap, or below the floor.
    pub indexed_to: u64,
    /// No record below is live or in the index.
    pub floor: u64,
    pub evict_floor: u64,
    pub evicted: Evicted,
    /// The evict floor as the log has it. A floor raised by `ephemeral` records is logged when a logged
    /// frame depends on it.
    pub floor_logged: u64,
    /// The first live seq, or a lower bound of it while `earliest_exact` is false.
    pub earliest: u64,
    pub earliest_exact: bool,
    pub count: u64,
    pub bytes: u64,
    pub last_ts: u64,
    pub last_write_ts: u64,
    /// Logged reservation.
    pub reserved_to: u64,
    /// The synced part of the reservation.
    pub reserved_synced: u64,
    pub gaps: Vec<Gap>,
    pub index: Index,
    pub tags: Option<Box<Tags>>,
    /// The tags of all records from here on are in `tags`.
    pub tags_from: u64,
    /// (expires_at, seq) of resident records.
    pub expiries: Option<BTreeSet<(u64, u64)>>,
    pub dedupe: Option<Box<Dedupe>>,
    /// Leases and other state of jobs; of queues only.
    pub queue: Option<Box<Queue>>,
    /// Stored cursors by consumer.
    pub consumers: Option<Box<Consumers>>,
    /// Sizes of the oldest records of segments, for eviction record by record.
    pub windows: Vec<Arc<Window>>,
    /// Seq and commit time of a record. While it is the first live one, expiry need not search.
    pub oldest: (u64, u64),
    /// Raised when segments are installed or replaced.
    pub structure: u64,
    pub since_plan: Option<Box<SincePlan>>,
    /// The position up to which the snapshot reflects the topic's frames; recovery skips these.
    pub reflected: ReplayPos,
    /// Position of the last frame applied to this topic. Its lsn is valid in its layout only, because
    /// another layout may put the topic on another shard.
    pub applied: ReplayPos,
    /// Whether the topic had a class that does not survive a restart when its last record was written.
    pub volatile: bool,
}

impl State {
    pub(crate) fn new(config: Arc<TopicConfig>) -> Self {
        let volatile = config.durability <= Durability::Memory;
        Self {
            config,
            indexed_to: 0,
            floor: 1,
            evict_floor: 1,
            evicted: Evicted::default(),
            floor_logged: 1,
            earliest: 1,
            earliest_exact: true,
            count: 0,
            bytes: 0,
            last_ts: 0,
            last_write_ts: 0,
            reserved_to: 0,
            reserved_synced: 0,
            gaps: Vec::new(),
            index: Index::default(),
            tags: None,
            tags_from: 1,
            expiries: None,
            dedupe: None,
            queue: None,
            consumers: None,
            windows: Vec::new(),
            oldest: (0, 0),
            structure: 0,
            since_plan: None,
            reflected: ReplayPos::default(),
            applied: ReplayPos::default(),
            volatile,
        }
    }

    /// The lsn of this layout up to which the state reflects the topic's frames. 0 if the last frame is
    /// of an earlier layout: its records are all in segments before the first write of the next one.
    pub(crate) fn applied_in(&self, layout: u64) -> u64 {
        if self.applied.layout == layout { self.applied.lsn } else { 0 }
    }

    /// The head that readers may see. It is never above a synced reservation, except in a class whose
    /// applied records are all synced (I2, I3).
    pub(crate) fn visible(&self) -> u64 {
        match self.config.durability {
            Durability::Fsync => self.indexed_to,
            _ => self.indexed_to.min(self.reserved_synced),
        }
    }

    /// Drops all records of a deleted topic.
    pub(crate) fn empty(&mut self) {
        self.index = Index::default();
        (self.count, self.bytes) = (0, 0);
        (self.tags, self.expiries, self.dedupe) = (None, None, None);
        self.windows = Vec::new();
        (self.queue, self.consumers) = (None, None);
        (self.earliest, self.earliest_exact) = (self.indexed_to + 1, true);
    }

    /// The topic's part of the engine's totals: resident records, live bytes.
    pub(crate) fn usage(&self) -> Usage {
        Usage { resident: self.index.resident(), bytes: self.bytes }
    }

    /// Number and bytes of live records above `head`, which readers do not see yet.
    pub(crate) fn hidden(&self, head: u64) -> (u64, u64) {
        if self.indexed_to <= head {
            return (0, 0);
        }
        let runs = self.index.runs.range(self.index.run_from(head + 1)..);
        let entries = runs.flat_map(|r| r.from(head + 1)).filter(|(_, e)| !e.dead());
        entries.fold((0, 0), |(n, bytes), (_, e)| (n + 1, bytes + e.payload()))
    }

    /// The number of live records in `from..=to`; `from` is at or above `earliest`. `Err`: the dead
    /// records of this segment must be loaded first.
    pub(crate) fn live_in(&self, from: u64, to: u64) -> Result<u64, Unknown> {
        if from > to {
            return Ok(0);
        }
        // Without holes no span is looked at: each seq is a record.
        if self.count + self.earliest == self.indexed_to + 1 {
            return Ok(to + 1 - from);
        }
        self.index.live_in(from, to)
    }

    /// Whether a record below this seq is in the log, or will be.
    pub(crate) fn logged_below(&self, floor: u64) -> bool {
        let segment = self.index.segs.first().is_some_and(|s| s.meta.first_seq < floor);
        let mut runs = self.index.runs.iter().take_while(|r| r.first < floor);
        segment || runs.any(|r| !r.place.ephemeral())
    }

    /// Encodes the evict floor if the log does not have it, for a frame that depends on it.
    pub(crate) fn encode_floor(&self, out: &mut Vec<u8>, topic_id: u64) {
        if self.evict_floor > self.floor_logged {
            let (evict_floor, reason) = (self.evict_floor, self.evicted.code());
            EvictWatermark { evict_floor, reason }.encode_frame(out, topic_id, 0, 0);
        }
    }

    /// Moves `earliest` over dead records, as far as they are loaded.
    pub(crate) fn move_earliest(&mut self) {
        let from = self.earliest.max(self.floor);
        let found = match self.index.next_live(from) {
            Ok(Some(seq)) => (seq, true),
            Ok(None) => (self.indexed_to + 1, true),
            Err(Unknown(file_no)) => {
                let first = self.index.seg_numbered(file_no).map_or(from, |seg| seg.meta.first_seq);
                (from.max(first), false)
            }
        };
        assert!(found.0 >= self.earliest, "I11: earliest_seq went back");
        (self.earliest, self.earliest_exact) = found;
        assert!(self.evict_floor <= self.earliest, "I11: evict_floor above earliest_seq");
    }

    /// Sets the loaded dead records of a segment, plus deletes that its files do not have yet.
    pub(crate) fn set_dead(&mut self, file_no: u64, dead: Dead) {
        if let Some(seg) = self.index.seg_numbered(file_no)
            && !seg.dead.known()
        {
            seg.dead = dead;
            if let Some(dirty) = &seg.dirty {
                seg.dead =
                    std::mem::replace(&mut seg.dead, Dead::None).with(dirty.sizes.keys().copied());
            }
            if !self.earliest_exact {
                self.move_earliest();
            }
        }
    }

    /// Subtracts a live record from the counts.
    fn uncount(&mut self, payload: u64) {
        assert!(self.count > 0 && self.bytes >= payload, "I4: live counts below zero");
        self.count -= 1;
        self.bytes -= payload;
    }

    /// Marks a record deleted by the frame `lsn` (0: lost before it was logged), if it is live. `size` tells the payload bytes of one in a segment.
    pub(crate) fn kill(&mut self, seq: u64, lsn: u64, size: impl FnOnce() -> u32) -> bool {
        if seq < self.floor {
            return false;
        }
        let at = self.index.seg_from(seq);
        let seg = self.index.segs.get_mut(at).filter(|s| s.meta.contains(seq));
        if let Some(seg) = seg {
            let offset = seg.offset(seq);
            if seg.dead.contains(offset) {
                return false;
            }
            let size = size();
            let mut dead = match &mut seg.dead {
                Dead::Some(dead) => std::mem::take(dead),
                _ => Arc::default(),
            };
            Arc::make_mut(&mut dead).insert(offset);
            seg.dead = Dead::Some(dead);
            seg.live_count -= 1;
            seg.live_bytes -= u64::from(size);
            let dirty = seg
                .dirty
                .get_or_insert_with(|| Box::new(Dirty { first_lsn: lsn, ..Dirty::default() }));
            dirty.first_lsn = dirty.first_lsn.min(lsn);
            dirty.sizes.insert(offset, size);
            self.uncount(u64::from(size));
        } else {
            let Some(entry) = self.index.kill(seq) else { return false };
            self.uncount(entry.payload());
        }
        if let Some(since) = self.since_plan.as_mut().filter(|_| lsn > 0) {
            since.first_delete.get_or_insert(lsn);
        }
        true
    }

    /// Drops all records below `floor`. `sizes` returns the payload bytes of the records `from..floor`
    /// of the segment that the floor cuts in two, whose dead records must be loaded. Returns how many
    /// dropped records were live.
    pub(crate) fn raise_floor<E>(
        &mut self,
        floor: u64,
        sizes: impl FnOnce(&SegmentMeta, u64, u64) -> Result<Vec<u32>, E>,
    ) -> Result<u64, E> {
        if floor <= self.floor {
            return Ok(0);
        }
        let (old, before) = (self.floor, self.count);
        let whole = self.index.seg_from(floor);
        let cut =
            self.index.segs.get(whole).filter(|s| s.meta.first_seq < floor && s.live_count > 0);
        let cut_sizes = match cut {
            Some(s) => {
                let from = s.meta.first_seq.max(old);
                Some((from, sizes(&s.meta, from, floor - 1)?))
            }
            None => None,
        };
        self.floor = floor;
        self.indexed_to = self.indexed_to.max(floor - 1);
        for seg in self.index.segs.drain(..whole) {
            self.count -= seg.live_count;
            self.bytes -= seg.live_bytes;
        }
        if let Some(seg) = self.index.segs.first_mut()
            && seg.meta.first_seq < floor
        {
            if let Some((from, sizes)) = cut_sizes {
                for (seq, size) in (from..floor).zip(sizes) {
                    if !seg.is_dead(seq) {
                        seg.live_count -= 1;
                        seg.live_bytes -= u64::from(size);
                        self.count -= 1;
                        self.bytes -= u64::from(size);
                    }
                }
            }
            let offset = seg.offset(floor.min(seg.meta.last_seq + 1));
            if let Some(dirty) = &mut seg.dirty {
                dirty.sizes = dirty.sizes.split_off(&offset);
                if dirty.sizes.is_empty() {
                    seg.dirty = None;
                }
            }
        }
        let (mut count, mut bytes, mut dropped) = (0, 0, 0);
        self.index.drop_below(floor, |_, e: &Entry| {
            dropped += 1;
            if !e.dead() {
                count += 1;
                bytes += e.payload();
            }
        });
        self.count -= count;
        self.bytes -= bytes;
        if let Some(tags) = &mut self.tags {
            tags.dropped(dropped, floor);
        }
        self.move_earliest();
        Ok(before - self.count)
    }

    /// Raises the evict floor: records below were evicted, or removed before.
    pub(crate) fn raise_evict_floor(&mut self, to: u64, why: Evicted) {
        if to <= self.evict_floor {
            return;
        }
        self.evict_floor = to;
        self.evicted = self.evicted.and(why);
        self.gaps.retain(|g| g.to >= to);
        if let Some(g) = self.gaps.first_mut() {
            g.from = g.from.max(to);
        }
        self.earliest = self.earliest.max(to);
        self.move_earliest();
    }
}

#[cfg(test)]
mod tests;
