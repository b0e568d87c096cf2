//! Writes: JSON, NDJSON, binary and Arrow bodies, and the answer.

mod table;
mod trace;
pub mod txn;
pub mod txn_answer;

use std::borrow::Cow;

use topics_engine::{Append, Appended, ConfigPatch, Error, NewRecord};

use crate::config;
use crate::error::Failure;
use crate::grant::Grant;
use crate::json::{
    DATA_DEPTH, FieldPath, Fields, Reader, Scanner, SyntaxError, Text, decode_base64, read_body,
    utf8, validate_text,
};
use crate::limits::{KEY_BYTES, Limits, META_KEYS};
use crate::object::{Object, Performance};
use crate::query::Query;
use crate::routes::{bodies, fields};

pub use table::Table;

/// One record of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Record<'a> {
    data: Cow<'a, [u8]>,
    binary: bool,
    tag: Cow<'a, str>,
    node: Cow<'a, str>,
    meta: Cow<'a, str>,
    ttl_ms: u64,
    lane: Option<u8>,
    group: Cow<'a, str>,
    delay_ms: u64,
    deliver_at: u64,
}

/// A parsed write.
#[derive(Clone, Debug, Default)]
pub struct Write<'a> {
    records: Vec<Record<'a>>,
    node: Cow<'a, str>,
    key: Cow<'a, [u8]>,
    expect_head: Option<u64>,
    sync: bool,
    create: Option<bool>,
    /// The config of a topic that the write creates.
    pub config: Option<ConfigPatch>,
    /// Whether [`Self::restrict`] took the right to create the topic.
    pub is_restricted: bool,
    /// Whether to wait for a staging permit instead of being refused.
    pub disable_backpressure: bool,
    /// Whether the answer lists every seq.
    pub return_seqs: bool,
}

/// The fields of a JSON body.
const WRITE: Fields = Fields::of(bodies::WRITE);
/// The fields of a publish message.
const PUBLISH: Fields = WRITE.and(&["op", "request_id", "topic", "return_seqs"]);
/// The fields of a record; `data` may be `null`.
const RECORD: Fields = Fields::of(&[fields::RECORD]);

/// The format of the body of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// `application/json`.
    #[default]
    Json,
    /// `application/x-ndjson`: one `data` a line.
    Ndjson,
    /// `application/octet-stream`: one binary record.
    Binary,
    /// `application/vnd.apache.arrow.stream`: rows, read as a [`Table`].
    Arrow,
}

/// Parses a write. `header_key` is the `Idempotency-Key` header; a key in the body wins.
pub fn parse<'a>(
    kind: Body,
    body: &'a [u8],
    query: &Query<'a>,
    header_key: &'a [u8],
    limits: &Limits,
) -> Result<Write<'a>, Failure> {
    let return_seqs = query.flag("return_seqs")?.unwrap_or(true);
    let mut w = Write { key: header_key.into(), return_seqs, ..Write::default() };
    match kind {
        Body::Json => json(&mut w, body, WRITE, limits)?,
        Body::Ndjson => ndjson(&mut w, body, limits)?,
        Body::Binary => {
            let data = Cow::Borrowed(body);
            w.records.push(Record { data, binary: true, ..Record::default() });
        }
        Body::Arrow => return Err(Failure::new("internal", "columns are read as a table")),
    }
    finish(kind, w, query, limits)
}

/// Parses a publish message, which has the query parameters as fields.
pub fn parse_publish<'a>(text: &'a [u8], limits: &Limits) -> Result<Write<'a>, Failure> {
    let mut w = Write { return_seqs: true, ..Write::default() };
    json(&mut w, text, PUBLISH, limits)?;
    finish(Body::Json, w, &Query::new(b""), limits)
}

/// Parses a write from the rows of a table.
pub fn parse_table<'a>(
    table: &'a Table,
    query: &Query<'a>,
    header_key: &'a [u8],
    limits: &Limits,
) -> Result<Write<'a>, Failure> {
    let return_seqs = query.flag("return_seqs")?.unwrap_or(true);
    let records = table.records()?;
    let w = Write { records, key: header_key.into(), return_seqs, ..Write::default() };
    finish(Body::Arrow, w, query, limits)
}

