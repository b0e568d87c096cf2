//! The engine's time: the wall clock, guarded against steps while the engine lives and over a
//! reopen.
//!
//! Commit times, time to live, delays, idempotency windows and stages all go by one time, which
//! never goes back and always advances. It follows the wall clock by these rules:
//!
//! * The wall clock is at most [`STEP_MS`] ahead: it is followed immediately.
//! * It is further ahead: the monotonic clock is followed until that has persisted for
//!   [`PERSIST_MS`], then the wall clock is.
//! * It is behind: time advances by 7 ms for every 8 ms of the monotonic clock, until the wall
//!   clock has caught up. What lasts for seconds still ends within seconds.
//!
//! A snapshot holds the time with both clocks and the boot id. In the same boot the monotonic clock
//! says how long the engine was closed, and the rules above go on as though it had not been. After
//! a reboot only the wall clock can say it: it is believed up to [`DOWNTIME_MS`], and what is more
//! must persist.

use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_env::{Clock, Env};
use topics_storage::snapshot::Section;

use super::error::{Error, Result};

/// How far the wall clock may be ahead to be followed immediately.
const STEP_MS: u64 = 3_600_000;
/// How long a larger step must persist.
const PERSIST_MS: u64 = 600_000;
/// A difference between the progress of the two clocks that is counted as a step.
const COUNTED_MS: u64 = 60_000;
/// The longest time between two boots that the wall clock alone can prove.
const DOWNTIME_MS: u64 = 7 * 86_400_000;
/// While the wall clock is behind, time loses one part of so many.
const SLEW: u64 = 8;

/// The section of a snapshot that holds the time.
pub(crate) const SECTION: u16 = 3;
const VERSION: u16 = 1;

/// The time at an observation of the clocks, all in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    time: u64,
    mono: u64,
    wall: u64,
}

#[derive(Debug, Default)]
struct Guard {
    last: Reading,
    /// Since when, on the monotonic clock, the wall clock is too far ahead.
    ahead_since: Option<u64>,
    /// Monotonic ms that time has not lost its part of yet.
    unslewed: u64,
    /// What recovery knows; `None` once it is over.
    recovering: Option<Known>,
}

/// What recovery knows of the time before.
#[derive(Debug, Default)]
struct Known {
    /// The newest time that is stored: it is at least this late.
    floor: u64,
    /// What the snapshot says, if it was written in this boot.
    same_boot: Option<Reading>,
}

/// The engine's clock.
#[derive(Debug)]
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    /// Zeros where it is unknown.
    boot: [u8; 16],
    guard: Mutex<Guard>,
    steps: AtomicU64,
}

impl Time {
    /// A clock that recovers: until [`Self::resume`] it shows the newest time that is known.
    pub(crate) fn recovering(env: &Env) -> Self {
        let boot = env.fs.boot_id().unwrap_or_default();
        let guard = Guard { recovering: Some(Known::default()), ..Guard::default() };
        Self { clock: env.clock.clone(), boot, guard: Mutex::new(guard), steps: AtomicU64::new(0) }
    }

    /// Nanoseconds that never go back.
    pub(crate) fn mono_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    /// Milliseconds that never go back.
    pub(crate) fn mono_ms(&self) -> u64 {
        self.clock.mono_ns() / 1_000_000
    }

    /// The time, in ms since the Unix epoch.
    pub(crate) fn steady(&self) -> u64 {
        let mut g = self.guard.lock();
        if let Some(known) = &g.recovering {
            return known.floor;
        }
        self.advance(&mut g);
        g.last.time
    }

