//! Columns of one type, filled from the texts of JSON values.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BooleanBuilder, StringBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, ArrowNativeTypeOp, PrimitiveArray};
use arrow_buffer::NullBufferBuilder;
use arrow_schema::{ArrowError, DataType, TimeUnit};

use super::{number, time};
use crate::json::unescape;

/// A column in progress.
pub(super) trait Column {
    /// Appends a row for each of up to 64 values, `None` as null. Returns as bits the rows whose value
    /// does not fit; they are null.
    fn extend(&mut self, values: &[Option<&[u8]>]) -> u64;
    /// The finished column.
    fn finish(&mut self) -> Result<ArrayRef, ArrowError>;
}

/// Appends a row for each value other than null with `push`, which returns whether the value fits, and
/// for null with `None`.
#[inline]
fn extend<'a>(values: &[Option<&'a [u8]>], mut push: impl FnMut(Option<&'a [u8]>) -> bool) -> u64 {
    let mut misfits = 0;
    for (row, value) in values.iter().enumerate() {
        let value = value.filter(|value| value.first() != Some(&b'n'));
        let fits = push(value) || value.is_none();
        misfits |= u64::from(!fits) << row;
    }
    misfits
}

/// An empty column of this type with capacity for `rows`; `None` for a type that no column has.
pub(super) fn column(kind: &DataType, rows: usize) -> Option<Box<dyn Column>> {
    Some(match kind {
        DataType::Boolean => Box::new(Booleans(BooleanBuilder::with_capacity(rows))),
        DataType::Utf8 => {
            Box::new(Texts { texts: StringBuilder::with_capacity(rows, rows * 8), overflow: None })
        }
        DataType::Int8 => integers::<Int8Type>(kind, rows),
        DataType::Int16 => integers::<Int16Type>(kind, rows),
        DataType::Int32 => integers::<Int32Type>(kind, rows),
        DataType::Int64 => integers::<Int64Type>(kind, rows),
        DataType::UInt8 => integers::<UInt8Type>(kind, rows),
        DataType::UInt16 => integers::<UInt16Type>(kind, rows),
        DataType::UInt32 => integers::<UInt32Type>(kind, rows),
        DataType::UInt64 => integers::<UInt64Type>(kind, rows),
        DataType::Float32 => Numbers::<Float32Type, _>::boxed(kind, rows, |value| {
            number::float(number::number(value)?)
        }),
        DataType::Float64 => Numbers::<Float64Type, _>::boxed(kind, rows, |value| {
            number::double(number::number(value)?)
        }),
        DataType::Date32 => {
            Numbers::<Date32Type, _>::boxed(kind, rows, |value| time::date(inside(value)?))
        }
        DataType::Decimal128(precision, scale) => {
            let (scale, limit) =
                (u8::try_from(*scale).ok()?, 10i128.pow_checked((*precision).into()).ok()?);
            Numbers::<Decimal128Type, _>::boxed(kind, rows, move |value| {
                let found = number::scaled(number::number(value)?, scale)?;
                (found.abs() < limit).then_some(found)
            })
        }
        DataType::Timestamp(unit, zone) => {
            let utc = zone.is_some();
            match unit {
                TimeUnit::Second => timestamps::<TimestampSecondType>(kind, rows, *unit, utc),
                TimeUnit::Millisecond => {
                    timestamps::<TimestampMillisecondType>(kind, rows, *unit, utc)
                }
                TimeUnit::Microsecond => {
                    timestamps::<TimestampMicrosecondType>(kind, rows, *unit, utc)
                }
                TimeUnit::Nanosecond => {
                    timestamps::<TimestampNanosecondType>(kind, rows, *unit, utc)
                }
            }
        }
        _ => return None,
    })
}

fn integers<T>(kind: &DataType, rows: usize) -> Box<dyn Column>
where
    T: ArrowPrimitiveType<Native: TryFrom<i128>>,
{
    Numbers::<T, _>::boxed(kind, rows, |value| {
        number::integer(number::number(value)?)?.try_into().ok()
    })
}

