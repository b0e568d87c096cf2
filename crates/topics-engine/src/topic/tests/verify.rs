//! Verify and repair over damaged and running directories.

use topics_sim::DiskImage;

use super::*;
use crate::engine::verify::{Progress, plan_repair, repair, verify};
use crate::types::api::GapReason;
use crate::types::error::Error;

fn check(w: &World) -> crate::engine::verify::Report {
    verify(&w.env(), Path::new(DIR), &mut |_| {}).unwrap()
}

/// Mounts an image that no engine has open.
fn mount(w: &mut World, image: &DiskImage) {
    w.fs = Arc::new(SimFs::from_image(image));
}

fn life(w: &World, look: &mut dyn FnMut(&World)) {
    for round in 0..4 {
        for name in ["a", "b"] {
            w.tagged(name, &["red", "blue", "red", "green"]);
            look(w);
            w.put(name, &["x"; 3]);
            look(w);
        }
        w.checkpoint();
        look(w);
        let matching = Some(TopicMatch::Eq(b"blue".to_vec()));
        w.engine().delete("a", &DeleteRequest { matching, ..Default::default() }).unwrap();
        look(w);
        if round == 2 {
            w.engine().delete_topic("b", false).unwrap();
            look(w);
        }
    }
    w.checkpoint();
    look(w);
}

#[test]
fn verify_beside_a_running_engine_finds_nothing_and_changes_nothing() {
    let w = World::new();
    let mut looks = 0;
    life(&w, &mut |w| {
        let before = w.fs.ops_len();
        let report = check(w);
        assert_eq!(report.problems, [], "after look {looks}");
        assert!(report.files >= 2 && report.records > 0);
        assert_eq!(w.fs.ops_len(), before, "verify wrote");
        assert_eq!(w.engine().verify().unwrap().problems, []);
        looks += 1;
    });
    assert!(looks > 20);
}

#[test]
fn progress_rises_to_the_whole() {
    let mut w = World::new();
    life(&w, &mut |_| {});
    w.close();
    let mut seen: Vec<Progress> = Vec::new();
    let report = verify(&w.env(), Path::new(DIR), &mut |p| seen.push(*p)).unwrap();
    assert!(seen.len() > 5 && seen.windows(2).all(|p| p[0].bytes <= p[1].bytes));
    assert!(seen.iter().all(|p| p.bytes <= p.total_bytes));
    let last = seen.last().unwrap();
    assert_eq!((last.files, last.bytes), (report.files, report.bytes));
}

#[test]
fn a_newest_snapshot_that_is_gone_is_found() {
    let w = World::new();
    life(&w, &mut |_| {});
    let mut image = w.fs.kill_image();
    let newest = image.files().into_iter().map(|f| f.0).rfind(|n| n.contains("snapshot.")).unwrap();
    assert!(image.remove(&newest));
    let mut other = World::new();
    mount(&mut other, &image);
    let found = check(&other).problems;
    assert!(found.iter().any(|p| p.file == newest), "{newest}: {found:?}");
}

/// A directory whose log is damaged in the middle of what was durable: where, and the image.
fn damaged() -> (World, DiskImage) {
    let w = World::new();
    w.create("f", ConfigPatch { durability: Some(Durability::Fsync), ..Default::default() });
    for i in 0..12 {
        w.put("f", &[&format!("value {i:02}"), "x"]);
    }
    let mut image = w.fs.kill_image();
    let holds = |b: &[u8]| b.windows(8).position(|x| x == b"value 05");
    let (name, mut bytes) =
        image.files().into_iter().find(|(n, b)| n.ends_with(".log") && holds(b).is_some()).unwrap();
    let at = holds(&bytes).unwrap();
    bytes[at] ^= 4;
    image.put(&name, &bytes);
    (w, image)
}

