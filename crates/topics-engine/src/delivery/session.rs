//! Sessions: the request and the cursors of a subscription, kept between two streams.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, Ordering};

use super::Deliverer;
use super::stream::Stream;
use super::watch::{Known, Watch, WatchRequest, WatchStart};
use crate::types::api::ReadFrom;
use crate::types::error::{Error, Result};

/// Lifetime of a session after its last stream closed, ns.
const TTL_NS: u64 = 300_000_000_000;
/// Interval between two collections, ns.
const COLLECT_NS: u64 = 1_000_000_000;

type Cursors = HashMap<Arc<str>, Place>;

/// The place of a session in a topic.
#[derive(Clone, Copy)]
struct Place {
    topic_id: u64,
    cursor: u64,
    /// Whether a stream has said that the topic was deleted.
    notified: bool,
}

struct Kept {
    cursors: Cursors,
    streams: Vec<Weak<Stream>>,
    idle_since: u64,
}

pub(super) struct Session {
    req: WatchRequest,
    kept: Mutex<Kept>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn opened(&self, stream: &Arc<Stream>) {
        self.kept.lock().streams.push(Arc::downgrade(stream));
    }

    pub(super) fn closed(&self, stream: &Stream, now: u64) {
        let cursors = stream.cursors();
        let mut kept = self.kept.lock();
        kept.streams.retain(|s| s.upgrade().is_some_and(|s| s.id() != stream.id()));
        kept.take(cursors);
        kept.idle_since = now;
    }

    /// The cursors, those of open streams included.
    fn cursors(&self) -> Cursors {
        let streams: Vec<_> = self.kept.lock().streams.iter().filter_map(Weak::upgrade).collect();
        let open: Vec<_> = streams.iter().map(|s| s.cursors()).collect();
        let mut kept = self.kept.lock();
        open.into_iter().for_each(|c| kept.take(c));
        kept.cursors.clone()
    }

    /// Notes that a stream has said that a topic was deleted.
    pub(super) fn notified(&self, name: &str, topic_id: u64) {
        let mut kept = self.kept.lock();
        if let Some(at) = kept.cursors.get_mut(name).filter(|at| at.topic_id == topic_id) {
            at.notified = true;
        }
    }

    fn spent(&self, now: u64) -> bool {
        let kept = self.kept.lock();
        kept.streams.is_empty() && now.saturating_sub(kept.idle_since) >= TTL_NS
    }
}

impl Kept {
    fn take(&mut self, cursors: Vec<(Arc<str>, u64, u64)>) {
        for (name, topic_id, cursor) in cursors {
            let new = Place { topic_id, cursor, notified: false };
            let at = self.cursors.entry(name).or_insert(new);
            *at = if at.topic_id == topic_id && at.cursor > cursor { *at } else { new };
        }
    }
}

/// The sessions of an engine.
#[derive(Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<u128, Arc<Session>>>,
    collected: AtomicU64,
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Removes sessions that have had no stream for [`TTL_NS`].
    pub(super) fn collect(&self, now: u64) {
        let last = self.collected.load(Ordering::Relaxed);
        if now.saturating_sub(last) < COLLECT_NS {
            return;
        }
        self.collected.store(now, Ordering::Relaxed);
        self.open.lock().retain(|_, s| !s.spent(now));
    }
}

/// A session that was created.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// A random id. A caller that knows it may attach.
    pub id: u128,
    /// Lifetime after the last stream closed, ms.
    pub ttl_ms: u64,
    /// Name, id and cursor of each topic.
    pub cursors: Vec<(Arc<str>, u64, u64)>,
}

/// Creates a session. Its tails count back from the current heads.
pub(crate) fn create(delivery: &Arc<Deliverer>, req: &WatchRequest) -> Result<SessionInfo> {
    let sessions = &delivery.workers.shared().sessions;
    let max = delivery.base().options.max_watch_sessions;
    if max > 0 && sessions.len() as u64 >= max {
        delivery.base().metrics.throttled.add(1);
        return Err(Error::Throttled { limit: "max_watch_sessions", max, retry_after_ms: 1000 });
    }
    let first = Watch::open(delivery, req)?;
    let kept = Kept {
        cursors: HashMap::new(),
        streams: Vec::new(),
        idle_since: delivery.base().time.mono_ns(),
    };
    let session = Session { req: req.clone(), kept: Mutex::new(kept) };
    let cursors = first.cursors();
    session.kept.lock().take(cursors.clone());
    let mut id = [0; 16];
    delivery.base().env.rng.fill(&mut id);
    let id = u128::from_le_bytes(id);
    sessions.open.lock().insert(id, Arc::new(session));
    Ok(SessionInfo { id, ttl_ms: TTL_NS / 1_000_000, cursors })
}

/// Opens a stream of a session where its last stream stopped. `rewind` moves cursors back; it never
/// moves them forward. A topic that was deleted between two streams is an event of the next one.
pub(crate) fn attach(
    delivery: &Arc<Deliverer>,
    id: u128,
    rewind: &[(String, u64, u64)],
) -> Result<Watch> {
    let found = delivery.workers.shared().sessions.open.lock().get(&id).cloned();
    let session = found.ok_or_else(gone)?;
    let mut cursors = session.cursors();
    for (name, topic_id, seq) in rewind {
        if let Some(at) = cursors.get_mut(name.as_str()).filter(|at| at.topic_id == *topic_id) {
            // The client has not seen what was said after this.
            (at.cursor, at.notified) = (at.cursor.min(*seq), false);
        }
    }
    let mut req = session.req.clone();
    // Topics that joined by a pattern, or were created since, continue by name.
    let named = cursors.iter().map(|(name, at)| Known {
        name: name.to_string(),
        topic_id: at.topic_id,
        cursor: at.cursor,
        must_exist: !at.notified,
    });
    let known: Vec<_> = named.collect();
    req.topics.retain(|(name, _)| !cursors.contains_key(name.as_str()));
    // A topic that the session does not know was created after it, so it is read from its start.
    for (_, start) in req.topics.iter_mut().chain(&mut req.patterns) {
        *start = WatchStart { from: ReadFrom::After(0), topic_id: None };
    }
    let mut watch = Watch::resume(delivery, &req, &known)?;
    watch.attach(session);
    Ok(watch)
}

/// Ends a session and its streams.
pub(crate) fn end(delivery: &Deliverer, id: u128) -> bool {
    let Some(session) = delivery.workers.shared().sessions.open.lock().remove(&id) else {
        return false;
    };
    let streams: Vec<_> = session.kept.lock().streams.iter().filter_map(Weak::upgrade).collect();
    streams.iter().for_each(|s| s.end(gone()));
    true
}

fn gone() -> Error {
    Error::SessionGone
}
