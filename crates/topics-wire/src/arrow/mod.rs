//! Records as Arrow: one schema for HTTP reads, scans and embedded exports.
//!
//! A gap is a row with the first missing seq as `seq`, null `data`, and `gap_to` and `gap_reason`.
//! Typed columns ([`TypedFields`]) follow the columns of the schema.

mod columns;
mod format;
mod request;
mod rows;
mod typed;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use topics_engine::Error;

use crate::error::Failure;

pub use format::{BatchFormat, Columns};
pub use request::{ScanRequest, parse, parse_diff};
pub(crate) use request::{binary, columns};
pub use rows::build_batch;
pub use typed::TypedFields;

/// The bounds of a stream, in the metadata of its schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamBounds {
    /// The topic's id.
    pub topic_id: u64,
    /// The head at the start of the stream.
    pub head_seq: u64,
    /// The cursor after the end of the stream.
    pub to_seq: u64,
}

fn entries() -> Field {
    let key = Field::new("key", DataType::Utf8, false);
    let value = Field::new("value", DataType::Utf8, true);
    Field::new("entries", DataType::Struct(Fields::from(vec![key, value])), false)
}

/// The schema; `binary`: whether `data` is binary.
#[must_use]
pub fn schema(binary: bool, bounds: StreamBounds) -> SchemaRef {
    let data = if binary { DataType::Binary } else { DataType::Utf8 };
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let fields = vec![
        Field::new("topic", DataType::Utf8, false),
        Field::new("seq", DataType::Int64, false),
        Field::new("ts", time, true),
        Field::new("node", DataType::Utf8, true),
        Field::new("tag", DataType::Utf8, true),
        Field::new("meta", DataType::Map(Arc::new(entries()), false), true),
        Field::new("data", data, true),
        Field::new("gap_to", DataType::Int64, true),
        Field::new("gap_reason", DataType::Utf8, true),
    ];
    let numbers =
        [("topic_id", bounds.topic_id), ("head_seq", bounds.head_seq), ("to_seq", bounds.to_seq)];
    let metadata: HashMap<String, String> =
        numbers.iter().map(|(key, n)| ((*key).to_owned(), n.to_string())).collect();
    Arc::new(Schema::new_with_metadata(fields, metadata))
}

/// The failure of a stream from an Arrow error.
#[must_use]
pub fn failure(e: &ArrowError) -> Failure {
    match e {
        ArrowError::ExternalError(inner) => match inner.downcast_ref::<Error>() {
            Some(e) => Failure::new(e.code(), e.to_string()),
            None => Failure::new("internal", format!("Arrow: {e}")),
        },
        ArrowError::InvalidArgumentError(message) => Failure::invalid(message),
        e => Failure::new("internal", format!("Arrow: {e}")),
    }
}
