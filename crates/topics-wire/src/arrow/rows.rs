//! Builds the batch of a page.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, MapBuilder, MapFieldNames, StringBuilder};
use arrow_array::{
    ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{ArrowError, DataType};
use topics_engine::{ReadBatch, RecordView, Tombstone};

use super::columns::{Row, RowBuffers};
use super::format::{BatchFormat, DATA, GAP_REASON, GAP_TO, META, NODE, TAG};
use crate::json::Scanner;

/// Which optional fields the records of a page have; a column without values is constant.
#[derive(Default)]
struct PageStats {
    node: bool,
    tag: bool,
    meta: bool,
    /// The seq of the first record with binary data.
    binary: Option<u64>,
}

fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The batch of a page; `None` without rows. A gap comes before the records.
pub fn build_batch(
    format: &BatchFormat,
    page: &ReadBatch,
) -> Result<Option<RecordBatch>, ArrowError> {
    let gap = page.tombstone.as_ref();
    let shown = || page.iter().filter(|r| format.keeps(r));
    let has_data = format.columns.has(DATA);
    let (records, bytes) = match format.only.0.is_empty() {
        true => (page.len(), if has_data { page.payload_bytes() } else { 0 }),
        false => shown().fold((0, 0), |(n, bytes), r| (n + 1, bytes + r.data.len())),
    };
    let rows = records + usize::from(gap.is_some());
    if rows == 0 {
        return Ok(None);
    }
    let mut stats = PageStats::default();
    let mut buffers = RowBuffers::new(rows, if has_data { bytes } else { 0 }, &format.pool);
    let first = gap.map(|g| Row { seq: int(g.gap_from), time: 0, data: &[] });
    let filling = shown().map(|r| {
        stats.note(&r);
        let data = if has_data { r.data } else { &[] };
        Row { seq: int(r.seq), time: int(r.ts).saturating_mul(1000), data }
    });
    buffers
        .fill(first.into_iter().chain(filling))
        .ok_or_else(|| ArrowError::OffsetOverflowError(bytes))?;
    let columns = buffers.finish();
    // Only the row of a gap has null time and data.
    let nulls = gap.map(|_| NullBuffer::from_iter((0..rows).map(|i| i > 0)));
    let times = TimestampMicrosecondArray::try_new(columns.times, nulls.clone())?;
    let data: ArrayRef = if format.kind(DATA) == &DataType::Binary {
        Arc::new(BinaryArray::try_new(columns.offsets, columns.data, nulls)?)
    } else if let Some(seq) = stats.binary.filter(|_| has_data) {
        return Err(ArrowError::InvalidArgumentError(format!(
            "record {seq} is binary, not JSON text: ask for binary data (over HTTP \
             data_type=binary, in Spark dataType=binary)"
        )));
    } else {
        Arc::new(StringArray::try_new(columns.offsets, columns.data, nulls)?)
    };
    let null = |column: usize| Ok(format.constant.null(format.kind(column), rows));
    // Iterates again for each column that needs it.
    let all = || gap.map(|_| None).into_iter().chain(shown().map(Some));
    let column = |at: usize, has: bool, part: fn(RecordView<'_>) -> &[u8]| match has
        && format.columns.has(at)
    {
        true => text(rows, all().map(|r| r.map(part))),
        false => null(at),
    };
    let (gap_to, reason) = match gap {
        Some(gap) => loss(gap, rows),
        None => (null(GAP_TO)?, null(GAP_REASON)?),
    };
    let columns = [
        format.constant.topic(rows),
        Arc::new(Int64Array::try_new(columns.seqs, None)?),
        Arc::new(times.with_timezone("UTC")),
        column(NODE, stats.node, |r| r.node)?,
        column(TAG, stats.tag, |r| r.tag)?,
        if stats.meta && format.columns.has(META) { meta(all())? } else { null(META)? },
        data,
        gap_to,
        reason,
    ];
    let mut columns: Vec<_> = format.columns.positions().map(|at| columns[at].clone()).collect();
    if let Some(typed) = &format.typed {
        columns.extend(typed.columns(rows, all())?);
    }
    RecordBatch::try_new(format.shown.clone(), columns).map(Some)
}

impl PageStats {
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

/// The columns of a gap, which is the first row.
fn loss(gap: &Tombstone, rows: usize) -> (ArrayRef, ArrayRef) {
    let first = |i: usize| i == 0;
    let to: Int64Array = (0..rows).map(|i| first(i).then(|| int(gap.gap_to))).collect();
    let reason: StringArray = (0..rows).map(|i| first(i).then(|| gap.reason.as_str())).collect();
    (Arc::new(to), Arc::new(reason))
}

/// A string column; empty values are null.
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
            let invalid = |e| ArrowError::InvalidArgumentError(format!("the stored meta is {e}"));
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
