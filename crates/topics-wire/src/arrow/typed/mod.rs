//! Typed columns: values of the records' JSON, found by path and parsed to the types of a schema.
//!
//! One pass over each payload finds the texts of all values; no tree is built, and only what is asked
//! for is parsed. A value that does not fit its column is null there. The rules are in
//! docs/guides/tables.md.

mod block;
mod column;
mod number;
mod path;
mod time;
mod types;
mod walk;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::{Array, ArrayRef, BinaryArray, StringArray};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use topics_engine::RecordView;

use self::block::{Block, Payload};
use self::column::{Column, column};
use self::path::Step;
use self::walk::PathTree;
use super::Columns;
use crate::error::{DetailBuilder, Failure};
use crate::json::{FieldPath, Reader, Scanner, push_str, utf8};
use crate::nearest::nearest;

/// Maximum fields of a request.
const MAX_FIELDS: usize = 256;
/// Maximum bytes of a name or a path.
const MAX_NAME: usize = 1024;
/// Maximum bytes of all names together, as JSON: `_misfits` may have all of them in each row.
const MAX_NAMES: usize = 16 << 10;
/// Maximum number of string fields that have the same part of a payload, because the path of one leads to a value
/// within that of another.
const MAX_NESTED: usize = 8;
/// Maximum bytes of a batch for the columns whose size does not depend on the payloads.
const BATCH_BYTES: usize = 16 << 20;
/// Bytes of a string in a row, without its text: the offset, and what a column reserves for short texts.
const TEXT_BYTES: usize = 12;
/// The column with the payload of each record in which something does not fit.
const RAW: &str = "_raw";
/// The column with the names of the fields that do not fit, as a JSON array.
const MISFITS: &str = "_misfits";

/// What a column of a request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The value of this field.
    Value(usize),
    Raw,
    Misfits,
}

/// A value that is parsed.
#[derive(Debug)]
struct Value {
    name: String,
    kind: DataType,
    steps: Vec<Step>,
}

/// The typed columns of a scan.
#[derive(Debug)]
pub struct TypedFields {
    /// In the order of the request.
    columns: Vec<(Field, Content)>,
    tree: PathTree,
    values: Vec<Value>,
    /// Bytes of the names as JSON strings, with their separators.
    names: usize,
}

/// One field of a request.
struct Asked {
    name: String,
    path: Option<String>,
    kind: String,
}

impl TypedFields {
    /// Parses `{"name": "type" or {"type", "path"?}}`.
    pub(crate) fn parse(s: &mut Scanner<'_>) -> Result<Self, Failure> {
        let path = FieldPath::field("fields");
        s.expect_type(path, "an object of names to types", |b| b == b'{')?;
        let (columns, values, tree) = (Vec::new(), Vec::new(), PathTree::default());
        let mut fields = Self { columns, tree, values, names: 0 };
        s.object(|s, key| {
            let name = key.decode().ok_or_else(|| path.invalid("has a name that is not text"))?;
            fields.add(&asked(s, &name)?)
        })?;
        if fields.columns.is_empty() {
            return Err(path.invalid("must not be empty"));
        }
        match fields.nested() <= MAX_NESTED {
            true => Ok(fields),
            false => Err(path.invalid(format!(
                "must not have more than {MAX_NESTED} strings whose paths lead into each other: ask for \
                 the outermost one, or for values of other types"
            ))),
        }
    }

    /// The number of string fields that may have the same part of a payload.
    fn nested(&self) -> usize {
        self.tree.most_nested(&|at| {
            self.values.get(at).is_some_and(|value| value.kind == DataType::Utf8)
        })
    }

    /// The largest batch: rows, and bytes of payloads of those that would be read without typed columns. So the
    /// columns that are built are not many times as large, whatever is asked for.
    #[must_use]
    pub fn batch_limits(
        &self,
        rows: usize,
        payload_bytes: usize,
        has_data: bool,
    ) -> (usize, usize) {
        let widths = self.columns.iter().map(|(field, content)| match content {
            Content::Misfits => TEXT_BYTES + self.names,
            _ => field.data_type().primitive_width().unwrap_or(TEXT_BYTES),
        });
        let most = (BATCH_BYTES / widths.sum::<usize>().max(1)).max(1);
        let copies = self.nested() + usize::from(self.raw().is_some()) + usize::from(has_data);
        (rows.min(most), payload_bytes / copies.max(1))
    }

