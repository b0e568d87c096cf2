//! Reading one segment.

use std::sync::Arc;

use super::block::{Block, Slot};
use super::index::{entry_at, is_chain};
use super::layout::{DATA_HEADER, FRAME_FIXED, corrupt, frame_ts, verify_frame};
use super::open::{Data, Index, OpenSegment};
use super::{IdxEntry, SegmentMeta, Segments, TopicKey};
use crate::dir::show;
use crate::{Result, StorageError};

/// Maximum number of unneeded bytes between two records that one read covers.
const BRIDGE: u32 = 16 << 10;
/// Maximum bytes of one read call, unless a single record is larger.
const RUN: u32 = 8 << 20;
/// Maximum index entries of one read call.
const ENTRIES: u64 = 8192;

/// A reader of one segment. Cheap to create and to clone; it opens files on first use.
#[derive(Clone, Debug)]
pub struct Segment {
    pub(super) segs: Arc<Segments>,
    topic: TopicKey,
    meta: SegmentMeta,
}

/// One read: the records of `seqs` in `lo..=hi`, until `budget` bytes of frames. Unless `any` is set, the
/// first record is read even if it is larger.
struct ReadRequest<I> {
    lo: u64,
    hi: u64,
    seqs: I,
    budget: usize,
    any: bool,
}

impl Segment {
    pub(super) fn new(segs: Arc<Segments>, topic: TopicKey, meta: SegmentMeta) -> Self {
        Self { segs, topic, meta }
    }

