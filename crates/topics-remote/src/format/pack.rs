//! Packs: segments of one topic, or of several small ones, as one object.
//!
//! The files of a segment are in a pack verbatim. The directory at its end says where, and holds one
//! row for each 64 KiB of records, so that a reader finds a record with two requests.

use topics_env::Env;
use topics_storage::segment::{DataFrames, FileKind, SegmentMeta, TopicKey};
use xxhash_rust::xxh3::xxh3_64;

use super::fields::{Fields, PutFields};
use super::keys;
use super::sealed::{self, HEADER, ObjectHeader, ObjectKind, SealedObject};
use crate::{RemoteError, Result};

/// The most segments in a pack.
pub const MAX_ENTRIES: usize = 64;
/// The bytes of `.data` for each row of the sparse index.
pub const SPARSE_STEP: u32 = 64 * 1024;
/// The files of a segment that a pack holds, in the order of their bytes.
pub const PARTS: [FileKind; 4] = [FileKind::Data, FileKind::Idx, FileKind::Tags, FileKind::Attrs];

/// The bytes of an entry before its sparse index.
const ENTRY: usize = 8 * 10 + 8 + PARTS.len() * 24;
const SPARSE_ROW: usize = 20;

/// Where a file of a segment is in a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackPart {
    /// The offset in the pack.
    pub offset: u64,
    /// The length; 0: the segment has no such file.
    pub len: u64,
    /// The XXH3-64 of its bytes.
    pub hash: u64,
}

/// A row of the sparse index of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseRow {
    /// The offset of a frame in `.data`.
    pub offset: u32,
    pub seq: u64,
    /// Its commit time.
    pub ts: u64,
}

/// A segment in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackEntry {
    pub topic: TopicKey,
    pub first_seq: u64,
    pub last_seq: u64,
    /// The file number of its files.
    pub file_no: u64,
    /// Whether it was sealed. If not, the entry is the part of an active segment that a snapshot
    /// named.
    pub is_sealed: bool,
    /// The commit time of its first record, 0: none.
    pub first_ts: u64,
    /// The commit time of its last record, 0: none.
    pub last_ts: u64,
    /// The earliest `expires_at` of its records, 0: none.
    pub earliest_expires: u64,
    /// Records that were neither holes nor deleted.
    pub live_count: u64,
    /// Their payload bytes.
    pub live_bytes: u64,
    /// Its files, in the order of [`PARTS`].
    pub parts: [PackPart; PARTS.len()],
    /// The first frame, and one for each [`SPARSE_STEP`] of `.data` after it.
    pub sparse: Vec<SparseRow>,
}

impl PackEntry {
    /// Where this file is, if the segment has it.
    #[must_use]
    pub fn part(&self, kind: FileKind) -> Option<PackPart> {
        let at = PARTS.iter().position(|p| *p == kind)?;
        Some(self.parts[at]).filter(|p| p.len > 0)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let words = [
            self.topic.topic_id,
            self.topic.epoch,
            self.first_seq,
            self.last_seq,
            self.file_no,
            self.first_ts,
            self.last_ts,
            self.earliest_expires,
            self.live_count,
            self.live_bytes,
        ];
        words.into_iter().for_each(|w| out.put_u64(w));
        out.put_u32(u32::from(self.is_sealed));
        out.put_u32(self.sparse.len() as u32);
        for part in &self.parts {
            out.put_u64(part.offset);
            out.put_u64(part.len);
            out.put_u64(part.hash);
        }
        for row in &self.sparse {
            out.put_u32(row.offset);
            out.put_u64(row.seq);
            out.put_u64(row.ts);
        }
    }

    fn decode(f: &mut Fields<'_>) -> Result<Self> {
        let topic = TopicKey { topic_id: f.u64()?, epoch: f.u64()? };
        let (first_seq, last_seq, file_no) = (f.u64()?, f.u64()?, f.u64()?);
        let (first_ts, last_ts, earliest_expires) = (f.u64()?, f.u64()?, f.u64()?);
        let (live_count, live_bytes) = (f.u64()?, f.u64()?);
        let is_sealed = match f.u32()? {
            0 => false,
            1 => true,
            _ => return Err(f.damaged("an entry is of an unknown kind")),
        };
        let rows = f.count(SPARSE_ROW)?;
        let mut parts = [PackPart::default(); PARTS.len()];
        for part in &mut parts {
            *part = PackPart { offset: f.u64()?, len: f.u64()?, hash: f.u64()? };
        }
        let mut sparse = Vec::new();
        for _ in 0..rows {
            sparse.push(SparseRow { offset: f.u32()?, seq: f.u64()?, ts: f.u64()? });
        }
        let entry = Self {
            topic,
            first_seq,
            last_seq,
            file_no,
            is_sealed,
            first_ts,
            last_ts,
            earliest_expires,
            live_count,
            live_bytes,
            parts,
            sparse,
        };
        match entry.is_consistent() {
            true => Ok(entry),
            false => Err(f.damaged("an entry contradicts itself")),
        }
    }

