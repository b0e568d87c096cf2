//! Large buffers in huge pages.
//!
//! The first touch of a page costs several times as much as filling it. A large buffer asks for huge
//! pages, which take one fault for 512 small ones.

use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// The size of a huge page. If the system has other sizes or none, the advice has no effect.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed bytes in their own mapping, aligned to a page.
#[derive(Debug)]
pub struct Pages {
    map: MmapMut,
    len: usize,
}

impl Pages {
    /// The minimum length at which a mapping is faster than an ordinary allocation.
    pub const MIN_LEN: usize = HUGE_PAGE / 2;

    /// `len` zeros.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        // A mapping of whole huge pages is aligned to them; untouched pages use no memory.
        let map = MmapMut::map_anon(len.max(1).next_multiple_of(HUGE_PAGE))?;
        advise(&map, len);
        Ok(Self { map, len })
    }

    /// Reuses the same memory for `len` bytes, if it is large enough; the content is unspecified.
    #[must_use]
    pub fn reused(mut self, len: usize) -> Option<Self> {
        let fits = len <= self.map.len();
        self.len = len;
        fits.then_some(self)
    }
}

/// Requests the last huge page only if more than half of it is used.
#[cfg(target_os = "linux")]
fn advise(map: &MmapMut, len: usize) {
    let whole = (len + HUGE_PAGE / 2) / HUGE_PAGE * HUGE_PAGE;
    if whole > 0
        && let Err(e) = map.advise_range(memmap2::Advice::HugePage, 0, whole)
    {
        log::trace!("no huge pages: {e}");
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_map: &MmapMut, _len: usize) {}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_the_requested_length_and_is_zero() {
        for len in [
            0,
            1,
            HUGE_PAGE / 2 - 1,
            HUGE_PAGE / 2,
            HUGE_PAGE,
            HUGE_PAGE + 1,
            5 * HUGE_PAGE / 2,
            5 * HUGE_PAGE / 2 + 1,
        ] {
            let mut pages = Pages::zeroed(len).unwrap();
            assert_eq!((pages.len(), pages.as_ptr() as usize % 4096), (len, 0));
            assert!(pages.iter().all(|b| *b == 0));
            pages.fill(7);
            assert!(pages.as_ref().iter().all(|b| *b == 7));
            let whole = len.max(1).next_multiple_of(HUGE_PAGE);
            let again = pages.reused(whole).unwrap();
            assert_eq!(again.len(), whole);
            assert!(again[..len].iter().all(|b| *b == 7));
            assert!(again.reused(whole + 1).is_none());
        }
    }
}
