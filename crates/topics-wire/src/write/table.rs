//! Arrow bodies: rows of an IPC stream as records, without copying payloads.

mod compressed;

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, BinaryArray, BinaryViewArray, LargeBinaryArray, LargeStringArray, MapArray, RecordBatch,
    StringArray, StringViewArray,
};
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_schema::{ArrowError, DataType};
use bytes::Bytes;
use topics_engine::Error;

use super::{Record, parse_meta};
use crate::error::Failure;
use crate::json::{FieldPath, SyntaxError, push_str};

/// The bytes that a body may decompress to where bodies have no limit: the most bytes of a batch.
const MAX_DECOMPRESSED: usize = 1 << 30;

/// The batches of an Arrow body.
#[derive(Debug)]
pub struct Table {
    batches: Vec<RecordBatch>,
    /// Whether the schema has `data`; needed for a stream without rows.
    has_data: bool,
}

/// A row: its `topic` and its record.
pub(super) type Row<'a> = (Option<&'a str>, Result<Record<'a>, Failure>);

fn refused(e: impl std::fmt::Display) -> Failure {
    Failure::invalid(format!("the body is not a readable Arrow IPC stream: {e}"))
}

impl Table {
    /// Reads and verifies a body of at most `most` rows, whose compressed buffers decompress to at most
    /// `most_bytes`; 0 is no limit, for bytes 1 GiB.
    pub fn read(body: &[u8], most: usize, most_bytes: usize) -> Result<Self, Failure> {
        Self::own(Bytes::copy_from_slice(body), most, most_bytes)
    }

    /// The same for a body that the caller does not need any more: its bytes are not copied.
    pub fn own(body: Bytes, most: usize, most_bytes: usize) -> Result<Self, Failure> {
        // A malformed body may panic in the decoder; it is refused like any other.
        catch_unwind(AssertUnwindSafe(|| Self::decode(body, most, most_bytes)))
            .unwrap_or_else(|_| Err(refused("it is malformed")))
    }

    /// The bytes that the compressed buffers of a body decompress to, as its metadata says; an error if
    /// it has none that can be read. Nothing is decompressed.
    pub fn decompressed_bytes(body: &[u8]) -> Result<u64, Failure> {
        compressed::decompressed_bytes(body).map_err(refused)
    }

    fn decode(body: Bytes, most: usize, most_bytes: usize) -> Result<Self, Failure> {
        if body.is_empty() {
            return Err(Failure::invalid("the body is empty: expected an Arrow IPC stream"));
        }
        // The decoder allocates what a buffer says that it decompresses to.
        let most_bytes = if most_bytes == 0 { MAX_DECOMPRESSED } else { most_bytes };
        if Self::decompressed_bytes(&body)? > most_bytes as u64 {
            let message =
                format!("the decompressed body is over the limit of {most_bytes} bytes: split it");
            let detail = Some(format!("{{\"max\":{most_bytes}}}"));
            return Err(Failure { detail, ..Failure::new("payload_too_large", message) });
        }
        let mut buffer = Buffer::from(body);
        let mut decoder = StreamDecoder::new();
        let (mut batches, mut rows) = (Vec::new(), 0usize);
        while let Some(batch) = decoder.decode(&mut buffer).map_err(|e: ArrowError| refused(e))? {
            rows = rows.saturating_add(batch.num_rows());
            if most != 0 && rows > most {
                let (got, max) = (rows as u64, most as u64);
                return Err(Error::BatchTooLarge { got, max, unit: "records" }.into());
            }
            batches.push(batch);
        }
        decoder.finish().map_err(refused)?;
        let schema = decoder.schema().ok_or_else(|| refused("it has no schema"))?;
        Ok(Self { batches, has_data: schema.column_with_name("data").is_some() })
    }

