//! Records that name the call that wrote them, and reveal any changed byte.

/// The minimum length of a payload: the call, the index, the length.
pub const MIN_BYTES: usize = 20;

/// A record, identified by its call and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    pub op: u64,
    pub index: u32,
}

fn filler(origin: Origin) -> u8 {
    (origin.op.wrapping_mul(31).wrapping_add(u64::from(origin.index) * 7) % 251) as u8
}

/// The payload of a record, `len` bytes long (at least [`MIN_BYTES`]).
#[must_use]
pub fn make(origin: Origin, len: usize) -> Vec<u8> {
    let len = len.max(MIN_BYTES);
    let mut bytes = vec![filler(origin); len];
    bytes[..8].copy_from_slice(&origin.op.to_le_bytes());
    bytes[8..12].copy_from_slice(&origin.index.to_le_bytes());
    bytes[12..20].copy_from_slice(&(len as u64).to_le_bytes());
    bytes
}

/// The record that a payload belongs to; `None`: these bytes were never written.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Origin> {
    let op = u64::from_le_bytes(*bytes.first_chunk()?);
    let index = u32::from_le_bytes(*bytes.get(8..12)?.first_chunk()?);
    let len = u64::from_le_bytes(*bytes.get(12..20)?.first_chunk()?);
    let origin = Origin { op, index };
    let fill = filler(origin);
    let whole = len == bytes.len() as u64 && bytes[MIN_BYTES..].iter().all(|b| *b == fill);
    whole.then_some(origin)
}
