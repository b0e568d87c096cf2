//! Reports about a prefix of an object store.

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

/// The published state of a prefix at a time; `null` if it is new.
#[must_use]
pub fn status(found: Option<&PrefixStatus>, now_ms: u64) -> Vec<u8> {
    let Some(s) = found else { return b"null".to_vec() };
    let mut o = Object::new(512);
    o.name("holder", &s.head.holder).int("epoch", s.head.epoch);
    o.flag("closed", s.head.closed.is_some());
    o.name("prefix_id", &hex(&s.head.prefix_id)).int("head_ms", s.head_ms);
    match (&s.head.base, &s.base) {
        (Some(object), Some(base)) => {
            let rounds = (s.last_round + 1).saturating_sub(base.first_round);
            o.name("store_id", &hex(&base.header.store_id));
            o.name("base", &object.key).int("base_ms", base.made_ms);
            o.int("base_age_ms", now_ms.saturating_sub(base.made_ms)).int("rounds", rounds);
            o.int("earlier_bases", base.kept.len() as u64);
            o.int("dead_ranges", base.dead.len() as u64);
        }
        _ => {
            for name in ["store_id", "base", "base_ms", "base_age_ms"] {
                o.raw(name, b"null");
            }
            for name in ["rounds", "earlier_bases", "dead_ranges"] {
                o.int(name, 0);
            }
        }
    }
    o.int("packs", s.packs().len() as u64).int("bytes", s.named_bytes());
    o.finish()
}

fn hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
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
