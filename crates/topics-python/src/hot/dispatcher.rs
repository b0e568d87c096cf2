//! The state that the hot connections of a loop share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use topics_env::Clock;
use topics_env::real::SystemClock;
use topics_service::{Reply, Request, RequestCount, RequestCounts, UnsentBytes, Verb};
use topics_wire::Failure;
use topics_wire::hot::{ExtraHeaders, Head, ResponseBody, response_head};

use super::Connection;
use crate::errors::retry_after;
use crate::http::Http;
use crate::unsent;

/// Tokens of hot requests have this bit; those of the application do not.
const HOT: u64 = 1 << 63;

const OK: u16 = 200;
/// Bytes of a reply that may wait for the others of the loop's turn: sending a longer one costs more than
/// waking a core for it.
const SMALL_REPLY: usize = 4 << 10;

/// What a call has come to.
pub(super) enum Called {
    /// The reply, to be sent now.
    Replied(Reply),
    /// The reply is there, and comes with the token at the next flush.
    Finished,
    /// The reply comes with the token.
    Waiting,
}

/// The engine that serves hot requests.
struct Target {
    http: Py<Http>,
    /// Schedules a flush of staged writes at the end of the loop's tick.
    flush_soon: Py<PyAny>,
}

/// Checks API keys, counts the requests of each, and records the requests that were refused.
struct Keys {
    /// `admit(verb, authorization)`: the grant and the label of an authorized client.
    admit: Py<PyAny>,
    slots: Py<PyAny>,
    /// `refused(verb, name, label, request_id, transport)`: a request was answered with 403.
    refused: Py<PyAny>,
}

/// The right of a request to be served here.
pub(super) struct Admission {
    pub http: Py<Http>,
    grant: usize,
    /// The label whose slot the request holds; `None` without keys.
    pub label: Option<Py<PyAny>>,
}

/// The header lines of every response, and the list of uvicorn that they are built from.
#[derive(Default)]
struct CommonHeaders {
    list: Option<Py<PyAny>>,
    lines: Vec<u8>,
}

/// Answers hot requests while it is enabled; disabled at first.
#[pyclass(frozen)]
pub(crate) struct HotDispatcher {
    target: Mutex<Option<Target>>,
    status_lines: HashMap<u16, Vec<u8>>,
    loopback: bool,
    keys: Option<Keys>,
    /// The byte budget of all bodies: `take(size)` and `give(size)`.
    receiving: Py<PyAny>,
    unsent: Arc<UnsentBytes>,
    max_body: usize,
    /// Timeouts of each phase, in calls of `check_timeouts`.
    timeouts: Timeouts,
    /// `unacked_bytes(transport)`: bytes that the client has not acknowledged.
    unacked_bytes: Py<PyAny>,
    too_slow_head: Py<PyBytes>,
    too_slow_body: Py<PyBytes>,
    common: Mutex<CommonHeaders>,
    counts: RequestCounts,
    clock: SystemClock,
    token: AtomicU64,
    ticks: AtomicU64,
    connections: Mutex<HashMap<u64, Py<Connection>>>,
}

#[derive(Clone, Copy)]
pub(super) struct Timeouts {
    pub body: u64,
    pub first: u64,
    pub next: u64,
    pub close_linger: u64,
    /// A closing connection with unacknowledged bytes, before the ticks for the bytes are added.
    pub stall: u64,
    /// Unacknowledged bytes that add one tick.
    pub bytes: u64,
    /// How often the progress of a client is checked that has not read what was sent to it.
    pub room: u64,
    /// Bytes that it must have read since, when there is no room for other answers.
    pub progress: u64,
}

impl Timeouts {
    /// Ticks until a closing connection with this many unacknowledged bytes is aborted.
    pub fn closing(&self, unacked_bytes: usize) -> u64 {
        self.stall + unacked_bytes as u64 / self.bytes.max(1)
    }
}

