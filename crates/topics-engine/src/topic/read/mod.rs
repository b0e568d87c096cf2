//! Reading: position → one piece after the other → a batch.
//!
//! A piece (a run of resident records in one file, or a range of one segment) is planned under the
//! state lock, then read without it, verified and filtered. The next piece sees changes of the topic
//! since. A gap ends the read before it.

mod plan;
mod position;

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::StorageError;
use topics_storage::format::attrs::Attrs;
use topics_storage::format::frame::{self, Frame};
use topics_storage::segment::{Item, Segment};

use self::plan::{Piece, reach};
use self::position::position;
pub(crate) use self::position::{seek, synced_seq};
use super::load::Loader;
use super::retention::{self, Expired, Need, with_expired};
use super::state::index::{Dead, Entry, Place};
use super::{Topic, delete};
use crate::topic::events::Ctx;
use crate::types::api::{GapReason, ReadRequest, Tombstone, TopicMatch};
use crate::types::batch::{ReadBatch, ReadBuffers, RecordSlot};
use crate::types::error::{Error, Result};

/// Maximum number of records that one call scans, however few it returns.
const MAX_SCANNED: u64 = 200_000;
/// Maximum number of pieces that one call reads, so that a filter without matches does not read the
/// whole topic.
const MAX_PIECES: usize = 1024;
/// Bytes of one read from a WAL file, unless one record is larger.
const BLOCK: usize = 1 << 20;
/// Maximum bytes between two records of a topic that one read spans.
const BRIDGE: u64 = 8 << 10;
/// How often a plan is repeated because its files were removed meanwhile.
const RETRIES: usize = 64;

/// Reads records.
pub(crate) fn read(core: &Ctx, topic: &Topic, req: &ReadRequest) -> Result<ReadBatch> {
    read_as(core, topic, req, false)
}

/// Reads records into the buffers of earlier reads.
pub(crate) fn read_with(
    core: &Ctx,
    topic: &Topic,
    req: &ReadRequest,
    buffers: &mut ReadBuffers,
) -> Result<ReadBatch> {
    read_from(core, topic, req, false, buffers)
}

/// Reads records; with `expired`, also expired ones that were not removed yet.
pub(crate) fn read_as(
    core: &Ctx,
    topic: &Topic,
    req: &ReadRequest,
    expired: bool,
) -> Result<ReadBatch> {
    read_from(core, topic, req, expired, &mut ReadBuffers::default())
}

fn read_from(
    core: &Ctx,
    topic: &Topic,
    req: &ReadRequest,
    expired: bool,
    buffers: &mut ReadBuffers,
) -> Result<ReadBatch> {
    topic.check_sound()?;
    core.metrics.reads.add(1);
    if req.touch {
        topic.last_read.store(core.time.steady(), Ordering::Relaxed);
    }
    if req.matching.is_some() {
        delete::load_active_tags(core, topic)?;
    }
    let mut r = Reader::new(core, topic, req, expired, buffers)?;
    r.run()?;
    r.finish()
}

/// A read in progress.
struct Reader<'a> {
    core: &'a Ctx,
    topic: &'a Topic,
    req: &'a ReadRequest,
    /// Whether node filtering applies.
    skip_nodes: bool,
    now: u64,
    /// Every seq up to here is returned or skipped.
    at: u64,
    /// The last seq to read.
    bound: u64,
    /// The records that had expired when the read began; fixed, so that the clock cannot change it
    /// during the read.
    expired: Option<Expired>,
    out: ReadBatch,
    bytes: usize,
    buffers: &'a mut ReadBuffers,
}

impl<'a> Reader<'a> {
    fn new(
        core: &'a Ctx,
        topic: &'a Topic,
        req: &'a ReadRequest,
        also_expired: bool,
        buffers: &'a mut ReadBuffers,
    ) -> Result<Self> {
        let synced = req.strong.then(|| core.wal.positions(core.shard(topic.id())).synced);
        let p = loop {
            let p = with_expired(core, topic, |state, expired| {
                let expired = expired.filter(|_| !also_expired);
                position(topic, state, expired, req, synced)
            })?;
            match p {
                Ok(p) => break p,
                Err(unknown) => retention::provide(core, topic, &Need::Dead(unknown))?,
            }
        };
        let mut out = ReadBatch {
            topic_id: topic.id(),
            head_seq: p.head,
            earliest_seq: p.earliest,
            slots: std::mem::take(&mut buffers.slots),
            ..ReadBatch::default()
        };
        if let Some((gap_from, gap_to, reason)) = p.tombstone {
            core.metrics.tombstones[reason as usize].add(1);
            out.tombstone = Some(Tombstone {
                gap_from,
                gap_to,
                reason,
                missed_estimate: gap_to + 1 - gap_from,
                earliest_seq: p.earliest,
                head_seq: p.head,
            });
        }
        Ok(Self {
            core,
            topic,
            req,
            skip_nodes: p.skip_nodes && !req.skip_nodes.0.is_empty(),
            now: if also_expired { 0 } else { core.time.steady() },
            at: p.at,
            bound: p.bound,
            expired: p.expired,
            out,
            bytes: 0,
            buffers,
        })
    }

