//! Consumers of an embedded engine.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{ConsumerMode, ConsumerRead, ConsumerStart, Error, ReadBatch, SeekTo, WaitId};
use topics_wire::Failure;

use crate::args::match_of;
use crate::batch::Batch;
use crate::calls::Calls;
use crate::engine::Engine;
use crate::errors::raise;
use crate::shared::{ProcessOwned, or_fetch, read_fetching, seconds, wait_in_slices};
use crate::wait_handle::{WaitHandle, complete_read};

/// A reader with a stored cursor.
#[pyclass(frozen)]
pub(crate) struct Consumer {
    topic: String,
    name: String,
    mode: ConsumerMode,
    consumer: Arc<ProcessOwned<Arc<topics_engine::Consumer>>>,
}

fn invalid<T>(py: Python<'_>, text: String) -> PyResult<T> {
    Err(raise(py, &Failure::invalid(text)))
}

/// A read that a worker thread begins, and its cancellation.
enum PendingRead {
    New,
    Begun(WaitId),
    Cancelled,
}

#[pymethods]
impl Consumer {
    #[new]
    #[pyo3(signature = (engine, topic, name, mode=None, start="start", auto_commit=false))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        topic: &str,
        name: &str,
        mode: Option<&str>,
        start: &str,
        auto_commit: bool,
    ) -> PyResult<Self> {
        let mode = match mode {
            None => None,
            Some("at_least_once") => Some(ConsumerMode::AtLeastOnce),
            Some("at_most_once") => Some(ConsumerMode::AtMostOnce),
            Some(m) => {
                return invalid(
                    py,
                    format!("mode must be at_least_once or at_most_once, not {m:?}"),
                );
            }
        };
        let start = match start {
            "start" => ConsumerStart::Start,
            "end" => ConsumerStart::End,
            s => return invalid(py, format!("start must be start or end, not {s:?}")),
        };
        let shared = engine.shared.clone();
        let open = |e: &topics_engine::Engine| e.consumer(topic, name, mode, start, auto_commit);
        let consumer = shared.run(py, |e| Ok(Arc::new(open(e)?.into_reader())))?;
        let mode = consumer.mode();
        let (topic, name) = (topic.to_owned(), name.to_owned());
        Ok(Self { topic, name, mode, consumer: Arc::new(ProcessOwned::new(shared, consumer)) })
    }

    #[getter]
    fn mode(&self) -> &'static str {
        self.mode.as_str()
    }

    #[getter]
    fn cursor(&self, py: Python<'_>) -> PyResult<u64> {
        self.consumer.run(py, |c| Ok(c.cursor()?))
    }

    /// The fence of the handle, for its commits in transactions; `None` with `at_most_once`.
    #[getter]
    fn reader(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.consumer.run(py, |c| Ok(c.fence()))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (max_bytes=1 << 20, max_records=2000, checkpoint=true, wait=0.0,
        r#match=None, fail_if_busy=false))]
    fn read(
        &self,
        py: Python<'_>,
        max_bytes: usize,
        max_records: usize,
        checkpoint: bool,
        wait: f64,
        r#match: Option<&str>,
        fail_if_busy: bool,
    ) -> PyResult<Batch> {
        let matching = match_of(py, r#match)?;
        let read = |wait| {
            let matching = matching.clone();
            let req = ConsumerRead {
                max_bytes,
                max_records,
                checkpoint,
                wait,
                matching,
                fail_if_busy,
                ..ConsumerRead::default()
            };
            read_fetching(py, || self.consumer.run(py, |c| or_fetch(c.read_present(&req))))
        };
        let nothing = |b: &ReadBatch| b.is_empty() && b.tombstone.is_none();
        wait_in_slices(py, Some(wait), nothing, read).map(Batch)
    }

    /// Reads as `read` does; resolves the call with a `PendingBatch`. A worker thread begins it, because the
    /// first read may wait for the disk.
    #[allow(clippy::too_many_arguments)]
    fn read_later(
        &self,
        py: Python<'_>,
        calls: &Calls,
        token: u64,
        max_bytes: usize,
        max_records: usize,
        checkpoint: bool,
        wait: f64,
        r#match: Option<&str>,
        fail_if_busy: bool,
    ) -> PyResult<WaitHandle> {
        let matching = match_of(py, r#match)?;
        let wait = seconds(wait);
        let req = ConsumerRead {
            max_bytes,
            max_records,
            checkpoint,
            wait,
            matching,
            fail_if_busy,
            ..ConsumerRead::default()
        };
        let consumer = self.consumer.clone();
        let done = complete_read(calls.call(token), checkpoint.then(|| consumer.clone()));
        let state = Arc::new(Mutex::new(PendingRead::New));
        let (begun, shared) = (state.clone(), self.consumer.shared().clone());
        let cancel_begun = {
            let shared = shared.clone();
            move |id| {
                if let Ok(engine) = shared.engine() {
                    engine.cancel_wait(id);
                }
            }
        };
        let cancel_late = cancel_begun.clone();
        calls.inner.pool.run(Box::new(move || {
            if matches!(*begun.lock(), PendingRead::Cancelled) {
                return;
            }
            let Ok(reader) = consumer.call(|c| Ok(c.clone())) else {
                return done(Err(Error::Closed));
            };
            let id = reader.read_async(req, done);
            let before = std::mem::replace(&mut *begun.lock(), PendingRead::Begun(id));
            if matches!(before, PendingRead::Cancelled) {
                cancel_late(id);
            }
        }));
        let cancel = move || {
            if let PendingRead::Begun(id) =
                std::mem::replace(&mut *state.lock(), PendingRead::Cancelled)
            {
                cancel_begun(id);
            }
        };
        Ok(WaitHandle::new(shared, cancel))
    }

    fn commit(&self, py: Python<'_>, seq: u64) -> PyResult<()> {
        self.consumer.run(py, |c| Ok(c.commit(seq)?))
    }

    fn drop(&self, py: Python<'_>) -> PyResult<bool> {
        self.consumer.shared().run(py, |e| Ok(e.delete_consumer(&self.topic, &self.name)?))
    }

    #[pyo3(signature = (*, seq=None, ts=None, to=None))]
    fn seek(
        &self,
        py: Python<'_>,
        seq: Option<u64>,
        ts: Option<u64>,
        to: Option<&str>,
    ) -> PyResult<u64> {
        let to = match (seq, ts, to) {
            (Some(seq), None, None) => SeekTo::Seq(seq),
            (None, Some(ts), None) => SeekTo::Ts(ts),
            (None, None, Some("start")) => SeekTo::Start,
            (None, None, Some("end")) => SeekTo::End,
            _ => {
                return invalid(
                    py,
                    "a seek needs exactly one of seq, ts, \"start\" and \"end\"".into(),
                );
            }
        };
        self.consumer.run(py, |c| Ok(c.seek(to)?))
    }
}
