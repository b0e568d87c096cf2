//! Staged writes that are not applied yet, as caps need to know them.
//!
//! Only topics with a cap keep this. Deletes and expiry of such a topic are made exclusively (see
//! `lifecycle`), so the state that a write is decided on is the applied one, plus these writes, minus what they evict.

use std::collections::VecDeque;

use crate::topic::state::State;

/// A staged write.
#[derive(Clone, Debug)]
struct PendingWrite {
    /// Seq of its first record.
    first: u64,
    /// Payload bytes of its records.
    sizes: Vec<u32>,
    count: u64,
    bytes: u64,
    /// The evict floor that it logs, 0: none.
    floor: u64,
    /// Records and bytes that it evicts.
    gone: (u64, u64),
}

/// The staged writes of a topic, in staging order.
#[derive(Debug, Default)]
pub(crate) struct PendingWrites {
    writes: VecDeque<PendingWrite>,
}

/// The live records after all staged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProjectedUsage {
    pub count: u64,
    pub bytes: u64,
    /// No record below will be live.
    pub floor: u64,
}

impl PendingWrites {
    /// Removes applied writes, and adds up the others.
    pub(crate) fn projected_usage(&mut self, state: &State) -> ProjectedUsage {
        while let Some(s) = self.writes.front() {
            if s.first + s.count > state.range.indexed_to + 1 || s.floor > state.range.evict_floor {
                break;
            }
            self.writes.pop_front();
        }
        let mut out = ProjectedUsage {
            count: state.live.count,
            bytes: state.live.bytes,
            floor: state.range.floor,
        };
        for s in &self.writes {
            // A record shown before it is written (class `memory`) is in the state already.
            if s.first + s.count > state.range.indexed_to + 1 {
                out.count += s.count;
                out.bytes += s.bytes;
            }
            if s.floor > state.range.evict_floor {
                out.count = out.count.saturating_sub(s.gone.0);
                out.bytes = out.bytes.saturating_sub(s.gone.1);
            }
            out.floor = out.floor.max(s.floor);
        }
        out
    }

    /// Adds a staged write.
    pub(crate) fn write(&mut self, first: u64, sizes: Vec<u32>, floor: u64, gone: (u64, u64)) {
        let count = sizes.len() as u64;
        let bytes = sizes.iter().map(|s| u64::from(*s)).sum();
        self.writes.push_back(PendingWrite { first, sizes, count, bytes, floor, gone });
    }

    /// Sizes of the staged records above `indexed_to`, with their seqs.
    pub(crate) fn records(&self, indexed_to: u64) -> impl Iterator<Item = (u64, u32)> {
        self.writes
            .iter()
            .flat_map(|s| (s.first..).zip(s.sizes.iter().copied()))
            .filter(move |(seq, _)| *seq > indexed_to)
    }

    /// Removes the writes from `first` on, which failed.
    pub(crate) fn fail(&mut self, first: u64) {
        self.writes.retain(|s| s.first < first);
    }
}
