//! One [`Service`] for each event loop, and one for the threads of a process: its state, and the calls
//! that it answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use topics_engine::{BackupSummary, Engine};
use topics_env::Clock;
use topics_wire::write::{Body, Table};
use topics_wire::{Failure, Grant, Limits, TraceContext};

use super::consumers::Handles;
use super::large_bodies::{LARGE_BODY, LargeCalls, OwnedRequest};
use super::streams::Streams;
use super::timer::Timer;
use super::txns::WriterOwners;
use super::unsent::UnsentBytes;
use super::verb::Verb;
use super::waiting_calls::WaitingCalls;
use super::worker_pool::WorkerPool;

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    pub body: Vec<u8>,
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        if failure.status() == 500 {
            log::error!("{}: {}", failure.code, failure.message);
        }
        Self { status: failure.status(), body: failure.body() }
    }
}

impl Reply {
    pub(super) fn ok(body: Vec<u8>) -> Self {
        Self { status: 200, body }
    }
}

/// Receives the replies that come after their call returned. Any thread calls it, so it must not
/// block.
pub trait Sink: Send + Sync + 'static {
    /// Delivers the reply to the call with this token.
    fn reply(&self, token: u64, reply: Reply);
    /// The stream with this token has output, or its time has come: the loop calls [`Service::pull`].
    fn wake(&self, token: u64);
}

/// One request, with the HTTP part parsed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// What the client asks for.
    pub verb: Verb,
    /// The topic or router in the path, percent-decoded.
    pub name: &'a str,
    /// The consumer, watch session or writer in the path, percent-decoded.
    pub subresource: &'a str,
    /// The query string.
    pub query: &'a [u8],
    pub body: &'a [u8],
    /// The body where it is owned: a verb that outlives the call shares it.
    pub owned_body: Option<&'a Bytes>,
    /// The `Idempotency-Key` header, or the `Last-Event-ID` of a stream.
    pub key: &'a [u8],
    /// The rights of the client.
    pub grant: &'a Grant,
    /// The format of the body.
    pub kind: Body,
    /// Answer a read with an Arrow IPC stream.
    pub arrow: bool,
    /// Answer metrics with JSON.
    pub json: bool,
    /// The trace context of the request, which its records get.
    pub trace: Option<&'a TraceContext>,
    /// Identifies the call to the sink.
    pub token: u64,
}

impl Request<'_> {
    /// The body, for a verb that outlives the call.
    pub(super) fn body_bytes(&self) -> Bytes {
        self.owned_body.cloned().unwrap_or_else(|| Bytes::copy_from_slice(self.body))
    }

    /// Whether the body is large, as it was sent or decompressed.
    fn has_large_body(&self) -> bool {
        let decompressed = || Table::decompressed_bytes(self.body).unwrap_or_default();
        self.body.len() > LARGE_BODY
            || (self.kind == Body::Arrow && decompressed() > LARGE_BODY as u64)
    }
}

/// Puts a backup of an engine into the prefix of an object store with this URL.
pub type PutBackup = Arc<dyn Fn(&Engine, &str) -> Result<BackupSummary, Failure> + Send + Sync>;

/// How backups are made.
pub(super) struct Backups {
    /// The directory, or the URL of a prefix, below which they may be; `None`: wherever the process may write.
    pub below: Option<String>,
    pub put: PutBackup,
}

/// The verbs over one engine.
pub struct Service {
    pub(super) engine: Engine,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) limits: Limits,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) waiting: WaitingCalls,
    pub(super) consumers: Handles,
    pub(super) streams: Streams,
    pub(super) writers: WriterOwners,
    pub(super) large_calls: LargeCalls,
    pub(super) timer: Timer,
    pub(super) pool: WorkerPool,
    pub(super) started_ns: u64,
    pub(super) ready: AtomicBool,
    pub(super) staged: AtomicBool,
    pub(super) pending: Arc<AtomicUsize>,
    pub(super) backups: OnceLock<Backups>,
    pub(super) unsent: Arc<UnsentBytes>,
}

