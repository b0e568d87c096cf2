//! JSON (RFC 8259), read in one pass without a tree.
//!
//! A [`Scanner`] checks the grammar of every byte, bounds the nesting and returns slices of the text.
//! Values are never re-serialised: the engine stores what the client sent.

mod fields;
mod layout;
mod scan;
mod source;
mod text;

#[cfg(test)]
mod tests;

pub use fields::{FieldPath, Fields, Reader, expect_no_fields, read_body};
pub(crate) use layout::Layout;
pub(crate) use scan::utf8;
pub use scan::{DATA_DEPTH, MAX_DEPTH, Scanner, SyntaxError};
pub use source::{Source, Text};
pub use text::{decode_base64, push_base64, push_i64, push_ms, push_str, push_u64, unescape};

/// Checks that `text` is one JSON value, with the nesting allowed for a record's data, and returns it
/// without surrounding whitespace.
pub fn validate(text: &[u8]) -> Result<&str, SyntaxError> {
    validate_text(scan::utf8(text)?)
}

/// The same for a text.
pub fn validate_text(text: &str) -> Result<&str, SyntaxError> {
    let mut s = Scanner::at_depth(text, DATA_DEPTH);
    let value = s.value()?;
    s.end()?;
    Ok(value)
}
