//! Streams: watches, jobs, scans, sockets. A stream wakes its connection when it has output, and the
//! connection pulls when its client takes more; nothing is encoded for a client that does not read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use topics_engine::{Claimed, Error, Event, EventHistory, Session, Watch, Work};
use topics_wire::query::Query;
use topics_wire::watch::frames;
use topics_wire::watch::ids::{ClientCursors, Cursor};
use topics_wire::{Failure, queue};

use super::dispatch::Answer;
use super::scan_stream::ScanStream;
use super::socket::Socket;
use super::{Reply, Request, Service};

/// Maximum bytes of one pull, so that the loop serves other connections between two pulls. A larger
/// event of a stream is pulled in parts; a larger message of a socket is pulled whole.
pub const PULL_BYTES: usize = 64 << 10;

/// What the connection does after a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Pull again when this output is sent.
    More,
    /// Wait for [`super::Sink::wake`].
    Wait,
    /// Wait for it too: there may be output, but no room for it.
    Full,
    /// The stream has ended.
    End,
    /// The stream failed: the client must not take its output so far for complete.
    Fail,
}

/// The output of one pull.
#[derive(Clone, Debug)]
pub struct StreamOutput {
    /// Bytes of a stream, cut anywhere; or whole messages of a socket.
    pub pieces: Vec<Bytes>,
    /// What the connection does next.
    pub next: NextAction,
}

impl StreamOutput {
    /// The bytes of the pieces.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }
}

pub(super) enum Source {
    WatchStream(Box<WatchStream>),
    JobStream(JobStream),
    Socket(Box<Socket>),
    ScanStream(ScanStream),
}

pub(super) struct Stream {
    source: Source,
    /// The deadline of the next heartbeat in the timer.
    timer_ns: Option<u64>,
    /// When the stream last had output.
    last_output_ns: u64,
    ended: bool,
    /// Why the stream failed.
    failure: Option<Failure>,
    /// Output that is not pulled yet, of a stream that is not a socket.
    rest: VecDeque<Bytes>,
    /// What the connection does after `rest`.
    after_rest: NextAction,
}

/// The open streams, by token.
#[derive(Default)]
pub(super) struct Streams(Mutex<HashMap<u64, Arc<Mutex<Stream>>>>);

impl Streams {
    pub(super) fn has(&self, token: u64) -> bool {
        self.0.lock().contains_key(&token)
    }

    pub(super) fn get(&self, token: u64) -> Option<Arc<Mutex<Stream>>> {
        self.0.lock().get(&token).cloned()
    }

    /// The tokens of the open streams.
    pub(super) fn all(&self) -> Vec<u64> {
        self.0.lock().keys().copied().collect()
    }
}

/// Moves up to `most` bytes from `rest` to `pieces`.
pub(super) fn take_bytes(rest: &mut VecDeque<Bytes>, most: usize, pieces: &mut Vec<Bytes>) {
    let mut free = most;
    while let Some(first) = rest.front_mut().filter(|_| free > 0) {
        let size = first.len().min(free);
        let piece = first.split_to(size);
        if first.is_empty() {
            rest.pop_front();
        }
        free -= size;
        pieces.push(piece);
    }
}

impl Stream {
    pub(super) fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.source {
            Source::Socket(socket) => Some(socket),
            _ => None,
        }
    }
}

/// A watch and the cursors that its client has.
pub(super) struct WatchStream {
    pub watch: Watch,
    known: ClientCursors,
    session: Option<Arc<Session>>,
    heartbeat_ns: u64,
}

impl WatchStream {
    pub(super) fn new(watch: Watch, session: Option<Arc<Session>>, heartbeat_ms: u64) -> Self {
        let known = ClientCursors::new(&watch.cursors());
        Self { watch, known, session, heartbeat_ns: heartbeat_ms * 1_000_000 }
    }

