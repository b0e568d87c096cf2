//! Removal of records: deletes, rewrites and merges, caps, expiry.

use topics_engine::{ConfigPatch, Discard, Durability, TopicMatch};

use super::class;
use crate::run::{Driver, batch};

fn eq(tag: &str) -> Option<TopicMatch> {
    Some(TopicMatch::Eq(tag.as_bytes().to_vec()))
}

/// Deletes of every form, of records in memory and in sealed segments.
pub fn deletes(d: &mut Driver) {
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for round in 0..6 {
        for topic in ["safe", "disk"] {
            d.append(topic, &batch(6).tags(&["job-1", "job-2", "other"]));
            d.append(topic, &batch(2));
        }
        match round {
            0 => d.delete("safe", Some(4), None),
            1 => d.delete("safe", None, eq("job-2")),
            2 => d.delete("disk", Some(9), eq("other")),
            3 => d.delete("disk", None, Some(TopicMatch::Glob(b"job".to_vec()))),
            4 => d.delete("safe", Some(1000), None),
            _ => d.delete("disk", Some(20), None),
        };
        d.look();
        if round % 2 == 1 {
            d.checkpoint();
        }
        d.delete("safe", None, eq("job-1"));
    }
    d.append("safe", &batch(3).tags(&["job-1"]));
    d.look();
}

/// Segments that are mostly dead are rewritten, small ones merged, empty ones dropped.
pub fn rewrites(d: &mut Driver) {
    d.tuning.segment_records = 8;
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for round in 0..4 {
        for _ in 0..3 {
            d.append("disk", &batch(8).size(60).tags(&["a", "b", "a", "a"]));
            d.append("safe", &batch(5).tags(&["a", "c"]));
        }
        d.checkpoint();
        d.delete("disk", None, eq("a"));
        d.checkpoint();
        d.tick();
        d.tick();
        d.look();
        d.delete("safe", None, eq(if round % 2 == 0 { "a" } else { "c" }));
        d.checkpoint();
        d.tick();
        d.append("disk", &batch(2));
        d.look();
    }
    d.delete("disk", Some(30), None);
    d.checkpoint();
    d.checkpoint();
    d.tick();
}

/// Caps by records and by bytes, eviction and refusal, with caps that become tighter.
pub fn caps(d: &mut Driver) {
    let cap = |records, bytes, durability| ConfigPatch {
        cap_records: Some(records),
        cap_bytes: Some(bytes),
        durability: Some(durability),
        ..ConfigPatch::default()
    };
    d.open();
    d.create("count", &cap(10, 0, Durability::Fsync));
    d.create("bytes", &cap(0, 600, Durability::Disk));
    let reject = ConfigPatch { discard: Some(Discard::Reject), ..cap(7, 0, Durability::Fsync) };
    d.create("full", &reject);
    for round in 0..8 {
        d.append("count", &batch(3).tags(&["x", "y"]));
        d.append("bytes", &batch(2).size(70));
        d.append("full", &batch(2));
        if round % 3 == 2 {
            d.delete("full", Some(4 * round), None);
            d.delete("count", None, eq("x"));
            d.checkpoint();
        }
        d.look();
        if round == 5 {
            d.create("count", &cap(4, 0, Durability::Fsync));
            d.create("bytes", &cap(3, 300, Durability::Disk));
            d.look();
            d.tick();
        }
    }
    d.reopen();
    d.append("count", &batch(4));
    d.append("bytes", &batch(3));
}

/// Records expire by the topic's TTL and by their own; the clock advances and steps.
pub fn expiry(d: &mut Driver) {
    d.open();
    let ttl = |ms, durability| ConfigPatch {
        ttl_ms: Some(ms),
        durability: Some(durability),
        ..ConfigPatch::default()
    };
    d.create("short", &ttl(5_000, Durability::Fsync));
    d.create("long", &ttl(60_000, Durability::Disk));
    for round in 0..9 {
        d.append("short", &batch(2));
        d.append("long", &batch(3).tags(&["t"]));
        d.append("own", &batch(2).ttl(4_000));
        d.append("own", &batch(1));
        d.pass(2_000 + 1_000 * round);
        d.look();
        match round % 4 {
            0 => d.tick(),
            1 => d.checkpoint(),
            2 => {
                d.step_wall(-3_000);
                d.sync()
            }
            _ => d.delete("long", Some(round * 2), None),
        };
    }
    d.create("long", &ttl(10_000, Durability::Disk));
    d.look();
    d.tick();
    d.pass(70_000);
    d.tick();
    d.look();
    d.append("long", &batch(1));
    d.checkpoint();
    d.reopen();
    d.append("short", &batch(1));
}
