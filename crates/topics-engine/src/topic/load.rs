//! Reads from segment files what a change of a topic needs: sizes, tags, dead records.
//!
//! A verb reads it before it takes a lock and passes it on as [`Hints`]. Apply finds everything there,
//! so it does no I/O under the state lock. Only recovery, which has no hints, reads files in apply.

use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_storage::segment::{Segment, SegmentMeta, Segments, TagMatch, TopicKey};
use topics_storage::{Result, StorageError};

use super::Topic;
use super::state::index::{Dead, Unknown};
use crate::topic::events::Base;
use crate::types::error;
use crate::types::metrics::Counter;

/// Payload bytes of consecutive records of a segment; 0 for a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub file_no: u64,
    pub from: u64,
    pub sizes: Vec<u32>,
}

impl Window {
    /// The sizes of `from..=to`, if they are all there.
    pub(crate) fn get(&self, file_no: u64, from: u64, to: u64) -> Option<&[u32]> {
        if file_no != self.file_no || from < self.from {
            return None;
        }
        let a = usize::try_from(from - self.from).ok()?;
        let n = usize::try_from((to + 1).saturating_sub(from)).ok()?;
        self.sizes.get(a..a.checked_add(n)?)
    }

    /// The first seq after the window.
    pub(crate) fn end(&self) -> u64 {
        self.from + self.sizes.len() as u64
    }
}

/// Data of segments that a verb has read for apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    pub windows: Vec<Arc<Window>>,
    /// Ascending seqs that a delete matches, by segment.
    pub tagged: Vec<(u64, Vec<u64>)>,
}

impl Topic {
    /// The result of a read of a segment without the state lock. `None` if the segment has left the
    /// index since, and a checkpoint has removed its files: the caller looks the segment up again.
    pub(crate) fn unless_gone<T>(
        &self,
        meta: &SegmentMeta,
        read: Result<T>,
    ) -> crate::types::error::Result<Option<T>> {
        match read {
            Err(StorageError::Missing { .. }) if !self.state.read().index.has(meta.file_no) => {
                Ok(None)
            }
            other => Ok(Some(other?)),
        }
    }
}

/// Gives data of segments: from hints, or else from files.
pub(crate) struct Loader<'a> {
    pub segs: &'a Arc<Segments>,
    pub key: TopicKey,
    pub hints: Option<&'a Hints>,
    /// Counts the reads of files.
    pub reads: Option<&'a Counter>,
}

impl<'a> Loader<'a> {
    /// A loader that reads files, for a verb that holds no lock.
    pub(crate) fn without_hints(segs: &'a Arc<Segments>, key: TopicKey) -> Self {
        Self { segs, key, hints: None, reads: None }
    }

    /// A reader of a segment.
    pub(crate) fn segment(&self, meta: &SegmentMeta) -> Segment {
        self.segs.segment(self.key, *meta)
    }

    fn count(&self) {
        if let Some(reads) = self.reads {
            reads.add(1);
        }
    }

    /// Payload bytes of `from..=to`.
    pub(crate) fn sizes(&self, meta: &SegmentMeta, from: u64, to: u64) -> Result<Vec<u32>> {
        let known = self.hints.iter().flat_map(|h| &h.windows);
        if let Some(sizes) = known.filter_map(|w| w.get(meta.file_no, from, to)).next() {
            return Ok(sizes.to_vec());
        }
        self.count();
        let entries = self.segment(meta).entries(from, to)?;
        Ok(entries.iter().map(|e| if e.is_hole() { 0 } else { e.payload_bytes() as u32 }).collect())
    }

    /// The payload bytes of `from..=to` as a window.
    pub(crate) fn window(&self, meta: &SegmentMeta, from: u64, to: u64) -> Result<Arc<Window>> {
        let sizes = self.sizes(meta, from, to)?;
        Ok(Arc::new(Window { file_no: meta.file_no, from, sizes }))
    }

    /// The ascending seqs up to `upto` whose tag matches, dead ones included.
    pub(crate) fn tag_seqs(
        &self,
        meta: &SegmentMeta,
        want: TagMatch<'_>,
        upto: u64,
    ) -> Result<Vec<u64>> {
        if !meta.has_tags {
            return Ok(Vec::new());
        }
        let mut known = self.hints.iter().flat_map(|h| &h.tagged);
        if let Some((_, seqs)) = known.rfind(|(no, _)| *no == meta.file_no) {
            return Ok(seqs.iter().copied().filter(|s| *s <= upto).collect());
        }
        self.count();
        self.segment(meta).tag_seqs(want, upto)
    }

    /// The dead records of a segment: deleted ones and holes.
    pub(crate) fn dead(&self, meta: &SegmentMeta) -> Result<Dead> {
        self.count();
        let segment = self.segment(meta);
        let mut dead: RoaringBitmap = (*segment.deleted()?).clone();
        let entries = segment.entries(meta.first_seq, meta.last_seq)?;
        for (offset, _) in (0..).zip(&entries).filter(|(_, e)| e.is_hole()) {
            dead.insert(offset);
        }
        Ok(if dead.is_empty() { Dead::None } else { Dead::Some(Arc::new(dead)) })
    }
}

/// What must be read before a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    /// Sizes of these records of a segment.
    Sizes(SegmentMeta, u64, u64),
    /// The dead records of the segment with this file number.
    Dead(u64),
}

impl From<Unknown> for Need {
    fn from(u: Unknown) -> Self {
        Self::Dead(u.0)
    }
}

impl Topic {
    /// Loads the dead records of a segment.
    pub(crate) fn load_dead(&self, base: &Base, file_no: u64) -> error::Result<()> {
        provide(base, self, &Need::Dead(file_no))
    }
}

/// Reads what a decision needs into the topic's state. A removed segment is skipped: the next decision
/// sees the index without it.
pub(crate) fn provide(base: &Base, topic: &Topic, need: &Need) -> error::Result<()> {
    let loader = Loader::without_hints(&base.segments, topic.key);
    match *need {
        Need::Sizes(meta, from, to) => {
            let window = loader.window(&meta, from, to);
            let Some(window) = topic.unless_gone(&meta, window)? else { return Ok(()) };
            let mut state = topic.state.write();
            // An eviction may pass through several segments record by record, and then needs the
            // sizes of all of them together.
            let floor = state.range.floor;
            state.retention.windows.retain(|w| w.file_no != meta.file_no && w.end() > floor);
            state.retention.windows.push(window);
        }
        Need::Dead(file_no) => {
            let meta = {
                let mut state = topic.state.write();
                state.index.seg_numbered(file_no).map(|s| s.meta)
            };
            if let Some(meta) = meta
                && let Some(dead) = topic.unless_gone(&meta, loader.dead(&meta))?
            {
                topic.state.write().set_dead(file_no, dead);
            }
        }
    }
    Ok(())
}
