//! What happens without being asked: expiry, idle reservations, forgetting keys, counting what is
//! resident.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::topic::{self, Topic};

/// Between two sweeps of all topics; with the time a sweep takes, below 10 s.
const SWEEP_MS: u64 = 5_000;
/// How long a topic is not written to before its reservation is lowered.
const IDLE_MS: u64 = 60_000;

/// When the sweep was last run, on the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Sweeps(AtomicU64);

/// One pass: cheap when nothing is due.
pub(crate) fn tick(core: &Arc<Core>) -> Result<()> {
    core.check_open()?;
    let now = core.time.mono_ms();
    let last = core.sweeps.0.load(Ordering::Relaxed);
    if last != 0 && now.saturating_sub(last) < SWEEP_MS {
        return Ok(());
    }
    core.sweeps.0.store(now.max(1), Ordering::Relaxed);
    sweep(core)
}

/// Looks at every topic. What fails for one does not keep the others from their turn.
fn sweep(core: &Arc<Core>) -> Result<()> {
    let mut first = Ok(());
    let mut resident = 0;
    core.registry.each(|t| {
        if core.check_open().is_err() {
            return;
        }
        resident += t.resident();
        if let Err(e) = one(core, t)
            && first.is_ok()
            && !matches!(e, Error::TopicNotFound(_))
        {
            first = Err(e);
        }
    });
    core.resident.store(resident, Ordering::Relaxed);
    first
}

fn one(core: &Arc<Core>, t: &Arc<Topic>) -> Result<()> {
    topic::expire(core, t)?;
    topic::sweep_records(core, t)?;
    t.rest(core);
    topic::lower(core, t, IDLE_MS)?;
    Ok(())
}

impl Topic {
    /// How many records have a resident entry.
    pub(crate) fn resident(&self) -> u64 {
        self.state.read().index.resident()
    }

    /// Lets go of what a topic at rest does not need.
    fn rest(&self, core: &Core) {
        let keys = {
            let state = self.state.read();
            state.window.is_some() || state.dedupe.is_some()
        };
        if keys {
            let mut state = self.state.write();
            state.window = None;
            if let Some(dedupe) = &mut state.dedupe {
                dedupe.expire(core.time.steady());
                if dedupe.is_empty() {
                    state.dedupe = None;
                }
            }
        }
    }
}

/// Lowers every reservation and gives unused ids back, for a clean close.
pub(crate) fn lower_all(core: &Arc<Core>) -> Result<()> {
    let mut first = Ok(());
    core.registry.each(|t| {
        if let Err(e) = topic::lower(core, t, 0)
            && first.is_ok()
        {
            first = Err(e);
        }
    });
    first.and_then(|()| core.ids.lower(core))
}
