//! Lookups in a segment: times, tags, attributes, deletes.

use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_env::File;

use super::cold::ColdFile;
use super::layout::parse_frame;
use super::open::{OpenSegment, io_error};
use super::scan::{ScanItem, scan, start};
use super::tags::{TagMap, TagsFile};
use super::{AttrRow, AttrsTable, FileKind, Segment, deleted};
use crate::dir::{read_file, show};
use crate::format::frame::{Flags, Frame};
use crate::{Result, StorageError};

/// A condition on a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagMatch<'a> {
    /// Exactly this tag.
    Eq(&'a [u8]),
    /// Any tag with this prefix.
    Prefix(&'a [u8]),
}

impl TagMatch<'_> {
    /// Whether the tag of a record matches. A record without a tag never matches.
    pub fn matches(&self, tag: &[u8]) -> bool {
        match self {
            Self::Eq(t) => tag == *t,
            Self::Prefix(t) => tag.starts_with(t),
        }
    }
}

impl Segment {
    /// The first seq whose commit time is at least `ts`, or `last_seq + 1`. A hole has the time of
    /// the record before it. Also returns the number of records examined.
    pub fn seek_ts(&self, ts: u64) -> Result<(u64, u64)> {
        let m = self.meta();
        if m.span() == 0 || ts > m.last_ts {
            return Ok((m.last_seq + 1, 0));
        }
        let open = self.open_segment();
        let index = open.index(&self.segs, m, m.last_seq)?;
        let (mut scratch, mut out) = (Vec::new(), Vec::new());
        let (mut lo, mut hi, mut looked) = (m.first_seq, m.last_seq + 1, 0);
        while hi - lo > 256 {
            looked += 1;
            let mid = lo + (hi - lo) / 2;
            self.load(&open, &index, mid, mid, &mut scratch, &mut out)?;
            if out[0].ts < ts { lo = mid + 1 } else { hi = mid }
        }
        if lo < hi {
            self.load(&open, &index, lo, hi - 1, &mut scratch, &mut out)?;
            looked += hi - lo;
            lo += out.partition_point(|e| e.ts < ts) as u64;
        }
        Ok((lo, looked))
    }

