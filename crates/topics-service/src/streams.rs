//! Answers without end: watches and jobs. A stream is pulled by its connection when that can take
//! more, and says when there is something; nothing is made for a connection that does not take it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use topics_engine::{Claimed, Error, Event, Watch, Work};
use topics_wire::query::Query;
use topics_wire::watch::frames;
use topics_wire::watch::ids::{ClientCursors, Cursor};
use topics_wire::{Failure, queue};

use super::dispatch::Answer;
use super::scan_stream::Scanning;
use super::sessions::SharedHistory;
use super::socket::Socket;
use super::{Reply, Request, Service};

/// Bytes that one pull makes, unless one event has more.
const PULL: usize = 256 << 10;

/// What a stream does after a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There may be more: pull again when this is sent.
    More,
    /// Nothing more now: the sink says when there is.
    Wait,
    /// This was the last.
    End,
    /// It cannot go on, and what it said so far is not all: the client must not take it so.
    Fail,
}

/// What a pull made: pieces to be sent one by one, and what is next.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// Bytes of a stream, wherever they are cut; messages of a socket.
    pub pieces: Vec<Bytes>,
    /// What is next.
    pub next: Next,
}

pub(super) enum Kind {
    Watching(Box<Watching>),
    Working(Working),
    Socket(Box<Socket>),
    Scanning(Scanning),
}

pub(super) struct Stream {
    kind: Kind,
    /// When the timer will say that a heartbeat is due.
    timer_ns: Option<u64>,
    /// When it last had something.
    told_ns: u64,
    over: bool,
    /// Why it could not go on.
    failure: Option<Failure>,
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

    /// The tokens of those that are open.
    pub(super) fn all(&self) -> Vec<u64> {
        self.0.lock().keys().copied().collect()
    }
}

impl Stream {
    pub(super) fn socket(&mut self) -> Option<&mut Socket> {
        match &mut self.kind {
            Kind::Socket(socket) => Some(socket),
            _ => None,
        }
    }
}

/// A subscription and what its client knows.
pub(super) struct Watching {
    pub watch: Watch,
    known: ClientCursors,
    history: Option<SharedHistory>,
    heartbeat_ns: u64,
}

impl Watching {
    pub(super) fn new(watch: Watch, history: Option<SharedHistory>, heartbeat_ms: u64) -> Self {
        let known = ClientCursors::new(&watch.cursors());
        Self { watch, known, history, heartbeat_ns: heartbeat_ms * 1_000_000 }
    }

    /// Appends events until there are enough or no more.
    fn pull(&mut self, out: &mut Vec<u8>, wall_ms: u64) -> Result<Next, Failure> {
        while out.len() < PULL {
            let Some(event) = self.watch.try_next()? else { return Ok(Next::Wait) };
            match event {
                Event::Records(frame) => {
                    self.push_id(out, frame.topic(), frame.batch().topic_id);
                    out.extend_from_slice(&frames::records(&frame));
                }
                Event::Tombstone { topic, topic_id, tombstone, reason } => {
                    self.push_id(out, &topic, topic_id);
                    let data = frames::tombstone(&topic, &tombstone, reason);
                    out.extend_from_slice(&frames::event("tombstone", &data));
                }
                Event::CaughtUp { topic, topic_id, seq } => {
                    self.push_id(out, &topic, topic_id);
                    let data = frames::topic_head(&topic, seq, None);
                    out.extend_from_slice(&frames::event("caught-up", &data));
                }
                Event::TopicDeleted { topic, topic_id } => {
                    let head = self.known.cursor(topic_id);
                    self.push_id(out, &topic, topic_id);
                    let data = frames::topic_head(&topic, head, Some("deleted"));
                    out.extend_from_slice(&frames::event("topic-deleted", &data));
                }
                Event::Failed { topic, topic_id, error } => {
                    self.push_id(out, &topic, topic_id);
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
        Ok(Next::More)
    }

    fn push_id(&mut self, out: &mut Vec<u8>, topic: &Arc<str>, topic_id: u64) {
        let cursors: Vec<Cursor> = self.watch.cursors();
        out.extend_from_slice(b"id: ");
        let mut history = self.history.as_ref().map(|t| t.lock());
        self.known.push_id(out, &cursors, topic, topic_id, history.as_deref_mut());
        out.push(b'\n');
    }
}

type Given = VecDeque<topics_engine::Result<Claimed>>;

/// A worker's jobs.
pub(super) struct Working {
    queue: String,
    work: Arc<Work>,
    given: Arc<Mutex<Given>>,
    /// The claim that waits.
    claim: Option<u64>,
    wait: Duration,
}

impl Working {
    fn pull(
        &mut self,
        service: &Arc<Service>,
        token: u64,
        out: &mut Vec<u8>,
    ) -> Result<Next, Failure> {
        loop {
            let Some(outcome) = self.given.lock().pop_front() else {
                if self.claim.is_none() {
                    self.ask(service, token);
                    continue;
                }
                return Ok(Next::Wait);
            };
            self.claim = None;
            match outcome {
                Ok(claimed) if claimed.is_empty() => {
                    out.extend_from_slice(&frames::heartbeat(service.clock.wall_ms()));
                }
                Ok(claimed) => {
                    for i in 0..claimed.len() {
                        let data = frames::job(&self.queue, &claimed, i);
                        out.extend_from_slice(&frames::event("job", &data));
                    }
                }
                Err(Error::TopicNotFound(topic)) => {
                    let data = frames::topic_head(&topic, 0, Some("deleted"));
                    out.extend_from_slice(&frames::event("topic-deleted", &data));
                    return Ok(Next::End);
                }
                Err(e) => return Err(e.into()),
            }
            if out.len() >= PULL {
                return Ok(Next::More);
            }
        }
    }

    /// Asks for the next jobs. Whoever answers holds the work: it is let go only after that, so
    /// that what is leased to a stream which has gone is released with it.
    fn ask(&mut self, service: &Arc<Service>, token: u64) {
        let (given, sink) = (self.given.clone(), service.sink.clone());
        let held = Held { work: Some(self.work.clone()), service: service.clone() };
        let done = Box::new(move |outcome| {
            given.lock().push_back(outcome);
            drop(held);
            sink.due(token);
        });
        self.claim = Some(self.work.next_async(self.wait, done));
    }
}

/// Lets go of a work on a thread that may wait: releasing leases can take a sync.
struct Held {
    work: Option<Arc<Work>>,
    service: Arc<Service>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(work) = self.work.take()
            && let Some(work) = Arc::into_inner(work)
        {
            self.service.pool.run(Box::new(move || drop(work)));
        }
    }
}

impl Service {
    /// Takes a stream in; its connection pulls.
    pub(super) fn open(&self, token: u64, kind: Kind, opening: Vec<u8>) -> Answer {
        if let Kind::Watching(w) = &kind {
            let sink = self.sink.clone();
            w.watch.on_ready(move || sink.due(token));
        }
        if !self.is_ready() {
            return Err(Error::Closed.into());
        }
        let told_ns = self.clock.mono_ns();
        let stream = Stream { kind, timer_ns: None, told_ns, over: false, failure: None };
        self.streams.0.lock().insert(token, Arc::new(Mutex::new(stream)));
        self.pending.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Reply::ok(opening)))
    }