#[pymethods]
impl HotDispatcher {
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (*, status_lines, loopback, max_body, receiving, unsent, timeouts, drain, room, unacked_bytes, too_slow_head, too_slow_body, bounds_ns, keys=None))]
    fn new(
        status_lines: &Bound<'_, PyDict>,
        loopback: bool,
        max_body: usize,
        receiving: Py<PyAny>,
        unsent: &unsent::UnsentBytes,
        timeouts: (u64, u64, u64, u64),
        drain: (u64, u64),
        room: (u64, u64),
        unacked_bytes: Py<PyAny>,
        too_slow_head: Py<PyBytes>,
        too_slow_body: Py<PyBytes>,
        bounds_ns: Vec<u64>,
        keys: Option<(Py<PyAny>, Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<Self> {
        let (body, first, next, close_linger) = timeouts;
        let (stall, bytes) = drain;
        let (room, progress) = room;
        Ok(Self {
            target: Mutex::default(),
            status_lines: status_lines.extract()?,
            loopback,
            keys: keys.map(|(admit, slots, refused)| Keys { admit, slots, refused }),
            receiving,
            unsent: unsent.0.clone(),
            max_body,
            timeouts: Timeouts { body, first, next, close_linger, stall, bytes, room, progress },
            unacked_bytes,
            too_slow_head,
            too_slow_body,
            common: Mutex::default(),
            counts: RequestCounts::new(bounds_ns),
            clock: SystemClock,
            token: AtomicU64::new(HOT),
            ticks: AtomicU64::new(0),
            connections: Mutex::default(),
        })
    }

    /// From now on `http` answers hot requests.
    fn enable(&self, http: Py<Http>, flush_soon: Py<PyAny>) {
        *self.target.lock() = Some(Target { http, flush_soon });
    }

    /// From now on the application answers every request; a pending reply is the last of its
    /// connection.
    fn disable(&self, py: Python<'_>) {
        let was = self.target.lock().take();
        drop(was);
        for connection in self.all(py) {
            connection.get().close_after_reply();
        }
    }

    /// The requests that were answered here, by verb and status: nanoseconds in all, and how many
    /// there are in each bucket of durations.
    fn counts(&self) -> Vec<RequestCount> {
        self.counts.rows()
    }

    /// Counts one tick, and closes the connections whose client is too slow.
    fn check_timeouts(&self, py: Python<'_>) {
        let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        for connection in self.all(py) {
            connection.get().check_timeouts(py, self, now);
        }
    }
}

impl HotDispatcher {
    /// The time at which a request begins.
    pub(super) fn now_ns(&self) -> u64 {
        self.clock.mono_ns()
    }

    /// Counts a request that began at `start_ns`.
    pub(super) fn count(&self, verb: &'static str, status: u16, start_ns: u64) {
        self.counts.add(verb, status, self.now_ns().saturating_sub(start_ns));
    }

    pub(super) fn now(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    fn all(&self, py: Python<'_>) -> Vec<Py<Connection>> {
        self.connections.lock().values().map(|c| c.clone_ref(py)).collect()
    }

    /// Bytes that the client of a transport has not acknowledged; 0 when that is unknown.
    pub(super) fn unacked_bytes(&self, py: Python<'_>, transport: &Py<PyAny>) -> usize {
        let size = self.unacked_bytes.call1(py, (transport,));
        size.and_then(|size| size.extract(py)).unwrap_or(0)
    }

    /// The bytes of answers that their clients have not taken.
    pub(super) fn unsent(&self) -> &UnsentBytes {
        &self.unsent
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    pub(super) fn register(&self, id: u64, connection: Py<Connection>) {
        self.connections.lock().insert(id, connection);
    }

    pub(super) fn unregister(&self, id: u64) {
        let gone = self.connections.lock().remove(&id);
        drop(gone);
    }

    pub(super) fn next_id(&self) -> u64 {
        self.token.fetch_add(1, Ordering::Relaxed)
    }

    /// Admits a request; `None` leaves it to the application.
    pub(super) fn admit(&self, py: Python<'_>, head: &Head<'_>) -> Option<Admission> {
        if head.length > self.max_body || (self.loopback && !is_loopback(head.host)) {
            return None;
        }
        let http = self.target.lock().as_ref().map(|target| target.http.clone_ref(py))?;
        let Some(keys) = &self.keys else {
            return Some(Admission { http, grant: 0, label: None });
        };
        // The application removes a key from the query.
        if head.query.windows(6).any(|w| w == b"token=") {
            return None;
        }
        let (verb, given) = (head.verb, head.authorization?);
        let client = keys.admit.call1(py, (verb, PyBytes::new(py, given)));
        match client.and_then(|client| client.extract::<Option<(usize, Py<PyAny>)>>(py)) {
            Ok(client) => {
                client.map(|(grant, label)| Admission { http, grant, label: Some(label) })
            }
            Err(e) => {
                e.write_unraisable(py, None);
                None
            }
        }
    }

    /// Reports a request that was answered with 403 for the audit log. The engine checks the rights of
    /// a key before it accepts a request, so such an answer never comes later.
    pub(super) fn record_refusal(
        &self,
        py: Python<'_>,
        admission: &Admission,
        head: &Head<'_>,
        transport: Option<Py<PyAny>>,
    ) {
        let (Some(keys), Some(label)) = (&self.keys, &admission.label) else { return };
        let id = PyBytes::new(py, head.request_id.unwrap_or_default());
        let request = (head.verb, head.name, label, id, transport);
        if let Err(e) = keys.refused.call1(py, request) {
            e.write_unraisable(py, None);
        }
    }

    /// Calls `take` or `give` of the request slots of a label.
    fn slot(&self, py: Python<'_>, label: &Py<PyAny>, what: &str) {
        if let Some(keys) = &self.keys
            && let Err(e) = keys.slots.call_method1(py, what, (label,))
        {
            e.write_unraisable(py, None);
        }
    }

    pub(super) fn acquire_slot(&self, py: Python<'_>, label: &Py<PyAny>) {
        self.slot(py, label, "take");
    }

    pub(super) fn release_slot(&self, py: Python<'_>, label: &Py<PyAny>) {
        self.slot(py, label, "give");
    }

    /// Reserves received bytes of a body; false when the budget is exhausted.
    pub(super) fn reserve_bytes(&self, py: Python<'_>, size: usize) -> bool {
        let taken = self.receiving.call_method1(py, intern!(py, "take"), (size,));
        taken.and_then(|taken| taken.extract(py)).unwrap_or_else(|e| {
            e.write_unraisable(py, None);
            false
        })
    }

    pub(super) fn release_bytes(&self, py: Python<'_>, size: usize) {
        if let Err(e) = self.receiving.call_method1(py, intern!(py, "give"), (size,)) {
            e.write_unraisable(py, None);
        }
    }

    /// Runs a request. A small reply to the last request of those received comes with the replies of the
    /// flush.
    pub(super) fn call(
        &self,
        py: Python<'_>,
        admission: &Admission,
        head: &Head<'_>,
        body: &[u8],
        token: u64,
        is_last: bool,
    ) -> Called {
        let Head { verb, name, query, key, traceparent, tracestate, body: kind, .. } = *head;
        let http = admission.http.get();
        let Some(grant) = http.grant(admission.grant) else {
            return Called::Replied(Reply::from(Failure::new(
                "unauthorized",
                "the server does not know this key",
            )));
        };
        let (verb, grant) = (Verb::from_name(verb), &*grant);
        let context = http.trace(traceparent, tracestate);
        let trace = context.as_ref();
        let request = Request {
            verb,
            name,
            query,
            body,
            key,
            grant,
            kind,
            trace,
            token,
            ..Request::default()
        };
        let is_small = |reply: &Reply| reply.status == OK && reply.body.len() <= SMALL_REPLY;
        let called = match http.run(py, &request) {
            Some(reply) if is_last && is_small(&reply) => {
                http.reply_at_flush(token, reply);
                Called::Finished
            }
            Some(reply) => return Called::Replied(reply),
            None => Called::Waiting,
        };
        if matches!(called, Called::Finished) || http.service.staged() {
            self.flush_soon(py);
        }
        called
    }

    /// The whole answer to a request for Arrow; `None` leaves it to the application.
    pub(super) fn arrow_page(
        &self,
        py: Python<'_>,
        admission: &Admission,
        head: &Head<'_>,
        body: &[u8],
    ) -> Option<Vec<Bytes>> {
        let Head { verb, name, query, .. } = *head;
        let http = admission.http.get();
        let (verb, grant) = (Verb::from_name(verb), &*http.grant(admission.grant)?);
        let request = Request { verb, name, query, body, grant, arrow: true, ..Request::default() };
        http.arrow_page(py, &request)
    }

    fn flush_soon(&self, py: Python<'_>) {
        let soon = self.target.lock().as_ref().map(|target| target.flush_soon.clone_ref(py));
        if let Some(Err(e)) = soon.map(|soon| soon.call0(py)) {
            e.write_unraisable(py, None);
        }
    }

    /// The response head of a reply, as the application's server sends it.
    pub(super) fn head_of(
        &self,
        py: Python<'_>,
        server_state: &Py<PyAny>,
        reply: &Reply,
        close: bool,
        request_id: Option<&[u8]>,
    ) -> PyResult<Vec<u8>> {
        let refused = matches!(reply.status, 429 | 503);
        let retry_after = refused.then(|| retry_after(&reply.body));
        let extra = ExtraHeaders { retry_after, close, request_id };
        self.head(py, server_state, reply.status, extra, ResponseBody::Json(reply.body.len()))
    }

    /// The response head of an Arrow stream of one chunk.
    pub(super) fn arrow_head(
        &self,
        py: Python<'_>,
        server_state: &Py<PyAny>,
        length: usize,
        close: bool,
        request_id: Option<&[u8]>,
    ) -> PyResult<Vec<u8>> {
        let extra = ExtraHeaders { retry_after: None, close, request_id };
        self.head(py, server_state, 200, extra, ResponseBody::Arrow(length))
    }

    /// The response to a client that sends its body too slowly.
    pub(super) fn too_slow_body(
        &self,
        py: Python<'_>,
        server_state: &Py<PyAny>,
    ) -> PyResult<Vec<u8>> {
        let body = self.too_slow_body.as_bytes(py);
        let extra = ExtraHeaders { retry_after: None, close: true, request_id: None };
        let mut out = self.head(py, server_state, 408, extra, ResponseBody::Json(body.len()))?;
        out.extend_from_slice(body);
        Ok(out)
    }

    /// The response to a client that sends no request in time.
    pub(super) fn too_slow_head(&self, py: Python<'_>) -> Vec<u8> {
        self.too_slow_head.as_bytes(py).to_vec()
    }

    fn head(
        &self,
        py: Python<'_>,
        server_state: &Py<PyAny>,
        status: u16,
        extra: ExtraHeaders<'_>,
        body: ResponseBody,
    ) -> PyResult<Vec<u8>> {
        // uvicorn replaces the list each second, for the date.
        let list = server_state.bind(py).getattr(intern!(py, "default_headers"))?;
        let same = self.common.lock().list.as_ref().is_some_and(|known| known.is(&list));
        if !same {
            let mut lines = Vec::new();
            for pair in list.cast::<PyList>()?.iter() {
                let (name, value): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = pair.extract()?;
                for part in [name.as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
                    lines.extend_from_slice(part);
                }
            }
            *self.common.lock() = CommonHeaders { list: Some(list.unbind()), lines };
        }
        let status = self.status_lines.get(&status).map_or(&b""[..], Vec::as_slice);
        Ok(response_head(status, &self.common.lock().lines, extra, body))
    }
}

/// Whether a `Host` is a plain loopback name. The application checks other spellings.
fn is_loopback(host: &[u8]) -> bool {
    let name = match host.iter().rposition(|&b| b == b':') {
        Some(at) if host[at + 1..].iter().all(u8::is_ascii_digit) => &host[..at],
        _ => host,
    };
    matches!(name, b"127.0.0.1" | b"localhost" | b"[::1]")
}
