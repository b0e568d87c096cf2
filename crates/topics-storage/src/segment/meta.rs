//! Names of segments, and their entries in the snapshot.

use crate::format::codec::{Decode, Encode};
use crate::format::frame::Flags;

/// A topic's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicKey {
    /// The interned id.
    pub topic_id: u64,
    /// The epoch of its creation.
    pub epoch: u64,
}

/// A file of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    Data,
    /// The position of each record.
    Idx,
    /// The deleted records.
    Del,
    /// The tags of the records.
    Tags,
    /// The records with attributes.
    Attrs,
}

impl FileKind {
    /// Every kind of file.
    pub const ALL: [Self; 5] = [Self::Data, Self::Idx, Self::Del, Self::Tags, Self::Attrs];

    /// The site of its sync, for fault injection.
    pub(super) fn sync_site(self) -> &'static str {
        match self {
            Self::Data => "segment.data",
            Self::Idx => "segment.idx",
            Self::Del => "segment.del",
            Self::Tags => "segment.tags",
            Self::Attrs => "segment.attrs",
        }
    }

    /// The ending of its file names.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Idx => "idx",
            Self::Del => "del",
            Self::Tags => "tags",
            Self::Attrs => "attrs",
        }
    }
}

/// The name that the files of a segment share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentName {
    pub topic_id: u64,
    /// The first seq of the segment.
    pub first_seq: u64,
    /// The file number.
    pub file_no: u64,
}

impl SegmentName {
    /// The name of one of its files, without the directory.
    pub fn file(&self, kind: FileKind) -> String {
        format!("seg-{:020}.{:016x}.{}", self.first_seq, self.file_no, kind.extension())
    }
}

/// Parses a file name of the form of [`SegmentName::file`].
pub fn parse_file_name(topic_id: u64, name: &str) -> Option<(SegmentName, FileKind)> {
    let mut fields = name.strip_prefix("seg-")?.split('.');
    let first_seq = fields.next()?.parse().ok()?;
    let file_no = u64::from_str_radix(fields.next()?, 16).ok()?;
    let ext = fields.next()?;
    let kind = FileKind::ALL.into_iter().find(|p| p.extension() == ext)?;
    let found = SegmentName { topic_id, first_seq, file_no };
    (found.file(kind) == name).then_some((found, kind))
}

/// The entry of a segment in the snapshot. Times are milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct SegmentMeta {
    /// The first seq that it covers.
    pub first_seq: u64,
    /// The last seq that it covers; `first_seq − 1` if it covers none yet.
    pub last_seq: u64,
    /// The file number of its files.
    pub file_no: u64,
    /// The file number in the name of its `.data`: `file_no` unless the file was relocated.
    pub data_no: u64,
    /// The length of `.data` that the snapshot names.
    pub data_len: u64,
    /// The file number of its `.del`, 0: none.
    pub del_no: u64,
    /// Records that are neither holes nor deleted.
    pub live_count: u64,
    /// Their payload bytes.
    pub live_bytes: u64,
    /// The commit time of its first record, 0: none.
    pub first_ts: u64,
    /// The commit time of its last record, 0: none.
    pub last_ts: u64,
    /// The earliest `expires_at` of its records, 0: none.
    pub earliest_expires: u64,
    /// Whether it is never appended to again.
    pub sealed: bool,
    /// Whether its `.data` is in an object store. A local one may still be there; nothing relies on it.
    pub cold: bool,
    /// Whether a record in it has a tag.
    pub has_tags: bool,
    /// Whether a record in it has attributes.
    pub has_attrs: bool,
}

impl SegmentMeta {
    /// The number of seqs that it covers, including holes.
    pub fn span(&self) -> u64 {
        (self.last_seq + 1).saturating_sub(self.first_seq)
    }

    /// Whether it covers this seq.
    pub fn contains(&self, seq: u64) -> bool {
        (self.first_seq..=self.last_seq).contains(&seq)
    }

    /// The length of the `.idx` of an active segment: its header and the entries of its seqs.
    pub fn active_idx_len(&self) -> u64 {
        super::index::entry_at(self.span())
    }

    /// The name of its `.idx`, `.tags` and `.attrs`.
    pub fn name(&self, topic_id: u64) -> SegmentName {
        SegmentName { topic_id, first_seq: self.first_seq, file_no: self.file_no }
    }

    pub fn data_name(&self, topic_id: u64) -> SegmentName {
        SegmentName { file_no: self.data_no, ..self.name(topic_id) }
    }

    /// The name of its `.del`, if it has one.
    pub fn del_name(&self, topic_id: u64) -> Option<SegmentName> {
        (self.del_no != 0).then(|| SegmentName { file_no: self.del_no, ..self.name(topic_id) })
    }

    /// The files that this entry names, `.data` last; a cold segment names none.
    pub fn files(&self, topic_id: u64) -> Vec<(SegmentName, FileKind)> {
        let name = self.name(topic_id);
        let mut out = vec![(name, FileKind::Idx)];
        if self.sealed && self.has_tags {
            out.push((name, FileKind::Tags));
        }
        if self.sealed && self.has_attrs {
            out.push((name, FileKind::Attrs));
        }
        out.extend(self.del_name(topic_id).map(|n| (n, FileKind::Del)));
        if !self.cold {
            out.push((self.data_name(topic_id), FileKind::Data));
        }
        out
    }
}

/// One entry of an `.idx`: the position of a record. A hole has length 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdxEntry {
    /// The offset of its frame in `.data`.
    pub offset: u32,
    /// The length of the whole frame.
    pub len: u32,
    /// Its commit time.
    pub ts: u64,
    /// The frame's flags.
    pub flags: u8,
}

impl IdxEntry {
    /// Whether the seq has no record.
    pub fn is_hole(&self) -> bool {
        self.len == 0
    }

    /// The bytes of data, meta, tag, node and attributes; 0 for a hole.
    pub fn payload_bytes(&self) -> u64 {
        let flags = Flags(self.flags);
        let prefixes = if flags.has(Flags::HAS_ATTRS) { 2 } else { 0 }
            + if flags.has(Flags::HAS_META) { 4 } else { 0 };
        u64::from(self.len).saturating_sub(super::layout::FRAME_FIXED as u64 + prefixes)
    }
}
