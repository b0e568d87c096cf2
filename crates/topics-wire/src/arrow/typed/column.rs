//! Columns of one type, filled from the texts of JSON values.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BooleanBuilder, PrimitiveBuilder, StringBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, ArrowNativeTypeOp};
use arrow_schema::{ArrowError, DataType, TimeUnit};

use super::{number, time};
use crate::json::unescape;

/// A column in progress.
pub(super) trait Column {
    /// Appends a value, `None` as null. Returns whether it fits; what does not is null.
    fn push(&mut self, value: Option<&str>) -> Result<bool, ArrowError>;
    /// The finished column.
    fn finish(&mut self) -> ArrayRef;
}

/// An empty column of this type with capacity for `rows`; `None` for a type that no column has.
pub(super) fn column(kind: &DataType, rows: usize) -> Option<Box<dyn Column>> {
    Some(match kind {
        DataType::Boolean => Box::new(Booleans(BooleanBuilder::with_capacity(rows))),
        DataType::Utf8 => Box::new(Texts(StringBuilder::with_capacity(rows, rows * 8))),
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
            Numbers::<Date32Type, _>::boxed(kind, rows, |value| time::date(plain_string(value)?))
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
    Numbers::<T, _>::boxed(kind, rows, move |value| match plain_string(value) {
        Some(text) => time::timestamp(text, unit, utc),
        None if value.starts_with('"') => None,
        None => number::integer(number::number(value)?)?.try_into().ok(),
    })
}

/// The characters of a string without escapes.
fn plain_string(value: &str) -> Option<&str> {
    value.strip_prefix('"')?.strip_suffix('"').filter(|inside| !inside.contains('\\'))
}

fn is_null(value: &str) -> bool {
    value.starts_with('n')
}

/// Values that `parse` makes of the text of a JSON value other than null.
struct Numbers<T: ArrowPrimitiveType, P> {
    values: PrimitiveBuilder<T>,
    parse: P,
}

impl<T, P> Numbers<T, P>
where
    T: ArrowPrimitiveType,
    P: Fn(&str) -> Option<T::Native> + 'static,
{
    fn boxed(kind: &DataType, rows: usize, parse: P) -> Box<dyn Column> {
        let values = PrimitiveBuilder::with_capacity(rows).with_data_type(kind.clone());
        Box::new(Self { values, parse })
    }
}

impl<T, P> Column for Numbers<T, P>
where
    T: ArrowPrimitiveType,
    P: Fn(&str) -> Option<T::Native>,
{
    fn push(&mut self, value: Option<&str>) -> Result<bool, ArrowError> {
        let value = value.filter(|value| !is_null(value));
        let found = value.and_then(&self.parse);
        self.values.append_option(found);
        Ok(found.is_some() || value.is_none())
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.values.finish())
    }
}

struct Booleans(BooleanBuilder);

impl Column for Booleans {
    fn push(&mut self, value: Option<&str>) -> Result<bool, ArrowError> {
        let value = value.filter(|value| !is_null(value));
        let found = match value {
            Some("true") => Some(true),
            Some("false") => Some(false),
            _ => None,
        };
        self.0.append_option(found);
        Ok(found.is_some() || value.is_none())
    }

    fn finish(&mut self) -> ArrayRef {
        Arc::new(self.0.finish())
    }
}

/// Strings; any other value is its JSON text.
struct Texts(StringBuilder);

impl Column for Texts {
    fn push(&mut self, value: Option<&str>) -> Result<bool, ArrowError> {
        let Some(value) = value.filter(|value| !is_null(value)) else {
            self.0.append_null();
            return Ok(true);
        };
        let used = self.0.values_slice().len();
        if i32::try_from(used + value.len()).is_err() {
            return Err(ArrowError::OffsetOverflowError(used + value.len()));
        }
        match value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(inside) if inside.contains('\\') => {
                let decoded = unescape(inside);
                self.0.append_option(decoded.as_deref());
                Ok(decoded.is_some())
            }
            Some(inside) => {
                self.0.append_value(inside);
                Ok(true)
            }
            None => {
                self.0.append_value(value);
                Ok(true)
            }
        }
    }

    fn finish(&mut self) -> ArrayRef {
        ArrayBuilder::finish(&mut self.0)
    }
}
