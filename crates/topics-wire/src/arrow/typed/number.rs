//! JSON numbers as integers, decimals and floats.

use crate::json::Scanner;

/// The text of a JSON number, or of a string that contains exactly one.
#[inline]
pub(super) fn number(value: &[u8]) -> Option<&[u8]> {
    if is_number(value) { Some(value) } else { quoted(value) }
}

/// Whether a JSON value is a number.
#[inline]
fn is_number(value: &[u8]) -> bool {
    matches!(value.first(), Some(b'-' | b'0'..=b'9'))
}

#[inline(never)]
fn quoted(value: &[u8]) -> Option<&[u8]> {
    let inside = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut s = Scanner::at_depth(inside, 0);
    let found = if is_number(inside) { s.value().ok()? } else { return None };
    (found.len() == inside.len()).then_some(found)
}

/// A number that is an integer by its value: `1`, `1.0` and `1e3` are.
#[inline]
pub(super) fn integer(text: &[u8]) -> Option<i128> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        digits => (false, digits),
    };
    // Fewer than 19 digits cannot overflow.
    if digits.len() < 19 {
        let (mut value, mut is_plain) = (0i64, true);
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            is_plain &= digit < 10;
            value = value.wrapping_mul(10).wrapping_add(digit.into());
        }
        if is_plain {
            return Some(if is_negative { -value } else { value }.into());
        }
    }
    scaled(text, 0)
}

/// A number times ten to the power of `scale`, if that is an integer of at most 38 digits.
pub(super) fn scaled(text: &[u8], scale: u8) -> Option<i128> {
    let text = ascii(text)?;
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let at = text.find(['e', 'E']).unwrap_or(text.len());
    let (mantissa, exponent) = text.split_at_checked(at)?;
    let exponent = exponent.get(1..).filter(|e| !e.is_empty()).map_or(0, saturated);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // The digits without the zeros at both ends, and how many of the latter.
    let (mut value, mut zeros): (i128, u32) = (0, 0);
    for digit in whole.bytes().chain(fraction.bytes()) {
        match digit {
            b'0' if value == 0 => {}
            b'0' => zeros = zeros.saturating_add(1),
            _ => {
                let power = 10i128.checked_pow(zeros.checked_add(1)?)?;
                value = value.checked_mul(power)?.checked_add(i128::from(digit - b'0'))?;
                zeros = 0;
            }
        }
    }
    if value == 0 {
        return Some(0);
    }
    let places = i64::try_from(fraction.len()).ok()?;
    let power = exponent.saturating_sub(places).saturating_add(i64::from(zeros) + i64::from(scale));
    let value = value.checked_mul(10i128.checked_pow(u32::try_from(power).ok()?)?)?;
    (value < 10i128.pow(38)).then_some(if negative { -value } else { value })
}

/// An exponent; one that is out of range is the largest or the smallest.
fn saturated(text: &str) -> i64 {
    let digits = text.trim_start_matches(['+', '-']);
    let value = digits.parse().unwrap_or(i64::MAX / 2);
    if text.starts_with('-') { -value } else { value }
}

/// The nearest float; `None` if that is infinite.
#[inline]
pub(super) fn double(text: &[u8]) -> Option<f64> {
    short(text).or_else(|| ascii(text)?.parse().ok().filter(|n: &f64| n.is_finite()))
}

/// A number of few digits without exponent: the quotient of two integers that floats hold exactly is
/// the float nearest to it.
#[inline]
fn short(text: &[u8]) -> Option<f64> {
    /// The powers of ten up to the most places of a short number.
    const POWERS: [f64; 16] =
        [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    const EXACT: i64 = 1 << f64::MANTISSA_DIGITS;
    let (sign, digits) = match text {
        [b'-', rest @ ..] => (-1.0, rest),
        digits => (1.0, digits),
    };
    if digits.len() > POWERS.len() {
        return None;
    }
    let (mut value, mut places) = (0i64, 0);
    for (at, byte) in digits.iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value.wrapping_mul(10).wrapping_add((byte - b'0').into()),
            b'.' => places = digits.len() - 1 - at,
            _ => return None,
        }
    }
    (value < EXACT).then_some(sign * value as f64 / POWERS.get(places)?)
}

/// The nearest float of 32 bits; `None` if that is infinite.
pub(super) fn float(text: &[u8]) -> Option<f32> {
    ascii(text)?.parse().ok().filter(|n: &f32| n.is_finite())
}

fn ascii(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_by_value() {
        for (text, wanted) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-0.0e7", Some(0)),
            ("12", Some(12)),
            ("12.0", Some(12)),
            ("12.50", None),
            ("1250e-1", Some(125)),
            ("1250e-2", None),
            ("1.25E+2", Some(125)),
            ("100e-2", Some(1)),
            ("1e38", None),
            ("1e37", Some(10i128.pow(37))),
            ("18446744073709551616", Some(1 << 64)),
            ("-9223372036854775809", Some(-(1i128 << 63) - 1)),
            ("99999999999999999999999999999999999999", Some(10i128.pow(38) - 1)),
            ("100000000000000000000000000000000000000", None),
            ("170141183460469231731687303715884105728", None),
            ("1e99999999999999999999999", None),
            ("1e-99999999999999999999999", None),
            ("0e99999999999999999999999", Some(0)),
            ("1.00000000000000000000000000000000000000000000000000000", Some(1)),
            ("0.00000000000000000000000000000000000000000000000000001e53", Some(1)),
        ] {
            assert_eq!(integer(text.as_bytes()), wanted, "{text}");
        }
        assert_eq!(scaled(b"1.25", 2), Some(125));
        assert_eq!(scaled(b"-1.25", 1), None);
        assert_eq!(scaled(b"-1.2", 3), Some(-1200));
    }

    #[test]
    fn numbers_in_strings() {
        for (value, wanted) in [
            ("1", Some("1")),
            (r#""-1.5e3""#, Some("-1.5e3")),
            (r#""01""#, None),
            (r#"" 1""#, None),
            (r#""1 ""#, None),
            (r#""1,""#, None),
            (r#""""#, None),
            (r#""NaN""#, None),
            ("true", None),
            ("[1]", None),
        ] {
            assert_eq!(number(value.as_bytes()), wanted.map(str::as_bytes), "{value}");
        }
        assert_eq!((double(b"1e400"), float(b"1e39"), float(b"0.1")), (None, None, Some(0.1)));
    }
}
