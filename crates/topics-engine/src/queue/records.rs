//! The records of jobs: reading them by their seqs, and loading the options of those in segments.

use crate::topic::events::{Base, Ctx};
use crate::topic::load::{self, Need};
use crate::topic::read::read_jobs;
use crate::topic::state::State;
use crate::topic::state::index::Seg;
use crate::topic::{Life, Topic};
use crate::types::api::{ReadFrom, ReadRequest};
use crate::types::batch::ReadBatch;
use crate::types::error::Result;

/// The records of these seqs: a batch, and for each seq its slot in there. `expired` ones are
/// found only when asked for.
pub(crate) fn fetch(
    ctx: &Ctx,
    topic: &Topic,
    seqs: &[u64],
    expired: bool,
) -> Result<(ReadBatch, Vec<Option<usize>>)> {
    let mut sorted = seqs.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut all = ReadBatch::default();
    let mut rest = sorted.as_slice();
    while let Some(first) = rest.first() {
        let n = (1..rest.len()).find(|i| rest[*i] != first + *i as u64).unwrap_or(rest.len());
        let (run, others) = rest.split_at(n);
        rest = others;
        let (mut at, last) = (first - 1, first + run.len() as u64 - 1);
        while at < last {
            let b = read_jobs(ctx, topic, &exactly(at, last), expired)?;
            let next = b.next_from_seq;
            all.absorb(b);
            if next <= at {
                break;
            }
            at = next;
        }
    }
    let found = |seq: &u64| all.slots.binary_search_by_key(seq, |s| s.seq).ok();
    let slots = seqs.iter().map(found).collect();
    Ok((all, slots))
}

fn exactly(after: u64, upto: u64) -> ReadRequest {
    ReadRequest {
        from: ReadFrom::After(after),
        upto: Some(upto),
        limit: (upto - after) as usize,
        max_bytes: usize::MAX,
        touch: false,
        ..ReadRequest::default()
    }
}

impl ReadBatch {
    /// Takes in the records of another batch that come after its own.
    fn absorb(&mut self, other: Self) {
        let shift = self.chunks.len() as u32;
        self.chunks.extend(other.chunks);
        let moved = other.slots.into_iter().map(|mut s| {
            s.chunk += shift;
            s
        });
        self.slots.extend(moved);
    }
}

/// Whether jobs with options may be in segments without being known.
pub(crate) fn needs_load(state: &State) -> bool {
    !state.queue.as_ref().is_some_and(|q| q.loaded) && state.index.segs.iter().any(has_options)
}

fn has_options(segment: &Seg) -> bool {
    segment.live_count > 0 && segment.meta.has_attrs
}

/// Makes jobs with options known that were in segments when the engine opened.
pub(crate) fn load(base: &Base, topic: &Topic) -> Result<()> {
    while topic.life() == Life::Live {
        let (structure, metas) = {
            let state = topic.state.read();
            if state.queue.as_ref().is_some_and(|q| q.loaded) {
                return Ok(());
            }
            let segments = state.index.segs.iter().filter(|s| has_options(s));
            let metas: Vec<_> = segments.map(|s| s.meta).collect();
            (state.checkpoint.structure, metas)
        };
        let mut rows = Vec::new();
        for meta in metas {
            if topic.state.read().unknown_dead(meta.file_no) {
                load::provide(base, topic, &Need::Dead(meta.file_no))?;
            }
            let table = base.segments.segment(topic.key, meta).attrs();
            let Some(table) = topic.unless_gone(&meta, table)? else { continue };
            rows.extend_from_slice(table.rows());
        }
        let mut state = topic.state.write();
        if state.checkpoint.structure != structure {
            continue;
        }
        rows.retain(|r| state.may_live(r.seq));
        let queue = state.queue.get_or_insert_default();
        rows.iter().for_each(|r| queue.add_options(r));
        queue.loaded = true;
    }
    Ok(())
}
