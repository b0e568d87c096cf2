//! JSON as RFC 8259 has it, read in one pass without a tree.
//!
//! A [`Scanner`] walks the text once: it checks every byte's grammar, bounds the nesting, and hands
//! out slices of the text. Values are never re-serialised; what is stored is what was sent.

mod fields;
mod scan;
mod text;

#[cfg(test)]
mod tests;

pub use fields::{FieldPath, Fields, Reader, expect_no_fields, read_body};
pub use scan::{DATA_DEPTH, MAX_DEPTH, Scanner, SyntaxError, Text};
pub use text::{decode_base64, push_base64, push_i64, push_ms, push_str, push_u64, unescape};

/// Checks that `text` is one JSON value, nested as deep as a record's data may be, and returns it
/// without the whitespace around it.
pub fn validate(text: &[u8]) -> Result<&str, SyntaxError> {
    let text = scan::utf8(text)?;
    let mut s = Scanner::at_depth(text, DATA_DEPTH);
    let value = s.value()?;
    s.end()?;
    Ok(value)
}
