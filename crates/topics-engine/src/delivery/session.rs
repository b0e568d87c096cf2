//! Sessions: the request and the cursors of a subscription, kept between two streams.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{self, AtomicU64};

use super::Deliverer;
use super::history::EventHistory;
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
    /// Where the current stream began, or the last one stopped.
    cursors: Cursors,
    /// The current stream. There is one at most: what two streams have sent has no order, so that no
    /// event of one would say what the client of the other has.
    stream: Weak<Stream>,
    idle_since: u64,
    /// Whether it is in the table no more: no stream of it opens.
    ended: bool,
}

/// What the client of a session has received; it only ever leads back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Received {
    /// What the session has sent.
    #[default]
    All,
    /// These topics (name, id, cursor) were ahead of the client.
    Behind(Vec<(String, u64, u64)>),
    /// Nothing but this. A topic of the session that is not named here joined later. Ignored if it names a topic
    /// that the session does not have.
    Only(Vec<(String, u64, u64)>),
}

/// A session: what its client asked for, and how far it is.
pub struct Session {
    req: WatchRequest,
    owner: String,
    /// The events that its streams have sent. Who sends one, or goes back to one, holds it meanwhile.
    pub history: Mutex<EventHistory>,
    kept: Mutex<Kept>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    /// The interval without an event after which its streams send a heartbeat, ms.
    #[must_use]
    pub fn heartbeat_ms(&self) -> Option<u64> {
        self.req.heartbeat_ms
    }

    /// Ends the current stream; returns the cursors where the next one begins.
    fn take_over(&self, received: &Received, now: u64) -> Cursors {
        let last = std::mem::take(&mut self.kept.lock().stream).upgrade();
        if let Some(stream) = &last {
            // From here on its cursors stay as they are.
            stream.end(gone());
        }
        let mut kept = self.kept.lock();
        if let Some(stream) = last {
            kept.take(stream.cursors());
        }
        kept.rewind(received);
        kept.idle_since = now;
        kept.cursors.clone()
    }

    /// Makes a stream the current one; it ends immediately if the session has ended.
    fn opened(&self, stream: &Arc<Stream>) {
        let mut kept = self.kept.lock();
        let other = std::mem::replace(&mut kept.stream, Arc::downgrade(stream)).upgrade();
        let ended = kept.ended.then(|| stream.clone());
        drop(kept);
        for stream in other.into_iter().chain(ended) {
            stream.end(gone());
        }
    }

    /// Ends it, with its stream.
    fn end(&self) {
        let mut kept = self.kept.lock();
        kept.ended = true;
        let stream = kept.stream.upgrade();
        drop(kept);
        if let Some(stream) = stream {
            stream.end(gone());
        }
    }

    /// Keeps the cursors of the current stream, which closes. One that another has replaced is not
    /// asked any more.
    pub(super) fn closed(&self, stream: &Arc<Stream>, now: u64) {
        let cursors = stream.cursors();
        let mut kept = self.kept.lock();
        if std::ptr::eq(kept.stream.as_ptr(), Arc::as_ptr(stream)) {
            kept.take(cursors);
            (kept.stream, kept.idle_since) = (Weak::new(), now);
        }
    }

    /// Notes that a stream has said that a topic was deleted.
    pub(super) fn notified(&self, name: &str, topic_id: u64) {
        let mut kept = self.kept.lock();
        if let Some(at) = kept.cursors.get_mut(name).filter(|at| at.topic_id == topic_id) {
            at.notified = true;
        }
    }

    /// Ends it if it has had no stream for [`TTL_NS`].
    fn end_if_spent(&self, now: u64) -> bool {
        let mut kept = self.kept.lock();
        let is_idle = now.saturating_sub(kept.idle_since) >= TTL_NS;
        kept.ended = is_idle && kept.stream.strong_count() == 0;
        kept.ended
    }
}

impl Kept {
    fn take(&mut self, cursors: Vec<(Arc<str>, u64, u64)>) {
        for (name, topic_id, cursor) in cursors {
            self.cursors.insert(name, Place { topic_id, cursor, notified: false });
        }
    }

