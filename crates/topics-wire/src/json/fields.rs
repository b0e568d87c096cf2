//! Typed fields of a request. A refusal names the field.

use std::borrow::Cow;
use std::fmt;

use super::scan::Scanner;
use super::source::Text;
use crate::error::Failure;
use crate::nearest::unknown_name;
use crate::routes::Field;

/// The path of a value in a request, for refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldPath {
    /// The array or object that contains it; empty: the body.
    pub within: &'static str,
    /// Its index in an array.
    pub index: Option<usize>,
    /// The field; empty: the element.
    pub field: &'static str,
}

impl FieldPath {
    /// A field of the body.
    #[must_use]
    pub fn field(field: &'static str) -> Self {
        Self { field, ..Self::default() }
    }

    /// Another field of the same object.
    #[must_use]
    pub fn at(self, field: &'static str) -> Self {
        Self { field, ..self }
    }

    /// An `invalid_request` with this path.
    pub fn invalid(self, problem: impl fmt::Display) -> Failure {
        let mut failure = Failure::invalid(format!("{self} {problem}"));
        let mut detail = format!("{{\"field\":\"{}\"", self.leaf());
        if let Some(index) = self.index {
            detail.push_str(&format!(",\"index\":{index}"));
        }
        detail.push('}');
        failure.detail = Some(detail);
        failure
    }

    fn leaf(self) -> &'static str {
        if self.field.is_empty() { self.within } else { self.field }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.within)?;
        if let Some(index) = self.index {
            write!(f, "[{index}]")?;
        }
        if !self.within.is_empty() && !self.field.is_empty() {
            f.write_str(".")?;
        }
        f.write_str(self.field)
    }
}

/// The fields that an object may have.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Those of the table of routes.
    pub known: &'static [&'static [Field]],
    /// Further names.
    pub more: &'static [&'static str],
}

impl Fields {
    /// Fields of the table.
    #[must_use]
    pub const fn of(known: &'static [&'static [Field]]) -> Self {
        Self { known, more: &[] }
    }

    /// Fields of messages, which are in no table.
    #[must_use]
    pub const fn named(more: &'static [&'static str]) -> Self {
        Self { known: &[], more }
    }

    /// The names, each with whether `null` is a value of the field.
    fn names(self) -> impl Iterator<Item = (&'static str, bool)> {
        let known = self.known.iter().copied().flatten().map(|field| (field.name, field.or_null));
        known.chain(self.more.iter().map(|name| (*name, false)))
    }

    /// Adds fields that are in no table.
    #[must_use]
    pub const fn and(self, more: &'static [&'static str]) -> Self {
        Self { more, ..self }
    }

    /// Reads the next object. Refuses an unknown field; `each` reads the value of a known one.
    pub fn read<'a>(
        self,
        s: &mut Scanner<'a>,
        path: FieldPath,
        mut each: impl FnMut(&mut Scanner<'a>, &'static str) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        s.object(|s, key| {
            let name = key.decode();
            let is_it = |(known, _): &(&str, bool)| name.as_deref() == Some(*known);
            let Some((known, or_null)) = self.names().find(is_it) else {
                let given = name.as_deref().unwrap_or("\u{fffd}");
                let all: Vec<_> = self.names().map(|(known, _)| known).collect();
                return Err(unknown_name("field", &path.to_string(), path.index, given, &all));
            };
            if s.peek() == Some(b'n') && !or_null {
                return Ok(s.skip()?);
            }
            each(s, known)
        })
    }
}

/// Reads a body that is an object.
pub fn read_body<'a>(
    bytes: &'a [u8],
    fields: Fields,
    each: impl FnMut(&mut Scanner<'a>, &'static str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut s = Scanner::new(bytes)?;
    s.expect_type(FieldPath::field("the body"), "an object", |b| b == b'{')?;
    fields.read(&mut s, FieldPath::default(), each)?;
    Ok(s.end()?)
}

