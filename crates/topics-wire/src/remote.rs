//! Reports about a prefix of an object store.

use topics_remote::cost;
use topics_remote::inspect::{PrefixReport, PrefixStatus};
use topics_remote::probe::{Finding, ProbeReport};

use crate::object::{Object, push_array};

/// The findings of a probe.
#[must_use]
pub fn probe(r: &ProbeReport) -> Vec<u8> {
    let mut o = Object::new(128 + r.findings.len() * 96);
    o.flag("suitable", r.is_suitable());
    o.flag("conditional_writes", r.has_conditional_writes());
    let features = r.findings.iter().map(|(feature, finding)| {
        let mut item = Object::new(96);
        item.name("feature", feature.name());
        match finding {
            Finding::Present => item.name("result", "present").raw("detail", b"null"),
            Finding::Missing(why) => item.name("result", "missing").name("detail", why),
            Finding::Unknown(e) => item.name("result", "unknown").name("detail", &e.to_string()),
        };
        item.finish()
    });
    push_array(o.key("features"), features);
    o.finish()
}

/// The published state of a prefix; `null` if it is new.
#[must_use]
pub fn status(found: Option<&PrefixStatus>) -> Vec<u8> {
    let Some(s) = found else { return b"null".to_vec() };
    let mut o = Object::new(512);
    let hex = |id: &[u8; 16]| format!("{:032x}", u128::from_be_bytes(*id));
    o.name("holder", &s.head.holder).int("epoch", s.head.epoch).flag("closed", s.head.closed);
    o.name("store_id", &hex(&s.head.store_id)).name("prefix_id", &hex(&s.head.prefix_id));
    o.int("head_ms", s.head_ms);
    match (&s.head.catalog, &s.catalog) {
        (Some(object), Some(c)) => o.name("catalog", &object.key).int("catalog_ms", c.made_ms),
        _ => o.raw("catalog", b"null").raw("catalog_ms", b"null"),
    };
    o.int("packs", s.packs().len() as u64).int("pack_bytes", s.pack_bytes());
    o.int("bitmaps", s.deletes().len() as u64);
    o.int("condemned", s.catalog.as_ref().map_or(0, |c| c.condemned.len() as u64));
    o.int("last_round", s.last_round).int("bytes", s.named_bytes());
    let dollars = format!("{:.6}", cost::storage_per_month(s.named_bytes()));
    o.raw("estimated_cost_dollars_per_month", dollars.as_bytes());
    o.finish()
}

/// The result of a verification.
#[must_use]
pub fn verification(r: &PrefixReport) -> Vec<u8> {
    let mut o = Object::new(128 + r.problems.len() * 128);
    o.flag("ok", r.problems.is_empty());
    o.int("objects", r.objects).int("read", r.read).int("bytes", r.bytes);
    let problems = r.problems.iter().map(|problem| {
        let mut item = Object::new(128);
        item.name("object", &problem.key).name("detail", &problem.detail);
        item.finish()
    });
    push_array(o.key("problems"), problems);
    o.finish()
}