    /// The records of all rows, in order.
    pub(super) fn records(&self) -> Result<Vec<Record<'_>>, Failure> {
        let mut records = Vec::with_capacity(self.batches.iter().map(RecordBatch::num_rows).sum());
        for columns in self.columns(false)? {
            for i in 0..columns.rows {
                records.push(columns.record(i)?);
            }
        }
        Ok(records)
    }

    /// The rows in order; `topics`: whether each names its topic.
    pub(super) fn rows(&self, topics: bool) -> Result<impl Iterator<Item = Row<'_>>, Failure> {
        Ok(self.columns(topics)?.into_iter().flat_map(|columns| {
            (0..columns.rows).map(move |i| (columns.topic.text(i), columns.record(i)))
        }))
    }

    /// The columns of each batch.
    fn columns(&self, topics: bool) -> Result<Vec<Columns<'_>>, Failure> {
        if !self.has_data {
            return Err(
                FieldPath::field("data").invalid("is missing; the stream needs this column")
            );
        }
        let mut first = 0;
        let mut all = Vec::with_capacity(self.batches.len());
        for batch in &self.batches {
            all.push(Columns::of(batch, first, topics)?);
            first += batch.num_rows();
        }
        Ok(all)
    }
}

/// The columns of a batch that a write reads; others are ignored.
struct Columns<'a> {
    rows: usize,
    /// The number of rows in earlier batches.
    first: usize,
    topic: Values<'a>,
    data: Values<'a>,
    tag: Values<'a>,
    node: Values<'a>,
    meta: Option<Meta<'a>>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch, first: usize, topics: bool) -> Result<Self, Failure> {
        let text = |name: &'static str| match batch.column_by_name(name) {
            Some(column) => Values::of(name, column.as_ref(), false),
            None => Ok(Values::Absent),
        };
        let data = batch.column_by_name("data");
        let data = data.map_or(Ok(Values::Absent), |c| Values::of("data", c.as_ref(), true))?;
        let meta = batch.column_by_name("meta").map(|column| Meta::of(column.as_ref()));
        Ok(Self {
            rows: batch.num_rows(),
            first,
            topic: if topics { text("topic")? } else { Values::Absent },
            data,
            tag: text("tag")?,
            node: text("node")?,
            meta: meta.transpose()?.flatten(),
        })
    }

    #[inline]
    fn record(&self, i: usize) -> Result<Record<'a>, Failure> {
        let path = FieldPath { within: "records", index: Some(self.first + i), field: "data" };
        let (data, binary) = match self.data.get(i) {
            None => return Err(path.invalid("must not be null")),
            Some(data) if self.data.binary() => (data, true),
            Some(_) => {
                let text = self.data.text(i).unwrap_or_default();
                let json = crate::json::validate_text(text)
                    .map_err(|e: SyntaxError| path.invalid(format_args!("is {e}")))?;
                (json.as_bytes(), false)
            }
        };
        let meta = match &self.meta {
            Some(meta) => meta.text(i, path.at("meta"))?,
            None => Cow::default(),
        };
        let (tag, node) = (self.tag.text(i), self.node.text(i));
        Ok(Record {
            data: data.into(),
            binary,
            tag: tag.unwrap_or_default().into(),
            node: node.unwrap_or_default().into(),
            meta,
            ..Record::default()
        })
    }
}

