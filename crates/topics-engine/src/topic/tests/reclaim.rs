//! Disk space comes back; what the engine as a whole has no room for is refused.

use super::*;
use crate::types::error::Error;

fn data_files(w: &World) -> (usize, usize) {
    let image = w.fs.kill_image();
    let data: Vec<_> = image.files().into_iter().filter(|(p, _)| p.ends_with(".data")).collect();
    (data.len(), data.iter().map(|(_, b)| b.len()).sum())
}

/// Runs enough checkpoints that no kept snapshot names unused files.
fn checkpoint_often(w: &World) {
    for _ in 0..4 {
        w.clock.advance_ms(6_000);
        w.engine().tick().unwrap();
        w.put("other", &["x"]);
        w.checkpoint();
    }
}

#[test]
fn a_half_dead_segment_is_written_anew() {
    let mut w = World::new();
    let big = "x".repeat(1000);
    for i in 0..20 {
        let tag: &[u8] = if i % 5 == 0 { b"keep" } else { b"drop" };
        let records = [NewRecord { tag, ..rec(&big) }];
        w.engine().append("t", &Append { records: &records, ..Append::default() }).unwrap();
    }
    w.checkpoint();
    let before = data_files(&w);
    assert!(before.1 > 20_000);
    w.delete("t", None, eq("drop"));
    checkpoint_often(&w);
    let after = data_files(&w);
    assert!(after.1 < 8_000, "{before:?} → {after:?}");
    assert_eq!(w.engine().metrics().segments_rewritten, 4);
    for _ in 0..2 {
        assert_eq!(w.scan("t", 0), (vec![1, 6, 11, 16], vec![]));
        let s = w.state("t");
        assert_eq!((s.count, s.bytes), (4, 4 * 1004));
        w.delete("t", None, eq("none"));
        w.kill();
    }
    checkpoint_often(&w);
    assert_eq!(w.engine().metrics().segments_rewritten, 0, "once is enough");
}

#[test]
fn dead_fronts_and_dead_segments_go() {
    let mut w = World::new();
    for _ in 0..4 {
        w.tagged("t", &["a", "a", "a", "a", "a"]);
        w.tagged("t", &["b", "b", "b", "b", "b"]);
        w.checkpoint();
    }
    assert_eq!(data_files(&w).0, 8);
    w.delete("t", Some(11), None);
    w.delete("t", None, eq("a"));
    checkpoint_often(&w);
    // 16–20, 26–30 and 36–40 are there, and one of holes between two of them is or is not.
    assert_eq!(
        w.seqs("t"),
        [(16..=20), (26..=30), (36..=40)].into_iter().flatten().collect::<Vec<_>>()
    );
    assert!(data_files(&w).0 <= 7, "{:?}", data_files(&w));
    w.delete("t", Some(40), None);
    checkpoint_often(&w);
    assert_eq!((w.seqs("t"), w.state("t").count), (vec![40], 1));
    w.reopen();
    assert_eq!((w.seqs("t"), w.state("t").earliest_seq), (vec![40], 40));
    w.engine().delete_topic("t", false).unwrap();
    checkpoint_often(&w);
    let folders = w.fs.kill_image().dirs();
    assert_eq!(folders.iter().filter(|d| d.contains("/topics/")).count(), 1);
}

#[test]
fn what_is_gone_before_its_round_ends_leaves_no_files() {
    let w = World::new();
    let found = |w: &World| {
        let image = w.fs.kill_image();
        let of_topics = |p: &String| p.contains("/topics/");
        let files: Vec<_> = image.files().into_iter().map(|(p, _)| p).filter(of_topics).collect();
        (files, image.dirs().iter().filter(|d| of_topics(d)).count())
    };
    for topic in ["gone", "emptied", "kept"] {
        w.put(topic, &["a", "b"]);
    }
    w.engine().sync().unwrap();
    let engine = w.engine().open_engine().clone();
    let poisoned = crate::checkpoint::snapshot::PoisonedShards::find(engine.store()).unwrap();
    crate::checkpoint::round::copy(
        engine.store(),
        &poisoned,
        crate::checkpoint::round::Copied::Synced,
    )
    .unwrap();
    assert_eq!(found(&w).1, 3, "copied, and in no snapshot");
    w.engine().delete_topic("gone", false).unwrap();
    w.delete("emptied", Some(3), None);
    w.checkpoint();
    let (left, folders) = found(&w);
    assert_eq!(folders, 2, "{left:?}");
    assert_eq!(left.len(), 2, "kept's .data and .idx: {left:?}");
    assert_eq!(w.seqs("kept"), [1, 2]);
}

