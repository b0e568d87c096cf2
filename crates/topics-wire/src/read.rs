//! Reads (`diff`): the request, and the page of records, assembled from stored bytes.

use topics_engine::{ReadBatch, ReadFrom, ReadRequest, RecordView, Tombstone};

use crate::arrow;
use crate::error::Failure;
use crate::filter::Filter;
use crate::json::{FieldPath, Fields, Reader, Scanner, push_base64, push_str, push_u64, read_body};
use crate::limits::{
    ARROW_LIMIT, BATCH_BYTES, DEFAULT_LIMIT, DEFAULT_READ_BYTES, Limits, MAX_READ_BYTES,
    MAX_WAIT_MS,
};
use crate::object::{Object, Performance};
use crate::routes::bodies;

/// The body of a read.
#[derive(Clone, Debug)]
pub struct DiffRequest {
    /// The engine request.
    pub request: ReadRequest,
    /// Whether the answer has tags.
    pub include_tags: bool,
    /// Whether the answer has metadata.
    pub include_meta: bool,
    /// How long to wait for records.
    pub wait_ms: u64,
}

/// The fields that set the start of a read or a watch.
#[derive(Clone, Copy, Default)]
pub(crate) struct Start {
    pub from: Option<ReadFrom>,
    pub tail: Option<u64>,
    pub before: Option<u64>,
}

/// The fields of a read.
const FIELDS: Fields = Fields::of(bodies::DIFF);

/// The fields of an Arrow read.
pub(crate) const ARROW_FIELDS: Fields = FIELDS.and(&["to_seq", "nodes", "ts_from", "ts_to"]);

/// Parses a request; an empty body has no fields. `arrow` raises the limits.
pub fn parse(body: &[u8], limits: &Limits, arrow: bool) -> Result<DiffRequest, Failure> {
    let mut d = DiffRequest {
        request: ReadRequest { limit: 0, max_bytes: 0, ..ReadRequest::default() },
        include_tags: false,
        include_meta: true,
        wait_ms: 0,
    };
    let mut start = Start::default();
    if !body.is_empty() {
        let fields = if arrow { ARROW_FIELDS } else { FIELDS };
        read_body(body, fields, |s, key| field(s, key, &mut d, &mut start))?;
    }
    d.request.from = start.resolve(ReadFrom::After(0))?;
    let r = &mut d.request;
    let (default, maximum) = match limits.limit {
        _ if arrow => (ARROW_LIMIT, ARROW_LIMIT),
        0 => (DEFAULT_LIMIT, usize::MAX),
        maximum => (DEFAULT_LIMIT, maximum),
    };
    r.limit = if r.limit == 0 { default.min(maximum) } else { r.limit.min(maximum) };
    let bytes = if arrow { BATCH_BYTES } else { DEFAULT_READ_BYTES };
    r.max_bytes = if r.max_bytes == 0 { bytes } else { r.max_bytes.min(MAX_READ_BYTES) };
    Ok(d)
}

fn field(
    s: &mut Scanner<'_>,
    key: &str,
    d: &mut DiffRequest,
    start: &mut Start,
) -> Result<(), Failure> {
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let r = &mut d.request;
    let filter =
        Filter { skip_nodes: &mut r.skip_nodes, matching: &mut r.matching, strong: &mut r.strong };
    if filter.field(s, key)? {
        return Ok(());
    }
    match key {
        "from_seq" => start.from = Some(from_seq(s)?),
        "tail" => start.tail = Some(s.u64(FieldPath::field("tail"))?),
        "before_seq" => start.before = Some(s.u64(FieldPath::field("before_seq"))?),
        "limit" => r.limit = size(s.u64(FieldPath::field("limit"))?),
        "max_batch_bytes" => r.max_bytes = size(s.u64(FieldPath::field("max_batch_bytes"))?),
        "wait_ms" => d.wait_ms = s.u64(FieldPath::field("wait_ms"))?.min(MAX_WAIT_MS),
        "topic_id" => r.topic_id = Some(s.u64(FieldPath::field("topic_id"))?),
        "include_tags" => d.include_tags = s.bool(FieldPath::field("include_tags"))?,
        "include_meta" => d.include_meta = s.bool(FieldPath::field("include_meta"))?,
        // Only checked here: `arrow::parse_diff` reads the fields of an Arrow read.
        "columns" => _ = arrow::columns(s)?,
        "fields" => _ = arrow::TypedFields::parse(s)?,
        "data_type" => _ = arrow::binary(s)?,
        _ => s.skip()?,
    }
    Ok(())
}

