//! Reports of a verification, a backup, a restore and a repair.

use topics_engine::{BackupSummary, Repair, Report, Restored};

use crate::Failure;
use crate::json::{FieldPath, Fields, Reader, push_str, read_body};
use crate::object::{Object, push_array};
use crate::routes::bodies;

#[must_use]
pub fn verification(r: &Report) -> Vec<u8> {
    let mut o = Object::new(128 + r.problems.len() * 128);
    o.flag("ok", r.problems.is_empty());
    o.int("files", r.files).int("bytes", r.bytes).int("records", r.records);
    o.int("cold_records", r.cold_records);
    let problems = r.problems.iter().map(|problem| {
        let mut item = Object::new(128);
        item.name("file", &problem.file).int("offset", problem.offset);
        item.name("detail", &problem.detail);
        item.finish()
    });
    push_array(o.key("problems"), problems);
    o.finish()
}

/// The report of a restore.
#[must_use]
pub fn restored(r: &Restored) -> Vec<u8> {
    let mut o = Object::new(256);
    o.int("state_ms", r.state_ms).int("newest_ms", r.newest_ms);
    o.flag("has_later", r.has_later).flag("skips", r.skips);
    o.int("topics", r.topics).int("rounds", r.rounds);
    o.int("log_bytes", r.log_bytes).int("segment_bytes", r.segment_bytes);
    o.int("remote_bytes", r.remote_bytes);
    o.int("missing_segments", r.missing_segments);
    o.finish()
}

/// What a backup has.
#[must_use]
pub fn backup(dir: &str, b: &BackupSummary) -> Vec<u8> {
    let mut o = Object::new(160);
    o.name("dir", dir).int("linked", b.linked).int("copied", b.copied);
    o.int("copied_bytes", b.copied_bytes).int("fetched", b.fetched);
    o.finish()
}

/// `{dir}`: the directory of a backup, below the one that the server is configured with.
pub fn parse_backup(bytes: &[u8]) -> Result<String, Failure> {
    let mut dir = None;
    read_body(bytes, Fields::of(bodies::BACKUP), |s, field| {
        dir = Some(s.text(FieldPath::field(field))?.into_owned());
        Ok(())
    })?;
    dir.ok_or_else(|| {
        FieldPath::field("dir").invalid("is missing; it names the directory of the backup")
    })
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
    // Empty: they were looked at, or there are none.
    o.name("unlooked", r.unlooked.as_deref().unwrap_or_default());
    o.finish()
}
