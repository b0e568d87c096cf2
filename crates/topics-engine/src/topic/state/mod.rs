//! The applied state of a topic: the effect of all frames that its class calls committed.
//!
//! | part | holds |
//! |---|---|
//! | `range` | which seqs exist, and how much of them is live |
//! | `checkpoint` | what checkpoints have reached |
//! | `index` | where the records are |
//! | `gaps` | seqs without a record |
//! | `tags`, `dedupe` | tags and idempotency keys of records |
//! | `queue` | leases and other state of jobs |

mod checkpoint;
pub(crate) mod dedupe;
mod gaps;
pub(crate) mod index;
pub(crate) mod queue;
mod range;
pub(crate) mod tags;

use std::collections::BTreeSet;
use std::sync::Arc;

use topics_storage::segment::SegmentMeta;

pub(crate) use self::checkpoint::{CheckpointMarks, SincePlan};
use self::dedupe::Dedupe;
use self::index::{Dead, Dirty, Entry, Index, Unknown};
use self::queue::Queue;
pub(crate) use self::range::{Evicted, LiveRecords, SeqRange};
use self::tags::Tags;
use super::cursors::Consumers;
use super::load::Window;
use crate::types::api::{Durability, Gap};
use crate::types::config::TopicConfig;

/// A topic's part of the engine's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub resident: u64,
    pub bytes: u64,
}

/// The applied state.
#[derive(Debug)]
pub(crate) struct State {
    pub config: Arc<TopicConfig>,
    pub range: SeqRange,
    pub live: LiveRecords,
    pub reservation: Reservation,
    pub checkpoint: CheckpointMarks,
    pub retention: Retention,
    pub last_ts: u64,
    pub last_write_ts: u64,
    pub gaps: Vec<Gap>,
    pub index: Index,
    pub tag_index: TagIndex,
    pub dedupe: Option<Box<Dedupe>>,
    /// Leases and other state of jobs; of queues only.
    pub queue: Option<Box<Queue>>,
    /// Stored cursors by consumer.
    pub consumers: Option<Box<Consumers>>,
    /// Whether the topic had a class that does not survive a restart when its last record was written.
    pub volatile: bool,
}

/// The seqs reserved in the log: no record is visible above a synced reservation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reservation {
    /// The last seq of the logged reservation.
    pub to: u64,
    /// The last seq of its synced part.
    pub synced: u64,
}

/// The tags of resident records.
#[derive(Debug)]
pub(crate) struct TagIndex {
    pub tags: Option<Box<Tags>>,
    /// The tags of all records from here on are in `tags`.
    pub from: u64,
}

/// What eviction and expiry know ahead.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    /// (expires_at, seq) of resident records.
    pub expiries: Option<BTreeSet<(u64, u64)>>,
    /// Sizes of the oldest records of segments, for eviction record by record.
    pub windows: Vec<Arc<Window>>,
    /// Seq and commit time of a record. While it is the first live one, expiry need not search.
    pub oldest: (u64, u64),
}

impl State {
    pub(crate) fn new(config: Arc<TopicConfig>) -> Self {
        let volatile = config.durability <= Durability::Memory;
        Self {
            config,
            range: SeqRange::default(),
            live: LiveRecords::default(),
            reservation: Reservation::default(),
            checkpoint: CheckpointMarks::default(),
            retention: Retention::default(),
            last_ts: 0,
            last_write_ts: 0,
            gaps: Vec::new(),
            index: Index::default(),
            tag_index: TagIndex { tags: None, from: 1 },
            dedupe: None,
            queue: None,
            consumers: None,
            volatile,
        }
    }

    /// The head that readers may see. It is never above a synced reservation, except in a class whose
    /// applied records are all synced (I2, I3).
    pub(crate) fn visible(&self) -> u64 {
        match self.config.durability {
            Durability::Fsync => self.range.indexed_to,
            _ => self.range.indexed_to.min(self.reservation.synced),
        }
    }

