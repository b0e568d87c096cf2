//! Queues in process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{Claim, Claimed, Held, Redrive, Settled};

use crate::args::match_of;
use crate::batch::Batch;
use crate::engine::Engine;
use crate::shared::{SIGNAL_SLICE, Shared};

/// `(seq, lease_id, deadline, deliveries)` of each job, and their records.
type Jobs = (Vec<(u64, u64, u64, u32)>, Batch);
/// What was done, what was skipped, when extended leases run out.
type Outcome = (Vec<u64>, Vec<u64>, Option<u64>);

/// A queue by name.
#[pyclass(frozen)]
pub(crate) struct Queue {
    shared: Arc<Shared>,
    topic: String,
}

fn jobs(c: &Claimed) -> Jobs {
    let leases = c.iter().map(|(l, _)| (l.seq, l.lease_id, l.deadline, l.deliveries)).collect();
    (leases, Batch(c.records().clone()))
}

fn outcome(s: Settled) -> Outcome {
    (s.done, s.skipped, s.deadline)
}

/// Repeats a wait in slices, so that signals are heard.
fn in_slices<T>(
    py: Python<'_>,
    wait: f64,
    empty: impl Fn(&T) -> bool,
    mut look: impl FnMut(Duration) -> PyResult<T>,
) -> PyResult<T> {
    let wait = Duration::try_from_secs_f64(wait.max(0.0)).unwrap_or(Duration::MAX);
    let deadline = Instant::now().checked_add(wait);
    loop {
        let left = deadline.map_or(SIGNAL_SLICE, |d| d.saturating_duration_since(Instant::now()));
        let found = look(left.min(SIGNAL_SLICE))?;
        if !empty(&found) || left.is_zero() {
            return Ok(found);
        }
        py.check_signals()?;
    }
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
        let found = in_slices(py, wait, Claimed::is_empty, |wait| {
            let req = Claim { node: node.as_bytes(), max, lease_ms, wait };
            self.shared.run(py, |e| Ok(e.claim(&self.topic, &req)?))
        })?;
        Ok(jobs(&found))
    }

    #[pyo3(signature = (node, seqs, lease_ids=None))]
    fn ack(
        &self,
        py: Python<'_>,
        node: &str,
        seqs: Vec<u64>,
        lease_ids: Option<Vec<u64>>,
    ) -> PyResult<Outcome> {
        let held = Held { node: node.as_bytes(), seqs: &seqs, lease_ids: lease_ids.as_deref() };
        self.shared.run(py, |e| Ok(outcome(e.ack(&self.topic, &held)?)))
    }

    #[pyo3(signature = (node, seqs, lease_ids=None, delay_ms=None))]
    fn nack(
        &self,
        py: Python<'_>,
        node: &str,
        seqs: Vec<u64>,
        lease_ids: Option<Vec<u64>>,
        delay_ms: Option<u64>,
    ) -> PyResult<Outcome> {
        let held = Held { node: node.as_bytes(), seqs: &seqs, lease_ids: lease_ids.as_deref() };
        self.shared.run(py, |e| Ok(outcome(e.nack(&self.topic, &held, delay_ms)?)))
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
        let held = Held { node: node.as_bytes(), seqs: &seqs, lease_ids: lease_ids.as_deref() };
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
        self.shared.run(py, |e| Ok(e.redrive(&self.topic, &req)?))
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
        Ok(Work { shared: self.shared.clone(), work: Mutex::new(Some(Arc::new(work))) })
    }
}

/// A stream of jobs.
#[pyclass(frozen)]
pub(crate) struct Work {
    shared: Arc<Shared>,
    work: Mutex<Option<Arc<topics_engine::Work>>>,
}

#[pymethods]
impl Work {
    /// The next jobs; `None` when it was closed.
    #[pyo3(signature = (wait=0.0))]
    fn next(&self, py: Python<'_>, wait: f64) -> PyResult<Option<Jobs>> {
        let found = in_slices(
            py,
            wait,
            |f: &Option<Claimed>| f.as_ref().is_some_and(Claimed::is_empty),
            |slice| {
                let Some(work) = self.work.lock().clone() else { return Ok(None) };
                self.shared.run(py, move |_| Ok(Some(work.next(slice)?)))
            },
        )?;
        Ok(found.as_ref().map(jobs))
    }

    /// Releases what it holds.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let work = self.work.lock().take();
        py.detach(move || drop(work));
        Ok(())
    }
}
