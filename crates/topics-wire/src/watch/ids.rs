//! Ids of sessions and of events.
//!
//! The id of an event says where a stream resumes. It is the map of all cursors,
//! `{"topic":[topic_id,seq],…}` as base64url. A session with more
//! than [`ID_TOPICS`] topics numbers its events instead, and keeps the cursor that each one moved.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use topics_engine::EventHistory;

use crate::error::Failure;
use crate::json::{FieldPath, Reader, Scanner, push_str, push_u64};
use crate::limits::ID_TOPICS;

/// Topic, topic id, cursor.
pub type Cursor = (Arc<str>, u64, u64);

/// The prefix of every session id.
const WID: &str = "wid_";

/// `wid_` and the base64url text of the 16 bytes of a session's id.
#[must_use]
pub fn wid(id: u128) -> String {
    let mut text = WID.to_owned();
    BASE64_URL_SAFE_NO_PAD.encode_string(id.to_le_bytes(), &mut text);
    text
}

/// The session's id; `None` unless the text is exactly what [`wid`] returns for it.
#[must_use]
pub fn parse_wid(text: &str) -> Option<u128> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.strip_prefix(WID)?).ok()?;
    Some(u128::from_le_bytes(bytes.try_into().ok()?))
}

/// Appends the id with these cursors.
pub fn push_map(out: &mut Vec<u8>, cursors: &[Cursor]) {
    let mut text = Vec::with_capacity(48 * cursors.len() + 2);
    text.push(b'{');
    for (i, (name, id, seq)) in cursors.iter().enumerate() {
        if i > 0 {
            text.push(b',');
        }
        push_str(&mut text, name.as_bytes());
        text.extend_from_slice(b":[");
        push_u64(&mut text, *id);
        text.push(b',');
        push_u64(&mut text, *seq);
        text.push(b']');
    }
    text.push(b'}');
    out.extend_from_slice(BASE64_URL_SAFE_NO_PAD.encode(&text).as_bytes());
}

/// A parsed `Last-Event-ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastId {
    /// Topic, topic id, cursor.
    Map(Vec<(String, u64, u64)>),
    /// The number of an event of the session.
    Event(u64),
}

/// Parses an id; the empty id is the start of a stream.
pub fn parse(id: &[u8]) -> Result<LastId, Failure> {
    if let Some(digits) = id.strip_prefix(b"s") {
        let event = std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok());
        return event.map(LastId::Event).ok_or_else(unknown_id);
    }
    if id.is_empty() {
        return Ok(LastId::Map(Vec::new()));
    }
    let text = BASE64_URL_SAFE_NO_PAD.decode(id).map_err(|_| unknown_id())?;
    map(&text).map(LastId::Map).map_err(|_| unknown_id())
}

fn map(text: &[u8]) -> Result<Vec<(String, u64, u64)>, Failure> {
    let mut s = Scanner::new(text)?;
    let path = FieldPath::field("Last-Event-ID");
    s.expect_type(path, "an object", |b| b == b'{')?;
    let mut cursors = Vec::new();
    s.object(|s, key| {
        let name = key.decode().ok_or_else(unknown_id)?.into_owned();
        let mut pair = [0; 2];
        s.expect_type(path, "an array", |b| b == b'[')?;
        let mut n = 0;
        s.array(|s, i| {
            *pair.get_mut(i).ok_or_else(unknown_id)? = s.u64(path)?;
            n = i + 1;
            Ok::<_, Failure>(())
        })?;
        if n < 2 {
            return Err(unknown_id());
        }
        cursors.push((name, pair[0], pair[1]));
        Ok(())
    })?;
    s.end()?;
    Ok(cursors)
}

fn unknown_id() -> Failure {
    Failure::invalid("Last-Event-ID does not come from a stream; send it back unchanged")
}

/// The cursors that the client of a stream has received.
#[derive(Debug, Default)]
pub struct ClientCursors {
    seqs: HashMap<u64, u64>,
}

