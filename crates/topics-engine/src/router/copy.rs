//! The copy of a record: what it keeps, and what it says about its way.
//!
//! Keys that begin with `_topics_` are refused from writers, and a router puts its own at the
//! front of the object: they are recognised without parsing the rest.

use super::define::{Definition, Guarantee, MAX_HOPS};
use crate::types::api::NewRecord;
use crate::types::batch::RecordView;

const ORIGIN: &str = "_topics_router";
const HOPS: &str = "_topics_hops";

/// Takes `"key":"value"` off the front of the members of an object.
fn strip<'a>(members: &'a [u8], key: &str) -> (Option<&'a [u8]>, &'a [u8]) {
    let head = format!("\"{key}\":\"");
    let Some(rest) = members.strip_prefix(head.as_bytes()) else { return (None, members) };
    let Some(end) = rest.iter().position(|b| *b == b'"') else { return (None, members) };
    let (value, rest) = (&rest[..end], &rest[end + 1..]);
    (Some(value), rest.strip_prefix(b",").unwrap_or(rest))
}

/// The meta of a copy; `None`: it has come far enough.
fn meta(d: &Definition, r: &RecordView<'_>) -> Option<Vec<u8>> {
    let plain = !d.request.allow_cycle && d.request.guarantee == Guarantee::AtLeastOnce;
    if plain {
        return Some(r.meta.to_vec());
    }
    let object = r.meta.trim_ascii();
    let members = object.strip_prefix(b"{").and_then(|m| m.strip_suffix(b"}")).unwrap_or(b"");
    let (origin, rest) = strip(members, ORIGIN);
    let (hops, rest) = strip(rest, HOPS);
    let mut hops: u32 =
        hops.and_then(|h| std::str::from_utf8(h).ok()).and_then(|h| h.parse().ok()).unwrap_or(0);
    if d.request.allow_cycle {
        hops += 1;
        if hops > MAX_HOPS {
            return None;
        }
    }
    let origin = match d.request.guarantee {
        Guarantee::ExactlyOnce => {
            Some(format!("{}:{}:{}:{}", d.name, d.source.topic_id, d.source.epoch, r.seq))
        }
        Guarantee::AtLeastOnce => origin.map(|o| String::from_utf8_lossy(o).into_owned()),
    };
    let mut out = b"{".to_vec();
    let hops = (hops > 0).then(|| hops.to_string());
    for (key, value) in [(ORIGIN, origin), (HOPS, hops)] {
        if let Some(value) = value {
            out.extend_from_slice(format!("\"{key}\":\"{value}\",").as_bytes());
        }
    }
    match rest {
        [] => {
            out.pop();
        }
        rest => out.extend_from_slice(rest),
    }
    out.push(b'}');
    Some(out)
}

/// The metas of the copies of these records; those without one are not copied.
pub(crate) fn metas<'a>(
    d: &Definition,
    records: impl Iterator<Item = RecordView<'a>>,
) -> Vec<(RecordView<'a>, Vec<u8>)> {
    records.filter_map(|r| meta(d, &r).map(|m| (r, m))).collect()
}

pub(crate) fn copies<'a>(
    d: &Definition,
    records: &'a [(RecordView<'a>, Vec<u8>)],
) -> Vec<NewRecord<'a>> {
    let r = &d.request;
    let copy = |(v, meta): &'a (RecordView<'a>, Vec<u8>)| NewRecord {
        data: v.data,
        binary: v.binary,
        tag: if r.preserve_tag { v.tag } else { b"" },
        node: if r.preserve_node { v.node } else { b"" },
        meta,
        ..NewRecord::default()
    };
    records.iter().map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::super::define::{End, RouterRequest};
    use super::*;

    fn router(allow_cycle: bool, guarantee: Guarantee) -> Definition {
        Definition {
            name: "r".into(),
            id: 1,
            source: End { topic_id: 2, epoch: 3 },
            dest: End { topic_id: 4, epoch: 5 },
            request: RouterRequest { allow_cycle, guarantee, ..RouterRequest::default() },
            start: 0,
        }
    }

    fn of(d: &Definition, m: &str) -> Option<String> {
        let record = RecordView {
            seq: 9,
            ts: 0,
            node: b"",
            tag: b"",
            meta: m.as_bytes(),
            data: b"",
            binary: false,
        };
        meta(d, &record).map(|m| String::from_utf8(m).unwrap())
    }

    #[test]
    fn plain_copies_keep_theirs_byte_for_byte() {
        let d = router(false, Guarantee::AtLeastOnce);
        for m in ["", "{ \"a\" : \"b\" }", "{\"_topics_router\":\"x:1:1:1\"}"] {
            assert_eq!(of(&d, m).unwrap(), m);
        }
    }

    #[test]
    fn the_origin_is_of_the_last_router_that_says_it() {
        let d = router(false, Guarantee::ExactlyOnce);
        let own = "\"_topics_router\":\"r:2:3:9\"";
        assert_eq!(of(&d, "").unwrap(), format!("{{{own}}}"));
        assert_eq!(of(&d, "{}").unwrap(), format!("{{{own}}}"));
        assert_eq!(of(&d, "{\"a\":\"}\"}").unwrap(), format!("{{{own},\"a\":\"}}\"}}"));
        let other = "{\"_topics_router\":\"q:1:1:1\",\"_topics_hops\":\"2\",\"a\":\"b\"}";
        assert_eq!(of(&d, other).unwrap(), format!("{{{own},\"_topics_hops\":\"2\",\"a\":\"b\"}}"));
    }

    #[test]
    fn hops_end() {
        let d = router(true, Guarantee::AtLeastOnce);
        let mut m = String::from("{\"k\":\"v\"}");
        for hop in 1..=MAX_HOPS {
            m = of(&d, &m).unwrap();
            assert_eq!(m, format!("{{\"_topics_hops\":\"{hop}\",\"k\":\"v\"}}"));
        }
        assert_eq!(of(&d, &m), None);
    }
}
