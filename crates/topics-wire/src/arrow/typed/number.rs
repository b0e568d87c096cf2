//! JSON numbers as integers, decimals and floats.

use crate::json::Scanner;

/// The text of a JSON number, or of a string that contains exactly one.
pub(super) fn number(value: &str) -> Option<&str> {
    let first = |text: &str| matches!(text.as_bytes().first(), Some(b'-' | b'0'..=b'9'));
    if first(value) {
        return Some(value);
    }
    let inside = value.strip_prefix('"')?.strip_suffix('"').filter(|inside| first(inside))?;
    let mut s = Scanner::at_depth(inside, 0);
    let found = s.value().ok()?;
    (found.len() == inside.len()).then_some(found)
}

/// A number that is an integer by its value: `1`, `1.0` and `1e3` are.
pub(super) fn integer(text: &str) -> Option<i128> {
    // Fewer than 19 digits cannot overflow.
    let short = text.len() < 19;
    if short && let Ok(n) = text.parse::<i64>() { Some(n.into()) } else { scaled(text, 0) }
}

/// A number times ten to the power of `scale`, if that is an integer of at most 38 digits.
pub(super) fn scaled(text: &str, scale: u8) -> Option<i128> {
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
pub(super) fn double(text: &str) -> Option<f64> {
    text.parse().ok().filter(|n: &f64| n.is_finite())
}

/// The nearest float of 32 bits; `None` if that is infinite.
pub(super) fn float(text: &str) -> Option<f32> {
    text.parse().ok().filter(|n: &f32| n.is_finite())
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
            assert_eq!(integer(text), wanted, "{text}");
        }
        assert_eq!(scaled("1.25", 2), Some(125));
        assert_eq!(scaled("-1.25", 1), None);
        assert_eq!(scaled("-1.2", 3), Some(-1200));
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
            assert_eq!(number(value), wanted, "{value}");
        }
        assert_eq!((double("1e400"), float("1e39"), float("0.1")), (None, None, Some(0.1)));
    }
}