/// Parses `from_seq`: a cursor, or the earliest record.
pub(crate) fn from_seq(s: &mut Scanner<'_>) -> Result<ReadFrom, Failure> {
    let path = FieldPath::field("from_seq");
    if s.peek() != Some(b'"') {
        return Ok(ReadFrom::After(s.u64(path)?));
    }
    match s.text(path)?.as_ref() {
        "earliest" => Ok(ReadFrom::Earliest),
        other => Err(path.invalid(format_args!(
            "must be an integer of at least 0 or \"earliest\", not {other:?}"
        ))),
    }
}

impl Start {
    /// The start that the fields name, else `default`.
    pub fn resolve(self, default: ReadFrom) -> Result<ReadFrom, Failure> {
        match (self.from, self.tail, self.before) {
            (Some(_), Some(_), _) => {
                Err(FieldPath::field("tail").invalid("cannot be combined with from_seq"))
            }
            (_, None, Some(_)) => Err(FieldPath::field("before_seq").invalid("needs tail")),
            (_, Some(tail), Some(seq)) => Ok(ReadFrom::Before { seq, tail }),
            (None, Some(tail), None) => Ok(ReadFrom::Tail(tail)),
            (from, None, None) => Ok(from.unwrap_or(default)),
        }
    }
}

/// The JSON answer to a read.
#[must_use]
pub fn answer(topic: &str, batch: &ReadBatch, d: &DiffRequest, total_ns: u64) -> Vec<u8> {
    let mut o = begin_page(topic, batch);
    push_records(&mut o, batch, d.include_tags, d.include_meta);
    o.int("next_from_seq", batch.next_from_seq);
    o.int("head_seq", batch.head_seq).int("earliest_seq", batch.earliest_seq);
    finish_page(o, batch, total_ns)
}

/// Begins the answer with a page, with capacity for its records.
pub(crate) fn begin_page(topic: &str, batch: &ReadBatch) -> Object {
    let payload: usize = batch.iter().map(|r| r.data.len() + r.meta.len()).sum();
    let mut o = Object::new(512 + payload + batch.len() * 96);
    o.name("topic", topic).int("topic_id", batch.topic_id);
    o
}

/// Appends the records of a page.
pub(crate) fn push_records(o: &mut Object, batch: &ReadBatch, tags: bool, meta: bool) {
    let out = o.key("records");
    out.push(b'[');
    for (i, record) in batch.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_record(out, &record, tags, meta);
    }
    out.push(b']');
}

/// Ends the answer with a page: `caught_up`, the gap before it, the lag and the cost.
pub(crate) fn finish_page(mut o: Object, batch: &ReadBatch, total_ns: u64) -> Vec<u8> {
    o.flag("caught_up", batch.caught_up);
    match &batch.tombstone {
        None => o.key("tombstone").extend_from_slice(b"null"),
        Some(t) => push_tombstone(o.key("tombstone"), t),
    }
    o.int("lag", batch.lag).int("lag_ms", batch.lag_ms);
    let cost = Performance::of_scan(batch.records_scanned, total_ns);
    o.performance(&Performance { cold_segments_read: batch.cold_segments, ..cost });
    o.finish()
}

