//! Which segments are to be archived.

use std::collections::HashMap;

use topics_env::sync::atomic::Ordering;
use topics_storage::segment::{SegmentMeta, TopicKey};

use crate::catalog::Catalog;
use crate::catalog::unloaded::CatalogEntry;
use crate::types::error::Result;

/// A segment that no pack holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingSegment {
    pub topic: TopicKey,
    pub meta: SegmentMeta,
}

/// The sealed segments with live records that no pack holds, by topic and seq, without those that
/// are left out. A segment that is half dead is left to reclaim, which gives it a new file number.
pub(super) fn pending(
    catalog: &Catalog,
    skipped: &HashMap<u64, u64>,
) -> Result<Vec<PendingSegment>> {
    let mut out = Vec::new();
    let wanted = |meta: &SegmentMeta| {
        meta.sealed
            && !meta.cold
            && meta.span() > 0
            && meta.live_count > 0
            && !catalog.base().packs.has_segment(meta.file_no)
            && !catalog.base().segments.is_suspect(meta.file_no)
            && !skipped.contains_key(&meta.file_no)
    };
    catalog.every(|entry| {
        match entry {
            CatalogEntry::Loaded(topic) => {
                if topic.is_broken() || topic.files_unverified.load(Ordering::Acquire) {
                    return Ok(());
                }
                let state = topic.state.read();
                let segs = state.index.segs.iter().filter(|s| s.live_count > 0 && !s.half_dead());
                let metas = segs.map(|s| s.meta).filter(|m| wanted(m));
                out.extend(metas.map(|meta| PendingSegment { topic: topic.key, meta }));
            }
            CatalogEntry::Unloaded(unloaded) => {
                let header = unloaded.topic_header()?;
                let topic = TopicKey { topic_id: header.topic_id, epoch: header.epoch };
                let metas = header.segments.iter().filter(|m| wanted(m));
                out.extend(metas.map(|meta| PendingSegment { topic, meta: *meta }));
            }
        }
        Ok(())
    })?;
    out.sort_unstable_by_key(|p| (p.topic, p.meta.first_seq));
    Ok(out)
}
