//! The WAL frame.
//!
//! ```text
//! off size  field
//!   0   4  frame_len u32   bytes after this field; 0 = end of log, if nothing but zeros follows
//!   4   1  type      u8
//!   5   1  flags     u8    0 has_tag 1 has_node 2 durable 3 batch_more 4 has_meta 5 binary 6 has_attrs
//!   6   8  topic_id  u64   0: no topic
//!  14   8  seq       u64
//!  22   8  ts        u64
//!  30   2  node_len  u16
//!  32   2  tag_len   u16
//!  34   4  data_len  u32   everything after the tag: attributes and meta with their lengths, data
//!  38   N  node, tag, [attrs_len u16 + attributes] [meta_len u32 + meta] data
//!   .   8  xxh3      u64   XXH3-64 over (bytes 4…37, inner), seeded from (salt, lsn, frame_len)
//! ```
//!
//! The *inner* hash is XXH3-64 of the bytes from offset 38 to the checksum. A frame without a
//! position in the log stores its inner hash in the place of the checksum; [`seal`] replaces it.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes before the node.
pub const FRAME_HEADER: usize = 38;
/// Bytes of the checksum.
pub const FRAME_TRAILER: usize = 8;
/// The maximum `frame_len`: enough for a record of 16 MiB with every optional part.
pub const MAX_FRAME_LEN: u32 = 1 << 25;

#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameType {
    Append = 1,
    /// A topic's creation.
    TopicCreate = 2,
    /// A topic's deletion.
    TopicDelete = 3,
    /// A router's creation.
    RouterCreate = 4,
    /// A router's deletion.
    RouterDelete = 5,
    /// An explicit delete of records.
    Delete = 6,
    /// Eviction or expiry moved a floor.
    EvictWatermark = 7,
    /// A snapshot took effect.
    CheckpointMark = 8,
    /// A topic's config changed.
    ConfigUpdate = 9,
    /// A lease event of a queue.
    Lease = 10,
    /// Seqs (or, for topic 0, topic ids) reserved for later assignment.
    HeadWatermark = 11,
    /// An idempotency key with its answer.
    Idempotency = 12,
    /// A consumer's cursor.
    Consumer = 13,
    /// Starts a commit group.
    Group = 14,
    /// The engine closed; everything before this frame was synced.
    CleanClose = 15,
    /// Seqs lost involuntarily, or (topic 0) lsns declared lost.
    Gap = 16,
    /// A run of router copies.
    Forward = 17,
    /// A transaction's commit decision.
    TxnCommit = 18,
    /// The rows of a transaction in one topic.
    TxnPart = 19,
    /// A transaction's completion.
    TxnDone = 20,
    /// The first frame of a log file; ends the previous file.
    Start = 21,
    /// A type from 128 on: unknown to this version, and safe to skip.
    Skippable = 128,
}

impl FrameType {
    const ALL: [Self; 21] = [
        Self::Append,
        Self::TopicCreate,
        Self::TopicDelete,
        Self::RouterCreate,
        Self::RouterDelete,
        Self::Delete,
        Self::EvictWatermark,
        Self::CheckpointMark,
        Self::ConfigUpdate,
        Self::Lease,
        Self::HeadWatermark,
        Self::Idempotency,
        Self::Consumer,
        Self::Group,
        Self::CleanClose,
        Self::Gap,
        Self::Forward,
        Self::TxnCommit,
        Self::TxnPart,
        Self::TxnDone,
        Self::Start,
    ];

    /// The highest type number that this version knows.
    pub const NEWEST: u8 = Self::Start as u8;

    /// The type with this number; `None` if a reader must know the type and this version does not.
    #[must_use]
    pub fn from_u8(v: u8) -> Option<Self> {
        if v >= Self::Skippable as u8 {
            return Some(Self::Skippable);
        }
        Self::ALL.get(usize::from(v).checked_sub(1)?).copied()
    }
}