    /// Drops all records of a deleted topic.
    pub(crate) fn empty(&mut self) {
        self.index = Index::default();
        self.live = LiveRecords::default();
        (self.tag_index.tags, self.retention.expiries, self.dedupe) = (None, None, None);
        self.retention.windows = Vec::new();
        (self.queue, self.consumers) = (None, None);
        (self.range.earliest, self.range.earliest_exact) = (self.range.indexed_to + 1, true);
    }

    /// The topic's part of the engine's totals: resident records, live bytes.
    pub(crate) fn usage(&self) -> Usage {
        Usage { resident: self.index.resident(), bytes: self.live.bytes }
    }

    /// Number and bytes of live records above `head`, which readers do not see yet.
    pub(crate) fn hidden(&self, head: u64) -> (u64, u64) {
        if self.range.indexed_to <= head {
            return (0, 0);
        }
        let runs = self.index.runs().range(self.index.run_from(head + 1)..);
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
        if self.live.count + self.range.earliest == self.range.indexed_to + 1 {
            return Ok(to + 1 - from);
        }
        self.index.live_in(from, to)
    }

    /// Whether a record below this seq is in the log, or will be.
    pub(crate) fn logged_below(&self, floor: u64) -> bool {
        let segment = self.index.segs.first().is_some_and(|s| s.meta.first_seq < floor);
        let mut runs = self.index.runs().iter().take_while(|r| r.first < floor);
        segment || runs.any(|r| !r.place.ephemeral())
    }

    /// Moves `earliest` over dead records, as far as they are loaded.
    pub(crate) fn move_earliest(&mut self) {
        let from = self.range.earliest.max(self.range.floor);
        let found = match self.index.next_live(from) {
            Ok(Some(seq)) => (seq, true),
            Ok(None) => (self.range.indexed_to + 1, true),
            Err(Unknown(file_no)) => {
                let first = self.index.seg_numbered(file_no).map_or(from, |seg| seg.meta.first_seq);
                (from.max(first), false)
            }
        };
        self.range.set_earliest(found);
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
            if !self.range.earliest_exact {
                self.move_earliest();
            }
        }
    }

    /// Marks a record deleted by the frame `lsn` (0: lost before it was logged), if it is live. `size` tells the payload bytes of one in a segment.
    pub(crate) fn kill(&mut self, seq: u64, lsn: u64, size: impl FnOnce() -> u32) -> bool {
        if seq < self.range.floor {
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
            self.live.subtract(1, u64::from(size));
        } else {
            let Some(entry) = self.index.kill(seq) else { return false };
            self.live.subtract(1, entry.payload());
        }
        if let Some(since) = self.checkpoint.since_plan.as_mut().filter(|_| lsn > 0) {
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
        if floor <= self.range.floor {
            return Ok(0);
        }
        let (old, before) = (self.range.floor, self.live.count);
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
        self.range.floor = floor;
        self.range.indexed_to = self.range.indexed_to.max(floor - 1);
        for seg in self.index.segs.drain(..whole) {
            self.live.subtract(seg.live_count, seg.live_bytes);
        }
        if let Some(seg) = self.index.segs.first_mut()
            && seg.meta.first_seq < floor
        {
            if let Some((from, sizes)) = cut_sizes {
                for (seq, size) in (from..floor).zip(sizes) {
                    if !seg.is_dead(seq) {
                        seg.live_count -= 1;
                        seg.live_bytes -= u64::from(size);
                        self.live.subtract(1, u64::from(size));
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
        self.live.subtract(count, bytes);
        if let Some(tags) = &mut self.tag_index.tags {
            tags.dropped(dropped, floor);
        }
        self.move_earliest();
        Ok(before - self.live.count)
    }

    /// Raises the evict floor: records below were evicted, or removed before.
    pub(crate) fn raise_evict_floor(&mut self, to: u64, why: Evicted) {
        if !self.range.raise_evict_floor(to, why) {
            return;
        }
        self.gaps.retain(|g| g.to >= to);
        if let Some(g) = self.gaps.first_mut() {
            g.from = g.from.max(to);
        }
        self.move_earliest();
    }
}

#[cfg(test)]
mod tests;
