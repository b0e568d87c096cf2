//! Copying records into a new segment: rewrite, merge, and the active segment under a new number.

use roaring::RoaringBitmap;

use super::layout::{parse_frame, verify_frame};
use super::{Segment, SegmentWriter};
use crate::Result;

/// The most index entries that a copy holds at a time.
const ENTRIES: u64 = 4096;

/// What is copied: the records of a segment without the dead ones (offsets from its first seq).
pub struct CopySource<'a> {
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

    pub fn copy(&mut self, source: &CopySource<'_>) -> Result<()> {
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
