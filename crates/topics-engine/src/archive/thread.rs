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

impl Archiver {
    /// Starts the thread.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let (archiver, stop) = (Arc::downgrade(self), self.thread.stop.clone());
        let guards = self.store.base().env.guards.clone();
        let (usual, mut interval) = (self.interval(), self.interval());
        let mut waited = Duration::ZERO;
        let passes = move || {
            let mut stopped = stop.0.lock();
            while !*stopped {
                let step = interval.min(BASE_INTERVAL);
                let _ = stop.1.wait_for(&mut stopped, step);
                let Some(archiver) = archiver.upgrade().filter(|_| !*stopped) else { return };
                drop(stopped);
                waited += step;
                // After a failure only the interval counts.
                let is_base_due = interval == usual && archiver.is_due();
                if waited >= interval || is_base_due {
                    (interval, waited) = (archiver.scheduled_pass(interval), Duration::ZERO);
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

    /// One pass of the thread. Returns the time until the next one, which doubles with each failure.
    fn scheduled_pass(&self, interval: Duration) -> Duration {
        match self.store.base().guarded_turn("archive", || self.archive_if_due()) {
            Ok(_) | Err(Error::Closed) => self.interval(),
            Err(e) => {
                if !self.prefix.is_refused() {
                    log::warn!("archive: {e}");
                }
                (interval * 2).min(LONGEST_INTERVAL)
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