/// Refuses any body but an empty one or `{}`.
pub fn expect_no_fields(bytes: &[u8]) -> Result<(), Failure> {
    if bytes.is_empty() { Ok(()) } else { read_body(bytes, Fields::of(&[]), |s, _| Ok(s.skip()?)) }
}

/// Reads the next value as a type, or refuses it.
pub trait Reader<'a> {
    /// Refuses the next value unless `first` accepts its first byte; `wanted` names the type.
    fn expect_type(
        &mut self,
        path: FieldPath,
        wanted: &str,
        first: impl Fn(u8) -> bool,
    ) -> Result<(), Failure>;
    /// A non-negative integer, written without fraction and exponent.
    fn u64(&mut self, path: FieldPath) -> Result<u64, Failure>;
    /// An integer of 32 bits.
    fn i32(&mut self, path: FieldPath) -> Result<i32, Failure>;
    fn bool(&mut self, path: FieldPath) -> Result<bool, Failure>;
    fn text(&mut self, path: FieldPath) -> Result<Cow<'a, str>, Failure>;
    /// Takes `null`, if it is next.
    fn null(&mut self) -> Result<bool, Failure>;
}

impl<'a> Reader<'a> for Scanner<'a> {
    fn expect_type(
        &mut self,
        path: FieldPath,
        wanted: &str,
        first: impl Fn(u8) -> bool,
    ) -> Result<(), Failure> {
        let found = match self.peek() {
            Some(byte) if first(byte) => return Ok(()),
            Some(b'{') => "an object",
            Some(b'[') => "an array",
            Some(b'"') => "a string",
            Some(b't' | b'f') => "a boolean",
            Some(b'n') => "null",
            Some(b'-' | b'0'..=b'9') => brief(self.clone().value()?),
            // Not a value: the scanner has the better message.
            _ => return Ok(self.skip()?),
        };
        Err(path.invalid(format_args!("must be {wanted}, not {found}")))
    }

    fn u64(&mut self, path: FieldPath) -> Result<u64, Failure> {
        let wanted = "an integer of at least 0";
        self.expect_type(path, wanted, |b| b.is_ascii_digit())?;
        let text = self.value()?;
        text.parse()
            .map_err(|_| path.invalid(format_args!("must be {wanted}, not {}", brief(text))))
    }

    fn i32(&mut self, path: FieldPath) -> Result<i32, Failure> {
        let wanted = "an integer of 32 bits";
        self.expect_type(path, wanted, |b| b.is_ascii_digit() || b == b'-')?;
        let text = self.value()?;
        text.parse()
            .map_err(|_| path.invalid(format_args!("must be {wanted}, not {}", brief(text))))
    }

    fn bool(&mut self, path: FieldPath) -> Result<bool, Failure> {
        self.expect_type(path, "true or false", |b| matches!(b, b't' | b'f'))?;
        Ok(self.value()? == "true")
    }

    fn text(&mut self, path: FieldPath) -> Result<Cow<'a, str>, Failure> {
        self.expect_type(path, "a string", |b| b == b'"')?;
        let text: Text<'a> = self.string()?;
        text.decode().ok_or_else(|| path.invalid("has an unpaired surrogate escape"))
    }

    fn null(&mut self) -> Result<bool, Failure> {
        let found = self.peek() == Some(b'n');
        if found {
            self.value()?;
        }
        Ok(found)
    }
}

impl FieldPath {
    /// The value of a word.
    pub fn choose<T: Copy>(self, word: &str, words: &[(&str, T)]) -> Result<T, Failure> {
        words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<_> = words.iter().map(|(known, _)| *known).collect();
            self.invalid_choice(word, &known)
        })
    }

    /// An `invalid_request` for a word that is none of `choices`.
    pub fn invalid_choice(self, word: &str, choices: &[&str]) -> Failure {
        let choices = choices.join(", ");
        self.invalid(format_args!("must be one of {choices}, not {:?}", brief(word)))
    }
}

/// The beginning of a value, for a message.
fn brief(text: &str) -> &str {
    text.get(..40).unwrap_or(text)
}
