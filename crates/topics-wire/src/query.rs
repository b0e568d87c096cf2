//! Query strings.

use std::borrow::Cow;

use crate::error::Failure;
use crate::nearest::unknown_name;
use crate::routes::Field;

/// The parameters of a query string.
pub struct Query<'a>(&'a [u8]);

impl<'a> Query<'a> {
    /// The parameters in the bytes after the question mark.
    #[must_use]
    pub fn new(raw: &'a [u8]) -> Self {
        Self(raw)
    }

    /// Refuses a parameter that is none of `known`.
    pub fn reject_unknown(&self, known: &[&[Field]], more: &[&str]) -> Result<(), Failure> {
        let known = || known.iter().copied().flatten().map(|f| f.name).chain(more.iter().copied());
        for pair in self.0.split(|&b| b == b'&').filter(|pair| !pair.is_empty()) {
            let name = decode(pair.split(|&b| b == b'=').next().unwrap_or(b""));
            if !name.as_deref().is_some_and(|name| known().any(|known| known == name)) {
                let given = name.as_deref().unwrap_or("\u{fffd}");
                return Err(unknown_name(
                    "query parameter",
                    "",
                    None,
                    given,
                    &known().collect::<Vec<_>>(),
                ));
            }
        }
        Ok(())
    }

    /// The last value of a parameter; `""` for a parameter without a value.
    pub fn get(&self, name: &str) -> Result<Option<Cow<'a, str>>, Failure> {
        Ok(self.all(name)?.pop())
    }

    /// Every value of a parameter, in order.
    pub fn all(&self, name: &str) -> Result<Vec<Cow<'a, str>>, Failure> {
        let mut found = Vec::new();
        for pair in self.0.split(|&b| b == b'&') {
            let mut parts = pair.splitn(2, |&b| b == b'=');
            let (key, value) = (parts.next().unwrap_or(b""), parts.next().unwrap_or(b""));
            if decode(key).as_deref() == Some(name) {
                found.push(decode(value).ok_or_else(|| {
                    Failure::invalid(format!(
                        "query parameter `{name}` is not percent-encoded UTF-8"
                    ))
                })?);
            }
        }
        Ok(found)
    }

    /// A boolean: absent is `None`; `?name`, `?name=true` and `?name=1` are true.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Failure> {
        match self.get(name)?.as_deref() {
            None => Ok(None),
            Some("" | "true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(other) => Err(Failure::invalid(format!(
                "query parameter `{name}` must be true or false, not {other:?}"
            ))),
        }
    }

    /// A non-negative integer.
    pub fn u64(&self, name: &str) -> Result<Option<u64>, Failure> {
        let Some(text) = self.get(name)? else { return Ok(None) };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(n) if digits => Ok(Some(n)),
            _ => {
                let message = format!(
                    "query parameter `{name}` must be an integer of at least 0, not {text:?}"
                );
                Err(Failure::invalid(message))
            }
        }
    }
}

fn decode(raw: &[u8]) -> Option<Cow<'_, str>> {
    if !raw.iter().any(|b| matches!(b, b'%' | b'+')) {
        return std::str::from_utf8(raw).ok().map(Cow::Borrowed);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let [a, b, tail @ ..] = rest else { return None };
                rest = tail;
                let digit = |d: u8| char::from(d).to_digit(16);
                (digit(*a)? * 16 + digit(*b)?) as u8
            }
            &plain => plain,
        });
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let q = Query::new(b"a=1&b=x%2Fy+z&a=2&flag&empty=&%61b=c");
        assert_eq!(q.get("a").unwrap().unwrap(), "2");
        assert_eq!(q.u64("a").unwrap(), Some(2));
        assert_eq!(q.get("b").unwrap().unwrap(), "x/y z");
        assert_eq!(q.get("ab").unwrap().unwrap(), "c");
        assert_eq!(q.get("empty").unwrap().unwrap(), "");
        assert_eq!(q.flag("flag").unwrap(), Some(true));
        assert!(q.get("c").unwrap().is_none() && q.flag("c").unwrap().is_none());
    }

    #[test]
    fn unknown_parameters() {
        assert!(Query::new(b"a=1&&flag&%61b=c&").reject_unknown(&[], &["a", "ab", "flag"]).is_ok());
        assert!(Query::new(b"").reject_unknown(&[], &[]).is_ok());
        for (raw, name) in [(&b"pagesize=1"[..], "pagesize"), (b"=1", ""), (b"%ff=1", "\u{fffd}")] {
            let failure = Query::new(raw).reject_unknown(&[], &["page_size"]).unwrap_err();
            let wanted = format!("unknown query parameter `{name}`; ");
            assert!(failure.message.starts_with(&wanted), "{}", failure.message);
        }
    }

    #[test]
    fn refusals() {
        let q = Query::new(b"a=%f&b=%ff&n=-1&m=+1&f=yes&big=99999999999999999999");
        for name in ["a", "b"] {
            assert_eq!(q.get(name).unwrap_err().code, "invalid_request");
        }
        assert!(q.u64("n").is_err() && q.u64("m").is_err() && q.u64("big").is_err());
        assert!(q.flag("f").is_err());
    }
}
