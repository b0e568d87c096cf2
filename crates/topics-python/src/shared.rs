//! The engine that Python objects share: closed once, unusable in a forked child; its waits react to
//! signals.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use topics_engine::{Engine, Error, Fetch, ReadBatch};
use topics_env::Env;
use topics_wire::Failure;

use crate::errors::{catch_panics, raise};
use crate::leases::LeaseSchedule;
use crate::local::LocalService;

/// Maximum delay of a signal by a wait.
pub(crate) const SIGNAL_SLICE: Duration = Duration::from_millis(100);

/// Converts a timeout in seconds; a value that is too large means no timeout.
pub(crate) fn seconds(wait: f64) -> Duration {
    Duration::try_from_secs_f64(wait.max(0.0)).unwrap_or(Duration::MAX)
}

/// Repeats a wait in slices, checking for signals between them, until the result is not `empty` or
/// the timeout has passed.
pub(crate) fn wait_in_slices<T>(
    py: Python<'_>,
    wait: Option<f64>,
    empty: impl Fn(&T) -> bool,
    mut attempt: impl FnMut(Duration) -> PyResult<T>,
) -> PyResult<T> {
    let deadline = wait.and_then(|s| Instant::now().checked_add(seconds(s)));
    loop {
        let left = deadline.map_or(SIGNAL_SLICE, |d| d.saturating_duration_since(Instant::now()));
        let found = attempt(left.min(SIGNAL_SLICE))?;
        if !empty(&found) || left.is_zero() {
            return Ok(found);
        }
        py.check_signals()?;
    }
}

/// Separates a read that needs a fetch of cold records from one that failed.
pub(crate) fn or_fetch(
    outcome: topics_engine::Result<ReadBatch>,
) -> Result<Result<ReadBatch, Arc<Fetch>>, Failure> {
    match outcome {
        Err(Error::ColdPending(fetch)) => Ok(Err(fetch)),
        outcome => Ok(Ok(outcome?)),
    }
}

/// Repeats a read until it needs no fetch of cold records; checks for signals during the fetches.
pub(crate) fn read_fetching(
    py: Python<'_>,
    mut read: impl FnMut() -> PyResult<Result<ReadBatch, Arc<Fetch>>>,
) -> PyResult<ReadBatch> {
    loop {
        let fetch = match read()? {
            Ok(batch) => return Ok(batch),
            Err(fetch) => fetch,
        };
        let wait = |slice| Ok(py.detach(|| fetch.wait_for(slice)));
        if let Some(Err(e)) = wait_in_slices(py, None, Option::is_none, wait)? {
            return Err(raise(py, &Error::from(e).into()));
        }
    }
}

/// The process that opened an engine first; 0 before that. A child inherits it.
static OPENED_BY: AtomicU32 = AtomicU32::new(0);

/// Refuses to work in a forked child of a process that had an engine open. The locks of this library
/// keep their waiting threads in one table, and those of the parent are in the child's copy: taking a
/// lock there may hang or crash.
pub(crate) fn check_not_forked() -> Result<(), Failure> {
    let pid = OPENED_BY.load(Ordering::Acquire);
    if pid == 0 || pid == std::process::id() {
        return Ok(());
    }
    let message = format!(
        "this process was forked from process {pid}, which had an engine open: no engine can be \
         opened here. Start the process with the method spawn \
         (multiprocessing.get_context(\"spawn\")), or fork before the first te.open"
    );
    Err(Failure { message, ..Failure::from(Error::Closed) })
}

/// Closes the locks of directories that a forked child inherits, so that it does not keep them locked.
#[pyfunction]
pub(crate) fn close_locks_in_child() {
    topics_env::real::close_locks_in_child();
}

/// Marks this process as one that has an engine open, or had, unless `open` fails.
pub(crate) fn opening<T>(open: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    // Before the first thread of the engine starts.
    let first = OPENED_BY.swap(std::process::id(), Ordering::AcqRel) == 0;
    let opened = open();
    if first && opened.is_err() {
        OPENED_BY.store(0, Ordering::Release);
    }
    opened
}

/// The engine, the process that opened it, and whether it was closed here.
pub(crate) struct Shared {
    engine: Option<Engine>,
    /// Begun by the first verb that needs it.
    local: OnceLock<LocalService>,
    pub env: Env,
    pub path: String,
    /// A directory that goes with the engine.
    temporary: Option<PathBuf>,
    pid: u32,
    closed: AtomicBool,
    /// The leases of jobs that were claimed through this engine.
    pub leases: LeaseSchedule,
}

impl Shared {
    pub fn new(engine: Engine, env: Env, path: String, temporary: Option<PathBuf>) -> Arc<Self> {
        let pid = std::process::id();
        let (closed, leases) = (AtomicBool::new(false), LeaseSchedule::new());
        let local = OnceLock::new();
        Arc::new(Self { engine: Some(engine), local, env, path, temporary, pid, closed, leases })
    }

