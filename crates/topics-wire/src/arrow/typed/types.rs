//! The types of columns, by name.

use std::fmt;

use arrow_schema::{DataType, TimeUnit};

use crate::nearest::nearest;

/// Names that stand for a type of their own. Of names that are equally near, a message offers the first.
const NAMED: [(&str, DataType); 29] = [
    ("bool", DataType::Boolean),
    ("boolean", DataType::Boolean),
    ("int64", DataType::Int64),
    ("int32", DataType::Int32),
    ("int16", DataType::Int16),
    ("int8", DataType::Int8),
    ("byte", DataType::Int8),
    ("short", DataType::Int16),
    ("int", DataType::Int32),
    ("integer", DataType::Int32),
    ("long", DataType::Int64),
    ("bigint", DataType::Int64),
    ("uint64", DataType::UInt64),
    ("uint32", DataType::UInt32),
    ("uint16", DataType::UInt16),
    ("uint8", DataType::UInt8),
    ("float", DataType::Float32),
    ("float32", DataType::Float32),
    ("double", DataType::Float64),
    ("float64", DataType::Float64),
    ("string", DataType::Utf8),
    ("str", DataType::Utf8),
    ("utf8", DataType::Utf8),
    ("large_string", DataType::Utf8),
    ("string_view", DataType::Utf8),
    ("date", DataType::Date32),
    ("date32", DataType::Date32),
    ("date32[day]", DataType::Date32),
    ("binary", DataType::Binary),
];

/// Every unit of a timestamp.
const UNITS: [(&str, TimeUnit); 4] = [
    ("s", TimeUnit::Second),
    ("ms", TimeUnit::Millisecond),
    ("us", TimeUnit::Microsecond),
    ("ns", TimeUnit::Nanosecond),
];

/// What a message offers for a name that is close to nothing.
const OFFERED: &str = "bool, int8 to int64, uint8 to uint64, float, double, string, date, \
                       timestamp[us, UTC] and decimal(precision, scale)";

/// Why a text names no type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TypeError {
    /// The type that was probably meant.
    pub nearest: Option<String>,
    what: Option<&'static str>,
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(what) = self.what {
            write!(f, "{what}; ")?;
        }
        match &self.nearest {
            Some(name) => write!(f, "did you mean `{name}`?"),
            None => write!(f, "the types are {OFFERED}"),
        }
    }
}

/// The type with this name; `str` of a pyarrow type is one. Case and spaces do not count.
pub(super) fn parse(text: &str) -> Result<DataType, TypeError> {
    let name: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let name = name.to_ascii_lowercase();
    if let Some((_, found)) = NAMED.iter().find(|(known, _)| *known == name) {
        return Ok(found.clone());
    }
    let (word, argument) = split(&name);
    match word {
        "timestamp" => timestamp(argument),
        "decimal" | "decimal128" => decimal(argument),
        _ => {
            let mut known: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
            known.extend(["timestamp", "decimal"]);
            let near = nearest(word, &known).map(|near| match near {
                "timestamp" => "timestamp[us, UTC]",
                "decimal" => "decimal(38, 9)",
                other => other,
            });
            Err(TypeError { nearest: near.map(str::to_owned), what: None })
        }
    }
}

