//! Events as server-sent events. Records are encoded once for all watchers with the same options; only
//! the id differs.

use std::borrow::Cow;

use topics_engine::{Claimed, Error, Frame, RecordView, Tombstone};

use crate::error::Failure;
use crate::json::{push_str, push_u64};
use crate::object::Object;
use crate::read::push_record;

/// The bytes before and after the JSON of records.
const RECORD: &[u8] = b"event: record";
const LINE_ENDS: &[u8] = b"\nline-ends: ";
const DATA: &[u8] = b"\ndata: ";
const END: &[u8] = b"\n\n";

/// The first bytes of every stream: the reconnection delay.
pub const OPEN: &[u8] = b"retry: 2000\n\n";

/// An event without its id.
///
/// Every line of `data` is a `data` field of its own, and a client joins them with LF. If `data` has
/// other line ends (CR, CRLF), the field `line-ends` names each one: `n` for LF, `r` for CR, `b` for
/// CRLF. A client that does not know the field ignores it and gets equal JSON, because stored JSON has
/// line ends only as whitespace.
#[must_use]
pub fn event(kind: &str, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + kind.len() + 18);
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(kind.as_bytes());
    // Without an early exit, which lets the compiler use vector instructions.
    let has = |end: u8| data.iter().fold(false, |found, &b| found | (b == end));
    let has_cr = has(b'\r');
    if has_cr {
        push_line_ends(&mut out, data);
    }
    out.extend_from_slice(DATA);
    if has_cr || has(b'\n') {
        push_lines(&mut out, data);
    } else {
        out.extend_from_slice(data);
    }
    out.extend_from_slice(END);
    out
}

fn push_lines(out: &mut Vec<u8>, data: &[u8]) {
    let mut rest = data;
    while let Some((line, _, after)) = split_line(rest) {
        out.extend_from_slice(line);
        out.extend_from_slice(DATA);
        rest = after;
    }
    out.extend_from_slice(rest);
}

fn push_line_ends(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(LINE_ENDS);
    let mut rest = data;
    while let Some((_, end, after)) = split_line(rest) {
        out.push(match end {
            b"\n" => b'n',
            b"\r" => b'r',
            _ => b'b',
        });
        rest = after;
    }
}

/// The first line, its end (LF, CR or CRLF) and the bytes behind it; `None` if no line end is left.
fn split_line(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let at = data.iter().position(|b| matches!(b, b'\n' | b'\r'))?;
    let (line, rest) = data.split_at(at);
    let (end, after) = rest.split_at(if rest.starts_with(b"\r\n") { 2 } else { 1 });
    Some((line, end, after))
}

/// A comment that keeps an idle connection open.
#[must_use]
pub fn heartbeat(at_ms: u64) -> Vec<u8> {
    let mut out = b": hb ".to_vec();
    push_u64(&mut out, at_ms);
    out.extend_from_slice(END);
    out
}

/// The event of a frame, shared by all of its watchers.
#[must_use]
pub fn records(frame: &Frame) -> std::sync::Arc<[u8]> {
    frame.encoded(encode)
}

/// The JSON of an event from [`records`], byte for byte.
#[must_use]
pub fn json_of(event: &[u8]) -> Cow<'_, [u8]> {
    joined(event).unwrap_or(Cow::Borrowed(b"{}"))
}

fn joined(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let fields = event.strip_prefix(RECORD)?.strip_suffix(END)?;
    let (ends, lines) = match fields.strip_prefix(LINE_ENDS) {
        Some(rest) => rest.split_at(rest.iter().position(|&b| b == b'\n')?),
        None => (&b""[..], fields),
    };
    let mut lines = lines.split(|&b| b == b'\n').skip(1);
    let first = lines.next()?.strip_prefix(&DATA[1..])?;
    let mut ends = ends.iter();
    let mut json = Cow::Borrowed(first);
    for line in lines {
        let json = json.to_mut();
        json.extend_from_slice(match ends.next() {
            None | Some(b'n') => b"\n",
            Some(b'r') => b"\r",
            Some(_) => b"\r\n",
        });
        json.extend_from_slice(line.strip_prefix(&DATA[1..])?);
    }
    Some(json)
}

fn encode(frame: &Frame) -> Vec<u8> {
    let (batch, options) = (frame.batch(), frame.options());
    let payload: usize = batch.iter().map(|r| r.data.len() + r.meta.len()).sum();
    let mut o = Object::new(160 + payload + batch.len() * 96);
    o.name("topic", frame.topic());
    let out = o.key("records");
    out.push(b'[');
    for (i, record) in batch.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        if options.include_data {
            push_record(out, &record, options.include_tags, options.include_meta);
        } else {
            push_bare(out, &record, options.include_tags, options.include_meta);
        }
    }
    out.push(b']');
    o.int("from_seq", frame.from_seq()).int("to_seq", batch.next_from_seq);
    o.int("head_seq", batch.head_seq);
    event("record", &o.finish())
}

