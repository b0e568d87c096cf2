//! Columns from a page of a read.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, MapBuilder, MapFieldNames, StringBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType, SchemaRef};
use topics_engine::{ReadBatch, RecordView, Tombstone};

use super::columns::{Constant, Filled, Row};
use crate::json::Scanner;

/// Columns of the schema, by position.
const NODE: usize = 3;
const META: usize = 5;
const DATA: usize = 6;
const GAP_TO: usize = 7;
const GAP_REASON: usize = 8;

/// What the records of a page have; a column that none of them has is a constant one.
#[derive(Default)]
struct Seen {
    node: bool,
    tag: bool,
    meta: bool,
    /// The first record with binary data.
    binary: Option<u64>,
}

fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A gap comes before the records of its page.
pub(super) fn build(
    schema: &SchemaRef,
    constant: &Constant,
    page: &ReadBatch,
) -> Result<RecordBatch, ArrowError> {
    let gap = page.tombstone.as_ref();
    let rows = page.len() + usize::from(gap.is_some());
    let mut seen = Seen::default();
    let mut filled = Filled::new(rows, page.payload_bytes());
    let first = gap.map(|g| Row { seq: int(g.gap_from), time: 0, data: &[] });
    let records = page.iter().map(|r| {
        seen.note(&r);
        Row { seq: int(r.seq), time: int(r.ts).saturating_mul(1000), data: r.data }
    });
    filled
        .fill(first.into_iter().chain(records))
        .ok_or_else(|| ArrowError::OffsetOverflowError(page.payload_bytes()))?;
    let columns = filled.finish();
    // Only the row of a gap has neither time nor data.
    let nulls = gap.map(|_| NullBuffer::from_iter((0..rows).map(|i| i > 0)));
    let times = TimestampMicrosecondArray::try_new(columns.times, nulls.clone())?;
    let kind = |column: usize| schema.field(column).data_type();
    let data: ArrayRef = if kind(DATA) == &DataType::Binary {
        Arc::new(BinaryArray::try_new(columns.offsets, columns.data, nulls)?)
    } else if let Some(seq) = seen.binary {
        return Err(ArrowError::InvalidArgumentError(format!(
            "record {seq} is binary, not JSON text: read with dataType=binary"
        )));
    } else {
        Arc::new(StringArray::try_new(columns.offsets, columns.data, nulls)?)
    };
    let null = |column| Ok(constant.null(kind(column), rows));
    // Made a second time for each column that needs it.
    let all = || gap.map(|_| None).into_iter().chain(page.iter().map(Some));
    let column = |has: bool, part: fn(RecordView<'_>) -> &[u8]| match has {
        true => text(rows, all().map(|r| r.map(part))),
        false => null(NODE),
    };
    let (gap_to, reason) = match gap {
        Some(gap) => loss(gap, rows),
        None => (null(GAP_TO)?, null(GAP_REASON)?),
    };
    let columns = vec![
        constant.topic(rows),
        Arc::new(Int64Array::try_new(columns.seqs, None)?),
        Arc::new(times.with_timezone("UTC")),
        column(seen.node, |r| r.node)?,
        column(seen.tag, |r| r.tag)?,
        if seen.meta { meta(all())? } else { null(META)? },
        data,
        gap_to,
        reason,
    ];
    RecordBatch::try_new(schema.clone(), columns)
}

impl Seen {
    #[inline]
    fn note(&mut self, r: &RecordView<'_>) {
        self.node |= !r.node.is_empty();
        self.tag |= !r.tag.is_empty();
        self.meta |= !r.meta.is_empty();
        if r.binary && self.binary.is_none() {
            self.binary = Some(r.seq);
        }
    }
}

/// The columns that tell about a gap: its own row is the first.
fn loss(gap: &Tombstone, rows: usize) -> (ArrayRef, ArrayRef) {
    let first = |i: usize| i == 0;
    let to: Int64Array = (0..rows).map(|i| first(i).then(|| int(gap.gap_to))).collect();
    let reason: StringArray = (0..rows).map(|i| first(i).then(|| gap.reason.as_str())).collect();
    (Arc::new(to), Arc::new(reason))
}

/// A text column whose empty values are absent ones.
fn text<'a>(
    rows: usize,
    values: impl Iterator<Item = Option<&'a [u8]>>,
) -> Result<ArrayRef, ArrowError> {
    let mut out = BinaryBuilder::with_capacity(rows, 0);
    for value in values {
        out.append_option(value.filter(|v| !v.is_empty()));
    }
    Ok(Arc::new(StringArray::try_from_binary(out.finish())?))
}

fn meta<'a>(records: impl Iterator<Item = Option<RecordView<'a>>>) -> Result<ArrayRef, ArrowError> {
    let names = MapFieldNames { entry: "entries".into(), key: "key".into(), value: "value".into() };
    let mut out = MapBuilder::new(Some(names), StringBuilder::new(), StringBuilder::new());
    for record in records {
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
