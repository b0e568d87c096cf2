//! `.idx`: the position of each record in `.data`.
//!
//! ```text
//! side header, magic "TIDX"
//! entry of seq s at 32 + (s − first_seq) × 20:
//!   offset u32, len u32 (whole frame, 0 = hole), ts u64 (of a hole: that of the record before it),
//!   flags u8, 0 0 0
//! footer of a sealed one, 72 bytes
//!   0  4  magic "TIXF"   4  4  version u32
//!   8  8  first seq     16  8  last seq     24  8  number of entries   32  8  length of .data
//!  40  8  first ts      48  8  last ts
//!  56  8  XXH3-64 of header and entries, seeded with the salt
//!  64  8  XXH3-64 of footer bytes 0…63, seeded with the salt
//! ```
//!
//! Frames are stored in seq order without space between them, so each entry's offset is the end of
//! the previous entry. An active `.idx` has no checksum: readers check this chain and the fields
//! that the frames repeat instead.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::layout::{DATA_HEADER, SIDE_HEADER, VERSION, corrupt};
use super::{IdxEntry, SegmentMeta};
use crate::dir::{le_u32, le_u64};
use crate::{Result, StorageError};

pub const IDX_MAGIC: [u8; 4] = *b"TIDX";
const FOOTER_MAGIC: [u8; 4] = *b"TIXF";
pub const ENTRY: usize = 20;
pub const FOOTER: usize = 72;

/// The offset of the entry of the `n`th seq.
pub fn entry_at(n: u64) -> u64 {
    SIDE_HEADER as u64 + n * ENTRY as u64
}

pub fn encode_entry(out: &mut Vec<u8>, e: &IdxEntry) {
    let mut bytes = [0; ENTRY];
    bytes[..4].copy_from_slice(&e.offset.to_le_bytes());
    bytes[4..8].copy_from_slice(&e.len.to_le_bytes());
    bytes[8..16].copy_from_slice(&e.ts.to_le_bytes());
    bytes[16] = e.flags;
    out.extend_from_slice(&bytes);
}

#[inline]
pub fn decode_entry(bytes: &[u8]) -> IdxEntry {
    IdxEntry {
        offset: le_u32(bytes, 0),
        len: le_u32(bytes, 4),
        ts: le_u64(bytes, 8),
        flags: bytes[16],
    }
}

pub fn decode_entries(bytes: &[u8]) -> Vec<IdxEntry> {
    bytes.chunks_exact(ENTRY).map(decode_entry).collect()
}

/// The checksum of header and entries.
pub fn whole_sum(salt: u64, parts: &[&[u8]]) -> u64 {
    let mut hash = Xxh3::with_seed(salt);
    parts.iter().for_each(|p| hash.update(p));
    hash.digest()
}

pub fn encode_footer(meta: &SegmentMeta, salt: u64, whole: u64) -> [u8; FOOTER] {
    let mut out = [0; FOOTER];
    out[..4].copy_from_slice(&FOOTER_MAGIC);
    out[4..8].copy_from_slice(&VERSION.to_le_bytes());
    let words = [
        meta.first_seq,
        meta.last_seq,
        meta.span(),
        meta.data_len,
        meta.first_ts,
        meta.last_ts,
        whole,
    ];
    for (i, word) in words.into_iter().enumerate() {
        out[8 + i * 8..16 + i * 8].copy_from_slice(&word.to_le_bytes());
    }
    let sum = xxh3_64_with_seed(&out[..64], salt);
    out[64..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Checks a footer against the snapshot's entry; returns the checksum of header and entries.
pub fn check_footer(file: &str, bytes: &[u8], salt: u64, meta: &SegmentMeta) -> Result<u64> {
    let at = entry_at(meta.span());
    if bytes.len() < FOOTER {
        return Err(corrupt(file, at, "the footer is not there"));
    }
    if xxh3_64_with_seed(&bytes[..64], salt) != le_u64(bytes, 64) {
        return Err(corrupt(file, at, "the footer's checksum does not match"));
    }
    if le_u32(bytes, 4) != VERSION {
        return Err(StorageError::Version {
            what: file.to_owned(),
            found: le_u32(bytes, 4),
            supported: VERSION,
        });
    }
    let whole = le_u64(bytes, 56);
    if bytes[..FOOTER] != encode_footer(meta, salt, whole) {
        return Err(corrupt(file, at, "the footer describes another segment"));
    }
    Ok(whole)
}

/// Whether entries form a chain: each starts at the end of the previous one, and times never
/// decrease. `from` is the end of the preceding entry, `to` the start of the following one.
pub fn is_chain(entries: &[IdxEntry], from: Option<u64>, to: Option<u64>) -> bool {
    let mut end = from;
    let mut ts = 0;
    for e in entries {
        let offset = u64::from(e.offset);
        if offset < DATA_HEADER as u64 || end.is_some_and(|end| end != offset) || e.ts < ts {
            return false;
        }
        end = Some(offset + u64::from(e.len));
        ts = e.ts;
    }
    match (end, to) {
        (Some(end), Some(to)) => end == to,
        _ => true,
    }
}
