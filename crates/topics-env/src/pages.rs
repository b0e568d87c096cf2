//! Large buffers that are filled once.
//!
//! A page of memory costs several times what filling it costs when it is touched for the first
//! time: a large buffer asks for huge pages, which is one fault for 512 of them.

use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// A huge page of the systems this runs on. Where they are larger or unknown, the advice is void.
const HUGE_PAGE: usize = 2 << 20;

/// Zeroed bytes in a mapping of their own, aligned to a page.
#[derive(Debug)]
pub struct Pages {
    map: MmapMut,
    len: usize,
}

impl Pages {
    /// The length from which on a mapping is worth its system calls.
    pub const MIN_LEN: usize = HUGE_PAGE / 2;

    /// `len` zeros.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        // A mapping of whole huge pages is aligned to them; what is never touched costs nothing.
        let map = MmapMut::map_anon(len.max(1).next_multiple_of(HUGE_PAGE))?;
        advise(&map, len);
        Ok(Self { map, len })
    }

    /// The same memory for `len` bytes, if it has as many; what is in them is not said.
    #[must_use]
    pub fn reused(mut self, len: usize) -> Option<Self> {
        let fits = len <= self.map.len();
        self.len = len;
        fits.then_some(self)
    }
}

/// The last huge page is asked for only when more than half of it is used.
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
    fn as_long_as_asked_for_and_zero() {
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
