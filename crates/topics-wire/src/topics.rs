//! Topics: small requests (delete, seek, states) and answers.

use topics_engine::{
    CreatedTopic, DeleteRequest, Deleted, DeletedTopic, Error, SegmentMap, TopicState, TopicSummary,
};

use crate::config;
use crate::error::Failure;
use crate::filter::matching;
use crate::json::{FieldPath, Fields, Reader, Scanner, push_i64, push_str, push_u64, read_body};
use crate::limits::{MAX_SEQS, MAX_STATES};
use crate::object::Object;
use crate::routes::bodies;

/// The records that a delete names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordsToDelete {
    /// Those below a seq, with a tag, or both.
    Range(DeleteRequest),
    /// Single records.
    Seqs(Vec<u64>),
}

/// `{before_seq?, match?}`, at least one; or `{seqs}`.
pub fn parse_delete(bytes: &[u8]) -> Result<RecordsToDelete, Failure> {
    const FIELDS: Fields = Fields::of(bodies::DELETE);
    let mut request = DeleteRequest::default();
    let mut seqs = None;
    read_body(bytes, FIELDS, |s, key| {
        match key {
            "before_seq" => request.before_seq = Some(s.u64(FieldPath::field("before_seq"))?),
            "match" => request.matching = Some(matching(s)?),
            _ => seqs = Some(single_seqs(s)?),
        }
        Ok(())
    })?;
    match (seqs, request.before_seq.is_some() || request.matching.is_some()) {
        (None, true) => Ok(RecordsToDelete::Range(request)),
        (Some(seqs), false) => Ok(RecordsToDelete::Seqs(seqs)),
        (Some(_), true) => {
            Err(FieldPath::field("seqs").invalid("cannot be combined with before_seq or match"))
        }
        (None, false) => Err(Failure::invalid("a delete needs before_seq, match or seqs")),
    }
}

fn single_seqs(s: &mut Scanner<'_>) -> Result<Vec<u64>, Failure> {
    s.expect_type(FieldPath::field("seqs"), "an array of integers", |b| b == b'[')?;
    let mut seqs = Vec::new();
    s.array(|s, index| {
        if index >= MAX_SEQS {
            let (got, max) = (index as u64 + 1, MAX_SEQS as u64);
            return Err(Error::BatchTooLarge { got, max, unit: "seqs" }.into());
        }
        seqs.push(s.u64(FieldPath { within: "seqs", index: Some(index), field: "" })?);
        Ok::<_, Failure>(())
    })?;
    Ok(seqs)
}

/// `{ts}`.
pub fn parse_seek(bytes: &[u8]) -> Result<u64, Failure> {
    let mut ts = None;
    read_body(bytes, Fields::of(bodies::SEEK), |s, key| {
        ts = Some(s.u64(FieldPath::field(key))?);
        Ok(())
    })?;
    ts.ok_or_else(|| FieldPath::field("ts").invalid("is missing"))
}

/// `{to_count}`.
pub fn parse_trim(bytes: &[u8]) -> Result<u64, Failure> {
    let mut count = None;
    read_body(bytes, Fields::of(bodies::TRIM), |s, key| {
        count = Some(s.u64(FieldPath::field(key))?);
        Ok(())
    })?;
    count.ok_or_else(|| FieldPath::field("to_count").invalid("is missing"))
}

/// `{topic?}`: the only topic to sync.
pub fn parse_sync(bytes: &[u8]) -> Result<Option<String>, Failure> {
    let mut topic = None;
    if bytes.is_empty() {
        return Ok(None);
    }
    read_body(bytes, Fields::of(bodies::SYNC), |s, field| {
        topic = Some(s.text(FieldPath::field(field))?.into_owned());
        Ok(())
    })?;
    Ok(topic)
}

/// The topics of a `states` request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatesRequest {
    /// By name.
    pub topics: Vec<String>,
    /// By prefix.
    pub prefixes: Vec<String>,
}

/// `{topics?, patterns?}`, at least one; a pattern is a name, or a prefix and one `*`.
pub fn parse_states(bytes: &[u8]) -> Result<StatesRequest, Failure> {
    let mut wanted = StatesRequest::default();
    let mut named = false;
    read_body(bytes, Fields::of(bodies::STATES), |s, field| {
        named = true;
        s.expect_type(FieldPath::field(field), "an array of strings", |b| b == b'[')?;
        s.array(|s, index| {
            let path = FieldPath { within: field, index: Some(index), field: "" };
            if index >= MAX_STATES {
                return Err(path.invalid(format_args!("is over the limit of {MAX_STATES} names")));
            }
            let name = s.text(path)?.into_owned();
            match name.strip_suffix('*') {
                Some(prefix) if field == "patterns" && !prefix.contains('*') => {
                    wanted.prefixes.push(prefix.to_owned());
                }
                None if !name.contains('*') => wanted.topics.push(name),
                _ => {
                    return Err(path.invalid(format_args!(
                        "is {name:?}; only a pattern may have a *, one, at its end"
                    )));
                }
            }
            Ok(())
        })
    })?;
    if named {
        Ok(wanted)
    } else {
        Err(Failure::invalid("the body needs topics, patterns or both"))
    }
}

