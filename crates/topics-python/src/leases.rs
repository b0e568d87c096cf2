//! The leases that this process holds: one schedule per database, for sync and asyncio.
//!
//! Every job is in the schedule from its claim on, whether its block has begun or not, until its
//! [`HeldLease`] is dropped or discarded. A lease is renewed at a third of its time; a renewal that fails
//! is tried again soon. A thread of this module renews the leases of an embedded engine
//! without the interpreter, so a job that holds the GIL or blocks the event loop keeps its lease. The
//! leases of a server are renewed by a Python thread (`client/renewal.py`), which asks the schedule what
//! is due.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use topics_engine::{Claimed, Engine, Error, LeaseOutcome, LeasedJobs};

use crate::errors::catch_panics;
use crate::shared::Shared;

/// The shortest pause between two renewals of a claim.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Jobs of one renewal.
const MAX_JOBS: usize = 10_000;

/// The jobs of one claim, or a job stream of a server, whose jobs may not have arrived yet.
struct HeldClaim {
    queue: String,
    node: String,
    lease: Duration,
    /// Of the leases that were renewed last.
    deadline: Instant,
    due: Instant,
    /// The lease ids, by seq, of leases that have not ended.
    jobs: HashMap<u64, u64>,
    /// Why leases ended, by seq.
    ended: HashMap<u64, String>,
    stream: Option<u64>,
}

#[derive(Default)]
struct State {
    claims: HashMap<u64, HeldClaim>,
    /// When claims are to be renewed, with their numbers.
    due: BTreeSet<(Instant, u64)>,
    /// The number of the last claim.
    last: u64,
    has_thread: bool,
    is_closed: bool,
}

impl State {
    fn set_due(&mut self, claim: u64, at: Option<Instant>) {
        let Some(c) = self.claims.get_mut(&claim) else { return };
        self.due.remove(&(c.due, claim));
        if let Some(at) = at {
            c.due = at;
            self.due.insert((at, claim));
        }
    }
}

/// A renewal: claim, queue, node, lease in ms, seqs, lease ids, stream.
type Renewal = (u64, String, String, u64, Vec<u64>, Vec<u64>, Option<u64>);

pub(crate) struct Inner {
    state: Mutex<State>,
    changed: Condvar,
    pid: u32,
}

impl Inner {
    /// A forked child has no thread of the schedule, and its lock may be held forever.
    fn forked(&self) -> bool {
        std::process::id() != self.pid
    }

    fn add(&self, claim: HeldClaim) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.due.insert((claim.due, number));
        state.claims.insert(number, claim);
        drop(state);
        self.changed.notify_one();
        number
    }

    /// The claims whose renewal is due. Each is due again after a pause, unless the caller says how
    /// its renewal ended.
    fn take_due(&self, now: Instant) -> Vec<Renewal> {
        let mut state = self.state.lock();
        let mut found = Vec::new();
        while let Some(&(at, number)) = state.due.first().filter(|(at, _)| *at <= now) {
            state.due.remove(&(at, number));
            let Some(c) = state.claims.get_mut(&number) else { continue };
            c.due = now + (c.lease / 3).max(MIN_PAUSE);
            let at = c.due;
            let (seqs, ids) = c.jobs.iter().map(|(seq, id)| (*seq, *id)).unzip();
            let lease_ms = c.lease.as_millis() as u64;
            let (queue, node) = (c.queue.clone(), c.node.clone());
            found.push((number, queue, node, lease_ms, seqs, ids, c.stream));
            state.due.insert((at, number));
        }
        found
    }

    /// A renewal that was sent at `start` has succeeded, except for leases that have ended.
    fn renewed(&self, claim: u64, start: Instant, ended: impl Iterator<Item = (u64, String)>) {
        let mut state = self.state.lock();
        let Some(c) = state.claims.get_mut(&claim) else { return };
        c.deadline = start + c.lease;
        for (seq, reason) in ended {
            // A job that was acked meanwhile is not known any more.
            if c.jobs.remove(&seq).is_some() {
                c.ended.insert(seq, reason);
            }
        }
        let is_over = c.jobs.is_empty() && c.stream.is_none();
        let at = start + (c.lease / 3).max(MIN_PAUSE);
        state.set_due(claim, (!is_over).then_some(at));
    }

    /// A renewal has failed. It is tried again before its leases end, and after that too: durable
    /// leases begin anew when their server does.
    fn failed(&self, claim: u64, now: Instant) {
        let mut state = self.state.lock();
        let Some(c) = state.claims.get(&claim) else { return };
        let at = now + (c.lease / 10).max(MIN_PAUSE);
        state.set_due(claim, Some(at));
    }

    /// Stops renewing a job, or a stream (`None`).
    fn discard(&self, claim: u64, seq: Option<u64>) {
        let mut state = self.state.lock();
        let Some(c) = state.claims.get_mut(&claim) else { return };
        match seq {
            Some(seq) => {
                c.jobs.remove(&seq);
                c.ended.remove(&seq);
            }
            None => c.stream = None,
        }
        if c.jobs.is_empty() && c.stream.is_none() {
            state.set_due(claim, None);
            if state.claims.get(&claim).is_some_and(|c| c.ended.is_empty()) {
                state.claims.remove(&claim);
            }
        }
    }
}

