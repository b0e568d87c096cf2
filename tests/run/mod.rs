//! Drives an engine on the simulated disk and keeps the oracle's log.

mod batch;
mod driver;
mod hooks;
mod recording;

pub use batch::{Batch, Expect, batch};
pub use driver::{Driver, Setup};
pub use hooks::HookSpec;
pub use recording::{Life, Recording, Tuning};

/// The data directory on every simulated disk.
pub const DIR: &str = "/db";

/// The text of a key in a record's meta. The text has no escapes.
#[must_use]
pub fn meta_value(meta: &[u8], key: &str) -> Option<String> {
    let meta = String::from_utf8_lossy(meta);
    let (_, rest) = meta.split_once(&format!("\"{key}\":\""))?;
    Some(rest.split('"').next()?.to_owned())
}

/// SplitMix64: the only random source of the suites.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