/// The segments of a topic.
#[must_use]
pub fn segments(topic: &str, map: &SegmentMap) -> Vec<u8> {
    let mut list = vec![b'['];
    for (i, s) in map.ranges.iter().enumerate() {
        if i > 0 {
            list.push(b',');
        }
        let mut o = Object::new(192);
        o.name("tier", s.tier.as_str()).int("first_seq", s.first_seq).int("last_seq", s.last_seq);
        o.int("count", s.count).int("bytes", s.bytes);
        o.int("first_ts", s.first_ts).int("last_ts", s.last_ts);
        if let Some(file_no) = s.file_no {
            o.int("file_no", file_no).int("file_bytes", s.file_bytes).flag("sealed", s.sealed);
        }
        list.extend_from_slice(&o.finish());
    }
    list.push(b']');
    let mut o = Object::new(list.len() + 160);
    o.name("topic", topic).int("topic_id", map.topic_id);
    o.int("head_seq", map.head_seq).int("earliest_seq", map.earliest_seq);
    o.raw("segments", &list);
    o.finish()
}

#[must_use]
pub fn state(s: &TopicState) -> Vec<u8> {
    let mut o = Object::new(900);
    o.name("topic", &s.topic).int("topic_id", s.topic_id).int("epoch", s.epoch);
    o.name("type", s.config.kind.as_str());
    o.int("head_seq", s.head_seq).int("earliest_seq", s.earliest_seq);
    o.int("evict_floor", s.evict_floor).int("next_seq", s.next_seq);
    o.int("count", s.count).int("bytes", s.bytes);
    let out = o.key("gaps");
    out.push(b'[');
    for (i, gap) in s.gaps.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"[" } else { b",[" });
        push_u64(out, gap.from);
        out.push(b',');
        push_u64(out, gap.to);
        out.push(b',');
        push_str(out, gap.reason.as_str().as_bytes());
        out.push(b']');
    }
    out.push(b']');
    config::push(o.key("config"), &s.config);
    push_i64(o.key("effective_priority"), i64::from(s.effective_priority));
    o.maybe("last_write_ts", s.last_write_ts).maybe("last_read_ts", s.last_read_ts);
    if let Some(q) = &s.queue {
        let counts = [
            ("ready", q.ready),
            ("in_flight", q.in_flight),
            ("delayed", q.delayed),
            ("dead", q.dead),
            ("dead_lettered", q.dead_lettered),
            ("expired", q.expired),
        ];
        let out = o.key("queue");
        for (i, (name, n)) in counts.into_iter().enumerate() {
            out.push(if i == 0 { b'{' } else { b',' });
            push_str(out, name.as_bytes());
            out.push(b':');
            push_u64(out, n);
        }
        out.push(b'}');
    }
    o.finish()
}

/// A page of topics; `next` is the cursor of the next page.
#[must_use]
pub fn list(topics: &[TopicSummary], next: Option<&str>) -> Vec<u8> {
    let mut out = Object::new(64 + topics.len() * 160);
    let items = out.key("topics");
    items.push(b'[');
    for (i, t) in topics.iter().enumerate() {
        if i > 0 {
            items.push(b',');
        }
        let mut o = Object::new(160);
        o.name("topic", &t.topic).name("type", t.kind.as_str());
        o.int("head_seq", t.head_seq).int("earliest_seq", t.earliest_seq);
        o.int("count", t.count).int("bytes", t.bytes);
        o.flag("durable", t.durability == topics_engine::Durability::Fsync);
        o.name("durability", t.durability.as_str());
        push_i64(o.key("effective_priority"), i64::from(t.effective_priority));
        items.extend_from_slice(&o.finish());
    }
    items.push(b']');
    if let Some(next) = next {
        out.name("next_cursor", next);
    }
    out.finish()
}

/// The states of many topics; `missing` lists requested names that do not exist.
#[must_use]
pub fn states(found: &[TopicState], missing: &[String]) -> Vec<u8> {
    let mut out = Object::new(64 + found.len() * 900);
    let items = out.key("topics");
    items.push(b'{');
    for (i, s) in found.iter().enumerate() {
        if i > 0 {
            items.push(b',');
        }
        push_str(items, s.topic.as_bytes());
        items.push(b':');
        items.extend_from_slice(&state(s));
    }
    items.push(b'}');
    out.names("missing", missing);
    out.finish()
}