fn finish<'a>(
    kind: Body,
    mut w: Write<'a>,
    query: &Query<'a>,
    limits: &Limits,
) -> Result<Write<'a>, Failure> {
    match kind {
        Body::Json => not_in_query(query)?,
        _ => from_query(&mut w, query)?,
    }
    check_size("idempotency_key", w.key.len(), KEY_BYTES)?;
    check_size("node", w.node.len(), limits.node_bytes)?;
    for (index, record) in w.records.iter().enumerate() {
        check_record(index, record, limits)?;
    }
    if w.records.is_empty() {
        return Err(FieldPath::field("records").invalid("must not be empty"));
    }
    Ok(w)
}

fn json<'a>(
    w: &mut Write<'a>,
    body: &'a [u8],
    fields: Fields,
    limits: &Limits,
) -> Result<(), Failure> {
    let mut named = false;
    read_body(body, fields, |s, key| {
        match key {
            "records" => {
                named = true;
                records(w, s, limits)?;
            }
            "node" => w.node = s.text(FieldPath::field("node"))?,
            "idempotency_key" => w.key = body_key(s)?,
            "expect_head" => w.expect_head = Some(s.u64(FieldPath::field("expect_head"))?),
            "sync" => w.sync = s.bool(FieldPath::field("sync"))?,
            "create" => w.create = Some(s.bool(FieldPath::field("create"))?),
            "config" => w.config = Some(config::read(s, "config")?),
            "disable_backpressure" => {
                w.disable_backpressure = s.bool(FieldPath::field("disable_backpressure"))?;
            }
            "return_seqs" => w.return_seqs = s.bool(FieldPath::field("return_seqs"))?,
            // `op`, `request_id` and `topic` of a message are read with its head.
            _ => s.skip()?,
        }
        Ok(())
    })?;
    if named { Ok(()) } else { Err(FieldPath::field("records").invalid("is missing")) }
}

fn body_key<'a>(s: &mut Scanner<'a>) -> Result<Cow<'a, [u8]>, Failure> {
    let path = FieldPath::field("idempotency_key");
    match s.text(path)? {
        key if key.is_empty() => Err(path.invalid("must not be empty")),
        Cow::Borrowed(key) => Ok(key.as_bytes().into()),
        Cow::Owned(key) => Ok(key.into_bytes().into()),
    }
}

fn records<'a>(w: &mut Write<'a>, s: &mut Scanner<'a>, limits: &Limits) -> Result<(), Failure> {
    s.expect_type(FieldPath::field("records"), "an array", |b| b == b'[')?;
    w.records.clear();
    s.array(|s, index| {
        check_count(index + 1, limits)?;
        w.records.push(record(s, index)?);
        Ok(())
    })
}

