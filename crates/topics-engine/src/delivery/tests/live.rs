//! Live and backlog, options, deletion, patterns, consistency.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use topics_sim::CallKind;

use crate::delivery::{Frame, WatchOptions};
use crate::topic::tests::{class, eq, rec};
use crate::types::api::{Append, Durability, NewRecord, NodeFilter, ReadFrom};
use crate::types::config::ConfigPatch;

#[test]
fn tail_then_live() {
    let w = World::new();
    w.put("t", &["a", "b"]);
    let mut watch = w.watch(&on(&[("t", tail())]));
    assert_eq!(drain(&mut watch), [caught("t", 2)]);
    w.say("t", "c");
    w.say("t", "d");
    assert_eq!(drain(&mut watch), [record("t", 3, "c"), record("t", 4, "d")]);
    assert_eq!(watch.cursors()[0].2, 4);
}

#[test]
fn backlog_in_pages_then_live() {
    let w = World::new();
    for i in 1..=7 {
        w.put("t", &[&i.to_string()]);
    }
    w.checkpoint();
    w.put("t", &["8"]);
    let mut req = on(&[("t", from(ReadFrom::After(2)))]);
    req.options.limit = 3;
    let mut watch = w.watch(&req);
    let seqs = |seen: &[Seen]| -> Vec<u64> {
        seen.iter().filter_map(|t| if let Record(_, s, _) = t { Some(*s) } else { None }).collect()
    };
    let seen = drain(&mut watch);
    assert_eq!(seqs(&seen), [3, 4, 5, 6, 7, 8]);
    assert_eq!(seen.last(), Some(&caught("t", 8)));
    w.say("t", "9");
    assert_eq!(drain(&mut watch), [record("t", 9, "9")]);
    let mut from_tail = w.watch(&on(&[("t", from(ReadFrom::Tail(2)))]));
    assert_eq!(seqs(&drain(&mut from_tail)), [8, 9]);
}

#[test]
fn a_pushed_batch_is_one_frame_for_equal_options_and_encoded_once() {
    let w = World::new();
    w.put("t", &["x"]);
    let other = WatchOptions { include_data: false, ..WatchOptions::default() };
    let mut watches: Vec<_> = (0..3).map(|_| w.watch(&on(&[("t", tail())]))).collect();
    watches.push(w.watch(&WatchRequest { options: other, ..on(&[("t", tail())]) }));
    watches.iter_mut().for_each(|s| assert_eq!(drain(s), [caught("t", 1)]));
    w.say("t", "y");
    let frames: Vec<Arc<Frame>> = watches
        .iter_mut()
        .map(|s| match s.try_next().unwrap() {
            Some(Event::Records(f)) => f,
            e => panic!("{e:?}"),
        })
        .collect();
    assert!(Arc::ptr_eq(&frames[0], &frames[1]) && Arc::ptr_eq(&frames[0], &frames[2]));
    assert!(!Arc::ptr_eq(&frames[0], &frames[3]));
    let n = AtomicUsize::new(0);
    for f in &frames {
        f.encoded(|f| {
            n.fetch_add(1, Ordering::Relaxed);
            vec![f.batch().len() as u8]
        });
    }
    assert_eq!(n.load(Ordering::Relaxed), 2);
}

#[test]
fn who_joins_ahead_of_the_group_gets_nothing_twice() {
    let w = World::new();
    w.put("t", &["1"]);
    let mut first = w.watch(&on(&[("t", tail())]));
    drain(&mut first);
    // Not served yet: the second watcher reads it by itself, the group has it before it.
    w.put("t", &["2"]);
    let mut second = w.watch(&on(&[("t", start())]));
    assert_eq!(drain(&mut second), [record("t", 1, "1"), record("t", 2, "2"), caught("t", 2)]);
    w.put("t", &["3"]);
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut first), [record("t", 2, "2"), record("t", 3, "3")]);
    assert_eq!(drain(&mut second), [record("t", 3, "3")]);
}

