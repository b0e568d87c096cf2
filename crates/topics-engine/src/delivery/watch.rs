//! The watcher's end of a stream: [`Watch`].

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::Instant;
use topics_storage::segment::Fetch;

use super::Deliverer;
use super::frame::{Event, WatchOptions};
use super::service;
use super::session::Session;
use super::stream::{Backlog, Bounds, Next, Stream};
use super::subscribers::{Join, Subscribers};
use crate::catalog::unloaded::CatalogEntry;
use crate::topic::{self, Life, Topic};
use crate::types::api::{Owner, ReadFrom, ReadRequest};
use crate::types::error::{Error, Result};
use crate::types::name;

/// Maximum number of topics and patterns of a watch.
const MAX_TOPICS: usize = 256;
/// Maximum bytes of a frame.
const MAX_FRAME: usize = 8 << 20;
/// Maximum records of a frame.
const MAX_LIMIT: usize = 10_000;

/// The refusal of a watch that names more than `most`, or nothing.
#[must_use]
pub fn watch_names(most: usize) -> String {
    format!(
        "a watch names one topic or pattern, at most {most}: name many by a pattern such as \"orders.*\", \
         or open several watches"
    )
}

/// The position where a watch of a topic begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchStart {
    /// `After`, `Earliest` or `Tail`; a tail counts back from the current head.
    pub from: ReadFrom,
    /// The topic id that the cursor was made with; a mismatch is tombstone `recreated`.
    pub topic_id: Option<u64>,
}

/// A position of a session.
#[derive(Debug)]
pub(super) struct Known {
    pub name: String,
    pub topic_id: u64,
    pub cursor: u64,
    /// Whether the client is told if the topic does not exist.
    pub must_exist: bool,
}

impl Default for WatchStart {
    fn default() -> Self {
        Self { from: ReadFrom::Tail(0), topic_id: None }
    }
}

/// A subscription.
#[derive(Clone, Debug)]
pub struct WatchRequest {
    /// Topics by name.
    pub topics: Vec<(String, WatchStart)>,
    /// Patterns (`orders.*`). The start applies to topics that exist; a topic that is created later
    /// joins from its first record.
    pub patterns: Vec<(String, WatchStart)>,
    /// Accepts unknown topics, which join when they are created; otherwise an unknown topic is an
    /// error.
    pub lenient: bool,
    /// Selects records and their fields.
    pub options: WatchOptions,
    /// Maximum number of queued frames; default 1024.
    pub queue_frames: usize,
    /// Maximum bytes of memory of the queued frames (a single larger frame is admitted); default
    /// 16 MiB.
    pub queue_bytes: usize,
    /// Interval without an event after which [`Event::Heartbeat`] is delivered, 1000 to 60 000 ms;
    /// default none.
    pub heartbeat_ms: Option<u64>,
    /// Time after which a stream ends whose full queue is not read, ms; default none.
    pub stall_ms: Option<u64>,
    /// Whether [`Event::Paced`] is delivered when a topic has to wait under strain; default no.
    pub paced: bool,
}

impl Default for WatchRequest {
    fn default() -> Self {
        Self {
            topics: Vec::new(),
            patterns: Vec::new(),
            lenient: false,
            options: WatchOptions::default(),
            queue_frames: 1024,
            queue_bytes: 16 << 20,
            heartbeat_ms: None,
            stall_ms: None,
            paced: false,
        }
    }
}

impl WatchRequest {
    /// Refuses values that are out of bounds.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::InvalidRequest(text));
        let named = self.topics.len() + self.patterns.len();
        if named == 0 || named > MAX_TOPICS {
            return refuse(watch_names(MAX_TOPICS));
        }
        for (topic, _) in &self.topics {
            name::check(topic)?;
        }
        for (pattern, _) in &self.patterns {
            let prefix = pattern.strip_suffix('*').unwrap_or(pattern);
            if !prefix.is_empty() && !name::valid(prefix) {
                return refuse(format!("{pattern:?} is no pattern: a name, or a prefix and one *"));
            }
        }
        let starts = self.topics.iter().chain(&self.patterns);
        if starts.into_iter().any(|(_, s)| matches!(s.from, ReadFrom::Before { .. })) {
            return refuse(
                "a watch begins after a seq, at the earliest record or at the tail".into(),
            );
        }
        let o = &self.options;
        if !(1..=MAX_LIMIT).contains(&o.limit) {
            return refuse(format!("limit is 1 to {MAX_LIMIT}"));
        }
        if !(1..=MAX_FRAME).contains(&o.max_batch_bytes) {
            return refuse(format!("max_batch_bytes is 1 to {MAX_FRAME}"));
        }
        if self.heartbeat_ms.is_some_and(|ms| !(1000..=60_000).contains(&ms)) {
            return refuse("heartbeat_ms is 1000 to 60000".into());
        }
        if self.queue_frames < 2 || self.queue_bytes == 0 {
            return refuse("a queue holds two frames at least".into());
        }
        Ok(())
    }
}

