//! Reports of a verification and of a repair.

use topics_engine::{Repair, Report};

use crate::json::push_str;
use crate::object::{Object, push_array};

/// The report of a verification.
#[must_use]
pub fn verification(r: &Report) -> Vec<u8> {
    let mut o = Object::new(128 + r.problems.len() * 128);
    o.flag("ok", r.problems.is_empty());
    o.int("files", r.files).int("bytes", r.bytes).int("records", r.records);
    let problems = r.problems.iter().map(|problem| {
        let mut item = Object::new(128);
        item.name("file", &problem.file).int("offset", problem.offset);
        item.name("detail", &problem.detail);
        item.finish()
    });
    push_array(o.key("problems"), problems);
    o.finish()
}

/// The report of a repair: what it declares lost.
#[must_use]
pub fn repair(r: &Repair) -> Vec<u8> {
    let mut o = Object::new(256 + (r.losses.len() + r.gaps.len()) * 128);
    o.flag("done", r.done);
    let losses = r.losses.iter().map(|loss| {
        let mut item = Object::new(160);
        item.name("file", &loss.file).int("offset", loss.offset).int("shard", loss.shard.into());
        // The first and the last lsn; the range may have billions.
        item.raw("lsns", format!("[{},{}]", loss.from_lsn, loss.to_lsn).as_bytes());
        item.finish()
    });
    push_array(o.key("losses"), losses);
    let gaps = r.gaps.iter().map(|(topic, gap)| {
        let mut item = Object::new(128);
        item.name("topic", topic).int("from", gap.from).int("to", gap.to);
        item.name("reason", gap.reason.as_str());
        item.finish()
    });
    push_array(o.key("gaps"), gaps);
    let files = r.files.iter().map(|problem| {
        let mut item = Object::new(128);
        item.name("file", &problem.file).int("offset", problem.offset);
        item.name("detail", &problem.detail);
        item.finish()
    });
    push_array(o.key("files"), files);
    let kept = r.kept.iter().map(|name| {
        let mut text = Vec::new();
        push_str(&mut text, name.as_bytes());
        text
    });
    push_array(o.key("kept"), kept);
    o.finish()
}
