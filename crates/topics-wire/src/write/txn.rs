//! Requests of transactions.

use std::borrow::Cow;

use topics_engine::{
    CommitRequest, LeasedJobs, NewRecord, StageRequest, TxnAck, TxnCursor, TxnRequest, TxnRows,
    TxnStage, TxnWork,
};

use super::{Record, Table, Write, body_key, check_record, check_size, records};
use crate::consumers::reader_id;
use crate::error::Failure;
use crate::json::{FieldPath, Fields, Reader, Scanner, read_body};
use crate::limits::{KEY_BYTES, Limits};
use crate::queue::lease_ids;
use crate::routes::{bodies, fields};
use crate::trace::TraceContext;

#[derive(Debug, Default)]
struct TopicRows<'a> {
    topic: Cow<'a, str>,
    write: Write<'a>,
}

/// Jobs to ack.
#[derive(Debug, Default)]
struct Ack<'a> {
    queue: Cow<'a, str>,
    node: Cow<'a, str>,
    seqs: Vec<u64>,
    lease_ids: Option<Vec<u64>>,
}

/// A cursor to move.
#[derive(Debug)]
struct Cursor<'a> {
    topic: Cow<'a, str>,
    consumer: Cow<'a, str>,
    seq: u64,
    reader: Option<String>,
    fence: Option<u64>,
}

/// The body of a stage, a commit or a whole transaction.
#[derive(Debug, Default)]
pub struct Txn<'a> {
    rows: Vec<TopicRows<'a>>,
    heads: Vec<(Cow<'a, str>, u64)>,
    commits: Vec<Cursor<'a>>,
    acks: Vec<Ack<'a>>,
    /// Stage, parts, rows.
    stages: Vec<(Cow<'a, str>, u32, Option<u64>)>,
    writer: Option<Cow<'a, str>>,
    epoch: Option<u64>,
    key: Cow<'a, [u8]>,
    query: Cow<'a, str>,
}

/// The kind of body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Stage,
    Commit,
    Transact,
}

impl Request {
    fn fields(self) -> Fields {
        Fields::of(match self {
            Self::Stage => bodies::TXN_STAGE,
            Self::Commit => bodies::TXN_COMMIT,
            Self::Transact => bodies::TXN,
        })
    }

    fn append_fields(self) -> Fields {
        match self {
            Self::Transact => Fields::of(bodies::TXN_APPEND),
            Self::Stage | Self::Commit => Fields::of(&[fields::APPEND]),
        }
    }
}

/// `{appends: [{topic, records, node?}]}`.
pub fn stage<'a>(body: &'a [u8], limits: &Limits) -> Result<Txn<'a>, Failure> {
    let t = parse(Request::Stage, body, limits)?;
    if t.rows.is_empty() {
        Err(FieldPath::field("appends").invalid("must not be empty"))
    } else {
        Ok(t)
    }
}

/// A stage from Arrow rows; each names its `topic` unless the request does.
pub fn stage_table<'a>(
    table: &'a Table,
    topic: Option<&'a str>,
    limits: &Limits,
) -> Result<Txn<'a>, Failure> {
    let mut t = Txn::default();
    for (index, (named, record)) in table.rows(topic.is_none())?.enumerate() {
        let record = record?;
        check_record(index, &record, limits)?;
        let topic = match topic {
            Some(topic) => topic,
            None => named.filter(|name| !name.is_empty()).ok_or_else(|| {
                FieldPath { within: "records", index: Some(index), field: "topic" }
                    .invalid("is missing")
            })?,
        };
        // Rows of one topic usually follow each other.
        let at = t.rows.iter().rposition(|r| r.topic == topic);
        let at = at.unwrap_or_else(|| {
            t.rows.push(TopicRows { topic: topic.into(), write: Write::default() });
            t.rows.len() - 1
        });
        t.rows[at].write.records.push(record);
    }
    if t.rows.is_empty() {
        Err(FieldPath::field("records").invalid("must not be empty"))
    } else {
        Ok(t)
    }
}

