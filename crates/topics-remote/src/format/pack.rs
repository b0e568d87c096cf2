//! Packs: files of the data directory, verbatim.
//!
//! | entry | bytes |
//! |---|---|
//! | segment | the files of a sealed segment |
//! | tail | a part of the `.data` of an active segment |
//! | deletes | a bitmap of deleted records (`.del`) |
//! | rows | a file of staged rows of a transaction |

use topics_env::Env;
use topics_storage::segment::{DataFrames, FileKind, SegmentMeta, TopicKey};
use xxhash_rust::xxh3::xxh3_64;

use super::fields::{Fields, PutFields};
use super::sealed::{self, HEADER, ObjectHeader, ObjectKind, SealedObject};
use crate::{RemoteError, Result};

/// The most entries of a pack.
pub const MAX_ENTRIES: usize = 16_384;
/// The files of a segment that a pack holds, in the order of their bytes.
pub const PARTS: [FileKind; 4] = [FileKind::Data, FileKind::Idx, FileKind::Tags, FileKind::Attrs];

const PART: usize = 24;
/// The bytes of the shortest entry: its kind, the length of an empty name and a part.
const ENTRY: usize = 4 + 4 + PART;

/// Where a file is in a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackPart {
    /// The offset in the pack.
    pub offset: u64,
    /// The length; 0: the segment has no such file.
    pub len: u64,
    /// The XXH3-64 of its bytes.
    pub hash: u64,
}

/// A sealed segment in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    pub topic: TopicKey,
    pub first_seq: u64,
    pub last_seq: u64,
    /// The file number of its files.
    pub file_no: u64,
    /// Its files, in the order of [`PARTS`].
    pub parts: [PackPart; PARTS.len()],
}

impl SegmentEntry {
    fn is_consistent(&self) -> bool {
        let [data, idx, ..] = &self.parts;
        self.first_seq <= self.last_seq && data.len > 0 && idx.len > 0
    }
}

/// An entry of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackEntry {
    /// The files of a sealed segment.
    Segment(SegmentEntry),
    /// Bytes of the `.data` of an active segment.
    Tail {
        /// The file number of the segment.
        file_no: u64,
        /// The offset of the bytes in the file.
        from: u64,
        part: PackPart,
    },
    /// A `.del`.
    Deletes {
        /// Its file number.
        del_no: u64,
        part: PackPart,
    },
    /// A file of staged rows.
    Rows {
        /// Its name.
        name: String,
        part: PackPart,
    },
}

