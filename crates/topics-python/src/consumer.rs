//! Consumers in process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use topics_engine::{ConsumerMode, ConsumerRead, ConsumerStart, SeekTo};
use topics_wire::Failure;

use crate::args::match_of;
use crate::batch::Batch;
use crate::engine::Engine;
use crate::errors::raise;
use crate::shared::{SIGNAL_SLICE, Shared};

/// A reader with a stored cursor.
#[pyclass(frozen)]
pub(crate) struct Consumer {
    shared: Arc<Shared>,
    consumer: topics_engine::Consumer,
}

fn invalid<T>(py: Python<'_>, text: String) -> PyResult<T> {
    Err(raise(py, &Failure::invalid(text)))
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
            Some(m) => return invalid(py, format!("mode {m:?}: at_least_once or at_most_once")),
        };
        let start = match start {
            "start" => ConsumerStart::Start,
            "end" => ConsumerStart::End,
            s => return invalid(py, format!("start {s:?}: start or end")),
        };
        let shared = engine.shared.clone();
        let open = |e: &topics_engine::Engine| e.consumer(topic, name, mode, start, auto_commit);
        let consumer = shared.run(py, |e| Ok(open(e)?))?;
        Ok(Self { shared, consumer })
    }

    #[getter]
    fn mode(&self) -> &'static str {
        self.consumer.mode().as_str()
    }

    #[getter]
    fn cursor(&self, py: Python<'_>) -> PyResult<u64> {
        self.shared.run(py, |_| Ok(self.consumer.cursor()?))
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
        let wait = Duration::try_from_secs_f64(wait.max(0.0)).unwrap_or(Duration::MAX);
        let deadline = Instant::now().checked_add(wait);
        loop {
            let left =
                deadline.map_or(SIGNAL_SLICE, |d| d.saturating_duration_since(Instant::now()));
            let req = ConsumerRead {
                max_bytes,
                max_records,
                checkpoint,
                wait: left.min(SIGNAL_SLICE),
                matching: matching.clone(),
                fail_if_busy,
            };
            let batch = self.shared.run(py, |_| Ok(self.consumer.read(&req)?))?;
            if !batch.is_empty() || batch.tombstone.is_some() || left.is_zero() {
                return Ok(Batch(batch));
            }
            py.check_signals()?;
        }
    }

    fn commit(&self, py: Python<'_>, seq: u64) -> PyResult<()> {
        self.shared.run(py, |_| Ok(self.consumer.commit(seq)?))
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
            _ => return invalid(py, "seek to one of seq, ts, \"start\", \"end\"".into()),
        };
        self.shared.run(py, |_| Ok(self.consumer.seek(to)?))
    }
}
