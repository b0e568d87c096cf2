//! Segment files that are missing, cut, emptied or another's: `strict` refuses and says what to run,
//! `salvage` and a repair declare lost records as gaps `corrupt`, and no other records.

use std::collections::BTreeMap;

use topics_sim::DiskImage;

use super::*;
use crate::engine::verify::{Progress, plan_repair, repair, verify};
use crate::types::api::GapReason;
use crate::types::error::Error;
use crate::types::options::RecoveryMode;

/// Segments of eight records; two topics of the same shape, one record in four deleted; the last
/// segment is active.
fn directory(clean: bool) -> DiskImage {
    let mut w = World::with(Options { segment_max_events: 8, ..small() });
    for name in ["left", "right"] {
        w.create(name, ConfigPatch { durability: Some(Durability::Fsync), ..Default::default() });
        for _ in 0..5 {
            w.tagged(name, &["red", "blue", "red", "green"]);
        }
    }
    w.checkpoint();
    for name in ["left", "right"] {
        let matching = Some(TopicMatch::Eq(b"blue".to_vec()));
        w.engine().delete(name, &DeleteRequest { matching, ..Default::default() }).unwrap();
    }
    w.checkpoint();
    w.checkpoint();
    if clean {
        w.close();
    }
    w.fs.kill_image()
}

fn on(image: &DiskImage) -> World {
    let mut w = World::with(Options { segment_max_events: 8, ..small() });
    w.engine = None;
    w.fs = Arc::new(SimFs::from_image(image));
    w
}

/// Seq → payload of every topic, and its gaps.
type Content = BTreeMap<String, (BTreeMap<u64, Vec<u8>>, Vec<(u64, u64)>)>;

fn content(w: &World) -> Content {
    let mut out = Content::new();
    for topic in w.engine().list("", None, 100) {
        let (mut records, mut lost) = (BTreeMap::new(), Vec::new());
        let mut from = ReadFrom::After(0);
        loop {
            let request = ReadRequest { from, touch: false, ..ReadRequest::default() };
            let batch = w.engine().read(&topic.topic, &request).unwrap();
            if let Some(t) = &batch.tombstone {
                assert_eq!(t.reason, GapReason::Corrupt);
                lost.push((t.gap_from, t.gap_to));
            }
            records.extend(batch.iter().map(|r| (r.seq, r.data.to_vec())));
            if batch.caught_up {
                break;
            }
            from = ReadFrom::After(batch.next_from_seq);
        }
        out.insert(topic.topic.clone(), (records, lost));
    }
    out
}

fn problems(w: &World) -> Vec<crate::engine::verify::Problem> {
    let quiet = &mut |_: &Progress| {};
    verify(&w.env(), Path::new(DIR), quiet).unwrap().problems
}

/// Checks that each record is served unchanged or in a gap, and that every topic accepts writes above
/// it. Returns how many records are lost.
fn judge(w: &World, whole: &Content, what: &str) -> usize {
    let now = content(w);
    let mut gone = 0;
    for (name, (records, _)) in whole {
        let (is, lost) = now.get(name).unwrap_or_else(|| panic!("{what}: {name} is gone"));
        let last = *records.keys().max().unwrap();
        for (seq, data) in is.range(..=last) {
            assert_eq!(records.get(seq), Some(data), "{what}: {name}: seq {seq}");
        }
        for seq in records.keys().filter(|s| !is.contains_key(s)) {
            let reported = lost.iter().any(|(from, to)| (from..=to).contains(&seq));
            assert!(reported, "{what}: {name}: seq {seq} is missing in silence: {lost:?}");
            gone += 1;
        }
        let next = w.put(name, &["new"]).first_seq;
        assert!(next > last, "{what}: {name}: {next} is given twice");
    }
    gone
}

/// Every file of a segment: gone, emptied, cut, and in the other topic's place.
fn damages(image: &DiskImage) -> Vec<(String, DiskImage)> {
    let all: Vec<_> = image.files().into_iter().filter(|f| f.0.contains("/topics/")).collect();
    let mut out = Vec::new();
    for (name, bytes) in &all {
        let mut put = |what: &str, bytes: &[u8]| {
            let mut damaged = image.clone();
            assert!(damaged.put(name, bytes));
            out.push((format!("{name} {what}"), damaged));
        };
        put("emptied", &[]);
        put("cut", &bytes[..bytes.len() * 2 / 3]);
        let kind = name.rsplit('.').next().unwrap();
        let other = all.iter().find(|o| o.0 != *name && o.0.ends_with(kind) && o.1 != *bytes);
        put("another's", &other.unwrap().1);
        let mut damaged = image.clone();
        assert!(damaged.remove(name));
        out.push((format!("{name} missing"), damaged));
    }
    out
}

