//! A clock that only a test advances, and seeded randomness.

use std::sync::atomic::{AtomicU64, Ordering};

use topics_env::{Clock, Rng};

/// A clock that advances only when a test advances it.
#[derive(Debug)]
pub struct SimClock {
    wall_ms: AtomicU64,
    mono_ns: AtomicU64,
}

impl SimClock {
    /// A clock at this wall time; its monotonic time starts at one second.
    pub fn new(wall_ms: u64) -> Self {
        Self { wall_ms: AtomicU64::new(wall_ms), mono_ns: AtomicU64::new(1_000_000_000) }
    }

    /// Advances wall time and monotonic time.
    pub fn advance_ms(&self, ms: u64) {
        self.advance_ns(ms * 1_000_000);
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// Advances monotonic time only.
    pub fn advance_ns(&self, ns: u64) {
        self.mono_ns.fetch_add(ns, Ordering::SeqCst);
    }

    /// Steps the wall clock in either direction; monotonic time stays.
    pub fn step_wall_ms(&self, delta: i64) {
        let step = |wall: u64| Some(wall.saturating_add_signed(delta));
        let _ = self.wall_ms.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step);
    }
}

impl Clock for SimClock {
    fn wall_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn mono_ns(&self) -> u64 {
        self.mono_ns.load(Ordering::SeqCst)
    }
}

/// SplitMix64 over a counter: the same seed gives the same bytes in the same order of calls.
#[derive(Debug)]
pub struct SimRng {
    state: AtomicU64,
}

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl SimRng {
    pub fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(mix(seed)) }
    }
}

impl Rng for SimRng {
    fn fill(&self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let word = mix(self.state.fetch_add(GAMMA, Ordering::SeqCst));
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// The finaliser of SplitMix64.
pub(super) fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(GAMMA);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