    fn run(&mut self) -> Result<()> {
        let (mut retries, mut pieces) = (0, 0);
        while self.has_capacity()
            && self.at < self.bound
            && self.out.records_scanned < MAX_SCANNED
            && pieces < MAX_PIECES
        {
            pieces += 1;
            let piece = self.plan();
            let before = self.at;
            let done = match piece {
                Piece::End => break,
                Piece::Skip(to) => {
                    self.at = to;
                    Ok(true)
                }
                Piece::Unknown(file_no) => {
                    retention::provide(self.core, self.topic, &Need::Dead(file_no))?;
                    Ok(true)
                }
                Piece::Run { place, lsn, records, upto } => {
                    self.run_piece(&place, lsn, &records, upto)
                }
                Piece::Segment { segment, dead, from, to } => {
                    self.segment_piece(&segment, &dead, from, to)
                }
            };
            match done {
                Ok(true) => {}
                Ok(false) => break,
                // A checkpoint moved the records between plan and read: the next plan finds them.
                Err(Error::StorageUnavailable { reason: "missing", detail }) => {
                    retries += 1;
                    if retries > RETRIES {
                        return Err(Error::StorageUnavailable { reason: "io", detail });
                    }
                }
                Err(e) => return Err(e),
            }
            debug_assert!(self.at >= before);
        }
        Ok(())
    }

    /// Whether another record may be returned.
    fn has_capacity(&self) -> bool {
        self.out.slots.len() < self.req.limit
            && (self.out.slots.is_empty() || self.bytes < self.req.max_bytes)
    }

    fn left(&self) -> usize {
        self.req.max_bytes.saturating_sub(self.bytes)
    }

    /// Reads resident records. Returns false when the read ends.
    fn run_piece(
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
                let wal = &self.core.wal;
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
                        Err(_) if self.core.env.check("read.frame", false) => frame::parse(bytes),
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
    fn segment_piece(
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

    /// The ascending seqs of a range whose tag matches.
    fn hits(&self, segment: &Segment, m: &TopicMatch, from: u64, to: u64) -> Result<Vec<u64>> {
        let meta = segment.meta();
        {
            let state = self.topic.state.read();
            if meta.first_seq >= state.tags_from {
                let tags = state.tags.as_ref();
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
        let passed = expires.is_some_and(|at| at < self.now)
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
        self.core.metrics.corrupt_records.add(1);
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
        self.core.metrics.tombstones[GapReason::Corrupt as usize].add(1);
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

    fn finish(mut self) -> Result<ReadBatch> {
        let out = &mut self.out;
        out.next_from_seq = self.at;
        out.caught_up = self.at >= out.head_seq;
        out.lag = out.head_seq.saturating_sub(self.at);
        self.core.metrics.read_records.add(out.slots.len() as u64);
        self.core.metrics.read_bytes.add(self.bytes as u64);
        if !self.out.caught_up {
            let next = self.next_ts()?;
            self.out.lag_ms = next.map_or(0, |ts| self.core.time.steady().saturating_sub(ts));
        }
        Ok(self.out)
    }

    /// The commit time of the next unread record.
    fn next_ts(&self) -> Result<Option<u64>> {
        let (seq, meta) = {
            let state = self.topic.state.read();
            match state.index.next_live(self.at + 1) {
                Ok(Some(seq)) => match state.index.entry(seq) {
                    Some(e) => return Ok(Some(e.ts)),
                    None => (seq, state.index.seg_of(seq).map(|s| s.meta)),
                },
                _ => return Ok(None),
            }
        };
        let Some(meta) = meta else { return Ok(None) };
        let loader = Loader::without_hints(&self.core.segments, self.topic.key);
        match loader.segment(&meta).entries(seq, seq) {
            Ok(entries) => Ok(entries.first().map(|e| e.ts)),
            Err(StorageError::Missing { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

fn missing(what: &str) -> Error {
    Error::StorageUnavailable { reason: "missing", detail: format!("{what} is gone") }
}

/// Turns a missing file into the error that makes the read plan again.
fn gone(e: StorageError) -> Error {
    match e {
        StorageError::Missing { what } => missing(&what),
        e => e.into(),
    }
}
