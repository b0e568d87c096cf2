//! Reading one segment.

use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_env::OpenMode;

use super::block::{Block, Slot};
use super::core::{Core, Data, Index, io_error};
use super::index::is_chain;
use super::layout::{DATA_HEADER, frame_ts, parse_frame, verify_frame};
use super::scan::{Found, scan, start};
use super::tags::{TagMap, TagsFile};
use super::{AttrRow, AttrsTable, IdxEntry, Part, SegmentMeta, Segments, TopicKey, deleted};
use crate::dir::{read_file, show};
use crate::format::frame::Flags;
use crate::{Result, StorageError};

/// Dead bytes between two records that are read along rather than passed over.
const BRIDGE: u32 = 16 << 10;
/// The most that one read call asks for, unless one record is larger.
const RUN: u32 = 8 << 20;
/// The most index entries that one read call asks for.
const ENTRIES: u64 = 8192;

/// What a tag must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagMatch<'a> {
    /// Exactly this.
    Eq(&'a [u8]),
    /// Anything that begins with this.
    Prefix(&'a [u8]),
}

impl TagMatch<'_> {
    /// Whether a record's tag is one of these. A record without a tag never matches.
    pub fn matches(&self, tag: &[u8]) -> bool {
        match self {
            Self::Eq(t) => tag == *t,
            Self::Prefix(t) => tag.starts_with(t),
        }
    }
}

/// A reader of one segment. Cheap to make and to clone; files are opened on first use.
#[derive(Clone, Debug)]
pub struct Segment {
    pub(super) segs: Arc<Segments>,
    topic: TopicKey,
    meta: SegmentMeta,
}

/// Whether a read must be repeated with a checked index.
#[derive(PartialEq, Eq)]
enum Doubt {
    None,
    Index,
}

impl Segment {
    pub(super) fn new(segs: Arc<Segments>, topic: TopicKey, meta: SegmentMeta) -> Self {
        Self { segs, topic, meta }
    }

    /// What it was made from.
    pub fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    /// Its topic.
    pub fn topic(&self) -> TopicKey {
        self.topic
    }

    pub(super) fn core(&self) -> Arc<Core> {
        self.segs.core(self.topic, self.meta.file_no)
    }

    /// The salt that ties its files together.
    pub(super) fn salt(&self) -> Result<u64> {
        self.core().salt(&self.segs, &self.meta)
    }

    /// Opens its `.data` and says which salt its frames have.
    pub(super) fn data(&self) -> Result<(Arc<Data>, u64)> {
        self.core().data_and_salt(&self.segs, &self.meta)
    }

    /// The index entries of `from..=to` (clipped to the segment), the first for `from`. They are
    /// checked: against the checksum of a sealed `.idx`, against the records of an active one.
    pub fn entries(&self, from: u64, to: u64) -> Result<Vec<IdxEntry>> {
        let (from, to) = (from.max(self.meta.first_seq), to.min(self.meta.last_seq));
        if from > to {
            return Ok(Vec::new());
        }
        let core = self.core();
        let index = core.index(&self.segs, &self.meta, to)?;
        let (mut scratch, mut out) = (Vec::new(), Vec::new());
        self.load(&core, &index, from, to, &mut scratch, &mut out)?;
        Ok(out)
    }

    fn load(
        &self,
        core: &Core,
        index: &Index,
        from: u64,
        to: u64,
        scratch: &mut Vec<u8>,
        out: &mut Vec<IdxEntry>,
    ) -> Result<()> {
        let path = core.idx_path(&self.segs, &self.meta);
        let base = self.meta.first_seq;
        let io = |e| StorageError::io(show(&path), e);
        if index.load(from - base, to - base, scratch, out).map_err(io)? {
            return Ok(());
        }
        let at = super::index::entry_at(from - base);
        Err(super::layout::corrupt(&show(&path), at, "shorter than named"))
    }

