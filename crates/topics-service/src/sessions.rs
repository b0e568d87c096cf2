//! Watch sessions: their owners, and how a client resumes one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use topics_engine::{ReadFrom, Received, WatchStart};
use topics_wire::Failure;
use topics_wire::limits::HEARTBEAT_MS;
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::watch::ids::{self, EventHistory, LastId};
use topics_wire::watch::{self, WatchSpec, frames};

use super::dispatch::Answer;
use super::streams::{Source, WatchStream};
use super::{Reply, Request, Service};

/// Minimum time that an unused session is kept here; the engine ends it earlier.
const KEPT_NS: u64 = 600_000_000_000;

/// The event history of a session, shared by its streams.
pub(super) type SharedHistory = Arc<Mutex<EventHistory>>;

/// Topic, topic id, cursor.
type Cursor = (String, u64, u64);

struct Session {
    owner: String,
    heartbeat_ms: u64,
    history: SharedHistory,
    used_ns: u64,
}

/// The sessions by id.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<u128, Session>>);

fn unknown() -> Failure {
    Failure::new("not_found", "there is no such watch session; create one with POST /v0/watch")
}

/// The cursors to go back to. An event that was never sent moves none; one that is no longer kept is
/// an error, because what was sent after it may be lost.
fn rewind(history: &EventHistory, event: u64) -> Result<Vec<Cursor>, Failure> {
    if event > history.last_event() {
        return Ok(Vec::new());
    }
    history.rewind_to(event).ok_or_else(|| {
        let message =
            "the session no longer holds the position of this event; create a new session";
        Failure::new("session_gone", message)
    })
}

impl Service {
    pub(super) fn create_session(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let lenient = Query::new(r.query).flag("lenient")?.unwrap_or(false);
        let WatchSpec { watch, .. } = watch::session(r.body, lenient, &self.limits, r.grant)?;
        let owner = r.grant.owner.clone();
        self.on_worker(r, move |s, _| {
            let heartbeat_ms = watch.heartbeat_ms.unwrap_or(HEARTBEAT_MS);
            let info = s.engine.create_session(&watch)?;
            let now = s.clock.mono_ns();
            let session = Session { owner, heartbeat_ms, history: Arc::default(), used_ns: now };
            let mut all = s.sessions.0.lock();
            // An open stream holds the history of its session.
            all.retain(|_, s| {
                Arc::strong_count(&s.history) > 1 || now.saturating_sub(s.used_ns) < KEPT_NS
            });
            all.insert(info.id, session);
            drop(all);
            let wid = ids::wid(info.id);
            let body = watch::created(&s.engine, &wid, &info);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    /// A session of this client. The session of another key is `not_found` as well.
    fn session_of(&self, r: &Request<'_>) -> Result<(u128, u64, SharedHistory), Failure> {
        let id = ids::parse_wid(r.subresource).ok_or_else(unknown)?;
        let mut all = self.sessions.0.lock();
        let session = all.get_mut(&id).filter(|s| s.owner == r.grant.owner);
        let session = session.ok_or_else(unknown)?;
        session.used_ns = self.clock.mono_ns();
        Ok((id, session.heartbeat_ms, session.history.clone()))
    }

    pub(super) fn end_session(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (id, ..) = self.session_of(r)?;
        self.sessions.0.lock().remove(&id);
        let ended = self.engine.end_session(id);
        let mut o = Object::new(96);
        o.name("wid", r.subresource).flag("ended", ended);
        self.reply(o.finish(), start_ns)
    }

    /// Opens a stream of a session.
    pub(super) fn open_session(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let (id, heartbeat_ms, history) = self.session_of(r)?;
        // The last stream sends nothing between the rewind and its end.
        let sent = history.lock();
        let received = match ids::parse(r.key) {
            Ok(LastId::Map(cursors)) => Received::Only(cursors),
            Ok(LastId::Event(event)) => Received::Behind(rewind(&sent, event)?),
            // An id that no stream has sent: the session knows its cursors.
            Err(_) => Received::All,
        };
        let watch = self.engine.attach(id, &received)?;
        drop(sent);
        let stream = WatchStream::new(watch, Some(history), heartbeat_ms);
        self.open(r.token, Source::WatchStream(Box::new(stream)), frames::OPEN.to_vec())
    }

    /// Opens a stream without a session.
    pub(super) fn open_query(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let WatchSpec { mut watch, .. } =
            watch::query(&Query::new(r.query), &self.limits, r.grant)?;
        let LastId::Map(cursors) = ids::parse(r.key)? else {
            return Err(Failure::invalid(
                "this Last-Event-ID belongs to a session; open the stream of that session",
            ));
        };
        for (name, topic_id, seq) in cursors {
            if let Some(topic) = watch.topics.iter_mut().find(|t| t.0 == name) {
                let from = ReadFrom::After(seq);
                topic.1 = WatchStart { from, topic_id: Some(topic_id) };
            }
        }
        let heartbeat_ms = watch.heartbeat_ms.unwrap_or(HEARTBEAT_MS);
        let stream = WatchStream::new(self.engine.watch(&watch)?, None, heartbeat_ms);
        self.open(r.token, Source::WatchStream(Box::new(stream)), frames::OPEN.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_another_stream_is_ignored_and_a_forgotten_one_is_an_error() {
        let mut history = EventHistory::default();
        assert_eq!(rewind(&history, 1).unwrap(), []);
        for seq in 0..20_000 {
            history.push("a".into(), 1, seq);
        }
        assert_eq!(rewind(&history, 20_001).unwrap(), []);
        assert_eq!(rewind(&history, 20_000).unwrap(), []);
        assert_eq!(rewind(&history, 19_999).unwrap(), [("a".to_owned(), 1, 19_999)]);
        assert_eq!(rewind(&history, 1).unwrap_err().code, "session_gone");
    }
}
