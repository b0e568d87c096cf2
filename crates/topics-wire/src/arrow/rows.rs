//! Columns from a page of a read.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, MapBuilder, MapFieldNames, StringBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    new_null_array,
};
use arrow_schema::{ArrowError, SchemaRef};
use topics_engine::{ReadBatch, RecordView};

use crate::json::Scanner;

pub(super) fn build(
    schema: &SchemaRef,
    topic: &str,
    page: &ReadBatch,
    binary: bool,
) -> Result<RecordBatch, ArrowError> {
    let gap = page.tombstone.as_ref();
    let rows = page.len() + usize::from(gap.is_some());
    let records = || page.iter().map(Some);
    // A gap comes before the records of its page.
    let all = || gap.map(|_| None).into_iter().chain(records());
    let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);

    let mut topics = StringBuilder::with_capacity(rows, rows * topic.len());
    topics.append_value_n(topic, rows);
    let seqs: Int64Array = gap
        .map(|g| int(g.gap_from))
        .into_iter()
        .chain(page.iter().map(|r| int(r.seq)))
        .collect::<Vec<_>>()
        .into();
    let times: TimestampMicrosecondArray =
        all().map(|r| r.map(|r| int(r.ts).saturating_mul(1000))).collect();
    let first = |value| (0..rows).map(move |i| if i == 0 { value } else { None });
    let gap_to: Int64Array = first(gap.map(|g| int(g.gap_to))).collect();
    let reason = gap.map(|g| g.reason.as_str());
    let reasons: StringArray = (0..rows).map(|i| reason.filter(|_| i == 0)).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(topics.finish()),
        Arc::new(seqs),
        Arc::new(times.with_timezone("UTC")),
        Arc::new(text(rows, all().map(|r| r.map(|r| r.node)))?),
        Arc::new(text(rows, all().map(|r| r.map(|r| r.tag)))?),
        meta(schema, rows, &all)?,
        data(page, gap.is_some(), binary)?,
        Arc::new(gap_to),
        Arc::new(reasons),
    ];
    RecordBatch::try_new(schema.clone(), columns)
}

/// A text column whose empty values are absent ones.
fn text<'a>(
    rows: usize,
    values: impl Iterator<Item = Option<&'a [u8]>>,
) -> Result<StringArray, ArrowError> {
    let mut out = BinaryBuilder::with_capacity(rows, 0);
    for value in values {
        out.append_option(value.filter(|v| !v.is_empty()));
    }
    StringArray::try_from_binary(out.finish())
}

fn data(page: &ReadBatch, gap: bool, binary: bool) -> Result<ArrayRef, ArrowError> {
    let bytes = page.iter().map(|r| r.data.len()).sum();
    let mut out = BinaryBuilder::with_capacity(page.len() + 1, bytes);
    if gap {
        out.append_null();
    }
    for record in page.iter() {
        if record.binary && !binary {
            return Err(ArrowError::InvalidArgumentError(format!(
                "record {} is binary, not JSON text: read with dataType=binary",
                record.seq
            )));
        }
        out.append_value(record.data);
    }
    let array: BinaryArray = out.finish();
    Ok(if binary { Arc::new(array) } else { Arc::new(StringArray::try_from_binary(array)?) })
}

fn meta<'a, I: Iterator<Item = Option<RecordView<'a>>>>(
    schema: &SchemaRef,
    rows: usize,
    records: &impl Fn() -> I,
) -> Result<ArrayRef, ArrowError> {
    if records().flatten().all(|r| r.meta.is_empty()) {
        return Ok(new_null_array(schema.field(5).data_type(), rows));
    }
    let names = MapFieldNames { entry: "entries".into(), key: "key".into(), value: "value".into() };
    let mut out = MapBuilder::new(Some(names), StringBuilder::new(), StringBuilder::new());
    for record in records() {
        let text = record.map(|r| r.meta).filter(|m| !m.is_empty());
        if let Some(text) = text {
            let invalid = |e| ArrowError::InvalidArgumentError(format!("meta: {e}"));
            Scanner::new(text)
                .and_then(|mut s| {
                    s.object(|s, key| {
                        let value = s.string()?;
                        out.keys().append_value(key.decode().unwrap_or_default());
                        out.values().append_value(value.decode().unwrap_or_default());
                        Ok(())
                    })
                })
                .map_err(invalid)?;
        }
        out.append(text.is_some())?;
    }
    Ok(Arc::new(out.finish()))
}