    fn advance(&self, g: &mut Guard) {
        let (wall, mono) = (self.clock.wall_ms(), self.mono_ms());
        let passed = mono.saturating_sub(g.last.mono);
        let (expected, expected_wall) = (g.last.time + passed, g.last.wall + passed);
        if wall.abs_diff(expected_wall) > COUNTED_MS {
            self.steps.fetch_add(1, Ordering::Relaxed);
            g.ahead_since = None;
            log::warn!("the wall clock stepped from {expected_wall} to {wall} ms");
        }
        let time = if wall > expected + STEP_MS {
            let since = *g.ahead_since.get_or_insert(mono);
            if mono.saturating_sub(since) < PERSIST_MS { expected } else { wall }
        } else if wall >= expected {
            wall
        } else {
            g.unslewed += passed;
            let slew = (g.unslewed / SLEW).min(expected - wall);
            g.unslewed %= SLEW;
            expected - slew
        };
        if wall <= time + STEP_MS {
            g.ahead_since = None;
        }
        g.last = Reading { time, mono: mono.max(g.last.mono), wall };
    }

    /// Steps of the wall clock seen, in either direction.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// What a snapshot says of the time.
    pub(crate) fn capture(&self) -> Section {
        let last = {
            let mut g = self.guard.lock();
            self.advance(&mut g);
            g.last
        };
        let mut bytes = self.boot.to_vec();
        for n in [last.time, last.mono, last.wall] {
            bytes.extend_from_slice(&n.to_le_bytes());
        }
        Section { kind: SECTION, version: VERSION, bytes }
    }

    /// Takes over what the snapshot says; false: the section is not about time.
    pub(crate) fn restore(&self, section: &Section) -> Result<bool> {
        if section.kind != SECTION {
            return Ok(false);
        }
        if section.version != VERSION {
            return Err(Error::Version {
                what: "the time in the snapshot".into(),
                found: u32::from(section.version),
                supported: u32::from(VERSION),
            });
        }
        let (boot, saved) = decode(&section.bytes).ok_or_else(|| Error::Corrupt {
            file: "meta/snapshot".into(),
            offset: 0,
            detail: format!("the time has {} bytes, not 40", section.bytes.len()),
        })?;
        let mono = self.mono_ms();
        // The monotonic clock of one boot never goes back: if it seems to, it is another boot.
        let same = boot == self.boot && boot != [0; 16] && mono >= saved.mono;
        if let Some(known) = &mut self.guard.lock().recovering {
            let closed = if same { mono - saved.mono } else { 0 };
            known.floor = known.floor.max(saved.time.saturating_add(closed));
            known.same_boot = same.then_some(saved);
        }
        Ok(true)
    }

    /// Recovery has met a record of this commit time.
    pub(crate) fn met(&self, ts: u64) {
        if let Some(known) = &mut self.guard.lock().recovering {
            known.floor = known.floor.max(ts);
        }
    }

    /// Recovery is over: time goes on from what it found.
    pub(crate) fn resume(&self) {
        let mut g = self.guard.lock();
        let Some(known) = g.recovering.take() else { return };
        let (wall, mono) = (self.clock.wall_ms(), self.mono_ms());
        g.last = match known.same_boot {
            Some(saved) => {
                let wall = saved.wall.saturating_add(mono - saved.mono);
                Reading { time: known.floor, mono, wall }
            }
            None if known.floor == 0 => Reading { time: wall, mono, wall },
            None if wall <= known.floor.saturating_add(DOWNTIME_MS) => {
                Reading { time: known.floor.max(wall), mono, wall }
            }
            // The first look counts it as a step.
            None => Reading { time: known.floor, mono, wall: known.floor },
        };
        self.advance(&mut g);
    }
}

fn decode(bytes: &[u8]) -> Option<([u8; 16], Reading)> {
    let (boot, rest) = bytes.split_first_chunk::<16>()?;
    let n = |i: usize| Some(u64::from_le_bytes(*rest.get(i * 8..)?.first_chunk()?));
    let reading = Reading { time: n(0)?, mono: n(1)?, wall: n(2)? };
    (rest.len() == 24).then_some((*boot, reading))
}

#[cfg(test)]
mod tests;
