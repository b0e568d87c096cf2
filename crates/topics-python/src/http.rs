//! The HTTP verbs for one event loop.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use topics_service::{LARGE_BODY, NextAction, Reply, Request, Service, Sink, StreamOutput, Verb};
use topics_wire::write::Body;
use topics_wire::{Failure, Grant, TraceContext};

use crate::bridge::{Bridge, LoopQueue};
use crate::engine::Engine;
use crate::errors::{catch_panics, raise};
use crate::remote::put_backup;
use crate::settings::{self, Settings};
use crate::shared::Shared;
use crate::unsent::UnsentBytes;

/// The body is `application/x-ndjson`.
pub(crate) const BODY_NDJSON: u32 = 1;
/// The body is `application/octet-stream`.
pub(crate) const BODY_OCTETS: u32 = 2;
/// The body is `application/vnd.apache.arrow.stream`.
pub(crate) const BODY_ARROW: u32 = 16;
/// Answer a read with an Arrow IPC stream.
pub(crate) const ACCEPT_ARROW: u32 = 4;
/// Answer metrics with JSON.
pub(crate) const ACCEPT_JSON: u32 = 8;

/// Writes with smaller bodies keep the GIL: releasing it costs more than they do.
const SMALL_BODY: usize = 2048;

/// Arguments of a grant: the name of the key, its prefixes, whether it may change configs.
type GrantArgs = (String, Vec<String>, bool);

fn new_grant((owner, prefixes, admin): GrantArgs) -> Arc<Grant> {
    Arc::new(Grant { owner, prefixes, admin })
}

/// The verbs over one engine, for one loop.
#[pyclass(frozen)]
pub(crate) struct Http {
    pub shared: Arc<Shared>,
    pub queue: Arc<LoopQueue>,
    pub service: Arc<Service>,
    /// The rights of clients, by number; a server without keys has one grant.
    grants: RwLock<Vec<Arc<Grant>>>,
    /// Whether records get the trace context of their request.
    trace_context: bool,
}

impl Http {
    /// The trace context of a request, if records get it and the header is valid.
    pub fn trace(&self, parent: Option<&[u8]>, state: Option<&[u8]>) -> Option<TraceContext> {
        let parent = parent.filter(|_| self.trace_context)?;
        TraceContext::parse(parent, state.unwrap_or(b""))
    }

    /// Runs a request, without the GIL unless releasing it costs more.
    pub fn run(&self, py: Python<'_>, request: &Request<'_>) -> Option<Reply> {
        let run = || {
            // A closed engine answers with an error; the engine of another process must not be used.
            let outcome = catch_panics(|| {
                if self.shared.forked() {
                    self.shared.engine()?;
                }
                Ok(self.service.call(request))
            });
            outcome.unwrap_or_else(|failure| Some(Reply::from(failure)))
        };
        // Writes only: a small read may have a large answer, and wait for a page of a file.
        let small = request.body.len() <= SMALL_BODY && request.verb == Verb::Write;
        if small { run() } else { py.detach(run) }
    }

    /// Delivers a reply with those of the next flush, which has to be scheduled. Replies that are sent
    /// together wake the core of their clients once.
    pub fn reply_at_flush(&self, token: u64, reply: Reply) {
        self.queue.events.without_signals(|| self.queue.reply(token, reply));
    }

    /// Runs a request with a large body on another thread, which holds the Python object meanwhile.
    fn run_large(&self, request: &Request<'_>, body: PyBackedBytes) -> Option<Reply> {
        let outcome = catch_panics(|| {
            if self.shared.forked() {
                self.shared.engine()?;
            }
            Ok(self.service.call_with_body(request, Bytes::from_owner(body)))
        });
        outcome.unwrap_or_else(|failure| Some(Reply::from(failure)))
    }

    /// The whole answer to a read or a scan as Arrow, without the GIL; `None` if it is larger than a page,
    /// or another one.
    pub fn arrow_page(&self, py: Python<'_>, request: &Request<'_>) -> Option<Vec<Bytes>> {
        py.detach(|| {
            let page = || self.shared.engine().map(|_| self.service.arrow_page(request));
            catch_panics(page).ok().flatten()
        })
    }

    /// The grant with this number.
    pub fn grant(&self, number: usize) -> Option<Arc<Grant>> {
        self.grants.read().get(number).cloned()
    }

    /// Pulls the output of a stream; `None`: the stream has ended.
    pub fn pull_stream(&self, token: u64) -> Option<StreamOutput> {
        let outcome = catch_panics(|| {
            self.shared.engine()?;
            Ok(self.service.pull(token))
        });
        outcome.unwrap_or_else(|failure| {
            log::error!("a stream: {}", failure.message);
            None
        })
    }
}

