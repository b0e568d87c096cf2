//! The thread that ships.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::atomic::Ordering;
use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};
use topics_storage::StorageError;

use super::Shipper;
use crate::types::error::{Error, Result};

/// The longest time between two attempts after repeated failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The time between two warnings that another writer has the prefix.
const FENCED_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Signal {
    stop: bool,
    wake: bool,
}

/// The thread, and what wakes it.
#[derive(Debug, Default)]
pub(super) struct ShipThread {
    handle: Mutex<Option<JoinHandle<()>>>,
    signal: Arc<(Mutex<Signal>, Condvar)>,
}

impl ShipThread {
    /// Ends the pause before the next round.
    pub fn wake(&self) {
        self.signal.0.lock().wake = true;
        self.signal.1.notify_all();
    }
}

impl Shipper {
    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let (shipper, signal) = (Arc::downgrade(self), self.thread.signal.clone());
        let guards = self.store.base().env.guards.clone();
        let mut pause = self.owner.remote.limits.interval;
        let rounds = move || {
            let mut state = signal.0.lock();
            while !state.stop {
                if !state.wake {
                    let _ = signal.1.wait_for(&mut state, pause);
                }
                state.wake = false;
                let Some(shipper) = shipper.upgrade().filter(|_| !state.stop) else { return };
                drop(state);
                pause = shipper.scheduled(pause);
                drop(shipper);
                state = signal.0.lock();
            }
        };
        let run = move || {
            topics_env::real::lower_priority();
            guards.run_loop("ship", rounds);
        };
        let handle = thread::Builder::new().name("topics-ship".into()).spawn(run);
        let handle = handle.map_err(|e| StorageError::io("start the shipping thread", e))?;
        *self.thread.handle.lock() = Some(handle);
        Ok(())
    }

    /// One attempt of the thread. Returns the pause before the next one.
    fn scheduled(&self, pause: Duration) -> Duration {
        let interval = self.owner.remote.limits.interval;
        match self.store.base().guarded_turn("ship", || self.ship()) {
            Ok(_) | Err(Error::Closed) => interval,
            Err(e) => {
                if !self.owner.is_refused() {
                    log::warn!("continuous backup: {e}");
                }
                if self.status().is_fenced {
                    return FENCED_PAUSE;
                }
                (pause * 2).min(LONGEST_PAUSE).max(interval)
            }
        }
    }

    /// Stops the thread and waits for the request in progress.
    pub(crate) fn stop(&self) {
        self.thread.signal.0.lock().stop = true;
        self.thread.signal.1.notify_all();
        if let Some(handle) = self.thread.handle.lock().take()
            && handle.thread().id() != thread::current().id()
            && handle.join().is_err()
        {
            log::error!("the shipping thread panicked");
        }
    }

    /// Whether a close needs a base: because the rounds have none, or because there are rounds only with
    /// bases, and no log file was held since the last one.
    pub(crate) fn needs_last_base(&self) -> bool {
        let status = self.status();
        let can_go_on = status.has_base && self.ships();
        self.store.ctx().wal.counters().bytes > 0 && !status.is_fenced && !can_go_on
    }

    /// From the next base on the log is held for the last round.
    pub(crate) fn begin_close(&self) {
        self.progress.is_closing.store(true, Ordering::Relaxed);
    }

    /// Ships what a clean close has logged, and says in `HEAD` that nothing is left. One attempt, also
    /// if the last one failed, and none without a base. It takes at most `wait`.
    pub(crate) fn ship_last(&self, wait: Duration) {
        let status = self.status();
        if status.is_fenced || !status.has_base {
            return;
        }
        self.owner.remote.store.end_within(wait);
        let shipped = self.ship_now(&mut self.state.lock());
        if let Err(e) = shipped.and_then(|_| self.owner.close()) {
            log::warn!(
                "closing: what was written since the last round is not in the object store; the next \
                 open ships it: {e}"
            );
        }
    }
}
