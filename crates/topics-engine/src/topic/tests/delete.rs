//! Deletes: the removed records, the answers, the reads that they need.

use super::*;
use crate::topic::state::queue::RemovalReason;

#[test]
fn what_goes() {
    let tags = ["a", "b", "ab", "", "abc", "b"];
    // (before, match, what stays)
    type Case = (Option<u64>, Option<TopicMatch>, &'static [u64]);
    let cases: [Case; 9] = [
        (Some(4), None, &[4, 5, 6]),
        (Some(0), None, &[1, 2, 3, 4, 5, 6]),
        (Some(1), None, &[1, 2, 3, 4, 5, 6]),
        (Some(99), None, &[]),
        (None, eq("b"), &[1, 3, 4, 5]),
        (None, glob("a"), &[2, 4, 6]),
        (None, glob(""), &[4]),
        (Some(6), eq("b"), &[1, 3, 4, 5, 6]),
        (None, eq("zz"), &[1, 2, 3, 4, 5, 6]),
    ];
    for (before, matching, want) in cases {
        for stage in 0..3 {
            let mut w = World::new();
            w.tagged("t", &tags);
            if stage > 0 {
                w.checkpoint();
            }
            if stage > 1 {
                w.reopen();
            }
            let n = w.delete("t", before, matching.clone());
            assert_eq!(n, 6 - want.len() as u64, "{before:?} {matching:?} {stage}");
            for again in 0..4 {
                let s = w.state("t");
                let (seqs, lost) = w.scan("t", 0);
                assert_eq!((seqs.as_slice(), lost.len()), (want, 0), "silent");
                let bytes: usize = want.iter().map(|s| 2 * tags[*s as usize - 1].len()).sum();
                let earliest = want.first().map_or(7, |s| *s);
                assert_eq!(
                    (s.count, s.bytes, s.earliest_seq, s.evict_floor),
                    (want.len() as u64, bytes as u64, earliest, 1),
                    "{before:?} {matching:?} {stage} {again}"
                );
                match again {
                    0 => w.kill(),
                    1 => w.checkpoint(),
                    _ => w.reopen(),
                }
            }
            assert_eq!(w.delete("t", before, matching.clone()), 0, "nothing twice");
        }
    }
}

#[test]
fn what_a_match_found_is_counted() {
    let mut w = World::new();
    let found = |w: &World, before, matching| {
        let d = w.engine().delete("t", &DeleteRequest { before_seq: before, matching }).unwrap();
        (d.deleted, d.records_scanned)
    };
    for stage in 0..3 {
        w.tagged("t", &["a", "b", "ab", "", "abc", "b"]);
        match stage {
            0 => {}
            1 => w.checkpoint(),
            _ => w.reopen(),
        }
        assert_eq!(found(&w, Some(w.state("t").head_seq - 4), None), (1, 0), "by seq alone");
        assert_eq!(found(&w, None, glob("a")), (2, 2), "{stage}");
        assert_eq!(found(&w, None, eq("zz")), (0, 0));
        w.delete("t", Some(100), None);
    }
}

#[test]
fn a_delete_is_bounded_by_the_head_at_the_call() {
    let mut w = World::new();
    w.tagged("t", &["a", "a"]);
    assert_eq!(w.delete("t", Some(100), eq("a")), 2);
    assert_eq!(w.delete("t", Some(100), None), 0);
    w.tagged("t", &["a"]);
    w.kill();
    assert_eq!(w.seqs("t"), [3]);
}

#[test]
fn requests_that_make_no_sense() {
    let w = World::new();
    w.put("t", &["1"]);
    let code = |before_seq, matching| {
        let req = DeleteRequest { before_seq, matching };
        w.engine().delete("t", &req).map_or_else(|e| e.code(), |_| "ok")
    };
    assert_eq!(code(None, None), "invalid_request");
    assert_eq!(code(None, eq("")), "invalid_request");
    assert_eq!(code(None, eq(&"x".repeat(257))), "invalid_request");
    assert_eq!(code(None, eq(&"x".repeat(256))), "ok");
    let req = DeleteRequest { before_seq: Some(1), matching: None };
    assert_eq!(w.engine().delete("none", &req).unwrap_err().code(), "topic_not_found");
}

#[test]
fn deletes_made_while_a_checkpoint_runs_are_kept() {
    use topics_storage::format::frame;
    use topics_storage::segment::{Round, SegmentWriter};

    use crate::topic::{Install, InstallSegment};

    let mut w = World::new();
    w.tagged("t", &["a", "b", "a", "b", "c", "b", "c"]);
    w.delete("t", None, eq("c"));
    w.engine().sync().unwrap();
    {
        let engine = w.engine().open_engine().clone();
        let topic = engine.catalog().table.loaded.named("t").unwrap();
        let plan = topic.checkpoint_plan(None, u64::MAX, 0);
        let mut round = Round::new(&engine.base().segments);
        let mut writer = SegmentWriter::create(&engine.base().segments, topic.key, 1).unwrap();
        for run in &plan.runs {
            for e in run.entries.range(0..run.count) {
                if e.dead() {
                    writer.hole_at(e.ts).unwrap();
                    continue;
                }
                let mut buf = Vec::new();
                let shard = run.shard as usize;
                engine.ctx().wal.read(shard, run.file, e.off, e.len as usize, &mut buf).unwrap();
                let (f, _) = frame::parse(&buf).unwrap();
                writer.append(&f, frame::inner_hash(&buf)).unwrap();
            }
        }
        // Copied, and only then deleted from.
        assert_eq!(w.delete("t", None, eq("a")), 2);
        assert_eq!(w.delete("t", Some(3), None), 1);
        let meta = round.add(writer).unwrap();
        round.sync().unwrap();
        let segments = vec![InstallSegment { meta }];
        topic.install(engine.ctx(), &Install { plan, segments, deletes: Vec::new() }).unwrap();
        let state = topic.state.read();
        assert_eq!(state.index.resident(), 0);
        let dirty = state.index.segs[0].dirty.as_ref().map(|d| d.sizes.len());
        assert_eq!(dirty, Some(1), "3: the others are below the floor, or holes");
    }
    for round in 0..3 {
        assert_eq!(w.seqs("t"), [4, 6]);
        let s = w.state("t");
        assert_eq!((s.count, s.bytes, s.earliest_seq), (2, 4, 4), "{round}");
        if round == 0 { w.checkpoint() } else { w.kill() }
    }
}

#[test]
fn tags_of_the_active_segment_are_found_after_reopening() {
    let mut w = World::new();
    w.tagged("t", &["a", "b"]);
    w.checkpoint();
    w.reopen();
    w.tagged("t", &["a", "c"]);
    let by_tag = |w: &World, tag| {
        let req = ReadRequest { matching: eq(tag), ..after(0) };
        let b = w.engine().read("t", &req).unwrap();
        b.iter().map(|r| r.seq).collect::<Vec<_>>()
    };
    assert_eq!(by_tag(&w, "a"), [1, 3]);
    assert_eq!(w.delete("t", None, eq("a")), 2);
    assert_eq!(by_tag(&w, "a"), [0_u64; 0]);
    w.checkpoint();
    w.kill();
    assert_eq!((by_tag(&w, "b"), by_tag(&w, "c")), (vec![2], vec![4]));
}

#[test]
fn records_by_seq() {
    let mut w = World::new();
    w.put("t", &["x"; 9]);
    for round in 0..2 {
        let engine = w.engine().open_engine().clone();
        let topic = engine.catalog().table.loaded.named("t").unwrap();
        let seqs: &[u64] = if round == 0 { &[2, 3, 7] } else { &[1, 3, 9] };
        let n =
            crate::topic::delete::delete_seqs(engine.ctx(), &topic, seqs, RemovalReason::REQUESTED)
                .unwrap()
                .0;
        assert_eq!(n, if round == 0 { 3 } else { 2 });
        w.checkpoint();
        w.kill();
    }
    assert_eq!(w.seqs("t"), [4, 5, 6, 8]);
}

#[test]
fn a_user_deletes_single_records_in_any_order() {
    let mut w = World::new();
    w.put("t", &["x"; 9]);
    w.checkpoint();
    w.put("t", &["x"; 3]);
    let delete = |w: &World, seqs: &[u64]| w.engine().delete_seqs("t", seqs);
    let done = delete(&w, &[7, 11, 2, 7, 0, 99, u64::MAX]).unwrap();
    assert_eq!((done.deleted, done.state.count, done.state.head_seq), (3, 9, 12));
    assert_eq!(delete(&w, &[7]).unwrap().deleted, 0, "it is gone already");
    assert_eq!(delete(&w, &[]).unwrap().deleted, 0);
    assert_eq!(delete(&w, &vec![1; 1001]).unwrap_err().code(), "batch_too_large");
    assert_eq!(w.engine().delete_seqs("none", &[1]).unwrap_err().code(), "topic_not_found");
    // What is written later is not affected.
    w.put("t", &["x"]);
    w.kill();
    assert_eq!(w.seqs("t"), [1, 3, 4, 5, 6, 8, 9, 10, 12, 13]);
}
