//! Gaps: ranges of lost seqs, which readers get as tombstones.

use super::State;
use crate::types::api::{Gap, GapReason};

impl State {
    /// Adds a gap and marks its seqs as indexed.
    pub(crate) fn add_gap(&mut self, gap: Gap) {
        self.range.indexed_to = self.range.indexed_to.max(gap.to);
        self.list_gap(gap);
        self.move_earliest();
    }

    /// Adds a gap to the list, except the part below the evict floor, which announces it.
    pub(crate) fn list_gap(&mut self, gap: Gap) {
        list(&mut self.gaps, self.range.evict_floor, gap);
    }

    /// Marks gaps directly after the last record as indexed, so that their seqs are not assigned again.
    pub(crate) fn pass_gaps(&mut self) {
        for g in &self.gaps {
            if g.from <= self.range.indexed_to + 1 {
                self.range.indexed_to = self.range.indexed_to.max(g.to);
            }
        }
    }

    /// The gaps after a restart: with the `ephemeral` records, which end with the process.
    pub(crate) fn gaps_after_restart(&self) -> Vec<Gap> {
        let mut gaps = self.gaps.clone();
        for run in self.index.runs().iter().filter(|r| r.place.ephemeral()) {
            let gap = Gap { from: run.first, to: run.last(), reason: GapReason::Restart };
            list(&mut gaps, self.range.evict_floor.max(self.range.floor), gap);
        }
        gaps
    }

    /// The gap that holds `seq`, or the first above it.
    pub(crate) fn gap_from(&self, seq: u64) -> Option<Gap> {
        self.gaps.get(self.gaps.partition_point(|g| g.to < seq)).copied()
    }
}

/// Adds the part of a gap at or above the floor to a list.
fn list(gaps: &mut Vec<Gap>, floor: u64, mut gap: Gap) {
    gap.from = gap.from.max(floor);
    // Listed gaps stay as they are: the new gap covers the rest.
    let mut from = gap.from;
    let mut fresh = Vec::new();
    for g in gaps.iter().filter(|g| g.to >= gap.from && g.from <= gap.to) {
        if from < g.from {
            fresh.push(Gap { from, to: g.from - 1, ..gap });
        }
        from = g.to + 1;
    }
    if from <= gap.to {
        fresh.push(Gap { from, ..gap });
    }
    gaps.append(&mut fresh);
    gaps.sort_unstable_by_key(|g| g.from);
    gaps.dedup_by(|b, a| {
        let joins = a.to + 1 == b.from && a.reason == b.reason;
        if joins {
            a.to = b.to;
        }
        joins
    });
}
