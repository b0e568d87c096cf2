//! Claims and acks of an embedded engine.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{Claim, Claimed, LeaseOutcome, LeasedJobs};
use topics_wire::Failure;

use crate::batch::Batch;
use crate::calls::Calls;
use crate::engine::Engine;
use crate::errors::raise;
use crate::leases::HeldLease;
use crate::pending::{Claimant, complete_claim};
use crate::shared::{ProcessOwned, Shared, seconds, wait_in_slices};

/// `(seq, lease_id, deadline, deliveries)` of each job, the length of the leases (ms), the records, the
/// leases as the schedule renews them.
pub(crate) type Jobs = (Vec<(u64, u64, u64, u32)>, u64, Batch, Vec<HeldLease>);

/// Seqs that were done, seqs that were skipped, the deadline of extended leases, why each seq was
/// skipped.
pub(crate) type Outcome = (Vec<u64>, Vec<u64>, Option<u64>, Vec<&'static str>);

pub(crate) fn jobs(c: &Claimed, held: Vec<HeldLease>) -> Jobs {
    let leases = c.iter().map(|(l, _)| (l.seq, l.lease_id, l.deadline, l.deliveries)).collect();
    (leases, c.lease_ms, Batch(c.records().clone()), held)
}

fn outcome(s: LeaseOutcome) -> Outcome {
    let reasons = s.reasons.iter().map(|reason| reason.as_str()).collect();
    (s.done, s.skipped, s.deadline, reasons)
}

/// Leases jobs to a worker; waits for the first one in slices, between which signals are handled.
pub(crate) fn claim(
    py: Python<'_>,
    shared: &Arc<Shared>,
    queue: &str,
    node: &str,
    (max, lease_ms, wait): (usize, Option<u64>, f64),
) -> PyResult<Jobs> {
    let found = wait_in_slices(py, Some(wait), Claimed::is_empty, |wait| {
        let req = Claim { node: node.as_bytes(), max, lease_ms, wait };
        shared.run(py, |e| Ok(e.claim(queue, &req)?))
    })?;
    let held = shared.leases.hold_claimed(shared, queue, node, &found);
    Ok(jobs(&found, held))
}

/// Resolves the call with a `PendingJobs`, after at most 30 s.
pub(crate) fn claim_later(
    py: Python<'_>,
    (calls, token): (&Calls, u64),
    shared: &Arc<Shared>,
    queue: &str,
    node: &str,
    (max, lease_ms, wait): (usize, Option<u64>, f64),
) -> PyResult<()> {
    let by = claimant(shared, queue, node).map_err(|e| raise(py, &e))?;
    let engine = by.engine.clone();
    let done = complete_claim(calls.call(token), by);
    let id = py.detach(|| {
        let req = Claim { node: node.as_bytes(), max, lease_ms, wait: seconds(wait) };
        engine.claim_async(queue, &req, done)
    });
    let queue = queue.to_owned();
    calls.set_wait(token, shared, move || {
        engine.cancel_claim(&queue, id);
    });
    Ok(())
}

/// Completes jobs.
pub(crate) fn ack(
    py: Python<'_>,
    shared: &Shared,
    queue: &str,
    node: &str,
    seqs: &[u64],
    lease_ids: Option<&[u64]>,
) -> PyResult<Outcome> {
    let held = LeasedJobs { node: node.as_bytes(), seqs, lease_ids };
    shared.run(py, |e| Ok(outcome(e.ack(queue, &held)?)))
}

fn claimant(shared: &Arc<Shared>, topic: &str, node: &str) -> Result<Claimant, Failure> {
    let (engine, shared) = (shared.engine()?.clone(), shared.clone());
    Ok(Claimant { engine, shared, topic: topic.to_owned(), node: node.to_owned() })
}

/// A stream of jobs.
#[pyclass(frozen)]
pub(crate) struct Work {
    by: Claimant,
    work: Mutex<Option<Arc<ProcessOwned<topics_engine::Work>>>>,
}

#[pymethods]
impl Work {
    #[new]
    #[pyo3(signature = (engine, queue, node, max=1, lease_ms=None))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        queue: &str,
        node: &str,
        max: usize,
        lease_ms: Option<u64>,
    ) -> PyResult<Self> {
        let shared = &engine.shared;
        let open = |e: &topics_engine::Engine| e.work(queue, node.as_bytes(), max, lease_ms);
        let work = shared.run(py, |e| Ok(open(e)?))?;
        let by = claimant(shared, queue, node).map_err(|e| raise(py, &e))?;
        let work = Arc::new(ProcessOwned::new(shared.clone(), work));
        Ok(Self { by, work: Mutex::new(Some(work)) })
    }

    /// The next jobs; `None` when the stream is closed.
    #[pyo3(signature = (wait=0.0))]
    fn next(&self, py: Python<'_>, wait: f64) -> PyResult<Option<Jobs>> {
        let found = wait_in_slices(
            py,
            Some(wait),
            |f: &Option<Claimed>| f.as_ref().is_some_and(Claimed::is_empty),
            |slice| {
                let Some(work) = self.work.lock().clone() else { return Ok(None) };
                work.run(py, move |work| Ok(Some(work.next(slice)?)))
            },
        )?;
        Ok(found.map(|found| jobs(&found, self.by.hold(&found))))
    }

    /// Resolves the call with a `PendingJobs`, after at most 30 s; false when the stream is closed.
    fn next_later(&self, py: Python<'_>, calls: &Calls, token: u64, wait: f64) -> PyResult<bool> {
        let Some(work) = self.work.lock().clone() else { return Ok(false) };
        let done = complete_claim(calls.call(token), self.by.clone());
        let id = work.run(py, move |work| Ok(work.next_async(seconds(wait), done)))?;
        let (engine, topic) = (self.by.engine.clone(), self.by.topic.clone());
        let cancel = move || {
            engine.cancel_claim(&topic, id);
        };
        calls.set_wait(token, &self.by.shared, cancel);
        Ok(true)
    }

    /// Gives its jobs back: they do not count as delivered.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(work) = self.work.lock().take() else { return Ok(()) };
        let by = &self.by;
        py.detach(move || {
            let released = work.call(|work| {
                Ok(by.engine.release_stream(&by.topic, by.node.as_bytes(), work.stream())?)
            });
            if let Err(e) = released {
                log::debug!("queue {:?}: leases end with their stream: {}", by.topic, e.message);
            }
            drop(work);
        });
        Ok(())
    }
}