    /// Appends the records of `from..=to` to `out`, without holes and without those for which
    /// `dead` says true (the caller decides about deletes), until `max_bytes` of frames; at least
    /// one if there is any. Returns the seq after the last one looked at: `to + 1` (clipped to
    /// the segment) when the range is done. An I/O error is an error; a damaged record is an item.
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
            // The shortest frame says how many records the budget can hold.
            let most = (budget / super::layout::FRAME_FIXED) as u64 + 1;
            let end = to.min(at + most.min(ENTRIES) - 1);
            let seqs = (at..=end).filter(|&s| !dead(s));
            let (next, bytes) = self.fill(at, end, seqs, budget, out.slots.len() > begin, out)?;
            let stopped = next <= end;
            at = next;
            budget = budget.saturating_sub(bytes);
            if stopped {
                break;
            }
        }
        Ok(at)
    }

    /// Appends the records of these ascending seqs to `out`, until `max_bytes` of frames, at
    /// least one if there is any; returns how many of the seqs were looked at. Neighbours share
    /// a read. Seqs outside the segment are passed over.
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
            let any = out.slots.len() > begin;
            let (next, bytes) = self.fill(lo, hi, part.iter().copied(), budget, any, out)?;
            done += part.partition_point(|&s| s < next);
            budget = budget.saturating_sub(bytes);
            if next <= hi || budget == 0 {
                break;
            }
        }
        Ok(done)
    }

    /// Appends the records among `seqs`, which lie in `lo..=hi`; stops where `budget` does, but
    /// not before the first record of a read that has `any` none yet. Returns the next seq and
    /// the bytes of the frames.
    fn fill(
        &self,
        lo: u64,
        hi: u64,
        seqs: impl Iterator<Item = u64> + Clone,
        budget: usize,
        any: bool,
        out: &mut Block,
    ) -> Result<(u64, usize)> {
        let core = self.core();
        let before = (out.slots.len(), out.used);
        let mut trust = 0;
        loop {
            let index = match core.index(&self.segs, &self.meta, trust) {
                Ok(index) => index,
                // Neither the index nor the records can be read: every seq is damaged.
                Err(StorageError::Corrupt { file, .. }) => {
                    let seqs = seqs.clone();
                    seqs.for_each(|seq| {
                        self.segs.count_corrupt(&file, seq, 0);
                        out.corrupt(seq);
                    });
                    return Ok((hi + 1, 0));
                }
                Err(e) => return Err(e),
            };
            let trusted = index.trusted_to >= hi;
            let mut entries = std::mem::take(&mut out.entries);
            let mut scratch = std::mem::take(&mut out.scratch);
            let sound = self.load_checked(&core, &index, lo, hi, &mut scratch, &mut entries);
            out.scratch = scratch;
            let next = match sound {
                Ok(true) => self.pick(lo, hi, seqs.clone(), &entries, budget, any, out),
                Ok(false) => lo,
                Err(ref e) => {
                    out.entries = entries;
                    return Err(e.clone());
                }
            };
            out.entries = entries;
            let doubt = match sound {
                Ok(true) => self.fetch(&core, trusted, out)?,
                _ => Doubt::Index,
            };
            if doubt == Doubt::Index && !trusted {
                out.slots.truncate(before.0);
                out.used = before.1;
                trust = hi;
                continue;
            }
            let bytes = out.picks.iter().map(|(_, e)| e.len as usize).sum();
            return Ok((next, bytes));
        }
    }

    /// Loads the entries `lo..=hi`; of an index that was not checked, also looks whether they
    /// and their neighbours are a chain.
    fn load_checked(
        &self,
        core: &Core,
        index: &Index,
        lo: u64,
        hi: u64,
        scratch: &mut Vec<u8>,
        out: &mut Vec<IdxEntry>,
    ) -> Result<bool> {
        if index.trusted_to >= hi {
            return self.load(core, index, lo, hi, scratch, out).map(|()| true);
        }
        let m = &self.meta;
        let (from, to) = (lo.max(m.first_seq + 1) - 1, (hi + 1).min(m.last_seq));
        match self.load(core, index, from, to, scratch, out) {
            Err(StorageError::Corrupt { .. }) => return Ok(false),
            other => other?,
        }
        let begin = (from == m.first_seq).then_some(DATA_HEADER as u64);
        let end = (to == m.last_seq).then_some(m.data_len);
        let sound = self.segs.env.check("segment.idx-chain", is_chain(out, begin, end));
        out.drain(..(lo - from) as usize);
        Ok(sound)
    }

    /// Chooses what to read: into `out.picks`. Returns the seq after the last one looked at.
    #[allow(clippy::too_many_arguments)]
    fn pick(
        &self,
        lo: u64,
        hi: u64,
        seqs: impl Iterator<Item = u64>,
        entries: &[IdxEntry],
        budget: usize,
        any: bool,
        out: &mut Block,
    ) -> u64 {
        out.picks.clear();
        let mut left = budget;
        for seq in seqs {
            let e = entries[(seq - lo) as usize];
            if e.is_hole() {
                continue;
            }
            let len = e.len as usize;
            if len > left && (any || !out.picks.is_empty()) {
                return seq;
            }
            left = left.saturating_sub(len);
            out.picks.push((seq, e));
        }
        hi + 1
    }

    /// Reads and checks what was picked.
    fn fetch(&self, core: &Core, trusted: bool, out: &mut Block) -> Result<Doubt> {
        if out.picks.is_empty() {
            return Ok(Doubt::None);
        }
        let picks = std::mem::take(&mut out.picks);
        let outcome = self.fetch_picks(core, trusted, &picks, out);
        out.picks = picks;
        outcome
    }

    fn fetch_picks(
        &self,
        core: &Core,
        trusted: bool,
        picks: &[(u64, IdxEntry)],
        out: &mut Block,
    ) -> Result<Doubt> {
        let (data, salt) = match core.data_and_salt(&self.segs, &self.meta) {
            Ok(found) => found,
            Err(StorageError::Corrupt { file, .. }) => {
                for (seq, e) in picks {
                    self.segs.count_corrupt(&file, *seq, e.offset);
                    out.corrupt(*seq);
                }
                return Ok(Doubt::None);
            }
            Err(e) => return Err(e),
        };
        let mut rest = picks;
        while !rest.is_empty() {
            let (run, after) = rest.split_at(run_length(rest, self.meta.data_len));
            rest = after;
            let begin = u64::from(run[0].1.offset);
            let end = run.iter().map(|(_, e)| u64::from(e.offset) + u64::from(e.len)).max();
            let end = end.unwrap_or(begin).min(self.meta.data_len).max(begin);
            let base = out.room((end - begin) as usize);
            data.read(&mut out.buf[base..out.used], begin)?;
            for (seq, e) in run {
                let at = base + (u64::from(e.offset) - begin) as usize;
                if self.check_frame(out, at, *seq, e, salt, trusted) {
                    out.slots.push(Slot { seq: *seq, at, len: e.len });
                } else if trusted {
                    self.segs.count_corrupt(&data.file, *seq, e.offset);
                    out.corrupt(*seq);
                } else {
                    return Ok(Doubt::Index);
                }
            }
        }
        Ok(Doubt::None)
    }

    /// Whether the frame that an entry names is at `at` of the buffer (I12), and says the same as
    /// the entry where that was not checked.
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

    /// The first seq whose commit time is at least `ts`; `last_seq + 1` when there is none. A
    /// hole has the time of the record before it.
    pub fn seek_ts(&self, ts: u64) -> Result<u64> {
        let m = &self.meta;
        if m.span() == 0 || ts > m.last_ts {
            return Ok(m.last_seq + 1);
        }
        let core = self.core();
        let index = core.index(&self.segs, m, m.last_seq)?;
        let (mut scratch, mut out) = (Vec::new(), Vec::new());
        let (mut lo, mut hi) = (m.first_seq, m.last_seq + 1);
        while hi - lo > 256 {
            let mid = lo + (hi - lo) / 2;
            self.load(&core, &index, mid, mid, &mut scratch, &mut out)?;
            if out[0].ts < ts { lo = mid + 1 } else { hi = mid }
        }
        if lo < hi {
            self.load(&core, &index, lo, hi - 1, &mut scratch, &mut out)?;
            lo += out.partition_point(|e| e.ts < ts) as u64;
        }
        Ok(lo)
    }

    /// The ascending seqs, at most `upto`, of records whose tag matches, deleted ones included.
    /// A sealed segment answers from `.tags`; an active one, and one whose `.tags` is damaged,
    /// from its records.
    pub fn tag_seqs(&self, tag: TagMatch<'_>, upto: u64) -> Result<Vec<u64>> {
        let m = &self.meta;
        if !m.has_tags || m.span() == 0 {
            return Ok(Vec::new());
        }
        let mut found = match self.lookup_tags(tag) {
            Ok(found) => found,
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) if m.sealed => {
                self.segs.count_rebuilt(&e);
                self.scan_tags(tag)?
            }
            Err(e) => return Err(e),
        };
        found.retain(|&offset| m.first_seq + u64::from(offset) <= upto);
        Ok(found.into_iter().map(|offset| m.first_seq + u64::from(offset)).collect())
    }

    fn lookup_tags(&self, tag: TagMatch<'_>) -> Result<Vec<u32>> {
        let m = &self.meta;
        if !m.sealed {
            return self.scan_tags(tag);
        }
        let path = self.segs.paths.segment(&m.name(self.topic.topic_id), Part::Tags);
        let env = &self.segs.env;
        let file = env.fs.open(&path, OpenMode::Read).map_err(|e| io_error(&path, e))?;
        TagsFile::open(env, &*file, &path, self.salt()?, m.file_no)?.lookup(tag, m.first_seq)
    }

    fn scan_tags(&self, tag: TagMatch<'_>) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        self.scan_frames(|frame| {
            if frame.flags.has(Flags::HAS_TAG) && tag.matches(frame.tag) {
                out.push((frame.seq - self.meta.first_seq) as u32);
            }
        })?;
        Ok(out)
    }

    /// Every sound record, without the index, in seq order.
    pub(super) fn scan_frames(
        &self,
        mut f: impl FnMut(&crate::format::frame::Frame<'_>),
    ) -> Result<()> {
        let (data, salt) = self.data()?;
        scan(&data, salt, &self.meta, start(&self.meta), |found| {
            if let Found::Record(_, _, bytes) = found
                && let Some(frame) = parse_frame(bytes, self.topic.topic_id)
            {
                f(&frame);
            }
            Ok(())
        })
    }

    /// Tags and attributes of every sound record: what a seal writes beside the records, and what
    /// memory must know of an active segment after it was opened.
    pub fn scan_side(&self) -> Result<(TagMap, Vec<AttrRow>)> {
        let (mut tags, mut attrs) = (TagMap::new(), Vec::new());
        self.scan_frames(|frame| {
            if frame.flags.has(Flags::HAS_TAG) {
                let offset = (frame.seq - self.meta.first_seq) as u32;
                match tags.get_mut(frame.tag) {
                    Some(seqs) => seqs.push(offset),
                    None => drop(tags.insert(frame.tag.to_vec(), vec![offset])),
                }
            }
            if frame.flags.has(Flags::HAS_ATTRS) {
                attrs.push(AttrRow::parse(frame.seq, frame.attrs));
            }
        })?;
        Ok((tags, attrs))
    }

    /// The deleted records by offset from `first_seq`, from its `.del`. A missing or damaged one
    /// is an error: it is never made again.
    pub fn deleted(&self) -> Result<Arc<RoaringBitmap>> {
        let m = &self.meta;
        let Some(name) = m.del_name(self.topic.topic_id) else { return Ok(Arc::default()) };
        let core = self.core();
        let mut slot = core.deleted.lock();
        if let Some((no, dead)) = &*slot
            && *no == m.del_no
        {
            return Ok(dead.clone());
        }
        let path = self.segs.paths.segment(&name, Part::Del);
        let Some(bytes) = read_file(&self.segs.env, &path, u64::MAX)? else {
            return Err(StorageError::Missing { what: show(&path) });
        };
        let salt = core.salt(&self.segs, m)?;
        let dead =
            deleted::decode(&self.segs.env, &show(&path), &bytes, m.first_seq, salt, m.del_no)?;
        let dead = Arc::new(dead);
        *slot = Some((m.del_no, dead.clone()));
        Ok(dead)
    }

    /// The records with attributes, deleted ones included; empty when it has none.
    pub fn attrs(&self) -> Result<Arc<AttrsTable>> {
        let m = &self.meta;
        if !m.has_attrs || m.span() == 0 {
            return Ok(Arc::default());
        }
        let core = self.core();
        let mut slot = core.attrs.lock();
        if let Some(table) = slot.upgrade().filter(|_| m.sealed) {
            return Ok(table);
        }
        let table = match self.load_attrs(&core) {
            Ok(table) => table,
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => {
                if m.sealed {
                    self.segs.count_rebuilt(&e);
                }
                AttrsTable::new(self.scan_side()?.1)
            }
            Err(e) => return Err(e),
        };
        let table = Arc::new(table);
        *slot = if m.sealed { Arc::downgrade(&table) } else { std::sync::Weak::new() };
        Ok(table)
    }

    fn load_attrs(&self, core: &Core) -> Result<AttrsTable> {
        let m = &self.meta;
        let path = self.segs.paths.segment(&m.name(self.topic.topic_id), Part::Attrs);
        let bytes = if m.sealed { read_file(&self.segs.env, &path, u64::MAX)? } else { None };
        let bytes = bytes.ok_or_else(|| StorageError::Missing { what: show(&path) })?;
        let salt = core.salt(&self.segs, m)?;
        AttrsTable::decode(&self.segs.env, &show(&path), &bytes, m.first_seq, salt, m.file_no)
    }
}

/// How many of the picks one read call takes: they lie near each other and within the file.
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
