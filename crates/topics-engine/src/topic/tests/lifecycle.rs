//! Creating, updating, deleting, listing; fences between lives.

#![allow(
    clippy::disallowed_methods,
    reason = "permits are what is tested, or held against the log"
)]

use std::collections::BTreeSet;

use topics_env::Fs;
use topics_sim::{CallFilter, CallKind, FaultKind, Survival};

use super::*;
use crate::types::config::{TopicConfig, TopicType};
use crate::types::error::Error;
use crate::verbs::Existing;

#[test]
fn creating_twice_is_a_no_op_or_an_update() {
    let mut w = World::new();
    let p = ConfigPatch { ttl_ms: Some(5), priority: Some(Some(2000)), ..ConfigPatch::default() };
    let a = w.engine().create_topic("t", &p).unwrap();
    assert!(a.created);
    assert_eq!(a.config, TopicConfig { ttl_ms: 5, priority: Some(1000), ..TopicConfig::default() });
    let b = w.engine().create_topic("t", &p).unwrap();
    assert!(!b.created && b.config == a.config && b.topic_id == a.topic_id);
    let p = ConfigPatch { cap_records: Some(7), ..ConfigPatch::default() };
    let c = w.engine().create_topic("t", &p).unwrap();
    assert_eq!((c.config.ttl_ms, c.config.cap_records), (5, 7));
    for clean in [false, true] {
        if clean {
            w.reopen()
        } else {
            w.kill()
        }
        assert_eq!(w.state("t").config, c.config);
    }
    let queue = ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() };
    match w.engine().create_topic("t", &queue).unwrap_err() {
        Error::TopicExistsIncompatible { field: "type", .. } => {}
        e => panic!("{e}"),
    }
    assert!(w.engine().create_topic("a/b", &p).is_err());
}

#[test]
fn a_creation_may_refuse_what_exists_and_an_update_what_does_not() {
    let w = World::new();
    let put = |ttl_ms, existing| {
        let patch = ConfigPatch { ttl_ms: Some(ttl_ms), ..ConfigPatch::default() };
        w.engine().create_topic_if("t", &patch, existing).map(|c| (c.created, c.config.ttl_ms))
    };
    assert_eq!(put(1, Existing::Required).unwrap_err().code(), "topic_not_found");
    assert_eq!(w.engine().state("t", false).unwrap_err().code(), "topic_not_found");
    assert_eq!(put(2, Existing::Refused).unwrap(), (true, 2));
    assert_eq!(put(3, Existing::Refused).unwrap_err().code(), "already_exists");
    assert_eq!(w.state("t").config.ttl_ms, 2);
    assert_eq!(put(4, Existing::Required).unwrap(), (false, 4));
    assert_eq!(put(5, Existing::Any).unwrap(), (false, 5));
}

#[test]
fn a_topic_without_a_class_gets_that_of_the_engine() {
    let fsync = Options { default_durability: Durability::Fsync, ..Options::default() };
    let w = World::with(fsync);
    w.put("written", &["1"]);
    w.engine().create_topic("created", &ConfigPatch::default()).unwrap();
    let disk = ConfigPatch { durability: Some(Durability::Disk), ..ConfigPatch::default() };
    w.engine().create_topic("named", &disk).unwrap();
    let classes = ["written", "created", "named"].map(|name| w.state(name).config.durability);
    assert_eq!(classes, [Durability::Fsync, Durability::Fsync, Durability::Disk]);
}

#[test]
fn a_later_topic_of_the_name_is_a_new_one() {
    let mut w = World::new();
    w.put("t", &["1", "2"]);
    w.checkpoint();
    let old = w.state("t");
    assert!(w.engine().delete_topic("t", false).unwrap().deleted);
    assert!(!w.engine().delete_topic("t", false).unwrap().deleted);
    assert_eq!(w.engine().state("t", false).unwrap_err().code(), "topic_not_found");
    let a = w.put("t", &["a"]);
    assert!(a.created && a.first_seq == 1);
    for round in 0..3 {
        let new = w.state("t");
        assert!(new.topic_id > old.topic_id && new.epoch > old.epoch);
        assert_eq!(w.read("t", 0).get(0).unwrap().data, b"a");
        if round == 0 { w.kill() } else { w.reopen() }
    }
}