/// Appends a record as JSON, without absent fields.
pub fn push_record(out: &mut Vec<u8>, r: &RecordView<'_>, tags: bool, meta: bool) {
    out.extend_from_slice(b"{\"$seq\":");
    push_u64(out, r.seq);
    out.extend_from_slice(b",\"$ts\":");
    push_u64(out, r.ts);
    if !r.node.is_empty() {
        out.extend_from_slice(b",\"$node\":");
        push_str(out, r.node);
    }
    if tags && !r.tag.is_empty() {
        out.extend_from_slice(b",\"$tag\":");
        push_str(out, r.tag);
    }
    if meta && !r.meta.is_empty() {
        out.extend_from_slice(b",\"meta\":");
        out.extend_from_slice(r.meta);
    }
    if r.binary {
        out.extend_from_slice(b",\"data_b64\":\"");
        push_base64(out, r.data);
        out.push(b'"');
    } else {
        out.extend_from_slice(b",\"data\":");
        out.extend_from_slice(r.data);
    }
    out.push(b'}');
}

pub(crate) fn push_tombstone(out: &mut Vec<u8>, t: &Tombstone) {
    let mut o = Object::new(160);
    o.int("gap_from", t.gap_from).int("gap_to", t.gap_to).name("reason", t.reason.as_str());
    o.int("missed_estimate", t.missed_estimate);
    o.int("earliest_seq", t.earliest_seq).int("head_seq", t.head_seq);
    out.extend_from_slice(&o.finish());
}

#[cfg(test)]
mod tests {
    use topics_engine::TopicMatch;

    use super::*;

    fn ok(body: &str) -> DiffRequest {
        parse(body.as_bytes(), &Limits::default(), false).unwrap()
    }

    fn refused(body: &str) -> String {
        let failure = parse(body.as_bytes(), &Limits::default(), false).unwrap_err();
        assert_eq!(failure.code, "invalid_request");
        failure.message
    }

    #[test]
    fn defaults() {
        for body in ["", "{}", " { } "] {
            let d = ok(body);
            assert_eq!(d.request.from, ReadFrom::After(0));
            assert_eq!((d.request.limit, d.request.max_bytes, d.wait_ms), (256, 1 << 20, 0));
            assert!(!d.include_tags && d.include_meta && !d.request.strong);
        }
    }

