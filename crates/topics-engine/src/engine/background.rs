//! Background maintenance: expiry, idle reservations, expired idempotency keys, reclaim.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::atomic::Ordering;
use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};
use topics_storage::StorageError;

use super::open_engine::OpenEngine;
use crate::catalog::Catalog;
use crate::checkpoint::reclaim;
use crate::checkpoint::round;
use crate::queue;
use crate::topic::events::Base;
use crate::topic::{self, Topic};
use crate::txn;
use crate::types::error::{Error, Result};

/// Time between two sweeps of all topics; with the duration of a sweep, below 10 s.
const SWEEP_MS: u64 = 5_000;
/// How long a topic is idle before its reservation is lowered.
const IDLE_MS: u64 = 60_000;

/// One pass of maintenance: cheap if nothing is due.
pub(crate) fn tick(engine: &Arc<OpenEngine>) -> Result<()> {
    engine.ctx().check_open()?;
    if !engine.base().options.background {
        engine.queues.claim_waiters.pass(&engine.queues);
        engine.ctx().calls.pass_without_thread();
    }
    if let Some(shipper) = &engine.shipper {
        shipper.check_limits();
    }
    engine.store().refresh_load();
    // Detects a step of the wall clock even if no caller asks for the time.
    engine.base().time.steady();
    engine.deliverer.workers.tick(&engine.deliverer);
    if let Some(cold) = &engine.base().cold {
        cold.run();
        cold.expire();
    }
    let now = engine.base().time.mono_ms();
    let last = engine.last_sweep.load(Ordering::Relaxed);
    if last != 0 && now.saturating_sub(last) < SWEEP_MS {
        return Ok(());
    }
    engine.last_sweep.store(now.max(1), Ordering::Relaxed);
    let swept = sweep(engine);
    let passed = engine.base().guarded_turn("transactions", || txn::pass(&engine.transactions));
    let reclaimed = engine.base().guarded_turn("reclaim", || reclaim::reclaim(engine.store()));
    swept.and(passed).and(reclaimed)
}

/// Sweeps every topic, also after an error of one.
fn sweep(engine: &Arc<OpenEngine>) -> Result<()> {
    let mut first = Ok(());
    engine.catalog().table.loaded.each(|t| {
        if engine.ctx().check_open().is_err() {
            return;
        }
        if t.is_broken() {
            return;
        }
        if let Err(e) = engine.base().guarded("sweep", t, || one(engine, t))
            && first.is_ok()
            && !matches!(e, Error::TopicNotFound(_))
        {
            first = Err(e);
        }
    });
    first
}

fn one(engine: &Arc<OpenEngine>, t: &Arc<Topic>) -> Result<()> {
    engine.catalog().verify_files_once(t)?;
    topic::expire(engine.ctx(), t)?;
    topic::sweep_records(engine.ctx(), t)?;
    queue::announce_again(&engine.queues, t);
    t.rest(engine.base());
    topic::lower(engine.ctx(), t, IDLE_MS)?;
    Ok(())
}

impl Topic {
    /// Frees the memory that an idle topic does not need.
    fn rest(&self, base: &Base) {
        let keys = {
            let state = self.state.read();
            !state.retention.windows.is_empty() || state.dedupe.is_some()
        };
        if keys {
            let mut state = self.state.write();
            state.retention.windows = Vec::new();
            if let Some(dedupe) = &mut state.dedupe {
                dedupe.expire(base.time.steady());
                if dedupe.is_empty() {
                    state.dedupe = None;
                }
            }
        }
    }
}

/// Lowers every reservation, logs what was lost, and releases unused ids, for a clean close.
pub(crate) fn lower_all(catalog: &Arc<Catalog>) -> Result<()> {
    let mut first = Ok(());
    catalog.table.loaded.each(|t| {
        if t.is_broken() {
            return;
        }
        if let Err(e) = topic::lower(catalog.ctx(), t, 0)
            && first.is_ok()
        {
            first = Err(e);
        }
        if let Some(lost) = t.take_lost_acks() {
            log::warn!("closing: {lost}");
        }
    });
    first.and_then(|()| catalog.ids.lower(catalog.ctx()))
}

/// Time between two passes.
const PASS: Duration = Duration::from_millis(200);

/// The maintenance thread.
#[derive(Debug, Default)]
pub(crate) struct Background {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl OpenEngine {
    /// Starts the thread that sweeps and checkpoints.
    pub(crate) fn start_background(self: &Arc<Self>) -> Result<()> {
        if !self.base().options.background {
            return Ok(());
        }
        self.store().round_begins();
        let (engine, stop) = (Arc::downgrade(self), self.background.stop.clone());
        let guards = self.base().env.guards.clone();
        let turns = move || {
            let mut stopped = stop.0.lock();
            while !*stopped {
                let _ = stop.1.wait_for(&mut stopped, PASS);
                let Some(engine) = engine.upgrade().filter(|_| !*stopped) else { return };
                drop(stopped);
                pass(&engine);
                drop(engine);
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

pub(crate) fn pass(engine: &Arc<OpenEngine>) {
    if let Err(e) = engine.base().guarded_turn("maintenance", || tick(engine))
        && !matches!(e, Error::Closed)
    {
        log::warn!("maintenance: {e}");
    }
    if engine.store().checkpoint_due() {
        engine.store().round_begins();
        if let Err(e) =
            engine.base().guarded_turn("checkpoint", || round::checkpoint(engine.store()))
            && !matches!(e, Error::Closed)
        {
            log::warn!("checkpoint: {e}");
        }
    }
}
