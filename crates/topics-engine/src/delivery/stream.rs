//! A watcher's bounded queue and its cursors.
//!
//! A topic of the stream has a slot. It is in its backlog, and then only the watcher's end reads its
//! records; or it is live, and then only the topic's worker pushes them. Workers fill the queue up to
//! its bounds. A topic that finds the queue full goes back to its backlog: the watcher reads the missed
//! records from the topic's cursor when the queue has drained.

mod outbound;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::{Condvar, Instant, Mutex};

use self::outbound::{Mode, Outbound};
use super::frame::{Event, Frame, WatchOptions};
use crate::topic::Topic;
use crate::types::api::{GapReason, Tombstone};
use crate::types::batch::ReadBatch;
use crate::types::error::{Error, Result};
use crate::types::name;

/// A callback for a stream that has an event.
pub(super) type Ready = Arc<dyn Fn() + Send + Sync>;

/// Maximum number of topics of a stream, including topics that joined by a pattern.
const MAX_TOPICS: usize = 4096;

/// Capacity that an empty queue keeps, in items.
const SPARE: usize = 32;

/// The bounds and times of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub frames: usize,
    pub bytes: usize,
    pub heartbeat_ns: Option<u64>,
    pub stall_ns: Option<u64>,
    /// Whether the stream gets events for topics that wait under strain.
    pub wants_throttled: bool,
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Taken,
    /// The topic is not live in this stream any more.
    Left,
    /// The topic is not live any more, and the stream begins to lag with this push.
    Lags,
}

/// What [`super::Watch`] does next.
pub(super) enum Next {
    Event(Event),
    /// Read the backlog of this topic.
    Read(Backlog),
    Nothing,
}

/// A topic whose backlog is to be read.
pub(super) struct Backlog {
    pub slot: u32,
    pub topic: Arc<Topic>,
    pub cursor: u64,
    pub id: Option<u64>,
}