    /// Its entry in the snapshot.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    pub fn topic(&self) -> TopicKey {
        self.topic
    }

    pub(super) fn open_segment(&self) -> Arc<OpenSegment> {
        self.segs.open_segment(self.topic, self.meta.file_no)
    }

    /// The salt that the files of the segment share.
    pub(super) fn salt(&self) -> Result<u64> {
        self.open_segment().salt(&self.segs, &self.meta)
    }

    /// Opens its `.data`; returns it with the salt of its frames.
    pub(super) fn data(&self) -> Result<(Arc<Data>, u64)> {
        self.open_segment().data_and_salt(&self.segs, &self.meta)
    }

    /// Checks the header of its `.data`. Reads take the salt from `.idx` and do not need it.
    pub fn check_header(&self) -> Result<()> {
        self.open_segment().data(&self.segs, &self.meta)?.salt.clone().map(drop)
    }

    /// The index entries of `from..=to` (clipped to the segment). They are checked: against the
    /// checksum of a sealed `.idx`, against the records of an active one.
    pub fn entries(&self, from: u64, to: u64) -> Result<Vec<IdxEntry>> {
        let (from, to) = (from.max(self.meta.first_seq), to.min(self.meta.last_seq));
        if from > to {
            return Ok(Vec::new());
        }
        let open = self.open_segment();
        let index = open.index(&self.segs, &self.meta, to)?;
        let (mut scratch, mut out) = (Vec::new(), Vec::new());
        self.load(&open, &index, from, to, &mut scratch, &mut out)?;
        Ok(out)
    }

    pub(super) fn load(
        &self,
        open: &OpenSegment,
        index: &Index,
        from: u64,
        to: u64,
        scratch: &mut Vec<u8>,
        out: &mut Vec<IdxEntry>,
    ) -> Result<()> {
        let path = open.idx_path(&self.segs, &self.meta);
        let base = self.meta.first_seq;
        let io = |e| StorageError::io(show(&path), e);
        if index.load(from - base, to - base, scratch, out).map_err(io)? {
            return Ok(());
        }
        Err(corrupt(&show(&path), entry_at(from - base), "shorter than named"))
    }

    /// Appends the records of `from..=to` to `out`, up to `max_bytes` of frames and at least one if
    /// there is any. Skips holes and the records that `dead` selects (the caller knows the
    /// deletes). Returns the seq after the last one examined: `to + 1` (clipped to the segment) at
    /// the end of the range. An I/O error is an error; a damaged record is an item.
    pub fn read(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
        dead: &dyn Fn(u64) -> bool,
        out: &mut Block,
    ) -> Result<u64> {
        let (mut at, to) = (from.max(self.meta.first_seq), to.min(self.meta.last_seq));
        out.topic_id = self.topic.topic_id;
        let (begin, mut budget) = (out.slots.len(), max_bytes);
        while at <= to && (budget > 0 || out.slots.len() == begin) {
            // The shortest frame bounds the number of records in the budget.
            let most = (budget / FRAME_FIXED) as u64 + 1;
            let end = to.min(at + most.min(ENTRIES) - 1);
            let seqs = (at..=end).filter(|&s| !dead(s));
            let any = out.slots.len() > begin;
            let request = ReadRequest { lo: at, hi: end, seqs, budget, any };
            let (next, bytes) = match self.fill(&request, out) {
                // The records so far are returned; the next read waits for the others.
                Err(StorageError::Fetching(_)) if any => break,
                filled => filled?,
            };
            let stopped = next <= end;
            at = next;
            budget = budget.saturating_sub(bytes);
            if stopped {
                break;
            }
        }
        Ok(at)
    }

    /// Appends the records of these ascending seqs to `out`, up to `max_bytes` of frames and at
    /// least one if there is any; returns the number of seqs examined. Adjacent records share a
    /// read. Seqs outside the segment are skipped.
    pub fn read_seqs(&self, seqs: &[u64], max_bytes: usize, out: &mut Block) -> Result<usize> {
        out.topic_id = self.topic.topic_id;
        let (begin, mut budget, mut done) = (out.slots.len(), max_bytes, 0);
        while let Some(&first) = seqs.get(done) {
            if !self.meta.contains(first) {
                done += 1;
                continue;
            }
            let near = seqs[done..]
                .partition_point(|&s| s < first + ENTRIES / 8 && s <= self.meta.last_seq);
            let part = &seqs[done..done + near];
            let (lo, hi) = (first, part[near - 1]);
            let (seqs, any) = (part.iter().copied(), out.slots.len() > begin);
            let (next, bytes) = match self.fill(&ReadRequest { lo, hi, seqs, budget, any }, out) {
                Err(StorageError::Fetching(_)) if any => break,
                filled => filled?,
            };
            done += part.partition_point(|&s| s < next);
            budget = budget.saturating_sub(bytes);
            if next <= hi || budget == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// Appends the requested records. Returns the next seq and the bytes of the frames.
    fn fill<I: Iterator<Item = u64> + Clone>(
        &self,
        request: &ReadRequest<I>,
        out: &mut Block,
    ) -> Result<(u64, usize)> {
        let open = self.open_segment();
        let before = (out.slots.len(), out.used);
        let mut trust = 0;
        loop {
            let index = match open.index(&self.segs, &self.meta, trust) {
                Ok(index) => index,
                // Neither the index nor the records are readable: every seq is damaged.
                Err(StorageError::Corrupt { file, .. }) => {
                    for seq in request.seqs.clone() {
                        self.segs.count_corrupt(&file, seq, 0);
                        out.corrupt(seq);
                    }
                    return Ok((request.hi + 1, 0));
                }
                Err(e) => return Err(e),
            };
            let trusted = index.trusted_to >= request.hi;
            if self.load_checked(&open, &index, request.lo, request.hi, out)? {
                let next = out.pick(
                    request.lo,
                    request.hi,
                    request.seqs.clone(),
                    request.budget,
                    request.any,
                );
                let picks = std::mem::take(&mut out.picks);
                let fetched = self.fetch(&open, trusted, &picks, out);
                let read = fetched.as_ref().map_or(0, |f| f.unwrap_or(0));
                let bytes = picks.iter().take(read).map(|(_, e)| e.len as usize).sum();
                let next = picks.get(read).map_or(next, |(seq, _)| *seq);
                out.picks = picks;
                if fetched?.is_some() {
                    return Ok((next, bytes));
                }
            }
            // Retry with an index that was compared with the records.
            out.slots.truncate(before.0);
            out.used = before.1;
            trust = request.hi;
        }
    }

    /// Loads the entries `lo..=hi` into `out`. For an index that was not checked, also checks that
    /// they form a chain with their neighbours.
    fn load_checked(
        &self,
        open: &OpenSegment,
        index: &Index,
        lo: u64,
        hi: u64,
        out: &mut Block,
    ) -> Result<bool> {
        let (scratch, entries) = (&mut out.scratch, &mut out.entries);
        if index.trusted_to >= hi {
            return self.load(open, index, lo, hi, scratch, entries).map(|()| true);
        }
        let m = &self.meta;
        let (from, to) = (lo.max(m.first_seq + 1) - 1, (hi + 1).min(m.last_seq));
        match self.load(open, index, from, to, scratch, entries) {
            Err(StorageError::Corrupt { .. }) => return Ok(false),
            other => other?,
        }
        let begin = (from == m.first_seq).then_some(DATA_HEADER as u64);
        let end = (to == m.last_seq).then_some(m.data_len);
        let sound = is_chain(entries, begin, end);
        entries.drain(..(lo - from) as usize);
        Ok(self.segs.env.check("segment.idx-chain", sound))
    }

    /// Reads and checks the selected records. Returns how many: fewer if the others are not fetched yet;
    /// `None` if an unchecked index is wrong.
    fn fetch(
        &self,
        open: &OpenSegment,
        trusted: bool,
        picks: &[(u64, IdxEntry)],
        out: &mut Block,
    ) -> Result<Option<usize>> {
        if picks.is_empty() {
            return Ok(Some(0));
        }
        let (data, salt) = match open.data_and_salt(&self.segs, &self.meta) {
            Ok(found) => found,
            Err(StorageError::Corrupt { file, .. }) => {
                for (seq, e) in picks {
                    self.segs.count_corrupt(&file, *seq, e.offset);
                    out.corrupt(*seq);
                }
                return Ok(Some(picks.len()));
            }
            Err(e) => return Err(e),
        };
        let mut rest = picks;
        while !rest.is_empty() {
            let (run, after) = rest.split_at(run_length(rest, self.meta.data_len));
            let read = picks.len() - rest.len();
            let begin = u64::from(run[0].1.offset);
            let end = run.iter().map(|(_, e)| u64::from(e.offset) + u64::from(e.len)).max();
            let end = end.unwrap_or(begin).min(self.meta.data_len).max(begin);
            let base = out.extend_zeroed((end - begin) as usize);
            let before = out.slots.len();
            match data.read(&mut out.buf[base..out.used], begin) {
                Err(StorageError::Fetching(_)) if read > 0 => return Ok(Some(read)),
                done => done?,
            }
            rest = after;
            for (seq, e) in run {
                let at = base + (u64::from(e.offset) - begin) as usize;
                if self.check_frame(out, at, *seq, e, salt, trusted) {
                    out.slots.push(Slot { seq: *seq, at, len: e.len });
                } else if trusted && data.reads_again(u64::from(e.offset), u64::from(e.len)) {
                    out.slots.truncate(before);
                    rest = &picks[read..];
                    break;
                } else if trusted {
                    self.segs.count_corrupt(&data.file, *seq, e.offset);
                    out.corrupt(*seq);
                } else {
                    return Ok(None);
                }
            }
        }
        Ok(Some(picks.len()))
    }

    /// Whether the frame of an entry is at `at` of the buffer (I12) and, for an unchecked index,
    /// agrees with the entry.
    fn check_frame(
        &self,
        out: &Block,
        at: usize,
        seq: u64,
        e: &IdxEntry,
        salt: u64,
        trusted: bool,
    ) -> bool {
        let Some(frame) = out.buf[..out.used].get(at..at + e.len as usize) else { return false };
        let good = verify_frame(frame, salt, seq).is_some();
        self.segs.env.check("segment.frame", good)
            && (trusted || !good || (frame_ts(frame) == e.ts && frame[4] == e.flags))
    }
}

/// The number of selected records that one read call covers: they are close together and within the
/// file.
fn run_length(picks: &[(u64, IdxEntry)], data_len: u64) -> usize {
    let begin = picks[0].1.offset;
    let mut end = begin.saturating_add(picks[0].1.len);
    for (n, (_, e)) in picks.iter().enumerate().skip(1) {
        let near = e.offset >= begin && e.offset <= end.saturating_add(BRIDGE);
        let next = e.offset.saturating_add(e.len);
        if !near || next - begin > RUN || u64::from(next) > data_len {
            return n;
        }
        end = end.max(next);
    }
    picks.len()
}
