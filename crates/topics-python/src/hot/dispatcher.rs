//! What the hot connections of a loop share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use topics_service::{Reply, Request, Verb};
use topics_wire::Failure;
use topics_wire::hot::{ExtraHeaders, Head, response_head};

use super::Connection;
use crate::errors::retry_after;
use crate::http::Http;

/// Tokens of hot requests have this bit; those of the application do not.
const HOT: u64 = 1 << 63;

/// The way into the engine, while there is one.
struct Target {
    http: Py<Http>,
    /// Has what was staged led at the end of the loop's tick.
    flush_soon: Py<PyAny>,
}

/// Who keys are asked of, and who counts the requests of each.
struct Keys {
    /// `admit(verb, authorization)`: the grant and the label of a client who may.
    admit: Py<PyAny>,
    slots: Py<PyAny>,
}

/// A request that may be answered here.
pub(super) struct Admission {
    pub http: Py<Http>,
    grant: usize,
    /// Whose slot it takes while it waits; without keys, nobody's.
    pub label: Option<Py<PyAny>>,
}

/// The lines that uvicorn puts into every response, and the list that they were made from.
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
    /// Counts the bytes of all bodies that are being received: `take(size)` and `give(size)`.
    receiving: Py<PyAny>,
    max_body: usize,
    /// Ticks of `check_timeouts` that a body, the first request and the next request may take, and a client
    /// that has all and does not say close_linger.
    timeouts: Timeouts,
    /// How many bytes the client of a transport has not taken.
    unacked_bytes: Py<PyAny>,
    too_slow_head: Py<PyBytes>,
    too_slow_body: Py<PyBytes>,
    common: Mutex<CommonHeaders>,
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
    /// A closed client that is owed something, beyond the ticks that its bytes have.
    pub stall: u64,
    /// Bytes of which a closed client has a tick each.
    pub bytes: u64,
}

impl Timeouts {
    /// Ticks until a closed client of which so much is unacked_bytes is given up, whatever it takes of it.
    pub fn closing(&self, unacked_bytes: usize) -> u64 {
        self.stall + unacked_bytes as u64 / self.bytes.max(1)
    }
}

