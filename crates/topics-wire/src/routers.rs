//! Routers: what they are asked to be, and lists of them.

use topics_engine::{Guarantee, RouterInfo, RouterRequest};

use crate::error::Failure;
use crate::json::{FieldPath, Fields, Reader};
use crate::query::Query;
use crate::read::matching_at;
use crate::render::{Object, router};
use crate::small::{self, Page, body};

/// `{source, dest, preserve_node?, preserve_tag?, filter?, create_dest?, allow_cycle?,
/// guarantee?}`.
pub fn parse(bytes: &[u8]) -> Result<RouterRequest, Failure> {
    const FIELDS: Fields = Fields::of(&[
        "source",
        "dest",
        "preserve_node",
        "preserve_tag",
        "filter",
        "create_dest",
        "allow_cycle",
        "guarantee",
    ]);
    let mut r = RouterRequest::default();
    let (mut source, mut dest) = (None, None);
    body(bytes, FIELDS, |s, key| {
        match key {
            "source" => source = Some(s.text(FieldPath::field("source"))?.into_owned()),
            "dest" => dest = Some(s.text(FieldPath::field("dest"))?.into_owned()),
            "preserve_node" => r.preserve_node = s.bool(FieldPath::field("preserve_node"))?,
            "preserve_tag" => r.preserve_tag = s.bool(FieldPath::field("preserve_tag"))?,
            "filter" => {
                r.filter = Some(matching_at(s, FieldPath::field("filter"))?);
            }
            "create_dest" => r.create_dest = s.bool(FieldPath::field("create_dest"))?,
            "allow_cycle" => r.allow_cycle = s.bool(FieldPath::field("allow_cycle"))?,
            "guarantee" => {
                let path = FieldPath::field("guarantee");
                r.guarantee = match s.text(path)?.as_ref() {
                    "at_least_once" => Guarantee::AtLeastOnce,
                    "exactly_once" => Guarantee::ExactlyOnce,
                    _ => return Err(path.invalid("must be one of at_least_once, exactly_once")),
                };
            }
            _ => s.skip()?,
        }
        Ok(())
    })?;
    r.source = source.ok_or_else(|| FieldPath::field("source").invalid("is missing"))?;
    r.dest = dest.ok_or_else(|| FieldPath::field("dest").invalid("is missing"))?;
    Ok(r)
}

/// Which routers a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterFilter {
    /// Names, and how many.
    pub page: Page,
    /// Only from this topic.
    pub source: Option<String>,
    /// Only to this topic.
    pub dest: Option<String>,
}

/// `?prefix&source&dest&page_size&cursor`.
pub fn filter(query: &Query<'_>) -> Result<RouterFilter, Failure> {
    let text = |name| Ok::<_, Failure>(query.get(name)?.map(|v| v.into_owned()));
    Ok(RouterFilter { page: small::page(query)?, source: text("source")?, dest: text("dest")? })
}

impl RouterFilter {
    /// Whether a router belongs on the page or one after it.
    #[must_use]
    pub fn matches(&self, r: &RouterInfo) -> bool {
        let is = |wanted: &Option<String>, actual| wanted.as_ref().is_none_or(|w| w == actual);
        self.page.after.as_ref().is_none_or(|after| r.router > *after)
            && is(&self.source, &r.request.source)
            && is(&self.dest, &r.request.dest)
    }
}

/// The answer to a create or update.
#[must_use]
pub fn created(info: &RouterInfo, created: bool) -> (u16, Vec<u8>) {
    let mut o = Object::reopen(router(info));
    o.flag("created", created);
    (if created { 201 } else { 200 }, o.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let r = parse(
            br#"{"source":"a","dest":"b","filter":["tag","Glob","x*"],"preserve_tag":false,
            "guarantee":"exactly_once","create_dest":false,"allow_cycle":true }"#,
        )
        .unwrap();
        assert_eq!((r.source.as_str(), r.dest.as_str()), ("a", "b"));
        assert!(r.preserve_node && !r.preserve_tag && !r.create_dest && r.allow_cycle);
        assert_eq!(r.guarantee, Guarantee::ExactlyOnce);
        assert!(r.filter.is_some());
        for (body, start) in [
            (r#"{"dest":"b"}"#, "source is missing"),
            (r#"{"source":"a"}"#, "dest is missing"),
            (r#"{"source":"a","dest":1}"#, "dest must be"),
            (r#"{"source":"a","dest":"b","filter":5}"#, "filter must be"),
            (r#"{"source":"a","dest":"b","guarantee":"twice"}"#, "guarantee must be one of"),
        ] {
            let failure = parse(body.as_bytes()).unwrap_err();
            assert!(failure.message.starts_with(start), "{}", failure.message);
        }
    }
}