/// The answer to a create.
#[must_use]
pub fn created(topic: &str, c: &CreatedTopic) -> (u16, Vec<u8>) {
    let mut o = Object::new(700);
    o.name("topic", topic).int("topic_id", c.topic_id).flag("created", c.created);
    config::push(o.key("config"), &c.config);
    (if c.created { 201 } else { 200 }, o.finish())
}

/// The answer to the delete of a topic.
#[must_use]
pub fn dropped(topic: &str, d: &DeletedTopic) -> Vec<u8> {
    let mut o = Object::new(128);
    o.name("topic", topic).flag("deleted", d.deleted).names("routers_removed", &d.routers_removed);
    o.finish()
}

/// The answer to the delete of records.
#[must_use]
pub fn deleted(topic: &str, d: &Deleted) -> Vec<u8> {
    let mut o = Object::new(160);
    o.name("topic", topic).int("deleted", d.deleted);
    o.int("earliest_seq", d.state.earliest_seq).int("head_seq", d.state.head_seq);
    o.int("count", d.state.count).int("bytes", d.state.bytes);
    o.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topics_engine::TopicMatch;

    #[test]
    fn deletes() {
        let range =
            |before_seq, matching| RecordsToDelete::Range(DeleteRequest { before_seq, matching });
        let both = parse_delete(br#"{"before_seq":5,"match":["tag","Eq","x"]}"#).unwrap();
        assert_eq!(both, range(Some(5), Some(TopicMatch::Eq(b"x".to_vec()))));
        let bare = parse_delete(br#"{"match":"x*","before_seq":null}"#).unwrap();
        assert_eq!(bare, range(None, Some(TopicMatch::Glob(b"x".to_vec()))));
        let seqs = parse_delete(br#"{"seqs":[7,2,7],"match":null}"#).unwrap();
        assert_eq!(seqs, RecordsToDelete::Seqs(vec![7, 2, 7]));
        assert_eq!(parse_delete(br#"{"seqs":[]}"#).unwrap(), RecordsToDelete::Seqs(vec![]));
        for body in [
            "{}",
            "[]",
            "",
            r#"{"before_seq":"5"}"#,
            r#"{"before_seq":5"#,
            r#"{"seqs":5}"#,
            r#"{"seqs":[-1]}"#,
            r#"{"seqs":[1],"before_seq":5}"#,
            r#"{"seqs":[1],"match":"x"}"#,
            r#"{"seqs":null}"#,
        ] {
            assert_eq!(parse_delete(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
        let many = format!(r#"{{"seqs":{:?}}}"#, vec![1; 1001]);
        assert_eq!(parse_delete(many.as_bytes()).unwrap_err().code, "batch_too_large");
    }

    #[test]
    fn seeks() {
        assert_eq!(parse_seek(br#"{"ts":17}"#).unwrap(), 17);
        for body in ["{}", r#"{"ts":null}"#, r#"{"ts":-1}"#, r#"{"ts":1e3}"#] {
            assert_eq!(parse_seek(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }

    #[test]
    fn trims() {
        assert_eq!(parse_trim(br#"{"to_count":0}"#).unwrap(), 0);
        for body in ["{}", r#"{"to_count":null}"#, r#"{"to_count":-1}"#, r#"{"count":1}"#] {
            assert_eq!(parse_trim(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }

    #[test]
    fn a_sync_of_one_topic_or_of_all() {
        assert_eq!(parse_sync(b"").unwrap(), None);
        assert_eq!(parse_sync(b"{}").unwrap(), None);
        assert_eq!(parse_sync(br#"{"topic":null}"#).unwrap(), None);
        assert_eq!(parse_sync(br#"{"topic":"a"}"#).unwrap(), Some("a".into()));
        for body in ["[]", r#"{"topic":1}"#, r#"{"topics":["a"]}"#] {
            assert_eq!(parse_sync(body.as_bytes()).unwrap_err().code, "invalid_request", "{body}");
        }
    }

    #[test]
    fn many_states() {
        let s = parse_states(br#"{"topics":["a","b"],"patterns":["c.*","d","*"]}"#).unwrap();
        assert_eq!((s.topics.len(), s.prefixes), (3, vec!["c.".to_owned(), String::new()]));
        for body in ["{}", r#"{"topics":["a*"]}"#, r#"{"patterns":["*a*"]}"#, r#"{"topics":[1]}"#] {
            assert_eq!(parse_states(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }
}