#[test]
fn filters_skip_silently_and_move_the_cursor() {
    let w = World::new();
    w.put("t", &["0"]);
    let mut req = on(&[("t", tail())]);
    req.options.matching = eq("keep");
    let mut tags = w.watch(&req);
    let mut req = on(&[("t", tail())]);
    req.options.skip_nodes = NodeFilter(vec![b"me".to_vec()]);
    let mut nodes = w.watch(&req);
    drain(&mut tags);
    drain(&mut nodes);
    w.tagged("t", &["drop", "keep", "drop"]);
    let mine = [NewRecord { node: b"me", ..rec("mine") }];
    w.engine().append("t", &Append { records: &mine, ..Append::default() }).unwrap();
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut tags), [record("t", 3, "keep")]);
    assert_eq!(tags.cursors()[0].2, 5);
    assert_eq!(drain(&mut nodes).len(), 3);
    assert_eq!(nodes.cursors()[0].2, 5);
}

#[test]
fn a_deleted_topic_is_told_and_a_new_one_joins_from_its_start() {
    let w = World::new();
    w.put("t", &["old"]);
    let mut live = w.watch(&on(&[("t", tail())]));
    drain(&mut live);
    let mut backlog = w.watch(&on(&[("t", start())]));
    w.engine().delete_topic("t", false).unwrap();
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut live), [Deleted("t".into())]);
    assert_eq!(drain(&mut backlog), [Deleted("t".into())]);
    for s in [&mut live, &mut backlog] {
        assert!(s.cursors().is_empty());
    }
    w.say("t", "new");
    for s in [&mut live, &mut backlog] {
        assert_eq!(drain(s), [record("t", 1, "new"), caught("t", 1)]);
    }
    w.say("t", "more");
    assert_eq!(drain(&mut live), [record("t", 2, "more")]);
}

#[test]
fn a_topic_made_anew_before_the_watcher_looked_joins_too() {
    let w = World::new();
    w.put("t", &["old"]);
    let mut watch = w.watch(&on(&[("t", start())]));
    w.engine().delete_topic("t", false).unwrap();
    w.put("t", &["new"]);
    assert_eq!(drain(&mut watch), [Deleted("t".into()), record("t", 1, "new"), caught("t", 1)]);
}

#[test]
fn patterns_take_what_is_there_and_what_comes() {
    let w = World::new();
    w.put("orders.eu", &["1"]);
    w.put("other", &["1"]);
    let req = WatchRequest { patterns: vec![("orders.*".into(), tail())], ..Default::default() };
    let mut watch = w.watch(&req);
    assert_eq!(drain(&mut watch), [caught("orders.eu", 1)]);
    w.put("orders.us", &["a", "b"]);
    w.put("otters", &["a"]);
    w.engine().tick().unwrap();
    let seen = drain(&mut watch);
    assert_eq!(
        seen,
        [record("orders.us", 1, "a"), record("orders.us", 2, "b"), caught("orders.us", 2)]
    );
    w.say("orders.eu", "2");
    assert_eq!(drain(&mut watch), [record("orders.eu", 2, "2")]);
}

#[test]
fn strong_waits_for_the_sync_eventual_does_not() {
    let w = World::new();
    w.engine().create_topic("t", &class(Durability::Disk)).unwrap();
    w.engine().sync().unwrap();
    let mut eventual = w.watch(&on(&[("t", tail())]));
    let mut req = on(&[("t", tail())]);
    req.options.strong = true;
    let mut strong = w.watch(&req);
    drain(&mut eventual);
    drain(&mut strong);
    w.say("t", "x");
    assert_eq!(drain(&mut eventual), [record("t", 1, "x")]);
    assert_eq!(drain(&mut strong), []);
    w.engine().sync().unwrap();
    // The sync itself has marked the topic.
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut strong), [record("t", 1, "x")]);
}