    fn add(&mut self, asked: &Asked) -> Result<(), Failure> {
        let name = &asked.name;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(refused(name, &format!("has a name of 0 or more than {MAX_NAME} bytes")));
        }
        if self.columns.iter().any(|(field, _)| field.name() == name) {
            return Err(refused(name, "is there twice"));
        }
        if self.columns.len() == MAX_FIELDS {
            let problem = format!("must not have more than {MAX_FIELDS} names");
            return Err(FieldPath::field("fields").invalid(problem));
        }
        let mut json = Vec::new();
        push_str(&mut json, name.as_bytes());
        self.names += json.len() + 1;
        if self.names > MAX_NAMES {
            let problem = format!("must have at most {MAX_NAMES} bytes of names together");
            return Err(FieldPath::field("fields").invalid(problem));
        }
        let kind = types::parse(&asked.kind).map_err(|e| {
            let problem = format!("has the unknown type {:?}; {e}", brief(&asked.kind));
            with_nearest(refused(name, &problem), name, e.nearest.as_deref())
        })?;
        let content = self.content(asked, &kind)?;
        self.columns.push((Field::new(name, kind, true), content));
        Ok(())
    }

    /// Registers the value or the column of its own kind that a field asks for.
    fn content(&mut self, asked: &Asked, kind: &DataType) -> Result<Content, Failure> {
        let name = &asked.name;
        let own = match name.as_str() {
            RAW => Some(Content::Raw),
            MISFITS => Some(Content::Misfits),
            _ => None,
        };
        if let Some(own) = own.filter(|_| asked.path.is_none()) {
            return match (own, kind) {
                (_, DataType::Utf8) | (Content::Raw, DataType::Binary) => Ok(own),
                (Content::Raw, _) => Err(refused(name, "is of type string or binary")),
                _ => Err(refused(name, "is of type string")),
            };
        }
        if *kind == DataType::Binary {
            return Err(refused(name, "is binary, which only `_raw` can be; ask for a string"));
        }
        if Columns::named(name).is_some() {
            let path = brief(name);
            return Err(refused(
                name,
                &format!(
                    "has the name of a column of the topic; give it another name and its path: \
                     {{\"{path}_field\": {{\"type\": \"{}\", \"path\": \"{path}\"}}}}",
                    brief(&asked.kind),
                ),
            ));
        }
        let text = asked.path.as_deref().unwrap_or(name);
        let steps = path::parse(text).map_err(|e| {
            let near = path::repaired(text);
            let hint = near.as_deref().map(|near| format!("; did you mean `{near}`?"));
            let problem = format!(
                "has the malformed path `{}`: {} at byte {}{}",
                brief(text),
                e.what,
                e.at,
                hint.unwrap_or_else(|| "; a path is like `a.b[0]` or `[\"a.b\"]`".into()),
            );
            with_nearest(refused(name, &problem), name, near.as_deref())
        })?;
        // So that the columns of a batch are not many times as large as its records.
        if let Some(same) = self.values.iter().find(|v| v.steps == steps && v.kind == *kind) {
            let problem = format!("has the path and the type of field `{}`", brief(&same.name));
            return Err(refused(name, &problem));
        }
        let at = self.values.len();
        self.tree.insert(&steps, at);
        self.values.push(Value { name: name.clone(), kind: kind.clone(), steps });
        Ok(Content::Value(at))
    }

    /// The schema of these columns behind the others.
    pub(super) fn extend(&self, schema: &Schema) -> Schema {
        let own = self.columns.iter().map(|(field, _)| Arc::new(field.clone()));
        let fields: Vec<_> = schema.fields().iter().cloned().chain(own).collect();
        Schema::new_with_metadata(fields, schema.metadata().clone())
    }

    /// The columns of a page: `None` is the row of a gap, which is null in all of them.
    pub(super) fn columns<'a>(
        &self,
        rows: usize,
        records: impl Iterator<Item = Option<RecordView<'a>>>,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let mut columns: Vec<Box<dyn Column>> =
            self.values.iter().filter_map(|v| column(&v.kind, rows)).collect();
        let mut layouts = self.tree.layouts();
        let mut leftovers = Leftovers::new(self);
        let mut block = Block::new(columns.len());
        for record in records {
            let payload = record.map_or(Payload { seq: 0, data: b"null", binary: false }, |r| {
                Payload { seq: r.seq, data: r.data, binary: r.binary }
            });
            // The text of a record that is not binary was checked when it was written.
            let is_text = !payload.binary || utf8(payload.data).is_ok();
            let found = is_text.then(|| self.tree.find(payload.data, &mut layouts, &mut block));
            block.end_row(payload, matches!(found, Some(Ok(()))));
            if block.is_full() {
                leftovers.parse(&mut columns, &mut block)?;
            }
        }
        leftovers.parse(&mut columns, &mut block)?;
        let values =
            columns.iter_mut().map(|column| column.finish()).collect::<Result<Vec<_>, _>>()?;
        let (raw, misfits) = leftovers.finish(rows)?;
        let shown = self.columns.iter().map(|(_, content)| match content {
            Content::Value(at) => values[*at].clone(),
            Content::Raw => raw.clone(),
            Content::Misfits => misfits.clone(),
        });
        Ok(shown.collect())
    }

    /// The type of `_raw`, if it is asked for.
    fn raw(&self) -> Option<&DataType> {
        let raw = self.columns.iter().find(|(_, content)| *content == Content::Raw);
        raw.map(|(field, _)| field.data_type())
    }
}

/// The columns `_raw` and `_misfits` of a page; rows without misfits are null in both.
struct Leftovers<'f> {
    fields: &'f TypedFields,
    raw: BinaryBuilder,
    misfits: StringBuilder,
    /// Rows of the two columns.
    rows: usize,
    /// Rows of the other columns.
    parsed: usize,
    /// The rows of the current block in which each field does not fit, as bits.
    current: Vec<u64>,
}