impl PackEntry {
    /// Its files.
    #[must_use]
    pub fn parts(&self) -> &[PackPart] {
        match self {
            Self::Segment(s) => &s.parts,
            Self::Tail { part, .. } | Self::Deletes { part, .. } | Self::Rows { part, .. } => {
                std::slice::from_ref(part)
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Segment(s) => {
                out.put_u32(1);
                let topic = s.topic;
                let words = [topic.topic_id, topic.epoch, s.first_seq, s.last_seq, s.file_no];
                words.into_iter().for_each(|w| out.put_u64(w));
            }
            Self::Tail { file_no, from, .. } => {
                out.put_u32(2);
                out.put_u64(*file_no);
                out.put_u64(*from);
            }
            Self::Deletes { del_no, .. } => {
                out.put_u32(3);
                out.put_u64(*del_no);
            }
            Self::Rows { name, .. } => {
                out.put_u32(4);
                out.put_u32(name.len() as u32);
                out.extend_from_slice(name.as_bytes());
            }
        }
        for part in self.parts() {
            [part.offset, part.len, part.hash].into_iter().for_each(|w| out.put_u64(w));
        }
    }

    fn decode(f: &mut Fields<'_>) -> Result<Self> {
        let part = |f: &mut Fields<'_>| {
            Ok::<_, RemoteError>(PackPart { offset: f.u64()?, len: f.u64()?, hash: f.u64()? })
        };
        let entry = match f.u32()? {
            1 => {
                let topic = TopicKey { topic_id: f.u64()?, epoch: f.u64()? };
                let (first_seq, last_seq, file_no) = (f.u64()?, f.u64()?, f.u64()?);
                let parts = [part(f)?, part(f)?, part(f)?, part(f)?];
                let segment = SegmentEntry { topic, first_seq, last_seq, file_no, parts };
                if !segment.is_consistent() {
                    return Err(f.damaged("an entry contradicts itself"));
                }
                return Ok(Self::Segment(segment));
            }
            2 => Self::Tail { file_no: f.u64()?, from: f.u64()?, part: part(f)? },
            3 => Self::Deletes { del_no: f.u64()?, part: part(f)? },
            4 => Self::Rows { name: f.text()?, part: part(f)? },
            _ => return Err(f.damaged("an entry is of an unknown kind")),
        };
        match entry.parts().iter().all(|p| p.len > 0) {
            true => Ok(entry),
            false => Err(f.damaged("an entry contradicts itself")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackDirectory {
    /// Who wrote the pack.
    pub header: ObjectHeader,
    /// The segments by topic and seq, then the other entries.
    pub entries: Vec<PackEntry>,
}

impl PackDirectory {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.header.encode().to_vec();
        out.put_u32(self.entries.len() as u32);
        self.entries.iter().for_each(|e| e.encode(&mut out));
        out
    }

    /// Decodes a directory whose checksum was checked; it begins at `dir_at`.
    pub(crate) fn decode(key: &str, bytes: &[u8], dir_at: u64) -> Result<Self> {
        let mut f = Fields::new(key, bytes);
        let header = ObjectHeader::decode(key, ObjectKind::Pack, f.bytes(HEADER)?)?;
        let n = f.count(ENTRY)?;
        let mut entries: Vec<PackEntry> = Vec::with_capacity(n);
        let mut at = HEADER as u64;
        for _ in 0..n {
            let entry = PackEntry::decode(&mut f)?;
            // The parts follow each other without space: no byte of a pack is unaccounted for.
            for part in entry.parts() {
                let end = part.offset.checked_add(part.len);
                match end {
                    Some(end) if part.len > 0 && part.offset == at => at = end,
                    _ if *part == PackPart::default() => {}
                    _ => return Err(f.damaged("a part is not where the part before it ends")),
                }
            }
            if entries.last().is_some_and(|last| !follows(last, &entry)) {
                return Err(f.damaged("its entries are not sorted"));
            }
            entries.push(entry);
        }
        if at != dir_at || entries.is_empty() || entries.len() > MAX_ENTRIES {
            return Err(f.damaged("its entries do not cover its bytes"));
        }
        f.finish()?;
        match header.key() == key {
            true => Ok(Self { header, entries }),
            false => Err(RemoteError::damaged(key, "it is the pack of another key")),
        }
    }

    /// Its sealed segments.
    pub fn segments(&self) -> impl Iterator<Item = &SegmentEntry> {
        self.entries.iter().filter_map(|e| match e {
            PackEntry::Segment(s) => Some(s),
            _ => None,
        })
    }
}

fn follows(last: &PackEntry, next: &PackEntry) -> bool {
    match (last, next) {
        (PackEntry::Segment(a), PackEntry::Segment(b)) => {
            (a.topic, a.last_seq) < (b.topic, b.first_seq)
        }
        (_, PackEntry::Segment(_)) => false,
        _ => true,
    }
}

/// The files of a segment to pack.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFiles<'a> {
    pub topic: TopicKey,
    /// The segment's entry in the snapshot.
    pub meta: &'a SegmentMeta,
    /// The bytes of its files, in the order of [`PARTS`]; empty: it has no such file.
    pub files: [&'a [u8]; PARTS.len()],
}

/// Builds a pack in memory.
#[derive(Debug)]
pub struct PackWriter {
    bytes: Vec<u8>,
    directory: PackDirectory,
}

impl PackWriter {
    /// An empty pack. `capacity` is its expected length.
    #[must_use]
    pub fn new(header: ObjectHeader, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(&header.encode());
        Self { bytes, directory: PackDirectory { header, entries: Vec::new() } }
    }

    /// Its length so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directory.entries.is_empty()
    }

    /// Whether it has the most entries.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.directory.entries.len() == MAX_ENTRIES
    }

    /// Appends a sealed segment after verifying each of its frames. After an error the pack is as
    /// before, and can be finished without this segment.
    pub fn push_segment(&mut self, env: &Env, segment: &SegmentFiles<'_>) -> Result<()> {
        let SegmentFiles { topic, meta, files } = segment;
        let [data, idx, ..] = files;
        if data.is_empty() || idx.is_empty() || meta.first_seq > meta.last_seq {
            return Err(usage("a segment in a pack has records, a .data and an .idx"));
        }
        self.check_frames(env, *topic, meta, data)?;
        let mut at = self.bytes.len() as u64;
        let parts = files.map(|bytes| {
            let part = PackPart { offset: at, len: bytes.len() as u64, hash: xxh3_64(bytes) };
            at += part.len;
            if bytes.is_empty() { PackPart::default() } else { part }
        });
        let SegmentMeta { first_seq, last_seq, file_no, .. } = **meta;
        let entry = SegmentEntry { topic: *topic, first_seq, last_seq, file_no, parts };
        self.add(PackEntry::Segment(entry), files)
    }

    /// Appends what `data`, the `.data` of an active segment up to the length in `meta`, has from
    /// `from` on. Verifies each frame of it.
    pub fn push_tail(
        &mut self,
        env: &Env,
        topic: TopicKey,
        meta: &SegmentMeta,
        (data, from): (&[u8], usize),
    ) -> Result<()> {
        self.check_frames(env, topic, meta, data)?;
        let bytes = data.get(from..).unwrap_or_default();
        let (file_no, from, part) = (meta.file_no, from as u64, self.part(bytes));
        self.add(PackEntry::Tail { file_no, from, part }, &[bytes])
    }

    /// Appends a `.del`, which was verified.
    pub fn push_deletes(&mut self, del_no: u64, bytes: &[u8]) -> Result<()> {
        let part = self.part(bytes);
        self.add(PackEntry::Deletes { del_no, part }, &[bytes])
    }

    /// Appends a file of staged rows, which was verified.
    pub fn push_rows(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let part = self.part(bytes);
        self.add(PackEntry::Rows { name: name.to_owned(), part }, &[bytes])
    }

    fn part(&self, bytes: &[u8]) -> PackPart {
        PackPart { offset: self.bytes.len() as u64, len: bytes.len() as u64, hash: xxh3_64(bytes) }
    }

    fn check_frames(
        &self,
        env: &Env,
        topic: TopicKey,
        meta: &SegmentMeta,
        data: &[u8],
    ) -> Result<()> {
        let name = meta.data_name(topic.topic_id).file(FileKind::Data);
        let store_id = self.directory.header.store_id;
        for frame in DataFrames::new(env, &name, store_id, topic, meta, data)? {
            frame?;
        }
        Ok(())
    }

    fn add(&mut self, entry: PackEntry, files: &[&[u8]]) -> Result<()> {
        if self.is_full() {
            return Err(usage("the pack has the most entries"));
        }
        if files.iter().all(|bytes| bytes.is_empty()) {
            return Err(usage("an entry of a pack has bytes"));
        }
        if self.directory.entries.last().is_some_and(|last| !follows(last, &entry)) {
            return Err(usage("the segments of a pack come first, by topic and seq"));
        }
        files.iter().for_each(|bytes| self.bytes.extend_from_slice(bytes));
        self.directory.entries.push(entry);
        Ok(())
    }

    /// The finished pack.
    pub fn finish(self) -> Result<(SealedObject, PackDirectory)> {
        if self.is_empty() {
            return Err(usage("a pack has an entry"));
        }
        let directory = self.directory.encode();
        let key = self.directory.header.key();
        Ok((sealed::seal(key, self.bytes, &directory), self.directory))
    }
}

fn usage(detail: &str) -> RemoteError {
    RemoteError::Usage { detail: detail.to_owned() }
}

/// Checks a whole pack: every byte, and its identity if `hash` names one.
pub fn verify(key: &str, hash: Option<u128>, bytes: &[u8]) -> Result<PackDirectory> {
    let (header, footer, directory) = sealed::open(key, ObjectKind::Pack, hash, bytes)?;
    let directory = PackDirectory::decode(key, directory, footer.dir_at)?;
    if directory.header != header {
        return Err(RemoteError::damaged(key, "its directory is of another pack"));
    }
    for part in directory.entries.iter().flat_map(PackEntry::parts) {
        let span = part.offset as usize..(part.offset + part.len) as usize;
        if part.len > 0 && xxh3_64(&bytes[span]) != part.hash {
            return Err(RemoteError::damaged(key, "the checksum of a file does not match"));
        }
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a pack with an entry of each kind, and its directory.
    fn directory(parts: &mut Vec<u8>) -> PackDirectory {
        let (store_id, prefix_id) = ([1; 16], [2; 16]);
        let header =
            ObjectHeader { kind: ObjectKind::Pack, store_id, prefix_id, epoch: 3, number: 4 };
        parts.extend_from_slice(&header.encode());
        let mut part = |bytes: &[u8]| {
            let (offset, len) = (parts.len() as u64, bytes.len() as u64);
            parts.extend_from_slice(bytes);
            PackPart { offset, len, hash: xxh3_64(bytes) }
        };
        let mut segment = |first_seq| {
            PackEntry::Segment(SegmentEntry {
                topic: TopicKey { topic_id: 7, epoch: 1 },
                first_seq,
                last_seq: first_seq + 9,
                file_no: first_seq,
                parts: [part(b"data"), part(b"idx"), PackPart::default(), part(b"attrs")],
            })
        };
        let mut entries = vec![segment(1), segment(11)];
        entries.push(PackEntry::Tail { file_no: 30, from: 5, part: part(b"tail") });
        entries.push(PackEntry::Deletes { del_no: 31, part: part(b"del") });
        entries.push(PackEntry::Rows { name: "7.stage".to_owned(), part: part(b"rows") });
        PackDirectory { header, entries }
    }

    fn of_segment(d: &mut PackDirectory, i: usize) -> &mut SegmentEntry {
        match &mut d.entries[i] {
            PackEntry::Segment(s) => s,
            other => panic!("{other:?}"),
        }
    }

    /// What a wrong writer could make: every checksum is right and the content is not.
    #[test]
    fn contradictions_behind_right_checksums_are_refused() {
        type Forge = fn(&mut PackDirectory);
        let forgeries: [(&str, Forge); 17] = [
            ("no entries", |d| d.entries.clear()),
            ("an entry missing", |d| drop(d.entries.pop())),
            ("entries exchanged", |d| d.entries.swap(0, 1)),
            ("a segment after a tail", |d| d.entries.swap(1, 2)),
            ("an entry twice", |d| d.entries[1] = d.entries[0].clone()),
            ("seqs that overlap", |d| of_segment(d, 0).last_seq = 11),
            ("seqs that end before they begin", |d| of_segment(d, 1).last_seq = 10),
            ("a part moved", |d| of_segment(d, 0).parts[1].offset += 1),
            ("a byte between parts", |d| {
                let part = &mut of_segment(d, 0).parts[1];
                *part = PackPart { offset: part.offset + 1, len: 2, hash: xxh3_64(b"dx") };
            }),
            ("a part longer", |d| of_segment(d, 0).parts[0].len += 1),
            ("a part that is huge", |d| of_segment(d, 1).parts[3].len = u64::MAX - 7),
            ("no data", |d| of_segment(d, 0).parts[0] = PackPart::default()),
            ("a part of length 0 with a hash", |d| of_segment(d, 0).parts[2].hash = 1),
            ("a tail without bytes", |d| {
                d.entries[2] = PackEntry::Tail { file_no: 30, from: 5, part: PackPart::default() };
            }),
            ("a bitmap elsewhere", |d| match &mut d.entries[3] {
                PackEntry::Deletes { part, .. } => part.offset += 1,
                other => panic!("{other:?}"),
            }),
            ("rows with another hash", |d| match &mut d.entries[4] {
                PackEntry::Rows { part, .. } => part.hash ^= 1,
                other => panic!("{other:?}"),
            }),
            ("the number of another pack", |d| d.header.number = 5),
        ];
        let mut bytes = Vec::new();
        let good = directory(&mut bytes);
        let key = good.header.key();
        let sealed = sealed::seal(key.clone(), bytes.clone(), &good.encode());
        assert_eq!(verify(&key, None, &sealed.bytes).unwrap(), good);
        for (what, forge) in forgeries {
            let mut bad = good.clone();
            forge(&mut bad);
            let sealed = sealed::seal(key.clone(), bytes.clone(), &bad.encode());
            let found = verify(&key, None, &sealed.bytes);
            assert!(matches!(found, Err(RemoteError::Damaged { .. })), "{what}: {found:?}");
        }
    }

    #[test]
    fn counts_are_checked_before_anything_is_allocated() {
        let mut bytes = Vec::new();
        let good = directory(&mut bytes);
        let encoded = good.encode();
        // The number of entries, and the length of the name.
        for at in [HEADER, encoded.len() - PART - 7 - 4] {
            let mut directory = encoded.clone();
            directory[at..at + 4].fill(0xff);
            let sealed = sealed::seal(good.header.key(), bytes.clone(), &directory);
            assert!(verify(&good.header.key(), None, &sealed.bytes).is_err(), "{at}");
        }
    }
}
