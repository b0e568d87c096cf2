//! Plans the next piece of a read, under the state lock.

use std::collections::BTreeSet;

use topics_storage::segment::Segment;

use super::{BLOCK, BRIDGE, Reader};
use crate::topic::state::State;
use crate::topic::state::index::{Dead, Entry, IndexSpan, Place, Run};

/// The next piece of a read.
pub(crate) enum Piece {
    /// Resident records of one run.
    Run { place: Place, lsn: u64, records: Vec<(u64, Entry)>, upto: u64 },
    /// The seqs of resident records, whose other fields are not wanted.
    Seqs { seqs: Vec<u64>, upto: u64 },
    /// `from..=to` of a segment.
    Segment { segment: Segment, dead: Dead, from: u64, to: u64 },
    /// The dead records of the segment with this file number must be loaded first.
    Unknown(u64),
    /// No record up to this seq.
    Skip(u64),
    /// The read ends here.
    End,
}

impl Reader<'_> {
    /// Decides what to read next.
    pub(crate) fn plan(&self) -> Piece {
        let state = self.topic.state.read();
        let next = self.at + 1;
        if state.range.evict_floor > next {
            // Records were evicted meanwhile: the next read announces that.
            return Piece::End;
        }
        let mut bound = self.bound;
        if let Some(gap) = state.gap_from(next) {
            if gap.from <= next {
                return Piece::End;
            }
            bound = bound.min(gap.from - 1);
        }
        if next > bound {
            return Piece::End;
        }
        let fresh = self.expired.map_or(0, |e| e.below);
        let from = next.max(state.range.floor).max(fresh);
        if from > bound {
            return Piece::Skip(bound);
        }
        match state.index.parts_from(from).next().filter(|p| p.first() <= bound) {
            None => Piece::Skip(bound),
            Some(IndexSpan::Run(run)) => self.plan_run(&state, run, from, bound),
            Some(IndexSpan::Seg(seg)) => {
                let (from, to) = (from.max(seg.meta.first_seq), seg.meta.last_seq.min(bound));
                if seg.live_count == 0 {
                    return Piece::Skip(to);
                }
                if !seg.dead.known() {
                    return Piece::Unknown(seg.meta.file_no);
                }
                let segment = self.ctx.base().segments.segment(self.topic.key, seg.meta);
                Piece::Segment { segment, dead: seg.dead.clone(), from, to }
            }
        }
    }

    fn plan_run(&self, state: &State, run: &Run, from: u64, bound: u64) -> Piece {
        let to = bound.min(run.last());
        let want = self.req.limit - self.out.slots.len();
        let wanted = self.req.matching.as_ref().map(|m| {
            state.tag_index.tags.as_ref().map(|t| t.find(m.as_tags(), from, to)).unwrap_or_default()
        });
        let live = |&(seq, e): &(u64, &Entry)| {
            !e.dead() && wanted.as_ref().is_none_or(|w| w.binary_search(&seq).is_ok())
        };
        // A resident record that expires by itself says so in its attributes.
        if self.only_seqs() && state.retention.expiries.as_ref().is_none_or(BTreeSet::is_empty) {
            let all = run.from(from).take_while(|(seq, _)| *seq <= to).filter(live);
            return Piece::Seqs { seqs: all.map(|(seq, _)| seq).collect(), upto: to };
        }
        let (mut records, mut upto) = (Vec::new(), to);
        let mut end = 0u64;
        let mut bytes = 0usize;
        for (seq, e) in run.from(from).take_while(|(seq, _)| *seq <= to).filter(live) {
            let far = run.in_file() && !records.is_empty() && u64::from(e.off) > end + BRIDGE;
            let full =
                records.len() >= want || (!records.is_empty() && bytes >= self.left().min(BLOCK));
            if far || full {
                upto = seq - 1;
                break;
            }
            bytes += e.len as usize;
            end = u64::from(e.off) + u64::from(e.len);
            records.push((seq, *e));
        }
        if records.is_empty() {
            return Piece::Skip(upto);
        }
        Piece::Run { place: run.place.clone(), lsn: run.lsn, records, upto }
    }
}

/// The offset of the `want`-th live record from `from` on, at most `to`.
pub(crate) fn reach(dead: &Dead, from: u64, want: u64, to: u64) -> u64 {
    let Dead::Some(map) = dead else { return (from + want - 1).min(to) };
    let (mut end, mut live) = (from, 0);
    while end <= to {
        if !map.contains(end as u32) {
            live += 1;
            if live == want {
                return end;
            }
        }
        end += 1;
    }
    to
}