    /// Appends events to `out`, up to about [`PULL_BYTES`].
    fn pull(&mut self, out: &mut Vec<u8>, wall_ms: u64) -> Result<NextAction, Failure> {
        let session = self.session.clone();
        while out.len() < PULL_BYTES {
            // What moves a cursor of the session is in its history before a later stream begins.
            let mut history = session.as_ref().map(|session| session.history.lock());
            let sent = history.as_deref_mut();
            let Some(event) = self.watch.try_next()? else { return Ok(NextAction::Wait) };
            match event {
                Event::Records(frame) => {
                    self.push_id(out, frame.topic(), frame.batch().topic_id, sent);
                    out.extend_from_slice(&frames::records(&frame));
                }
                Event::Tombstone { topic, topic_id, tombstone, reason } => {
                    self.push_id(out, &topic, topic_id, sent);
                    let data = frames::tombstone(&topic, &tombstone, reason);
                    out.extend_from_slice(&frames::event("tombstone", &data));
                }
                Event::CaughtUp { topic, topic_id, seq } => {
                    self.push_id(out, &topic, topic_id, sent);
                    let data = frames::topic_head(&topic, seq, None);
                    out.extend_from_slice(&frames::event("caught-up", &data));
                }
                Event::TopicDeleted { topic, topic_id } => {
                    let head = self.known.cursor(topic_id);
                    self.push_id(out, &topic, topic_id, sent);
                    let data = frames::topic_head(&topic, head, Some("deleted"));
                    out.extend_from_slice(&frames::event("topic-deleted", &data));
                }
                Event::Failed { topic, topic_id, error } => {
                    self.push_id(out, &topic, topic_id, sent);
                    let data = frames::error(&Failure::from(error), Some(&topic));
                    out.extend_from_slice(&frames::event("error", &data));
                }
                Event::Paced { topic, retry_after_ms, .. } => {
                    let data = frames::error(&frames::throttled(retry_after_ms), Some(&topic));
                    out.extend_from_slice(&frames::event("error", &data));
                }
                _ => out.extend_from_slice(&frames::heartbeat(wall_ms)),
            }
        }
        Ok(NextAction::More)
    }

    fn push_id(
        &mut self,
        out: &mut Vec<u8>,
        topic: &Arc<str>,
        topic_id: u64,
        sent: Option<&mut EventHistory>,
    ) {
        let cursors: Vec<Cursor> = self.watch.cursors();
        out.extend_from_slice(b"id: ");
        self.known.push_id(out, &cursors, topic, topic_id, sent);
        out.push(b'\n');
    }
}

/// The jobs of one worker, and claims that were not sent to it yet.
struct JobSource {
    queue: String,
    node: String,
    work: Work,
    outcomes: Mutex<VecDeque<topics_engine::Result<Claimed>>>,
}

/// The stream of one worker.
pub(super) struct JobStream {
    source: Arc<JobSource>,
    /// The id of the open claim.
    claim: Option<u64>,
    wait: Duration,
}

impl JobStream {
    fn pull(
        &mut self,
        service: &Arc<Service>,
        token: u64,
        out: &mut Vec<u8>,
    ) -> Result<NextAction, Failure> {
        loop {
            let Some(outcome) = self.source.outcomes.lock().pop_front() else {
                if self.claim.is_none() {
                    self.request_jobs(service, token);
                    continue;
                }
                return Ok(NextAction::Wait);
            };
            self.claim = None;
            match outcome {
                Ok(claimed) if claimed.is_empty() => {
                    out.extend_from_slice(&frames::heartbeat(service.clock.wall_ms()));
                }
                Ok(claimed) => {
                    for i in 0..claimed.len() {
                        frames::push_job_event(out, &self.source.queue, &claimed, i);
                    }
                }
                Err(Error::TopicNotFound(topic)) => {
                    let data = frames::topic_head(&topic, 0, Some("deleted"));
                    out.extend_from_slice(&frames::event("topic-deleted", &data));
                    return Ok(NextAction::End);
                }
                Err(e) => return Err(e.into()),
            }
            if out.len() >= PULL_BYTES {
                return Ok(NextAction::More);
            }
        }
    }