/// The flags byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The record has a tag.
    pub const HAS_TAG: u8 = 1;
    /// The record has a node.
    pub const HAS_NODE: u8 = 2;
    /// Logged under class `fsync`.
    pub const DURABLE: u8 = 4;
    /// More frames of the same batch follow.
    pub const BATCH_MORE: u8 = 8;
    /// The record has meta.
    pub const HAS_META: u8 = 16;
    /// The payload is raw bytes.
    pub const BINARY: u8 = 32;
    /// The record has attributes.
    pub const HAS_ATTRS: u8 = 64;
    /// The flags that describe a record; a segment stores the same ones.
    pub const RECORD: u8 =
        Self::HAS_TAG | Self::HAS_NODE | Self::HAS_META | Self::BINARY | Self::HAS_ATTRS;

    /// Whether a flag is set.
    #[must_use]
    pub fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    /// Whether more frames of the same batch follow.
    #[must_use]
    pub fn batch_more(self) -> bool {
        self.has(Self::BATCH_MORE)
    }
}

/// A decoded frame that borrows its bytes. Absent parts are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: FrameType,
    /// Its flags; `encode` derives the `HAS_` flags from the parts.
    pub flags: Flags,
    /// The topic; 0: none.
    pub topic_id: u64,
    /// The record's seq, or a value that the type defines.
    pub seq: u64,
    /// Commit time in ms.
    pub ts: u64,
    /// Origin label.
    pub node: &'a [u8],
    pub tag: &'a [u8],
    /// Encoded attributes (see [`super::attrs`]), without their length.
    pub attrs: &'a [u8],
    /// Meta as JSON text.
    pub meta: &'a [u8],
    /// Payload, or a control body.
    pub data: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A control frame with this body.
    #[must_use]
    pub fn control(kind: FrameType, topic_id: u64, seq: u64, ts: u64, data: &'a [u8]) -> Self {
        let flags = Flags::default();
        Self { kind, flags, topic_id, seq, ts, node: &[], tag: &[], attrs: &[], meta: &[], data }
    }

    /// The length of the whole frame.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        FRAME_HEADER + self.node.len() + self.tag.len() + self.rest_len() + FRAME_TRAILER
    }

    fn rest_len(&self) -> usize {
        let attrs = if self.attrs.is_empty() { 0 } else { 2 + self.attrs.len() };
        let meta = if self.meta.is_empty() { 0 } else { 4 + self.meta.len() };
        attrs + meta + self.data.len()
    }

    /// Bytes of data, meta, tag, node and attributes: the size that counts against a topic's caps.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        (self.node.len() + self.tag.len() + self.attrs.len() + self.meta.len() + self.data.len())
            as u64
    }
}

/// Why bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The buffer ends before the frame does. Contains the number of bytes that the frame needs.
    #[error("the frame is cut off")]
    Short(usize),
    /// A length of zero: the end of the log, if nothing but zeros follows.
    #[error("no frame")]
    Zero,
    /// A length above the limit.
    #[error("impossible length {0}")]
    Length(u32),
    /// The lengths of the parts do not add up to the frame length.
    #[error("the lengths inside do not add up")]
    Layout,
    /// A type that this format version does not know.
    #[error("unknown type {0}")]
    Type(u8),
    /// The checksum does not match.
    #[error("the checksum differs")]
    Checksum,
}

