//! Watches: requests, event ids, frames.

pub mod frames;
pub mod ids;
mod request;

pub use request::{WatchSpec, query, session, subscribe};

use topics_engine::{Engine, ReadFrom, ReadRequest, SessionInfo};

use crate::object::Object;

/// The answer to the create of a session.
#[must_use]
pub fn created(engine: &Engine, wid: &str, s: &SessionInfo) -> Vec<u8> {
    let mut o = Object::new(256 + s.cursors.len() * 96);
    o.name("wid", wid).name("stream_url", &format!("/v0/watch/{wid}"));
    o.int("session_ttl_ms", s.ttl_ms);
    topics(engine, &mut o, s.cursors.iter().map(|(name, _, seq)| (name.as_ref(), *seq)));
    o.finish()
}

/// Adds `topics`: the start, id, head and earliest seq of each.
pub fn topics<'a>(engine: &Engine, o: &mut Object, cursors: impl Iterator<Item = (&'a str, u64)>) {
    let out = o.key("topics");
    out.push(b'{');
    for (i, (name, seq)) in cursors.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        crate::json::push_str(out, name.as_bytes());
        out.push(b':');
        let mut t = Object::new(96);
        t.int("from_seq", seq);
        let from = ReadFrom::After(seq);
        let request = ReadRequest { from, limit: 0, touch: false, ..ReadRequest::default() };
        if let Ok(page) = engine.read(name, &request) {
            t.int("topic_id", page.topic_id);
            t.int("head_seq", page.head_seq).int("earliest_seq", page.earliest_seq);
        }
        out.extend_from_slice(&t.finish());
    }
    out.push(b'}');
}