    /// Claims the next jobs. The callback holds the source until it has run, so that the end of the
    /// source also gives back jobs that were leased to a stream which has gone.
    fn request_jobs(&mut self, service: &Arc<Service>, token: u64) {
        let sink = service.sink.clone();
        let guard = SourceGuard { source: Some(self.source.clone()), service: service.clone() };
        let done = Box::new(move |outcome| {
            if let Some(source) = &guard.source {
                source.outcomes.lock().push_back(outcome);
            }
            drop(guard);
            sink.wake(token);
        });
        self.claim = Some(self.source.work.next_async(self.wait, done));
    }
}

/// Ends a source on a worker thread, because ending its leases may wait for a sync.
struct SourceGuard {
    source: Option<Arc<JobSource>>,
    service: Arc<Service>,
}

impl Drop for SourceGuard {
    fn drop(&mut self) {
        if let Some(source) = self.source.take().and_then(Arc::into_inner) {
            let service = self.service.clone();
            self.service.pool.run(Box::new(move || {
                // What was not sent is no delivery; what was sent counts as one.
                let unsent = source.outcomes.into_inner().into_iter().flatten();
                for claimed in unsent.filter(|claimed| !claimed.is_empty()) {
                    service.release_unsent(&source.queue, &source.node, &claimed);
                }
                drop(source.work);
            }));
        }
    }
}