#[test]
fn a_repair_says_first_what_it_gives_up_and_keeps_the_bytes() {
    let (mut w, image) = damaged();
    w.engine = None;
    mount(&mut w, &image);
    let found = check(&w).problems;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        matches!(w.try_open(), Err(Error::Corrupt { offset, .. }) if offset == found[0].offset)
    );

    mount(&mut w, &image);
    let options = small();
    let plan = plan_repair(&w.env(), Path::new(DIR), options.clone()).unwrap();
    assert!(!plan.done && plan.kept.is_empty());
    assert_eq!(plan.losses.len(), 1);
    assert!(found[0].file.ends_with(&plan.losses[0].file));
    let files = |w: &World| -> Vec<_> {
        let all = w.fs.kill_image().files();
        all.into_iter().filter(|(n, _)| !n.ends_with(".topics.lock")).collect()
    };
    let all = image.files();
    let before: Vec<_> = all.into_iter().filter(|(n, _)| !n.ends_with(".topics.lock")).collect();
    assert!(files(&w) == before, "a plan changes nothing");

    let done = repair(w.env(), Path::new(DIR), options).unwrap();
    assert!(done.done);
    assert_eq!((&done.losses, &done.gaps), (&plan.losses, &plan.gaps));
    let kept: Vec<_> = files(&w).into_iter().filter(|(n, _)| n.contains("/damaged/")).collect();
    assert_eq!(done.kept.len(), kept.len());
    assert!(kept.iter().any(|(_, b)| b.windows(5).any(|x| x == b"ue 05")), "{done:?}");
    assert_eq!(check(&w).problems, []);

    // The plan named exactly the records that are missing.
    w.open();
    let batch = w.read("f", 0);
    let mut seqs: Vec<u64> = batch.iter().map(|r| r.seq).collect();
    let mut at = batch.next_from_seq;
    while at < 24 {
        let more = w.read("f", at);
        seqs.extend(more.iter().map(|r| r.seq));
        at = more.next_from_seq;
    }
    let lost: Vec<u64> = (1..=24).filter(|s| !seqs.contains(s)).collect();
    assert_eq!(lost, [11, 12]);
    let gaps = w.state("f").gaps;
    assert!(
        gaps.iter().any(|g| (g.from, g.to, g.reason) == (11, 12, GapReason::Corrupt)),
        "{gaps:?}"
    );
    assert!(!plan.gaps.is_empty());
    assert!(plan.gaps.iter().all(|(t, g)| t == "f" && gaps.contains(g)), "{:?}", plan.gaps);
}

#[test]
fn a_plan_over_a_whole_or_no_directory() {
    let mut w = World::new();
    w.put("t", &["a"]);
    w.close();
    let plan = plan_repair(&w.env(), Path::new(DIR), small()).unwrap();
    assert!(plan.losses.is_empty() && plan.gaps.is_empty(), "{plan:?}");
    let none = plan_repair(&w.env(), Path::new("/none"), small());
    assert!(matches!(none, Err(Error::InvalidRequest(_))), "{none:?}");
    w.open();
    let held = plan_repair(&w.env(), Path::new(DIR), small());
    assert!(matches!(held, Err(Error::Locked { .. })), "{held:?}");
}

#[test]
fn an_open_engine_finds_damage_in_its_segments() {
    let mut w = World::new();
    w.put("t", &["aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd", "eeeeeeee", "f"]);
    w.close();
    let mut image = w.fs.kill_image();
    let holds = |b: &[u8]| b.windows(8).position(|x| x == b"bbbbbbbb");
    let (name, mut bytes) = image
        .files()
        .into_iter()
        .find(|(n, b)| n.ends_with(".data") && holds(b).is_some())
        .unwrap();
    let at = holds(&bytes).unwrap();
    bytes[at] ^= 1;
    image.put(&name, &bytes);
    mount(&mut w, &image);
    w.open();
    let found = w.engine().verify().unwrap().problems;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(name.ends_with(&found[0].file) && found[0].offset < at as u64, "{found:?}");
}