    #[test]
    fn every_field() {
        let d = ok(r#"{"from_seq":7,"limit":9,"node":["a","b"],"match":["tag","Glob","x*"],
            "consistency":"strong","include_tags":true,"include_meta":false,"wait_ms":5,
            "max_batch_bytes":4096,"topic_id":3,"tail":null}"#);
        assert_eq!(d.request.from, ReadFrom::After(7));
        assert_eq!((d.request.limit, d.request.max_bytes, d.wait_ms), (9, 4096, 5));
        assert_eq!(d.request.skip_nodes.0, [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(d.request.matching, Some(TopicMatch::Glob(b"x".to_vec())));
        assert_eq!(d.request.topic_id, Some(3));
        assert!(d.request.strong && d.include_tags && !d.include_meta);
    }

    #[test]
    fn fields_of_columns_are_unknown_to_json() {
        for field in ["to_seq", "nodes", "ts_from", "ts_to"] {
            let body = format!(r#"{{"{field}":1}}"#);
            assert!(refused(&body).starts_with(&format!("unknown field `{field}`; ")));
            assert!(parse(body.as_bytes(), &Limits::default(), true).is_ok());
        }
    }

    #[test]
    fn bare_matches() {
        let matching = |body: &str| ok(body).request.matching.unwrap();
        for (bare, long) in [
            (r#""x""#, r#"["tag","Eq","x"]"#),
            (r#""x*""#, r#"["tag","Glob","x*"]"#),
            (r#""*""#, r#"["tag","Glob","*"]"#),
            (r#""a*b""#, r#"["tag","Eq","a*b"]"#),
        ] {
            let of = |value: &str| matching(&format!(r#"{{"match":{value}}}"#));
            assert_eq!(of(bare), of(long), "{bare}");
        }
    }

    #[test]
    fn an_empty_node_is_absent() {
        let skipped = |body: &str| ok(body).request.skip_nodes.0;
        assert!(skipped(r#"{"node":""}"#).is_empty() && skipped(r#"{"node":[""]}"#).is_empty());
        assert_eq!(skipped(r#"{"node":["","a"]}"#), [b"a".to_vec()]);
    }

    #[test]
    fn starts() {
        assert_eq!(ok(r#"{"from_seq":"earliest"}"#).request.from, ReadFrom::Earliest);
        assert_eq!(ok(r#"{"tail":5}"#).request.from, ReadFrom::Tail(5));
        let before = ReadFrom::Before { seq: 9, tail: 5 };
        assert_eq!(ok(r#"{"before_seq":9,"tail":5}"#).request.from, before);
        assert!(refused(r#"{"from_seq":1,"tail":5}"#).starts_with("tail cannot be combined"));
        assert!(refused(r#"{"before_seq":1}"#).starts_with("before_seq needs"));
    }

    #[test]
    fn values_over_a_maximum_clamp() {
        let d = ok(r#"{"limit":5000,"max_batch_bytes":999999999,"wait_ms":99999}"#);
        assert_eq!((d.request.limit, d.request.max_bytes), (1000, 8 << 20));
        assert_eq!(d.wait_ms, 30_000);
        let off = Limits { limit: 0, ..Limits::default() };
        let limit = |body: &str| parse(body.as_bytes(), &off, false).unwrap().request.limit;
        assert_eq!((limit("{}"), limit(r#"{"limit":5000}"#)), (256, 5000));
        let arrow = parse(br#"{"limit":5000}"#, &Limits::default(), true).unwrap();
        assert_eq!((arrow.request.limit, arrow.request.max_bytes), (5000, 2 << 20));
    }

    #[test]
    fn wrong_types_name_the_field() {
        for body in [
            r#"{"from_seq":"x"}"#,
            r#"{"from_seq":-1}"#,
            r#"{"limit":"5"}"#,
            r#"{"wait_ms":1.5}"#,
            r#"{"node":5}"#,
            r#"{"match":5}"#,
            r#"{"match":["tag","Eq"]}"#,
            r#"{"match":["tag","Like","x"]}"#,
            r#"{"match":["node","Eq","x"]}"#,
            r#"{"match":["tag","Glob","x"]}"#,
            r#"{"match":["tag","Glob","x*y*"]}"#,
            r#"{"match":"x*y*"}"#,
            r#"{"match":["tag","Eq","x","y","z"]}"#,
            r#"{"consistency":"linear"}"#,
            r#"{"include_tags":1}"#,
            r#"{"data_type":"json"}"#,
            r#"{"columns":"seq"}"#,
        ] {
            let field = body.split('"').nth(1).unwrap();
            assert!(refused(body).starts_with(field), "{body}: {}", refused(body));
        }
        assert!(refused(r#"{"node":["a",1]}"#).starts_with("node[1] must be a string"));
        assert!(refused("[]").starts_with("the body must be an object"));
    }

    #[test]
    fn records_omit_absent_fields() {
        let mut out = Vec::new();
        let bare = RecordView {
            seq: 1,
            ts: 2,
            node: b"",
            tag: b"",
            meta: b"",
            data: b"{\"a\": 1}",
            binary: false,
        };
        push_record(&mut out, &bare, true, true);
        assert_eq!(out, br#"{"$seq":1,"$ts":2,"data":{"a": 1}}"#);
        out.clear();
        let full = RecordView {
            node: b"n\"",
            tag: b"t",
            meta: br#"{"k":"v"}"#,
            data: b"\xff\x00",
            binary: true,
            ..bare
        };
        push_record(&mut out, &full, true, true);
        let text =
            r#"{"$seq":1,"$ts":2,"$node":"n\"","$tag":"t","meta":{"k":"v"},"data_b64":"/wA="}"#;
        assert_eq!(std::str::from_utf8(&out).unwrap(), text);
    }
}