/// A string is a time; an integer counts units since 1970.
fn timestamps<T>(kind: &DataType, rows: usize, unit: TimeUnit, utc: bool) -> Box<dyn Column>
where
    T: ArrowPrimitiveType<Native = i64>,
{
    Numbers::<T, _>::boxed(kind, rows, move |value| match inside(value) {
        Some(text) => time::timestamp(text, unit, utc),
        None => number::integer(number::number(value)?)?.try_into().ok(),
    })
}

/// The characters of a string, with its escapes: no date and no time has any.
#[inline]
fn inside(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"")?.strip_suffix(b"\"")
}

/// Values that `parse` makes of the text of a JSON value other than null.
struct Numbers<T: ArrowPrimitiveType, P> {
    kind: DataType,
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
    parse: P,
}

impl<T, P> Numbers<T, P>
where
    T: ArrowPrimitiveType,
    P: Fn(&[u8]) -> Option<T::Native> + 'static,
{
    fn boxed(kind: &DataType, rows: usize, parse: P) -> Box<dyn Column> {
        let (values, nulls) = (Vec::with_capacity(rows), NullBufferBuilder::new(rows));
        Box::new(Self { kind: kind.clone(), values, nulls, parse })
    }
}

impl<T, P> Column for Numbers<T, P>
where
    T: ArrowPrimitiveType,
    P: Fn(&[u8]) -> Option<T::Native>,
{
    fn extend(&mut self, values: &[Option<&[u8]>]) -> u64 {
        extend(values, |value| {
            let found = value.and_then(&self.parse);
            self.values.push(found.unwrap_or_default());
            match found {
                Some(_) => self.nulls.append_non_null(),
                None => self.nulls.append_null(),
            }
            found.is_some()
        })
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let values = std::mem::take(&mut self.values).into();
        let array = PrimitiveArray::<T>::try_new(values, self.nulls.finish())?;
        Ok(Arc::new(array.with_data_type(self.kind.clone())))
    }
}

struct Booleans(BooleanBuilder);

impl Column for Booleans {
    fn extend(&mut self, values: &[Option<&[u8]>]) -> u64 {
        extend(values, |value| {
            let found = match value {
                Some(b"true") => Some(true),
                Some(b"false") => Some(false),
                _ => None,
            };
            self.0.append_option(found);
            found.is_some()
        })
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        Ok(Arc::new(self.0.finish()))
    }
}

/// Strings; any other value is its JSON text.
struct Texts {
    texts: StringBuilder,
    /// The bytes of all texts, if there are too many for one column.
    overflow: Option<usize>,
}

impl Texts {
    fn push(&mut self, value: Option<&[u8]>) -> bool {
        let used = self.texts.values_slice().len() + value.map_or(0, <[u8]>::len);
        if i32::try_from(used).is_err() {
            self.overflow = Some(used);
        }
        let value = value.filter(|_| self.overflow.is_none());
        let text = value.and_then(|value| std::str::from_utf8(value).ok());
        let inside = text.and_then(|text| text.strip_prefix('"')?.strip_suffix('"'));
        match (inside, text) {
            (Some(inside), _) if inside.contains('\\') => {
                let decoded = unescape(inside);
                self.texts.append_option(decoded.as_deref());
                decoded.is_some()
            }
            (Some(text), _) | (None, Some(text)) => {
                self.texts.append_value(text);
                true
            }
            (None, None) => {
                self.texts.append_null();
                false
            }
        }
    }
}

impl Column for Texts {
    fn extend(&mut self, values: &[Option<&[u8]>]) -> u64 {
        extend(values, |value| self.push(value))
    }

    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        match self.overflow {
            Some(bytes) => Err(ArrowError::OffsetOverflowError(bytes)),
            None => Ok(ArrayBuilder::finish(&mut self.texts)),
        }
    }
}
