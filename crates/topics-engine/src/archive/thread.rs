//! The thread that runs passes.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::thread::{self, JoinHandle};
use topics_env::sync::{Condvar, Mutex};
use topics_storage::StorageError;

use super::Archiver;
use crate::types::error::{Error, Result};

/// Time between two passes, and after repeated failures. Shorter if bases follow each other sooner.
const INTERVAL: Duration = Duration::from_secs(10);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(160);

/// How often the thread looks whether a base is due.
const BASE_INTERVAL: Duration = Duration::from_secs(1);

/// The thread, and what stops it.
#[derive(Debug, Default)]
pub(super) struct ArchiveThread {
    handle: Mutex<Option<JoinHandle<()>>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

/// When the next pass is due.
#[derive(Debug)]
struct Pace {
    usual: Duration,
    /// Time between two passes, which doubles with each failure.
    interval: Duration,
    waited: Duration,
    /// Rounds that were shipped when the last pass ended.
    rounds: u64,
}

impl Pace {
    fn new(usual: Duration) -> Self {
        Self { usual, interval: usual, waited: Duration::ZERO, rounds: 0 }
    }

    /// Whether a pass is due. A round that was shipped after a failure shows that the store answers
    /// again: the rest of the longer interval is not waited for.
    fn is_over(&self, rounds: u64, is_base_due: impl FnOnce() -> bool) -> bool {
        let interval = if rounds > self.rounds { self.usual } else { self.interval };
        // After a failure only the interval counts.
        self.waited >= interval || (self.interval == self.usual && is_base_due())
    }

    fn passed(&mut self, succeeded: bool, rounds: u64) {
        self.interval =
            if succeeded { self.usual } else { (self.interval * 2).min(LONGEST_INTERVAL) };
        (self.waited, self.rounds) = (Duration::ZERO, rounds);
    }
}

impl Archiver {
    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let (archiver, stop) = (Arc::downgrade(self), self.thread.stop.clone());
        let guards = self.store.base().env.guards.clone();
        let mut pace = Pace::new(self.interval());
        let passes = move || {
            let mut stopped = stop.0.lock();
            while !*stopped {
                let step = pace.interval.min(BASE_INTERVAL);
                let _ = stop.1.wait_for(&mut stopped, step);
                let Some(archiver) = archiver.upgrade().filter(|_| !*stopped) else { return };
                drop(stopped);
                pace.waited += step;
                if pace.is_over(archiver.shipper.shipped_rounds(), || archiver.is_due()) {
                    let succeeded = archiver.scheduled_pass();
                    pace.passed(succeeded, archiver.shipper.shipped_rounds());
                }
                drop(archiver);
                stopped = stop.0.lock();
            }
        };
        let run = move || {
            topics_env::real::lower_priority();
            guards.run_loop("archive", passes);
        };
        let handle = thread::Builder::new().name("topics-archive".into()).spawn(run);
        let handle = handle.map_err(|e| StorageError::io("start the archive thread", e))?;
        *self.thread.handle.lock() = Some(handle);
        Ok(())
    }

    fn interval(&self) -> Duration {
        INTERVAL.min(self.remote.limits.base_interval).max(SHORTEST_INTERVAL)
    }

    /// One pass of the thread. Returns whether it succeeded.
    fn scheduled_pass(&self) -> bool {
        match self.store.base().guarded_turn("archive", || self.archive_if_due()) {
            Ok(_) | Err(Error::Closed) => true,
            Err(e) => {
                if !self.prefix.is_refused() {
                    log::warn!("archive: {e}");
                }
                false
            }
        }
    }

    /// Stops the thread and waits for the request in progress.
    pub(crate) fn stop(&self) {
        *self.thread.stop.0.lock() = true;
        self.thread.stop.1.notify_all();
        if let Some(handle) = self.thread.handle.lock().take()
            && handle.thread().id() != thread::current().id()
            && handle.join().is_err()
        {
            log::error!("the archive thread panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shipped_round_ends_the_longer_interval_after_failures() {
        let mut pace = Pace::new(INTERVAL);
        assert!(pace.is_over(0, || true) && !pace.is_over(0, || false));
        for _ in 0..8 {
            pace.passed(false, 5);
        }
        pace.waited = LONGEST_INTERVAL - BASE_INTERVAL;
        assert!(!pace.is_over(5, || true), "only the interval counts");
        assert!(pace.is_over(6, || false), "the store answers again");
        pace.waited = INTERVAL - BASE_INTERVAL;
        assert!(!pace.is_over(6, || true), "a pass that goes on failing is not repeated sooner");
        pace.waited = LONGEST_INTERVAL;
        assert!(pace.is_over(5, || false));
        pace.passed(true, 6);
        assert!(!pace.is_over(7, || false) && pace.is_over(7, || true));
    }
}
