//! Removes records: below a raised floor, by a delete, or of a failed write.

use topics_storage::format::record;
use topics_storage::segment::TagMatch;
use topics_storage::snapshot::ReplayPos;

use crate::topic::load::Loader;
use crate::topic::state::State;
use crate::topic::state::index::Dead;
use crate::topic::state::queue::RemovalReason;
use crate::types::api::{Gap, GapReason, TopicMatch};
use crate::types::config::TopicType;
use crate::types::error::Result;

impl State {
    /// Counts jobs that a frame removed.
    pub(crate) fn tally(&mut self, n: u64, why: RemovalReason, here: ReplayPos) {
        if n > 0 && why != RemovalReason::REQUESTED && self.config.kind == TopicType::Queue {
            self.queue.get_or_insert_default().tally.count(n, why, here);
        }
    }

    /// Raises the floor; makes sure of what that needs to know about the segment that it cuts.
    pub(crate) fn apply_floor(&mut self, floor: u64, loader: &Loader<'_>) -> Result<u64> {
        if let Some(queue) = &mut self.queue {
            queue.forget_below(floor);
        }
        if floor > self.range.floor
            && let Some(seg) = self.index.seg_of(floor)
            && seg.meta.first_seq < floor
            && !seg.dead.known()
            && seg.live_count > 0
        {
            let (file_no, dead) = (seg.meta.file_no, loader.dead(&seg.meta)?);
            self.set_dead(file_no, dead);
        }
        self.raise_floor(floor, |meta, from, to| Ok(loader.sizes(meta, from, to)?))
    }

    pub(crate) fn apply_delete(
        &mut self,
        body: &record::Delete,
        lsn: u64,
        loader: &Loader<'_>,
    ) -> Result<(u64, u64)> {
        let below = body.before_seq.unwrap_or(u64::MAX).min(body.bound.saturating_add(1));
        if body.matching.is_none() && body.seqs.is_empty() {
            return Ok((self.apply_floor(below, loader)?, 0));
        }
        let mut hits: Vec<u64> = Vec::new();
        if let Some((kind, pattern)) = &body.matching {
            let want = TopicMatch::from_record(*kind, pattern);
            hits = self.tagged(want.as_tags(), below - 1, loader)?;
        }
        let scanned = hits.len() as u64;
        for (from, to) in &body.seqs {
            hits.extend((*from).max(self.range.floor)..=(*to).min(below - 1));
        }
        hits.sort_unstable();
        hits.dedup();
        if let Some(queue) = &mut self.queue {
            hits.iter().for_each(|seq| queue.forget(*seq));
        }
        Ok((self.kill_all(&hits, lsn, loader)?, scanned))
    }

    /// The ascending seqs from the floor to `upto` whose tag matches; dead ones may be among them.
    pub(crate) fn tagged(
        &self,
        want: TagMatch<'_>,
        upto: u64,
        loader: &Loader<'_>,
    ) -> Result<Vec<u64>> {
        let mut hits = Vec::new();
        for seg in &self.index.segs {
            if seg.meta.first_seq >= self.tag_index.from || seg.meta.first_seq > upto {
                break;
            }
            if seg.live_count > 0 {
                hits.extend(loader.tag_seqs(&seg.meta, want, upto)?);
            }
        }
        if let Some(tags) = &self.tag_index.tags {
            hits.extend(tags.find(want, self.range.floor, upto));
        }
        hits.sort_unstable();
        hits.dedup();
        let live = hits.partition_point(|s| *s < self.range.floor);
        hits.drain(..live);
        Ok(hits)
    }

    /// Marks these ascending seqs dead; returns how many were live.
    fn kill_all(&mut self, hits: &[u64], lsn: u64, loader: &Loader<'_>) -> Result<u64> {
        let before = self.live.count;
        let mut rest = hits;
        while let Some(first) = rest.first() {
            let Some(seg) = self.index.seg_of(*first) else {
                self.kill(*first, lsn, || 0);
                rest = &rest[1..];
                continue;
            };
            let meta = seg.meta;
            let n = rest.partition_point(|s| *s <= meta.last_seq);
            let (mine, others) = rest.split_at(n);
            rest = others;
            if seg.live_count == 0 {
                continue;
            }
            if !seg.dead.known() {
                let dead = loader.dead(&meta)?;
                self.set_dead(meta.file_no, dead);
            }
            let Some(last) = mine.last() else { continue };
            let sizes = loader.sizes(&meta, *first, *last)?;
            for seq in mine {
                let size = sizes.get((seq - first) as usize).copied().unwrap_or(0);
                self.kill(*seq, lsn, || size);
            }
        }
        self.move_earliest();
        Ok(before - self.live.count)
    }

    /// Removes the live records of a failed write from the index; their seqs become a gap.
    pub(crate) fn lose(&mut self, from: u64, to: u64, reason: GapReason) {
        if self.range.indexed_to < from {
            return;
        }
        for seq in from.max(self.range.floor)..=to.min(self.range.indexed_to) {
            self.kill(seq, 0, || 0);
            if let Some(queue) = &mut self.queue {
                queue.forget(seq);
            }
        }
        self.index.cut_out(from, to);
        self.add_gap(Gap { from, to, reason });
    }

    /// Whether the dead records of the segment with this file number are not loaded.
    pub(crate) fn unknown_dead(&self, file_no: u64) -> bool {
        self.index.segs.iter().any(|s| s.meta.file_no == file_no && matches!(s.dead, Dead::Unknown))
    }
}
