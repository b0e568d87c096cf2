//! Records that are shown before they are written (class `memory`), or never are (`ephemeral`).

use std::sync::Arc;

use topics_storage::format::frame;

use crate::topic::load::Loader;
use crate::topic::state::index::{Entry, Place};
use crate::topic::state::{Evicted, State};
use crate::types::error::{Error, Result};
use crate::types::quota::Charge;

/// The records of a write to show: encoded frames with seq and ts still 0.
pub(crate) struct Shown {
    pub records: Vec<u8>,
    pub first: u64,
    pub ts: u64,
    /// Their charge on the budget of `ephemeral` topics.
    pub charge: Option<Charge>,
    /// The evict floor that takes effect with them, 0: none.
    pub floor: u64,
}

impl State {
    /// Adds the records to the index, except those that were written and applied meanwhile. Returns how
    /// many records the evict floor removed.
    pub(crate) fn show(&mut self, shown: Shown, loader: &Loader<'_>) -> Result<u64> {
        let Shown { records, first, ts, charge, floor } = shown;
        let bytes = Arc::new(records);
        let place = Place::Memory { bytes: bytes.clone(), charge: charge.map(Arc::new) };
        let (mut at, mut seq) = (0usize, first);
        while at < bytes.len() {
            let (mut f, len) = frame::parse(&bytes[at..])
                .map_err(|e| Error::Internal(format!("a record does not parse: {e}")))?;
            (f.seq, f.ts) = (seq, ts);
            if seq > self.range.indexed_to {
                let entry = Entry::new(ts, at as u32, len as u32, 0, f.flags);
                self.admit(&f, entry, &place, 0);
            }
            at += len;
            seq += 1;
        }
        if floor == 0 {
            return Ok(0);
        }
        let gone = self.apply_floor(floor, loader)?;
        self.raise_evict_floor(floor, Evicted::CAP);
        Ok(gone)
    }
}
