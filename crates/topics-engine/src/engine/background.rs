//! Background maintenance: expiry, idle reservations, expired idempotency keys, reclaim.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::atomic::Ordering;
use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};
use topics_storage::StorageError;

use super::core::Core;
use crate::checkpoint::reclaim;
use crate::checkpoint::round;
use crate::queue;
use crate::topic::{self, Topic};
use crate::txn;
use crate::types::error::{Error, Result};

/// Time between two sweeps of all topics; with the duration of a sweep, below 10 s.
const SWEEP_MS: u64 = 5_000;
/// How long a topic is idle before its reservation is lowered.
const IDLE_MS: u64 = 60_000;

/// One pass of maintenance: cheap if nothing is due.
pub(crate) fn tick(core: &Arc<Core>) -> Result<()> {
    core.check_open()?;
    if !core.options.background {
        core.queues.claim_waiters.pass(&core.queues);
    }
    if let Some(shipper) = &core.shipper {
        shipper.check_limits();
    }
    core.refresh_load();
    // Detects a step of the wall clock even if no caller asks for the time.
    core.time.steady();
    core.deliverer.delivery.tick(&core.deliverer);
    if let Some(cold) = &core.cold {
        cold.run();
        cold.expire();
    }
    let now = core.time.mono_ms();
    let last = core.last_sweep.load(Ordering::Relaxed);
    if last != 0 && now.saturating_sub(last) < SWEEP_MS {
        return Ok(());
    }
    core.last_sweep.store(now.max(1), Ordering::Relaxed);
    let swept = sweep(core);
    let passed = core.guarded_turn("transactions", || txn::pass(&core.transactions));
    let reclaimed = core.guarded_turn("reclaim", || reclaim::reclaim(core));
    swept.and(passed).and(reclaimed)
}

/// Sweeps every topic, also after an error of one.
fn sweep(core: &Arc<Core>) -> Result<()> {
    let mut first = Ok(());
    core.table.loaded.each(|t| {
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
    core.verify_files_once(t)?;
    topic::expire(core, t)?;
    topic::sweep_records(core, t)?;
    queue::announce_again(&core.queues, t);
    t.rest(core);
    topic::lower(core, t, IDLE_MS)?;
    Ok(())
}

impl Topic {
    /// Frees the memory that an idle topic does not need.
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

/// Lowers every reservation, logs what was lost, and releases unused ids, for a clean close.
pub(crate) fn lower_all(core: &Arc<Core>) -> Result<()> {
    let mut first = Ok(());
    core.table.loaded.each(|t| {
        if t.is_broken() {
            return;
        }
        if let Err(e) = topic::lower(core, t, 0)
            && first.is_ok()
        {
            first = Err(e);
        }
        if let Some(lost) = t.take_lost_acks() {
            log::warn!("closing: {lost}");
        }
    });
    first.and_then(|()| core.ids.lower(core))
}

/// Time between two passes.
const PASS: Duration = Duration::from_millis(200);

/// The maintenance thread.
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
        self.round_begins();
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
            topics_env::real::lower_priority();
            guards.run_loop("maintenance", turns);
        };
        let thread = thread::Builder::new().name("topics-maintain".into()).spawn(run);
        let thread = thread.map_err(|e| StorageError::io("start the maintenance thread", e))?;
        *self.background.thread.lock() = Some(thread);
        Ok(())
    }

    /// Stops the thread and waits for the pass in progress.
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
}

pub(crate) fn pass(core: &Arc<Core>) {
    if let Err(e) = core.guarded_turn("maintenance", || tick(core))
        && !matches!(e, Error::Closed)
    {
        log::warn!("maintenance: {e}");
    }
    if core.checkpoint_due() {
        core.round_begins();
        if let Err(e) = core.guarded_turn("checkpoint", || round::checkpoint(core))
            && !matches!(e, Error::Closed)
        {
            log::warn!("checkpoint: {e}");
        }
    }
}
