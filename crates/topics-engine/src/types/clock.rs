//! The engine's time: the wall clock, guarded against steps while the engine lives and over a
//! reopen.
//!
//! Commit times, time to live, delays, idempotency windows and stages use one time, which never goes
//! back and always advances. It follows the wall clock by these rules:
//!
//! * If the wall clock is at most [`STEP_MS`] ahead, time follows it immediately.
//! * If it is further ahead, time follows the monotonic clock until that has lasted for
//!   [`PERSIST_MS`], then the wall clock.
//! * If it is behind, time advances by 7 ms for every 8 ms of the monotonic clock, until the wall clock
//!   has caught up. So leases and delays of seconds still end within seconds.
//!
//! A snapshot has the time, both clocks and the boot id. In the same boot the monotonic clock tells how
//! long the engine was closed, and the rules above apply to that time too. After a reboot only the wall
//! clock tells it: time follows it up to [`DOWNTIME_MS`]; a larger step must last.

use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_env::{Clock, Env};
use topics_storage::snapshot::Section;

use super::error::{Error, Result};
use super::section::is_of;

/// Maximum lead of the wall clock that time follows immediately, ms.
const STEP_MS: u64 = 3_600_000;
/// Time for which a larger lead must last, ms.
const PERSIST_MS: u64 = 600_000;
/// Minimum difference between the progress of the two clocks that counts as a step, ms.
const COUNTED_MS: u64 = 60_000;
/// Maximum time between two boots that the wall clock alone can prove, ms.
const DOWNTIME_MS: u64 = 7 * 86_400_000;
/// While the wall clock is behind, time loses one of this many ms.
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

/// The time on both clocks, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Monotonic: leases and delays go by it.
    pub mono: u64,
    /// Since the Unix epoch: due times go by it.
    pub wall: u64,
}

#[derive(Debug, Default)]
struct Guard {
    last: Reading,
    /// Since when the wall clock is too far ahead, monotonic ms.
    ahead_since: Option<u64>,
    /// Monotonic ms whose slew is not applied yet.
    unslewed: u64,
    /// The state of recovery; `None` after it.
    recovering: Option<Known>,
}

/// What recovery knows of the time before the open.
#[derive(Debug, Default)]
struct Known {
    /// The newest stored time: now is not earlier.
    floor: u64,
    /// The reading in the snapshot, if it was written in this boot.
    same_boot: Option<Reading>,
}

/// The engine's clock.
#[derive(Debug)]
pub(crate) struct Time {
    clock: Arc<dyn Clock>,
    /// The boot id; zeros if it is unknown.
    boot: [u8; 16],
    guard: Mutex<Guard>,
    steps: AtomicU64,
}

impl Time {
    /// A clock in recovery: until [`Self::resume`] it returns the newest known time.
    pub(crate) fn recovering(env: &Env) -> Self {
        let boot = env.fs.boot_id().unwrap_or_default();
        let guard = Guard { recovering: Some(Known::default()), ..Guard::default() };
        Self { clock: env.clock.clone(), boot, guard: Mutex::new(guard), steps: AtomicU64::new(0) }
    }

    /// Monotonic time, ns.
    pub(crate) fn mono_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    /// Monotonic time, ms.
    pub(crate) fn mono_ms(&self) -> u64 {
        self.clock.mono_ns() / 1_000_000
    }

    /// The time, in ms since the Unix epoch.
    pub(crate) fn steady(&self) -> u64 {
        self.now().wall
    }

    /// The time and the monotonic time, by one observation of the clocks.
    pub(crate) fn now(&self) -> Now {
        let mut g = self.guard.lock();
        if let Some(known) = &g.recovering {
            return Now { mono: self.mono_ms(), wall: known.floor };
        }
        self.advance(&mut g);
        Now { mono: g.last.mono, wall: g.last.time }
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

    /// Number of steps of the wall clock, in either direction.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The section of a snapshot with the time.
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

    /// Restores the section of a snapshot. Returns false if it is of another kind.
    pub(crate) fn restore(&self, section: &Section) -> Result<bool> {
        if !is_of(section, SECTION, VERSION, "the time")? {
            return Ok(false);
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

    /// Notes the commit time of a recovered record.
    pub(crate) fn met(&self, ts: u64) {
        if let Some(known) = &mut self.guard.lock().recovering {
            known.floor = known.floor.max(ts);
        }
    }

    /// Ends recovery: time goes on from the newest known time.
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
            // The first reading counts the difference as a step.
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
