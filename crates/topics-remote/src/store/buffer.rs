//! Memory for the bytes of objects.

use bytes::Bytes;
use memmap2::{MmapMut, MmapOptions};

/// Large buffers are mapped, so that their memory goes back to the system when they are dropped: they are filled
/// by one thread and dropped by another, and an allocator would keep them for the first one.
const MAPPED: usize = 1 << 20;

pub(super) enum Buffer {
    Heap(Vec<u8>),
    Mapped(MmapMut),
}

impl Buffer {
    /// Zeros.
    pub fn new(len: usize) -> Self {
        match (len >= MAPPED).then(|| MmapOptions::new().len(len).populate().map_anon()) {
            Some(Ok(map)) => Self::Mapped(map),
            _ => Self::Heap(vec![0; len]),
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        match buffer {
            Buffer::Heap(bytes) => bytes.into(),
            Buffer::Mapped(map) => Self::from_owner(map),
        }
    }
}
