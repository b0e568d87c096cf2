//! Caps: how far a write moves the floor, past the oldest live records.

use super::Need;
use crate::topic::state::State;
use crate::topic::state::index::{IndexSpan, Seg};
use crate::topic::write::pending_writes::{PendingWrites, ProjectedUsage};
use crate::types::config::TopicConfig;

/// Number of sizes that eviction reads in one call.
const AHEAD: u64 = 1024;

/// The caps of a topic; 0 is off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    records: u64,
    bytes: u64,
}

impl Caps {
    pub(crate) fn of(config: &TopicConfig) -> Self {
        Self { records: config.cap_records, bytes: config.cap_bytes }
    }

    /// The cap that these counts exceed: its name, the count or bytes, the cap.
    pub(crate) fn over(&self, count: u64, bytes: u64) -> Option<(&'static str, u64, u64)> {
        if self.records > 0 && count > self.records {
            Some(("cap_records", count, self.records))
        } else if self.bytes > 0 && bytes > self.bytes {
            Some(("cap_bytes", bytes, self.bytes))
        } else {
            None
        }
    }
}

/// An eviction: the floor, and the records and bytes that it removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eviction {
    pub floor: u64,
    pub gone: (u64, u64),
}

/// The floor that brings the topic, with the staged writes and a new one, within its caps: past
/// the oldest live records, one by one.
pub(crate) fn evict_to_fit(
    state: &State,
    pending_writes: &PendingWrites,
    projected_usage: ProjectedUsage,
    new: (u64, &[u32]),
    caps: &Caps,
) -> std::result::Result<Option<Eviction>, Need> {
    let new_bytes: u64 = new.1.iter().map(|s| u64::from(*s)).sum();
    let mut scan = EvictionScan {
        caps: *caps,
        count: projected_usage.count + new.1.len() as u64,
        bytes: projected_usage.bytes + new_bytes,
        gone: (0, 0),
        floor: 0,
    };
    if scan.fits() {
        return Ok(None);
    }
    scan.stored(state, projected_usage.floor)?;
    let staged = pending_writes.records(state.range.indexed_to);
    let fresh = (new.0..).zip(new.1.iter().copied());
    for (seq, size) in staged.chain(fresh).filter(|(seq, _)| *seq >= projected_usage.floor) {
        if scan.fits() {
            break;
        }
        scan.take(seq, u64::from(size));
    }
    Ok(Some(Eviction { floor: scan.floor, gone: scan.gone }))
}

struct EvictionScan {
    caps: Caps,
    count: u64,
    bytes: u64,
    gone: (u64, u64),
    floor: u64,
}

impl EvictionScan {
    fn fits(&self) -> bool {
        self.caps.over(self.count, self.bytes).is_none()
    }

    fn take(&mut self, seq: u64, size: u64) {
        self.count -= 1;
        self.bytes -= size;
        self.gone = (self.gone.0 + 1, self.gone.1 + size);
        self.floor = seq + 1;
    }

    /// Takes applied records, from `at` on.
    fn stored(&mut self, state: &State, at: u64) -> std::result::Result<(), Need> {
        for part in state.index.parts_from(at) {
            if self.fits() {
                return Ok(());
            }
            match part {
                IndexSpan::Seg(seg) => self.segment(state, seg, at)?,
                IndexSpan::Run(run) => {
                    for (seq, e) in run.from(at).filter(|(_, e)| !e.dead()) {
                        if self.fits() {
                            return Ok(());
                        }
                        self.take(seq, e.payload());
                    }
                }
            }
        }
        Ok(())
    }

    fn segment(&mut self, state: &State, seg: &Seg, at: u64) -> std::result::Result<(), Need> {
        if seg.live_count == 0 {
            return Ok(());
        }
        // The segment's counts begin at the applied floor.
        let whole = at <= seg.meta.first_seq.max(state.range.floor);
        // Pending evictions may have counted off some of it already; then it goes record by record.
        let rest =
            self.count.checked_sub(seg.live_count).zip(self.bytes.checked_sub(seg.live_bytes));
        if let Some(rest) = rest.filter(|r| whole && self.caps.over(r.0, r.1).is_some()) {
            (self.count, self.bytes) = rest;
            self.gone = (self.gone.0 + seg.live_count, self.gone.1 + seg.live_bytes);
            self.floor = seg.meta.last_seq + 1;
            return Ok(());
        }
        if !seg.dead.known() {
            return Err(Need::Dead(seg.meta.file_no));
        }
        let from = at.max(seg.meta.first_seq);
        for seq in (from..=seg.meta.last_seq).filter(|s| !seg.is_dead(*s)) {
            if self.fits() {
                return Ok(());
            }
            let mut windows = state.retention.windows.iter();
            let sizes = windows.find_map(|w| w.get(seg.meta.file_no, from, seq));
            let Some(size) = sizes.and_then(<[u32]>::last) else {
                // As many again as were used so far, at least `AHEAD`.
                let to = seg.meta.last_seq.min(seq + AHEAD.max(seq - from));
                return Err(Need::Sizes(seg.meta, from, to));
            };
            self.take(seq, u64::from(*size));
        }
        Ok(())
    }
}