/// The leases that are held through one database.
#[pyclass(frozen)]
pub(crate) struct LeaseSchedule {
    inner: Arc<Inner>,
}

impl LeaseSchedule {
    /// Holds the jobs of a claim of an embedded engine; a thread renews them.
    pub fn hold_claimed(
        &self,
        shared: &Arc<Shared>,
        queue: &str,
        node: &str,
        claimed: &Claimed,
    ) -> Vec<HeldLease> {
        if claimed.is_empty() {
            return Vec::new();
        }
        let jobs = claimed.iter().map(|(l, _)| (l.seq, l.lease_id)).collect();
        let held = self.hold(queue, node, claimed.lease_ms, jobs, 0.0);
        let starts = {
            let mut state = self.inner.state.lock();
            !state.is_closed && !std::mem::replace(&mut state.has_thread, true)
        };
        if starts {
            let (inner, shared) = (self.inner.clone(), Arc::downgrade(shared));
            let thread = std::thread::Builder::new().name("topics-leases".into());
            if let Err(e) = thread.spawn(move || run(&inner, &shared)) {
                self.inner.state.lock().has_thread = false;
                log::warn!("leases are not renewed, because no thread can be started: {e}");
            }
        }
        held
    }

    /// Ends the thread; nothing is renewed from now on.
    pub fn close(&self) {
        if !self.inner.forked() {
            self.inner.state.lock().is_closed = true;
            self.inner.changed.notify_all();
        }
    }
}

impl Drop for LeaseSchedule {
    fn drop(&mut self) {
        self.close();
    }
}