#[test]
fn strong_over_an_ephemeral_topic_delivers_nothing_and_does_not_spin() {
    let w = World::new();
    w.engine().create_topic("t", &class(Durability::Ephemeral)).unwrap();
    let mut req = on(&[("t", tail())]);
    req.options.strong = true;
    let mut strong = w.watch(&req);
    drain(&mut strong);
    w.say("t", "x");
    w.engine().sync().unwrap();
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut strong), []);
}

#[test]
fn a_watch_below_the_floor_is_told_once() {
    let w = World::new();
    w.create("t", ConfigPatch { cap_records: Some(3), ..ConfigPatch::default() });
    for i in 1..=8 {
        w.put("t", &[&i.to_string()]);
    }
    let mut watch = w.watch(&on(&[("t", from(ReadFrom::After(2)))]));
    let seen = drain(&mut watch);
    assert_eq!(seen[0], Gap("t".into(), 3, 5, "from_seq_too_old"));
    assert_eq!(seen[1..4], [record("t", 6, "6"), record("t", 7, "7"), record("t", 8, "8")]);
    assert_eq!(seen[4..], [caught("t", 8)]);
    let mut earliest = w.watch(&on(&[("t", from(ReadFrom::Earliest))]));
    assert_eq!(drain(&mut earliest).first(), Some(&record("t", 6, "6")));
}

#[test]
fn a_cursor_of_an_earlier_topic_is_recreated() {
    let w = World::new();
    w.put("t", &["1", "2", "3"]);
    let old = w.state("t").topic_id;
    w.engine().delete_topic("t", false).unwrap();
    w.put("t", &["new", "newer"]);
    let start = WatchStart { from: ReadFrom::After(1), topic_id: Some(old) };
    let seen = drain(&mut w.watch(&on(&[("t", start)])));
    assert_eq!(seen[0], Gap("t".into(), 1, 2, "recreated"));
    assert_eq!(seen[1..3], [record("t", 1, "new"), record("t", 2, "newer")]);
    // A reader that has only the gap has none of the records of the new topic.
    let mut watch = w.watch(&on(&[("t", start)]));
    let gap = watch.try_next().unwrap().unwrap();
    assert!(matches!(gap, Event::Tombstone { .. }), "{gap:?}");
    assert_eq!(watch.cursors()[0].2, 0);
}

#[test]
fn heartbeats_when_nothing_happens() {
    let w = World::new();
    w.put("t", &["1"]);
    let mut req = on(&[("t", tail())]);
    req.heartbeat_ms = Some(1000);
    let mut watch = w.watch(&req);
    assert_eq!(drain(&mut watch), [caught("t", 1)]);
    w.clock.advance_ms(999);
    assert_eq!(drain(&mut watch), []);
    w.clock.advance_ms(1);
    assert_eq!(drain(&mut watch), [Beat]);
    w.clock.advance_ms(600);
    w.say("t", "2");
    assert_eq!(drain(&mut watch), [record("t", 2, "2")]);
    w.clock.advance_ms(600);
    assert_eq!(drain(&mut watch), []);
}

#[test]
fn the_callback_comes_once_after_nothing_was_left() {
    let w = World::new();
    w.put("t", &["1"]);
    let mut watch = w.watch(&on(&[("t", tail())]));
    let n = Arc::new(AtomicUsize::new(0));
    let m = n.clone();
    watch.on_ready(move || {
        m.fetch_add(1, Ordering::SeqCst);
    });
    w.say("t", "2");
    assert_eq!(n.load(Ordering::SeqCst), 0, "nothing was asked for");
    drain(&mut watch);
    w.say("t", "3");
    w.say("t", "4");
    assert_eq!(n.load(Ordering::SeqCst), 1);
    drain(&mut watch);
    w.engine().close().unwrap();
    assert_eq!(n.load(Ordering::SeqCst), 2, "the end is told");
    assert_eq!(watch.try_next().unwrap_err().code(), "shutting_down");
}