/// Appends a frame; the trailer holds the inner hash until [`seal`].
///
/// The caller keeps every part within its cap: a frame that cannot be encoded must not reach the
/// disk.
pub fn encode(out: &mut Vec<u8>, f: &Frame<'_>) {
    let cap = usize::from(u16::MAX);
    assert!(
        f.node.len() <= cap
            && f.tag.len() <= cap
            && f.attrs.len() <= cap
            && f.encoded_len() <= MAX_FRAME_LEN as usize,
        "a part of the frame is above its cap"
    );
    let start = out.len();
    let mut flags =
        f.flags.0 & !(Flags::HAS_TAG | Flags::HAS_NODE | Flags::HAS_META | Flags::HAS_ATTRS);
    for (set, flag) in [
        (!f.tag.is_empty(), Flags::HAS_TAG),
        (!f.node.is_empty(), Flags::HAS_NODE),
        (!f.meta.is_empty(), Flags::HAS_META),
        (!f.attrs.is_empty(), Flags::HAS_ATTRS),
    ] {
        flags |= if set { flag } else { 0 };
    }
    let mut head = [0u8; FRAME_HEADER];
    head[0..4].copy_from_slice(&((f.encoded_len() - 4) as u32).to_le_bytes());
    head[4] = f.kind as u8;
    head[5] = flags;
    head[6..14].copy_from_slice(&f.topic_id.to_le_bytes());
    head[14..22].copy_from_slice(&f.seq.to_le_bytes());
    head[22..30].copy_from_slice(&f.ts.to_le_bytes());
    head[30..32].copy_from_slice(&(f.node.len() as u16).to_le_bytes());
    head[32..34].copy_from_slice(&(f.tag.len() as u16).to_le_bytes());
    head[34..38].copy_from_slice(&(f.rest_len() as u32).to_le_bytes());
    out.extend_from_slice(&head);
    for label in [f.node, f.tag] {
        if !label.is_empty() {
            out.extend_from_slice(label);
        }
    }
    if !f.attrs.is_empty() {
        out.extend_from_slice(&(f.attrs.len() as u16).to_le_bytes());
        out.extend_from_slice(f.attrs);
    }
    if !f.meta.is_empty() {
        out.extend_from_slice(&(f.meta.len() as u32).to_le_bytes());
        out.extend_from_slice(f.meta);
    }
    out.extend_from_slice(f.data);
    let inner = xxh3_64(&out[start + FRAME_HEADER..]);
    out.extend_from_slice(&inner.to_le_bytes());
}

/// The seed of a frame's checksum, derived from its position (an lsn in the log, a seq in a
/// segment): a frame is valid at one position only.
#[inline]
pub fn seed(salt: u64, lsn: u64, frame_len: u32) -> u64 {
    salt ^ lsn.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(frame_len).rotate_left(40)
}

#[inline]
fn outer(frame: &[u8], inner: u64, salt: u64, lsn: u64) -> u64 {
    let mut head = [0u8; FRAME_HEADER - 4 + 8];
    head[..FRAME_HEADER - 4].copy_from_slice(&frame[4..FRAME_HEADER]);
    head[FRAME_HEADER - 4..].copy_from_slice(&inner.to_le_bytes());
    xxh3_64_with_seed(&head, seed(salt, lsn, u32_at(frame, 0)))
}

/// Replaces the inner hash in the trailer of one encoded frame by the checksum for this position.
#[inline]
pub fn seal(frame: &mut [u8], salt: u64, lsn: u64) {
    let at = frame.len() - FRAME_TRAILER;
    let inner = u64_at(frame, at);
    let sum = outer(frame, inner, salt, lsn);
    frame[at..].copy_from_slice(&sum.to_le_bytes());
}

/// Restores the inner hash in the trailer of a sealed frame, so that the frame can be sealed for
/// another position. The caller has verified the frame.
#[inline]
pub fn unseal(frame: &mut [u8]) {
    let at = frame.len() - FRAME_TRAILER;
    let inner = inner_hash(frame);
    frame[at..].copy_from_slice(&inner.to_le_bytes());
}

/// Sets topic and seq of an unsealed frame, and its ts if it has none.
#[inline]
pub fn patch(frame: &mut [u8], topic_id: u64, seq: u64, ts: u64) {
    frame[6..14].copy_from_slice(&topic_id.to_le_bytes());
    frame[14..22].copy_from_slice(&seq.to_le_bytes());
    patch_ts(frame, ts);
}

/// Sets the ts of an unsealed frame if it has none.
#[inline]
pub fn patch_ts(frame: &mut [u8], ts: u64) {
    if u64_at(frame, 22) == 0 {
        frame[22..30].copy_from_slice(&ts.to_le_bytes());
    }
}

/// The length of the first frame in `buf`, if the frame is complete and within the limit.
#[inline]
pub(crate) fn whole_size(buf: &[u8]) -> Option<usize> {
    checked_size(buf).ok()
}

/// Sets or clears `batch_more` of an unsealed frame.
#[inline]
pub fn set_batch_more(frame: &mut [u8], more: bool) {
    frame[5] = (frame[5] & !Flags::BATCH_MORE) | if more { Flags::BATCH_MORE } else { 0 };
}