impl ClientCursors {
    /// The cursors at the start of a stream.
    #[must_use]
    pub fn new(cursors: &[Cursor]) -> Self {
        Self { seqs: cursors.iter().map(|(_, id, seq)| (*id, *seq)).collect() }
    }

    /// The cursor of a topic; 0 when it is unknown.
    #[must_use]
    pub fn cursor(&self, topic_id: u64) -> u64 {
        self.seqs.get(&topic_id).copied().unwrap_or(0)
    }

    /// Appends the id of an event of `topic`; `cursors` are those after the event.
    pub fn push_id(
        &mut self,
        out: &mut Vec<u8>,
        cursors: &[Cursor],
        topic: &Arc<str>,
        topic_id: u64,
        history: Option<&mut EventHistory>,
    ) {
        let now = cursors.iter().find(|c| c.1 == topic_id).map(|c| c.2);
        let before = match now {
            Some(now) => self.seqs.insert(topic_id, now).unwrap_or(0),
            None => self.seqs.remove(&topic_id).unwrap_or(0),
        };
        match history {
            Some(history) => {
                let event = history.push(topic.clone(), topic_id, before);
                if cursors.len() > ID_TOPICS {
                    out.push(b's');
                    push_u64(out, event);
                } else {
                    push_map(out, cursors);
                }
            }
            None => push_map(out, cursors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_sessions() {
        let id = u128::from_le_bytes(*b"\xfb\xff\x00456789abcdef\x01");
        let text = wid(id);
        assert_eq!(text, "wid_-_8ANDU2Nzg5YWJjZGVmAQ");
        assert_eq!((text.len(), parse_wid(&text)), (26, Some(id)));
        for bad in [
            &text[4..],
            "wid_",
            "wid_0",
            "wid_+/8ANDU2Nzg5YWJjZGVmAQ",
            "wid_-_8ANDU2Nzg5YWJjZGVmAR",
            "wid_-_8ANDU2Nzg5YWJjZGVmAQ==",
            "wid_-_8ANDU2Nzg5YWJjZGVm",
            "WID_-_8ANDU2Nzg5YWJjZGVmAQ",
            "",
        ] {
            assert_eq!(parse_wid(bad), None, "{bad}");
        }
    }

    fn cursors(n: u64) -> Vec<Cursor> {
        (1..=n).map(|i| (format!("t\"{i}").into(), i, 10 * i)).collect()
    }

    #[test]
    fn a_map_round_trips() {
        let mut out = Vec::new();
        push_map(&mut out, &cursors(2));
        let wanted = vec![("t\"1".to_owned(), 1, 10), ("t\"2".to_owned(), 2, 20)];
        assert_eq!(parse(&out).unwrap(), LastId::Map(wanted));
        assert_eq!(parse(b"").unwrap(), LastId::Map(vec![]));
        assert_eq!(parse(b"s17").unwrap(), LastId::Event(17));
        for bad in [
            &b"s"[..],
            b"s-1",
            b"!",
            b"e30=",
            b"e31",
            b"W10",
            b"eyJhIjpbMV19",
            b"eyJhIjpbMSwyLDNdfQ",
        ] {
            assert_eq!(parse(bad).unwrap_err().code, "invalid_request", "{bad:?}");
        }
    }

    #[test]
    fn many_topics_are_numbered() {
        let mut history = EventHistory::default();
        let (few, many) = (cursors(64), cursors(65));
        let mut known = ClientCursors::new(&few);
        let (mut out, topic) = (Vec::new(), few[0].0.clone());
        known.push_id(&mut out, &few, &topic, 1, Some(&mut history));
        assert!(matches!(parse(&out).unwrap(), LastId::Map(m) if m.len() == 64));
        out.clear();
        known.push_id(&mut out, &many, &topic, 1, Some(&mut history));
        assert_eq!(parse(&out).unwrap(), LastId::Event(2));
    }
}
