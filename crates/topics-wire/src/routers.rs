//! Routers: requests and answers.

use topics_engine::{RouterInfo, RouterRequest, TopicMatch};

use crate::error::Failure;
use crate::filter::matching_at;
use crate::json::{FieldPath, Fields, Reader, push_str, read_body};
use crate::object::{Object, push_array};
use crate::page::{self, Page};
use crate::query::Query;
use crate::routes::bodies;
use crate::words::GUARANTEES;

/// `{source, dest, preserve_node?, preserve_tag?, filter?, create_dest?, allow_cycle?,
/// guarantee?}`.
pub fn parse(bytes: &[u8]) -> Result<RouterRequest, Failure> {
    const FIELDS: Fields = Fields::of(bodies::ROUTER_PUT);
    let mut r = RouterRequest::default();
    let (mut source, mut dest) = (None, None);
    read_body(bytes, FIELDS, |s, key| {
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
                r.guarantee = path.choose(&s.text(path)?, &GUARANTEES)?;
            }
            _ => s.skip()?,
        }
        Ok(())
    })?;
    r.source = source.ok_or_else(|| FieldPath::field("source").invalid("is missing"))?;
    r.dest = dest.ok_or_else(|| FieldPath::field("dest").invalid("is missing"))?;
    Ok(r)
}

/// The state of a router.
#[must_use]
pub fn router(r: &RouterInfo) -> Vec<u8> {
    let mut o = Object::new(400);
    let q = &r.request;
    o.name("router", &r.router).name("source", &q.source).name("dest", &q.dest);
    o.flag("preserve_node", q.preserve_node).flag("preserve_tag", q.preserve_tag);
    match &q.filter {
        None => o.raw("filter", b"null"),
        Some(m) => {
            let (op, tag, star) = match m {
                TopicMatch::Eq(tag) => ("Eq", tag, ""),
                TopicMatch::Glob(prefix) => ("Glob", prefix, "*"),
            };
            let pattern = String::from_utf8_lossy(tag).into_owned() + star;
            let out = o.key("filter");
            out.extend_from_slice(b"[\"tag\",");
            push_str(out, op.as_bytes());
            out.push(b',');
            push_str(out, pattern.as_bytes());
            out.push(b']');
            &mut o
        }
    };
    o.flag("create_dest", q.create_dest).flag("allow_cycle", q.allow_cycle);
    o.name("guarantee", q.guarantee.as_str());
    o.int("forwarded_total", r.forwarded_total).int("lag", r.lag);
    match &r.stopped_by {
        None => o.raw("stopped_by", b"null"),
        Some(e) => o.name("stopped_by", e.code()),
    };
    o.finish()
}

/// A page of routers; `next` is the cursor of the next page.
#[must_use]
pub fn page(all: &[RouterInfo], next: Option<&str>) -> Vec<u8> {
    let mut o = Object::new(400 * all.len() + 32);
    push_array(o.key("routers"), all.iter().map(router));
    if let Some(next) = next {
        o.name("next_cursor", next);
    }
    o.finish()
}

/// The filter of a list of routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterFilter {
    pub page: Page,
    /// Only routers from this topic.
    pub source: Option<String>,
    /// Only routers to this topic.
    pub dest: Option<String>,
}

/// `?prefix&source&dest&page_size&cursor`.
pub fn filter(query: &Query<'_>) -> Result<RouterFilter, Failure> {
    let text = |name| Ok::<_, Failure>(query.get(name)?.map(|v| v.into_owned()));
    Ok(RouterFilter { page: page::parse(query)?, source: text("source")?, dest: text("dest")? })
}

impl RouterFilter {
    /// Whether a router belongs on this page or a later one.
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
    use topics_engine::Guarantee;

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
