//! The frame of the write-ahead log.
//!
//! ```text
//! off size  field
//!   0   4  frame_len u32   bytes after this field; 0 = end of log
//!   4   1  type      u8
//!   5   1  flags     u8
//!   6   8  topic_id  u64
//!  14   8  seq       u64
//!  22   8  ts        u64
//!  30   2  node_len  u16
//!  32   2  tag_len   u16
//!  34   4  data_len  u32   bytes of attributes, meta and data together, prefixes included
//!  38   N  node, M tag, [attrs_len u16, attributes] [meta_len u32, meta] data
//!   .   8  xxh3      u64   XXH3-64 of (bytes 4…37, XXH3-64 of the rest), seeded by place
//! ```
//!
//! The checksum has two levels. The *inner* hash (of node … data) is made by the request before
//! any lock and waits in the trailer; [`seal`] replaces it by the outer checksum, which is seeded
//! from (salt, lsn, frame_len) and therefore valid at one place of one file only.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes before the variable part.
pub const FRAME_HEADER: usize = 38;
/// Bytes after the variable part.
pub const FRAME_TRAILER: usize = 8;
/// The largest frame that is written or accepted, so that a damaged length costs nothing.
pub const MAX_FRAME: usize = 32 << 20;

const LEN: usize = 4;
const TYPE: usize = 4;
const FLAGS: usize = 5;
const TOPIC: usize = 6;
const SEQ: usize = 14;
const TS: usize = 22;
const NODE_LEN: usize = 30;
const TAG_LEN: usize = 32;
const DATA_LEN: usize = 34;
/// Header bytes that the outer checksum covers.
const COVERED: usize = FRAME_HEADER - LEN;

/// What a frame says. Numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FrameType {
    /// A record.
    Append = 1,
    /// A topic begins.
    TopicCreate = 2,
    /// A topic ends.
    TopicDelete = 3,
    /// A router begins.
    RouterCreate = 4,
    /// A router ends.
    RouterDelete = 5,
    /// Records are deleted.
    Delete = 6,
    /// The floors move by eviction or expiry.
    EvictWatermark = 7,
    /// A snapshot was written.
    CheckpointMark = 8,
    /// A topic's config changes.
    ConfigUpdate = 9,
    /// Lease events of a queue.
    Lease = 10,
    /// Seqs, ids or epochs are reserved.
    HeadWatermark = 11,
    /// The key of an idempotent write.
    Idempotency = 12,
    /// A consumer's stored cursor.
    Consumer = 13,
    /// Opens each group write.
    Group = 14,
    /// All before it is synced and the log was closed.
    CleanClose = 15,
    /// An involuntary loss.
    Gap = 16,
    /// A run of router copies.
    Forward = 17,
    /// A transaction is decided.
    TxnCommit = 18,
    /// A part of a transaction is logged.
    TxnPart = 19,
    /// All parts of a transaction are synced.
    TxnDone = 20,
    /// The first frame of a file.
    Start = 21,
    /// Any type from 128 on: not understood, and may be skipped.
    Skippable = 128,
}

impl FrameType {
    /// The newest type that must be understood.
    pub const NEWEST: u8 = Self::Start as u8;

    /// The type with this number; `None` if it must be understood and is not.
    pub fn from_u8(n: u8) -> Option<Self> {
        use FrameType::*;
        const KNOWN: [FrameType; 21] = [
            Append,
            TopicCreate,
            TopicDelete,
            RouterCreate,
            RouterDelete,
            Delete,
            EvictWatermark,
            CheckpointMark,
            ConfigUpdate,
            Lease,
            HeadWatermark,
            Idempotency,
            Consumer,
            Group,
            CleanClose,
            Gap,
            Forward,
            TxnCommit,
            TxnPart,
            TxnDone,
            Start,
        ];
        match n {
            128.. => Some(Skippable),
            _ => KNOWN.get(usize::from(n).wrapping_sub(1)).copied(),
        }
    }
}

