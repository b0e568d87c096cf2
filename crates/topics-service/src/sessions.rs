//! Watch sessions: how a client begins, resumes and ends one.

use std::sync::Arc;

use topics_engine::{ReadFrom, Received, Session, WatchStart};
use topics_wire::Failure;
use topics_wire::limits::HEARTBEAT_MS;
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::watch::ids::{self, LastId};
use topics_wire::watch::{self, WatchSpec, frames};

use super::dispatch::Answer;
use super::streams::{Source, WatchStream};
use super::{Reply, Request, Service};

fn unknown() -> Failure {
    Failure::new("not_found", "there is no such watch session; create one with POST /v0/watch")
}

fn forgotten() -> Failure {
    let message = "the session no longer holds the position of this event; create a new session";
    Failure::new("session_gone", message)
}

impl Service {
    pub(super) fn create_session(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let lenient = Query::new(r.query).flag("lenient")?.unwrap_or(false);
        let WatchSpec { watch, .. } = watch::session(r.body, lenient, &self.limits, r.grant)?;
        let owner = r.grant.owner.clone();
        self.on_worker(r, move |s, _| {
            let info = s.engine.create_session(&watch, &owner)?;
            let wid = ids::wid(info.id);
            let body = watch::created(&s.engine, &wid, &info);
            Ok(Reply::ok(s.with_timing(body, start_ns)))
        })
    }

    /// A session of this client, by the id in the path. That of another key is `not_found` as well.
    fn session_of(&self, r: &Request<'_>) -> Result<(u128, Arc<Session>), Failure> {
        let id = ids::parse_wid(r.subresource).ok_or_else(unknown)?;
        let session = self.engine.session(id, &r.grant.owner).map_err(|_| unknown())?;
        Ok((id, session))
    }

    pub(super) fn end_session(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let (id, _) = self.session_of(r)?;
        let ended = self.engine.end_session(id);
        let mut o = Object::new(96);
        o.name("wid", r.subresource).flag("ended", ended);
        self.reply(o.finish(), start_ns)
    }

    /// Opens a stream of a session.
    pub(super) fn open_session(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let (_, session) = self.session_of(r)?;
        // The last stream sends nothing between the rewind and its end.
        let sent = session.history.lock();
        let received = match ids::parse(r.key) {
            Ok(LastId::Map(cursors)) => Received::Only(cursors),
            Ok(LastId::Event(event)) => {
                Received::Behind(sent.rewind_to(event).ok_or_else(forgotten)?)
            }
            // An id that no stream has sent: the session knows its cursors.
            Err(_) => Received::All,
        };
        let watch = self.engine.attach(&session, &received)?;
        drop(sent);
        let heartbeat_ms = session.heartbeat_ms().unwrap_or(HEARTBEAT_MS);
        let stream = WatchStream::new(watch, Some(session), heartbeat_ms);
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
