//! Requests of scans.

use std::sync::Arc;

use arrow_ipc::CompressionType;
use topics_engine::{NodeFilter, ReadBatch, ReadFrom, RecordView, TopicMatch};

use super::{Columns, TypedFields};
use crate::error::Failure;
use crate::filter::{self, Filter};
use crate::json::{FieldPath, Fields, Reader, Scanner, read_body};
use crate::limits::BATCH_BYTES;
use crate::read::{self, DiffRequest};
use crate::routes::bodies;
use crate::words::{COMPRESSIONS, DATA_TYPES};

/// The range of a scan and its options.
#[derive(Clone, Debug)]
pub struct ScanRequest {
    pub from: ReadFrom,
    /// Inclusive end; `None`: the head when the scan begins.
    pub upto: Option<u64>,
    /// Maximum records: the end is moved so that the range cannot have more.
    pub limit: Option<usize>,
    pub skip_nodes: NodeFilter,
    /// Only records of these nodes; empty: of all.
    pub only_nodes: NodeFilter,
    /// Only records with these tags.
    pub matching: Option<TopicMatch>,
    /// Only records committed at or after this time, ms.
    pub ts_from: Option<u64>,
    /// Only records committed before this time, ms.
    pub ts_to: Option<u64>,
    /// Only synced records.
    pub strong: bool,
    /// The topic id of the cursor.
    pub topic_id: Option<u64>,
    /// Whether `data` is binary; `None`: as in the first record.
    pub binary: Option<bool>,
    pub columns: Columns,
    /// Typed columns.
    pub fields: Option<Arc<TypedFields>>,
    /// Target payload bytes of a batch.
    pub batch_bytes: usize,
    /// Whether helper threads prefetch.
    pub prefetch: bool,
    /// The codec of the buffers of the stream; `None`: they are not compressed.
    pub compression: Option<CompressionType>,
}

impl Default for ScanRequest {
    /// All live records.
    fn default() -> Self {
        Self {
            from: ReadFrom::Earliest,
            upto: None,
            limit: None,
            skip_nodes: NodeFilter::default(),
            only_nodes: NodeFilter::default(),
            matching: None,
            ts_from: None,
            ts_to: None,
            strong: false,
            topic_id: None,
            binary: None,
            columns: Columns::ALL,
            fields: None,
            batch_bytes: 0,
            prefetch: false,
            compression: None,
        }
    }
}

impl ScanRequest {
    /// Whether the index has all that is asked for, so that no record must be read.
    #[must_use]
    pub fn is_in_index(&self) -> bool {
        self.columns.are_in_index() && self.fields.is_none() && self.only_nodes.0.is_empty()
    }

    /// Rows and bytes of payloads of a batch that has at most `rows` otherwise.
    #[must_use]
    pub fn batch_limits(&self, rows: usize) -> (usize, usize) {
        let has_data = self.columns.has_data();
        let typed = self.fields.as_ref();
        typed.map_or((rows, self.batch_bytes), |f| f.batch_limits(rows, self.batch_bytes, has_data))
    }

    /// Whether `data` is binary: as requested, or as in the first record.
    #[must_use]
    pub fn is_binary(&self, first: Option<&ReadBatch>) -> bool {
        let shown = |r: &RecordView<'_>| super::format::keeps(&self.only_nodes, r);
        let first = || first.and_then(|page| page.iter().find(shown));
        self.binary.unwrap_or_else(|| first().is_some_and(|record| record.binary))
    }
}

const FIELDS: Fields = Fields::of(bodies::SCAN);

/// `{from_seq?, to_seq?, columns?, fields?, node?, nodes?, match?, ts_from?, ts_to?, consistency?,
/// topic_id?, data_type?, compression?}`.
pub fn parse(bytes: &[u8]) -> Result<ScanRequest, Failure> {
    parse_of(bytes, FIELDS)
}

