//! The asynchronous calls of one event loop.
//!
//! A call has a token. The loop drains its outcome and sets the result or the exception of its
//! future. If the future was cancelled, the loop drops the value; values that must not be lost undo
//! their effect when they are dropped (`pending`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySequence, PyTuple};
use topics_engine::{Append, Appended, Completion, Error};
use topics_service::{WorkerPool, completion_pair};
use topics_wire::Failure;

use crate::args::{AppendArgs, WriteOptions, check_all, py_records, raw, raw_records, records_of};
use crate::consumer;
use crate::engine::{Ack, Engine, ack};
use crate::errors::{catch_panics, raise};
use crate::queue;
use crate::shared::{ProcessOwned, Shared};
use crate::signal_queue::SignalQueue;

/// Builds the Python value of an outcome.
pub(crate) type ToPython = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The outcome of a call.
struct Outcome {
    token: u64,
    make: ToPython,
}

type CancelFn = Box<dyn FnOnce() + Send>;

/// The part of [`Calls`] that engine threads share.
pub(crate) struct Inner {
    outcomes: SignalQueue<Outcome>,
    /// Runs verbs that may wait for the disk.
    pub pool: WorkerPool,
    /// Verbs that are running or queued.
    running: AtomicUsize,
    /// What cancels each wait, by token.
    waits: Mutex<HashMap<u64, ProcessOwned<CancelFn>>>,
    pid: u32,
}

