//! The W3C trace context of a request (<https://www.w3.org/TR/trace-context/>), as members of the
//! `meta` of its records.

use crate::json::push_str;

/// Bytes of a `traceparent` of version 00.
const PARENT: usize = 55;
/// Maximum bytes of a `tracestate` that is kept.
const MAX_STATE: usize = 512;

/// The keys of `meta` that a record's own trace context has.
pub const TRACE_KEYS: [&str; 2] = ["traceparent", "tracestate"];

/// A valid trace context, rendered as `meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// `{"traceparent":"…"}`, with `tracestate` if there is one.
    object: String,
    /// The number of members.
    keys: usize,
}

impl TraceContext {
    /// From the headers `traceparent` and `tracestate`; `None` for an invalid `traceparent`. An unusable
    /// `tracestate` is left out.
    #[must_use]
    pub fn parse(parent: &[u8], state: &[u8]) -> Option<Self> {
        let parent = valid_parent(parent)?;
        // What a later version means is unknown; its first four fields are those of version 00.
        let mut out = format!("{{\"traceparent\":\"00{}\"", parent.get(2..PARENT)?).into_bytes();
        let state = state.trim_ascii();
        let is_usable = (1..=MAX_STATE).contains(&state.len())
            && state.iter().all(|b| (b' '..=b'~').contains(b) || *b == b'\t');
        if is_usable {
            out.extend_from_slice(b",\"tracestate\":");
            push_str(&mut out, state);
        }
        out.push(b'}');
        let object = String::from_utf8(out).ok()?;
        Some(Self { object, keys: 1 + usize::from(is_usable) })
    }

    /// The context as an object.
    #[must_use]
    pub fn as_meta(&self) -> &str {
        &self.object
    }

    /// The members of the object.
    #[must_use]
    pub fn members(&self) -> &str {
        self.object.strip_prefix('{').and_then(|m| m.strip_suffix('}')).unwrap_or("")
    }

    /// The number of members.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys
    }
}

/// Checks `version "-" trace-id "-" parent-id "-" flags`, in lowercase hexadecimal digits; ids of
/// zeros and version ff are invalid. Only later versions may have further fields.
fn valid_parent(header: &[u8]) -> Option<&str> {
    let header = std::str::from_utf8(header.trim_ascii()).ok()?;
    let (fields, rest) = header.split_at_checked(PARENT)?;
    let mut parts = fields.split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let valid = part.len() == digits
            && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        valid.then_some(part)
    };
    let (version, trace, span, _flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let is_zero = |id: &str| id.bytes().all(|b| b == b'0');
    let ends = rest.is_empty() || (version != "00" && rest.starts_with('-'));
    (ends && version != "ff" && !is_zero(trace) && !is_zero(span)).then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn meta(parent: &str, state: &[u8]) -> Option<String> {
        TraceContext::parse(parent.as_bytes(), state).map(|t| t.as_meta().to_owned())
    }

    #[test]
    fn a_valid_context_is_an_object() {
        let only = format!("{{\"traceparent\":\"{PLAIN}\"}}");
        assert_eq!(meta(PLAIN, b""), Some(only.clone()));
        assert_eq!(meta(&format!(" {PLAIN}\t"), b"  "), Some(only.clone()));
        let both = TraceContext::parse(PLAIN.as_bytes(), b" a=1,b@c=\"2\\\" ").unwrap();
        let members =
            format!("\"traceparent\":\"{PLAIN}\",\"tracestate\":\"a=1,b@c=\\\"2\\\\\\\"\"");
        assert_eq!((both.members(), both.keys()), (&*members, 2));
        assert_eq!(both.as_meta(), format!("{{{members}}}"));
        let long = vec![b'x'; MAX_STATE + 1];
        for unusable in [&b"a=\x80"[..], b"a=\nb", b"a=\x00b", &long] {
            assert_eq!(meta(PLAIN, unusable), Some(only.clone()));
        }
        assert!(meta(PLAIN, &long[1..]).unwrap().len() > MAX_STATE);
    }

    #[test]
    fn a_later_version_is_kept_as_the_first() {
        let first = meta(PLAIN, b"");
        assert_eq!(meta(&PLAIN.replacen("00", "cc", 1), b""), first);
        assert_eq!(meta(&format!("{}-more", PLAIN.replacen("00", "01", 1)), b""), first);
        assert_eq!(meta(&format!("{}.more", PLAIN.replacen("00", "01", 1)), b""), None);
    }

    #[test]
    fn an_invalid_parent_is_none() {
        let cases = [
            String::new(),
            PLAIN[..54].to_owned(),
            format!("{PLAIN}-"),
            format!("{PLAIN}0"),
            PLAIN.replacen("00", "ff", 1),
            PLAIN.replacen("00", "0G", 1),
            PLAIN.to_uppercase(),
            PLAIN.replace('-', "_"),
            PLAIN.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            PLAIN.replace("b7ad6b7169203331", &"0".repeat(16)),
            PLAIN.replacen("-b7ad", "b-7ad", 1),
            PLAIN.replacen("af", "é", 1),
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{e9}".to_owned(),
        ];
        for case in cases {
            assert_eq!(meta(&case, b"a=1"), None, "{case}");
        }
    }
}
