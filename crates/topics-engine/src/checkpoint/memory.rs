//! Writes that wait for a checkpoint, because the resident index takes too much memory.
//!
//! A blocking write waits for the round that runs, or runs one itself. An asynchronous write is a call of
//! the engine's table of calls that wait: it is attempted again when a part of a round has made memory
//! free, when a round has ended, and at its deadline.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use topics_env::{Callback, Waiters};

use super::Store;
use crate::types::pending_calls::Register;

/// Maximum time that an asynchronous write waits for a checkpoint.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_secs(30);

/// The writes that wait for memory.
#[derive(Debug, Default)]
pub(crate) struct MemoryWaiters {
    /// Writes that wait or are resumed now: a later write waits behind them.
    writes: AtomicUsize,
    list: Mutex<Waiters>,
    /// Rounds that failed: a write does not wait for another one.
    failed_rounds: AtomicU64,
    /// Whether the thread that runs a round has a raised priority.
    is_raised: AtomicBool,
}

impl MemoryWaiters {
    /// Counts a write that begins to wait. The flag says whether it waits behind others.
    pub(crate) fn begin_wait(self: &Arc<Self>) -> (MemoryWait, bool) {
        let before = self.writes.fetch_add(1, Ordering::SeqCst);
        (MemoryWait(self.clone()), before > 0)
    }

    /// Whether a write waits.
    pub(crate) fn any(&self) -> bool {
        self.writes.load(Ordering::SeqCst) > 0
    }

    /// Number of writes that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.writes.load(Ordering::SeqCst)
    }

    /// Number of rounds that failed.
    pub(crate) fn failed_rounds(&self) -> u64 {
        self.failed_rounds.load(Ordering::SeqCst)
    }

    /// Counts a round that failed.
    pub(crate) fn round_failed(&self) {
        self.failed_rounds.fetch_add(1, Ordering::SeqCst);
    }

    /// Raises the priority of the calling thread, which runs a round, while a write waits.
    pub(crate) fn raise_priority(&self) {
        if self.any() && topics_env::real::restore_priority() {
            self.is_raised.store(true, Ordering::Relaxed);
        }
    }

    /// Lowers it again at the end of the round.
    pub(crate) fn lower_priority(&self) {
        if self.is_raised.swap(false, Ordering::Relaxed) {
            topics_env::real::lower_priority();
        }
    }

    fn wake_all(&self) {
        let woken = self.list.lock().take(|()| true);
        woken.into_iter().for_each(|wake| wake());
    }
}

/// Counts a write among those that wait, until it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryWait(Arc<MemoryWaiters>);

impl Drop for MemoryWait {
    fn drop(&mut self) {
        self.0.writes.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    /// Bytes of the resident index above which writes wait.
    fn max_resident_bytes(&self) -> u64 {
        self.base().options.memory_bytes.saturating_mul(2)
    }

    /// Whether writes wait for memory.
    pub(crate) fn is_memory_full(&self) -> bool {
        self.base().resident_bytes() > self.max_resident_bytes()
    }

    /// Wakes the writes that wait, oldest first, if there is memory again.
    pub(crate) fn memory_freed(&self) {
        if self.memory.any() && !self.is_memory_full() {
            self.memory.wake_all();
        }
    }

    /// Wakes the writes that wait: a round has ended.
    pub(crate) fn round_ended(&self) {
        self.memory.wake_all();
    }

    /// For memory, or the end of a round.
    pub(crate) fn on_memory(self: &Arc<Self>) -> Register {
        let weak = Arc::downgrade(self);
        Box::new(move |wake: Callback| {
            let Some(store) = weak.upgrade() else { return Box::new(|| {}) };
            let id = store.memory.list.lock().add((), wake);
            // Memory that became free before the entry above was in the list has not woken it.
            store.memory_freed();
            Box::new(move || {
                if let Some(store) = weak.upgrade() {
                    let gone = store.memory.list.lock().cancel(id);
                    drop(gone);
                }
            })
        })
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// The `nice` value of the calling thread.
    fn nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // Field 19; the second one is a name in parentheses.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn a_round_has_a_raised_priority_while_a_write_waits() {
        let round = || {
            let before = nice();
            topics_env::real::lower_priority();
            let lowered = nice();
            assert!(lowered >= before);
            let waiters = Arc::new(MemoryWaiters::default());
            waiters.raise_priority();
            assert_eq!(nice(), lowered, "no write waits");
            let (wait, _) = waiters.begin_wait();
            waiters.raise_priority();
            // Without the privilege the priority stays.
            assert_eq!(
                nice() == before,
                waiters.is_raised.load(Ordering::Relaxed) || before == lowered
            );
            drop(wait);
            waiters.lower_priority();
            assert_eq!(nice(), lowered);
        };
        std::thread::spawn(round).join().unwrap();
    }
}