impl<'f> Leftovers<'f> {
    fn new(fields: &'f TypedFields) -> Self {
        let (raw, misfits) = (BinaryBuilder::new(), StringBuilder::new());
        Self { fields, raw, misfits, rows: 0, parsed: 0, current: Vec::new() }
    }

    /// Parses the values of a block, column by column, and notes what does not fit.
    fn parse(
        &mut self,
        columns: &mut [Box<dyn Column>],
        block: &mut Block<'_>,
    ) -> Result<(), ArrowError> {
        let parsed = columns.iter_mut().enumerate();
        let misfits = parsed.map(|(at, column)| column.extend(block.column(at)) | block.not_json());
        self.current.clear();
        self.current.extend(misfits);
        let mut rows = self.current.iter().fold(0, |all, rows| all | rows);
        while rows != 0 {
            let row = rows.trailing_zeros() as usize;
            self.end_row(row, block.payloads()[row])?;
            rows &= rows - 1;
        }
        self.parsed += block.payloads().len();
        block.clear();
        Ok(())
    }

    /// Appends a row of the current block, and nulls for those without misfits before it.
    fn end_row(&mut self, row: usize, payload: Payload<'_>) -> Result<(), ArrowError> {
        self.pad(self.parsed + row);
        let Payload { seq, data, binary } = payload;
        let kind = self.fields.raw();
        if kind == Some(&DataType::Utf8) && binary {
            let problem =
                format!("record {seq} is binary, not JSON text: ask for `_raw` as binary");
            return Err(ArrowError::InvalidArgumentError(problem));
        }
        let used = self.raw.values_slice().len() + data.len();
        match kind {
            Some(_) if i32::try_from(used).is_err() => {
                return Err(ArrowError::OffsetOverflowError(used));
            }
            Some(_) => self.raw.append_value(data),
            None => self.raw.append_null(),
        }
        let mut names = vec![b'['];
        let fields = self.fields.values.iter().zip(&self.current);
        for (field, _) in fields.filter(|(_, rows)| *rows >> row & 1 == 1) {
            if names.len() > 1 {
                names.push(b',');
            }
            push_str(&mut names, field.name.as_bytes());
        }
        names.push(b']');
        self.misfits.append_value(String::from_utf8_lossy(&names));
        self.rows += 1;
        Ok(())
    }

    fn pad(&mut self, rows: usize) {
        self.raw.append_nulls(rows - self.rows);
        self.misfits.append_nulls(rows - self.rows);
        self.rows = rows;
    }

    fn finish(mut self, rows: usize) -> Result<(ArrayRef, ArrayRef), ArrowError> {
        self.pad(rows);
        let raw: BinaryArray = self.raw.finish();
        let misfits: StringArray = self.misfits.finish();
        let raw: ArrayRef = match self.fields.raw() {
            Some(DataType::Utf8) => Arc::new(StringArray::try_from_binary(raw)?),
            _ => Arc::new(raw),
        };
        debug_assert_eq!((raw.len(), misfits.len()), (rows, rows));
        Ok((raw, Arc::new(misfits)))
    }
}

/// Reads the type of a field: a name, or an object with the path.
fn asked(s: &mut Scanner<'_>, name: &str) -> Result<Asked, Failure> {
    let name = name.to_owned();
    let text = |s: &mut Scanner<'_>, what: &str| {
        if s.peek() != Some(b'"') {
            return Err(refused(&name, &format!("has {what} that is not a string")));
        }
        let decoded = s.string()?.decode();
        decoded
            .map(String::from)
            .ok_or_else(|| refused(&name, &format!("has {what} that is not text")))
    };
    if s.peek() != Some(b'{') {
        return Ok(Asked { kind: text(s, "a type")?, path: None, name });
    }
    let (mut kind, mut path) = (None, None);
    s.object(|s, key| {
        match key.raw {
            "type" => kind = Some(text(s, "a type")?),
            "path" => path = Some(text(s, "a path")?),
            other => {
                let near = nearest(other, &["type", "path"]).unwrap_or("path");
                let problem =
                    format!("has the unknown option `{}`; did you mean `{near}`?", brief(other));
                return Err(with_nearest(refused(&name, &problem), &name, Some(near)));
            }
        }
        Ok(())
    })?;
    let kind = kind.ok_or_else(|| refused(&name, "has no type"))?;
    Ok(Asked { kind, path, name })
}

fn refused(name: &str, problem: &str) -> Failure {
    let mut failure = Failure::invalid(format!("field `{}` {problem}", brief(name)));
    failure.detail = Some(DetailBuilder::default().text("field", name).finish());
    failure
}

fn with_nearest(mut failure: Failure, name: &str, near: Option<&str>) -> Failure {
    if let Some(near) = near {
        let mut detail = DetailBuilder::default();
        failure.detail = Some(detail.text("field", name).text("nearest", near).finish());
    }
    failure
}

/// The beginning of a text, for a message.
fn brief(text: &str) -> &str {
    let end = text.char_indices().nth(60).map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or(text)
}
