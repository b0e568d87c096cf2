//! Consumers: requests and answers.

use std::time::Duration;

use topics_engine::{ConsumerInfo, ConsumerMode, ConsumerRead, ConsumerStart, ReadBatch, SeekTo};

use crate::error::Failure;
use crate::json::{FieldPath, Fields, Reader, read_body};
use crate::limits::{MAX_READ_BYTES, MAX_WAIT_MS};
use crate::object::Object;
use crate::read::{begin_page, finish_page, matching, push_records};

/// The body of a consumer PUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsumerRequest {
    /// The mode; `None`: unchanged.
    pub mode: Option<ConsumerMode>,
    /// Where a new consumer begins.
    pub start: ConsumerStart,
    /// Whether a read commits the end of the previous one.
    pub auto_commit: bool,
}

/// `{mode?, start?, auto_commit?}`; an empty body has no fields.
pub fn put(bytes: &[u8]) -> Result<ConsumerRequest, Failure> {
    const FIELDS: Fields = Fields::of(&["mode", "start", "auto_commit"]);
    let mut p = ConsumerRequest::default();
    if bytes.is_empty() {
        return Ok(p);
    }
    read_body(bytes, FIELDS, |s, key| {
        match key {
            "mode" => {
                let path = FieldPath::field("mode");
                p.mode = Some(match s.text(path)?.as_ref() {
                    "at_least_once" => ConsumerMode::AtLeastOnce,
                    "at_most_once" => ConsumerMode::AtMostOnce,
                    word => {
                        return Err(path.invalid_choice(word, &["at_least_once", "at_most_once"]));
                    }
                });
            }
            "start" => {
                let path = FieldPath::field("start");
                p.start = match s.text(path)?.as_ref() {
                    "start" => ConsumerStart::Start,
                    "end" => ConsumerStart::End,
                    word => return Err(path.invalid_choice(word, &["start", "end"])),
                };
            }
            "auto_commit" => p.auto_commit = s.bool(FieldPath::field("auto_commit"))?,
            _ => s.skip()?,
        }
        Ok(())
    })?;
    Ok(p)
}

/// `{max_bytes?, max_records?, checkpoint?, wait_ms?, match?, fail_if_busy?}`; an empty body has no
/// fields. Returns the read, which never waits itself, and `wait_ms`.
pub fn read(bytes: &[u8]) -> Result<(ConsumerRead, u64), Failure> {
    const FIELDS: Fields =
        Fields::of(&["max_bytes", "max_records", "checkpoint", "wait_ms", "match", "fail_if_busy"]);
    let mut r = ConsumerRead { wait: Duration::ZERO, ..ConsumerRead::default() };
    let mut wait_ms = 0;
    if bytes.is_empty() {
        return Ok((r, wait_ms));
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
            _ => s.skip()?,
        }
        Ok(())
    })?;
    Ok((r, wait_ms))
}

/// `{seq}`.
pub fn commit(bytes: &[u8]) -> Result<u64, Failure> {
    let mut seq = None;
    read_body(bytes, Fields::of(&["seq"]), |s, key| {
        seq = Some(s.u64(FieldPath::field(key))?);
        Ok(())
    })?;
    seq.ok_or_else(|| FieldPath::field("seq").invalid("is missing"))
}

/// One of `{seq}`, `{ts}`, `{to: "start"}`, `{to: "end"}`.
pub fn seek(bytes: &[u8]) -> Result<SeekTo, Failure> {
    let mut to = Vec::new();
    read_body(bytes, Fields::of(&["seq", "ts", "to"]), |s, key| {
        match key {
            "seq" => to.push(SeekTo::Seq(s.u64(FieldPath::field("seq"))?)),
            "ts" => to.push(SeekTo::Ts(s.u64(FieldPath::field("ts"))?)),
            "to" => {
                let path = FieldPath::field("to");
                to.push(match s.text(path)?.as_ref() {
                    "start" => SeekTo::Start,
                    "end" => SeekTo::End,
                    word => return Err(path.invalid_choice(word, &["start", "end"])),
                });
            }
            _ => s.skip()?,
        }
        Ok(())
    })?;
    match to.as_slice() {
        [one] => Ok(*one),
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
        let (r, wait) =
            read(br#"{"max_bytes":99999999,"wait_ms":99999,"checkpoint":false}"#).unwrap();
        assert_eq!((r.max_bytes, wait, r.checkpoint), (8 << 20, 30_000, false));
        assert_eq!(commit(br#"{"seq":5}"#).unwrap(), 5);
        assert_eq!(seek(br#"{"to":"end"}"#).unwrap(), SeekTo::End);
        assert_eq!(seek(br#"{"ts":5}"#).unwrap(), SeekTo::Ts(5));
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
    }
}
