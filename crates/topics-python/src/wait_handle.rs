//! What a loop holds of a wait, and what a wait hands over: dropped untaken, it undoes itself.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{Claimed, Completion, Engine, Held, ReadBatch};
use topics_wire::Failure;

use crate::batch::Batch;
use crate::calls::{Call, Inner};
use crate::queue::{Jobs, jobs};
use crate::shared::{ProcessOwned, Shared};

/// A wait that can be withdrawn: what it waits for is not told any more.
#[pyclass(frozen)]
pub(crate) struct WaitHandle(Mutex<Option<ProcessOwned<CancelFn>>>);

type CancelFn = Box<dyn FnOnce() + Send>;

impl WaitHandle {
    pub fn new(shared: Arc<Shared>, cancel: impl FnOnce() + Send + 'static) -> Self {
        Self(Mutex::new(Some(ProcessOwned::new(shared, Box::new(cancel)))))
    }
}

#[pymethods]
impl WaitHandle {
    /// Idempotent.
    fn cancel(&self, py: Python<'_>) {
        if let Some(cancel) = self.0.lock().take().and_then(ProcessOwned::take) {
            py.detach(cancel);
        }
    }
}

impl Drop for WaitHandle {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.get_mut().take().and_then(ProcessOwned::take) {
            cancel();
        }
    }
}

/// Whose jobs are claimed.
#[derive(Clone)]
pub(crate) struct Claimant {
    pub engine: Engine,
    pub shared: Arc<Shared>,
    pub topic: String,
    pub node: Vec<u8>,
}

/// Jobs that nobody has taken yet. Dropped, they are given back.
struct Unclaimed {
    found: Option<Claimed>,
    by: Claimant,
    calls: Weak<Inner>,
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(found) = self.found.take().filter(|f| !f.is_empty()) else { return };
        if self.by.shared.forked() {
            std::mem::forget(found);
            return;
        }
        let by = self.by.clone();
        let release = move || {
            let (seqs, ids): (Vec<u64>, Vec<u64>) =
                found.iter().map(|(lease, _)| (lease.seq, lease.lease_id)).unzip();
            let held = Held { node: &by.node, seqs: &seqs, lease_ids: Some(&ids) };
            if let Err(e) = by.engine.nack(&by.topic, &held, Some(0)) {
                log::debug!("queue {:?}: leases run out by themselves: {e}", by.topic);
            }
        };
        // Durable leases are logged: not on the thread of a loop.
        match self.calls.upgrade() {
            Some(calls) => calls.pool.run(Box::new(release)),
            None => release(),
        }
    }
}

/// Jobs on their way to whoever claimed them.
#[pyclass(frozen)]
pub(crate) struct PendingJobs(Mutex<Unclaimed>);

#[pymethods]
impl PendingJobs {
    /// They are the caller's from now on.
    fn take(&self) -> Option<Jobs> {
        self.0.lock().found.take().as_ref().map(jobs)
    }
}

/// The end of a claim.
pub(crate) fn complete_claim(call: Call, by: Claimant) -> Completion<Claimed> {
    let calls = call.calls();
    Box::new(move |outcome| {
        let found = outcome.map(|found| Unclaimed { found: Some(found), by, calls });
        call.complete(found.map_err(Failure::from), |py, found| {
            Ok(Py::new(py, PendingJobs(Mutex::new(found)))?.into_any())
        });
    })
}

/// A batch that nobody has taken yet. Dropped, it goes back to its consumer.
struct Unread {
    batch: Option<ReadBatch>,
    /// None where the batch was only looked at.
    consumer: Option<Arc<ProcessOwned<topics_engine::Consumer>>>,
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.as_ref().and_then(|c| c.get())
            && let Some(batch) = self.batch.take()
        {
            consumer.give_back(batch);
        }
    }
}

/// A batch on its way to the reader.
#[pyclass(frozen)]
pub(crate) struct PendingBatch(Mutex<Unread>);

#[pymethods]
impl PendingBatch {
    /// It is the caller's from now on.
    fn take(&self) -> Option<Batch> {
        self.0.lock().batch.take().map(Batch)
    }
}

/// The end of a read by a consumer, or, without one, of a look.
pub(crate) fn complete_read(
    call: Call,
    consumer: Option<Arc<ProcessOwned<topics_engine::Consumer>>>,
) -> Completion<ReadBatch> {
    Box::new(move |outcome| {
        let unread = outcome.map(|batch| Unread { batch: Some(batch), consumer });
        call.complete(unread.map_err(Failure::from), |py, unread| {
            Ok(Py::new(py, PendingBatch(Mutex::new(unread)))?.into_any())
        });
    })
}