#[test]
fn every_file_of_a_segment_may_be_lost() {
    for clean in [true, false] {
        let image = directory(clean);
        let mut w = on(&image);
        w.open();
        let whole = content(&w);
        drop(w);
        let all = damages(&image);
        assert!(all.len() > 80, "{}", all.len());
        let mut gone = 0;
        for (what, damaged) in all {
            let mut w = on(&damaged);
            w.options.recovery = RecoveryMode::Salvage;
            w.open();
            let lost = judge(&w, &whole, &what);
            gone += usize::from(lost > 0);
            if !what.contains(".data") && !what.contains(".del") {
                assert_eq!(lost, 0, "{what}: it can be made again");
            }
            // A crash right after it, then `strict`.
            w.options.recovery = RecoveryMode::Strict;
            w.kill();
            judge(&w, &whole, &what);
            w.close();
            assert_eq!(problems(&w), [], "{what}");
            let kept = w.fs.kill_image();
            for part in [".data", ".del"] {
                if lost > 0 && what.contains(part) && !what.ends_with("missing") {
                    let aside = kept.files().into_iter().any(|f| f.0.contains("/damaged/"));
                    assert!(aside, "{what}: nothing is kept");
                }
            }
        }
        assert!(gone > 20, "{gone}");
    }
}

#[test]
fn a_repair_lists_what_is_lost_before_it_does_it() {
    let image = directory(true);
    let mut w = on(&image);
    w.open();
    let whole = content(&w);
    drop(w);
    let (name, bytes) = image.files().into_iter().find(|f| f.0.ends_with(".data")).unwrap();
    for damage in [None, Some(bytes.len() / 2), Some(bytes.len())] {
        let mut damaged = image.clone();
        match damage {
            None => assert!(damaged.remove(&name)),
            Some(len) if len < bytes.len() => assert!(damaged.put(&name, &bytes[..len])),
            Some(_) => {
                let mut flipped = bytes.clone();
                flipped[100] ^= 1;
                assert!(damaged.put(&name, &flipped));
            }
        }
        let mut w = on(&damaged);
        assert!(!problems(&w).is_empty());
        let plan = plan_repair(&w.env(), Path::new(DIR), w.options.clone()).unwrap();
        assert!(plan.files.iter().any(|p| name.ends_with(&p.file)), "{:?}", plan.files);
        assert!(!plan.gaps.is_empty() && plan.losses.is_empty(), "{plan:?}");
        let unchanged = |f: &(String, Vec<u8>)| !f.0.ends_with(".topics.lock");
        let files =
            |image: &DiskImage| -> Vec<_> { image.files().into_iter().filter(unchanged).collect() };
        assert_eq!(files(&w.fs.kill_image()), files(&damaged), "a plan changes nothing");
        let done = repair(w.env(), Path::new(DIR), w.options.clone()).unwrap();
        assert_eq!(done.gaps, plan.gaps);
        assert_eq!(problems(&w), []);
        w.open();
        assert!(judge(&w, &whole, "repaired") > 0);
    }
}

#[test]
fn a_refusal_says_what_to_run() {
    for clean in [true, false] {
        let image = directory(clean);
        for part in ["meta/STORE", "CURRENT", ".data", ".del"] {
            let (name, _) = image.files().into_iter().find(|f| f.0.ends_with(part)).unwrap();
            let mut damaged = image.clone();
            assert!(damaged.remove(&name));
            let mut w = on(&damaged);
            let refused = w.try_open().and_then(|()| {
                ["left", "right"].iter().try_for_each(|t| w.engine().state(t, false).map(drop))
            });
            let Err(Error::Corrupt { file, detail, .. }) = refused else {
                panic!("{part}: {refused:?}");
            };
            assert!(file.contains(part) && detail.contains("`topics repair"), "{file}: {detail}");
        }
    }
}

#[test]
fn jobs_that_are_lost_are_claimed_no_more() {
    let w = World::with(Options { segment_max_events: 4, ..small() });
    let queue = ConfigPatch {
        kind: Some(crate::types::config::TopicType::Queue),
        leases_durable: Some(true),
        durability: Some(Durability::Fsync),
        ..Default::default()
    };
    w.create("q", queue);
    w.put("q", &["a"; 8]);
    let claim = crate::types::queue::Claim { node: b"n", max: 2, ..Default::default() };
    assert_eq!(w.engine().claim("q", &claim).unwrap().leases.len(), 2);
    w.checkpoint();
    w.checkpoint();
    let mut image = w.fs.kill_image();
    let (name, _) = image.files().into_iter().find(|f| f.0.ends_with(".data")).unwrap();
    assert!(image.remove(&name));
    let mut w = on(&image);
    w.options.recovery = RecoveryMode::Salvage;
    w.open();
    let claim = crate::types::queue::Claim { node: b"n", max: 100, ..Default::default() };
    let claimed = w.engine().claim("q", &claim).unwrap();
    let seqs: Vec<u64> = claimed.records.iter().map(|r| r.seq).collect();
    assert_eq!(seqs, [5, 6, 7, 8]);
    w.clock.advance_ms(3_600_000);
    w.engine().tick().unwrap();
    let again = w.engine().claim("q", &claim).unwrap();
    assert_eq!(again.leases.len(), 4, "and no lease of a lost one runs out");
}
