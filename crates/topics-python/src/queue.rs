//! Queues of an embedded engine.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{Claim, Claimed, JobState, LeaseOutcome, LeasedJobs, Redrive};
use topics_wire::Failure;

use crate::args::match_of;
use crate::batch::Batch;
use crate::calls::Calls;
use crate::engine::Engine;
use crate::errors::raise;
use crate::leases::HeldLease;
use crate::shared::{ProcessOwned, Shared, seconds, wait_in_slices};
use crate::wait_handle::{Claimant, WaitHandle, complete_claim};

/// `(seq, lease_id, deadline, deliveries)` of each job, the length of the leases (ms), the records, the
/// leases as the schedule renews them.
pub(crate) type Jobs = (Vec<(u64, u64, u64, u32)>, u64, Batch, Vec<HeldLease>);

/// `(state, deliveries, node, lease_id, deadline, visible_at, lane, group, error)` of each job, and
/// their records.
type PeekedJobs = (Vec<PeekedJob>, Batch);
type PeekedJob = (
    &'static str,
    u32,
    Option<String>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    u8,
    Option<String>,
    Option<String>,
);
/// Seqs that were done, seqs that were skipped, the deadline of extended leases, why each seq was
/// skipped.
type Outcome = (Vec<u64>, Vec<u64>, Option<u64>, Vec<&'static str>);

/// A queue by name.
#[pyclass(frozen)]
pub(crate) struct Queue {
    shared: Arc<Shared>,
    topic: String,
}

pub(crate) fn jobs(c: &Claimed, held: Vec<HeldLease>) -> Jobs {
    let leases = c.iter().map(|(l, _)| (l.seq, l.lease_id, l.deadline, l.deliveries)).collect();
    (leases, c.lease_ms, Batch(c.records().clone()), held)
}

fn outcome(s: LeaseOutcome) -> Outcome {
    let reasons = s.reasons.iter().map(|reason| reason.as_str()).collect();
    (s.done, s.skipped, s.deadline, reasons)
}

#[pymethods]
impl Queue {
    #[new]
    fn new(engine: &Engine, topic: String) -> Self {
        Self { shared: engine.shared.clone(), topic }
    }

    #[pyo3(signature = (node, max=1, lease_ms=None, wait=0.0))]
    fn claim(
        &self,
        py: Python<'_>,
        node: &str,
        max: usize,
        lease_ms: Option<u64>,
        wait: f64,
    ) -> PyResult<Jobs> {
        let found = wait_in_slices(py, Some(wait), Claimed::is_empty, |wait| {
            let req = Claim { node: node.as_bytes(), max, lease_ms, wait };
            self.shared.run(py, |e| Ok(e.claim(&self.topic, &req)?))
        })?;
        let held = self.shared.leases.hold_claimed(&self.shared, &self.topic, node, &found);
        Ok(jobs(&found, held))
    }

    /// Resolves the call with a `PendingJobs`, after at most 30 s.
    #[allow(clippy::too_many_arguments)]
    fn claim_later(
        &self,
        py: Python<'_>,
        calls: &Calls,
        token: u64,
        node: &str,
        max: usize,
        lease_ms: Option<u64>,
        wait: f64,
    ) -> PyResult<WaitHandle> {
        let by = claimant(&self.shared, &self.topic, node).map_err(|e| raise(py, &e))?;
        let engine = by.engine.clone();
        let topic = self.topic.clone();
        let done = complete_claim(calls.call(token), by);
        let id = py.detach(|| {
            let req = Claim { node: node.as_bytes(), max, lease_ms, wait: seconds(wait) };
            engine.claim_async(&topic, &req, done)
        });
        Ok(WaitHandle::new(self.shared.clone(), move || {
            engine.cancel_claim(&topic, id);
        }))
    }

    #[pyo3(signature = (state=None, max=100))]
    fn peek(&self, py: Python<'_>, state: Option<&str>, max: usize) -> PyResult<PeekedJobs> {
        let state = match state {
            None => None,
            Some("ready") => Some(JobState::Ready),
            Some("leased") => Some(JobState::Leased),
            Some("delayed") => Some(JobState::Delayed),
            Some("dead") => Some(JobState::Dead),
            Some(s) => {
                let text = format!("state must be ready, leased, delayed or dead, not {s:?}");
                return Err(raise(py, &Failure::invalid(text)));
            }
        };
        let found = self.shared.run(py, |e| Ok(e.peek(&self.topic, state, max)?))?;
        let text = |n: &Vec<u8>| String::from_utf8_lossy(n).into_owned();
        let peeked = found.iter().map(|(j, _)| {
            let (node, group) = (j.node.as_ref().map(text), j.group.as_ref().map(text));
            let (state, times) = (j.state.as_str(), (j.deadline, j.visible_at));
            let error = j.error.clone();
            (state, j.deliveries, node, j.lease_id, times.0, times.1, j.lane, group, error)
        });
        Ok((peeked.collect(), Batch(found.records().clone())))
    }

    #[pyo3(signature = (node, seqs, lease_ids=None))]
    fn ack(
        &self,
        py: Python<'_>,
        node: &str,
        seqs: Vec<u64>,
        lease_ids: Option<Vec<u64>>,
    ) -> PyResult<Outcome> {
        let held =
            LeasedJobs { node: node.as_bytes(), seqs: &seqs, lease_ids: lease_ids.as_deref() };
        self.shared.run(py, |e| Ok(outcome(e.ack(&self.topic, &held)?)))
    }

    #[pyo3(signature = (node, seqs, lease_ids=None, delay_ms=None, error=""))]
    #[allow(clippy::too_many_arguments)]
    fn nack(
        &self,
        py: Python<'_>,
        node: &str,
        seqs: Vec<u64>,
        lease_ids: Option<Vec<u64>>,
        delay_ms: Option<u64>,
        error: &str,
    ) -> PyResult<Outcome> {
        let held =
            LeasedJobs { node: node.as_bytes(), seqs: &seqs, lease_ids: lease_ids.as_deref() };
        let nack = |e: &topics_engine::Engine| {
            e.nack_with_error(&self.topic, &held, delay_ms, error).map(outcome)
        };
        self.shared.run(py, |e| Ok(nack(e)?))
    }

    #[pyo3(signature = (node, seqs, lease_ids=None))]
    fn release(
        &self,
        py: Python<'_>,
        node: &str,
        seqs: Vec<u64>,
        lease_ids: Option<Vec<u64>>,
    ) -> PyResult<Outcome> {
        let held =
            LeasedJobs { node: node.as_bytes(), seqs: &seqs, lease_ids: lease_ids.as_deref() };
        self.shared.run(py, |e| Ok(outcome(e.release(&self.topic, &held)?)))
    }

    #[pyo3(signature = (seqs, force=false))]
    fn remove(&self, py: Python<'_>, seqs: Vec<u64>, force: bool) -> PyResult<Outcome> {
        self.shared.run(py, |e| Ok(outcome(e.remove_jobs(&self.topic, &seqs, force)?)))
    }

    fn promote(&self, py: Python<'_>, seqs: Vec<u64>) -> PyResult<Outcome> {
        self.shared.run(py, |e| Ok(outcome(e.promote_jobs(&self.topic, &seqs)?)))
    }

    #[pyo3(signature = (node, seqs, lease_ids=None, lease_ms=None))]
    fn extend(
        &self,
        py: Python<'_>,
        node: &str,
        seqs: Vec<u64>,
        lease_ids: Option<Vec<u64>>,
        lease_ms: Option<u64>,
    ) -> PyResult<Outcome> {
        let held =
            LeasedJobs { node: node.as_bytes(), seqs: &seqs, lease_ids: lease_ids.as_deref() };
        self.shared.run(py, |e| Ok(outcome(e.extend(&self.topic, &held, lease_ms)?)))
    }

    #[pyo3(signature = (to=None, r#match=None, seqs=None, limit=None, dry_run=false))]
    fn redrive(
        &self,
        py: Python<'_>,
        to: Option<String>,
        r#match: Option<&str>,
        seqs: Option<Vec<u64>>,
        limit: Option<usize>,
        dry_run: bool,
    ) -> PyResult<u64> {
        let matching = match_of(py, r#match)?;
        let req = Redrive { to, matching, seqs, limit, dry_run };
        self.shared.run(py, |e| Ok(e.redrive(&self.topic, &req)?.moved))
    }

    #[pyo3(signature = (node, max=1, lease_ms=None))]
    fn work(
        &self,
        py: Python<'_>,
        node: &str,
        max: usize,
        lease_ms: Option<u64>,
    ) -> PyResult<Work> {
        let open = |e: &topics_engine::Engine| e.work(&self.topic, node.as_bytes(), max, lease_ms);
        let work = self.shared.run(py, |e| Ok(open(e)?))?;
        let by = claimant(&self.shared, &self.topic, node).map_err(|e| raise(py, &e))?;
        let work = Arc::new(ProcessOwned::new(self.shared.clone(), work));
        Ok(Work { by, work: Mutex::new(Some(work)) })
    }
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

    /// Resolves the call with a `PendingJobs`, after at most 30 s; `None` when the stream is closed.
    fn next_later(
        &self,
        py: Python<'_>,
        calls: &Calls,
        token: u64,
        wait: f64,
    ) -> PyResult<Option<WaitHandle>> {
        let Some(work) = self.work.lock().clone() else { return Ok(None) };
        let done = complete_claim(calls.call(token), self.by.clone());
        let id = work.run(py, move |work| Ok(work.next_async(seconds(wait), done)))?;
        let (engine, topic) = (self.by.engine.clone(), self.by.topic.clone());
        let cancel = move || {
            engine.cancel_claim(&topic, id);
        };
        Ok(Some(WaitHandle::new(self.by.shared.clone(), cancel)))
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