/// A record without its payload.
fn push_bare(out: &mut Vec<u8>, r: &RecordView<'_>, tags: bool, meta: bool) {
    let bare = RecordView { data: b"null", binary: false, ..*r };
    push_record(out, &bare, tags, meta);
    // Removes `,"data":null}`.
    out.truncate(out.len() - b",\"data\":null}".len());
    out.push(b'}');
}

/// A gap: records that were lost.
#[must_use]
pub fn tombstone(topic: &str, t: &Tombstone, reason: &str) -> Vec<u8> {
    let mut o = Object::new(160);
    o.name("topic", topic).name("reason", reason);
    o.int("gap_from", t.gap_from).int("gap_to", t.gap_to);
    o.int("missed_estimate", t.missed_estimate);
    o.int("earliest_seq", t.earliest_seq).int("head_seq", t.head_seq);
    o.finish()
}

/// A topic, its head and a reason.
#[must_use]
pub fn topic_head(topic: &str, head_seq: u64, reason: Option<&str>) -> Vec<u8> {
    let mut o = Object::new(96);
    o.name("topic", topic).int("head_seq", head_seq);
    if let Some(reason) = reason {
        o.name("reason", reason);
    }
    o.finish()
}

/// `{code, error, message, retry_after_ms?, topics?}`: `code` is the status, `error` the code.
#[must_use]
pub fn error(failure: &Failure, topic: Option<&str>) -> Vec<u8> {
    let mut o = Object::new(160);
    o.int("code", failure.status().into()).name("error", failure.code);
    o.name("message", &failure.message);
    match (failure.status(), Failure::retry_after_ms(&failure.body())) {
        (_, Some(ms)) => {
            o.int("retry_after_ms", ms);
        }
        (503, None) => {
            o.int("retry_after_ms", 1000);
        }
        _ => {}
    }
    if let Some(topic) = topic {
        let out = o.key("topics");
        out.push(b'[');
        push_str(out, topic.as_bytes());
        out.push(b']');
    }
    o.finish()
}

/// The failure for a topic whose delivery is throttled.
#[must_use]
pub fn throttled(retry_after_ms: u64) -> Failure {
    Failure::from(Error::Throttled { limit: "delivery", max: 0, retry_after_ms })
}

/// Appends the first event of a job stream: its id, for `extend` and `release`.
pub fn push_stream_event(out: &mut Vec<u8>, topic: &str, stream: u64) {
    let mut o = Object::new(64);
    o.name("topic", topic).name("stream", &stream.to_string());
    out.extend_from_slice(&event("stream", &o.finish()));
}

/// Appends the event of the `i`-th job of a claim. Its id is the job's seq.
pub fn push_job_event(out: &mut Vec<u8>, topic: &str, c: &Claimed, i: usize) {
    let Some((lease, _)) = c.get(i) else { return };
    let mut job = Vec::with_capacity(256);
    crate::queue::push_job(&mut job, c, i);
    let mut o = Object::reopen(job);
    o.name("topic", topic);
    out.extend_from_slice(b"id: ");
    push_u64(out, lease.seq);
    out.push(b'\n');
    out.extend_from_slice(&event("job", &o.finish()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_one_block_each() {
        assert_eq!(event("x", b"{}"), b"event: x\ndata: {}\n\n");
        assert_eq!(event("x", b"{\n\n}"), b"event: x\ndata: {\ndata: \ndata: }\n\n");
        assert_eq!(
            event("x", b"{\r\n\r\n\r \n}"),
            b"event: x\nline-ends: bbrn\ndata: {\ndata: \ndata: \ndata:  \ndata: }\n\n"
        );
        for json in ["{}", "{\n}", "{\r}", " {\n\r\r\n\n } ", "\r\n{}\n"] {
            let event = event("record", json.as_bytes());
            assert_eq!(json_of(&event), json.as_bytes(), "{json:?}");
        }
        assert_eq!(heartbeat(17), b": hb 17\n\n");
        let gone = Failure::from(Error::SessionGone);
        let json: serde_json::Value = serde_json::from_slice(&error(&gone, Some("a"))).unwrap();
        assert_eq!((json["code"].as_u64(), json["topics"][0].as_str()), (Some(410), Some("a")));
        let json: serde_json::Value =
            serde_json::from_slice(&error(&throttled(70), Some("a"))).unwrap();
        assert_eq!((json["code"].as_u64(), json["error"].as_str()), (Some(429), Some("throttled")));
        assert_eq!(json["retry_after_ms"].as_u64(), Some(70));
    }

    #[test]
    fn a_record_without_its_payload() {
        let r = RecordView {
            seq: 1,
            ts: 2,
            node: b"n",
            tag: b"t",
            meta: b"",
            data: b"\x00",
            binary: true,
        };
        let mut out = Vec::new();
        push_bare(&mut out, &r, true, true);
        assert_eq!(out, br#"{"$seq":1,"$ts":2,"$node":"n","$tag":"t"}"#);
    }
}
