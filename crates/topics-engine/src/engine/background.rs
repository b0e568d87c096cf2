//! What happens without being asked: expiry, idle reservations, forgetting keys, giving space back.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};
use topics_storage::StorageError;

use crate::checkpoint::reclaim;
use crate::checkpoint::round;
use crate::core::Core;
use crate::queue;
use crate::topic::{self, Topic};
use crate::txn;
use crate::types::error::{Error, Result};

/// Between two sweeps of all topics; with the time a sweep takes, below 10 s.
const SWEEP_MS: u64 = 5_000;
/// How long a topic is not written to before its reservation is lowered.
const IDLE_MS: u64 = 60_000;

/// When the sweep, and the checkpoint on the timer, were last run, on the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Sweeps(AtomicU64, AtomicU64);

/// One pass: cheap when nothing is due.
pub(crate) fn tick(core: &Arc<Core>) -> Result<()> {
    core.check_open()?;
    if !core.options.background {
        core.desk.pass(core);
    }
    core.look_at_load();
    // A step of the wall clock is noticed soon, whether or not anything asks for the time.
    core.time.steady();
    core.delivery.tick(core);
    let now = core.time.mono_ms();
    let last = core.sweeps.0.load(Ordering::Relaxed);
    if last != 0 && now.saturating_sub(last) < SWEEP_MS {
        return Ok(());
    }
    core.sweeps.0.store(now.max(1), Ordering::Relaxed);
    let swept = sweep(core);
    let passed = core.guarded_turn("transactions", || txn::pass(core));
    let reclaimed = core.guarded_turn("reclaim", || reclaim::reclaim(core));
    swept.and(passed).and(reclaimed)
}

/// Looks at every topic. What fails for one does not keep the others from their turn.
fn sweep(core: &Arc<Core>) -> Result<()> {
    let mut first = Ok(());
    core.registry.each(|t| {
        if core.check_open().is_err() {
            return;
        }
        if t.is_broken() {
            return;
        }
        if let Err(e) = core.guarded("sweep", t, || one(core, t))
            && first.is_ok()
            && !matches!(e, Error::TopicNotFound(_))
        {
            first = Err(e);
        }
    });
    first
}

fn one(core: &Arc<Core>, t: &Arc<Topic>) -> Result<()> {
    core.look_into(t)?;
    topic::expire(core, t)?;
    topic::sweep_records(core, t)?;
    queue::announce_again(core, t);
    t.rest(core);
    topic::lower(core, t, IDLE_MS)?;
    Ok(())
}

impl Topic {
    /// Lets go of what a topic at rest does not need.
    fn rest(&self, core: &Core) {
        let keys = {
            let state = self.state.read();
            !state.windows.is_empty() || state.dedupe.is_some()
        };
        if keys {
            let mut state = self.state.write();
            state.windows = Vec::new();
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
        if t.is_broken() {
            return;
        }
        if let Err(e) = topic::lower(core, t, 0)
            && first.is_ok()
        {
            first = Err(e);
        }
    });
    first.and_then(|()| core.ids.lower(core))
}

/// Between two looks at what is due.
const PASS: Duration = Duration::from_millis(200);

/// The thread of an engine that is not driven by its owner.
#[derive(Debug, Default)]
pub(crate) struct Background {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl Core {
    /// Starts the thread that sweeps and checkpoints.
    pub(crate) fn start_background(self: &Arc<Self>) -> Result<()> {
        if !self.options.background {
            return Ok(());
        }
        self.sweeps.1.store(self.time.mono_ms(), Ordering::Relaxed);
        let (core, stop) = (Arc::downgrade(self), self.background.stop.clone());
        let guards = self.env.guards.clone();
        let turns = move || {
            let mut stopped = stop.0.lock();
            while !*stopped {
                let _ = stop.1.wait_for(&mut stopped, PASS);
                let Some(core) = core.upgrade().filter(|_| !*stopped) else { return };
                drop(stopped);
                pass(&core);
                drop(core);
                stopped = stop.0.lock();
            }
        };
        let run = move || {
            topics_env::real::give_way();
            guards.run_loop("maintenance", turns);
        };
        let thread = thread::Builder::new().name("topics-maintain".into()).spawn(run);
        let thread = thread.map_err(|e| StorageError::io("start the maintenance thread", e))?;
        *self.background.thread.lock() = Some(thread);
        Ok(())
    }

    /// Stops it and waits for the pass that it may be in.
    pub(crate) fn stop_background(&self) {
        *self.background.stop.0.lock() = true;
        self.background.stop.1.notify_all();
        if let Some(thread) = self.background.thread.lock().take()
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            log::error!("the maintenance thread panicked");
        }
    }

    /// Whether enough was logged, or enough time has passed, for a checkpoint.
    fn checkpoint_due(&self) -> bool {
        let logged = self.wal.counters().bytes;
        let fresh = logged.saturating_sub(self.disk.logged_at_round.load(Ordering::Relaxed));
        let last = self.sweeps.1.load(Ordering::Relaxed);
        let waited = self.time.mono_ms().saturating_sub(last);
        let interval = self.options.checkpoint_interval;
        // The older of two snapshots says what may go: one round more than there are changes.
        let settled = self.disk.settled_rounds.load(Ordering::Relaxed) >= 2;
        let put_off = self.disk.put_off.load(Ordering::Relaxed);
        if put_off || (self.short_of_space() && (fresh > 0 || !settled)) {
            return waited >= interval.min(HURRY).as_millis() as u64;
        }
        fresh >= self.options.checkpoint_bytes
            || self.resident_bytes() > self.options.memory_bytes
            || ((fresh > CHECKPOINT_MIN || self.replaced.load(Ordering::Relaxed))
                && waited >= interval.as_millis() as u64)
    }
}

/// Between two rounds on a full disk, or without descriptors, at most.
const HURRY: Duration = Duration::from_secs(1);
/// Logged bytes that are not worth a round by themselves: a mark of the last one.
const CHECKPOINT_MIN: u64 = 1024;

pub(crate) fn pass(core: &Arc<Core>) {
    if let Err(e) = core.guarded_turn("maintenance", || tick(core))
        && !matches!(e, Error::Closed)
    {
        log::warn!("maintenance: {e}");
    }
    if core.checkpoint_due() {
        core.sweeps.1.store(core.time.mono_ms(), Ordering::Relaxed);
        if let Err(e) = core.guarded_turn("checkpoint", || round::checkpoint(core))
            && !matches!(e, Error::Closed)
        {
            log::warn!("checkpoint: {e}");
        }
    }
}