#[test]
fn a_topic_that_no_snapshot_names_leaves_no_folder() {
    let mut w = World::new();
    w.put("t", &["1", "2"]);
    w.engine().sync().unwrap();
    w.fs.fail_nth(CallFilter::on_path(CallKind::Create, "snapshot"), 0, FaultKind::Errno(5));
    w.engine().checkpoint().unwrap_err();
    let folder = Path::new(DIR).join("topics").join(w.state("t").topic_id.to_string());
    assert!(w.fs.exists(&folder).unwrap(), "the round wrote files");
    w.kill();
    w.engine().delete_topic("t", false).unwrap();
    for _ in 0..3 {
        w.checkpoint();
    }
    assert!(!w.fs.exists(&folder).unwrap());
    w.reopen();
    assert!(!w.fs.exists(&folder).unwrap());
}

/// The files and folders under the folder of topics.
fn under_topics(w: &World) -> BTreeSet<String> {
    let image = w.fs.kill_image();
    let files = image.files().into_iter().map(|(path, _)| path);
    files.chain(image.dirs()).filter(|p| p.contains("/topics/")).collect()
}

/// Writes records to four topics, which no snapshot names.
fn with_four_topics() -> World {
    let w = World::new();
    for i in 0..4 {
        w.put(&format!("t{i}"), &["1", "2"]);
    }
    w.engine().sync().unwrap();
    w
}

/// Deletes the four topics and writes two snapshots: no folder is left, and after a close none either.
fn delete_four_topics(w: &mut World, when: &str) {
    for i in 0..4 {
        w.engine().delete_topic(&format!("t{i}"), false).unwrap();
    }
    for _ in 0..2 {
        w.checkpoint();
    }
    assert_eq!(under_topics(w), BTreeSet::new(), "{when}");
    w.reopen();
    assert_eq!(under_topics(w), BTreeSet::new(), "{when}, after a close");
}

#[test]
fn a_folder_that_is_there_before_its_topic_has_files_is_removed() {
    let mut w = with_four_topics();
    for id in [w.state("t1").topic_id, 77] {
        w.fs.create_dir(&Path::new(DIR).join("topics").join(id.to_string())).unwrap();
    }
    w.kill();
    assert_eq!(under_topics(&w), BTreeSet::new());
    delete_four_topics(&mut w, "folders without files");
}

#[test]
fn a_checkpoint_that_is_killed_leaves_no_folder() {
    let w = with_four_topics();
    let before = w.fs.ops_len();
    w.engine().checkpoint().unwrap();
    let (mut cursor, mut with_folders) = (w.fs.crash_cursor(), 0);
    for at in before..w.fs.ops_len() {
        cursor.seek(at);
        let image = cursor.image(Survival::KeepAll);
        let mut w = World::unopened(small());
        w.fs = Arc::new(SimFs::from_image(&image));
        with_folders += usize::from(!under_topics(&w).is_empty());
        w.open();
        delete_four_topics(&mut w, &format!("killed before call {at}"));
    }
    assert!(with_folders > 20, "{with_folders}");
}

#[test]
fn a_checkpoint_that_fails_leaves_no_folder() {
    let mut failed = 0;
    for nth in 1..=12 {
        let mut w = with_four_topics();
        w.fs.fail_nth(CallFilter::on_path(CallKind::Create, "/topics/"), nth, FaultKind::Errno(5));
        failed += usize::from(w.engine().checkpoint().is_err());
        w.fs.clear_faults();
        delete_four_topics(&mut w, &format!("creation {nth} fails"));
    }
    // The first creation in each of four folders finds no folder and is repeated.
    assert_eq!(failed, 12);
}

#[test]
fn a_close_that_writes_no_snapshot_leaves_no_files() {
    let mut w = with_four_topics();
    w.fs.fail_from(CallFilter::on_path(CallKind::Create, "snapshot"), 1, FaultKind::Errno(28));
    w.close();
    w.fs.clear_faults();
    assert!(!under_topics(&w).is_empty(), "the rounds wrote files");
    w.open();
    delete_four_topics(&mut w, "no snapshot fits on the disk");
}

#[test]
fn a_close_that_cannot_sync_removals_leaves_them_to_the_next_open() {
    let mut w = with_four_topics();
    w.checkpoint();
    for i in 0..4 {
        w.engine().delete_topic(&format!("t{i}"), false).unwrap();
    }
    w.fs.fail_from(CallFilter::on_path(CallKind::SyncDir, "/topics"), 1, FaultKind::Errno(24));
    w.close();
    w.fs.clear_faults();
    assert_eq!(under_topics(&w), BTreeSet::new());
    w.power_cut();
    assert_eq!(under_topics(&w), BTreeSet::new());
}