/// The flag byte of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The frame has a tag.
    pub const HAS_TAG: u8 = 1;
    /// The frame has a node.
    pub const HAS_NODE: u8 = 2;
    /// Its topic's class was `fsync`.
    pub const DURABLE: u8 = 4;
    /// More frames of the same batch follow.
    pub const BATCH_MORE: u8 = 8;
    /// The payload begins (after the attributes) with meta.
    pub const HAS_META: u8 = 16;
    /// The data is raw bytes, otherwise JSON text.
    pub const BINARY: u8 = 32;
    /// The payload begins with attributes.
    pub const HAS_ATTRS: u8 = 64;
    /// The flags that follow from which fields are present.
    const DERIVED: u8 = Self::HAS_TAG | Self::HAS_NODE | Self::HAS_META | Self::HAS_ATTRS;

    /// Whether all of `bits` are set.
    #[inline]
    pub fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }
}

/// A frame, borrowed. Empty byte strings are absent fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What it says.
    pub kind: FrameType,
    /// Its flags. [`encode`] derives the four `HAS_…` flags from the fields.
    pub flags: Flags,
    /// The topic; 0 where none is meant.
    pub topic_id: u64,
    /// The seq of a record.
    pub seq: u64,
    /// Commit time.
    pub ts: u64,
    /// Origin label.
    pub node: &'a [u8],
    /// What deletes match on.
    pub tag: &'a [u8],
    /// The encoded attribute list, without its length.
    pub attrs: &'a [u8],
    /// Meta as JSON text, without its length.
    pub meta: &'a [u8],
    /// The payload of a record, or the body of a control frame.
    pub data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A control frame: `data` is its encoded body.
    pub fn control(kind: FrameType, topic_id: u64, data: &'a [u8]) -> Self {
        let none: &[u8] = &[];
        Self {
            kind,
            flags: Flags::default(),
            topic_id,
            seq: 0,
            ts: 0,
            node: none,
            tag: none,
            attrs: none,
            meta: none,
            data,
        }
    }

    /// Bytes of the whole frame.
    pub fn encoded_len(&self) -> usize {
        FRAME_HEADER + self.node.len() + self.tag.len() + self.data_len() + FRAME_TRAILER
    }

    fn data_len(&self) -> usize {
        let attrs = if self.attrs.is_empty() { 0 } else { 2 + self.attrs.len() };
        let meta = if self.meta.is_empty() { 0 } else { 4 + self.meta.len() };
        attrs + meta + self.data.len()
    }

    /// What `bytes` of a topic counts: data, meta, tag, node and attributes.
    pub fn payload_bytes(&self) -> u64 {
        let n =
            self.data.len() + self.meta.len() + self.tag.len() + self.node.len() + self.attrs.len();
        n as u64
    }

    fn flag_bits(&self) -> u8 {
        let bit = |field: &[u8], bit: u8| if field.is_empty() { 0 } else { bit };
        (self.flags.0 & !Flags::DERIVED)
            | bit(self.tag, Flags::HAS_TAG)
            | bit(self.node, Flags::HAS_NODE)
            | bit(self.meta, Flags::HAS_META)
            | bit(self.attrs, Flags::HAS_ATTRS)
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Length 0: the end of the log, if only zeros follow.
    #[error("end of log")]
    Zero,
    /// The buffer ends before the frame does; the whole frame's length if it can be read.
    #[error("{} bytes of the frame are there", .have)]
    Short {
        /// Bytes needed to go on.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// A length field cannot be right.
    #[error("impossible length field")]
    Length,
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// The checksum matches, but the fields inside contradict each other.
    #[error("malformed fields")]
    Malformed,
    /// A type that must be understood and is not.
    #[error("unknown frame type {0}")]
    UnknownType(u8),
}

/// Appends a frame whose trailer holds the inner hash, not yet sealed.
///
/// The caller has kept every field within its cap; a frame that cannot be represented is a bug.
pub fn encode(out: &mut Vec<u8>, f: &Frame<'_>) {
    let total = f.encoded_len();
    assert!(
        f.node.len() <= usize::from(u16::MAX)
            && f.tag.len() <= usize::from(u16::MAX)
            && f.attrs.len() <= usize::from(u16::MAX)
            && total <= MAX_FRAME,
        "a field of the frame is above its cap"
    );
    let mut head = [0u8; FRAME_HEADER];
    put_u32(&mut head, 0, (total - LEN) as u32);
    head[TYPE] = f.kind as u8;
    head[FLAGS] = f.flag_bits();
    put_u64(&mut head, TOPIC, f.topic_id);
    put_u64(&mut head, SEQ, f.seq);
    put_u64(&mut head, TS, f.ts);
    put_u16(&mut head, NODE_LEN, f.node.len() as u16);
    put_u16(&mut head, TAG_LEN, f.tag.len() as u16);
    put_u32(&mut head, DATA_LEN, f.data_len() as u32);

    out.reserve(total);
    out.extend_from_slice(&head);
    let body = out.len();
    out.extend_from_slice(f.node);
    out.extend_from_slice(f.tag);
    if !f.attrs.is_empty() {
        out.extend_from_slice(&(f.attrs.len() as u16).to_le_bytes());
        out.extend_from_slice(f.attrs);
    }
    if !f.meta.is_empty() {
        out.extend_from_slice(&(f.meta.len() as u32).to_le_bytes());
        out.extend_from_slice(f.meta);
    }
    out.extend_from_slice(f.data);
    let inner = xxh3_64(&out[body..]);
    out.extend_from_slice(&inner.to_le_bytes());
}

/// The seed of an outer checksum: the file's salt, the place in it (an lsn here, a seq in a
/// segment) and the frame's `frame_len`.
#[inline]
pub fn seed(salt: u64, place: u64, frame_len: u32) -> u64 {
    let place = place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let len = u64::from(frame_len).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    salt.wrapping_add(place) ^ len.rotate_left(31)
}

/// The outer checksum of a frame with these header bytes 4…37.
#[inline]
fn outer(covered: &[u8], inner: [u8; 8], seed: u64) -> u64 {
    let mut b = [0u8; COVERED + 8];
    b[..COVERED].copy_from_slice(covered);
    b[COVERED..].copy_from_slice(&inner);
    xxh3_64_with_seed(&b, seed)
}

/// Replaces the inner hash in the trailer of one whole frame by the outer checksum.
#[inline]
pub fn seal(frame: &mut [u8], salt: u64, lsn: u64) {
    let at = frame.len() - FRAME_TRAILER;
    let inner = get::<8>(frame, at);
    let sum = outer(&frame[LEN..FRAME_HEADER], inner, seed(salt, lsn, get_u32(frame, 0)));
    put_u64(frame, at, sum);
}

/// Puts the inner hash back into the trailer of a sealed frame, so that it can be sealed again at
/// another place. The caller has verified the frame.
pub fn unseal(frame: &mut [u8]) {
    let inner = inner_hash(frame);
    let at = frame.len() - FRAME_TRAILER;
    put_u64(frame, at, inner);
}

/// The inner hash of a whole frame, from its bytes.
#[inline]
pub fn inner_hash(frame: &[u8]) -> u64 {
    xxh3_64(&frame[FRAME_HEADER..frame.len() - FRAME_TRAILER])
}

/// The length of the whole frame that `buf` begins with, when its length fields agree and the
/// frame is there.
#[inline]
fn whole(buf: &[u8]) -> Result<usize, FrameError> {
    if buf.len() < LEN {
        return Err(FrameError::Short { need: LEN, have: buf.len() });
    }
    let len = get_u32(buf, 0) as usize;
    if len == 0 {
        return Err(FrameError::Zero);
    }
    let total = len + LEN;
    if !(FRAME_HEADER + FRAME_TRAILER..=MAX_FRAME).contains(&total) {
        return Err(FrameError::Length);
    }
    if buf.len() < FRAME_HEADER {
        return Err(FrameError::Short { need: total, have: buf.len() });
    }
    let parts = usize::from(get_u16(buf, NODE_LEN))
        + usize::from(get_u16(buf, TAG_LEN))
        + get_u32(buf, DATA_LEN) as usize;
    if FRAME_HEADER + parts + FRAME_TRAILER != total {
        return Err(FrameError::Length);
    }
    if buf.len() < total {
        return Err(FrameError::Short { need: total, have: buf.len() });
    }
    Ok(total)
}

/// Splits the fields of one whole frame.
#[inline]
fn fields(b: &[u8]) -> Result<Frame<'_>, FrameError> {
    let kind = FrameType::from_u8(b[TYPE]).ok_or(FrameError::UnknownType(b[TYPE]))?;
    let flags = Flags(b[FLAGS]);
    let (node, rest) =
        b[FRAME_HEADER..b.len() - FRAME_TRAILER].split_at(get_u16(b, NODE_LEN).into());
    let (tag, mut data) = rest.split_at(get_u16(b, TAG_LEN).into());
    if flags.has(Flags::HAS_NODE) == node.is_empty() || flags.has(Flags::HAS_TAG) == tag.is_empty()
    {
        return Err(FrameError::Malformed);
    }
    let none: &[u8] = &[];
    let (mut attrs, mut meta) = (none, none);
    if flags.has(Flags::HAS_ATTRS) {
        let (n, rest) = data.split_first_chunk::<2>().ok_or(FrameError::Malformed)?;
        let n = usize::from(u16::from_le_bytes(*n));
        (attrs, data) = rest.split_at_checked(n).ok_or(FrameError::Malformed)?;
    }
    if flags.has(Flags::HAS_META) {
        let (n, rest) = data.split_first_chunk::<4>().ok_or(FrameError::Malformed)?;
        let n = u32::from_le_bytes(*n) as usize;
        (meta, data) = rest.split_at_checked(n).ok_or(FrameError::Malformed)?;
    }
    Ok(Frame {
        kind,
        flags,
        topic_id: get_u64(b, TOPIC),
        seq: get_u64(b, SEQ),
        ts: get_u64(b, TS),
        node,
        tag,
        attrs,
        meta,
        data,
    })
}

