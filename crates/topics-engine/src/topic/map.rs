//! Where a topic's records lie, from its index; no file is read.

use super::Topic;
use super::state::index::{IndexSpan, Place};
use crate::types::error::Result;

/// The place that holds records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tier {
    /// Memory: the records are not written yet, or never will be.
    Memory,
    /// The log, until a checkpoint copies them.
    Log,
    /// A segment.
    Segment,
    /// A segment whose payloads are in the cold tier.
    Cold,
}

impl Tier {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Log => "log",
            Self::Segment => "segment",
            Self::Cold => "cold",
        }
    }
}

/// A segment, or a range of records that no segment has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqRange {
    /// The place that holds the records.
    pub tier: Tier,
    /// The first seq that it covers.
    pub first_seq: u64,
    /// The last seq that it covers.
    pub last_seq: u64,
    /// Live records.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Commit time of the first record, ms.
    pub first_ts: u64,
    /// Commit time of the last record, ms.
    pub last_ts: u64,
    /// The number of a segment's files.
    pub file_no: Option<u64>,
    /// The length of a segment's payload file.
    pub file_bytes: u64,
    /// Whether the segment is sealed: no record is added to it.
    pub sealed: bool,
}

/// Where the records of a topic lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentMap {
    /// The topic's id.
    pub topic_id: u64,
    /// Last assigned seq that readers may see.
    pub head_seq: u64,
    /// The first seq that may be live.
    pub earliest_seq: u64,
    /// Segments and ranges, by seq.
    pub ranges: Vec<SeqRange>,
}

/// Makes the map. Records that expired since the last sweep are still in it.
pub(crate) fn segment_map(topic: &Topic) -> Result<SegmentMap> {
    topic.check_sound()?;
    let state = topic.state.read();
    let head_seq = topic.gate.head();
    let mut ranges: Vec<SeqRange> = Vec::new();
    for part in state.index.parts_from(state.range.earliest) {
        let Some(one) = seq_range(&part) else { continue };
        match ranges.last_mut() {
            // Adjacent runs of one tier are one range, because each write may be a run.
            Some(last) if last.file_no.is_none() && last.tier == one.tier => {
                last.last_seq = one.last_seq;
                last.last_ts = one.last_ts;
                last.count += one.count;
                last.bytes += one.bytes;
            }
            _ => ranges.push(one),
        }
    }
    ranges.retain(|s| s.first_seq <= head_seq);
    let earliest_seq = state.range.earliest.min(head_seq + 1);
    Ok(SegmentMap { topic_id: topic.id(), head_seq, earliest_seq, ranges })
}

fn seq_range(part: &IndexSpan<'_>) -> Option<SeqRange> {
    match part {
        IndexSpan::Seg(seg) => {
            let meta = &seg.meta;
            (meta.span() > 0).then_some(SeqRange {
                tier: if meta.cold { Tier::Cold } else { Tier::Segment },
                first_seq: meta.first_seq,
                last_seq: meta.last_seq,
                count: seg.live_count,
                bytes: seg.live_bytes,
                first_ts: meta.first_ts,
                last_ts: meta.last_ts,
                file_no: Some(meta.file_no),
                file_bytes: meta.data_len,
                sealed: meta.sealed,
            })
        }
        IndexSpan::Run(run) => {
            let (first, last) = (run.entries.front()?, run.entries.back()?);
            let live = run.entries.iter().filter(|e| !e.dead());
            let (count, bytes) = live.fold((0, 0), |(n, sum), e| (n + 1, sum + e.payload()));
            Some(SeqRange {
                tier: match run.place {
                    Place::File { .. } => Tier::Log,
                    Place::Memory { .. } => Tier::Memory,
                },
                first_seq: run.first,
                last_seq: run.last(),
                count,
                bytes,
                first_ts: first.ts,
                last_ts: last.ts,
                file_no: None,
                file_bytes: 0,
                sealed: false,
            })
        }
    }
}
