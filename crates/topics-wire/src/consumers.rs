//! Consumers: requests and answers.

use std::time::Duration;

use topics_engine::{ConsumerInfo, ConsumerMode, ConsumerRead, ConsumerStart, ReadBatch, SeekTo};

use crate::error::Failure;
use crate::filter::matching;
use crate::json::{FieldPath, Fields, Reader, Scanner, read_body};
use crate::limits::{MAX_READ_BYTES, MAX_WAIT_MS};
use crate::object::Object;
use crate::read::{begin_page, finish_page, push_records};
use crate::routes::bodies;
use crate::words::{ENDS, MODES};

/// The longest id of a reader, bytes.
const MAX_READER: usize = 64;

/// The body of a consumer PUT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerRequest {
    /// The mode; `None`: unchanged.
    pub mode: Option<ConsumerMode>,
    /// Where a new consumer begins.
    pub start: ConsumerStart,
    /// Whether a read commits the end of the previous one.
    pub auto_commit: bool,
    /// The reader that opens it.
    pub reader: Option<String>,
}

/// The body of a consumer read.
#[derive(Clone, Debug)]
pub struct ConsumerReadRequest {
    /// The read, which never waits itself.
    pub read: ConsumerRead,
    /// How long the request waits for a record.
    pub wait_ms: u64,
    /// The reader that reads.
    pub reader: Option<String>,
}

/// Reads the id of a reader.
pub(crate) fn reader_id(s: &mut Scanner<'_>, path: FieldPath) -> Result<String, Failure> {
    let id = s.text(path)?;
    if id.is_empty() || id.len() > MAX_READER {
        return Err(path.invalid(format!("has {} bytes; it needs 1 to {MAX_READER}", id.len())));
    }
    Ok(id.into_owned())
}

/// `{mode?, start?, auto_commit?, reader?}`; an empty body has no fields.
pub fn put(bytes: &[u8]) -> Result<ConsumerRequest, Failure> {
    const FIELDS: Fields = Fields::of(bodies::CONSUMER_PUT);
    let mut p = ConsumerRequest::default();
    if bytes.is_empty() {
        return Ok(p);
    }
    read_body(bytes, FIELDS, |s, key| {
        match key {
            "mode" => {
                let path = FieldPath::field("mode");
                p.mode = Some(path.choose(&s.text(path)?, &MODES)?);
            }
            "start" => {
                let path = FieldPath::field("start");
                p.start = path.choose(&s.text(path)?, &ENDS)?;
            }
            "auto_commit" => p.auto_commit = s.bool(FieldPath::field("auto_commit"))?,
            "reader" => {
                let path = FieldPath::field("reader");
                p.reader = Some(reader_id(s, path)?);
            }
            _ => s.skip()?,
        }
        Ok(())
    })?;
    Ok(p)
}

