//! Damaged segments: which records are lost, and a new segment with the rest.
//!
//! The new segment covers the same seqs. A lost record becomes a hole, and the caller reports it as a
//! gap. Without its `.del` the live records of a segment are unknown, and none of them is served.

use std::sync::Arc;

use roaring::RoaringBitmap;

use super::block::{Block, Item};
use super::copy::{Copier, CopySource};
use super::{
    FileKind, Round, Segment, SegmentMeta, SegmentWriter, Segments, TagMatch, TopicKey, deleted,
};
use crate::dir::show;
use crate::recovery::quarantine::quarantine_file;
use crate::{Result, StorageError, ranges_of};

/// The number of bytes of frames in one read.
const READ: usize = 8 << 20;

/// A segment with damage.
#[derive(Clone, Debug)]
pub struct DamagedSegment {
    segment: Segment,
    /// The first damage found.
    pub why: StorageError,
    /// Live records that are lost, as ascending ranges of seqs, inclusive.
    pub lost: Vec<(u64, u64)>,
    /// Offsets that become holes in the new segment; `None`: no record is readable.
    holes: Option<RoaringBitmap>,
}

impl Segments {
    /// Checks the files of a segment: existence, length, identity, and cheap checksums; with `records`
    /// also every record. `None` if it is undamaged.
    pub fn examine(
        self: &Arc<Self>,
        topic: TopicKey,
        meta: &SegmentMeta,
        records: bool,
    ) -> Result<Option<DamagedSegment>> {
        let segment = self.segment(topic, *meta);
        if meta.cold {
            // The records are in an object store. Without the deletes none of them is served.
            let deleted = damage(segment.deleted().map(drop))?;
            return Ok(deleted.map(|why| segment.lost(why)));
        }
        let files =
            damage(self.check_named(topic, &[*meta], true))?.or(damage(segment.check_header())?);
        let dead = match segment.deleted() {
            Ok(dead) => dead,
            Err(e) => {
                let Some(why) = damage(Err(e))? else { return Ok(None) };
                return Ok(Some(segment.lost(why)));
            }
        };
        let side = if files.is_none() { segment.side_damage()? } else { None };
        let why = files.or(side);
        if why.is_none() && !records || meta.span() == 0 {
            let holes = Some(RoaringBitmap::new());
            return Ok(why.map(|why| DamagedSegment { segment, why, lost: Vec::new(), holes }));
        }
        let damaged = match segment.damaged_records() {
            Ok(damaged) => damaged,
            Err(e) => {
                let Some(why) = damage(Err(e))? else { return Ok(None) };
                return Ok(Some(segment.lost(why)));
            }
        };
        let first = damaged.min().map(|offset| {
            let data = self.paths.segment(&meta.data_name(topic.topic_id), FileKind::Data);
            let seq = meta.first_seq + u64::from(offset);
            let at = segment.entries(seq, seq).ok().and_then(|e| e.first().map(|e| e.offset));
            let detail = format!("record {seq} fails its checksum");
            StorageError::corrupt(show(&data), u64::from(at.unwrap_or(0)), detail)
        });
        let Some(why) = why.or(first) else { return Ok(None) };
        let lost = &damaged - &*dead;
        let lost = ranges_of(lost.iter().map(|offset| meta.first_seq + u64::from(offset)));
        let holes = Some(&damaged | &*dead);
        Ok(Some(DamagedSegment { segment, why, lost, holes }))
    }

    /// A segment all of whose records are lost.
    pub fn declare_lost(
        self: &Arc<Self>,
        topic: TopicKey,
        meta: &SegmentMeta,
        why: StorageError,
    ) -> DamagedSegment {
        self.segment(topic, *meta).lost(why)
    }

    /// Whether the directory has the `.data` of a segment.
    pub fn has_data(&self, topic: TopicKey, meta: &SegmentMeta) -> Result<bool> {
        let path = self.paths.segment(&meta.data_name(topic.topic_id), FileKind::Data);
        self.env.fs.exists(&path).map_err(|e| StorageError::io(show(&path), e))
    }

