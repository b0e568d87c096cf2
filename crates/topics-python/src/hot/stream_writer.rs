//! Writes streams to their transports while the loop drains its queue, without a task for each event.
//!
//! A writer starts when the application has sent the response head of a stream. It writes chunks as
//! the application's server would, and calls `ended` at the end of the stream; then the application
//! continues.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use topics_service::{NextAction, PULL_BYTES, StreamOutput};

use crate::bridge::LoopEvent;
use crate::http::Http;

/// Streams that are pulled during one release of the GIL; few, so that the first stream of a large
/// fan-out is written early.
const PULLED_TOGETHER: usize = 16;

/// Bytes that are written to streams in one turn of the loop; the other streams wait for the next one.
/// The requests of all connections are served between two turns.
const TURN_BYTES: u64 = 1 << 20;

/// Bytes that a stream takes of the budget of a turn at least: the time of a write of few bytes.
const MIN_WRITE: u64 = 2 << 10;

/// The writers of a loop.
#[derive(Default)]
pub(crate) struct StreamWriters {
    /// By the token of their stream.
    by_token: Mutex<HashMap<u64, Py<StreamWriter>>>,
    /// Those that have output, the one that has waited longest first.
    ready: Mutex<VecDeque<Py<StreamWriter>>>,
}

impl StreamWriters {
    /// The writer of a stream.
    fn of(&self, py: Python<'_>, token: u64) -> Option<Py<StreamWriter>> {
        self.by_token.lock().get(&token).map(|writer| writer.clone_ref(py))
    }

    /// The next streams of a turn in which this many bytes are left.
    fn next(&self, left: u64) -> Vec<Py<StreamWriter>> {
        let mut ready = self.ready.lock();
        let fitting = usize::try_from(left.div_ceil(PULL_BYTES as u64)).unwrap_or(PULLED_TOGETHER);
        let count = ready.len().min(fitting).min(PULLED_TOGETHER);
        ready.drain(..count).collect()
    }

    /// Adds a stream that has output. It waits once, however often it is woken.
    fn add_ready(&self, writer: Py<StreamWriter>) {
        if !writer.get().is_ready.swap(true, Ordering::Relaxed) {
            self.ready.lock().push_back(writer);
        }
    }

    /// Writes the output of the streams in `due` that have a writer, and removes them from `due`; as many
    /// as one turn of the loop may take. Returns whether others wait for the next turn.
    pub fn run(&self, py: Python<'_>, due: &mut Vec<u64>) -> bool {
        due.retain(|&token| match self.of(py, token) {
            Some(writer) => {
                self.add_ready(writer);
                false
            }
            None => true,
        });
        let mut left = TURN_BYTES;
        loop {
            let mut some = self.next(left);
            if some.is_empty() {
                return !self.ready.lock().is_empty();
            }
            some.retain(|writer| {
                writer.get().is_ready.store(false, Ordering::Relaxed);
                writer.get().may_write()
            });
            let writers: Vec<&StreamWriter> = some.iter().map(Py::get).collect();
            let pulled = py.detach(|| {
                let pull = |writer: &StreamWriter| {
                    let http = writer.http.get();
                    let pulled = http.pull_stream(writer.token);
                    // Counted here, because the transport counts it only when it is written.
                    let size = pulled.as_ref().map_or(0, StreamOutput::size);
                    http.queue.unsent.add(size);
                    (pulled, size)
                };
                writers.into_iter().map(pull).collect::<Vec<_>>()
            });
            for (writer, (pulled, size)) in some.iter().zip(pulled) {
                match writer.get().write(py, pulled) {
                    // Behind the others, in this turn if bytes are left.
                    Ok(true) => self.add_ready(writer.clone_ref(py)),
                    Ok(false) => {}
                    // An error must not lose the events of the other streams.
                    Err(e) => {
                        e.write_unraisable(py, None);
                        writer.get().end(py, false);
                    }
                }
                writer.get().http.get().queue.unsent.remove(size);
                left = left.saturating_sub(size.max(MIN_WRITE));
            }
        }
    }
}

