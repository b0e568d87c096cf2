//! Which sealed segments are worth making again: mostly dead ones, and small neighbours.

use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_storage::segment::SegmentMeta;

use super::Topic;
use super::index::{Dead, Seg};
use super::load::Loader;
use crate::core::Core;
use crate::error::Result;

/// Bytes of `.data` below which dead records are not worth a rewrite.
const WORTH: u64 = 4 << 10;
/// Bytes of a segment frame beside its payload, and a little for its length prefixes.
const FRAME: u64 = 40;

/// A segment and its dead, as offsets from its first seq.
pub(crate) type Part = (SegmentMeta, Arc<RoaringBitmap>);

impl Topic {
    /// Groups of sealed neighbours, each to become one segment without its dead records.
    pub(crate) fn reclaimable(&self, core: &Core) -> Result<Vec<Vec<Part>>> {
        let groups: Vec<Vec<Seg>> = {
            let state = self.state.read();
            let segs = &state.index.segs;
            let mut groups = Vec::new();
            let mut i = 0;
            while i < segs.len() {
                let n = neighbours(core, &segs[i..]);
                if n > 1 || segs.get(i).is_some_and(mostly_dead) {
                    groups.push(segs[i..i + n].to_vec());
                }
                i += n;
            }
            groups
        };
        let loader = Loader::ahead(&core.segments, self.key);
        groups
            .into_iter()
            .map(|group| group.into_iter().map(|seg| part(&loader, seg)).collect())
            .collect()
    }
}

/// What is dead of it, memory's deletes included.
fn part(loader: &Loader<'_>, seg: Seg) -> Result<Part> {
    let dead = match seg.dead {
        Dead::Unknown => loader.dead(&seg.meta)?,
        known => known,
    };
    let dead = match dead {
        Dead::Some(dead) => dead,
        _ => Arc::default(),
    };
    Ok((seg.meta, dead))
}

fn mostly_dead(seg: &Seg) -> bool {
    let live = seg.live_bytes + seg.live_count * FRAME;
    seg.meta.sealed && !seg.meta.cold && seg.meta.data_len > WORTH && live * 2 < seg.meta.data_len
}

/// How many from the front on fit one segment together; at least one.
fn neighbours(core: &Core, segs: &[Seg]) -> usize {
    let (mut span, mut bytes, mut n) = (0, 0, 0);
    let mut next = segs.first().map_or(0, |s| s.meta.first_seq);
    for seg in segs {
        let m = &seg.meta;
        span += m.span();
        bytes += m.data_len;
        let fits =
            span <= core.options.segment_max_events && bytes <= core.options.segment_max_bytes;
        if !m.sealed || m.cold || m.first_seq != next || !fits {
            break;
        }
        next = m.last_seq + 1;
        n += 1;
    }
    n.max(1)
}
