//! Rounds: what was appended to the log of every shard since the round before.

use xxhash_rust::xxh3::xxh3_64;

use super::base::{Place, put_place, read_place};
use super::fields::{Fields, PutFields};
use super::sealed::{self, HEADER, ObjectHeader, ObjectKind, SealedObject};
use crate::{RemoteError, Result};

/// The length of the header of a log file, which a round repeats.
pub const WAL_HEADER: usize = 104;
/// The bytes of a part in the directory.
const PART: usize = WAL_HEADER + 8 * 7;
/// The bytes of the place of staged rows without their name.
const ROWS: usize = 4 + super::base::PLACE;

/// Where bytes of a log file are in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundPart {
    /// The header of the log file, as it is in the file.
    pub wal_header: [u8; WAL_HEADER],
    /// The offset of the bytes in the log file.
    pub file_offset: u64,
    /// The lsn of the first frame.
    pub first_lsn: u64,
    /// One above the lsn of the last frame.
    pub end_lsn: u64,
    /// The lsn that was durable when the bytes were read.
    pub synced_lsn: u64,
    /// The offset in the round.
    pub offset: u64,
    pub len: u64,
    /// The XXH3-64 of the bytes.
    pub hash: u64,
}

/// Where a file of staged rows is that a decision in a round names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRows {
    /// Its name.
    pub name: String,
    pub place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundDirectory {
    /// Who wrote it.
    pub header: ObjectHeader,
    /// The wall time of the consistent cut that this round completes, in milliseconds since the Unix
    /// epoch. 0: a later round completes it.
    pub cut_ms: u64,
    /// Its parts, in the order of their bytes.
    pub parts: Vec<RoundPart>,
    /// The staged rows of the decisions in it.
    pub rows: Vec<RoundRows>,
}

/// Builds a round in memory.
#[derive(Debug)]
pub struct RoundWriter {
    bytes: Vec<u8>,
    directory: RoundDirectory,
}

impl RoundWriter {
    /// A round without parts, which says only that nothing was written until `cut_ms`.
    #[must_use]
    pub fn new(header: ObjectHeader, cut_ms: u64) -> Self {
        let bytes = header.encode().to_vec();
        Self { bytes, directory: RoundDirectory { header, cut_ms, parts: vec![], rows: vec![] } }
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - HEADER
    }

    /// Whether it has no part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directory.parts.is_empty()
    }

    /// Says which cut the round completes; 0: none.
    pub fn complete(&mut self, cut_ms: u64) {
        self.directory.cut_ms = cut_ms;
    }

    /// Appends bytes of a log file. Offset, length and hash in the round are computed here.
    pub fn push(&mut self, part: RoundPart, bytes: &[u8]) {
        let offset = self.bytes.len() as u64;
        let (len, hash) = (bytes.len() as u64, xxh3_64(bytes));
        self.bytes.extend_from_slice(bytes);
        self.directory.parts.push(RoundPart { offset, len, hash, ..part });
    }

    /// Says where staged rows are that a decision in the round names.
    pub fn push_rows(&mut self, rows: RoundRows) {
        self.directory.rows.push(rows);
    }

    /// The finished round.
    #[must_use]
    pub fn finish(self) -> SealedObject {
        let d = &self.directory;
        let mut out = d.header.encode().to_vec();
        out.put_u64(d.cut_ms);
        out.put_u32(d.parts.len() as u32);
        for p in &d.parts {
            out.extend_from_slice(&p.wal_header);
            let words =
                [p.file_offset, p.first_lsn, p.end_lsn, p.synced_lsn, p.offset, p.len, p.hash];
            words.into_iter().for_each(|w| out.put_u64(w));
        }
        out.put_u32(d.rows.len() as u32);
        for r in &d.rows {
            out.put_u32(r.name.len() as u32);
            out.extend_from_slice(r.name.as_bytes());
            put_place(&mut out, &r.place);
        }
        sealed::seal(d.header.key(), self.bytes, &out)
    }
}

/// Checks a whole round and returns its directory.
pub fn verify(key: &str, bytes: &[u8]) -> Result<RoundDirectory> {
    let (header, footer, directory) = sealed::open(key, ObjectKind::Round, None, bytes)?;
    let mut f = Fields::new(key, directory);
    let repeated = ObjectHeader::decode(key, ObjectKind::Round, f.bytes(HEADER)?)?;
    if repeated != header || header.key() != key {
        return Err(RemoteError::damaged(key, "it is the round of another key"));
    }
    let cut_ms = f.u64()?;
    let n = f.count(PART)?;
    let mut parts = Vec::with_capacity(n);
    let mut at = HEADER as u64;
    for _ in 0..n {
        let part = RoundPart {
            wal_header: f.array()?,
            file_offset: f.u64()?,
            first_lsn: f.u64()?,
            end_lsn: f.u64()?,
            synced_lsn: f.u64()?,
            offset: f.u64()?,
            len: f.u64()?,
            hash: f.u64()?,
        };
        let end = part.offset.checked_add(part.len).filter(|end| *end <= footer.dir_at);
        let Some(end) = end.filter(|_| part.offset == at && part.first_lsn <= part.end_lsn) else {
            return Err(f.damaged("a part is not where the part before it ends"));
        };
        if xxh3_64(&bytes[at as usize..end as usize]) != part.hash {
            return Err(f.damaged("the checksum of a part does not match"));
        }
        at = end;
        parts.push(part);
    }
    if at != footer.dir_at {
        return Err(f.damaged("its parts do not cover its bytes"));
    }
    let mut rows = Vec::new();
    for _ in 0..f.count(ROWS)? {
        let name = f.text()?;
        rows.push(RoundRows { name, place: read_place(&mut f)? });
    }
    f.finish()?;
    Ok(RoundDirectory { header, cut_ms, parts, rows })
}