/// Writes one stream to one transport.
#[pyclass(frozen)]
pub(crate) struct StreamWriter {
    http: Py<Http>,
    token: u64,
    transport: Py<PyAny>,
    /// `ended(complete)` is called once, when the writer has written its last byte.
    ended: Mutex<Option<Py<PyAny>>>,
    paused: AtomicBool,
    /// The stream woke while the transport was paused.
    output_waiting: AtomicBool,
    /// The stream waits to be pulled.
    is_ready: AtomicBool,
}

#[pymethods]
impl StreamWriter {
    #[new]
    fn new(http: Py<Http>, token: u64, transport: Py<PyAny>, ended: Py<PyAny>) -> Self {
        Self {
            http,
            token,
            transport,
            ended: Mutex::new(Some(ended)),
            paused: AtomicBool::new(false),
            output_waiting: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
        }
    }

    /// Starts writing.
    fn begin(slf: &Bound<'_, Self>) {
        let me = slf.get();
        me.http.get().queue.writers.by_token.lock().insert(me.token, slf.clone().unbind());
        me.schedule_pull();
    }

    /// The transport's buffer is full.
    fn pause(&self) {
        self.paused.store(true, Ordering::Relaxed);
    }

    /// The transport's buffer has space again.
    fn resume(&self) {
        self.paused.store(false, Ordering::Relaxed);
        if self.output_waiting.swap(false, Ordering::Relaxed) {
            self.schedule_pull();
        }
    }

    /// Stops writing without calling `ended`. Idempotent.
    fn close(&self) {
        self.unregister();
        let ended = self.ended.lock().take();
        drop(ended);
    }
}

impl StreamWriter {
    fn schedule_pull(&self) {
        self.http.get().queue.events.push(LoopEvent::Wake(self.token));
    }

    /// Removes this writer from its loop; the reference is dropped without the lock.
    fn unregister(&self) {
        let gone = self.http.get().queue.writers.by_token.lock().remove(&self.token);
        drop(gone);
    }

    fn may_write(&self) -> bool {
        let may = !self.paused.load(Ordering::Relaxed);
        if !may {
            self.output_waiting.store(true, Ordering::Relaxed);
        }
        may
    }

    /// Writes what was pulled. Returns whether the stream has more.
    fn write(&self, py: Python<'_>, pulled: Option<StreamOutput>) -> PyResult<bool> {
        let Some(StreamOutput { pieces, next }) = pulled else {
            self.end(py, false);
            return Ok(false);
        };
        let length: usize = pieces.iter().map(Bytes::len).sum();
        if length > 0 {
            // Errors of a lost connection are ignored: the server tells the application.
            let bytes = chunk(py, &pieces, length)?;
            let _ = self.transport.call_method1(py, intern!(py, "write"), (bytes,));
        }
        match next {
            NextAction::More => return Ok(self.may_write()),
            NextAction::Wait | NextAction::Full => {}
            NextAction::End => self.end(py, true),
            NextAction::Fail => self.end(py, false),
        }
        Ok(false)
    }

    fn end(&self, py: Python<'_>, whole: bool) {
        self.unregister();
        let ended = self.ended.lock().take();
        if let Some(Err(e)) = ended.map(|ended| ended.call1(py, (whole,))) {
            e.write_unraisable(py, None);
        }
    }
}

/// The pieces as one chunk.
fn chunk<'py>(py: Python<'py>, pieces: &[Bytes], length: usize) -> PyResult<Bound<'py, PyBytes>> {
    let (head, tail) = (format!("{length:x}\r\n"), b"\r\n");
    PyBytes::new_with(py, head.len() + length + tail.len(), |mut out| {
        for part in [head.as_bytes()].into_iter().chain(pieces.iter().map(Bytes::as_ref)) {
            let (to, rest) = out.split_at_mut(part.len());
            to.copy_from_slice(part);
            out = rest;
        }
        out.copy_from_slice(tail);
        Ok(())
    })
}
