//! Reclaim: rewrites segments that are more than half dead, and merges small neighbours.
//!
//! The new files take effect with the next snapshot. A trim removes the old ones when no kept snapshot
//! names them.

use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_env::sync::atomic::Ordering;
use topics_storage::segment::{Round, Segment, SegmentMeta};

use super::{Store, full_disk};
use crate::topic::{ROUNDS_TO_FREE, Topic};
use crate::types::error::{Error, Result};

/// Maximum bytes of `.data` that one pass reads, so that reclaim leaves I/O for other work.
const PASS_BYTES: u64 = 64 << 20;
/// Minimum number of neighbours that are merged.
const MIN_MERGED: usize = 4;

/// Sealed neighbours to be written as one segment, each with its dead records.
#[derive(Debug)]
pub(crate) struct Candidate {
    parts: Vec<(SegmentMeta, Arc<RoaringBitmap>)>,
    /// Estimated bytes of the new segment.
    pub(crate) takes: u64,
}

impl Candidate {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|(m, _)| m.data_len).sum()
    }
}

/// One pass over all topics.
pub(crate) fn reclaim(store: &Arc<Store>) -> Result<()> {
    // A round would remove the new files, which no snapshot names yet.
    let _round = store.disk.round.lock();
    let mut left = PASS_BYTES;
    let mut outcome = Ok(());
    store.catalog().table.loaded.each(|topic| {
        let seen = !topic.files_unverified.load(Ordering::Acquire);
        while seen && left > 0 && outcome.as_ref().err().is_none_or(Error::is_full) {
            match next(store, topic) {
                Ok(Some(candidate)) => {
                    left = left.saturating_sub(candidate.bytes().max(1));
                    if let Err(e) = full_disk::rewrite_with_reserve(store, topic, &candidate) {
                        // The candidate of another topic may be smaller.
                        outcome = Err(e);
                        return;
                    }
                }
                Ok(None) => return,
                Err(e) => outcome = Err(e),
            }
        }
    });
    outcome
}

/// The next candidate of a topic. Loads the dead records of a segment that may be one.
fn next(store: &Arc<Store>, topic: &Arc<Topic>) -> Result<Option<Candidate>> {
    loop {
        let unknown = {
            let state = topic.state.read();
            let o = &store.base().options;
            let found = if store.short_of_space() {
                let room = store.disk.checkpoints.free_with_reserve()?;
                match state.worth_most(room) {
                    Ok(None) => state.worth_most(room + store.ctx().wal.unused()),
                    found => found,
                }
            } else {
                state.reclaimable(o.segment_max_events, o.segment_max_bytes)
            };
            match found {
                Ok(found) => return Ok(found),
                Err(file_no) => file_no,
            }
        };
        topic.load_dead(store.base(), unknown)?;
    }
}

pub(crate) fn rewrite(store: &Arc<Store>, topic: &Arc<Topic>, candidate: &Candidate) -> Result<()> {
    let parts: Vec<(Segment, Arc<RoaringBitmap>)> = candidate
        .parts
        .iter()
        .map(|(meta, dead)| (store.base().segments.segment(topic.key, *meta), dead.clone()))
        .collect();
    let mut round = Round::new(&store.base().segments);
    let new = round.merge(&parts)?;
    round.sync()?;
    let mut holes = RoaringBitmap::new();
    for (meta, dead) in &candidate.parts {
        let shift = (meta.first_seq - new.first_seq) as u32;
        holes.extend(dead.iter().map(|o| o + shift));
    }
    let old: Vec<u64> = candidate.parts.iter().map(|(m, _)| m.file_no).collect();
    if topic.replace(store.ctx(), &old, new, &holes)? {
        store.replaced.store(true, Ordering::Relaxed);
        store.base().owed_rounds.store(ROUNDS_TO_FREE, Ordering::Relaxed);
        store.base().metrics.segments_rewritten.add(old.len() as u64);
    }
    Ok(())
}

impl crate::topic::State {
    /// Segments worth a rewrite. `Err`: the dead records of this segment must be loaded first.
    fn reclaimable(&self, events: u64, bytes: u64) -> std::result::Result<Option<Candidate>, u64> {
        let segs = &self.index.segs;
        let mut at = 0;
        while at < segs.len() {
            if segs[at].half_dead() {
                return self.candidate(at, 1).map(Some);
            }
            let n = self.small_neighbours(at, events, bytes);
            if n >= MIN_MERGED {
                return self.candidate(at, n).map(Some);
            }
            at += n.max(1);
        }
        Ok(None)
    }

    pub(crate) fn candidate(&self, at: usize, n: usize) -> std::result::Result<Candidate, u64> {
        let segs = &self.index.segs[at..at + n];
        Ok(Candidate {
            takes: segs.iter().map(full_disk::takes).sum(),
            parts: (at..at + n).map(|i| self.part(i)).collect::<std::result::Result<_, _>>()?,
        })
    }

    /// How many sealed neighbours from `at` on fit into one segment.
    fn small_neighbours(&self, at: usize, events: u64, bytes: u64) -> usize {
        let (mut span, mut len, mut next) = (0, 0, None);
        self.index.segs[at..]
            .iter()
            .take_while(|s| {
                let m = &s.meta;
                span += m.span();
                len += m.data_len;
                let follows = next.is_none_or(|n| n == m.first_seq);
                next = Some(m.last_seq + 1);
                m.sealed && !m.cold && follows && span <= events && len <= bytes
            })
            .count()
    }

    /// A segment and its dead records, including those below the floor.
    fn part(&self, at: usize) -> std::result::Result<(SegmentMeta, Arc<RoaringBitmap>), u64> {
        let seg = &self.index.segs[at];
        let mut dead = match &seg.dead {
            crate::topic::Dead::Unknown => return Err(seg.meta.file_no),
            crate::topic::Dead::None => RoaringBitmap::new(),
            crate::topic::Dead::Some(dead) => (**dead).clone(),
        };
        let below = self.range.floor.min(seg.meta.last_seq + 1).saturating_sub(seg.meta.first_seq);
        dead.insert_range(0..below as u32);
        Ok((seg.meta, Arc::new(dead)))
    }
}