/// Splits the frame that `buf` begins with, without looking at its checksum.
pub fn parse(buf: &[u8]) -> Result<(Frame<'_>, usize), FrameError> {
    let total = whole(buf)?;
    Ok((fields(&buf[..total])?, total))
}

/// Splits the frame that `buf` begins with, if its checksum says that it belongs at `lsn` of the
/// file with this salt (I12). An unknown type is reported only when the checksum holds.
#[inline]
pub fn verify(buf: &[u8], salt: u64, lsn: u64) -> Result<(Frame<'_>, usize), FrameError> {
    let total = whole(buf)?;
    let b = &buf[..total];
    if !sealed_at(b, salt, lsn) {
        return Err(FrameError::Checksum);
    }
    Ok((fields(b)?, total))
}

/// Whether the checksum of one whole frame says that it belongs at `lsn`.
#[inline]
fn sealed_at(frame: &[u8], salt: u64, lsn: u64) -> bool {
    let inner = inner_hash(frame).to_le_bytes();
    let sum = outer(&frame[LEN..FRAME_HEADER], inner, seed(salt, lsn, get_u32(frame, 0)));
    sum.to_le_bytes() == get::<8>(frame, frame.len() - FRAME_TRAILER)
}

/// What the group writer changes in an unsealed frame before it seals it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patch {
    /// Topic and seq of an Append frame.
    pub record: Option<(u64, u64)>,
    /// The time of a frame that has none.
    pub ts: u64,
    /// Whether more frames of the batch follow.
    pub more: bool,
}