fn parse_of(bytes: &[u8], fields: Fields) -> Result<ScanRequest, Failure> {
    let (from, batch_bytes) = (ReadFrom::After(0), BATCH_BYTES);
    let mut r = ScanRequest { from, batch_bytes, ..ScanRequest::default() };
    if bytes.is_empty() {
        return Ok(r);
    }
    let mut shown = None;
    read_body(bytes, fields, |s, key| {
        let filter = Filter {
            skip_nodes: &mut r.skip_nodes,
            matching: &mut r.matching,
            strong: &mut r.strong,
        };
        if filter.field(s, key)? {
            return Ok(());
        }
        match key {
            "from_seq" => r.from = read::from_seq(s)?,
            "to_seq" => r.upto = Some(s.u64(FieldPath::field("to_seq"))?),
            "columns" => shown = Some(columns(s)?),
            "fields" => r.fields = Some(Arc::new(TypedFields::parse(s)?)),
            "nodes" => r.only_nodes = only(s)?,
            "ts_from" => r.ts_from = Some(s.u64(FieldPath::field("ts_from"))?),
            "ts_to" => r.ts_to = Some(s.u64(FieldPath::field("ts_to"))?),
            "topic_id" => r.topic_id = Some(s.u64(FieldPath::field("topic_id"))?),
            "data_type" => r.binary = Some(binary(s)?),
            "compression" => r.compression = Some(compression(s)?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    let default = if r.fields.is_some() { Columns::WITHOUT_DATA } else { Columns::ALL };
    r.columns = shown.unwrap_or(default);
    Ok(r)
}

/// The scan that answers a read (`diff`), whose other fields are parsed.
pub fn parse_diff(bytes: &[u8], diff: &DiffRequest) -> Result<ScanRequest, Failure> {
    let asked = &diff.request;
    let (limit, batch_bytes) = (Some(asked.limit), asked.max_bytes);
    Ok(ScanRequest { from: asked.from, limit, batch_bytes, ..parse_of(bytes, read::ARROW_FIELDS)? })
}

pub(crate) fn columns(s: &mut Scanner<'_>) -> Result<Columns, Failure> {
    let mut all: Option<Columns> = None;
    s.expect_type(FieldPath::field("columns"), "an array of strings", |b| b == b'[')?;
    s.array(|s, index| {
        let path = FieldPath { within: "columns", index: Some(index), field: "" };
        let name = s.text(path)?;
        let column = Columns::named(&name).ok_or_else(|| {
            path.invalid(format_args!("is {name:?}; the columns are {}", Columns::names()))
        })?;
        all = Some(all.map_or(column, |known| known.and(column)));
        Ok::<_, Failure>(())
    })?;
    all.ok_or_else(|| FieldPath::field("columns").invalid("must not be empty"))
}

/// Parses `nodes`; an empty array is refused, because an empty filter passes all.
fn only(s: &mut Scanner<'_>) -> Result<NodeFilter, Failure> {
    let nodes = filter::nodes(s, "nodes")?;
    match nodes.0.is_empty() {
        true => Err(FieldPath::field("nodes").invalid("must not be empty")),
        false => Ok(nodes),
    }
}

pub(crate) fn binary(s: &mut Scanner<'_>) -> Result<bool, Failure> {
    let path = FieldPath::field("data_type");
    path.choose(&s.text(path)?, &DATA_TYPES)
}

fn compression(s: &mut Scanner<'_>) -> Result<CompressionType, Failure> {
    let path = FieldPath::field("compression");
    path.choose(&s.text(path)?, &COMPRESSIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field() {
        let r = parse(
            br#"{"from_seq":7,"to_seq":9,"columns":["data","seq"],"node":"a","nodes":["b","c"],
            "match":["tag","Glob","x*"],"ts_from":1,"ts_to":2,"consistency":"strong","topic_id":3,
            "data_type":"binary","compression":"zstd"}"#,
        )
        .unwrap();
        assert_eq!(r.compression, Some(CompressionType::ZSTD));
        assert_eq!((r.from, r.upto, r.topic_id), (ReadFrom::After(7), Some(9), Some(3)));
        assert_eq!((r.ts_from, r.ts_to, r.strong, r.binary), (Some(1), Some(2), true, Some(true)));
        assert_eq!(r.columns.positions().collect::<Vec<_>>(), [1, 6]);
        assert_eq!((r.skip_nodes.0.len(), r.only_nodes.0.len()), (1, 2));
        let r = parse(br#"{"from_seq":"earliest"}"#).unwrap();
        assert_eq!((r.from, r.columns), (ReadFrom::Earliest, Columns::ALL));
        assert_eq!(parse(b"").unwrap().from, ReadFrom::After(0));
    }

    #[test]
    fn refusals_name_the_field() {
        for (text, word) in [
            (r#"{"columns":["seq","date"]}"#, "columns[1]"),
            (r#"{"columns":[]}"#, "columns"),
            (r#"{"nodes":[]}"#, "nodes"),
            (r#"{"data_type":"json"}"#, "data_type"),
            (r#"{"compression":"gzip"}"#, "compression must be one of lz4, zstd, not \"gzip\""),
            (r#"{"ts_from":"now"}"#, "ts_from"),
            (r#"{"to_seq":-1}"#, "to_seq"),
        ] {
            let failure = parse(text.as_bytes()).unwrap_err();
            assert!(failure.message.contains(word), "{failure:?}");
        }
    }
}
