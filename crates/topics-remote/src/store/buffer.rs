//! Memory for the bytes of objects, which is used again.
//!
//! A buffer is filled by one thread and dropped by another, so that an allocator keeps its memory for the first
//! one; and new memory costs more than the read, because the system clears each page.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::MmapMut;
use topics_env::sync::Mutex;

/// Smaller buffers are from the allocator; larger ones too, because few reads have them.
const LENS: RangeInclusive<usize> = 256 << 10..=4 << 20;
/// Maximum free buffers.
const MOST: usize = 4;

/// The free buffers of a store, the last one freed last. Each is used for reads of its length only: a short read in
/// a long buffer would hold more memory than it counts as.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers(Arc<Mutex<VecDeque<MmapMut>>>);

impl Buffers {
    /// A buffer; its content is not defined.
    pub fn get(&self, len: usize) -> Buffer {
        if LENS.contains(&len) {
            let free = self.take(len);
            if let Some(map) = free.or_else(|| MmapMut::map_anon(len).ok()) {
                return Buffer::Mapped(Mapped { map: Some(map), buffers: self.clone() });
            }
        }
        Buffer::Heap(vec![0; len])
    }

    fn take(&self, len: usize) -> Option<MmapMut> {
        let mut free = self.0.lock();
        let at = free.iter().rposition(|map| map.len() == len)?;
        free.remove(at)
    }
}

pub(super) enum Buffer {
    Heap(Vec<u8>),
    Mapped(Mapped),
}

pub(super) struct Mapped {
    /// `None` only during the drop.
    map: Option<MmapMut>,
    buffers: Buffers,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let mut free = self.buffers.0.lock();
        free.extend(self.map.take());
        // It is unmapped without the lock.
        let old = if free.len() > MOST { free.pop_front() } else { None };
        drop(free);
        drop(old);
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(mapped) => mapped.as_ref(),
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Mapped(mapped) => mapped.map.as_deref_mut().unwrap_or_default(),
        }
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        match buffer {
            Buffer::Heap(bytes) => bytes.into(),
            Buffer::Mapped(mapped) => Self::from_owner(mapped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_little_of_it_is_kept() {
        let buffers = Buffers::default();
        let filled = |len: usize, with: u8| {
            let mut buffer = buffers.get(len);
            buffer.as_mut().fill(with);
            Bytes::from(buffer)
        };
        let first = filled(1 << 20, 1);
        let slice = first.slice(7..9);
        let at = first.as_ptr();
        drop(first);
        assert!(buffers.0.lock().is_empty(), "a part of it is in use");
        assert_eq!(&slice[..], &[1, 1]);
        drop(slice);
        let again = filled(1 << 20, 2);
        assert_eq!(again.as_ptr(), at);
        assert!(again.iter().all(|b| *b == 2) && again.len() == 1 << 20);
        let many: Vec<Bytes> = (0..MOST as u8 + 2).map(|n| filled(2 << 20, n)).collect();
        assert!(many.iter().zip(0..).all(|(bytes, n)| bytes.iter().all(|b| *b == n)));
        drop((again, many));
        let free = || buffers.0.lock().iter().map(|map| map.len()).collect::<Vec<_>>();
        assert_eq!(free(), [2 << 20; MOST], "the last ones");
        drop(filled(1 << 20, 3));
        assert_eq!(free()[MOST - 1], 1 << 20, "not in memory for more");
        for len in [0, 1, LENS.end() + 1] {
            assert_eq!(filled(len, 4).len(), len);
        }
        assert_eq!(free().len(), MOST);
    }
}