/// `{max_bytes?, max_records?, checkpoint?, wait_ms?, match?, fail_if_busy?, reader?, after?}`; an empty
/// body has no fields.
pub fn read(bytes: &[u8]) -> Result<ConsumerReadRequest, Failure> {
    const FIELDS: Fields = Fields::of(bodies::CONSUMER_READ);
    let mut r = ConsumerRead { wait: Duration::ZERO, ..ConsumerRead::default() };
    let (mut wait_ms, mut reader) = (0, None);
    if bytes.is_empty() {
        return Ok(ConsumerReadRequest { read: r, wait_ms, reader });
    }
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    read_body(bytes, FIELDS, |s, key| {
        match key {
            "max_bytes" => {
                r.max_bytes = size(s.u64(FieldPath::field("max_bytes"))?).min(MAX_READ_BYTES);
            }
            "max_records" => r.max_records = size(s.u64(FieldPath::field("max_records"))?),
            "checkpoint" => r.checkpoint = s.bool(FieldPath::field("checkpoint"))?,
            "wait_ms" => wait_ms = s.u64(FieldPath::field("wait_ms"))?.min(MAX_WAIT_MS),
            "match" => r.matching = Some(matching(s)?),
            "fail_if_busy" => r.fail_if_busy = s.bool(FieldPath::field("fail_if_busy"))?,
            "reader" => {
                let path = FieldPath::field("reader");
                reader = Some(reader_id(s, path)?);
            }
            "after" => r.after = Some(s.u64(FieldPath::field("after"))?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    if r.after.is_some() && reader.is_none() {
        return Err(FieldPath::field("after").invalid("needs `reader`, whose position it is"));
    }
    Ok(ConsumerReadRequest { read: r, wait_ms, reader })
}

/// `{seq, reader?}`.
pub fn commit(bytes: &[u8]) -> Result<(u64, Option<String>), Failure> {
    let (mut seq, mut reader) = (None, None);
    read_body(bytes, Fields::of(bodies::CONSUMER_COMMIT), |s, key| {
        let path = FieldPath::field(key);
        match key {
            "seq" => seq = Some(s.u64(path)?),
            _ => reader = Some(reader_id(s, path)?),
        }
        Ok(())
    })?;
    let seq = seq.ok_or_else(|| FieldPath::field("seq").invalid("is missing"))?;
    Ok((seq, reader))
}

/// One of `{seq}`, `{ts}`, `{to: "start"}`, `{to: "end"}`, and `reader?`.
pub fn seek(bytes: &[u8]) -> Result<(SeekTo, Option<String>), Failure> {
    let (mut to, mut reader) = (Vec::new(), None);
    read_body(bytes, Fields::of(bodies::CONSUMER_SEEK), |s, key| {
        match key {
            "reader" => {
                let path = FieldPath::field("reader");
                reader = Some(reader_id(s, path)?);
            }
            "seq" => to.push(SeekTo::Seq(s.u64(FieldPath::field("seq"))?)),
            "ts" => to.push(SeekTo::Ts(s.u64(FieldPath::field("ts"))?)),
            "to" => {
                let path = FieldPath::field("to");
                to.push(match path.choose(&s.text(path)?, &ENDS)? {
                    ConsumerStart::Start => SeekTo::Start,
                    ConsumerStart::End => SeekTo::End,
                });
            }
            _ => s.skip()?,
        }
        Ok(())
    })?;
    match to.as_slice() {
        [one] => Ok((*one, reader)),
        _ => Err(Failure::invalid(
            r#"a seek needs exactly one of seq, ts, "to": "start" and "to": "end""#,
        )),
    }
}

/// The state of a consumer.
#[must_use]
pub fn info(c: &ConsumerInfo) -> Vec<u8> {
    let mut o = Object::new(160);
    o.name("topic", &c.topic).name("consumer", &c.name).name("mode", c.mode.as_str());
    o.int("cursor", c.cursor).int("lag", c.lag).int("lag_ms", c.lag_ms);
    o.finish()
}

/// A page of consumers.
#[must_use]
pub fn list(all: &[ConsumerInfo], next: Option<&str>) -> Vec<u8> {
    let mut o = Object::new(64 + 160 * all.len());
    let items: Vec<_> = all.iter().map(info).collect();
    let out = o.key("consumers");
    out.push(b'[');
    out.extend_from_slice(&items.join(&b','));
    out.push(b']');
    if let Some(next) = next {
        o.name("next_cursor", next);
    }
    o.finish()
}

/// The answer to a read.
#[must_use]
pub fn records(topic: &str, consumer: &str, batch: &ReadBatch, total_ns: u64) -> Vec<u8> {
    let mut o = begin_page(topic, batch);
    o.name("consumer", consumer);
    push_records(&mut o, batch, true, true);
    o.int("next_from_seq", batch.next_from_seq).int("head_seq", batch.head_seq);
    finish_page(o, batch, total_ns)
}

/// The answer to a commit or a seek.
#[must_use]
pub fn position(topic: &str, consumer: &str, cursor: u64) -> Vec<u8> {
    let mut o = Object::new(96);
    o.name("topic", topic).name("consumer", consumer).int("cursor", cursor);
    o.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let p = put(br#"{"mode":"at_most_once","start":"end","auto_commit":true}"#).unwrap();
        assert_eq!((p.mode, p.start), (Some(ConsumerMode::AtMostOnce), ConsumerStart::End));
        assert!(p.auto_commit && put(b"").unwrap() == ConsumerRequest::default());
        let r = read(br#"{"max_bytes":99999999,"wait_ms":99999,"checkpoint":false}"#).unwrap();
        assert_eq!((r.read.max_bytes, r.wait_ms, r.read.checkpoint), (8 << 20, 30_000, false));
        let r = read(br#"{"reader":"a","after":7}"#).unwrap();
        assert_eq!((r.reader.as_deref(), r.read.after), (Some("a"), Some(7)));
        assert_eq!(put(br#"{"reader":"a"}"#).unwrap().reader.as_deref(), Some("a"));
        assert_eq!(commit(br#"{"seq":5}"#).unwrap(), (5, None));
        assert_eq!(commit(br#"{"seq":5,"reader":"a"}"#).unwrap(), (5, Some("a".into())));
        assert_eq!(seek(br#"{"to":"end"}"#).unwrap(), (SeekTo::End, None));
        let to = seek(br#"{"ts":5,"reader":"a"}"#).unwrap();
        assert_eq!(to, (SeekTo::Ts(5), Some("a".into())));
    }

    #[test]
    fn refusals() {
        for bad in [r#"{"mode":"once"}"#, r#"{"start":5}"#, r#"{"auto_commit":1}"#, "[]"] {
            assert_eq!(put(bad.as_bytes()).unwrap_err().code, "invalid_request", "{bad}");
        }
        for bad in [r#"{"max_bytes":"1"}"#, r#"{"match":5}"#, r#"{"checkpoint":1}"#] {
            assert_eq!(read(bad.as_bytes()).unwrap_err().code, "invalid_request", "{bad}");
        }
        for bad in ["{}", r#"{"seq":1,"ts":2}"#, r#"{"to":"tail"}"#] {
            assert_eq!(seek(bad.as_bytes()).unwrap_err().code, "invalid_request", "{bad}");
        }
        assert!(commit(b"{}").is_err());
        let long = format!(r#"{{"reader":"{}"}}"#, "x".repeat(65));
        for bad in [r#"{"after":1}"#, r#"{"reader":""}"#, r#"{"reader":5}"#, &long] {
            assert_eq!(read(bad.as_bytes()).unwrap_err().code, "invalid_request", "{bad}");
        }
    }
}