fn record<'a>(s: &mut Scanner<'a>, index: usize) -> Result<Record<'a>, Failure> {
    let path = FieldPath { within: "records", index: Some(index), field: "" };
    s.expect_type(path, "an object", |b| b == b'{')?;
    let mut r = Record::default();
    let mut data = None;
    let mut data_b64 = None;
    RECORD.read(s, path, |s, key| {
        match key {
            "data" => data = Some(s.value()?),
            "data_b64" => data_b64 = Some(base64_bytes(s, path.at("data_b64"))?),
            "tag" => r.tag = s.text(path.at("tag"))?,
            "node" => r.node = s.text(path.at("node"))?,
            "meta" => r.meta = meta(s, path.at("meta"))?.into(),
            "ttl_ms" => r.ttl_ms = s.u64(path.at("ttl_ms"))?,
            "delay_ms" => r.delay_ms = s.u64(path.at("delay_ms"))?,
            "deliver_at" => r.deliver_at = s.u64(path.at("deliver_at"))?,
            "group" => r.group = s.text(path.at("group"))?,
            "lane" => r.lane = Some(lane(s, path.at("lane"))?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    match (data, data_b64) {
        (Some(data), None) => r.data = data.as_bytes().into(),
        (None, Some(bytes)) => (r.data, r.binary) = (bytes.into(), true),
        (None, None) => return Err(path.invalid("needs data or data_b64")),
        (Some(_), Some(_)) => {
            return Err(path.invalid("has both data and data_b64; send one of them"));
        }
    }
    Ok(r)
}

fn lane(s: &mut Scanner<'_>, path: FieldPath) -> Result<u8, Failure> {
    let lane = s.u64(path)?;
    let valid = u8::try_from(lane).ok().filter(|lane| *lane <= 9);
    valid.ok_or_else(|| path.invalid(format_args!("must be 0 to 9, not {lane}")))
}

fn base64_bytes(s: &mut Scanner<'_>, path: FieldPath) -> Result<Vec<u8>, Failure> {
    let text = s.text(path)?;
    decode_base64(text.as_bytes()).ok_or_else(|| path.invalid("is not base64 with padding"))
}

/// Parses `meta`: an object of strings, kept as it was sent.
fn meta<'a>(s: &mut Scanner<'a>, path: FieldPath) -> Result<&'a str, Failure> {
    s.expect_type(path, "an object of strings", |b| b == b'{')?;
    let text = s.clone().value()?;
    let mut keys = 0;
    s.object(|s, key: Text<'a>| {
        keys += 1;
        let name = key
            .decode()
            .ok_or_else(|| path.invalid("has a key with an unpaired surrogate escape"))?;
        if name.starts_with('$') || name.starts_with("_topics_") {
            return Err(path.invalid(format_args!(
                "has the reserved key {name:?}; keys must not begin with $ or _topics_"
            )));
        }
        s.expect_type(path, "an object of strings", |b| b == b'"')?;
        s.text(path).map(drop)
    })?;
    if keys > META_KEYS {
        return Err(path.invalid(format_args!("has {keys} keys, the limit is {META_KEYS}")));
    }
    Ok(if keys == 0 { "" } else { text })
}

/// Checks `meta` from a JSON text, and returns it without surrounding whitespace.
pub fn parse_meta(text: &[u8]) -> Result<&str, Failure> {
    let text = std::str::from_utf8(text).map_err(|_| Failure::invalid("meta is not UTF-8"))?;
    let mut s = Scanner::at_depth(text, DATA_DEPTH);
    let text = meta(&mut s, FieldPath::field("meta"))?;
    s.end()?;
    Ok(text)
}

/// Parses NDJSON: one value per line; blank lines are skipped.
fn ndjson<'a>(w: &mut Write<'a>, body: &'a [u8], limits: &Limits) -> Result<(), Failure> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::invalid("the body is empty: expected NDJSON, one JSON value a line"));
    }
    let Ok(text) = utf8(body) else {
        // One of the lines is not UTF-8: it, or an earlier one, is refused by its index.
        let lines = body.split(|&b| b == b'\n');
        return lines.map(utf8).try_for_each(|line| push_line(w, line, limits));
    };
    text.split('\n').try_for_each(|line| push_line(w, Ok(line), limits))
}

/// Appends the record of a line.
fn push_line<'a>(
    w: &mut Write<'a>,
    line: Result<&'a str, SyntaxError>,
    limits: &Limits,
) -> Result<(), Failure> {
    if line.as_ref().is_ok_and(|line| line.bytes().all(|b| b.is_ascii_whitespace())) {
        return Ok(());
    }
    let index = w.records.len();
    check_count(index + 1, limits)?;
    let path = FieldPath { within: "records", index: Some(index), field: "data" };
    let value = line
        .and_then(validate_text)
        .map_err(|e: SyntaxError| path.invalid(format_args!("is {e}")))?;
    w.records.push(Record { data: value.as_bytes().into(), ..Record::default() });
    Ok(())
}

/// Refuses query parameters that a JSON body has as fields.
fn not_in_query(query: &Query<'_>) -> Result<(), Failure> {
    for (name, field) in [("tag", "records[].tag"), ("node", "node"), ("key", "idempotency_key")] {
        if query.get(name)?.is_some() {
            let message =
                format!("query parameter `{name}` is not for JSON bodies; use the field `{field}`");
            return Err(Failure::invalid(message));
        }
    }
    Ok(())
}

