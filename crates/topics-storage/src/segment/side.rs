//! `.idx`, `.tags` and `.attrs` of a sealed segment for a copy of it elsewhere: checked, and made again from
//! `.data` where they fail. A reader of this directory does the same; a reader of the copy should not have to.

use super::attrs::AttrsTable;
use super::cold::ColdFile;
use super::index::{IDX_MAGIC, encode_entry, encode_footer, whole_sum};
use super::layout::{SIDE_HEADER, check_side_header, side_header};
use super::open::check_sealed;
use super::scan::rebuild_entries;
use super::tags::{self, TagsFile};
use super::{FileKind, Segment, SegmentMeta, Segments, TagMatch, TopicKey};
use crate::dir::{read_file, show};
use crate::{Result, StorageError};

impl Segment {
    /// The content of one of these files. `None`: the segment has no such file.
    pub fn side_file(&self, kind: FileKind) -> Result<Option<Vec<u8>>> {
        let (m, segs) = (*self.meta(), &self.segs);
        let has = match kind {
            FileKind::Idx => true,
            FileKind::Tags => m.has_tags,
            FileKind::Attrs => m.has_attrs,
            FileKind::Data | FileKind::Del => false,
        };
        if !has {
            return Ok(None);
        }
        let path = segs.paths.segment(&m.name(self.topic().topic_id), kind);
        let found = read_file(&segs.env, &path, u64::MAX)?;
        let checked = match found {
            Some(bytes) => {
                let file = ColdFile(bytes);
                let salt = self.data()?.1;
                check_side(segs, self.topic(), &m, kind, (&file, salt)).map(|()| file)
            }
            None => Err(StorageError::Missing { what: show(&path) }),
        };
        match checked {
            Ok(file) => Ok(Some(file.0)),
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => {
                segs.count_rebuilt(&e);
                self.make_side(kind).map(Some)
            }
            Err(e) => Err(e),
        }
    }

    /// Fetches those of these files that the directory of a cold segment lacks.
    pub fn fetch_sides(&self) -> Result<()> {
        self.salt()?;
        if self.meta().has_tags {
            self.tag_seqs(TagMatch::Prefix(b""), 0)?;
        }
        self.attrs().map(drop)
    }

    /// Makes an `.idx`, a `.tags` or an `.attrs` from `.data`.
    pub fn make_side(&self, kind: FileKind) -> Result<Vec<u8>> {
        let m = self.meta();
        let (data, salt) = self.data()?;
        Ok(match kind {
            FileKind::Idx => {
                let mut out = side_header(IDX_MAGIC, salt, m.file_no).to_vec();
                let entries = rebuild_entries(&data, salt, m)?;
                entries.iter().for_each(|e| encode_entry(&mut out, e));
                if m.sealed {
                    let footer = encode_footer(m, salt, whole_sum(salt, &[&out]));
                    out.extend_from_slice(&footer);
                }
                out
            }
            FileKind::Tags => tags::encode(&self.scan_side()?.0, m.first_seq, salt, m.file_no),
            _ => AttrsTable::new(self.scan_side()?.1).encode(m.first_seq, salt, m.file_no),
        })
    }
}

/// Checks the whole content of a file with the salt of the segment.
pub(super) fn check_side(
    segs: &Segments,
    topic: TopicKey,
    m: &SegmentMeta,
    kind: FileKind,
    (file, salt): (&ColdFile, u64),
) -> Result<()> {
    let path = segs.paths.segment(&m.name(topic.topic_id), kind);
    match kind {
        FileKind::Idx => {
            let header = file.0.get(..SIDE_HEADER).unwrap_or(&file.0);
            let name = show(&path);
            check_side_header(&segs.env, &name, header, IDX_MAGIC, m.file_no)?;
            check_sealed(segs, &path, m, file, salt)
        }
        FileKind::Tags => {
            let tags = TagsFile::open(&segs.env, file, &path, salt, m.file_no)?;
            tags.lookup(TagMatch::Prefix(b""), m.first_seq).map(drop)
        }
        _ => {
            let (name, first) = (show(&path), m.first_seq);
            AttrsTable::decode(&segs.env, &name, &file.0, first, salt, m.file_no).map(drop)
        }
    }
}