/// A name and what stands in brackets behind it; `None` unless the brackets match and end it.
fn split(name: &str) -> (&str, Option<&str>) {
    let at = name.find(['[', '(', '<']).unwrap_or(name.len());
    let (word, rest) = name.split_at_checked(at).unwrap_or((name, ""));
    let inside = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inside = inside.or_else(|| rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')));
    (word, if rest.is_empty() { Some("") } else { inside })
}

/// `timestamp[unit]` and `timestamp[unit, UTC]`; alone: microseconds, UTC.
fn timestamp(argument: Option<&str>) -> Result<DataType, TypeError> {
    let utc = || Some("UTC".into());
    if argument == Some("") {
        return Ok(DataType::Timestamp(TimeUnit::Microsecond, utc()));
    }
    let (unit, zone) = argument.unwrap_or_default().split_once(',').map_or_else(
        || (argument.unwrap_or_default(), None),
        |(unit, zone)| (unit, Some(zone.strip_prefix("tz=").unwrap_or(zone))),
    );
    let known = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, unit)| *unit);
    match (known, zone) {
        (Some(unit), None) => Ok(DataType::Timestamp(unit, None)),
        (Some(unit), Some("utc" | "z" | "+00:00")) => Ok(DataType::Timestamp(unit, utc())),
        (unit, zone) => Err(TypeError {
            nearest: Some(match (unit, zone) {
                (Some(unit), _) => format!("timestamp[{}, UTC]", unit_name(unit)),
                (None, None) if argument.is_some() => "timestamp[us]".into(),
                _ => "timestamp[us, UTC]".into(),
            }),
            what: Some(if unit.is_some() {
                "UTC is the only time zone of a column"
            } else {
                "the units are s, ms, us and ns"
            }),
        }),
    }
}

fn unit_name(unit: TimeUnit) -> &'static str {
    UNITS.iter().find(|(_, known)| *known == unit).map_or("us", |(name, _)| name)
}

/// `decimal(precision, scale)`.
fn decimal(argument: Option<&str>) -> Result<DataType, TypeError> {
    let parts = argument.and_then(|inside| inside.split_once(',').or(Some((inside, "0"))));
    let numbers = parts.and_then(|(p, s)| Some((p.parse().ok()?, s.parse().ok()?)));
    match numbers {
        Some((precision @ 1..=38u8, scale @ 0..=38i8)) if i16::from(scale) <= precision.into() => {
            Ok(DataType::Decimal128(precision, scale))
        }
        _ => Err(TypeError {
            nearest: Some("decimal(38, 9)".into()),
            what: Some("a decimal has a precision of 1 to 38 and a scale of at most that"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let at = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
        for (text, wanted) in [
            ("INT64", DataType::Int64),
            ("long", DataType::Int64),
            ("string", DataType::Utf8),
            ("timestamp", at(TimeUnit::Microsecond, Some("UTC"))),
            ("timestamp[us, UTC]", at(TimeUnit::Microsecond, Some("UTC"))),
            ("timestamp[ns, tz=UTC]", at(TimeUnit::Nanosecond, Some("UTC"))),
            ("timestamp[s,+00:00]", at(TimeUnit::Second, Some("UTC"))),
            ("timestamp[ms]", at(TimeUnit::Millisecond, None)),
            ("date32[day]", DataType::Date32),
            ("decimal(10, 2)", DataType::Decimal128(10, 2)),
            ("decimal128(38,38)", DataType::Decimal128(38, 38)),
            ("decimal(5)", DataType::Decimal128(5, 0)),
        ] {
            assert_eq!(parse(text).as_ref(), Ok(&wanted), "{text}");
        }
    }

    #[test]
    fn refusals_name_the_nearest() {
        for (text, near) in [
            ("int46", Some("int64")),
            ("flaot", Some("float")),
            ("strng", Some("string")),
            ("timestmp[us]", Some("timestamp[us, UTC]")),
            ("timestamp[us, Europe/Berlin]", Some("timestamp[us, UTC]")),
            ("timestamp[ms, CET]", Some("timestamp[ms, UTC]")),
            ("timestamp[min]", Some("timestamp[us]")),
            ("timestamp[us", Some("timestamp[us, UTC]")),
            ("decimal", Some("decimal(38, 9)")),
            ("decimal(39, 2)", Some("decimal(38, 9)")),
            ("decimal(2, 3)", Some("decimal(38, 9)")),
            ("decimal(2, -3)", Some("decimal(38, 9)")),
            ("list<int64>", None),
            ("", None),
        ] {
            assert_eq!(parse(text).unwrap_err().nearest.as_deref(), near, "{text}");
        }
        assert!(parse("list<int64>").unwrap_err().to_string().contains("timestamp[us, UTC]"));
    }
}