    /// The ascending seqs, at most `upto`, of records whose tag matches, deleted ones included.
    /// A sealed segment answers from `.tags`; an active one, and one whose `.tags` is damaged,
    /// from its records.
    pub fn tag_seqs(&self, tag: TagMatch<'_>, upto: u64) -> Result<Vec<u64>> {
        let m = self.meta();
        if !m.has_tags || m.span() == 0 {
            return Ok(Vec::new());
        }
        let mut found = match self.lookup_tags(tag) {
            Ok(found) => found,
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) if m.sealed => {
                self.segs.count_rebuilt(&e);
                match self.cold_file(FileKind::Tags)? {
                    Some(file) => match self.lookup_in(&file, tag) {
                        // The object was written with it.
                        Err(StorageError::Corrupt { .. }) => self.scan_tags(tag)?,
                        found => found?,
                    },
                    None => self.scan_tags(tag)?,
                }
            }
            Err(e) => return Err(e),
        };
        found.retain(|&offset| m.first_seq + u64::from(offset) <= upto);
        Ok(found.into_iter().map(|offset| m.first_seq + u64::from(offset)).collect())
    }

    fn lookup_tags(&self, tag: TagMatch<'_>) -> Result<Vec<u32>> {
        let m = self.meta();
        if !m.sealed {
            return self.scan_tags(tag);
        }
        let file = self.open_segment().side_file(&self.segs, m, FileKind::Tags)?;
        self.lookup_in(&*file.ok_or_else(|| self.missing(FileKind::Tags))?, tag)
    }

    fn lookup_in(&self, file: &dyn File, tag: TagMatch<'_>) -> Result<Vec<u32>> {
        let m = self.meta();
        let path = self.segs.paths.segment(&m.name(self.topic().topic_id), FileKind::Tags);
        TagsFile::open(&self.segs.env, file, &path, self.salt()?, m.file_no)?
            .lookup(tag, m.first_seq)
    }

    /// A file from the store, if the `.data` of the segment is there only.
    fn cold_file(&self, kind: FileKind) -> Result<Option<ColdFile>> {
        match self.meta().cold {
            true => self.open_segment().data(&self.segs, self.meta())?.cold_file(kind),
            false => Ok(None),
        }
    }

    fn missing(&self, kind: FileKind) -> StorageError {
        let name = self.meta().name(self.topic().topic_id);
        StorageError::Missing { what: show(&self.segs.paths.segment(&name, kind)) }
    }

    fn scan_tags(&self, tag: TagMatch<'_>) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        self.scan_frames(|frame| {
            if frame.flags.has(Flags::HAS_TAG) && tag.matches(frame.tag) {
                out.push((frame.seq - self.meta().first_seq) as u32);
            }
        })?;
        Ok(out)
    }

    /// Visits every valid record in seq order, without the index.
    pub(super) fn scan_frames(&self, mut f: impl FnMut(&Frame<'_>)) -> Result<()> {
        let (data, salt) = self.data()?;
        scan(&data, salt, self.meta(), start(self.meta()), |found| {
            if let ScanItem::Record(_, _, bytes) = found
                && let Some(frame) = parse_frame(bytes, self.topic().topic_id)
            {
                f(&frame);
            }
            Ok(())
        })
    }

    /// Tags and attributes of every undamaged record, for sealing a segment and for the in-memory
    /// index of an active one.
    pub fn scan_side(&self) -> Result<(TagMap, Vec<AttrRow>)> {
        let (mut tags, mut attrs) = (TagMap::new(), Vec::new());
        self.scan_frames(|frame| {
            if frame.flags.has(Flags::HAS_TAG) {
                let offset = (frame.seq - self.meta().first_seq) as u32;
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

    /// Checks the content of its `.del`.
    pub fn check_deletes(&self, bytes: &[u8]) -> Result<()> {
        let m = self.meta();
        let name = m.del_name(self.topic().topic_id).map(|n| n.file(FileKind::Del));
        let (name, salt) = (name.unwrap_or_default(), self.salt()?);
        deleted::decode(&self.segs.env, &name, bytes, m.first_seq, salt, m.del_no).map(drop)
    }

    /// The deleted records as offsets from `first_seq`, from its `.del`. A missing or damaged file
    /// is an error, because deletions cannot be rebuilt.
    pub fn deleted(&self) -> Result<Arc<RoaringBitmap>> {
        let m = self.meta();
        let Some(name) = m.del_name(self.topic().topic_id) else { return Ok(Arc::default()) };
        let open = self.open_segment();
        let mut slot = open.deleted.lock();
        if let Some((no, dead)) = &*slot
            && *no == m.del_no
        {
            return Ok(dead.clone());
        }
        let path = self.segs.paths.segment(&name, FileKind::Del);
        let Some(bytes) = read_file(&self.segs.env, &path, u64::MAX)? else {
            return Err(StorageError::Missing { what: show(&path) });
        };
        let salt = open.salt(&self.segs, m)?;
        let dead =
            deleted::decode(&self.segs.env, &show(&path), &bytes, m.first_seq, salt, m.del_no)?;
        let dead = Arc::new(dead);
        *slot = Some((m.del_no, dead.clone()));
        Ok(dead)
    }

    /// The records with attributes, deleted ones included; empty when it has none.
    pub fn attrs(&self) -> Result<Arc<AttrsTable>> {
        let m = self.meta();
        if !m.has_attrs || m.span() == 0 {
            return Ok(Arc::default());
        }
        let open = self.open_segment();
        let mut slot = open.attrs.lock();
        if let Some(table) = slot.upgrade().filter(|_| m.sealed) {
            return Ok(table);
        }
        let table = match self.load_attrs(&open) {
            Ok(table) => table,
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => {
                if m.sealed {
                    self.segs.count_rebuilt(&e);
                }
                match self.cold_file(FileKind::Attrs)? {
                    Some(file) => match self.decode_attrs(&open, file.bytes()) {
                        Err(StorageError::Corrupt { .. }) => AttrsTable::new(self.scan_side()?.1),
                        found => found?,
                    },
                    None => AttrsTable::new(self.scan_side()?.1),
                }
            }
            Err(e) => return Err(e),
        };
        let table = Arc::new(table);
        *slot = if m.sealed { Arc::downgrade(&table) } else { std::sync::Weak::new() };
        Ok(table)
    }

    fn load_attrs(&self, open: &OpenSegment) -> Result<AttrsTable> {
        let m = self.meta();
        let file = match m.sealed {
            true => open.side_file(&self.segs, m, FileKind::Attrs)?,
            false => None,
        };
        let file = file.ok_or_else(|| self.missing(FileKind::Attrs))?;
        let path = self.segs.paths.segment(&m.name(self.topic().topic_id), FileKind::Attrs);
        let io = |e| io_error(&path, e);
        let mut bytes = vec![0; file.len().map_err(io)? as usize];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        self.decode_attrs(open, &bytes)
    }

    fn decode_attrs(&self, open: &OpenSegment, bytes: &[u8]) -> Result<AttrsTable> {
        let m = self.meta();
        let path = self.segs.paths.segment(&m.name(self.topic().topic_id), FileKind::Attrs);
        let salt = open.salt(&self.segs, m)?;
        AttrsTable::decode(&self.segs.env, &show(&path), bytes, m.first_seq, salt, m.file_no)
    }
}
