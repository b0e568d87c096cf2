//! The small requests: delete, seek, states, list.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use topics_engine::DeleteRequest;

use crate::error::Failure;
use crate::json::{FieldPath, Fields, Reader, Scanner};
use crate::limits::{MAX_STATES, PAGE};
use crate::query::Query;
use crate::read::matching;

/// Reads the fields of a body that is an object.
pub fn body<'a>(
    bytes: &'a [u8],
    fields: Fields,
    each: impl FnMut(&mut Scanner<'a>, &'static str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut s = Scanner::new(bytes)?;
    s.expect_type(FieldPath::field("the body"), "an object", |b| b == b'{')?;
    fields.read(&mut s, FieldPath::default(), each)?;
    Ok(s.end()?)
}

/// The body of a request that has no fields: none, or `{}`.
pub fn nothing(bytes: &[u8]) -> Result<(), Failure> {
    if bytes.is_empty() { Ok(()) } else { body(bytes, Fields::of(&[]), |s, _| Ok(s.skip()?)) }
}

/// `{before_seq?, match?}`, at least one.
pub fn delete(bytes: &[u8]) -> Result<DeleteRequest, Failure> {
    const FIELDS: Fields = Fields::of(&["before_seq", "match"]);
    let mut request = DeleteRequest::default();
    body(bytes, FIELDS, |s, key| {
        match key {
            "before_seq" => request.before_seq = Some(s.u64(FieldPath::field("before_seq"))?),
            "match" => request.matching = Some(matching(s)?),
            _ => s.skip()?,
        }
        Ok(())
    })?;
    if request.before_seq.is_none() && request.matching.is_none() {
        return Err(Failure::invalid("a delete names before_seq, match, or both"));
    }
    Ok(request)
}

/// `{ts}`.
pub fn seek(bytes: &[u8]) -> Result<u64, Failure> {
    let mut ts = None;
    body(bytes, Fields::of(&["ts"]), |s, key| {
        ts = Some(s.u64(FieldPath::field(key))?);
        Ok(())
    })?;
    ts.ok_or_else(|| FieldPath::field("ts").invalid("is missing"))
}

/// Which topics the state is asked of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatesRequest {
    /// By name.
    pub topics: Vec<String>,
    /// By prefix.
    pub prefixes: Vec<String>,
}

/// `{topics?, patterns?}`, at least one; a pattern is a name, or a prefix and one `*`.
pub fn states(bytes: &[u8]) -> Result<StatesRequest, Failure> {
    let mut wanted = StatesRequest::default();
    let mut named = false;
    body(bytes, Fields::of(&["topics", "patterns"]), |s, field| {
        named = true;
        s.expect_type(FieldPath::field(field), "an array of strings", |b| b == b'[')?;
        s.array(|s, index| {
            let path = FieldPath { within: field, index: Some(index), field: "" };
            if index >= MAX_STATES {
                return Err(path.invalid(format_args!("is one too many: at most {MAX_STATES}")));
            }
            let name = s.text(path)?.into_owned();
            match name.strip_suffix('*') {
                Some(prefix) if field == "patterns" && !prefix.contains('*') => {
                    wanted.prefixes.push(prefix.to_owned());
                }
                None if !name.contains('*') => wanted.topics.push(name),
                _ => return Err(path.invalid("may have one * at the end of a pattern")),
            }
            Ok(())
        })
    })?;
    if named { Ok(wanted) } else { Err(Failure::invalid("name topics, patterns, or both")) }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Names begin with this.
    pub prefix: String,
    /// The last name of the page before.
    pub after: Option<String>,
    /// How many.
    pub size: usize,
}

/// `?prefix&page_size&cursor`.
pub fn page(query: &Query<'_>) -> Result<Page, Failure> {
    let (usual, most) = PAGE;
    let size = match query.u64("page_size")? {
        None | Some(0) => usual,
        Some(n) => usize::try_from(n).unwrap_or(most).min(most),
    };
    let after = match query.get("cursor")? {
        None => None,
        Some(cursor) => Some(open_cursor(&cursor)?),
    };
    let prefix = query.get("prefix")?.unwrap_or_default().into_owned();
    Ok(Page { prefix, after, size })
}

/// The cursor of the page behind a name.
#[must_use]
pub fn cursor(last: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(last)
}

fn open_cursor(cursor: &str) -> Result<String, Failure> {
    let name = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| foreign_cursor())?;
    String::from_utf8(name).map_err(|_| foreign_cursor())
}

/// A cursor that no list returned.
#[must_use]
pub fn foreign_cursor() -> Failure {
    Failure::invalid("cursor is not one that a list returned")
}

#[cfg(test)]
mod tests {
    use super::*;
    use topics_engine::TopicMatch;

    #[test]
    fn deletes() {
        let d = delete(br#"{"before_seq":5,"match":["tag","Eq","x"]}"#).unwrap();
        assert_eq!(d.before_seq, Some(5));
        assert_eq!(d.matching, Some(TopicMatch::Eq(b"x".to_vec())));
        let bare = delete(br#"{"match":"x*"}"#).unwrap();
        assert_eq!(bare.matching, Some(TopicMatch::Eq(b"x*".to_vec())));
        for body in ["{}", "[]", "", r#"{"before_seq":"5"}"#, r#"{"before_seq":5"#] {
            assert_eq!(delete(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }

    #[test]
    fn seeks() {
        assert_eq!(seek(br#"{"ts":17}"#).unwrap(), 17);
        for body in ["{}", r#"{"ts":null}"#, r#"{"ts":-1}"#, r#"{"ts":1e3}"#] {
            assert_eq!(seek(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }

    #[test]
    fn many_states() {
        let s = states(br#"{"topics":["a","b"],"patterns":["c.*","d","*"]}"#).unwrap();
        assert_eq!((s.topics.len(), s.prefixes), (3, vec!["c.".to_owned(), String::new()]));
        for body in ["{}", r#"{"topics":["a*"]}"#, r#"{"patterns":["*a*"]}"#, r#"{"topics":[1]}"#] {
            assert_eq!(states(body.as_bytes()).unwrap_err().code, "invalid_request");
        }
    }

    #[test]
    fn pages() {
        let p = page(&Query::new(b"")).unwrap();
        assert_eq!(p, Page { prefix: String::new(), after: None, size: 100 });
        let raw = format!("prefix=a.&page_size=99999&cursor={}", cursor("a.b:c"));
        let p = page(&Query::new(raw.as_bytes())).unwrap();
        assert_eq!(p, Page { prefix: "a.".into(), after: Some("a.b:c".into()), size: 1000 });
        assert!(page(&Query::new(b"cursor=!")).is_err());
        assert!(page(&Query::new(b"page_size=x")).is_err());
    }
}