/// `{epoch, stages: [{id, parts, records?}], query?, expect_heads?, commits?, acks?}`.
pub fn commit<'a>(body: &'a [u8], limits: &Limits) -> Result<Txn<'a>, Failure> {
    let t = parse(Request::Commit, body, limits)?;
    if t.epoch.is_none() { Err(FieldPath::field("epoch").invalid("is missing")) } else { Ok(t) }
}

/// `{appends?, expect_heads?, commits?, acks?, idempotency_key?, writer?, epoch?}`; `header_key` is
/// the `Idempotency-Key` header; a key in the body wins.
pub fn transact<'a>(
    body: &'a [u8],
    header_key: &'a [u8],
    limits: &Limits,
) -> Result<Txn<'a>, Failure> {
    let mut t = parse(Request::Transact, body, limits)?;
    if t.key.is_empty() {
        t.key = header_key.into();
    }
    check_size("idempotency_key", t.key.len(), KEY_BYTES)?;
    Ok(t)
}

/// `{owner}`: the label of the key that a writer is handed over to.
pub fn owner(body: &[u8]) -> Result<String, Failure> {
    let path = FieldPath::field("owner");
    let mut owner = String::new();
    read_body(body, Fields::of(bodies::TXN_OWNER), |s, _| {
        owner = s.text(path)?.into_owned();
        Ok(())
    })?;
    let is_label =
        owner.len() == 16 && owner.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !is_label {
        return Err(path.invalid(
            "must be the label of a key: the first 16 hex digits of the SHA-256 of the key",
        ));
    }
    Ok(owner)
}

fn parse<'a>(kind: Request, body: &'a [u8], limits: &Limits) -> Result<Txn<'a>, Failure> {
    let mut t = Txn::default();
    read_body(body, kind.fields(), |s, key| {
        match key {
            "appends" => list(s, "appends", &mut t.rows, |s, path| {
                append(s, path, limits, kind.append_fields(), &mut t.heads)
            })?,
            "stages" => list(s, "stages", &mut t.stages, one_stage)?,
            "commits" => list(s, "commits", &mut t.commits, cursor)?,
            "acks" => list(s, "acks", &mut t.acks, ack)?,
            "expect_heads" => heads(s, &mut t.heads)?,
            "epoch" => t.epoch = Some(s.u64(FieldPath::field("epoch"))?),
            "writer" => t.writer = Some(s.text(FieldPath::field("writer"))?),
            "query" => t.query = s.text(FieldPath::field("query"))?,
            "idempotency_key" => t.key = body_key(s)?,
            _ => s.skip()?,
        }
        Ok(())
    })?;
    Ok(t)
}

/// Reads an array of objects.
fn list<'a, T>(
    s: &mut Scanner<'a>,
    field: &'static str,
    out: &mut Vec<T>,
    mut each: impl FnMut(&mut Scanner<'a>, FieldPath) -> Result<T, Failure>,
) -> Result<(), Failure> {
    s.expect_type(FieldPath::field(field), "an array", |b| b == b'[')?;
    s.array(|s, index| {
        let path = FieldPath { within: field, index: Some(index), field: "" };
        s.expect_type(path, "an object", |b| b == b'{')?;
        out.push(each(s, path)?);
        Ok(())
    })
}

fn heads<'a>(s: &mut Scanner<'a>, all: &mut Vec<(Cow<'a, str>, u64)>) -> Result<(), Failure> {
    let path = FieldPath::field("expect_heads");
    s.expect_type(path, "an object of integers", |b| b == b'{')?;
    s.object(|s, topic| {
        let topic = topic
            .decode()
            .ok_or_else(|| path.invalid("has a key with an unpaired surrogate escape"))?;
        all.push((topic, s.u64(path)?));
        Ok(())
    })
}