fn from_query<'a>(w: &mut Write<'a>, query: &Query<'a>) -> Result<(), Failure> {
    if let Some(node) = query.get("node")? {
        w.node = node;
    }
    if let Some(key) = query.get("key")?.filter(|key| !key.is_empty()) {
        w.key = key.into_owned().into_bytes().into();
    }
    if let Some(tag) = query.get("tag")? {
        for record in w.records.iter_mut().filter(|r| r.tag.is_empty()) {
            record.tag = tag.clone();
        }
    }
    Ok(())
}

fn check_count(got: usize, limits: &Limits) -> Result<(), Failure> {
    let max = limits.batch_records;
    if max == 0 || got <= max {
        return Ok(());
    }
    // The total is unknown while parsing; the error reports the first record over the limit.
    Err(Error::BatchTooLarge { got: got as u64, max: max as u64, unit: "records" }.into())
}

fn check_size(field: &'static str, got: usize, max: usize) -> Result<(), Failure> {
    if max == 0 || got <= max {
        return Ok(());
    }
    Err(FieldPath::field(field).invalid(format_args!("is {got} bytes, the limit is {max}")))
}

fn check_record(index: usize, r: &Record<'_>, limits: &Limits) -> Result<(), Failure> {
    let parts = [
        ("data + meta", r.data.len() + r.meta.len(), limits.record_bytes),
        ("meta", r.meta.len(), limits.meta_bytes),
        ("tag", r.tag.len(), limits.tag_bytes),
        ("node", r.node.len(), limits.node_bytes),
    ];
    for (what, got, max) in parts {
        if max != 0 && got > max {
            let (got, max) = (got as u64, max as u64);
            return Err(Error::RecordTooLarge { index, what, got, max }.into());
        }
    }
    Ok(())
}

impl Record<'_> {
    fn as_new(&self) -> NewRecord<'_> {
        NewRecord {
            data: &self.data,
            binary: self.binary,
            tag: self.tag.as_bytes(),
            node: self.node.as_bytes(),
            meta: self.meta.as_bytes(),
            ttl_ms: self.ttl_ms,
            lane: self.lane,
            group: self.group.as_bytes(),
            delay_ms: self.delay_ms,
            deliver_at: self.deliver_at,
        }
    }
}

impl Write<'_> {
    /// Takes the right to create the topic from a write with a config, unless the client is an
    /// administrator and may use the topics in the config. An existing topic keeps its config, so that
    /// writing to it needs no such right.
    pub fn restrict(&mut self, grant: &Grant) -> Result<(), Failure> {
        match &self.config {
            Some(config) if grant.admin => grant.check_names(config),
            Some(_) if self.create != Some(false) => {
                (self.create, self.is_restricted) = (Some(false), true);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The failure of the write.
    #[must_use]
    pub fn failure(is_restricted: bool, e: Error) -> Failure {
        match e {
            Error::TopicNotFound(topic) if is_restricted => Grant::creates_no(&topic),
            e => e.into(),
        }
    }

    /// Calls `run` with the write as an engine request.
    pub fn with_append<R>(&self, run: impl FnOnce(&Append<'_>) -> R) -> R {
        let records: Vec<NewRecord<'_>> = self.records.iter().map(Record::as_new).collect();
        run(&Append {
            records: &records,
            node: self.node.as_bytes(),
            key: &self.key,
            expect_head: self.expect_head,
            sync: self.sync,
            create: self.create,
            config: self.config.as_ref(),
            disable_backpressure: self.disable_backpressure,
        })
    }
}

/// The status and the body of the answer.
#[must_use]
pub fn answer(topic: &str, a: &Appended, return_seqs: bool, total_ns: u64) -> (u16, Vec<u8>) {
    let mut o = Object::new(if return_seqs { 320 + a.count as usize * 8 } else { 320 });
    o.name("topic", topic).int("topic_id", a.topic_id);
    o.int("first_seq", a.first_seq).int("last_seq", a.last_seq);
    if return_seqs {
        o.ints("seqs", a.first_seq..=a.last_seq);
    }
    o.int("head_seq", a.head_seq).int("count", a.count);
    o.flag("created", a.created).flag("deduped", a.deduped);
    o.name("durability", a.durability.as_str());
    o.performance(&Performance::of_write(a, total_ns));
    (if a.created { 201 } else { 200 }, o.finish())
}

#[cfg(test)]
mod tests;