    fn is_consistent(&self) -> bool {
        let [data, idx, ..] = &self.parts;
        let rows = || self.sparse.iter();
        self.first_seq <= self.last_seq
            && data.len > 0
            && idx.len > 0
            && rows().all(|r| u64::from(r.offset) < data.len)
            && rows().all(|r| (self.first_seq..=self.last_seq).contains(&r.seq))
            && rows().zip(rows().skip(1)).all(|(a, b)| a.offset < b.offset && a.seq < b.seq)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackDirectory {
    /// Who wrote the pack.
    pub header: ObjectHeader,
    /// Its segments, by topic and seq.
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
            for part in &entry.parts {
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
        let out = Self { header, entries };
        match out.key() == key {
            true => Ok(out),
            false => Err(RemoteError::damaged(key, "it is the pack of another key")),
        }
    }

    /// The key of the pack.
    #[must_use]
    pub fn key(&self) -> String {
        let first = self.entries.first();
        let topic = first.map(|e| e.topic.topic_id);
        let is_mixed = self.entries.iter().any(|e| Some(e.topic.topic_id) != topic);
        let topic = topic.filter(|_| !is_mixed);
        let first_seq = first.map_or(0, |e| e.first_seq);
        keys::pack(topic, first_seq, self.header.number, self.header.epoch)
    }
}

fn follows(last: &PackEntry, next: &PackEntry) -> bool {
    (last.topic, last.last_seq) < (next.topic, next.first_seq)
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

    /// Whether it has no segment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directory.entries.is_empty()
    }

    /// Appends a segment after verifying each of its frames. After an error the pack is as before,
    /// and can be finished without this segment.
    pub fn push(&mut self, env: &Env, segment: &SegmentFiles<'_>) -> Result<()> {
        let usage = |detail: &str| Err(RemoteError::Usage { detail: detail.to_owned() });
        let SegmentFiles { topic, meta, files } = segment;
        if self.directory.entries.len() == MAX_ENTRIES {
            return usage("a pack has at most 64 segments");
        }
        let [data, idx, ..] = files;
        if data.is_empty() || idx.is_empty() || meta.first_seq > meta.last_seq {
            return usage("a segment in a pack has records, a .data and an .idx");
        }
        let name = meta.data_name(topic.topic_id).file(FileKind::Data);
        let sparse = sparse_index(env, &name, self.directory.header.store_id, segment)?;
        let mut at = self.bytes.len() as u64;
        let parts = files.map(|bytes| {
            let part = PackPart { offset: at, len: bytes.len() as u64, hash: xxh3_64(bytes) };
            at += part.len;
            if bytes.is_empty() { PackPart::default() } else { part }
        });
        let entry = PackEntry {
            topic: *topic,
            first_seq: meta.first_seq,
            last_seq: meta.last_seq,
            file_no: meta.file_no,
            is_sealed: meta.sealed,
            first_ts: meta.first_ts,
            last_ts: meta.last_ts,
            earliest_expires: meta.earliest_expires,
            live_count: meta.live_count,
            live_bytes: meta.live_bytes,
            parts,
            sparse,
        };
        if self.directory.entries.last().is_some_and(|last| !follows(last, &entry)) {
            return usage("the segments of a pack are sorted by topic and seq");
        }
        files.iter().for_each(|bytes| self.bytes.extend_from_slice(bytes));
        self.directory.entries.push(entry);
        Ok(())
    }

    /// The finished pack.
    pub fn finish(self) -> Result<(SealedObject, PackDirectory)> {
        if self.is_empty() {
            return Err(RemoteError::Usage { detail: "a pack has a segment".to_owned() });
        }
        let directory = self.directory.encode();
        Ok((sealed::seal(self.directory.key(), self.bytes, &directory), self.directory))
    }
}

/// Verifies every frame of a segment and returns the rows of its sparse index.
fn sparse_index(
    env: &Env,
    name: &str,
    store_id: [u8; 16],
    segment: &SegmentFiles<'_>,
) -> Result<Vec<SparseRow>> {
    let SegmentFiles { topic, meta, files: [data, ..] } = segment;
    let mut rows: Vec<SparseRow> = Vec::new();
    for frame in DataFrames::new(env, name, store_id, *topic, meta, data)? {
        let frame = frame?;
        let due = rows.last().is_none_or(|r| frame.offset - r.offset >= SPARSE_STEP);
        if due {
            rows.push(SparseRow { offset: frame.offset, seq: frame.seq, ts: frame.ts });
        }
    }
    Ok(rows)
}

/// Checks a whole pack: every byte, and its identity if `hash` names one.
pub fn verify(key: &str, hash: Option<u128>, bytes: &[u8]) -> Result<PackDirectory> {
    let (header, footer, directory) = sealed::open(key, ObjectKind::Pack, hash, bytes)?;
    let directory = PackDirectory::decode(key, directory, footer.dir_at)?;
    if directory.header != header {
        return Err(RemoteError::damaged(key, "its directory is of another pack"));
    }
    for part in directory.entries.iter().flat_map(|e| e.parts) {
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

    /// The header of a pack of two entries, and their directory.
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
        let mut entry = |first_seq| PackEntry {
            topic: TopicKey { topic_id: 7, epoch: 1 },
            first_seq,
            last_seq: first_seq + 9,
            file_no: first_seq,
            is_sealed: true,
            first_ts: 1,
            last_ts: 2,
            earliest_expires: 0,
            live_count: 10,
            live_bytes: 100,
            parts: [part(b"data"), part(b"idx"), PackPart::default(), part(b"attrs")],
            sparse: vec![
                SparseRow { offset: 1, seq: first_seq, ts: 1 },
                SparseRow { offset: 3, seq: first_seq + 1, ts: 1 },
            ],
        };
        let entries = vec![entry(1), entry(11)];
        PackDirectory { header, entries }
    }

    /// What a wrong writer could make: every checksum is right and the content is not.
    #[test]
    fn contradictions_behind_right_checksums_are_refused() {
        type Forge = fn(&mut PackDirectory);
        let forgeries: [(&str, Forge); 17] = [
            ("no entries", |d| d.entries.clear()),
            ("an entry missing", |d| drop(d.entries.pop())),
            ("entries exchanged", |d| d.entries.swap(0, 1)),
            ("an entry twice", |d| d.entries[1] = d.entries[0].clone()),
            ("seqs that overlap", |d| d.entries[0].last_seq = 11),
            ("seqs that end before they begin", |d| d.entries[1].last_seq = 10),
            ("another topic", |d| d.entries[1].topic.topic_id = 8),
            ("another first seq", |d| d.entries[0].first_seq = 0),
            ("a part moved", |d| d.entries[0].parts[1].offset += 1),
            ("a byte between parts", |d| {
                let part = &mut d.entries[0].parts[1];
                *part = PackPart { offset: part.offset + 1, len: 2, hash: xxh3_64(b"dx") };
            }),
            ("a part longer", |d| d.entries[0].parts[0].len += 1),
            ("a part that is huge", |d| d.entries[1].parts[3].len = u64::MAX - 7),
            ("no data", |d| d.entries[0].parts[0] = PackPart::default()),
            ("a part of length 0 with a hash", |d| d.entries[0].parts[2].hash = 1),
            ("a row beyond the data", |d| d.entries[0].sparse[1].offset = 4),
            ("rows exchanged", |d| d.entries[0].sparse.swap(0, 1)),
            ("the file number of another pack", |d| d.header.number = 5),
        ];
        let mut bytes = Vec::new();
        let good = directory(&mut bytes);
        let sealed = sealed::seal(good.key(), bytes.clone(), &good.encode());
        assert_eq!(verify(&good.key(), None, &sealed.bytes).unwrap(), good);
        for (what, forge) in forgeries {
            let mut bad = good.clone();
            forge(&mut bad);
            let sealed = sealed::seal(good.key(), bytes.clone(), &bad.encode());
            let found = verify(&good.key(), None, &sealed.bytes);
            assert!(matches!(found, Err(RemoteError::Damaged { .. })), "{what}: {found:?}");
        }
    }

    #[test]
    fn counts_are_checked_before_anything_is_allocated() {
        let mut bytes = Vec::new();
        let good = directory(&mut bytes);
        let encoded = good.encode();
        // The number of entries, and the rows of the first entry.
        for at in [HEADER, HEADER + 4 + 84] {
            let mut directory = encoded.clone();
            directory[at..at + 4].fill(0xff);
            let sealed = sealed::seal(good.key(), bytes.clone(), &directory);
            assert!(verify(&good.key(), None, &sealed.bytes).is_err(), "{at}");
        }
    }
}