#[pymethods]
impl LeaseSchedule {
    #[new]
    pub fn new() -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { inner: Arc::new(Inner { state, changed, pid: std::process::id() }) }
    }

    /// Holds jobs `(seq, lease id)` that were claimed `elapsed` seconds ago, at most.
    #[pyo3(signature = (queue, node, lease_ms, jobs, elapsed))]
    pub fn hold(
        &self,
        queue: &str,
        node: &str,
        lease_ms: u64,
        jobs: Vec<(u64, u64)>,
        elapsed: f64,
    ) -> Vec<HeldLease> {
        if jobs.is_empty() {
            return Vec::new();
        }
        let seqs: Vec<u64> = jobs.iter().map(|job| job.0).collect();
        let claim = self.add(queue, node, lease_ms, jobs, None, elapsed);
        let held =
            |seq| HeldLease { inner: self.inner.clone(), held: Mutex::new((claim, Some(seq))) };
        seqs.into_iter().map(held).collect()
    }

    /// Holds all jobs of a stream.
    fn hold_stream(&self, queue: &str, node: &str, lease_ms: u64, stream: u64) -> HeldLease {
        let claim = self.add(queue, node, lease_ms, Vec::new(), Some(stream), 0.0);
        HeldLease { inner: self.inner.clone(), held: Mutex::new((claim, None)) }
    }

    /// Seconds until the next renewal is due; `None` while nothing is held.
    fn next_due(&self) -> Option<f64> {
        let first = self.inner.state.lock().due.first().map(|d| d.0)?;
        Some(first.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// The renewals that are due.
    fn take_due(&self) -> Vec<Renewal> {
        self.inner.take_due(Instant::now())
    }

    /// A renewal that was sent `elapsed` seconds ago has succeeded, except for the leases that have
    /// ended: `(seq, reason)`.
    fn renewed(&self, claim: u64, elapsed: f64, ended: Vec<(u64, String)>) {
        self.inner.renewed(claim, before(elapsed), ended.into_iter());
    }

    /// A renewal has failed; it is due again soon.
    fn failed(&self, claim: u64) {
        self.inner.failed(claim, Instant::now());
    }
}

impl LeaseSchedule {
    fn add(
        &self,
        queue: &str,
        node: &str,
        lease_ms: u64,
        jobs: Vec<(u64, u64)>,
        stream: Option<u64>,
        elapsed: f64,
    ) -> u64 {
        let (start, lease) = (before(elapsed), Duration::from_millis(lease_ms));
        self.inner.add(HeldClaim {
            queue: queue.to_owned(),
            node: node.to_owned(),
            lease,
            deadline: start + lease,
            due: start + (lease / 3).max(MIN_PAUSE),
            jobs: jobs.into_iter().collect(),
            ended: HashMap::new(),
            stream,
        })
    }
}

/// The time so many seconds ago.
fn before(elapsed: f64) -> Instant {
    let now = Instant::now();
    let elapsed = Duration::try_from_secs_f64(elapsed).unwrap_or_default();
    now.checked_sub(elapsed).unwrap_or(now)
}

/// A job whose lease is renewed, or a stream; dropping it ends that.
#[pyclass(frozen)]
pub(crate) struct HeldLease {
    inner: Arc<Inner>,
    /// The claim, and the job of it.
    held: Mutex<(u64, Option<u64>)>,
}

#[pymethods]
impl HeldLease {
    /// Why the lease ended, if a renewal found that it has.
    #[getter]
    fn ended(&self) -> Option<String> {
        let (claim, seq) = *self.held.lock();
        self.inner.state.lock().claims.get(&claim)?.ended.get(&seq?).cloned()
    }

    /// Whether it was not renewed in time. The lease may have ended.
    #[getter]
    fn is_overdue(&self) -> bool {
        let (claim, seq) = *self.held.lock();
        let state = self.inner.state.lock();
        let is_renewed = |c: &HeldClaim| {
            c.deadline > Instant::now() && seq.is_none_or(|seq| c.jobs.contains_key(&seq))
        };
        !state.claims.get(&claim).is_some_and(is_renewed)
    }

    /// The lease was renewed for a time of its own, which later renewals keep.
    fn set_lease(&self, lease_ms: u64) {
        let mut held = self.held.lock();
        let (claim, Some(seq)) = *held else { return };
        let renewed = {
            let state = self.inner.state.lock();
            let Some(c) = state.claims.get(&claim) else { return };
            let Some(id) = c.jobs.get(&seq) else { return };
            let (lease, now) = (Duration::from_millis(lease_ms), Instant::now());
            HeldClaim {
                queue: c.queue.clone(),
                node: c.node.clone(),
                lease,
                deadline: now + lease,
                due: now + (lease / 3).max(MIN_PAUSE),
                jobs: HashMap::from([(seq, *id)]),
                ended: HashMap::new(),
                stream: None,
            }
        };
        self.inner.discard(claim, Some(seq));
        *held = (self.inner.add(renewed), Some(seq));
    }

    /// Ends the renewals. Idempotent.
    fn discard(&self) {
        if !self.inner.forked() {
            let (claim, seq) = *self.held.lock();
            self.inner.discard(claim, seq);
        }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Renews what is due until the schedule is closed, or the engine is.
fn run(inner: &Arc<Inner>, shared: &Weak<Shared>) {
    loop {
        {
            let mut state = inner.state.lock();
            if state.is_closed {
                return;
            }
            match state.due.first().map(|d| d.0) {
                Some(at) if at <= Instant::now() => {}
                Some(at) => {
                    inner.changed.wait_until(&mut state, at);
                    continue;
                }
                None => {
                    inner.changed.wait(&mut state);
                    continue;
                }
            }
        }
        // The database is kept only for the renewal.
        let Some(shared) = shared.upgrade() else { return };
        let Ok(engine) = shared.engine() else { return };
        for (claim, queue, node, lease_ms, seqs, ids, _) in inner.take_due(Instant::now()) {
            let start = Instant::now();
            let renew = || Ok(extend(engine, &queue, &node, lease_ms, (&seqs, &ids))?);
            match catch_panics(renew) {
                Ok(ended) => inner.renewed(claim, start, ended.into_iter()),
                Err(e) => {
                    log::debug!(
                        "queue {queue:?}: {} leases were not renewed: {}",
                        seqs.len(),
                        e.message
                    );
                    inner.failed(claim, Instant::now());
                }
            }
        }
    }
}

/// Renews leases; returns those that have ended.
fn extend(
    engine: &Engine,
    queue: &str,
    node: &str,
    lease_ms: u64,
    (seqs, ids): (&[u64], &[u64]),
) -> Result<Vec<(u64, String)>, Error> {
    let mut ended = Vec::new();
    for (seqs, ids) in seqs.chunks(MAX_JOBS).zip(ids.chunks(MAX_JOBS)) {
        let held = LeasedJobs { node: node.as_bytes(), seqs, lease_ids: Some(ids) };
        match engine.extend(queue, &held, Some(lease_ms)) {
            Ok(LeaseOutcome { skipped, reasons, .. }) => ended.extend(
                skipped.into_iter().zip(reasons.iter().map(|reason| reason.as_str().to_owned())),
            ),
            // The jobs are gone with their queue.
            Err(Error::TopicNotFound(_)) => {
                ended.extend(seqs.iter().map(|seq| (*seq, "gone".to_owned())));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(ended)
}