/// An open subscription: an iterator of events that waits for more. Dropping it ends it.
///
/// Threads wait in [`Watch::next`]; an event loop calls [`Watch::try_next`] until it returns
/// `None`, and again when the callback of [`Watch::on_ready`] was called.
pub struct Watch {
    delivery: Arc<Deliverer>,
    stream: Arc<Stream>,
    session: Option<Arc<Session>>,
    owner: Option<Owner>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Watch {
    /// Opens a subscription.
    pub(crate) fn open(delivery: &Arc<Deliverer>, req: &WatchRequest) -> Result<Self> {
        delivery.ctx().check_open()?;
        req.check()?;
        Self::resume(delivery, req, &[])
    }

    /// Keeps the engine alive.
    pub(crate) fn owned_by(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Opens a subscription at these known positions. A known topic that does not exist was deleted;
    /// it joins when it is created.
    pub(super) fn resume(
        delivery: &Arc<Deliverer>,
        req: &WatchRequest,
        known: &[Known],
    ) -> Result<Self> {
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        let bounds = Bounds {
            frames: req.queue_frames,
            bytes: req.queue_bytes,
            heartbeat_ns: req.heartbeat_ms.map(ns),
            stall_ns: req.stall_ms.map(ns),
            wants_throttled: req.paced,
        };
        let shared = delivery.workers.shared();
        let patterns: Vec<String> = req.patterns.iter().map(|(p, _)| p.clone()).collect();
        // Names whose topics may come later.
        let later = req.topics.iter().filter(|_| req.lenient).map(|(t, _)| t);
        let later = later.chain(known.iter().map(|k| &k.name));
        let names: HashSet<Arc<str>> = later.map(|t| t.as_str().into()).collect();
        let expects = !patterns.is_empty() || !names.is_empty();
        let (now, id) = (delivery.base().time.mono_ns(), shared.stream_id());
        let stream = Stream::new(id, req.options.clone(), patterns, names, bounds, now);
        // From here on a drop of the watch undoes the registration.
        let watch = Self { delivery: delivery.clone(), stream, session: None, owner: None };
        shared.streams.lock().insert(watch.stream.id(), Arc::downgrade(&watch.stream));
        // New topics are expected before the existing ones are listed, so that none is missed.
        if expects {
            shared.expect(&watch.stream);
        }
        for k in known {
            match delivery.catalog().live(&k.name)? {
                Some(topic) => {
                    let from = ReadFrom::After(k.cursor);
                    watch.begin(&topic, WatchStart { from, topic_id: Some(k.topic_id) })?;
                }
                None if k.must_exist => {
                    watch.stream.gone(k.name.as_str().into(), k.topic_id, k.cursor);
                }
                None => {}
            }
        }
        for (topic, start) in &req.topics {
            match delivery.catalog().live(topic)? {
                Some(topic) => watch.begin(&topic, *start)?,
                None if req.lenient || !known.is_empty() => {}
                None => return Err(Error::TopicNotFound(topic.clone())),
            }
        }
        for (pattern, start) in &req.patterns {
            watch.begin_matching(pattern, *start)?;
        }
        if expects {
            shared.expect_no_more(&watch.stream);
        }
        delivery.workers.start(delivery)?;
        // A close that ended all streams before this one was registered did not end it.
        delivery.ctx().check_open()?;
        Ok(watch)
    }

    fn begin_matching(&self, pattern: &str, start: WatchStart) -> Result<()> {
        let prefix = pattern.strip_suffix('*').unwrap_or(pattern);
        let mut after: Option<String> = None;
        loop {
            let page = self.delivery.catalog().list(prefix, after.as_deref(), 256);
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.text().to_owned());
            for found in page.iter().filter(|t| name::matches_pattern(pattern, t.text())) {
                match found {
                    CatalogEntry::Loaded(topic) => self.begin(topic, start)?,
                    CatalogEntry::Unloaded(_) => {
                        if let Some(topic) = self.delivery.catalog().named(found.text())? {
                            self.begin(&topic, start)?;
                        }
                    }
                }
            }
        }
    }

    fn begin(&self, topic: &Arc<Topic>, start: WatchStart) -> Result<()> {
        let cursor = match start.from {
            ReadFrom::After(seq) => seq,
            ReadFrom::Tail(0) => topic.gate.head(),
            from => {
                let position = ReadRequest { from, limit: 0, ..ReadRequest::default() };
                topic::read(self.delivery.ctx(), topic, &position)?.next_from_seq
            }
        };
        topic.touch(self.delivery.base().time.steady());
        self.stream.add(topic, cursor, start.topic_id);
        Ok(())
    }

    /// The next event. Waits for it until the timeout, or without limit when it is `None`; returns
    /// `None` after the timeout. An error ends the stream.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<Event>> {
        let until = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            if until.is_some_and(|at| Instant::now() >= at) {
                return Ok(None);
            }
            self.stream.wait(until, self.delivery.base().time.mono_ns());
        }
    }

    /// The next event, or `None` when there is none now. May read files; never waits for a writer.
    pub fn try_next(&mut self) -> Result<Option<Event>> {
        loop {
            match self.stream.next(self.delivery.base().time.mono_ns())? {
                Next::Event(event) => {
                    match (&event, &self.session) {
                        (Event::Records(frame), _) => {
                            self.delivery
                                .base()
                                .metrics
                                .watch_records
                                .add(frame.batch().len() as u64);
                        }
                        (Event::TopicDeleted { topic, topic_id }, Some(session)) => {
                            session.notified(topic, *topic_id);
                        }
                        _ => {}
                    }
                    return Ok(Some(event));
                }
                Next::Read(backlog) => self.read(&backlog)?,
                Next::Nothing => return Ok(None),
            }
        }
    }

    /// Reads the backlog of one topic, or makes the topic live.
    fn read(&mut self, b: &Backlog) -> Result<()> {
        self.delivery.ctx().check_open()?;
        let (delivery, topic, slot) = (&self.delivery, &b.topic, b.slot);
        if topic.life() == Life::Dead {
            self.gone(b);
            return Ok(());
        }
        if b.cursor != topic.gate.head() || b.id.is_some() {
            // A read that begins where records were just evicted makes no progress; the next one does.
            for _ in 0..2 {
                let mut req = self.stream.options().request(ReadFrom::After(b.cursor));
                req.topic_id = b.id;
                match topic::read(delivery.ctx(), topic, &req) {
                    Ok(batch) if batch.next_from_seq != b.cursor || batch.tombstone.is_some() => {
                        self.stream.deliver(slot, batch);
                        return Ok(());
                    }
                    Ok(_) => {}
                    Err(Error::Closed) => return Err(Error::Closed),
                    Err(Error::ColdPending(fetch)) => {
                        self.read_after(&fetch, b);
                        return Ok(());
                    }
                    Err(e) => {
                        self.stream.end_topic(slot, topic.id(), Some(e));
                        return Ok(());
                    }
                }
            }
        }
        match delivery.workers.subscribers(topic).join(&self.stream, slot, topic, b.cursor) {
            Join::Live => {}
            Join::Behind => self.stream.requeue(slot),
            Join::Dead => self.gone(b),
        }
        Ok(())
    }

    /// Reads the backlog on when a fetch has ended.
    fn read_after(&self, fetch: &Fetch, b: &Backlog) {
        let (stream, slot, topic_id) = (Arc::downgrade(&self.stream), b.slot, b.topic.id());
        fetch.on_end(Box::new(move |outcome| {
            let Some(stream) = stream.upgrade() else { return };
            match outcome {
                Ok(()) => stream.requeue(slot),
                Err(e) => drop(stream.end_topic(slot, topic_id, Some(e.into()))),
            }
            stream.wake();
        }));
    }

    fn gone(&self, b: &Backlog) {
        if self.stream.end_topic(b.slot, b.topic.id(), None) {
            service::missed(&self.delivery, &self.stream, &b.topic);
        }
    }

    /// Sets a callback for new events: an engine thread calls it once after each time that
    /// [`Self::try_next`] returned `None`, when the next event is queued. It must not block.
    pub fn on_ready(&self, ready: impl Fn() + Send + Sync + 'static) {
        self.stream.on_ready(Arc::new(ready));
    }

    /// Name, id and cursor of each topic: a later watch resumes there.
    #[must_use]
    pub fn cursors(&self) -> Vec<(Arc<str>, u64, u64)> {
        self.stream.cursors()
    }

    /// Number of queued frames, and their bytes of memory.
    #[must_use]
    pub fn queued(&self) -> (usize, usize) {
        self.stream.queued()
    }

    /// A handle that ends the watch from another thread: its `next` returns `Closed`.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer(Arc::downgrade(&self.stream))
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    pub(super) fn attach(&mut self, session: Arc<Session>) {
        self.session = Some(session);
    }
}

/// See [`Watch::closer`].
#[derive(Clone, Debug)]
pub struct Closer(std::sync::Weak<Stream>);

impl Closer {
    /// Ends the watch. Idempotent.
    pub fn close(&self) {
        if let Some(stream) = self.0.upgrade() {
            stream.end(Error::Closed);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.closed(&self.stream, self.delivery.base().time.mono_ns());
        }
        self.delivery.workers.shared().forget(&self.stream);
        self.stream.end(Error::Closed);
        for topic in self.stream.topics() {
            if let Some(subscribers) = Subscribers::of(&topic) {
                subscribers.leave(&self.stream);
            }
        }
    }
}