    /// The verbs over bytes.
    pub fn local(&self) -> Result<&LocalService, Failure> {
        let engine = self.engine()?;
        Ok(self.local.get_or_init(|| LocalService::new(engine.clone(), &self.env)))
    }

    /// Closes the engine, and removes its temporary directory.
    pub fn close(&self) -> Result<(), Failure> {
        let outcome = self.engine()?.close();
        self.closed.store(true, Ordering::Release);
        self.leases.close();
        self.remove_temporary();
        Ok(outcome?)
    }

    fn remove_temporary(&self) {
        if let Some(directory) = &self.temporary {
            // What is left is in the system's folder of temporary files.
            let _ = std::fs::remove_dir_all(directory);
        }
    }

    /// Whether this process is a forked child of the one that opened the engine. A child has none of
    /// the engine's threads; they may hold locks forever, and the files belong to the parent.
    pub fn forked(&self) -> bool {
        std::process::id() != self.pid
    }

    pub fn closed(&self) -> bool {
        self.forked() || self.closed.load(Ordering::Acquire)
    }

    /// The engine, if this process may use it.
    pub fn engine(&self) -> Result<&Engine, Failure> {
        if self.forked() {
            let message = format!(
                "this engine was opened by process {}, of which this is a fork: start processes with \
                 the method spawn, or connect to a server here",
                self.pid
            );
            return Err(Failure { message, ..Failure::from(Error::Closed) });
        }
        match &self.engine {
            Some(engine) if !self.closed.load(Ordering::Acquire) => Ok(engine),
            _ => Err(Error::Closed.into()),
        }
    }

    /// Runs a verb without the GIL.
    pub fn run<T: Send>(
        &self,
        py: Python<'_>,
        verb: impl FnOnce(&Engine) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        py.detach(|| catch_panics(|| verb(self.engine()?))).map_err(|e| raise(py, &e))
    }

    /// Runs a long verb on a thread of its own, so that this thread handles signals. If a signal
    /// handler raises, the verb continues in the background.
    pub fn run_long<T: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        verb: impl FnOnce(&Engine) -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        let shared = self.clone();
        run_interruptible(py, move || verb(shared.engine()?))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.forked() {
            // Dropping it would touch locks and files of the parent.
            std::mem::forget((self.local.take(), self.engine.take()));
        } else {
            drop((self.local.take(), self.engine.take()));
            self.remove_temporary();
        }
    }
}

/// A value of the process that opened the engine. A forked child never drops it, because that would
/// touch locks and files of the parent.
pub(crate) struct ProcessOwned<T> {
    value: Option<T>,
    shared: Arc<Shared>,
}

impl<T> ProcessOwned<T> {
    pub fn new(shared: Arc<Shared>, value: T) -> Self {
        Self { value: Some(value), shared }
    }

    /// The value, unless this is a forked child.
    pub fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| !self.shared.forked())
    }

    /// Takes the value, unless this is a forked child.
    pub fn take(mut self) -> Option<T> {
        if self.shared.forked() { None } else { self.value.take() }
    }

    /// Runs a verb of the value without the GIL.
    pub fn run<R: Send>(
        &self,
        py: Python<'_>,
        verb: impl FnOnce(&T) -> Result<R, Failure> + Send,
    ) -> PyResult<R>
    where
        T: Sync,
    {
        self.shared.run(py, |_| self.call(verb))
    }

    /// Runs a verb of the value on a thread that does not hold the GIL.
    pub fn call<R>(&self, verb: impl FnOnce(&T) -> Result<R, Failure>) -> Result<R, Failure> {
        self.shared.engine()?;
        self.value.as_ref().ok_or_else(|| Failure::from(Error::Closed)).and_then(verb)
    }
}

impl<T> Drop for ProcessOwned<T> {
    fn drop(&mut self) {
        if self.shared.forked() {
            std::mem::forget(self.value.take());
        }
    }
}

/// Runs `work` on a thread of its own; this thread waits and handles signals.
pub(crate) fn run_interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = channel();
    let run = move || {
        // Sending fails if a signal handler raised and the caller has left.
        let _ = send.send(catch_panics(work));
    };
    let thread = std::thread::Builder::new().name("topics-call".into());
    thread.spawn(run).map_err(|e| {
        raise(py, &Failure::from(Error::Internal(format!("no thread for a call: {e}"))))
    })?;
    // A `Receiver` is not `Sync`; the detached closure needs the exclusive reference.
    let mut receive = receive;
    loop {
        let wait = &mut receive;
        match py.detach(move || wait.recv_timeout(SIGNAL_SLICE)) {
            Ok(outcome) => return outcome.map_err(|e| raise(py, &e)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let e = Error::Internal("the thread of a call ended without an outcome".into());
                return Err(raise(py, &e.into()));
            }
        }
    }
}