/// Patches the unsealed frame that `buf` begins with; returns its length, or `None` when `buf`
/// does not begin with a whole frame.
#[inline]
pub(crate) fn patch(buf: &mut [u8], total: usize, p: Patch) {
    if let Some((topic_id, seq)) = p.record {
        put_u64(buf, TOPIC, topic_id);
        put_u64(buf, SEQ, seq);
    }
    if get_u64(buf, TS) == 0 {
        put_u64(buf, TS, p.ts);
    }
    let more = if p.more { Flags::BATCH_MORE } else { 0 };
    buf[FLAGS] = (buf[FLAGS] & !Flags::BATCH_MORE) | more;
    debug_assert!(total <= buf.len());
}

/// The length of the whole frame that `buf` begins with, if it is there.
#[inline]
pub(crate) fn frame_len(buf: &[u8]) -> Option<usize> {
    if buf.len() < FRAME_HEADER + FRAME_TRAILER {
        return None;
    }
    let total = get_u32(buf, 0) as usize + LEN;
    (total >= FRAME_HEADER + FRAME_TRAILER && total <= buf.len()).then_some(total)
}

#[inline]
fn get<const N: usize>(b: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&b[at..at + N]);
    out
}

#[inline]
fn get_u16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(get(b, at))
}

#[inline]
fn get_u32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(b, at))
}

#[inline]
fn get_u64(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(b, at))
}

#[inline]
fn put_u16(b: &mut [u8], at: usize, v: u16) {
    b[at..at + 2].copy_from_slice(&v.to_le_bytes());
}

#[inline]
fn put_u32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_le_bytes());
}

#[inline]
fn put_u64(b: &mut [u8], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_le_bytes());
}