fn append<'a>(
    s: &mut Scanner<'a>,
    path: FieldPath,
    limits: &Limits,
    fields: Fields,
    heads: &mut Vec<(Cow<'a, str>, u64)>,
) -> Result<TopicRows<'a>, Failure> {
    let mut rows = TopicRows::default();
    let mut head = None;
    fields.read(s, path, |s, key| {
        match key {
            "topic" => rows.topic = s.text(path.at("topic"))?,
            "records" => records(&mut rows.write, s, limits)?,
            "node" => rows.write.node = s.text(path.at("node"))?,
            "expect_head" => head = Some(s.u64(path.at("expect_head"))?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    if rows.topic.is_empty() {
        return Err(path.at("topic").invalid("is missing"));
    }
    if rows.write.records.is_empty() {
        return Err(path.at("records").invalid("must not be empty"));
    }
    check_size("node", rows.write.node.len(), limits.node_bytes)?;
    for (index, record) in rows.write.records.iter().enumerate() {
        check_record(index, record, limits)?;
    }
    heads.extend(head.map(|head| (rows.topic.clone(), head)));
    Ok(rows)
}

fn one_stage<'a>(
    s: &mut Scanner<'a>,
    path: FieldPath,
) -> Result<(Cow<'a, str>, u32, Option<u64>), Failure> {
    let (mut id, mut parts, mut records) = (None, None, None);
    Fields::of(bodies::TXN_STAGES).read(s, path, |s, key| {
        match key {
            "id" => id = Some(s.text(path.at("id"))?),
            "parts" => parts = Some(s.u64(path.at("parts"))?),
            "records" => records = Some(s.u64(path.at("records"))?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    let id = id.ok_or_else(|| path.at("id").invalid("is missing"))?;
    let parts = parts.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
    let parts = parts.ok_or_else(|| {
        path.at("parts").invalid("must be the number of parts, from 1 to 4294967295")
    })?;
    Ok((id, parts, records))
}

fn cursor<'a>(s: &mut Scanner<'a>, path: FieldPath) -> Result<Cursor<'a>, Failure> {
    let (mut topic, mut consumer, mut seq, mut reader) = (None, None, None, None);
    Fields::of(fields::COMMITS).read(s, path, |s, key| {
        match key {
            "topic" => topic = Some(s.text(path.at("topic"))?),
            "consumer" => consumer = Some(s.text(path.at("consumer"))?),
            "seq" => seq = Some(s.u64(path.at("seq"))?),
            "reader" => {
                let path = path.at("reader");
                reader = Some(reader_id(s, path)?);
            }
            _ => s.skip()?,
        }
        Ok(())
    })?;
    match (topic, consumer, seq) {
        (Some(topic), Some(consumer), Some(seq)) => {
            Ok(Cursor { topic, consumer, seq, reader, fence: None })
        }
        _ => Err(path.invalid("needs topic, consumer and seq")),
    }
}

fn ack<'a>(s: &mut Scanner<'a>, path: FieldPath) -> Result<Ack<'a>, Failure> {
    let mut a = Ack::default();
    Fields::of(fields::ACKS).read(s, path, |s, key| {
        match key {
            "queue" => a.queue = s.text(path.at("queue"))?,
            "node" => a.node = s.text(path.at("node"))?,
            "seqs" => a.seqs = numbers(s, path.at("seqs"))?,
            "lease_ids" => {
                let ids = lease_ids(s, path.at("lease_ids"))?;
                a.lease_ids = Some(ids).filter(|ids| !ids.is_empty());
            }
            _ => s.skip()?,
        }
        Ok(())
    })?;
    if a.queue.is_empty() || a.seqs.is_empty() {
        return Err(path.invalid("needs queue, node and seqs"));
    }
    Ok(a)
}

fn numbers(s: &mut Scanner<'_>, path: FieldPath) -> Result<Vec<u64>, Failure> {
    let mut out = Vec::new();
    s.expect_type(path, "an array of integers", |b| b == b'[')?;
    s.array(|s, _| {
        out.push(s.u64(path)?);
        Ok::<_, Failure>(())
    })?;
    Ok(out)
}

impl<'a> Txn<'a> {
    /// Adds the trace context of the request to the records that have none.
    pub fn add_trace_context(&mut self, trace: &'a TraceContext, limits: &Limits) {
        for rows in &mut self.rows {
            rows.write.add_trace_context(trace, limits);
        }
    }
}

impl Txn<'_> {
    /// The names of all topics, with repeats.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        let rows = self.rows.iter().map(|r| &*r.topic);
        let heads = self.heads.iter().map(|(topic, _)| &**topic);
        let commits = self.commits.iter().map(|c| &*c.topic);
        rows.chain(heads).chain(commits).chain(self.acks.iter().map(|a| &*a.queue))
    }

    /// Sets the fence of each reader that commits a cursor: `fence` gets topic, consumer and reader.
    pub fn set_fences(&mut self, fence: impl Fn(&str, &str, &str) -> Option<u64>) {
        for c in &mut self.commits {
            c.fence = c.reader.as_ref().and_then(|r| fence(&c.topic, &c.consumer, r));
        }
    }

    #[must_use]
    pub fn writer(&self) -> Option<&str> {
        self.writer.as_deref()
    }

    fn with_rows<R>(&self, run: impl FnOnce(&[TxnRows<'_>]) -> R) -> R {
        let records: Vec<Vec<NewRecord<'_>>> = self
            .rows
            .iter()
            .map(|r| r.write.records.iter().map(Record::as_new).collect())
            .collect();
        let rows = self.rows.iter().zip(&records);
        let rows: Vec<_> = rows
            .map(|(r, records)| TxnRows { topic: &r.topic, records, node: r.write.node.as_bytes() })
            .collect();
        run(&rows)
    }

    fn with_work<R>(&self, run: impl FnOnce(TxnWork<'_>) -> R) -> R {
        let heads: Vec<_> = self.heads.iter().map(|(topic, head)| (&**topic, *head)).collect();
        let commits = self.commits.iter();
        let commits: Vec<_> = commits
            .map(|c| {
                let (topic, consumer) = (&*c.topic, &*c.consumer);
                TxnCursor { topic, consumer, seq: c.seq, fence: c.fence }
            })
            .collect();
        let acks = self.acks.iter().map(|a| TxnAck {
            queue: &a.queue,
            jobs: LeasedJobs {
                node: a.node.as_bytes(),
                seqs: &a.seqs,
                lease_ids: a.lease_ids.as_deref(),
            },
        });
        let acks: Vec<_> = acks.collect();
        run(TxnWork { expect_heads: &heads, commits: &commits, acks: &acks })
    }

    /// Calls `run` with the stage as an engine request.
    pub fn with_stage<R>(
        &self,
        stage: &str,
        part: u32,
        run: impl FnOnce(&StageRequest<'_>) -> R,
    ) -> R {
        self.with_rows(|rows| run(&StageRequest { stage, part, rows }))
    }

    /// Calls `run` with the commit as an engine request.
    pub fn with_commit<R>(&self, run: impl FnOnce(&CommitRequest<'_>) -> R) -> R {
        let stages = self.stages.iter();
        let stages: Vec<_> = stages
            .map(|(stage, parts, records)| TxnStage { stage, parts: *parts, records: *records })
            .collect();
        let epoch = self.epoch.unwrap_or(0);
        self.with_work(|work| {
            let query = &*self.query;
            run(&CommitRequest { epoch, stages: &stages, work, query, owner: "" })
        })
    }

    /// Calls `run` with the transaction as an engine request.
    pub fn with_transact<R>(&self, run: impl FnOnce(&TxnRequest<'_>) -> R) -> R {
        let (writer, epoch, key) = (self.writer.as_deref(), self.epoch, &*self.key);
        self.with_rows(|rows| {
            self.with_work(|work| run(&TxnRequest { writer, epoch, key, owner: "", rows, work }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits::default()
    }

    #[test]
    fn a_transaction_in_the_engines_terms() {
        let body = br#"{"appends":[{"topic":"a","node":"n","expect_head":4,
            "records":[{"data":1,"tag":"t"},{"data_b64":"AAE="}]},
            {"records":[{"data":"x"}],"topic":"b"}],
            "commits":[{"topic":"in","consumer":"c","seq":7,"reader":"r"}],"expect_heads":{"z":0},
            "acks":[{"queue":"q","node":"w","seqs":[1,2],"lease_ids":[8,"9"]}],
            "writer":"w","epoch":12,"idempotency_key":"k"}"#;
        let mut t = transact(body, b"header", &limits()).unwrap();
        t.set_fences(|topic, consumer, reader| {
            assert_eq!((topic, consumer, reader), ("in", "c", "r"));
            Some(3)
        });
        assert_eq!(t.topics().collect::<Vec<_>>(), ["a", "b", "a", "z", "in", "q"]);
        t.with_transact(|r| {
            assert_eq!((r.writer, r.epoch, r.key), (Some("w"), Some(12), &b"k"[..]));
            assert_eq!((r.rows[0].topic, r.rows[0].node), ("a", &b"n"[..]));
            let records = r.rows[0].records;
            assert_eq!((records[0].data, records[0].tag), (&b"1"[..], &b"t"[..]));
            assert_eq!((records[1].data, records[1].binary), (&b"\x00\x01"[..], true));
            assert_eq!(r.work.expect_heads, [("a", 4), ("z", 0)]);
            let c = r.work.commits[0];
            assert_eq!((c.topic, c.consumer, c.seq, c.fence), ("in", "c", 7, Some(3)));
            let h = r.work.acks[0].jobs;
            assert_eq!((h.node, h.seqs, h.lease_ids), (&b"w"[..], &[1, 2][..], Some(&[8, 9][..])));
        });
        assert_eq!(&*transact(b"{}", b"header", &limits()).unwrap().key, b"header");
    }

    #[test]
    fn a_stage_and_a_commit() {
        let t = stage(br#"{"appends":[{"topic":"a","records":[{"data":1}]}]}"#, &limits()).unwrap();
        t.with_stage("s", 3, |r| assert_eq!((r.stage, r.part, r.rows.len()), ("s", 3, 1)));
        let body =
            br#"{"epoch":3,"stages":[{"id":"s","parts":2,"records":5},{"id":"r","parts":1}]}"#;
        commit(body, &limits()).unwrap().with_commit(|r| {
            assert_eq!(r.epoch, 3);
            let s = |i: usize| (r.stages[i].stage, r.stages[i].parts, r.stages[i].records);
            assert_eq!((s(0), s(1)), (("s", 2, Some(5)), ("r", 1, None)));
        });
    }

    #[test]
    fn refusals_name_the_field() {
        let refused = |r: Result<Txn<'_>, Failure>| r.map(drop).unwrap_err().message;
        for (body, word) in [
            (&br#"{}"#[..], "appends"),
            (br#"{"appends":[{"records":[{"data":1}]}]}"#, "appends[0].topic"),
            (br#"{"appends":[{"topic":"a","records":[]}]}"#, "appends[0].records"),
            (br#"{"appends":[{"topic":"a","records":[{}]}]}"#, "records[0]"),
        ] {
            let text = refused(stage(body, &limits()));
            assert!(text.contains(word), "{text}");
        }
        for (body, word) in [
            (&br#"{"stages":[]}"#[..], "epoch"),
            (br#"{"epoch":1,"stages":[{"parts":1}]}"#, "stages[0].id"),
            (br#"{"epoch":1,"stages":[{"id":"s","parts":0}]}"#, "stages[0].parts"),
            (br#"{"epoch":1,"commits":[{"topic":"a"}]}"#, "commits[0]"),
            (br#"{"epoch":1,"acks":[{"queue":"q"}]}"#, "acks[0]"),
            (br#"{"epoch":1,"expect_heads":[]}"#, "expect_heads"),
        ] {
            let text = refused(commit(body, &limits()));
            assert!(text.contains(word), "{text}");
        }
    }
}
