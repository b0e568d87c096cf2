//! The bound on staged bytes and batches: permits, first come, first served.

use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::{Condvar, Instant};

use super::begin;
use super::shard::{Guard, Shard};
use super::state::State;
use crate::{Result, StorageError};

/// Permission to stage one batch; released when dropped. The owner must not block on anything but
/// short locks, because other callers wait for the permit.
#[derive(Debug)]
pub struct StagingPermit {
    shard: Arc<Shard>,
    pub(super) bytes: usize,
    /// The batch is in the queue: it releases the reservation now.
    pub(super) staged: bool,
    waited: Duration,
}

impl StagingPermit {
    /// How long the caller waited for it.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    pub(super) fn shard(&self) -> Arc<Shard> {
        self.shard.clone()
    }
}

impl Drop for StagingPermit {
    fn drop(&mut self) {
        if self.staged {
            return;
        }
        let mut st = self.shard.state.lock();
        st.staged.release_reserved(self.bytes);
        st.staged.wake_permit_waiter();
    }
}

impl Shard {
    /// Takes a permit, first come, first served.
    pub fn reserve(
        this: &Arc<Self>,
        bytes: usize,
        wait: Option<Duration>,
    ) -> Result<StagingPermit> {
        let mut st = this.state.lock();
        this.refusal(&st, true)?;
        let mut waited = Duration::ZERO;
        if st.staged.permit_waiters.is_empty() && this.has_capacity(&st, bytes) {
            st.staged.reserve(bytes);
        } else {
            let began = Instant::now();
            let deadline = began + wait.ok_or(StorageError::Staging)?;
            this.await_capacity(st, bytes, deadline)?;
            waited = Instant::now().saturating_duration_since(began);
        }
        Ok(StagingPermit { shard: this.clone(), bytes, staged: false, waited })
    }

    fn has_capacity(&self, st: &State, bytes: usize) -> bool {
        let options = &self.shared.options;
        st.staged.has_capacity(bytes, options.staging_bytes, options.staging_batches)
    }

    /// Waits at the end of the queue for permits. Only the first waiter is admitted, so that smaller
    /// batches cannot overtake a large one for ever; the others help to write staged batches.
    fn await_capacity<'a>(
        &'a self,
        mut st: Guard<'a>,
        bytes: usize,
        deadline: Instant,
    ) -> Result<()> {
        let wake = Arc::new(Condvar::new());
        st.staged.permit_waiters.push_back(wake.clone());
        let mut late = false;
        let outcome = loop {
            if let Err(e) = self.refusal(&st, true) {
                break Err(e);
            }
            let first = st.staged.permit_waiters.front().is_some_and(|w| Arc::ptr_eq(w, &wake));
            if first && self.has_capacity(&st, bytes) {
                break Ok(());
            }
            if late {
                break Err(StorageError::Staging);
            }
            if !st.staged.batches.is_empty() && !st.flags.leading {
                st = self.lead(st, None);
                continue;
            }
            if !st.progress.unsynced.is_empty() && !st.flags.syncing && st.alive() {
                // A written batch keeps its reservation until it is synced.
                st = self.run_sync(st);
                continue;
            }
            late = wake.wait_until(&mut st, deadline).timed_out();
        };
        st.staged.permit_waiters.retain(|w| !Arc::ptr_eq(w, &wake));
        if outcome.is_ok() {
            st.staged.reserve(bytes);
        }
        // The next waiter may fit too, or must get the error.
        st.staged.wake_permit_waiter();
        outcome
    }

    /// Returns the error if batches are refused now.
    pub(super) fn refusal(&self, st: &State, frees_space: bool) -> Result<()> {
        if let Some(e) = &st.poisoned {
            return Err(e.clone());
        }
        if st.closing {
            return Err(StorageError::Closed);
        }
        if st.next.no_space && !frees_space {
            return Err(match &st.next.begin {
                Some(_) => begin::not_begun(),
                None => StorageError::Full { detail: "no space for the next log file".into() },
            });
        }
        Ok(())
    }
}