    pub(super) fn open_work(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let asked = queue::work(&Query::new(r.query), &self.limits)?;
        let node = asked.node.as_bytes();
        let work = self.engine.work(r.name, node, asked.max, asked.lease_ms)?;
        let working = Working {
            queue: r.name.to_owned(),
            work: Arc::new(work),
            given: Arc::default(),
            claim: None,
            wait: Duration::from_millis(asked.wait_ms),
        };
        self.open(r.token, Kind::Working(working), frames::OPEN.to_vec())
    }

    /// What a stream has now. `None`: there is no such stream, or it is over.
    pub fn pull(self: &Arc<Self>, token: u64) -> Option<Pulled> {
        let stream = self.streams.get(token)?;
        let mut guard = stream.lock();
        let s = &mut *guard;
        if s.over {
            return None;
        }
        let mut pieces = Vec::new();
        let closing = !self.is_ready();
        let mut out = Vec::new();
        let outcome = match &mut s.kind {
            _ if closing => Err(Error::Closed.into()),
            Kind::Watching(w) => w.pull(&mut out, self.clock.wall_ms()),
            Kind::Working(w) => w.pull(self, token, &mut out),
            Kind::Socket(socket) => {
                let mut messages = Vec::new();
                let next = socket.pull(&mut messages, PULL);
                pieces.extend(messages.into_iter().map(Bytes::from));
                next
            }
            Kind::Scanning(scanning) => scanning.pull(self, token, &mut pieces),
        };
        let next = match (outcome, &mut s.kind) {
            (Ok(next), _) => next,
            (Err(failure), Kind::Socket(socket)) => {
                pieces.push(socket.last_words(&failure).into());
                Next::End
            }
            (Err(failure), Kind::Scanning(_)) => {
                s.failure = Some(failure);
                Next::Fail
            }
            (Err(failure), _) => {
                out.extend_from_slice(&frames::event("error", &frames::error(&failure, None)));
                Next::End
            }
        };
        if !out.is_empty() {
            pieces.push(out.into());
        }
        if !pieces.is_empty() {
            s.told_ns = self.clock.mono_ns();
        }
        match next {
            Next::Wait => self.beat(s, token),
            Next::More => {}
            Next::End | Next::Fail => s.over = true,
        }
        Some(Pulled { pieces, next })
    }

    /// Why a stream could not go on, until it is cancelled.
    #[must_use]
    pub fn failure(&self, token: u64) -> Option<Failure> {
        self.streams.get(token)?.lock().failure.take()
    }

    /// Has the sink say when a heartbeat is due. One that comes too early finds nothing, and is
    /// set anew.
    fn beat(&self, s: &mut Stream, token: u64) {
        let Kind::Watching(w) = &s.kind else { return };
        let now = self.clock.mono_ns();
        if s.timer_ns.is_none_or(|at| at <= now) {
            let at = Some(s.told_ns + w.heartbeat_ns).filter(|at| *at > now);
            let at = at.unwrap_or(now + w.heartbeat_ns);
            s.timer_ns = Some(at);
            self.timer.set(at, token);
        }
    }

    /// The connection has gone, or has taken the last.
    pub(super) fn cancel_stream(self: &Arc<Self>, token: u64) -> bool {
        let Some(stream) = self.streams.0.lock().remove(&token) else { return false };
        let mut s = stream.lock();
        s.over = true;
        if let Some(at) = s.timer_ns {
            self.timer.unset(at, token);
        }
        if let Kind::Working(w) = &mut s.kind {
            if let Some(id) = w.claim.take() {
                self.engine.cancel_claim(&w.queue, id);
            }
            w.given.lock().clear();
        }
        drop(s);
        // The last one to hold it lets go of the watch or the work.
        if let Some(stream) = Arc::into_inner(stream) {
            self.let_go(stream.into_inner().kind);
        }
        true
    }

    fn let_go(self: &Arc<Self>, kind: Kind) {
        match kind {
            Kind::Working(Working { work, .. }) => {
                drop(Held { work: Some(work), service: self.clone() });
            }
            Kind::Watching(_) | Kind::Socket(_) | Kind::Scanning(_) => drop(kind),
        }
    }
}