#[pymethods]
impl HotDispatcher {
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (*, status_lines, loopback, max_body, receiving, timeouts, drain, unacked_bytes, too_slow_head, too_slow_body, keys=None))]
    fn new(
        status_lines: &Bound<'_, PyDict>,
        loopback: bool,
        max_body: usize,
        receiving: Py<PyAny>,
        timeouts: (u64, u64, u64, u64),
        drain: (u64, u64),
        unacked_bytes: Py<PyAny>,
        too_slow_head: Py<PyBytes>,
        too_slow_body: Py<PyBytes>,
        keys: Option<(Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<Self> {
        let (body, first, next, close_linger) = timeouts;
        let (stall, bytes) = drain;
        Ok(Self {
            target: Mutex::default(),
            status_lines: status_lines.extract()?,
            loopback,
            keys: keys.map(|(admit, slots)| Keys { admit, slots }),
            receiving,
            max_body,
            timeouts: Timeouts { body, first, next, close_linger, stall, bytes },
            unacked_bytes,
            too_slow_head,
            too_slow_body,
            common: Mutex::default(),
            token: AtomicU64::new(HOT),
            ticks: AtomicU64::new(0),
            connections: Mutex::default(),
        })
    }

    /// From now on hot requests are answered by `http`.
    fn enable(&self, http: Py<Http>, flush_soon: Py<PyAny>) {
        *self.target.lock() = Some(Target { http, flush_soon });
    }

    /// From now on every request goes to the application; the answers that are still to come are
    /// the last of their connections.
    fn disable(&self, py: Python<'_>) {
        let was = self.target.lock().take();
        drop(was);
        for connection in self.all(py) {
            connection.get().close_after_reply();
        }
    }

    /// A tick of the clock: connections whose client is too slow end.
    fn check_timeouts(&self, py: Python<'_>) {
        let now = self.ticks.fetch_add(1, Ordering::Relaxed) + 1;
        for connection in self.all(py) {
            connection.get().check_timeouts(py, self, now);
        }
    }
}

impl HotDispatcher {
    pub(super) fn now(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    fn all(&self, py: Python<'_>) -> Vec<Py<Connection>> {
        self.connections.lock().values().map(|c| c.clone_ref(py)).collect()
    }

    /// What the client of a transport has not taken; 0 when that cannot be said.
    pub(super) fn unacked_bytes(&self, py: Python<'_>, transport: &Py<PyAny>) -> usize {
        let size = self.unacked_bytes.call1(py, (transport,));
        size.and_then(|size| size.extract(py)).unwrap_or(0)
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

    /// The engine's routes, if this request may have them here.
    pub(super) fn admit(&self, py: Python<'_>, head: &Head<'_>) -> Option<Admission> {
        if head.length > self.max_body || (self.loopback && !is_loopback(head.host)) {
            return None;
        }
        let http = self.target.lock().as_ref().map(|target| target.http.clone_ref(py))?;
        let Some(keys) = &self.keys else {
            return Some(Admission { http, grant: 0, label: None });
        };
        // A key in the query is the application's to take out.
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

    /// The client with this label has one request more, or less.
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

    /// Counts bytes that were received of a body; false when that are too many.
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

    /// Answers, or takes the request: then its reply comes with this token.
    pub(super) fn call(
        &self,
        py: Python<'_>,
        admission: &Admission,
        head: &Head<'_>,
        body: &[u8],
        token: u64,
    ) -> Option<Reply> {
        let Head { verb, name, query, key, .. } = *head;
        let http = admission.http.get();
        let Some(grant) = http.grant(admission.grant) else {
            return Some(Reply::from(Failure::new(
                "unauthorized",
                "the server does not know this key",
            )));
        };
        let (verb, grant) = (Verb::from_name(verb), &*grant);
        let request = Request { verb, name, query, body, key, grant, token, ..Request::default() };
        let reply = http.run(py, &request);
        if reply.is_none() && http.service.staged() {
            self.flush_soon(py);
        }
        reply
    }

    fn flush_soon(&self, py: Python<'_>) {
        let soon = self.target.lock().as_ref().map(|target| target.flush_soon.clone_ref(py));
        if let Some(Err(e)) = soon.map(|soon| soon.call0(py)) {
            e.write_unraisable(py, None);
        }
    }

    /// The head of a reply's response, as the application's server sends it.
    pub(super) fn head_of(
        &self,
        py: Python<'_>,
        server_state: &Py<PyAny>,
        reply: &Reply,
        close: bool,
    ) -> PyResult<Vec<u8>> {
        let refused = matches!(reply.status, 429 | 503);
        let retry_after = refused.then(|| retry_after(&reply.body));
        let extra = ExtraHeaders { retry_after, close };
        self.head(py, server_state, reply.status, extra, reply.body.len())
    }

    /// What a client reads that sends its body too slowly.
    pub(super) fn too_slow_body(
        &self,
        py: Python<'_>,
        server_state: &Py<PyAny>,
    ) -> PyResult<Vec<u8>> {
        let body = self.too_slow_body.as_bytes(py);
        let extra = ExtraHeaders { retry_after: None, close: true };
        let mut out = self.head(py, server_state, 408, extra, body.len())?;
        out.extend_from_slice(body);
        Ok(out)
    }

    /// The whole response to a client that sends no request.
    pub(super) fn too_slow_head(&self, py: Python<'_>) -> Vec<u8> {
        self.too_slow_head.as_bytes(py).to_vec()
    }

    fn head(
        &self,
        py: Python<'_>,
        server_state: &Py<PyAny>,
        status: u16,
        extra: ExtraHeaders,
        length: usize,
    ) -> PyResult<Vec<u8>> {
        // uvicorn makes a new list each second, for the date.
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
        Ok(response_head(status, &self.common.lock().lines, extra, length))
    }
}

/// Whether a `Host` is one of the plain names of this machine. Other spellings are the
/// application's to judge.
fn is_loopback(host: &[u8]) -> bool {
    let name = match host.iter().rposition(|&b| b == b':') {
        Some(at) if host[at + 1..].iter().all(u8::is_ascii_digit) => &host[..at],
        _ => host,
    };
    matches!(name, b"127.0.0.1" | b"localhost" | b"[::1]")
}
