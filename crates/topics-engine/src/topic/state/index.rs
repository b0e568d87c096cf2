//! Where a topic's records lie: segments, then runs of resident entries, in seq order.
//!
//! A record in a segment costs no heap. A record that is only in the WAL (or, in classes that are
//! written later or never, in memory) has a resident [`Entry`]. A lost record leaves a hole between
//! two runs.

mod run;
mod seg;

use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use self::run::{Entry, Place, Run, payload_of};
pub(crate) use self::seg::{Dead, Dirty, Seg, Unknown};

/// A segment or a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IndexSpan<'a> {
    Seg(&'a Seg),
    Run(&'a Run),
}

impl IndexSpan<'_> {
    /// The first seq that it covers.
    pub(crate) fn first(&self) -> u64 {
        match self {
            Self::Seg(s) => s.meta.first_seq,
            Self::Run(r) => r.first,
        }
    }

    fn next_live(&self, seq: u64) -> Result<Option<u64>, Unknown> {
        match self {
            Self::Seg(s) => s.next_live(seq),
            Self::Run(r) => Ok(r.from(seq).find(|(_, e)| !e.dead()).map(|(s, _)| s)),
        }
    }

    fn live_in(&self, from: u64, to: u64) -> Result<u64, Unknown> {
        match self {
            Self::Seg(s) => s.live_in(from, to),
            Self::Run(r) => Ok(r.live_in(from, to)),
        }
    }

    fn prev_live(&self, seq: u64, floor: u64) -> Result<Option<u64>, Unknown> {
        match self {
            Self::Seg(s) => s.prev_live(seq, floor),
            Self::Run(r) => {
                let upto = (seq.min(r.last()) + 1).saturating_sub(r.first) as usize;
                let hit = r.entries.range(..upto).rposition(|e| !e.dead());
                Ok(hit.map(|i| r.first + i as u64).filter(|s| *s >= floor))
            }
        }
    }
}

/// The segments and runs of a topic, each in seq order. Runs lie above segments, except those of
/// `ephemeral` records of a topic that has another class now.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Segments.
    pub segs: Vec<Seg>,
    /// Resident records.
    runs: VecDeque<Run>,
    /// Number of entries in runs that are not `ephemeral`.
    resident: u64,
}

impl Index {
    /// The runs of resident records, in seq order.
    pub(crate) fn runs(&self) -> &VecDeque<Run> {
        &self.runs
    }

    /// Shares the entries of the run at this position with a checkpoint.
    pub(crate) fn share_entries(&mut self, run: usize) -> Arc<VecDeque<Entry>> {
        self.runs[run].entries.share()
    }

    /// Appends a resident record above all others.
    #[inline]
    pub(crate) fn push(&mut self, seq: u64, place: &Place, lsn: u64, entry: Entry) {
        self.resident += u64::from(!place.ephemeral());
        if let Some(run) = self.runs.back_mut()
            && run.push(seq, place, lsn, entry)
        {
            return;
        }
        debug_assert!(self.runs.back().is_none_or(|r| r.last() < seq));
        self.runs.push_back(Run::one(seq, lsn, place, entry));
    }

    /// Moves a record from memory to the file that it was written to. Returns false if the record is
    /// not in memory.
    pub(crate) fn relocate_to_file(&mut self, seq: u64, place: &Place, lsn: u64, off: u32) -> bool {
        let Some(i) = self.run_of(seq) else { return false };
        if self.runs[i].in_file() || self.runs[i].first != seq {
            return false;
        }
        let Some(&entry) = self.runs[i].entries.front() else { return false };
        self.resident += u64::from(self.runs[i].place.ephemeral());
        self.runs[i].drop_front(1);
        if self.runs[i].entries.is_empty() {
            self.runs.remove(i);
        }
        let entry = Entry { off, ..entry };
        let before = i.checked_sub(1).and_then(|p| self.runs.get_mut(p));
        if !before.is_some_and(|run| run.push(seq, place, lsn, entry)) {
            self.runs.insert(i, Run::one(seq, lsn, place, entry));
        }
        true
    }

    /// The run that holds `seq`.
    pub(crate) fn run_of(&self, seq: u64) -> Option<usize> {
        let i = self.runs.partition_point(|r| r.first <= seq).checked_sub(1)?;
        self.runs[i].at(seq).map(|_| i)
    }

    /// The first run that ends at or above `seq`.
    pub(crate) fn run_from(&self, seq: u64) -> usize {
        self.runs.partition_point(|r| r.last() < seq)
    }

    /// The entry of a resident record.
    pub(crate) fn entry(&self, seq: u64) -> Option<&Entry> {
        let run = &self.runs[self.run_of(seq)?];
        run.entries.get(run.at(seq)?)
    }

    /// The same for ascending seqs: `run` is the index of the last run used, or 0.
    pub(crate) fn entry_from(&self, seq: u64, run: &mut usize) -> Option<&Entry> {
        if self.runs.get(*run).is_none_or(|r| r.at(seq).is_none()) {
            *run = self.run_of(seq)?;
        }
        let run = self.runs.get(*run)?;
        run.entries.get(run.at(seq)?)
    }

    /// Marks a resident record dead; `None` if it is not resident or dead already.
    pub(crate) fn kill(&mut self, seq: u64) -> Option<Entry> {
        let i = self.run_of(seq)?;
        let run = &mut self.runs[i];
        let at = run.at(seq)?;
        let was = *run.entries.get(at)?;
        if was.dead() {
            return None;
        }
        run.entries.make_mut().get_mut(at)?.flags |= Entry::DEAD;
        run.dead += 1;
        Some(was)
    }