#[test]
fn old_active_segments_end_and_small_neighbours_merge() {
    let options = Options { segment_max_events: 100, ..small() };
    let mut w = World::with(options);
    w.create("t", ConfigPatch { ttl_ms: Some(1 << 40), ..ConfigPatch::default() });
    for i in 0..5 {
        w.put("t", &["x", "y"]);
        w.checkpoint();
        w.clock.advance_ms(3_600_001);
        w.checkpoint();
        assert_eq!(data_files(&w).0, i + 1);
    }
    w.engine().tick().unwrap();
    assert_eq!(w.engine().metrics().segments_rewritten, 5);
    checkpoint_often(&w);
    for _ in 0..2 {
        assert_eq!(w.seqs("t"), (1..=10).collect::<Vec<_>>());
        let state = w.engine().open_engine().catalog().table.loaded.named("t").unwrap();
        let segs: Vec<_> = state
            .state
            .read()
            .index
            .segs
            .iter()
            .map(|s| (s.meta.first_seq, s.meta.last_seq, s.meta.sealed))
            .collect();
        assert_eq!(segs, [(1, 10, true)]);
        w.kill();
    }
}

#[test]
fn deletes_made_while_a_segment_is_rewritten_are_kept() {
    use roaring::RoaringBitmap;
    use topics_storage::segment::Round;

    let mut w = World::new();
    w.tagged("t", &["a", "b", "c", "d", "e"]);
    w.checkpoint();
    w.delete("t", None, eq("a"));
    {
        let engine = w.engine().open_engine().clone();
        let topic = engine.catalog().table.loaded.named("t").unwrap();
        let meta = topic.state.read().index.segs[0].meta;
        let holes: RoaringBitmap = [0].into_iter().collect();
        let mut round = Round::new(&engine.base().segments);
        let new = round.rewrite(&engine.base().segments.segment(topic.key, meta), &holes).unwrap();
        assert_eq!(w.delete("t", None, eq("b")), 1);
        round.sync().unwrap();
        assert!(topic.replace(engine.ctx(), &[meta.file_no], new, &holes).unwrap());
        assert!(
            !topic.replace(engine.ctx(), &[meta.file_no], new, &holes).unwrap(),
            "it is not there"
        );
        let (snap, outstanding) = topic.capture(0, 0);
        assert_eq!(snap.segments[0].live_count, 4, "without what will be replayed");
        assert!(outstanding.is_some());
    }
    for round in 0..4 {
        assert_eq!(w.seqs("t"), [3, 4, 5]);
        assert_eq!((w.state("t").count, w.state("t").bytes), (3, 6));
        if round == 1 { w.checkpoint() } else { w.kill() }
    }
}

#[test]
fn the_resident_index_is_bounded() {
    let w = World::with(Options { memory_bytes: 24 * 100, ..small() });
    let e = w.engine();
    for _ in 0..100 {
        w.put("t", &["x"; 10]);
        assert!(e.metrics().resident_records <= 210);
    }
    assert_eq!(e.metrics().live_bytes, 1000);
    w.checkpoint();
    assert_eq!(e.metrics().resident_records, 0);
    w.put("t", &["x"; 250]);
    let records = [rec("x")];
    let req = Append { records: &records, ..Append::default() };
    let refused = std::sync::Arc::new(topics_env::sync::Mutex::new(None));
    let r = refused.clone();
    e.append_async("t", &req, Box::new(move |o| *r.lock() = Some(o)));
    match refused.lock().take() {
        Some(Err(Error::Throttled { limit: "memory_bytes", .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(w.put("t", &["x"]).first_seq, 1251, "who may wait makes room");
    e.delete_topic("t", false).unwrap();
    assert_eq!((e.metrics().resident_records, e.metrics().live_bytes), (0, 0));
}

#[test]
fn totals_are_bounded_where_asked() {
    let mut w = World::with(Options { max_total_bytes: 10, ..small() });
    w.put("a", &["1234567"]);
    let e = w.try_put("b", &["1234"]).unwrap_err();
    assert!(matches!(e, Error::Throttled { limit: "max_total_bytes", max: 10, .. }));
    w.reopen();
    assert!(w.try_put("b", &["1234"]).is_err());
    w.delete("a", Some(2), None);
    w.put("b", &["1234"]);

    let w = World::with(Options { wal_max_bytes: 1, ..small() });
    w.put("a", &["1"]);
    w.engine().tick().unwrap();
    let e = w.try_put("a", &["2"]).unwrap_err();
    assert!(matches!(e, Error::Throttled { limit: "wal_bytes", .. }));
    assert_eq!(w.delete("a", Some(2), None), 1, "what frees space goes on");
}
