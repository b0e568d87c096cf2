//! Reads the pieces of a read: verifies, filters and collects their records.

use std::sync::Arc;

use topics_storage::format::attrs::Attrs;
use topics_storage::format::frame::{self, Frame};
use topics_storage::segment::{Item, Segment};

use super::plan::reach;
use super::{Reader, gone, missing};
use crate::topic::state::index::{Dead, Entry, Place};
use crate::types::api::{GapReason, Tombstone, TopicMatch};
use crate::types::batch::RecordSlot;
use crate::types::error::Result;

impl Reader<'_> {
    /// Reads resident records. Returns false when the read ends.
    pub(super) fn run_piece(
        &mut self,
        place: &Place,
        lsn: u64,
        records: &[(u64, Entry)],
        upto: u64,
    ) -> Result<bool> {
        let (Some((_, head)), Some((_, tail))) = (records.first(), records.last()) else {
            return Ok(true);
        };
        let (chunk, base, salt) = match place {
            Place::Memory { bytes, .. } => (bytes.clone(), 0, None),
            Place::File { shard, file } => {
                let len = (tail.off - head.off) as usize + tail.len as usize;
                let mut buf = Vec::with_capacity(len);
                let wal = &self.ctx.wal;
                let shard = *shard as usize;
                let open = wal.file(shard, *file).ok_or_else(|| missing("a log file"))?;
                wal.read(shard, *file, head.off, len, &mut buf).map_err(gone)?;
                (Arc::new(buf), head.off, Some(open.header.salt))
            }
        };
        let index = self.out.chunks.len() as u32;
        self.out.chunks.push(chunk.clone());
        for (seq, e) in records {
            let from = (e.off - base) as usize;
            let bytes = chunk.get(from..from + e.len as usize).unwrap_or(&[]);
            let parsed = match salt {
                None => frame::parse(bytes),
                Some(salt) => {
                    let lsn = lsn + u64::from(e.lsn);
                    match frame::verify(bytes, salt, lsn) {
                        Err(_) if self.ctx.base().env.check("read.frame", false) => {
                            frame::parse(bytes)
                        }
                        other => other,
                    }
                }
            };
            let goes_on = match parsed {
                Ok((mut f, _)) => {
                    if salt.is_none() {
                        (f.seq, f.ts) = (*seq, e.ts);
                    }
                    if f.seq == *seq { self.record(&f, &chunk, index) } else { self.damaged(*seq) }
                }
                Err(_) => self.damaged(*seq),
            };
            if !goes_on {
                return Ok(false);
            }
        }
        self.at = self.at.max(upto);
        Ok(true)
    }

    /// Reads a range of a segment. Returns false when the read ends.
    pub(super) fn segment_piece(
        &mut self,
        segment: &Segment,
        dead: &Dead,
        from: u64,
        to: u64,
    ) -> Result<bool> {
        let first = segment.meta().first_seq;
        let is_dead = |seq: u64| dead.contains(u32::try_from(seq - first).unwrap_or(u32::MAX));
        let mut block = std::mem::take(&mut self.buffers.block);
        block.refill(self.buffers.chunks.pop().unwrap_or_default());
        let want = (self.req.limit - self.out.slots.len()) as u64;
        let upto = match &self.req.matching {
            Some(m) => {
                let mut hits = self.hits(segment, m, from, to)?;
                hits.retain(|s| !is_dead(*s));
                let all = hits.len();
                hits.truncate(usize::try_from(want).unwrap_or(usize::MAX));
                let read = segment.read_seqs(&hits, self.left(), &mut block).map_err(gone)?;
                if read == all { to } else { hits.get(read).map_or(hits[read - 1], |s| s - 1) }
            }
            None => {
                // Dead records are skipped for free, so the range extends to the `want`-th live one.
                let to = if want < to - from {
                    reach(dead, from - first, want, to - first) + first
                } else {
                    to
                };
                segment.read(from, to, self.left(), &is_dead, &mut block).map_err(gone)? - 1
            }
        };
        self.out.cold_segments += u32::from(segment.meta().cold);
        let index = self.out.chunks.len() as u32;
        let chunk = block.freeze();
        self.out.chunks.push(chunk.buffer().clone());
        let mut goes_on = true;
        for item in chunk.items() {
            goes_on = match item {
                Item::Record(f) => self.record(&f, chunk.buffer(), index),
                Item::Corrupt(seq) => self.damaged(seq),
            };
            if !goes_on {
                break;
            }
        }
        block.thaw(chunk);
        self.buffers.block = block;
        if goes_on {
            self.at = self.at.max(upto);
        }
        Ok(goes_on)
    }

    /// Adds the live seqs of a range of a segment, without reading it. Returns false when the read
    /// ends.
    pub(super) fn segment_seqs(
        &mut self,
        segment: &Segment,
        dead: &Dead,
        from: u64,
        to: u64,
    ) -> Result<bool> {
        let first = segment.meta().first_seq;
        let is_live = |seq: &u64| !dead.contains(u32::try_from(seq - first).unwrap_or(u32::MAX));
        Ok(match &self.req.matching {
            Some(m) => {
                let hits = self.hits(segment, m, from, to)?;
                self.seqs(hits.into_iter().filter(is_live), to)
            }
            None => self.seqs((from..=to).filter(is_live), to),
        })
    }

    /// Adds records of which only the seq is wanted. Returns false when the read is full.
    pub(super) fn seqs(&mut self, seqs: impl IntoIterator<Item = u64>, upto: u64) -> bool {
        if self.out.chunks.is_empty() {
            // Every record is in a chunk; the fields of these are empty.
            self.out.chunks.push(Arc::default());
        }
        for seq in seqs {
            assert!(seq > self.at, "I4: seq {seq} after {}", self.at);
            if !self.has_capacity() {
                return false;
            }
            self.at = seq;
            self.out.records_scanned += 1;
            self.out.slots.push(RecordSlot { seq, ..RecordSlot::default() });
        }
        self.at = self.at.max(upto);
        true
    }

    /// The ascending seqs of a range whose tag matches.
    fn hits(&self, segment: &Segment, m: &TopicMatch, from: u64, to: u64) -> Result<Vec<u64>> {
        let meta = segment.meta();
        {
            let state = self.topic.state.read();
            if meta.first_seq >= state.tag_index.from {
                let tags = state.tag_index.tags.as_ref();
                return Ok(tags.map(|t| t.find(m.as_tags(), from, to)).unwrap_or_default());
            }
        }
        let mut hits = segment.tag_seqs(m.as_tags(), to).map_err(gone)?;
        hits.drain(..hits.partition_point(|s| *s < from));
        Ok(hits)
    }

    /// Adds a verified record. Returns false when the read is full.
    fn record(&mut self, f: &Frame<'_>, chunk: &Arc<Vec<u8>>, index: u32) -> bool {
        assert!(f.seq > self.at, "I4: seq {} after {}", f.seq, self.at);
        if !self.has_capacity() {
            return false;
        }
        let expires = if f.attrs.is_empty() {
            None
        } else {
            Attrs::decode(f.attrs).and_then(|a| a.expires_at)
        };
        let skipped = |n: &Vec<u8>| !f.node.is_empty() && n == f.node;
        let ctx = self.ctx;
        let passed = expires
            .is_some_and(|at| at < *self.now.get_or_insert_with(|| ctx.base().time.steady()))
            || (self.skip_nodes && self.req.skip_nodes.0.iter().any(skipped));
        let bytes = self.bytes + f.data.len() + f.meta.len();
        if !passed && bytes > self.req.max_bytes && !self.out.slots.is_empty() {
            return false;
        }
        self.at = f.seq;
        self.out.records_scanned += 1;
        if passed {
            return true;
        }
        let at = |part: &[u8]| match part {
            [] => 0,
            part => (part.as_ptr() as usize - chunk.as_ptr() as usize) as u32,
        };
        self.bytes = bytes;
        self.out.slots.push(RecordSlot {
            seq: f.seq,
            ts: f.ts,
            chunk: index,
            node: at(f.node),
            tag: at(f.tag),
            meta: at(f.meta),
            data: at(f.data),
            attrs: at(f.attrs),
            attrs_len: f.attrs.len() as u16,
            node_len: f.node.len() as u16,
            tag_len: f.tag.len() as u16,
            meta_len: f.meta.len() as u32,
            data_len: f.data.len() as u32,
            binary: f.flags.has(topics_storage::format::frame::Flags::BINARY),
        });
        true
    }

    /// Handles a record that fails its checksum (I12). A read that starts there announces it; any other
    /// read ends before it.
    fn damaged(&mut self, seq: u64) -> bool {
        self.ctx.base().metrics.corrupt_records.add(1);
        if let Some(t) = self.out.tombstone.as_mut()
            && t.reason == GapReason::Corrupt
            && t.gap_to + 1 == seq
            && self.at == t.gap_to
        {
            // The damaged range goes on.
            (t.gap_to, t.missed_estimate, self.at) = (seq, t.missed_estimate + 1, seq);
            return true;
        }
        if self.out.tombstone.is_some() || !self.out.slots.is_empty() || !self.starts_at(seq) {
            self.at = self.at.max(seq - 1);
            return false;
        }
        log::error!("topic {:?}: record {seq} is damaged: run verify", self.topic.name);
        self.ctx.base().metrics.tombstones[GapReason::Corrupt as usize].add(1);
        self.out.tombstone = Some(Tombstone {
            gap_from: seq,
            gap_to: seq,
            reason: GapReason::Corrupt,
            missed_estimate: 1,
            earliest_seq: self.out.earliest_seq,
            head_seq: self.out.head_seq,
        });
        self.at = seq;
        true
    }

    /// Whether the read began right before this seq.
    fn starts_at(&self, seq: u64) -> bool {
        self.at + 1 == seq && self.out.records_scanned == 0
    }
}
