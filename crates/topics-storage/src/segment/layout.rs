//! The bytes of `.data`, and the header that the files beside it share.
//!
//! ```text
//! .data header, 64 bytes            frame
//!   0  4  magic "TSEG"                0  4  frame_len u32, bytes after this field
//!   4  2  version u16                 4  1  flags u8
//!   6  1  codec u8, 0 = none          5  8  seq u64
//!   7  1  0                          13  8  ts u64
//!   8  8  store id, first 8 bytes    21  2  node_len u16
//!  16  8  topic id u64               23  2  tag_len u16
//!  24  8  epoch u64                  25  4  data_len u32
//!  32  8  first seq u64              29  .  node, tag, [attrs_len u16 + attributes]
//!  40  8  file number u64                   [meta_len u32 + meta] data
//!  48  8  salt u64                    .  8  XXH3-64 of (bytes 4…28, inner hash), seeded
//!  56  8  XXH3-64 of bytes 0…55
//!
//! header of .idx .del .tags .attrs, 32 bytes
//!   0  4  magic   4  4  version u32   8  8  salt of the .data   16  8  file number
//!  24  8  XXH3-64 of bytes 0…23
//! ```
//!
//! The flags are those of the WAL frame that describe the record, without `durable` and
//! `batch_more`. `data_len` counts attributes, meta and data with their length prefixes. The inner
//! hash is the XXH3-64 of node…data, the same bytes as in the WAL frame; the seed is computed as in
//! the WAL, from (salt, seq, frame_len).

use topics_env::Env;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::TopicKey;
use crate::dir::{SHARED_ID, le_u16, le_u32, le_u64};
use crate::format::frame::{Flags, Frame, FrameType, seed};
use crate::{Result, StorageError};

/// The version of every segment format.
pub const VERSION: u32 = 1;
/// The length of the `.data` header.
pub const DATA_HEADER: usize = 64;
/// The length of the header of the other files.
pub const SIDE_HEADER: usize = 32;
/// The bytes of a frame before its node.
pub const FRAME_HEADER: usize = 29;
/// The bytes of a frame besides its payload and the length prefixes of attributes and meta.
pub const FRAME_FIXED: usize = FRAME_HEADER + 8;

const DATA_MAGIC: [u8; 4] = *b"TSEG";

/// The content of a `.data` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    pub store_id: [u8; 16],
    pub topic: TopicKey,
    pub first_seq: u64,
    pub file_no: u64,
    pub salt: u64,
}