#[test]
fn a_power_cut_after_a_clean_close_brings_nothing_back() {
    for killed in [false, true] {
        let mut w = World::new();
        w.tagged("kept", &["a", "b", "c", "d", "e", "f"]);
        w.put("t", &["1", "2"]);
        w.checkpoint();
        w.engine().delete_topic("t", false).unwrap();
        for tag in ["b", "d"] {
            let matching = Some(TopicMatch::Eq(tag.into()));
            let req = DeleteRequest { matching, ..DeleteRequest::default() };
            w.engine().delete("kept", &req).unwrap();
            w.checkpoint();
        }
        w.checkpoint();
        if killed {
            // The process that removed the files does not close.
            w.drop_engine();
            w.open();
        }
        w.close();
        let left = under_topics(&w);
        assert_eq!(left.iter().filter(|p| p.ends_with(".del")).count(), 1, "{left:?}");
        w.power_cut();
        assert_eq!(under_topics(&w), left, "killed {killed}");
    }
}

#[test]
fn deletes_of_topics_last() {
    let mut w = World::new();
    for i in 0..6 {
        w.put(&format!("t{i}"), &["x"; 7]);
        if i % 2 == 0 {
            w.checkpoint();
        }
    }
    for i in 0..3 {
        w.engine().delete_topic(&format!("t{i}"), false).unwrap();
    }
    for round in 0..3 {
        let names: Vec<_> = w.engine().list("", None, 99).into_iter().map(|t| t.topic).collect();
        assert_eq!(names, ["t3", "t4", "t5"]);
        if round == 0 { w.kill() } else { w.reopen() }
    }
    let folders = w.fs.kill_image().dirs();
    let of_topics = folders.iter().filter(|d| d.contains("/topics/")).count();
    assert_eq!(of_topics, 3, "{folders:?}");
}

#[test]
fn i2_an_earlier_topic_of_the_name_never_comes_back() {
    for kill in [false, true] {
        let mut w = World::with(Options { wal_shards: 3, ..small() });
        w.put("other", &["x"]);
        let first = w.put("t", &["1"]).topic_id;
        w.engine().sync().unwrap();
        assert!(w.engine().delete_topic("t", false).unwrap().deleted);
        let shard = |w: &World, id| w.engine().open_engine().ctx().shard(id);
        while shard(&w, w.state("other").topic_id + 1) == shard(&w, first) {
            w.engine().delete_topic("other", false).unwrap();
            w.put("other", &["x"]);
        }
        w.create("t", class(Durability::Fsync));
        // The deletion is lost, the later topic on another shard is not.
        w.power_cut();
        assert!(w.state("t").topic_id > first);
        assert_eq!(w.engine().list("", None, 9).iter().filter(|t| t.topic == "t").count(), 1);
        assert!(w.engine().delete_topic("t", false).unwrap().deleted);
        if kill {
            w.kill()
        } else {
            w.reopen()
        }
        assert_eq!(w.engine().state("t", false).unwrap_err().code(), "topic_not_found");
    }
}

#[test]
fn if_empty() {
    let w = World::new();
    w.create("t", ConfigPatch { ttl_ms: Some(1000), ..ConfigPatch::default() });
    w.put("t", &["1"]);
    let e = w.engine().delete_topic("t", true).unwrap_err();
    assert!(matches!(e, Error::TopicNotEmpty { count: 1, .. }));
    w.clock.advance_ms(1001);
    assert!(w.engine().delete_topic("t", true).unwrap().deleted);
}

#[test]
fn ids_are_never_given_again() {
    let mut w = World::new();
    let mut last = 0;
    for round in 0..6 {
        let id = w.engine().create_topic("t", &ConfigPatch::default()).unwrap().topic_id;
        assert!(id > last, "{id} after {last}");
        last = id;
        w.engine().delete_topic("t", false).unwrap();
        match round % 3 {
            // What was created here may be forgotten; its id may not be given again.
            0 => w.power_cut(),
            1 => w.kill(),
            _ => w.reopen(),
        }
    }
}

#[test]
fn more_ids_than_one_reservation() {
    let w = World::new();
    for i in 0..2100 {
        w.engine().create_topic(&format!("t{i}"), &ConfigPatch::default()).unwrap();
    }
    assert_eq!(w.engine().list("", None, 9999).len(), 2100);
}

