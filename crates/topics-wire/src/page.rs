//! Pages of lists: `?prefix&page_size&cursor` in, `next_cursor` out.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::error::Failure;
use crate::limits::PAGE_SIZE;
use crate::query::Query;

/// The page of a list that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The prefix of all names.
    pub prefix: String,
    /// The last name of the previous page.
    pub after: Option<String>,
    /// Maximum number of entries.
    pub size: usize,
}

/// `?prefix&page_size&cursor`.
pub fn parse(query: &Query<'_>) -> Result<Page, Failure> {
    let (default, maximum) = PAGE_SIZE;
    let size = match query.u64("page_size")? {
        None | Some(0) => default,
        Some(n) => usize::try_from(n).unwrap_or(maximum).min(maximum),
    };
    let after = match query.get("cursor")? {
        None => None,
        Some(cursor) => Some(decode_cursor(&cursor)?),
    };
    let prefix = query.get("prefix")?.unwrap_or_default().into_owned();
    Ok(Page { prefix, after, size })
}

/// The cursor of the page after a name.
#[must_use]
pub fn cursor(last: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(last)
}

fn decode_cursor(cursor: &str) -> Result<String, Failure> {
    let name = BASE64_URL_SAFE_NO_PAD.decode(cursor).map_err(|_| invalid_cursor())?;
    String::from_utf8(name).map_err(|_| invalid_cursor())
}

/// The refusal of a cursor that no list returned.
#[must_use]
pub fn invalid_cursor() -> Failure {
    Failure::invalid("cursor does not come from this list; send its next_cursor unchanged")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages() {
        let p = parse(&Query::new(b"")).unwrap();
        assert_eq!(p, Page { prefix: String::new(), after: None, size: 100 });
        let raw = format!("prefix=a.&page_size=99999&cursor={}", cursor("a.b:c"));
        let p = parse(&Query::new(raw.as_bytes())).unwrap();
        assert_eq!(p, Page { prefix: "a.".into(), after: Some("a.b:c".into()), size: 1000 });
        assert!(parse(&Query::new(b"cursor=!")).is_err());
        assert!(parse(&Query::new(b"page_size=x")).is_err());
    }
}
