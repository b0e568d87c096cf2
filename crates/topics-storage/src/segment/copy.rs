//! New files for old records: rewrite, merge, and the active segment under a new number.

use roaring::RoaringBitmap;

use super::index::{IDX_MAGIC, encode_entry, encode_footer, whole_sum};
use super::layout::{corrupt, parse_frame, side_header, verify_frame};
use super::scan::{Found, scan, start};
use super::{AttrsTable, Part, Segment, SegmentMeta, SegmentName, SegmentWriter, tags};
use crate::dir::atomic_replace;
use crate::{Result, StorageError};

/// The most index entries that a copy holds at a time.
const ENTRIES: u64 = 4096;

/// What is copied: the records of a segment without the dead ones (offsets from its first seq).
pub struct Source<'a> {
    pub segment: &'a Segment,
    pub dead: Option<&'a RoaringBitmap>,
}

/// Copies records into a writer. Each frame is verified and gets the new file's outer checksum;
/// its inner hash is carried over. A damaged frame is copied as it is, so that it stays damaged
/// and reported, never lost.
pub struct Copier<'a> {
    writer: &'a mut SegmentWriter,
    buf: Vec<u8>,
}

impl<'a> Copier<'a> {
    pub fn new(writer: &'a mut SegmentWriter) -> Self {
        Self { writer, buf: Vec::new() }
    }

    pub fn copy(&mut self, source: &Source<'_>) -> Result<()> {
        let meta = *source.segment.meta();
        let topic_id = source.segment.topic().topic_id;
        let mut seq = meta.first_seq;
        while seq <= meta.last_seq {
            let to = meta.last_seq.min(seq + ENTRIES - 1);
            let entries = source.segment.entries(seq, to)?;
            let (data, salt) = source.segment.data()?;
            for e in entries {
                let dead = source.dead.is_some_and(|d| d.contains((seq - meta.first_seq) as u32));
                if e.is_hole() || dead {
                    self.writer.hole_at(e.ts)?;
                    seq += 1;
                    continue;
                }
                self.buf.resize(e.len as usize, 0);
                data.read(&mut self.buf, u64::from(e.offset))?;
                match (verify_frame(&self.buf, salt, seq), parse_frame(&self.buf, topic_id)) {
                    (Some(inner), Some(frame)) => self.writer.append(&frame, inner)?,
                    _ => self.writer.append_damaged(seq, &self.buf, e.ts)?,
                }
                seq += 1;
            }
        }
        Ok(())
    }
}

impl Segment {
    /// Copies `.data` to the cold tier, durably, and says what the snapshot must then name. The
    /// hot copy goes by the trimming rule. A damaged `.data` stays where it is.
    pub fn relocate(&self) -> Result<SegmentMeta> {
        let meta = self.meta();
        let Some(cold) = self.segs.cold.as_ref().filter(|_| meta.sealed && !meta.cold) else {
            return Err(StorageError::Missing { what: "a cold tier, or a sealed segment".into() });
        };
        let (data, salt) = self.data()?;
        scan(&data, salt, meta, start(meta), |found| match found {
            Found::Damage(seq, _, offset, _) => {
                Err(corrupt(&data.file, u64::from(offset), format!("record {seq} is damaged")))
            }
            Found::Record(..) => Ok(()),
        })?;
        let len = usize::try_from(meta.data_len).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        data.read(&mut bytes, 0)?;
        let data_no = self.segs.next_file_no();
        let name = SegmentName { file_no: data_no, ..meta.name(self.topic().topic_id) };
        cold.put(&name, Part::Data, &bytes)?;
        let there = cold.len(&name, Part::Data)?;
        if there != meta.data_len {
            let file = name.file(Part::Data);
            return Err(corrupt(&file, there, "the cold copy has another length"));
        }
        Ok(SegmentMeta { cold: true, data_no, ..*meta })
    }

    /// Makes the `.idx`, `.tags` and `.attrs` of a sealed segment again from its records, each
    /// replaced atomically.
    pub fn rebuild(&self) -> Result<()> {
        let (meta, topic_id) = (self.meta(), self.topic().topic_id);
        let (_, salt) = self.data()?;
        let entries = self.entries(meta.first_seq, meta.last_seq)?;
        let mut idx = side_header(IDX_MAGIC, salt, meta.file_no).to_vec();
        entries.iter().for_each(|e| encode_entry(&mut idx, e));
        let whole = whole_sum(salt, &[&idx]);
        idx.extend_from_slice(&encode_footer(meta, salt, whole));
        let (tags, attrs) = self.scan_side()?;
        let tags = tags::encode(&tags, meta.first_seq, salt, meta.file_no);
        let attrs = AttrsTable::new(attrs).encode(meta.first_seq, salt, meta.file_no);
        let dir = self.segs.paths.topic(topic_id);
        for (part, bytes, wanted) in [
            (Part::Idx, idx, true),
            (Part::Tags, tags, meta.has_tags),
            (Part::Attrs, attrs, meta.has_attrs),
        ] {
            if wanted {
                let name = meta.name(topic_id).file(part);
                atomic_replace(&self.segs.env, "segment.rebuild", &dir, &name, &bytes)?;
            }
        }
        self.segs.forget(meta.file_no);
        Ok(())
    }
}