#[test]
fn lists_page_in_name_order() {
    let w = World::new();
    for name in ["b", "a.2", "a.1", "c", "a.3"] {
        w.put(name, &["1"]);
    }
    let names = |prefix, after, n| {
        let l = w.engine().list(prefix, after, n);
        l.into_iter().map(|t| t.topic).collect::<Vec<_>>()
    };
    assert_eq!(names("", None, 2), ["a.1", "a.2"]);
    assert_eq!(names("", Some("a.2"), 2), ["a.3", "b"]);
    assert_eq!(names("a.", None, 9), ["a.1", "a.2", "a.3"]);
    assert_eq!(names("a.", Some("a.1"), 9), ["a.2", "a.3"]);
    assert_eq!(names("a.", Some("0"), 1), ["a.1"]);
    assert!(names("z", None, 9).is_empty());
}

#[test]
fn the_number_of_topics_is_bounded() {
    let w = World::with(Options { max_topics: 2, ..small() });
    w.put("a", &["1"]);
    w.put("b", &["1"]);
    assert!(matches!(
        w.try_put("c", &["1"]).unwrap_err(),
        Error::Throttled { limit: "max_topics", max: 2, .. }
    ));
    w.put("a", &["2"]);
    w.engine().delete_topic("b", false).unwrap();
    assert!(w.put("c", &["1"]).created);
}

#[test]
fn after_a_close_everything_is_refused() {
    let mut w = World::new();
    w.put("t", &["1"]);
    let e = w.engine().clone();
    w.close();
    assert!(e.close().is_ok(), "idempotent");
    let records = [rec("1")];
    let req = Append { records: &records, ..Append::default() };
    assert_eq!(e.append("t", &req).unwrap_err().code(), "shutting_down");
    assert_eq!(e.state("t", false).unwrap_err().code(), "shutting_down");
    assert_eq!(e.read("t", &after(0)).unwrap_err().code(), "shutting_down");
    assert_eq!(e.sync().unwrap_err().code(), "shutting_down");
    assert_eq!(e.create_topic("u", &ConfigPatch::default()).unwrap_err().code(), "shutting_down");
}

#[test]
fn one_opener_at_a_time() {
    let mut w = World::new();
    let e = Engine::open(w.env(), Path::new(DIR), w.options.clone()).unwrap_err();
    assert!(matches!(e, Error::Locked { .. }), "{e}");
    w.close();
    w.open();
}

#[test]
fn state_tells_times_and_priority() {
    let w = World::new();
    w.put("t", &["1"]);
    let s = w.engine().state("t", true).unwrap();
    assert_eq!(
        (s.last_write_ts, s.last_read_ts),
        (Some(1_700_000_000_000), Some(1_700_000_000_000))
    );
    assert_eq!(s.effective_priority, 500);
    w.clock.advance_ms(30_000);
    assert_eq!(w.state("t").effective_priority, 250);
    w.create("t", ConfigPatch { priority: Some(Some(-5)), ..ConfigPatch::default() });
    assert_eq!(w.state("t").effective_priority, -5);
    w.put("u", &["1"]);
    assert_eq!(w.state("u").last_read_ts, None);
}

#[test]
fn a_topic_at_rest_is_small() {
    // The name, a config of its own and three map entries come on top.
    assert!(size_of::<crate::topic::Topic>() + size_of::<TopicConfig>() <= 1280);
}

#[test]
fn frames_that_may_be_passed_over_are() {
    use topics_storage::StorageError;
    use topics_storage::format::frame::{self, Frame, FrameType};
    use topics_storage::wal::{Batch, Commit, Level, PlacedBatch};

    struct Quiet;
    impl Commit for Quiet {
        fn apply(&self, _: &PlacedBatch<'_>) {}
        fn failed(&self, e: &StorageError) {
            panic!("{e}");
        }
    }

    let mut w = World::new();
    w.put("t", &["a"]);
    for topic_id in [0, w.engine().open_engine().catalog().table.loaded.named("t").unwrap().id()] {
        let mut head = Vec::new();
        frame::encode(&mut head, &Frame::control(FrameType::Skippable, topic_id, 0, 0, b"later"));
        let engine = w.engine().open_engine().clone();
        let batch = Batch {
            head,
            records: Vec::new(),
            headroom: 0,
            tail: Vec::new(),
            first_seq: 0,
            ts: 1,
            topic_id,
            level: Level::Written,
            frees_space: false,
            commit: Arc::new(Quiet),
        };
        let permit = engine.ctx().wal.reserve(0, batch.bytes(), None).unwrap();
        let ticket = engine.ctx().wal.stage(batch, permit).unwrap();
        engine.ctx().wal.wait(ticket, Level::Synced).unwrap();
    }
    w.put("t", &["b"]);
    w.kill();
    assert_eq!(w.seqs("t"), [1, 2]);
}
