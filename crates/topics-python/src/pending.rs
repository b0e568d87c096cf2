//! Results of waits of an event loop. A result that is dropped before `take` undoes itself: jobs are
//! released, a batch goes back to its consumer.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{Claimed, Completion, Engine, LeasedJobs, ReadBatch};
use topics_wire::Failure;

use crate::batch::Batch;
use crate::calls::{Call, Inner};
use crate::leases::HeldLease;
use crate::queue::{Jobs, jobs};
use crate::shared::{ProcessOwned, Shared};

/// The queue and worker of a claim.
#[derive(Clone)]
pub(crate) struct Claimant {
    pub engine: Engine,
    pub shared: Arc<Shared>,
    pub topic: String,
    pub node: String,
}

impl Claimant {
    /// Renews the leases of its jobs from now on.
    pub fn hold(&self, found: &Claimed) -> Vec<HeldLease> {
        self.shared.leases.hold_claimed(&self.shared, &self.topic, &self.node, found)
    }
}

/// Claimed jobs before `take`; dropping them releases them.
struct Unclaimed {
    found: Option<(Claimed, Vec<HeldLease>)>,
    by: Claimant,
    calls: Weak<Inner>,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some((found, held)) = self.found.take().filter(|f| !f.0.is_empty()) else { return };
        if self.by.shared.forked() {
            std::mem::forget((found, held));
            return;
        }
        drop(held);
        let by = self.by.clone();
        let release = move || {
            let (seqs, ids): (Vec<u64>, Vec<u64>) =
                found.iter().map(|(lease, _)| (lease.seq, lease.lease_id)).unzip();
            let held = LeasedJobs { node: by.node.as_bytes(), seqs: &seqs, lease_ids: Some(&ids) };
            if let Err(e) = by.engine.release(&by.topic, &held) {
                log::debug!("queue {:?}: leases run out by themselves: {e}", by.topic);
            }
        };
        // Releasing durable leases waits for the log, which must not block the loop.
        match self.calls.upgrade() {
            Some(calls) => calls.pool.run(Box::new(release)),
            None => release(),
        }
    }
}

/// The result of a claim.
#[pyclass(frozen)]
pub(crate) struct PendingJobs(Mutex<Unclaimed>);

#[pymethods]
impl PendingJobs {
    /// Returns the jobs; the caller acks or releases them.
    fn take(&self) -> Option<Jobs> {
        self.0.lock().found.take().map(|(found, held)| jobs(&found, held))
    }
}

/// The completion of a claim: resolves `call` with a [`PendingJobs`].
pub(crate) fn complete_claim(call: Call, by: Claimant) -> Completion<Claimed> {
    let calls = call.calls();
    Box::new(move |outcome| {
        let found = outcome.map(|found| {
            let held = by.hold(&found);
            Unclaimed { found: Some((found, held)), by, calls }
        });
        call.complete(found.map_err(Failure::from), |py, found| {
            Ok(Py::new(py, PendingJobs(Mutex::new(found)))?.into_any())
        });
    })
}

/// A batch before `take`; dropping it returns it to its consumer.
struct Unread {
    batch: Option<ReadBatch>,
    /// `None` for a read that does not move the cursor.
    consumer: Option<Arc<ProcessOwned<Arc<topics_engine::Consumer>>>>,
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.as_ref().and_then(|c| c.get())
            && let Some(batch) = self.batch.take()
        {
            consumer.release(batch);
        }
    }
}

/// The result of a consumer's read.
#[pyclass(frozen)]
pub(crate) struct PendingBatch(Mutex<Unread>);

#[pymethods]
impl PendingBatch {
    /// Returns the batch; the cursor moves past it.
    fn take(&self) -> Option<Batch> {
        self.0.lock().batch.take().map(Batch)
    }
}

/// The completion of a read: resolves `call` with a [`PendingBatch`].
pub(crate) fn complete_read(
    call: Call,
    consumer: Option<Arc<ProcessOwned<Arc<topics_engine::Consumer>>>>,
) -> Completion<ReadBatch> {
    Box::new(move |outcome| {
        let unread = outcome.map(|batch| Unread { batch: Some(batch), consumer });
        call.complete(unread.map_err(Failure::from), |py, unread| {
            Ok(Py::new(py, PendingBatch(Mutex::new(unread)))?.into_any())
        });
    })
}