/// The length of the frame that starts at `buf[0]`; checks nothing.
#[inline]
#[must_use]
pub fn frame_size(buf: &[u8]) -> usize {
    u32_at(buf, 0) as usize + 4
}

/// Checks the structure, not the checksum, of the frame that starts at `buf[0]`. Returns the frame
/// and its length.
#[inline]
pub fn parse(buf: &[u8]) -> Result<(Frame<'_>, usize), FrameError> {
    let size = checked_size(buf)?;
    let kind = FrameType::from_u8(buf[4]).ok_or(FrameError::Type(buf[4]))?;
    Ok((parts(kind, &buf[..size])?, size))
}

#[inline]
fn checked_size(buf: &[u8]) -> Result<usize, FrameError> {
    if buf.len() < 4 {
        return Err(FrameError::Short(4));
    }
    let len = u32_at(buf, 0);
    match len {
        0 => return Err(FrameError::Zero),
        l if l > MAX_FRAME_LEN || (l as usize) < FRAME_HEADER - 4 + FRAME_TRAILER => {
            return Err(FrameError::Length(l));
        }
        _ => {}
    }
    let size = len as usize + 4;
    if buf.len() < size {
        return Err(FrameError::Short(size));
    }
    Ok(size)
}

#[inline]
fn parts(kind: FrameType, frame: &[u8]) -> Result<Frame<'_>, FrameError> {
    let flags = Flags(frame[5]);
    let node_len = u16_at(frame, 30) as usize;
    let tag_len = u16_at(frame, 32) as usize;
    let body = &frame[FRAME_HEADER..frame.len() - FRAME_TRAILER];
    if node_len + tag_len + u32_at(frame, 34) as usize != body.len() {
        return Err(FrameError::Layout);
    }
    let (node, rest) = body.split_at(node_len);
    let (tag, mut rest) = rest.split_at(tag_len);
    let mut take = |has: bool, width: usize| -> Result<&[u8], FrameError> {
        if !has {
            return Ok(&[]);
        }
        let (len, after) = rest.split_at_checked(width).ok_or(FrameError::Layout)?;
        let len = if width == 2 { u16_at(len, 0) as usize } else { u32_at(len, 0) as usize };
        let (part, after) = after.split_at_checked(len).ok_or(FrameError::Layout)?;
        rest = after;
        Ok(part)
    };
    let attrs = take(flags.has(Flags::HAS_ATTRS), 2)?;
    let meta = take(flags.has(Flags::HAS_META), 4)?;
    Ok(Frame {
        kind,
        flags,
        topic_id: u64_at(frame, 6),
        seq: u64_at(frame, 14),
        ts: u64_at(frame, 22),
        node,
        tag,
        attrs,
        meta,
        data: rest,
    })
}

/// Checks structure and checksum of the frame that starts at `buf[0]`.
#[inline]
pub fn verify(buf: &[u8], salt: u64, lsn: u64) -> Result<(Frame<'_>, usize), FrameError> {
    verify_inner(buf, salt, lsn).map(|(frame, size, _)| (frame, size))
}

/// [`verify`], and also returns the inner hash, which a copy of the frame reuses.
#[inline]
pub fn verify_inner(
    buf: &[u8],
    salt: u64,
    lsn: u64,
) -> Result<(Frame<'_>, usize, u64), FrameError> {
    let size = checked_size(buf)?;
    let frame = &buf[..size];
    let at = size - FRAME_TRAILER;
    let inner = xxh3_64(&frame[FRAME_HEADER..at]);
    if outer(frame, inner, salt, lsn) != u64_at(frame, at) {
        return Err(FrameError::Checksum);
    }
    let kind = FrameType::from_u8(frame[4]).ok_or(FrameError::Type(frame[4]))?;
    Ok((parts(kind, frame)?, size, inner))
}

/// The inner hash of an encoded frame, computed from its bytes.
#[must_use]
pub fn inner_hash(frame: &[u8]) -> u64 {
    xxh3_64(&frame[FRAME_HEADER..frame.len() - FRAME_TRAILER])
}

#[inline]
pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline]
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut v = [0; 8];
    v.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(v)
}

#[cfg(test)]
mod tests;