/// The queue and the cursors of one watcher.
pub(crate) struct Stream {
    id: u64,
    options: Arc<WatchOptions>,
    patterns: Vec<String>,
    bounds: Bounds,
    out: Mutex<Outbound>,
    filled: Condvar,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Stream {
    pub(super) fn new(
        id: u64,
        options: WatchOptions,
        patterns: Vec<String>,
        names: HashSet<Arc<str>>,
        bounds: Bounds,
        now: u64,
    ) -> Arc<Self> {
        let out = Outbound { missing: names, taken_at: now, event_at: now, ..Outbound::default() };
        Arc::new(Self {
            id,
            options: Arc::new(options),
            patterns,
            bounds,
            out: Mutex::new(out),
            filled: Condvar::new(),
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn options(&self) -> &Arc<WatchOptions> {
        &self.options
    }

    /// Whether a new topic of this name joins the stream.
    pub(super) fn wants(&self, topic: &str) -> bool {
        self.patterns.iter().any(|p| name::matches_pattern(p, topic))
            || self.out.lock().missing.contains(topic)
    }

    /// Whether no new topic can join: the stream has no pattern, and every name has a topic. Frees
    /// memory of names that have been found.
    pub(super) fn complete(&self) -> bool {
        let mut out = self.out.lock();
        out.missing.shrink_to_fit();
        self.patterns.is_empty() && out.missing.is_empty()
    }

    /// Adds a topic from a cursor on. Returns false when the stream has it, or is full or ended.
    pub(super) fn add(&self, topic: &Arc<Topic>, cursor: u64, id: Option<u64>) -> bool {
        let mut out = self.out.lock();
        if out.by_topic.contains_key(&topic.id()) || out.ended.is_some() {
            return false;
        }
        let gone = out.topics.iter().position(|p| p.mode == Mode::Gone && p.queued == 0);
        if gone.is_none() && out.topics.len() >= MAX_TOPICS {
            drop(out);
            self.end(Error::Throttled {
                limit: "max_watch_topics",
                max: MAX_TOPICS as u64,
                retry_after_ms: 0,
            });
            return false;
        }
        out.add(gone, topic, cursor, id);
        true
    }

    /// Makes a topic live that has caught up: its worker pushes from now on. The caller holds the lock
    /// of the groups.
    pub(super) fn live(&self, slot: u32, topic: &Topic, cursor: u64) {
        let mut out = self.out.lock();
        let p = &mut out.topics[slot as usize];
        (p.mode, p.fresh) = (Mode::Live, false);
        let topic_id = topic.id();
        let event = Event::CaughtUp { topic: topic.name.clone(), topic_id, seq: cursor };
        out.queue(slot, event, cursor, 0);
    }

    /// Queues a frame of a worker. Also returns whether the caller must call [`Self::wake`].
    pub(super) fn push(
        &self,
        slot: u32,
        topic_id: u64,
        tombstone: Option<Tombstone>,
        frame: Option<Arc<Frame>>,
        next: u64,
        now: u64,
    ) -> (Outcome, bool) {
        let mut out = self.out.lock();
        let p = &mut out.topics[slot as usize];
        if p.mode != Mode::Live || p.topic.id() != topic_id {
            return (Outcome::Left, false);
        }
        if tombstone.is_none() && frame.is_none() {
            // The stream selects none of the records: only the cursor moves.
            p.pushed = next;
            if p.queued == 0 {
                p.cursor = next;
            }
            return (Outcome::Taken, false);
        }
        let usage = frame.as_ref().map_or(0, |f| f.usage());
        let full = out.queue.len() + 2 > self.bounds.frames
            || (!out.queue.is_empty() && out.usage + usage > self.bounds.bytes);
        if full {
            out.topics[slot as usize].mode = Mode::Backlog;
            out.backlog.push_back(slot);
            if out.lagging {
                return (Outcome::Left, false);
            }
            (out.lagging, out.taken_at) = (true, now);
            return (Outcome::Lags, false);
        }
        out.queue_batch(slot, tombstone, frame, next, usage);
        (Outcome::Taken, out.notify())
    }

    /// Queues the event that a topic waits, unless the queue is full. Returns whether the caller must
    /// call [`Self::wake`].
    pub(super) fn push_throttled(&self, slot: u32, topic: &Topic, retry_after_ms: u64) -> bool {
        if !self.bounds.wants_throttled {
            return false;
        }
        let mut out = self.out.lock();
        let p = &out.topics[slot as usize];
        let live = p.mode == Mode::Live && p.topic.id() == topic.id();
        if !live || out.queue.len() + 2 > self.bounds.frames {
            return false;
        }
        let (next, topic_id) = (p.pushed, topic.id());
        let event = Event::Paced { topic: topic.name.clone(), topic_id, retry_after_ms };
        out.queue(slot, event, next, 0);
        out.notify()
    }

    /// Queues a batch that the watcher's end has read from the backlog of a topic.
    pub(super) fn deliver(&self, slot: u32, batch: ReadBatch) {
        let mut out = self.out.lock();
        let p = &mut out.topics[slot as usize];
        p.id = None;
        let (next, mut tombstone) = (batch.next_from_seq, batch.tombstone);
        let fresh = std::mem::take(&mut p.fresh);
        let name = p.topic.name.clone();
        if fresh && let Some(t) = tombstone.take() {
            let old = matches!(t.reason, GapReason::Cap | GapReason::Ttl | GapReason::Mixed);
            let reason = if old { "from_seq_too_old" } else { t.reason.as_str() };
            let topic_id = p.topic.id();
            let event = Event::Tombstone { topic: name.clone(), topic_id, tombstone: t, reason };
            out.queue(slot, event, t.cursor().min(next), 0);
        }
        let (cursor, options) = (out.topics[slot as usize].pushed, self.options.clone());
        let frame = (!batch.is_empty()).then(|| Frame::new(name, options, cursor, batch));
        let usage = frame.as_ref().map_or(0, |f| f.usage());
        out.queue_batch(slot, tombstone, frame, next, usage);
        let p = &mut out.topics[slot as usize];
        p.pushed = next;
        if p.queued == 0 {
            p.cursor = next;
        }
        out.backlog.push_back(slot);
    }

    /// Has the stream tell that a topic was deleted before it was added.
    pub(super) fn gone(&self, topic: Arc<str>, topic_id: u64, cursor: u64) {
        self.out.lock().gone.push_back((topic, topic_id, cursor));
    }

    /// Has the watcher's end read the records of a live topic.
    pub(super) fn fall_behind(&self, slot: u32, topic_id: u64) {
        let mut out = self.out.lock();
        let p = &mut out.topics[slot as usize];
        if p.mode == Mode::Live && p.topic.id() == topic_id {
            p.mode = Mode::Backlog;
            out.backlog.push_back(slot);
        }
    }

    /// Ends a topic that was deleted or cannot be read. Returns false if it had ended before.
    pub(super) fn end_topic(&self, slot: u32, topic_id: u64, error: Option<Error>) -> bool {
        let mut out = self.out.lock();
        let p = &mut out.topics[slot as usize];
        if matches!(p.mode, Mode::Gone | Mode::Failed) || p.topic.id() != topic_id {
            return false;
        }
        p.mode = if error.is_none() { Mode::Gone } else { Mode::Failed };
        let (topic, next) = (p.topic.name.clone(), p.pushed);
        let deleted = error.is_none();
        let event = match error {
            None => Event::TopicDeleted { topic: topic.clone(), topic_id },
            Some(error) => Event::Failed { topic: topic.clone(), topic_id, error },
        };
        out.queue(slot, event, next, 0);
        if deleted {
            out.missing.insert(topic);
        }
        true
    }

    /// Puts a topic whose backlog is not read to its end behind the other backlogs.
    pub(super) fn requeue(&self, slot: u32) {
        self.out.lock().backlog.push_back(slot);
    }

    /// Ends the stream with an error: drops the queue and wakes the waiting thread or calls the
    /// callback.
    pub(super) fn end(&self, error: Error) {
        {
            let mut out = self.out.lock();
            if out.ended.is_some() {
                return;
            }
            out.ended = Some(error);
            out.queue.clear();
            out.backlog.clear();
            out.usage = 0;
        }
        self.wake();
    }

    /// Wakes the waiting thread and calls the callback if it is due. The caller holds no lock.
    pub(super) fn wake(&self) {
        self.filled.notify_all();
        let ready = {
            let mut out = self.out.lock();
            let due = std::mem::take(&mut out.armed);
            out.ready.clone().filter(|_| due)
        };
        if let Some(ready) = ready {
            ready();
        }
    }

    /// The next step of the watcher's end: queued events first, then a backlog.
    pub(super) fn next(&self, now: u64) -> Result<Next> {
        let mut out = self.out.lock();
        if let Some(e) = &out.ended {
            return Err(e.clone());
        }
        if let Some((topic, topic_id, _)) = out.gone.pop_front() {
            (out.taken_at, out.event_at) = (now, now);
            return Ok(Next::Event(Event::TopicDeleted { topic, topic_id }));
        }
        if let Some(item) = out.queue.pop_front() {
            out.usage -= item.usage;
            let p = &mut out.topics[item.slot as usize];
            p.queued -= 1;
            p.cursor = if p.queued == 0 { p.pushed } else { item.next };
            out.lagging &= !out.queue.is_empty();
            (out.taken_at, out.event_at) = (now, now);
            return Ok(Next::Event(item.event));
        }
        out.lagging = false;
        if out.queue.capacity() > SPARE {
            out.queue = VecDeque::new();
        }
        while let Some(slot) = out.backlog.pop_front() {
            let p = &out.topics[slot as usize];
            if p.mode == Mode::Backlog {
                let (topic, cursor, id) = (p.topic.clone(), p.cursor, p.id);
                return Ok(Next::Read(Backlog { slot, topic, cursor, id }));
            }
        }
        if out.backlog.capacity() > SPARE {
            out.backlog = VecDeque::new();
        }
        out.taken_at = now;
        if self.bounds.heartbeat_ns.is_some_and(|ns| now.saturating_sub(out.event_at) >= ns) {
            out.event_at = now;
            return Ok(Next::Event(Event::Heartbeat));
        }
        out.armed = out.ready.is_some();
        Ok(Next::Nothing)
    }

    /// Waits until there is an event or a backlog, a heartbeat is due, or the deadline passes.
    pub(super) fn wait(&self, until: Option<Instant>, now: u64) {
        let mut out = self.out.lock();
        if !out.gone.is_empty()
            || !out.queue.is_empty()
            || !out.backlog.is_empty()
            || out.ended.is_some()
        {
            return;
        }
        let beat = self.bounds.heartbeat_ns.and_then(|ns| {
            let left = (out.event_at + ns).saturating_sub(now);
            Instant::now().checked_add(Duration::from_nanos(left.max(1_000_000)))
        });
        out.blocked = true;
        match until.into_iter().chain(beat).min() {
            Some(at) => {
                self.filled.wait_until(&mut out, at);
            }
            None => self.filled.wait(&mut out),
        }
        out.blocked = false;
    }

    /// Sets the callback: called once after each [`Next::Nothing`], when the next event is queued.
    pub(super) fn on_ready(&self, ready: Ready) {
        self.out.lock().ready = Some(ready);
    }

    /// Name, id and cursor of each topic.
    pub(super) fn cursors(&self) -> Vec<(Arc<str>, u64, u64)> {
        let out = self.out.lock();
        let topics = out.topics.iter().filter(|p| p.mode != Mode::Gone);
        let topics = topics.map(|p| (p.topic.name.clone(), p.topic.id(), p.cursor));
        out.gone.iter().cloned().chain(topics).collect()
    }

    /// The topics of all slots, ended ones included.
    pub(super) fn topics(&self) -> Vec<Arc<Topic>> {
        self.out.lock().topics.iter().map(|p| p.topic.clone()).collect()
    }

    /// Ends a stream that lags and was not read for too long. Returns false if the caller need not
    /// check it again.
    pub(super) fn end_if_stalled(&self, now: u64) -> bool {
        let Some(stall) = self.bounds.stall_ns else { return false };
        let stalled = {
            let out = self.out.lock();
            if !out.lagging || out.ended.is_some() {
                return false;
            }
            now.saturating_sub(out.taken_at) >= stall
        };
        if stalled {
            let (limit, max) = ("watch_stall_ms", stall / 1_000_000);
            self.end(Error::Throttled { limit, max, retry_after_ms: 1000 });
        }
        !stalled
    }

    pub(super) fn stalls(&self) -> bool {
        self.bounds.stall_ns.is_some()
    }

    /// Number of queued frames, and their bytes of memory.
    pub(crate) fn queued(&self) -> (usize, usize) {
        let out = self.out.lock();
        (out.queue.len(), out.usage)
    }
}