/// A column of strings or bytes.
enum Values<'a> {
    Absent,
    Utf8(&'a StringArray),
    LargeUtf8(&'a LargeStringArray),
    Utf8View(&'a StringViewArray),
    Binary(&'a BinaryArray),
    LargeBinary(&'a LargeBinaryArray),
    BinaryView(&'a BinaryViewArray),
    Dictionary { keys: Vec<usize>, array: &'a dyn Array, values: Box<Values<'a>> },
}

impl<'a> Values<'a> {
    fn of(name: &'static str, array: &'a dyn Array, binary: bool) -> Result<Self, Failure> {
        Ok(match array.data_type() {
            DataType::Null => Self::Absent,
            DataType::Utf8 => Self::Utf8(array.as_string()),
            DataType::LargeUtf8 => Self::LargeUtf8(array.as_string()),
            DataType::Utf8View => Self::Utf8View(array.as_string_view()),
            DataType::Binary if binary => Self::Binary(array.as_binary()),
            DataType::LargeBinary if binary => Self::LargeBinary(array.as_binary()),
            DataType::BinaryView if binary => Self::BinaryView(array.as_binary_view()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                if dictionary.values().is_empty() {
                    return Ok(Self::Absent);
                }
                let values = Box::new(Self::of(name, dictionary.values().as_ref(), binary)?);
                Self::Dictionary { keys: dictionary.normalized_keys(), array, values }
            }
            kind => {
                let wanted = if binary { "utf8 or binary" } else { "utf8" };
                let message = format!("must be a column of {wanted}, not of {kind}");
                return Err(FieldPath::field(name).invalid(message));
            }
        })
    }

    fn binary(&self) -> bool {
        match self {
            Self::Binary(_) | Self::LargeBinary(_) | Self::BinaryView(_) => true,
            Self::Dictionary { values, .. } => values.binary(),
            _ => false,
        }
    }

    fn get(&self, i: usize) -> Option<&'a [u8]> {
        match self {
            Self::Absent => None,
            Self::Utf8(a) => a.is_valid(i).then(|| a.value(i).as_bytes()),
            Self::LargeUtf8(a) => a.is_valid(i).then(|| a.value(i).as_bytes()),
            Self::Utf8View(a) => a.is_valid(i).then(|| a.value(i).as_bytes()),
            Self::Binary(a) => a.is_valid(i).then(|| a.value(i)),
            Self::LargeBinary(a) => a.is_valid(i).then(|| a.value(i)),
            Self::BinaryView(a) => a.is_valid(i).then(|| a.value(i)),
            Self::Dictionary { keys, array, values } => {
                array.is_valid(i).then(|| values.get(keys[i])).flatten()
            }
        }
    }

    /// A string; a column of bytes has none.
    fn text(&self, i: usize) -> Option<&'a str> {
        match self {
            Self::Utf8(a) => a.is_valid(i).then(|| a.value(i)),
            Self::LargeUtf8(a) => a.is_valid(i).then(|| a.value(i)),
            Self::Utf8View(a) => a.is_valid(i).then(|| a.value(i)),
            Self::Dictionary { keys, array, values } => {
                array.is_valid(i).then(|| values.text(keys[i])).flatten()
            }
            Self::Absent | Self::Binary(_) | Self::LargeBinary(_) | Self::BinaryView(_) => None,
        }
    }
}

/// A column of maps from string to string.
struct Meta<'a> {
    maps: &'a MapArray,
    keys: Values<'a>,
    values: Values<'a>,
}

impl<'a> Meta<'a> {
    /// `None` for a column without values.
    fn of(array: &'a dyn Array) -> Result<Option<Self>, Failure> {
        match array.data_type() {
            DataType::Null => Ok(None),
            DataType::Map(..) => {
                let maps = array.as_map();
                let keys = Values::of("meta", maps.keys().as_ref(), false)?;
                let values = Values::of("meta", maps.values().as_ref(), false)?;
                Ok(Some(Self { maps, keys, values }))
            }
            kind => {
                let message = format!("must be a column of map<utf8, utf8>, not of {kind}");
                Err(FieldPath::field("meta").invalid(message))
            }
        }
    }

    /// The map as the JSON text that is stored.
    fn text(&self, i: usize, path: FieldPath) -> Result<Cow<'a, str>, Failure> {
        let ends = self.maps.value_offsets();
        let (from, to) = (ends[i] as usize, ends[i + 1] as usize);
        if self.maps.is_null(i) || from >= to {
            return Ok(Cow::default());
        }
        let mut out = vec![b'{'];
        for at in from..to {
            let (Some(key), Some(value)) = (self.keys.get(at), self.values.get(at)) else {
                return Err(path.invalid("must not contain null"));
            };
            if at > from {
                out.push(b',');
            }
            push_str(&mut out, key);
            out.push(b':');
            push_str(&mut out, value);
        }
        out.push(b'}');
        let checked = parse_meta(&out).map_err(|f| path.invalid(f.message))?;
        Ok(Cow::Owned(checked.to_owned()))
    }
}

#[cfg(test)]
mod tests;