impl DataHeader {
    pub fn encode(&self) -> [u8; DATA_HEADER] {
        let mut out = [0; DATA_HEADER];
        out[..4].copy_from_slice(&DATA_MAGIC);
        out[4..6].copy_from_slice(&(VERSION as u16).to_le_bytes());
        out[8..16].copy_from_slice(&self.store_id[..SHARED_ID]);
        let words =
            [self.topic.topic_id, self.topic.epoch, self.first_seq, self.file_no, self.salt];
        for (i, word) in words.into_iter().enumerate() {
            out[16 + i * 8..24 + i * 8].copy_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64(&out[..56]);
        out[56..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Checks that `bytes` are the header of the segment that `want` describes (except for the
    /// salt) and returns the salt.
    pub fn check(env: &Env, file: &str, bytes: &[u8], want: &Self) -> Result<u64> {
        let corrupt = |offset, detail: &str| corrupt(file, offset, detail);
        if bytes.len() < DATA_HEADER {
            return Err(corrupt(bytes.len() as u64, "shorter than its header"));
        }
        if bytes[..4] != DATA_MAGIC {
            return Err(corrupt(0, "not a segment"));
        }
        let sum = xxh3_64(&bytes[..56]) == le_u64(bytes, 56);
        if !env.check("segment.header", sum) {
            return Err(corrupt(56, "the header's checksum does not match"));
        }
        let (version, codec) = (u32::from(le_u16(bytes, 4)), bytes[6]);
        if version != VERSION || codec != 0 {
            return Err(StorageError::Version {
                what: format!("{file} (codec {codec})"),
                found: version,
                supported: VERSION,
            });
        }
        let salt = le_u64(bytes, 48);
        let same = Self { salt, ..*want }.encode()[..56] == bytes[..56];
        if !env.check("segment.identity", same) {
            return Err(corrupt(8, "it is another segment"));
        }
        Ok(salt)
    }
}

/// The header of a file beside `.data`.
pub fn side_header(magic: [u8; 4], salt: u64, file_no: u64) -> [u8; SIDE_HEADER] {
    let mut out = [0; SIDE_HEADER];
    out[..4].copy_from_slice(&magic);
    out[4..8].copy_from_slice(&VERSION.to_le_bytes());
    out[8..16].copy_from_slice(&salt.to_le_bytes());
    out[16..24].copy_from_slice(&file_no.to_le_bytes());
    let sum = xxh3_64(&out[..24]);
    out[24..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Checks such a header and returns its salt.
pub fn check_side_header(
    env: &Env,
    file: &str,
    bytes: &[u8],
    magic: [u8; 4],
    file_no: u64,
) -> Result<u64> {
    if bytes.len() < SIDE_HEADER {
        return Err(corrupt(file, bytes.len() as u64, "shorter than its header"));
    }
    if bytes[..4] != magic {
        return Err(corrupt(file, 0, "not the file that its name says"));
    }
    if xxh3_64(&bytes[..24]) != le_u64(bytes, 24) {
        return Err(corrupt(file, 24, "the header's checksum does not match"));
    }
    let version = le_u32(bytes, 4);
    if version != VERSION {
        return Err(StorageError::Version {
            what: file.to_owned(),
            found: version,
            supported: VERSION,
        });
    }
    if !env.check("segment.side-identity", le_u64(bytes, 16) == file_no) {
        return Err(corrupt(file, 16, "it has another file number"));
    }
    Ok(le_u64(bytes, 8))
}

pub fn corrupt(file: &str, offset: u64, detail: impl Into<String>) -> StorageError {
    StorageError::Corrupt { file: file.to_owned(), offset, detail: detail.into() }
}

fn outer(header: &[u8], inner: u64, salt: u64, seq: u64, frame_len: u32) -> u64 {
    let mut bytes = [0; FRAME_HEADER - 4 + 8];
    bytes[..FRAME_HEADER - 4].copy_from_slice(&header[4..FRAME_HEADER]);
    bytes[FRAME_HEADER - 4..].copy_from_slice(&inner.to_le_bytes());
    xxh3_64_with_seed(&bytes, seed(salt, seq, frame_len))
}

/// The length of a record's frame.
pub fn frame_len(f: &Frame<'_>) -> usize {
    let attrs = if f.flags.has(Flags::HAS_ATTRS) { 2 + f.attrs.len() } else { 0 };
    let meta = if f.flags.has(Flags::HAS_META) { 4 + f.meta.len() } else { 0 };
    FRAME_FIXED + f.node.len() + f.tag.len() + attrs + meta + f.data.len()
}

/// Appends a record's frame; `inner` is the hash of its node…data. The caller has checked that the
/// lengths fit into their fields.
pub fn encode_frame(out: &mut Vec<u8>, f: &Frame<'_>, salt: u64, inner: u64) {
    let at = out.len();
    let total = frame_len(f);
    let len = (total - 4) as u32;
    let rest = (total - FRAME_FIXED - f.node.len() - f.tag.len()) as u32;
    let mut head = [0; FRAME_HEADER];
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4] = f.flags.0;
    head[5..13].copy_from_slice(&f.seq.to_le_bytes());
    head[13..21].copy_from_slice(&f.ts.to_le_bytes());
    head[21..23].copy_from_slice(&(f.node.len() as u16).to_le_bytes());
    head[23..25].copy_from_slice(&(f.tag.len() as u16).to_le_bytes());
    head[25..].copy_from_slice(&rest.to_le_bytes());
    out.reserve(total);
    out.extend_from_slice(&head);
    out.extend_from_slice(f.node);
    out.extend_from_slice(f.tag);
    if f.flags.has(Flags::HAS_ATTRS) {
        out.extend_from_slice(&(f.attrs.len() as u16).to_le_bytes());
        out.extend_from_slice(f.attrs);
    }
    if f.flags.has(Flags::HAS_META) {
        out.extend_from_slice(&(f.meta.len() as u32).to_le_bytes());
        out.extend_from_slice(f.meta);
    }
    out.extend_from_slice(f.data);
    debug_assert_eq!(xxh3_64(&out[at + FRAME_HEADER..]), inner, "I12: the carried inner hash");
    out.extend_from_slice(&outer(&head, inner, salt, f.seq, len).to_le_bytes());
}

/// Checks that `buf` is exactly the frame of `seq` and returns its inner hash.
#[inline]
pub fn verify_frame(buf: &[u8], salt: u64, seq: u64) -> Option<u64> {
    if buf.len() < FRAME_FIXED {
        return None;
    }
    let len = le_u32(buf, 0);
    if len as usize + 4 != buf.len() || le_u64(buf, 5) != seq {
        return None;
    }
    let (body, sum) = buf.split_at(buf.len() - 8);
    let inner = xxh3_64(&body[FRAME_HEADER..]);
    (outer(body, inner, salt, seq, len) == le_u64(sum, 0)).then_some(inner)
}

/// The commit time in a frame.
pub fn frame_ts(buf: &[u8]) -> u64 {
    le_u64(buf, 13)
}

/// The parts of a frame; `None` if its lengths are inconsistent.
pub fn parse_frame(buf: &[u8], topic_id: u64) -> Option<Frame<'_>> {
    if buf.len() < FRAME_FIXED || le_u32(buf, 0) as usize + 4 != buf.len() {
        return None;
    }
    let flags = Flags(buf[4]);
    let rest = &buf[FRAME_HEADER..buf.len() - 8];
    let (node, rest) = rest.split_at_checked(usize::from(le_u16(buf, 21)))?;
    let (tag, mut rest) = rest.split_at_checked(usize::from(le_u16(buf, 23)))?;
    if rest.len() != le_u32(buf, 25) as usize {
        return None;
    }
    let (mut attrs, mut meta) = (&[][..], &[][..]);
    if flags.has(Flags::HAS_ATTRS) {
        let (len, after) = rest.split_first_chunk::<2>()?;
        (attrs, rest) = after.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
    }
    if flags.has(Flags::HAS_META) {
        let (len, after) = rest.split_first_chunk::<4>()?;
        (meta, rest) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    }
    Some(Frame {
        kind: FrameType::Append,
        flags,
        topic_id,
        seq: le_u64(buf, 5),
        ts: le_u64(buf, 13),
        node,
        tag,
        attrs,
        meta,
        data: rest,
    })
}
