//! Dates and times of ISO 8601, as RFC 3339 and Python's `isoformat` write them.

use arrow_schema::TimeUnit;

/// Takes bytes from the start of a text.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    /// Exactly `N` digits.
    #[inline]
    fn number<const N: usize>(&mut self) -> Option<u32> {
        let (digits, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        number(*digits)
    }

    #[inline]
    fn take(&mut self, accepted: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = accepted.contains(first).then_some(rest)?;
        Some(*first)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `YYYY-MM-DD` of the years 1 to 9999, in days since 1970.
    #[inline]
    fn date(&mut self) -> Option<i32> {
        let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, rest @ ..] = self.0 else { return None };
        self.0 = rest;
        let (year, month) = (number([*y1, *y2, *y3, *y4])?, number([*m1, *m2])?);
        let day = number([*d1, *d2])?;
        days(year, month, day)
    }

    /// `hh:mm`, `hh:mm:ss` or `hh:mm:ss.fff`, in seconds and nanoseconds. Digits after the ninth are
    /// dropped.
    #[inline]
    fn time(&mut self) -> Option<(u32, u32)> {
        let [h1, h2, b':', m1, m2, rest @ ..] = self.0 else { return None };
        self.0 = rest;
        let (hours, minutes) = (number([*h1, *h2])?, number([*m1, *m2])?);
        let (mut seconds, mut nanos) = (0, 0);
        if self.take(b":").is_some() {
            seconds = self.number::<2>()?;
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
    #[inline]
    fn offset(&mut self) -> Option<i64> {
        let sign = self.take(b"Zz+-")?;
        if matches!(sign, b'Z' | b'z') {
            return Some(0);
        }
        let hours = self.number::<2>()?;
        let colon = self.take(b":").is_some();
        let minutes = if colon || !self.is_empty() { self.number::<2>()? } else { 0 };
        let seconds = i64::from(hours * 3600 + minutes * 60);
        let valid = hours < 24 && minutes < 60;
        valid.then_some(if sign == b'-' { -seconds } else { seconds })
    }
}

#[inline]
fn number<const N: usize>(digits: [u8; N]) -> Option<u32> {
    let (mut value, mut is_number) = (0u32, true);
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        is_number &= digit < 10;
        value = value.wrapping_mul(10).wrapping_add(digit.into());
    }
    is_number.then_some(value)
}

/// A date of the years 1 to 9999 in the Gregorian calendar, in days since 1970.
#[inline]
fn days(year: u32, month: u32, day: u32) -> Option<i32> {
    /// The days of a common year before each month, and all of them.
    const BEFORE: [u32; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
    /// The days from the first of January of year 1 to that of 1970.
    const EPOCH: u32 = 719_162;
    let at = month.checked_sub(1)? as usize;
    let (before, after) = (BEFORE.get(at)?, BEFORE.get(at + 1)?);
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = after - before + u32::from(is_leap && month == 2);
    let past = year.checked_sub(1)?;
    let leaps = past / 4 - past / 100 + past / 400 + u32::from(is_leap && month > 2);
    let days = past * 365 + leaps + before + day.checked_sub(1)?;
    (day <= length).then_some(days as i32 - EPOCH as i32)
}

/// A date alone, in days since 1970.
pub(super) fn date(text: &[u8]) -> Option<i32> {
    let mut cursor = Cursor(text);
    cursor.date().filter(|_| cursor.is_empty())
}

/// A date, or a date with a time, in units since 1970; finer fractions are dropped. With `utc` a text
/// without offset is in UTC; otherwise a text must not have one.
pub(super) fn timestamp(text: &[u8], unit: TimeUnit, utc: bool) -> Option<i64> {
    let mut cursor = Cursor(text);
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
    let units = match unit {
        TimeUnit::Second => seconds,
        TimeUnit::Millisecond => seconds * 1000 + i64::from(nanos / 1_000_000),
        TimeUnit::Microsecond => seconds * 1_000_000 + i64::from(nanos / 1000),
        // Wider than the result: the first instants that fit begin with a second that does not.
        TimeUnit::Nanosecond => {
            let units = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
            i64::try_from(units).ok()?
        }
    };
    cursor.is_empty().then_some(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let ms = |text: &str| timestamp(text.as_bytes(), TimeUnit::Millisecond, true);
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
        let naive = |text: &str| timestamp(text.as_bytes(), TimeUnit::Second, false);
        assert_eq!((naive("1970-01-01T00:00:01"), naive("1970-01-01T00:00:01Z")), (Some(1), None));
        let ns = |text: &str| timestamp(text.as_bytes(), TimeUnit::Nanosecond, true);
        assert_eq!(ns("2262-04-11T23:47:16.854775807Z"), Some(i64::MAX));
        assert_eq!(ns("2262-04-11T23:47:16.854775808Z"), None);
        assert_eq!(
            (date(b"1970-01-02"), date(b"1970-01-02T00:00"), date(b"")),
            (Some(1), None, None)
        );
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (year, month, day) in
            (0..=9999).flat_map(|year| (0..=13).map(move |month| (year, month))).flat_map(
                |(year, month)| [0, 1, 15, 28, 29, 30, 31, 32, 99].map(|day| (year, month, day)),
            )
        {
            let theirs = chrono::NaiveDate::from_ymd_opt(year as i32, month, day);
            let theirs = theirs.filter(|_| year > 0).map(|date| date.to_epoch_days());
            assert_eq!(days(year, month, day), theirs, "{year}-{month}-{day}");
        }
    }
}
