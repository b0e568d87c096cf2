//! Consumers of an embedded engine.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{
    Completion, ConsumerMode, ConsumerRead, ConsumerStart, Error, ReadBatch, SeekTo,
};
use topics_wire::Failure;

use crate::args::match_of;
use crate::batch::Batch;
use crate::calls::{Calls, Inner};
use crate::engine::Engine;
use crate::errors::{catch_panics, raise};
use crate::shared::{ProcessOwned, or_fetch, read_fetching, wait_in_slices};
use crate::wait_handle::{WaitHandle, complete_read};

/// A reader with a stored cursor.
#[pyclass(frozen)]
pub(crate) struct Consumer {
    topic: String,
    name: String,
    mode: ConsumerMode,
    consumer: Arc<ProcessOwned<topics_engine::Consumer>>,
}

fn invalid<T>(py: Python<'_>, text: String) -> PyResult<T> {
    Err(raise(py, &Failure::invalid(text)))
}

/// Reads once. Attempts it again on a worker thread when a fetch of cold records has ended.
fn attempt_read(
    calls: &Arc<Inner>,
    consumer: &Arc<ProcessOwned<topics_engine::Consumer>>,
    req: ConsumerRead,
    done: Completion<ReadBatch>,
) {
    // A waiting read does not keep the threads of its calls.
    let (calls, again, asked) = (Arc::downgrade(calls), consumer.clone(), req.clone());
    let on_read = Arc::new(Mutex::new(Some(done)));
    let done = on_read.clone();
    let completed = move |outcome: topics_engine::Result<ReadBatch>| {
        let Some(done) = done.lock().take() else { return };
        let Err(Error::ColdPending(fetch)) = outcome else { return done(outcome) };
        fetch.on_end(Box::new(move |ended| match (ended, calls.upgrade()) {
            (Ok(()), Some(calls)) => {
                let pool = calls.clone();
                let attempt = move || attempt_read(&calls, &again, asked, done);
                pool.pool.run(Box::new(attempt));
            }
            (Ok(()), None) => done(Err(Error::Closed)),
            (Err(e), _) => done(Err(e.into())),
        }));
    };
    let mut completed = Some(Box::new(completed));
    let attempt = catch_panics(|| {
        consumer.call(|c| {
            completed.take().into_iter().for_each(|completed| c.read_async(&req, completed));
            Ok(())
        })
    });
    if attempt.is_err()
        && let Some(done) = on_read.lock().take()
    {
        done(Err(Error::Closed));
    }
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
        let consumer = shared.run(py, |e| Ok(open(e)?.into_reader()))?;
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
                after: None,
            };
            read_fetching(py, || self.consumer.run(py, |c| or_fetch(c.read_present(&req))))
        };
        let nothing = |b: &ReadBatch| b.is_empty() && b.tombstone.is_none();
        wait_in_slices(py, Some(wait), nothing, read).map(Batch)
    }

    /// Reads once without waiting, on a worker thread; resolves the call with a `PendingBatch`.
    #[allow(clippy::too_many_arguments)]
    fn read_later(
        &self,
        py: Python<'_>,
        calls: &Calls,
        token: u64,
        max_bytes: usize,
        max_records: usize,
        checkpoint: bool,
        r#match: Option<&str>,
    ) -> PyResult<()> {
        let matching = match_of(py, r#match)?;
        let (wait, fail_if_busy) = (Duration::ZERO, true);
        let req = ConsumerRead {
            max_bytes,
            max_records,
            checkpoint,
            wait,
            matching,
            fail_if_busy,
            after: None,
        };
        let consumer = self.consumer.clone();
        let done = complete_read(calls.call(token), checkpoint.then(|| consumer.clone()));
        let inner = calls.inner.clone();
        calls.inner.pool.run(Box::new(move || attempt_read(&inner, &consumer, req, done)));
        Ok(())
    }

    /// Resolves the call when the reader lock of `at_most_once` is free.
    fn reader_lock(&self, py: Python<'_>, calls: &Calls, token: u64) -> PyResult<()> {
        let wake = calls.waker(token);
        self.consumer.run(py, |c| Ok(c.on_reader_lock(wake)?))
    }

    /// Resolves the call when a record after `seq` exists, or when the topic is deleted or the engine
    /// closed.
    fn more(&self, py: Python<'_>, calls: &Calls, token: u64, seq: u64) -> PyResult<WaitHandle> {
        let wake = calls.waker(token);
        let id = self.consumer.run(py, |c| Ok(c.on_more(seq, wake)))?;
        let consumer = self.consumer.clone();
        let cancel = move || consumer.get().into_iter().for_each(|c| c.cancel_more(id));
        Ok(WaitHandle::new(self.consumer.shared().clone(), cancel))
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