#[pymethods]
impl Http {
    #[new]
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (engine, settings=None, grants=None, trace_context=true, backup_dir=None, unsent=None, max_body_bytes=None))]
    fn new(
        py: Python<'_>,
        engine: &Engine,
        settings: Option<Settings<'_>>,
        grants: Option<Vec<GrantArgs>>,
        trace_context: bool,
        backup_dir: Option<String>,
        unsent: Option<&UnsentBytes>,
        max_body_bytes: Option<usize>,
    ) -> PyResult<Self> {
        let grants = match grants {
            Some(grants) => grants.into_iter().map(new_grant).collect(),
            None => vec![Arc::new(Grant::all())],
        };
        let mut limits = settings::limits(py, settings)?;
        limits.body_bytes = max_body_bytes.unwrap_or(limits.body_bytes);
        let shared = engine.shared.clone();
        let inner = shared.engine().map_err(|e| raise(py, &e))?.clone();
        let unsent = unsent.map(|unsent| unsent.0.clone()).unwrap_or_default();
        let queue = LoopQueue::new(unsent.clone())?;
        let service = Service::new(inner, shared.env.clock.clone(), limits, queue.clone(), unsent);
        if let Some(dir) = backup_dir {
            service.allow_backups(dir, put_backup(&shared.env));
        }
        Ok(Self { shared, queue, service, grants: RwLock::new(grants), trace_context })
    }

    /// Appends the grants after those that exist; an existing number keeps its meaning.
    fn extend_grants(&self, all: Vec<GrantArgs>) {
        let mut grants = self.grants.write();
        let known = grants.len();
        grants.extend(all.into_iter().skip(known).map(new_grant));
    }

    #[getter]
    fn bridge(&self) -> Bridge {
        Bridge { queue: self.queue.clone(), service: self.service.clone() }
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (verb, name, query, body, flags, token, key=None, subresource="", grant=0, traceparent=None, tracestate=None))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        verb: &str,
        name: &str,
        query: &[u8],
        body: PyBackedBytes,
        flags: u32,
        token: u64,
        key: Option<&[u8]>,
        subresource: &str,
        grant: usize,
        traceparent: Option<&[u8]>,
        tracestate: Option<&[u8]>,
    ) -> Option<(u16, Bound<'py, PyBytes>)> {
        let key = key.unwrap_or(b"");
        let kind = match flags {
            f if f & BODY_NDJSON != 0 => Body::Ndjson,
            f if f & BODY_OCTETS != 0 => Body::Binary,
            f if f & BODY_ARROW != 0 => Body::Arrow,
            _ => Body::Json,
        };
        let (arrow, json) = (flags & ACCEPT_ARROW != 0, flags & ACCEPT_JSON != 0);
        let Some(grant) = self.grant(grant) else {
            let reply =
                Reply::from(Failure::new("unauthorized", "the server does not know this key"));
            return Some((reply.status, PyBytes::new(py, &reply.body)));
        };
        let (verb, grant) = (Verb::from_name(verb), &*grant);
        let trace = self.trace(traceparent, tracestate);
        let request = Request {
            verb,
            name,
            subresource,
            query,
            body: b"",
            owned_body: None,
            key,
            grant,
            kind,
            arrow,
            json,
            trace: trace.as_ref(),
            token,
        };
        let reply = match body.len() > LARGE_BODY {
            true => self.run_large(&request, body),
            false => self.run(py, &Request { body: &body, ..request }),
        };
        reply.map(|r| (r.status, PyBytes::new(py, &r.body)))
    }

    /// Pulls a stream: its pieces, and 0 to pull again, 1 to wait, 2 at the end, 3 if it failed, 4 to
    /// wait because there is no room for its output.
    fn pull<'py>(&self, py: Python<'py>, token: u64) -> Option<(Vec<Bound<'py, PyBytes>>, u8)> {
        let pulled = py.detach(|| self.pull_stream(token))?;
        let next = match pulled.next {
            NextAction::More => 0,
            NextAction::Wait => 1,
            NextAction::End => 2,
            NextAction::Fail => 3,
            NextAction::Full => 4,
        };
        Some((pulled.pieces.iter().map(|piece| PyBytes::new(py, piece)).collect(), next))
    }

    /// The rest of the events of which a part was pulled.
    fn take_rest<'py>(&self, py: Python<'py>, token: u64) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.service.take_rest(token))
    }

    /// Why a stream failed: a code and a message.
    fn failure(&self, token: u64) -> Option<(&'static str, String)> {
        self.service.failure(token).map(|f| (f.code, f.message))
    }

    /// Handles a message from the client of a socket, with its scopes.
    fn message(&self, py: Python<'_>, token: u64, text: &[u8], read: bool, write: bool) {
        py.detach(|| {
            let outcome = catch_panics(|| {
                self.shared.engine()?;
                self.service.message(token, text, (read, write));
                Ok(())
            });
            if let Err(failure) = outcome {
                log::error!("a message: {}", failure.message);
            }
        });
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            catch_panics(|| {
                self.shared.engine()?;
                self.queue.events.without_signals(|| self.service.flush());
                Ok(())
            })
        })
        .map_err(|e: Failure| raise(py, &e))
    }

    #[getter]
    fn staged(&self) -> bool {
        self.service.staged()
    }

    #[getter]
    fn pending(&self) -> usize {
        self.service.pending()
    }

    fn cancel(&self, token: u64) {
        if !self.shared.forked() {
            self.service.cancel(token);
        }
    }

    fn set_ready(&self, ready: bool) {
        self.service.set_ready(ready);
    }

    fn close(&self) {
        if !self.shared.forked() {
            self.service.close();
        }
    }
}
