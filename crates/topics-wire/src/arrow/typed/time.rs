//! Dates and times of ISO 8601, as RFC 3339 and Python's `isoformat` write them.

use arrow_schema::TimeUnit;
use chrono::NaiveDate;

/// Takes bytes from the start of a text.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    /// Exactly `digits` digits.
    fn number(&mut self, digits: usize) -> Option<u32> {
        let (head, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        head.iter().try_fold(0u32, |n, b| b.is_ascii_digit().then(|| n * 10 + u32::from(b - b'0')))
    }

    fn take(&mut self, accepted: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = accepted.contains(first).then_some(rest)?;
        Some(*first)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `YYYY-MM-DD` of the years 1 to 9999, in days since 1970.
    fn date(&mut self) -> Option<i32> {
        let year = self.number(4)?;
        self.take(b"-")?;
        let month = self.number(2)?;
        self.take(b"-")?;
        let day = self.number(2)?;
        let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day)?;
        (year > 0).then(|| date.to_epoch_days())
    }

    /// `hh:mm`, `hh:mm:ss` or `hh:mm:ss.fff`, in seconds and nanoseconds. Digits after the ninth are
    /// dropped.
    fn time(&mut self) -> Option<(u32, u32)> {
        let hours = self.number(2)?;
        self.take(b":")?;
        let minutes = self.number(2)?;
        let (mut seconds, mut nanos) = (0, 0);
        if self.take(b":").is_some() {
            seconds = self.number(2)?;
            if self.take(b".").is_some() {
                nanos = self.fraction()?;
            }
        }
        let valid = hours < 24 && minutes < 60 && seconds < 60;
        valid.then_some((hours * 3600 + minutes * 60 + seconds, nanos))
    }

    fn fraction(&mut self) -> Option<u32> {
        let length = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        (length > 0).then(|| padded.fold(0, |n, b| n * 10 + u32::from(b - b'0')))
    }

    /// `Z`, `±hh:mm`, `±hhmm` or `±hh`, in seconds east of UTC.
    fn offset(&mut self) -> Option<i64> {
        let sign = self.take(b"Zz+-")?;
        if matches!(sign, b'Z' | b'z') {
            return Some(0);
        }
        let hours = self.number(2)?;
        let colon = self.take(b":").is_some();
        let minutes = if colon || !self.is_empty() { self.number(2)? } else { 0 };
        let seconds = i64::from(hours * 3600 + minutes * 60);
        let valid = hours < 24 && minutes < 60;
        valid.then_some(if sign == b'-' { -seconds } else { seconds })
    }
}

/// A date alone, in days since 1970.
pub(super) fn date(text: &str) -> Option<i32> {
    let mut cursor = Cursor(text.as_bytes());
    cursor.date().filter(|_| cursor.is_empty())
}

/// A date, or a date with a time, in units since 1970; finer fractions are dropped. With `utc` a text
/// without offset is in UTC; otherwise a text must not have one.
pub(super) fn timestamp(text: &str, unit: TimeUnit, utc: bool) -> Option<i64> {
    let mut cursor = Cursor(text.as_bytes());
    let days = cursor.date()?;
    let (mut seconds, mut nanos) = (0, 0);
    if !cursor.is_empty() {
        cursor.take(b"Tt ")?;
        (seconds, nanos) = cursor.time()?;
    }
    let offset = match cursor.is_empty() {
        true => 0,
        false if utc => cursor.offset()?,
        false => return None,
    };
    let seconds = i64::from(days) * 86_400 + i64::from(seconds) - offset;
    let per_second: i64 = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    let part = i128::from(nanos) * i128::from(per_second) / 1_000_000_000;
    let units = i128::from(seconds) * i128::from(per_second) + part;
    cursor.is_empty().then_some(i64::try_from(units).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let ms = |text| timestamp(text, TimeUnit::Millisecond, true);
        for (text, wanted) in [
            ("1970-01-01", Some(0)),
            ("1970-01-01T00:00Z", Some(0)),
            ("1970-01-01 00:00:01.5", Some(1500)),
            ("1970-01-01T00:00:01.5009999999999", Some(1500)),
            ("1969-12-31T23:59:59.9999Z", Some(-1)),
            ("1970-01-01T02:00:00+02:00", Some(0)),
            ("1970-01-01T02:00:00+0200", Some(0)),
            ("1970-01-01t02:00:00+02", Some(0)),
            ("1969-12-31T23:30:00-00:30", Some(0)),
            ("2000-02-29T00:00:00Z", Some(951_782_400_000)),
            ("1900-02-29T00:00:00Z", None),
            ("0000-01-01", None),
            ("1970-01-01T", None),
            ("1970-01-01T24:00:00", None),
            ("1970-01-01T00:60:00", None),
            ("1970-01-01T00:00:60Z", None),
            ("1970-01-01T00:00:00.Z", None),
            ("1970-01-01T00:00:00+24:00", None),
            ("1970-01-01T00:00:00+02:0", None),
            ("1970-01-01T00:00:00ZZ", None),
            ("1970-01-01Z", None),
            ("1970-1-1", None),
            ("19700101", None),
            ("", None),
            ("+970-01-01", None),
        ] {
            assert_eq!(ms(text), wanted, "{text}");
        }
        let naive = |text| timestamp(text, TimeUnit::Second, false);
        assert_eq!((naive("1970-01-01T00:00:01"), naive("1970-01-01T00:00:01Z")), (Some(1), None));
        let ns = |text| timestamp(text, TimeUnit::Nanosecond, true);
        assert_eq!(ns("2262-04-11T23:47:16.854775807Z"), Some(i64::MAX));
        assert_eq!(ns("2262-04-11T23:47:16.854775808Z"), None);
        assert_eq!((date("1970-01-02"), date("1970-01-02T00:00"), date("")), (Some(1), None, None));
    }
}