    /// Drops the resident records below `floor`; calls `gone` for each.
    pub(crate) fn drop_below(&mut self, floor: u64, mut gone: impl FnMut(u64, &Entry)) {
        while let Some(run) = self.runs.front_mut() {
            let n = floor.saturating_sub(run.first).min(run.entries.len() as u64);
            let taken = usize::try_from(n).unwrap_or(usize::MAX);
            for (seq, e) in (run.first..).zip(run.entries.range(..taken)) {
                gone(seq, e);
            }
            if !run.place.ephemeral() {
                self.resident -= n;
            }
            if taken < run.entries.len() {
                if taken > 0 {
                    run.drop_front(taken);
                }
                return;
            }
            self.runs.pop_front();
        }
    }

    /// Drops the runs that lie within `from..=to`.
    pub(crate) fn cut_out(&mut self, from: u64, to: u64) {
        self.retain(|r| r.first < from || r.last() > to);
    }

    /// Drops the runs that `keep` returns false for.
    fn retain(&mut self, mut keep: impl FnMut(&Run) -> bool) {
        let resident = &mut self.resident;
        self.runs.retain(|r| {
            let kept = keep(r);
            if !kept && !r.place.ephemeral() {
                *resident -= r.entries.len() as u64;
            }
            kept
        });
    }

    /// The first segment that ends at or above `seq`.
    pub(crate) fn seg_from(&self, seq: u64) -> usize {
        self.segs.partition_point(|s| s.meta.last_seq < seq)
    }

    /// The segment that covers `seq`.
    pub(crate) fn seg_of(&self, seq: u64) -> Option<&Seg> {
        self.segs.get(self.seg_from(seq)).filter(|s| s.meta.contains(seq))
    }

    /// Whether the topic has a segment with this file number.
    pub(crate) fn has(&self, file_no: u64) -> bool {
        self.segs.iter().any(|s| s.meta.file_no == file_no)
    }

    pub(crate) fn seg_numbered(&mut self, file_no: u64) -> Option<&mut Seg> {
        self.segs.iter_mut().find(|s| s.meta.file_no == file_no)
    }

    /// The last seq in a segment, 0 without one.
    pub(crate) fn segments_to(&self) -> u64 {
        self.segs.last().map_or(0, |s| s.meta.last_seq)
    }

    /// Segments and runs that end at or above `seq`, ascending.
    pub(crate) fn parts_from(&self, seq: u64) -> impl Iterator<Item = IndexSpan<'_>> {
        let mut segs = self.segs[self.seg_from(seq)..].iter().peekable();
        let mut runs = self.runs.range(self.run_from(seq)..).peekable();
        std::iter::from_fn(move || match (segs.peek(), runs.peek()) {
            (Some(s), Some(r)) if s.meta.first_seq > r.first => runs.next().map(IndexSpan::Run),
            (None, _) => runs.next().map(IndexSpan::Run),
            _ => segs.next().map(IndexSpan::Seg),
        })
    }

    /// Segments and runs that begin at or below `seq`, descending.
    fn parts_to(&self, seq: u64) -> impl Iterator<Item = IndexSpan<'_>> {
        let segs = self.segs.partition_point(|s| s.meta.first_seq <= seq);
        let runs = self.runs.partition_point(|r| r.first <= seq);
        let mut segs = self.segs[..segs].iter().rev().peekable();
        let mut runs = self.runs.range(..runs).rev().peekable();
        std::iter::from_fn(move || match (segs.peek(), runs.peek()) {
            (Some(s), Some(r)) if s.meta.first_seq > r.first => segs.next().map(IndexSpan::Seg),
            (Some(_), None) => segs.next().map(IndexSpan::Seg),
            _ => runs.next().map(IndexSpan::Run),
        })
    }

    /// The first live record from `seq` on.
    pub(crate) fn next_live(&self, seq: u64) -> Result<Option<u64>, Unknown> {
        for part in self.parts_from(seq) {
            if let Some(found) = part.next_live(seq)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The number of live records in `from..=to`; `from` is at or above the floor.
    pub(crate) fn live_in(&self, from: u64, to: u64) -> Result<u64, Unknown> {
        let parts = self.parts_from(from).take_while(|part| part.first() <= to);
        parts.map(|part| part.live_in(from, to)).sum()
    }

    /// The last live record in `floor..=seq`.
    pub(crate) fn prev_live(&self, seq: u64, floor: u64) -> Result<Option<u64>, Unknown> {
        for part in self.parts_to(seq) {
            if let Some(found) = part.prev_live(seq, floor)? {
                return Ok(Some(found));
            }
            if part.first() <= floor {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Drops the entries up to `upto` of records in the WAL, which a segment has now.
    pub(crate) fn installed(&mut self, upto: u64) {
        self.retain(|r| !r.in_file() || r.last() > upto);
        for run in self.runs.iter_mut().filter(|r| r.in_file() && r.first <= upto) {
            let n = upto + 1 - run.first;
            run.drop_front(n as usize);
            self.resident -= n;
        }
        if self.runs.is_empty() {
            // An idle topic keeps no capacity for later records.
            self.runs = VecDeque::new();
        }
    }

    /// Number of records that are resident until a checkpoint copies them. It is maintained: a topic
    /// of class `ephemeral` has a run for each write, and each write asks for this number.
    pub(crate) fn resident(&self) -> u64 {
        self.resident
    }

    /// The first run whose records are in the log.
    pub(crate) fn first_in_file(&self) -> Option<&Run> {
        // Without a resident record all runs are `ephemeral`, and there may be a million of them.
        if self.resident == 0 {
            return None;
        }
        self.runs.iter().find(|r| r.in_file())
    }
}

#[cfg(test)]
mod tests;
