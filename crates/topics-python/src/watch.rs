//! Watches of an embedded engine.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use topics_engine::{
    Closer, Error, Event, NodeFilter, ReadBatch, ReadFrom, TopicMatch, WatchOptions, WatchRequest,
    WatchStart,
};
use topics_wire::Failure;

use crate::batch::Batch;
use crate::calls::Calls;
use crate::errors::raise;
use crate::shared::{Shared, wait_in_slices};

/// `(name, after, tail, topic_id)`; without `after` and `tail` the watch starts at the earliest record.
pub(crate) type Start = (String, Option<u64>, Option<u64>, Option<u64>);

/// `(gap_from, gap_to, reason, missed_estimate, earliest_seq, head_seq)`.
type GapRow = (u64, u64, &'static str, u64, u64, u64);

/// `(kind, topic, topic_id, records, gap, seq)`.
type WatchEvent = (&'static str, String, u64, Option<Batch>, Option<GapRow>, Option<u64>);

/// An open watch.
#[pyclass(frozen)]
pub(crate) struct Watch {
    /// Locked by the one thread that waits in it.
    inner: Mutex<Option<topics_engine::Watch>>,
    closer: Closer,
    shared: Arc<Shared>,
}

fn starts(given: Vec<Start>) -> Vec<(String, WatchStart)> {
    let start = |(name, after, tail, topic_id): Start| {
        let from = match (after, tail) {
            (Some(seq), _) => ReadFrom::After(seq),
            (None, Some(n)) => ReadFrom::Tail(n),
            (None, None) => ReadFrom::Earliest,
        };
        (name, WatchStart { from, topic_id })
    };
    given.into_iter().map(start).collect()
}

/// Options of a watch.
pub(crate) struct WatchArgs {
    pub lenient: bool,
    pub skip_nodes: NodeFilter,
    pub matching: Option<TopicMatch>,
    pub limit: usize,
    pub max_batch_bytes: usize,
    pub strong: bool,
    pub queue_frames: usize,
    pub queue_bytes: usize,
    pub stall_ms: Option<u64>,
}

impl Watch {
    pub(crate) fn open(
        py: Python<'_>,
        shared: &Arc<Shared>,
        topics: Vec<Start>,
        patterns: Vec<Start>,
        args: WatchArgs,
    ) -> PyResult<Self> {
        let options = WatchOptions {
            skip_nodes: args.skip_nodes,
            matching: args.matching,
            limit: args.limit,
            max_batch_bytes: args.max_batch_bytes,
            strong: args.strong,
            ..WatchOptions::default()
        };
        let req = WatchRequest {
            topics: starts(topics),
            patterns: starts(patterns),
            lenient: args.lenient,
            options,
            queue_frames: args.queue_frames,
            queue_bytes: args.queue_bytes,
            heartbeat_ms: None,
            stall_ms: args.stall_ms,
            paced: false,
        };
        let watch = shared.run(py, |e| Ok(e.watch(&req)?))?;
        let closer = watch.closer();
        Ok(Self { inner: Mutex::new(Some(watch)), closer, shared: shared.clone() })
    }
}

#[pymethods]
impl Watch {
    /// The next event, or `None` when the timeout passed. Handles signals while it waits.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<WatchEvent>> {
        let next = |slice| self.shared.run(py, |_| self.with_watch(|w| w.next(Some(slice))));
        let event = wait_in_slices(py, timeout, Option::is_none, next)?;
        event.map(|event| watch_event(py, event)).transpose()
    }

    /// The next event if one is available; otherwise the call is resolved when to poll again.
    fn poll(&self, py: Python<'_>, calls: &Calls, token: u64) -> PyResult<Option<WatchEvent>> {
        let wake = calls.waker(token);
        let next = |w: &mut topics_engine::Watch| {
            w.on_ready(wake);
            w.try_next()
        };
        let event = self.shared.run(py, |_| self.with_watch(next))?;
        event.map(|event| watch_event(py, event)).transpose()
    }

    /// Ends the watch, from any thread; a thread that waits in `next` gets `Closed`. Idempotent.
    fn close(&self, py: Python<'_>) {
        if self.shared.forked() {
            return;
        }
        py.detach(|| {
            self.closer.close();
            if let Ok(mut inner) = self.inner.try_lock() {
                drop(inner.take());
            }
        });
    }

    /// `(topic, topic_id, cursor)` after what `next` returned.
    fn cursors(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64)>> {
        self.shared.run(py, |_| {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let watch = inner.as_ref().ok_or_else(|| Failure::from(Error::Closed))?;
            Ok(watch
                .cursors()
                .into_iter()
                .map(|(name, id, at)| (name.to_string(), id, at))
                .collect())
        })
    }
}

impl Watch {
    fn with_watch(
        &self,
        next: impl FnOnce(&mut topics_engine::Watch) -> topics_engine::Result<Option<Event>>,
    ) -> Result<Option<Event>, Failure> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = inner.as_mut().ok_or_else(|| Failure::from(Error::Closed))?;
        let next = next(watch);
        if matches!(next, Err(Error::Closed)) {
            drop(inner.take());
        }
        Ok(next?)
    }
}

fn watch_event(py: Python<'_>, event: Event) -> PyResult<WatchEvent> {
    let plain = |kind, topic: &str, id, seq| (kind, topic.to_owned(), id, None, None, seq);
    Ok(match event {
        Event::Records(frame) => {
            let batch: ReadBatch = frame.batch().clone();
            let (id, next) = (batch.topic_id, batch.next_from_seq);
            ("records", frame.topic().to_string(), id, Some(Batch(batch)), None, Some(next))
        }
        Event::Tombstone { topic, topic_id, tombstone: t, reason } => {
            let gap = (t.gap_from, t.gap_to, reason, t.missed_estimate, t.earliest_seq, t.head_seq);
            ("gap", topic.to_string(), topic_id, None, Some(gap), Some(t.cursor()))
        }
        Event::CaughtUp { topic, topic_id, seq } => plain("caught-up", &topic, topic_id, Some(seq)),
        Event::TopicDeleted { topic, topic_id } => plain("topic-deleted", &topic, topic_id, None),
        Event::Failed { error, .. } => return Err(raise(py, &error.into())),
        other => {
            let e = Error::Internal(format!("unexpected watch event: {other:?}"));
            return Err(raise(py, &e.into()));
        }
    })
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.shared.forked() {
            // Dropping it would touch locks of the parent.
            let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(inner.take());
        }
    }
}
