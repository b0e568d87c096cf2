//! Installs segments in the index: those that a checkpoint wrote, or that replace others.

use roaring::RoaringBitmap;
use topics_storage::segment::SegmentMeta;

use super::{CopyPlan, Install};
use crate::topic::state::index::{Dead, Dirty, Seg};
use crate::topic::state::{SincePlan, State};

impl State {
    pub(crate) fn install(&mut self, done: &Install) {
        let since = self.checkpoint.since_plan.take().unwrap_or_default();
        let upto = done.segments.iter().map(|s| s.meta.last_seq).max().unwrap_or(0);
        for (file_no, del_no) in &done.deletes {
            let written = done.plan.deletes.iter().find(|(m, _)| m.file_no == *file_no);
            if let (Some((_, dead)), Some(seg)) = (written, self.index.seg_numbered(*file_no)) {
                seg.meta.del_no = *del_no;
                seg.written(|offset| dead.contains(offset), &since);
            }
        }
        for s in &done.segments {
            let seg = self.covered(&s.meta, &done.plan, &since);
            let at = self.index.segs.partition_point(|x| x.meta.first_seq < s.meta.first_seq);
            let old = self.index.segs.get(at).is_some_and(|x| x.meta.first_seq == s.meta.first_seq);
            if old {
                self.index.segs.remove(at);
            }
            if s.meta.last_seq >= self.range.floor {
                // Most topics have one segment for a long time.
                if self.index.segs.is_empty() {
                    self.index.segs.reserve_exact(1);
                }
                self.index.segs.insert(at, seg);
            }
        }
        self.index.installed(upto);
        if let Some(expiries) = &mut self.retention.expiries {
            expiries.retain(|(_, seq)| *seq > upto);
        }
        self.cut_tags();
        self.checkpoint.structure += 1;
        self.retention.windows = Vec::new();
        self.range.earliest_exact = false;
        self.move_earliest();
    }

    /// The index entry of a written segment: an existing one extended, or a new one, by resident records.
    fn covered(&self, meta: &SegmentMeta, plan: &CopyPlan, since: &SincePlan) -> Seg {
        let old = self.index.segs.iter().find(|s| s.meta.first_seq == meta.first_seq);
        let mut seg = match old {
            Some(old) => Seg { meta: *meta, ..old.clone() },
            None => {
                Seg { meta: *meta, live_count: 0, live_bytes: 0, dead: Dead::None, dirty: None }
            }
        };
        if let Some(old) = old {
            seg.meta.del_no = old.meta.del_no;
        }
        let from = old.map_or(meta.first_seq, |o| o.meta.last_seq + 1);
        let (mut dead, mut near) = (Vec::new(), 0);
        for run in &plan.runs {
            // Only the entries of this segment, because a round may have copied several.
            let skip = from.saturating_sub(run.first).min(run.count as u64);
            let end = (meta.last_seq + 1).saturating_sub(run.first).min(run.count as u64);
            let mine = run.entries.range(skip as usize..end.max(skip) as usize);
            for (seq, then) in (run.first + skip..).zip(mine) {
                let offset = seg.offset(seq);
                let now = if seq < self.range.floor {
                    None
                } else {
                    self.index.entry_from(seq, &mut near)
                };
                if now.is_some_and(|e| !e.dead()) {
                    seg.live_count += 1;
                    seg.live_bytes += then.payload();
                    continue;
                }
                dead.push(offset);
                if !then.dead() && now.is_some() {
                    // The record was deleted after it was copied.
                    let first_lsn = since.first_delete.unwrap_or(self.checkpoint.applied.lsn);
                    let dirty = seg
                        .dirty
                        .get_or_insert_with(|| Box::new(Dirty { first_lsn, ..Dirty::default() }));
                    dirty.first_lsn = dirty.first_lsn.min(first_lsn);
                    dirty.sizes.insert(offset, then.payload() as u32);
                }
            }
        }
        seg.dead = seg.dead.with(dead);
        seg
    }

    /// Drops the tags of sealed segments from memory; their files have them.
    fn cut_tags(&mut self) {
        let sealed = self.index.segs.iter().rev().find(|s| s.meta.sealed);
        let Some(sealed) = sealed.map(|s| s.meta.last_seq) else { return };
        let first_resident = self.index.runs().front().map_or(u64::MAX, |r| r.first);
        let keep = (sealed + 1).min(first_resident);
        self.tag_index.from = self.tag_index.from.max(sealed + 1);
        if let Some(tags) = &mut self.tag_index.tags {
            tags.cut(keep);
        }
    }

    pub(crate) fn replace(&mut self, old: &[u64], new: SegmentMeta, holes: &RoaringBitmap) -> bool {
        let at = self.index.segs.iter().position(|s| old.first() == Some(&s.meta.file_no));
        let Some(at) = at else { return false };
        let parts = self.index.segs.get(at..at + old.len()).unwrap_or_default();
        if !parts.iter().map(|s| s.meta.file_no).eq(old.iter().copied()) {
            return false;
        }
        let mut seg = Seg {
            meta: new,
            live_count: parts.iter().map(|s| s.live_count).sum(),
            live_bytes: parts.iter().map(|s| s.live_bytes).sum(),
            dead: Dead::None.with(holes.iter()),
            dirty: None,
        };
        let relocated = parts.len() == 1 && parts[0].meta.file_no == new.file_no;
        if relocated {
            seg.meta.del_no = parts[0].meta.del_no;
            seg.dead = parts[0].dead.clone();
        }
        for part in parts {
            let shift = (part.meta.first_seq - new.first_seq) as u32;
            if let Dead::Some(dead) = &part.dead {
                seg.dead = seg.dead.with(dead.iter().map(|o| o + shift));
            }
            let Some(dirty) = &part.dirty else { continue };
            let left = dirty.sizes.iter().map(|(o, size)| (o + shift, *size));
            // A delete that became a hole is on disk now.
            let left: Vec<_> = left.filter(|(o, _)| relocated || !holes.contains(*o)).collect();
            if !left.is_empty() {
                let all = seg.dirty.get_or_insert_with(|| {
                    Box::new(Dirty { first_lsn: dirty.first_lsn, ..Dirty::default() })
                });
                all.first_lsn = all.first_lsn.min(dirty.first_lsn);
                all.sizes.extend(left);
            }
        }
        self.index.segs.splice(at..at + old.len(), [seg]);
        self.checkpoint.structure += 1;
        self.retention.windows = Vec::new();
        true
    }
}

impl State {
    /// Makes segments cold: the next snapshot names their `.data` no more.
    pub(crate) fn cool(&mut self, file_nos: &[u64]) {
        for file_no in file_nos {
            if let Some(seg) = self.index.seg_numbered(*file_no) {
                seg.meta.cold = true;
            }
        }
        if !file_nos.is_empty() {
            self.checkpoint.structure += 1;
        }
    }
}

impl Seg {
    /// Marks deletes as written that a new `.del` has.
    fn written(&mut self, has: impl Fn(u32) -> bool, since: &SincePlan) {
        let Some(dirty) = &mut self.dirty else { return };
        dirty.sizes.retain(|offset, _| !has(*offset));
        match since.first_delete {
            Some(lsn) if !dirty.sizes.is_empty() => dirty.first_lsn = lsn,
            _ if dirty.sizes.is_empty() => self.dirty = None,
            _ => {}
        }
    }
}