#[test]
fn refusals() {
    let w = World::new();
    w.put("t", &["1"]);
    let code = |req: &WatchRequest| w.engine().watch(req).unwrap_err().code();
    assert_eq!(code(&WatchRequest::default()), "invalid_request");
    assert_eq!(code(&on(&[("none", tail())])), "topic_not_found");
    let before = from(ReadFrom::Before { seq: 1, tail: 1 });
    assert_eq!(code(&on(&[("t", before)])), "invalid_request");
    let many: Vec<_> = (0..257).map(|i| (format!("t{i}"), tail())).collect();
    assert_eq!(code(&WatchRequest { topics: many, ..Default::default() }), "invalid_request");
    for bad in ["a*b", "*a", "a b*"] {
        let req = WatchRequest { patterns: vec![(bad.into(), tail())], ..Default::default() };
        assert_eq!(code(&req), "invalid_request", "{bad}");
    }
    let beat = |ms| WatchRequest { heartbeat_ms: Some(ms), ..on(&[("t", tail())]) };
    assert_eq!(code(&beat(999)), "invalid_request");
    assert!(w.engine().watch(&beat(60_000)).is_ok());
    // Unknown topics may be waited for.
    let mut req = on(&[("none", tail())]);
    req.lenient = true;
    let mut watch = w.watch(&req);
    w.say("none", "x");
    assert_eq!(drain(&mut watch), [record("none", 1, "x"), caught("none", 1)]);
}

#[test]
fn an_unwatched_topic_keeps_no_mark() {
    let w = World::new();
    w.put("t", &["1"]);
    let mut watch = w.watch(&on(&[("t", tail())]));
    drain(&mut watch);
    w.put("t", &["2"]);
    assert_eq!(w.engine().metrics().ready_topics, 1);
    w.engine().tick().unwrap();
    drop(watch);
    w.put("t", &["3"]);
    assert_eq!(w.engine().metrics().ready_topics, 0);
    assert_eq!(w.engine().metrics().watch_streams, 0);
}

#[test]
fn i3_a_synced_class_shows_nothing_before_its_sync() {
    let w = World::new();
    w.engine().create_topic("t", &class(Durability::Fsync)).unwrap();
    let mut watch = w.watch(&on(&[("t", tail())]));
    drain(&mut watch);
    let records = [rec("x")];
    let append = Append { records: &records, ..Append::default() };
    w.engine().append_async("t", &append, Box::new(|_| {}));
    let syncs = w.fs.calls(CallKind::SyncData);
    w.engine().drive();
    w.engine().tick().unwrap();
    assert_eq!(w.fs.calls(CallKind::SyncData), syncs, "it is written, and not synced");
    assert_eq!(drain(&mut watch), []);
    w.engine().sync().unwrap();
    assert!(w.fs.calls(CallKind::SyncData) > syncs);
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut watch), [record("t", 1, "x")]);
}

#[test]
fn a_frame_names_the_cursor_before_it() {
    let w = World::new();
    w.create("t", ConfigPatch { cap_records: Some(3), ..ConfigPatch::default() });
    w.put("t", &["1", "2", "3", "4", "5"]);
    let mut req = on(&[("t", from(ReadFrom::After(0)))]);
    req.options.limit = 2;
    let mut watch = w.watch(&req);
    let mut bounds = || {
        let mut found = Vec::new();
        while let Some(event) = watch.try_next().unwrap() {
            if let Event::Records(f) = event {
                found.push((f.from_seq(), f.batch().next_from_seq));
            }
        }
        found
    };
    // Behind the gap first.
    assert_eq!(bounds(), [(2, 4), (4, 5)]);
    w.say("t", "6");
    assert_eq!(bounds(), [(5, 6)]);
    w.delete("t", Some(100), None);
    w.say("t", "7");
    assert_eq!(bounds(), [(6, 7)]);
}

#[test]
fn a_watcher_ahead_of_its_group_gets_a_frame_of_its_own_start() {
    let options = Arc::new(WatchOptions::default());
    let w = World::new();
    w.put("t", &["1", "2", "3"]);
    let batch = w.read("t", 0);
    let frame = Frame::new("t".into(), options, 0, batch);
    assert_eq!((frame.from_seq(), frame.after(2).unwrap().from_seq()), (0, 2));
}