    /// Writes the deleted records of a segment anew, from the bytes of its `.del`, durably and under a new file
    /// number. Returns what is wrong with the bytes; nothing is written then.
    pub fn restore_deletes(
        self: &Arc<Self>,
        topic: TopicKey,
        meta: &mut SegmentMeta,
        bytes: &[u8],
    ) -> Result<Option<StorageError>> {
        let segment = self.segment(topic, *meta);
        let decoded = segment.salt().and_then(|salt| {
            deleted::decode(&self.env, "the copy", bytes, meta.first_seq, salt, meta.del_no)
        });
        let dead = match decoded {
            Ok(dead) => dead,
            Err(e) => return damage(Err(e)),
        };
        let mut round = Round::new(self);
        let del_no = round.write_del(&segment, &dead)?;
        round.sync()?;
        meta.del_no = del_no;
        Ok(None)
    }
}

impl Segment {
    /// The segment with all its records lost.
    fn lost(self, why: StorageError) -> DamagedSegment {
        let m = self.meta();
        let lost = if m.live_count > 0 { vec![(m.first_seq, m.last_seq)] } else { Vec::new() };
        DamagedSegment { segment: self, why, lost, holes: None }
    }

    /// Damage of `.idx`, `.tags` or `.attrs`, which can be rebuilt.
    fn side_damage(&self) -> Result<Option<StorageError>> {
        let m = self.meta();
        if m.span() == 0 {
            return Ok(None);
        }
        let before = self.segs.damage_counts().1;
        let looked = self
            .entries(m.first_seq, m.last_seq)
            .and_then(|_| self.tag_seqs(TagMatch::Prefix(b""), m.last_seq))
            .and_then(|_| self.attrs());
        let found = damage(looked.map(drop))?;
        let idx = self.segs.paths.segment(&m.name(self.topic().topic_id), FileKind::Idx);
        let detail = "this file, or .tags or .attrs beside it, is damaged or missing";
        let rebuilt = self.segs.damage_counts().1 > before;
        Ok(found.or_else(|| rebuilt.then(|| StorageError::corrupt(show(&idx), 0, detail))))
    }

    /// Offsets of the records, including deleted ones, that fail their checksum.
    fn damaged_records(&self) -> Result<RoaringBitmap> {
        let m = self.meta();
        let (mut block, mut at, mut out) = (Block::new(), m.first_seq, RoaringBitmap::new());
        while at <= m.last_seq {
            block.clear();
            let next = self.read(at, m.last_seq, READ, &|_| false, &mut block)?;
            for item in block.items() {
                if let Item::Corrupt(seq) = item {
                    out.insert(u32::try_from(seq - m.first_seq).unwrap_or(u32::MAX));
                }
            }
            if next <= at {
                break;
            }
            at = next;
        }
        Ok(out)
    }
}

impl DamagedSegment {
    /// Copies the existing files to `damaged/`.
    pub fn quarantine(&self) -> Result<()> {
        let (segs, id) = (&self.segment.segs, self.segment.topic().topic_id);
        for (name, kind) in self.segment.meta().files(id) {
            let path = segs.paths.segment(&name, kind);
            let shown = format!("topics/{id}/{}", name.file(kind));
            quarantine_file(&segs.env, &segs.paths, &path, &shown)?;
        }
        Ok(())
    }

    /// Writes the usable records durably under a new file number; returns the entry for the snapshot.
    pub fn rewrite(&self) -> Result<SegmentMeta> {
        let (segs, old) = (&self.segment.segs, self.segment.meta());
        let mut round = Round::new(segs);
        let mut writer = SegmentWriter::create(segs, self.segment.topic(), old.first_seq)?;
        match &self.holes {
            Some(holes) => {
                let source = CopySource { segment: &self.segment, dead: Some(holes) };
                Copier::new(&mut writer).copy(&source)?;
            }
            None => (0..old.span()).try_for_each(|_| writer.hole_at(old.first_ts))?,
        }
        if old.sealed {
            writer.seal()?;
        }
        let meta = round.add(writer)?;
        round.sync()?;
        Ok(meta)
    }
}

/// Returns damage as a value and other errors as errors.
fn damage(found: Result<()>) -> Result<Option<StorageError>> {
    match found {
        Ok(()) => Ok(None),
        Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => Ok(Some(e)),
        Err(e) => Err(e),
    }
}