    fn rewind(&mut self, received: &Received) {
        let cursors = match received {
            Received::All => return,
            Received::Behind(cursors) => cursors,
            Received::Only(cursors) => {
                if cursors.is_empty()
                    || !cursors.iter().all(|c| self.cursors.contains_key(c.0.as_str()))
                {
                    return;
                }
                let named: HashSet<&str> = cursors.iter().map(|c| c.0.as_str()).collect();
                for (name, at) in &mut self.cursors {
                    if !named.contains(&**name) {
                        at.cursor = 0;
                    }
                }
                cursors
            }
        };
        for (name, topic_id, seq) in cursors {
            let Some(at) = self.cursors.get_mut(name.as_str()) else { continue };
            // What was said after this has not arrived, the end of an earlier topic of the name
            // included: ids of topics rise.
            match topic_id.cmp(&at.topic_id) {
                Ordering::Less => (at.topic_id, at.cursor, at.notified) = (*topic_id, *seq, false),
                Ordering::Equal => (at.cursor, at.notified) = (at.cursor.min(*seq), false),
                Ordering::Greater => {}
            }
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
        let last = self.collected.load(atomic::Ordering::Relaxed);
        if now.saturating_sub(last) < COLLECT_NS {
            return;
        }
        self.collected.store(now, atomic::Ordering::Relaxed);
        self.open.lock().retain(|_, s| !s.end_if_spent(now));
    }
}

/// A session that was created.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// A random id.
    pub id: u128,
    /// Lifetime after the last stream closed, ms.
    pub ttl_ms: u64,
    /// Name, id and cursor of each topic.
    pub cursors: Vec<(Arc<str>, u64, u64)>,
}

/// Creates a session of a client. Its tails count back from the current heads.
pub(crate) fn create(
    delivery: &Arc<Deliverer>,
    req: &WatchRequest,
    owner: &str,
) -> Result<SessionInfo> {
    let sessions = &delivery.workers.shared().sessions;
    let max = delivery.base().options.max_watch_sessions;
    delivery.base().check_limit("max_watch_sessions", max, sessions.len() as u64, 1)?;
    let first = Watch::open(delivery, req)?;
    let kept = Kept {
        cursors: HashMap::new(),
        stream: Weak::new(),
        idle_since: delivery.base().time.mono_ns(),
        ended: false,
    };
    let session = Session {
        req: req.clone(),
        owner: owner.to_owned(),
        history: Mutex::default(),
        kept: Mutex::new(kept),
    };
    let cursors = first.cursors();
    session.kept.lock().take(cursors.clone());
    let mut id = [0; 16];
    delivery.base().env.rng.fill(&mut id);
    let id = u128::from_le_bytes(id);
    sessions.open.lock().insert(id, Arc::new(session));
    Ok(SessionInfo { id, ttl_ms: TTL_NS / 1_000_000, cursors })
}

/// The session of a client by its id.
pub(crate) fn find(delivery: &Deliverer, id: u128, owner: &str) -> Result<Arc<Session>> {
    let found = delivery.workers.shared().sessions.open.lock().get(&id).cloned();
    found.filter(|session| session.owner == owner).ok_or_else(gone)
}

/// Opens a stream of a session where its last stream stopped, or behind what its client has received.
/// The last stream ends. A topic that was deleted between two streams is an event of the next one.
pub(crate) fn attach(
    delivery: &Arc<Deliverer>,
    session: &Arc<Session>,
    received: &Received,
) -> Result<Watch> {
    let cursors = session.take_over(received, delivery.base().time.mono_ns());
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
    session.opened(watch.stream());
    watch.attach(session.clone());
    Ok(watch)
}

/// Ends a session and its stream.
pub(crate) fn end(delivery: &Deliverer, id: u128) -> bool {
    let session = delivery.workers.shared().sessions.open.lock().remove(&id);
    session.map(|session| session.end()).is_some()
}

fn gone() -> Error {
    Error::SessionGone
}