/// Counts a verb as running until it is dropped.
struct Running(Arc<Inner>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Inner {
    pub fn forked(&self) -> bool {
        std::process::id() != self.pid
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The threads belong to the parent of a fork, and may hold the lock there.
        if !self.forked() {
            self.pool.stop();
        }
    }
}

/// A call that is resolved exactly once; dropping it resolves it with an error.
pub(crate) struct Call {
    inner: Arc<Inner>,
    token: u64,
    resolved: bool,
}

impl Call {
    pub fn new(inner: &Arc<Inner>, token: u64) -> Self {
        Self { inner: inner.clone(), token, resolved: false }
    }

    /// The calls of its loop, unless they were dropped.
    pub fn calls(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    /// Resolves the call.
    pub fn resolve(mut self, make: ToPython) {
        self.resolved = true;
        self.inner.outcomes.push(Outcome { token: self.token, make });
    }

    /// Resolves the call with the outcome of an engine verb.
    pub fn complete<T: Send + 'static>(
        self,
        outcome: Result<T, Failure>,
        show: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) {
        self.resolve(Box::new(move |py| match outcome {
            Ok(value) => show(py, value),
            Err(failure) => Err(raise(py, &failure)),
        }));
    }

    /// Resolves the call with `None`.
    pub fn wake(self) {
        self.resolve(Box::new(|py| Ok(py.None())));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.resolved {
            let e = Error::Internal("a call ended without an outcome".into());
            let failure = Failure::from(e);
            let make: ToPython = Box::new(move |py| Err(raise(py, &failure)));
            self.inner.outcomes.push(Outcome { token: self.token, make });
        }
    }
}

/// The calls of one event loop, over any number of engines.
#[pyclass(frozen, weakref)]
pub(crate) struct Calls {
    pub inner: Arc<Inner>,
}

impl Calls {
    /// The call with this token.
    pub fn call(&self, token: u64) -> Call {
        Call::new(&self.inner, token)
    }

    /// A callback that resolves this token with `None`; dropping it does nothing.
    pub fn waker(&self, token: u64) -> impl Fn() + Send + Sync + use<> {
        let inner = self.inner.clone();
        move || Call::new(&inner, token).wake()
    }

    /// Keeps what cancels the wait of this token, until the loop calls `cancel`.
    pub fn set_wait(
        &self,
        token: u64,
        shared: &Arc<Shared>,
        cancel: impl FnOnce() + Send + 'static,
    ) {
        let cancel: CancelFn = Box::new(cancel);
        self.inner.waits.lock().insert(token, ProcessOwned::new(shared.clone(), cancel));
    }

    /// Stages an append. Returns its answer if the append completes in this call.
    fn stage(
        &self,
        py: Python<'_>,
        token: u64,
        (shared, topic): (&Shared, &str),
        run: impl FnOnce(&mut dyn FnMut(&Append<'_>) -> Result<(), Failure>) -> Result<(), Failure>
        + Send,
    ) -> PyResult<Option<Ack>> {
        let inner = self.inner.clone();
        let (done, left) = completion_pair(move |outcome: topics_engine::Result<Appended>| {
            let show = |py: Python<'_>, a: Appended| Ok(ack(&a).into_pyobject(py)?.into());
            Call::new(&inner, token).complete(outcome.map_err(Failure::from), show);
        });
        let mut done: Option<Completion<Appended>> = Some(Box::new(done));
        let mut stage = |append: &Append<'_>| {
            let engine = shared.engine()?;
            let Some(done) = done.take() else { return Ok(()) };
            if engine.append_async(topic, append, done) {
                engine.drive();
            }
            Ok(())
        };
        let staged = py.detach(|| catch_panics(|| run(&mut stage)));
        let now = left();
        staged.map_err(|e| raise(py, &e))?;
        now.map(|outcome| outcome.map_err(|e| raise(py, &e.into())))
            .transpose()
            .map(|a| a.map(|a| ack(&a)))
    }
}

#[pymethods]
impl Calls {
    #[new]
    fn new() -> PyResult<Self> {
        let inner = Inner {
            outcomes: SignalQueue::new()?,
            // pyo3 turns the panics of these jobs into exceptions.
            pool: WorkerPool::new(Arc::default()),
            running: AtomicUsize::new(0),
            waits: Mutex::default(),
            pid: std::process::id(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    #[getter]
    fn fd(&self) -> i32 {
        self.inner.outcomes.fd()
    }

    #[getter]
    fn running(&self) -> usize {
        if self.inner.forked() { 0 } else { self.inner.running.load(Ordering::Acquire) }
    }

    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items = PyList::empty(py);
        let mut failed = Ok(());
        self.inner.outcomes.drain(|o| {
            let value = (o.make)(py).unwrap_or_else(|e| e.into_value(py).into_any());
            let appended = items.append((o.token, value));
            if failed.is_ok() {
                failed = appended;
            }
        });
        failed.map(|()| items)
    }

    /// Runs a verb on a worker thread, or on a thread of its own if it may take `long`.
    #[pyo3(signature = (token, verb, args, kwargs, long=false))]
    fn run(
        &self,
        token: u64,
        verb: Py<PyAny>,
        args: Py<PyTuple>,
        kwargs: Py<PyDict>,
        long: bool,
    ) -> PyResult<()> {
        let call = self.call(token);
        let inner = self.inner.clone();
        inner.running.fetch_add(1, Ordering::AcqRel);
        let job = move || {
            // Counted as running until the thread no longer needs the interpreter.
            let _running = Running(inner);
            let outcome = Python::attach(|py| {
                let outcome = verb.call(py, args.bind(py), Some(kwargs.bind(py)));
                // Python objects must be dropped while the interpreter is attached.
                drop((verb, args, kwargs));
                outcome
            });
            call.resolve(Box::new(move |_| outcome));
        };
        if long {
            std::thread::Builder::new().name("topics-call".into()).spawn(job)?;
        } else {
            self.inner.pool.run(Box::new(job));
        }
        Ok(())
    }

    fn append(
        &self,
        py: Python<'_>,
        token: u64,
        engine: &Engine,
        topic: &str,
        records: &Bound<'_, PySequence>,
        options: WriteOptions,
    ) -> PyResult<Option<Ack>> {
        let held = py_records(records)?;
        let records = records_of(&held)?;
        let args = AppendArgs::from(&options);
        self.stage(py, token, (&engine.shared, topic), |stage| {
            args.with_append(&check_all(&records)?, stage)?
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn append_batch(
        &self,
        py: Python<'_>,
        token: u64,
        engine: &Engine,
        topic: &str,
        records: &Bound<'_, PyList>,
        tag: Option<&str>,
        options: WriteOptions,
    ) -> PyResult<Option<Ack>> {
        let held = raw(records)?;
        let records = raw_records(&held, tag);
        let args = AppendArgs::from(&options);
        self.stage(py, token, (&engine.shared, topic), |stage| args.with_append(&records, stage)?)
    }

    /// Claims jobs; resolves the token with a `PendingJobs`, after at most 30 s.
    #[allow(clippy::too_many_arguments)]
    fn claim(
        &self,
        py: Python<'_>,
        token: u64,
        engine: &Engine,
        queue: &str,
        node: &str,
        max: usize,
        lease_ms: Option<u64>,
        wait: f64,
    ) -> PyResult<()> {
        let how = (max, lease_ms, wait);
        queue::claim_later(py, (self, token), &engine.shared, queue, node, how)
    }

    /// Reads with a consumer; resolves the token with a `PendingBatch`.
    #[allow(clippy::too_many_arguments)]
    fn consumer_read(
        &self,
        py: Python<'_>,
        token: u64,
        engine: &Engine,
        topic: &str,
        consumer: &str,
        reader: Option<&str>,
        how: consumer::ReadArgs,
    ) -> PyResult<()> {
        let of = (topic, consumer, reader);
        consumer::read_later(py, (self, token), &engine.shared, of, &how)
    }

    /// Ends the wait of a token, and forgets it. Idempotent.
    fn cancel(&self, py: Python<'_>, token: u64) {
        if self.inner.forked() {
            return;
        }
        let wait = self.inner.waits.lock().remove(&token);
        if let Some(cancel) = wait.and_then(ProcessOwned::take) {
            py.detach(cancel);
        }
    }

    /// Resolves the token when a record after `seq` exists, or when the topic is deleted or the engine
    /// closed.
    fn head(
        &self,
        py: Python<'_>,
        token: u64,
        engine: &Engine,
        topic: String,
        seq: u64,
    ) -> PyResult<()> {
        let wake = self.waker(token);
        let shared = engine.shared.clone();
        let e = shared.engine().map_err(|e| raise(py, &e))?.clone();
        let entry = py.detach(|| e.on_head(&topic, seq, Box::new(wake)));
        let id = entry.map_err(|e| raise(py, &e.into()))?;
        self.set_wait(token, &shared, move || e.cancel_on_head(&topic, id));
        Ok(())
    }
}
