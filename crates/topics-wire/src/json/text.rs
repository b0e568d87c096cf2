//! Encoding and decoding of strings, numbers and base64.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// Sets the high bit of each byte that is a quote, a backslash or a control character. Only the
/// lowest set bit is exact, because a borrow may carry into higher bytes.
#[inline]
fn specials(word: u64) -> u64 {
    let zero = |x: u64| x.wrapping_sub(ONES) & !x;
    // A quote is 0x22: with this bit flipped, it is the only other byte that is at most 0x20.
    let quote_or_control = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21) & !word;
    (quote_or_control | zero(word ^ (ONES * u64::from(b'\\')))) & HIGH
}

/// The position of the first byte at or after `at` that is a quote, a backslash or a control
/// character; the length when there is none.
#[inline]
pub(super) fn plain_run(src: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = src.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let found = specials(u64::from_le_bytes(*chunk));
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while src.get(at).is_some_and(|&b| b >= 0x20 && b != b'"' && b != b'\\') {
        at += 1;
    }
    at
}

/// Decodes the escapes of a scanned string; `None` with an unpaired surrogate escape.
pub fn unescape(raw: &str) -> Option<String> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        out.push_str(rest.get(..at)?);
        let mut used = 2;
        out.push(match rest.as_bytes().get(at + 1)? {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (c, length) = unicode(rest.get(at..)?)?;
                used = length;
                c
            }
            &other => char::from(other),
        });
        rest = rest.get(at + used..)?;
    }
    out.push_str(rest);
    Some(out)
}

/// Decodes the `\uXXXX` escape or surrogate pair at the start of `text`; also its length.
fn unicode(text: &str) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u32::from_str_radix(digits, 16).ok()
    };
    let first = unit(0)?;
    if let Some(c) = char::from_u32(first) {
        return Some((c, 6));
    }
    let second = unit(6)?;
    if first >= 0xdc00 || !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)).map(|c| (c, 12))
}

/// Appends a quoted string. Invalid UTF-8 is replaced; the engine's strings have none.
pub fn push_str(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let mut from = 0;
    loop {
        let at = plain_run(text, from);
        match std::str::from_utf8(&text[from..at]) {
            Ok(plain) => out.extend_from_slice(plain.as_bytes()),
            Err(_) => out.extend_from_slice(String::from_utf8_lossy(&text[from..at]).as_bytes()),
        }
        let Some(&byte) = text.get(at) else { break };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
        from = at + 1;
    }
    out.push(b'"');
}

/// Appends a number.
pub fn push_u64(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a number.
pub fn push_i64(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    push_u64(out, value.unsigned_abs());
}

/// Appends nanoseconds as milliseconds with three decimals.
pub fn push_ms(out: &mut Vec<u8>, ns: u64) {
    let micros = ns / 1000;
    push_u64(out, micros / 1000);
    if !micros.is_multiple_of(1000) {
        let m = micros % 1000;
        out.extend_from_slice(&[b'.', b'0' + (m / 100) as u8]);
        out.extend_from_slice(&[b'0' + (m / 10 % 10) as u8, b'0' + (m % 10) as u8]);
    }
}

/// Appends bytes as base64 with padding.
pub fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, b'=');
    // Cannot fail: the space has exactly the length of the text.
    let written = BASE64_STANDARD.encode_slice(bytes, &mut out[start..]);
    debug_assert!(written.is_ok());
}

/// The bytes of base64 text; `None` unless the text is exactly what [`push_base64`] writes for them.
#[must_use]
pub fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text).ok()
}