impl Service {
    /// A service over an open engine; `unsent` is shared by all that send to the same clients.
    #[must_use]
    pub fn new(
        engine: Engine,
        clock: Arc<dyn Clock>,
        limits: Limits,
        sink: Arc<dyn Sink>,
        unsent: Arc<UnsentBytes>,
    ) -> Arc<Self> {
        Arc::new(Self::of(engine, clock, limits, sink, unsent, Handles::new(false)))
    }

    fn of(
        engine: Engine,
        clock: Arc<dyn Clock>,
        limits: Limits,
        sink: Arc<dyn Sink>,
        unsent: Arc<UnsentBytes>,
        consumers: Handles,
    ) -> Self {
        let timer = Timer::new(clock.clone(), sink.clone(), engine.guards());
        let pool = WorkerPool::new(engine.guards());
        Self {
            started_ns: clock.mono_ns(),
            engine,
            clock,
            limits,
            sink,
            waiting: WaitingCalls::default(),
            consumers,
            streams: Streams::default(),
            writers: WriterOwners::default(),
            large_calls: LargeCalls::default(),
            timer,
            pool,
            ready: AtomicBool::new(true),
            staged: AtomicBool::new(false),
            pending: Arc::new(AtomicUsize::new(0)),
            backups: OnceLock::new(),
            unsent,
        }
    }

    /// The service of the process that has the engine open: verbs that wait for the disk run in their
    /// call, and backups may be written anywhere.
    #[must_use]
    pub fn local(
        engine: Engine,
        clock: Arc<dyn Clock>,
        limits: Limits,
        sink: Arc<dyn Sink>,
        put: PutBackup,
    ) -> Arc<Self> {
        let consumers = Handles::new(true);
        let service = Self::of(engine, clock, limits, sink, Arc::default(), consumers);
        service.pool.stop();
        let _ = service.backups.set(Backups { below: None, put });
        Arc::new(service)
    }

    /// Runs a request. `None`: the reply goes to the sink later, once.
    pub fn call(self: &Arc<Self>, r: &Request<'_>) -> Option<Reply> {
        let start_ns = self.clock.mono_ns();
        if r.has_large_body() {
            self.call_on_worker(OwnedRequest::of(r, Bytes::copy_from_slice(r.body)), start_ns);
            return None;
        }
        self.answer(r, start_ns)
    }

    /// Runs a request like [`Self::call`]; `body` is the body of `r`, and is kept without a copy.
    pub fn call_with_body(self: &Arc<Self>, r: &Request<'_>, body: Bytes) -> Option<Reply> {
        let start_ns = self.clock.mono_ns();
        self.call_on_worker(OwnedRequest::of(r, body), start_ns);
        None
    }

    pub(super) fn answer(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Option<Reply> {
        match self.dispatch(r, start_ns) {
            Ok(reply) => reply,
            Err(failure) => Some(failure.into()),
        }
    }

    /// Commits the writes that were staged since the last call.
    pub fn flush(&self) {
        self.staged.store(false, Ordering::Relaxed);
        self.engine.drive();
    }

    /// Whether a write was staged since the last flush.
    #[must_use]
    pub fn staged(&self) -> bool {
        self.staged.load(Ordering::Relaxed)
    }

    /// The number of calls and streams that are still open.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Allows backups below this directory, or below the prefix with this URL, once. Without it the verb is
    /// refused.
    pub fn allow_backups(&self, below: String, put: PutBackup) {
        let _ = self.backups.set(Backups { below: Some(below), put });
    }

    /// Sets the answer of the verb `ready`.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Has every waiting call answered with what is available, and stops the threads. The engine stays
    /// open.
    pub fn close(self: &Arc<Self>) {
        self.set_ready(false);
        for token in self.streams.all() {
            self.sink.wake(token);
        }
        self.close_waits();
        self.timer.stop();
        self.pool.stop();
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    pub(super) fn elapsed(&self, start_ns: u64) -> u64 {
        self.clock.mono_ns().saturating_sub(start_ns)
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.timer.stop();
        self.pool.stop();
    }
}