impl Service {
    /// Registers a stream for its connection to pull.
    pub(super) fn open(&self, token: u64, source: Source, opening: Vec<u8>) -> Answer {
        if let Source::WatchStream(w) = &source {
            let sink = self.sink.clone();
            w.watch.on_ready(move || sink.wake(token));
        }
        if !self.is_ready() {
            return Err(Error::Closed.into());
        }
        let last_output_ns = self.clock.mono_ns();
        let stream = Stream {
            source,
            timer_ns: None,
            last_output_ns,
            ended: false,
            failure: None,
            rest: VecDeque::new(),
            after_rest: NextAction::More,
        };
        self.streams.0.lock().insert(token, Arc::new(Mutex::new(stream)));
        self.pending.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Reply::ok(opening)))
    }

    pub(super) fn open_work(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let asked = queue::work(&Query::new(r.query), &self.limits)?;
        let work = self.engine.work(r.name, asked.node.as_bytes(), asked.max, asked.lease_ms)?;
        let mut opening = frames::OPEN.to_vec();
        frames::push_stream_event(&mut opening, r.name, work.stream());
        let source = JobSource {
            queue: r.name.to_owned(),
            node: asked.node,
            work,
            outcomes: Mutex::default(),
        };
        let wait = Duration::from_millis(asked.wait_ms);
        let jobs = JobStream { source: Arc::new(source), claim: None, wait };
        self.open(r.token, Source::JobStream(jobs), opening)
    }

    /// The output of a stream. `None`: no such stream, or it has ended.
    pub fn pull(self: &Arc<Self>, token: u64) -> Option<StreamOutput> {
        let stream = self.streams.get(token)?;
        let mut guard = stream.lock();
        let s = &mut *guard;
        if s.ended {
            return None;
        }
        let closing = !self.is_ready();
        if !closing && self.unsent.is_full() {
            self.unsent.wake_later(token, &self.sink);
            return Some(StreamOutput { pieces: Vec::new(), next: NextAction::Full });
        }
        if s.rest.is_empty() {
            let (pieces, next) = self.produce(s, token, closing);
            (s.rest, s.after_rest) = (pieces.into(), next);
        }
        let (mut pieces, mut next) = (Vec::new(), s.after_rest);
        if s.socket().is_some() {
            pieces.extend(s.rest.drain(..));
        } else {
            take_bytes(&mut s.rest, PULL_BYTES, &mut pieces);
            if !s.rest.is_empty() {
                next = NextAction::More;
            }
        }
        if !pieces.is_empty() {
            s.last_output_ns = self.clock.mono_ns();
        }
        match next {
            NextAction::Wait => self.schedule_heartbeat(s, token),
            NextAction::More | NextAction::Full => {}
            NextAction::End | NextAction::Fail => s.ended = true,
        }
        Some(StreamOutput { pieces, next })
    }

    /// The next output of a stream, and what the connection does after it.
    fn produce(
        self: &Arc<Self>,
        s: &mut Stream,
        token: u64,
        closing: bool,
    ) -> (Vec<Bytes>, NextAction) {
        let (mut pieces, mut out) = (Vec::new(), Vec::new());
        let outcome = match &mut s.source {
            _ if closing => Err(Error::Closed.into()),
            Source::WatchStream(w) => w.pull(&mut out, self.clock.wall_ms()),
            Source::JobStream(w) => w.pull(self, token, &mut out),
            Source::Socket(socket) => {
                let mut messages = Vec::new();
                let next = socket.pull(&mut messages, PULL_BYTES);
                pieces.extend(messages.into_iter().map(Bytes::from));
                next
            }
            Source::ScanStream(scanning) => scanning.pull(self, token, &mut pieces),
        };
        let next = match (outcome, &mut s.source) {
            (Ok(next), _) => next,
            (Err(failure), Source::Socket(socket)) => {
                pieces.push(socket.closing_message(&failure).into());
                NextAction::End
            }
            (Err(failure), Source::ScanStream(_)) => {
                s.failure = Some(failure);
                NextAction::Fail
            }
            (Err(failure), _) => {
                out.extend_from_slice(&frames::event("error", &frames::error(&failure, None)));
                NextAction::End
            }
        };
        if !out.is_empty() {
            pieces.push(out.into());
        }
        (pieces, next)
    }

    /// Takes the rest of the events of which a part was pulled, for a connection that appends a last event
    /// of its own.
    #[must_use]
    pub fn take_rest(&self, token: u64) -> Vec<u8> {
        let Some(stream) = self.streams.get(token) else { return Vec::new() };
        let rest = std::mem::take(&mut stream.lock().rest);
        rest.into_iter().collect::<Vec<_>>().concat()
    }

    /// Why a stream failed; available once, until [`Service::cancel`].
    #[must_use]
    pub fn failure(&self, token: u64) -> Option<Failure> {
        self.streams.get(token)?.lock().failure.take()
    }

    /// Sets the deadline of the next heartbeat, unless one is set. A deadline that fires before the
    /// heartbeat interval has passed is set again.
    fn schedule_heartbeat(&self, s: &mut Stream, token: u64) {
        let Source::WatchStream(w) = &s.source else { return };
        let now = self.clock.mono_ns();
        if s.timer_ns.is_none_or(|at| at <= now) {
            let at = Some(s.last_output_ns + w.heartbeat_ns).filter(|at| *at > now);
            let at = at.unwrap_or(now + w.heartbeat_ns);
            s.timer_ns = Some(at);
            self.timer.set(at, token);
        }
    }

    /// Ends a stream whose connection has gone or has taken all output.
    pub(super) fn cancel_stream(self: &Arc<Self>, token: u64) -> bool {
        let Some(stream) = self.streams.0.lock().remove(&token) else { return false };
        self.unsent.forget(token);
        let mut s = stream.lock();
        s.ended = true;
        if let Some(at) = s.timer_ns {
            self.timer.unset(at, token);
        }
        if let Source::JobStream(w) = &mut s.source
            && let Some(id) = w.claim.take()
        {
            self.engine.cancel_claim(&w.source.queue, id);
        }
        drop(s);
        // The last holder of the stream drops its source.
        if let Some(stream) = Arc::into_inner(stream) {
            self.release_source(stream.into_inner().source);
        }
        true
    }

    fn release_source(self: &Arc<Self>, source: Source) {
        match source {
            Source::JobStream(JobStream { source, .. }) => {
                drop(SourceGuard { source: Some(source), service: self.clone() });
            }
            Source::WatchStream(_) | Source::Socket(_) | Source::ScanStream(_) => drop(source),
        }
    }
}
