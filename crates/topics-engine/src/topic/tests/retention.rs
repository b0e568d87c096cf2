//! Caps, expiry, clock steps.

use topics_sim::{CallKind, FaultKind};
use topics_storage::StorageError;

use super::*;
use crate::types::config::Discard;
use crate::types::error::Error;

fn caps(records: u64, bytes: u64) -> ConfigPatch {
    ConfigPatch { cap_records: Some(records), cap_bytes: Some(bytes), ..ConfigPatch::default() }
}

fn ttl(ms: u64) -> ConfigPatch {
    ConfigPatch { ttl_ms: Some(ms), ..ConfigPatch::default() }
}

#[test]
fn a_cap_evicts_the_oldest_whichever_is_hit_first() {
    // (cap_records, cap_bytes), sizes written one by one, what stays
    let cases: [((u64, u64), &[usize], &[u64]); 6] = [
        ((3, 0), &[1; 5], &[3, 4, 5]),
        ((0, 10), &[4; 5], &[4, 5]),
        ((3, 10), &[4; 5], &[4, 5]),
        ((2, 100), &[4; 5], &[4, 5]),
        ((0, 10), &[1, 1, 10], &[3]),
        ((0, 10), &[5, 5, 1], &[2, 3]),
    ];
    for ((records, bytes), sizes, want) in cases {
        for checkpoint in [false, true] {
            let mut w = World::new();
            w.create("t", caps(records, bytes));
            for n in sizes {
                w.put("t", &["x".repeat(*n).as_str()]);
                if checkpoint {
                    w.checkpoint();
                }
            }
            let first = want[0];
            for kill in [false, true] {
                let s = w.state("t");
                assert_eq!((s.evict_floor, s.earliest_seq), (first, first), "{sizes:?}");
                let (seqs, lost) = w.scan("t", 0);
                assert_eq!((seqs.as_slice(), lost), (want, vec![(1, first - 1, "cap")]));
                if !kill {
                    w.kill();
                }
            }
        }
    }
}

#[test]
fn a_state_counts_no_batch_that_its_own_expiry_brought_into_the_log() {
    for sync in [false, true] {
        let w = World::new();
        w.create("t", ttl(1000));
        w.put("t", &["x"; 4]);
        let (records, done) = ([rec("y"), rec("y")], |_| ());
        let req = Append { records: &records, sync, ..Append::default() };
        w.engine().append_async("t", &req, Box::new(done));
        w.clock.advance_ms(2000);
        let s = w.state("t");
        assert_eq!((s.count, s.bytes, s.earliest_seq, s.evict_floor), (0, 0, 7, 7));
    }
}

#[test]
fn a_batch_larger_than_the_cap_evicts_its_own_front() {
    let w = World::new();
    w.create("t", caps(3, 0));
    let a = w.put("t", &["x"; 5]);
    assert_eq!((a.first_seq, a.last_seq), (1, 5));
    assert_eq!(w.scan("t", 0), (vec![3, 4, 5], vec![(1, 2, "cap")]));
}

#[test]
fn deleted_records_do_not_count_against_a_cap() {
    let w = World::new();
    w.create("t", caps(3, 0));
    w.tagged("t", &["a", "b", "a"]);
    w.delete("t", None, eq("a"));
    w.tagged("t", &["c", "d"]);
    let s = w.state("t");
    assert_eq!((s.count, s.evict_floor, s.earliest_seq), (3, 1, 2));
    w.tagged("t", &["e"]);
    let s = w.state("t");
    assert_eq!((s.count, s.evict_floor, s.earliest_seq), (3, 3, 4), "3 was deleted on purpose");
}

#[test]
fn reject_refuses_before_a_seq_is_assigned() {
    let w = World::new();
    let p = ConfigPatch { discard: Some(Discard::Reject), ..caps(3, 20) };
    w.create("t", p);
    w.put("t", &["1", "2"]);
    match w.try_put("t", &["3", "4"]).unwrap_err() {
        e @ Error::TopicFull { what: "cap_records", max: 3, .. } => assert!(e.retryable()),
        e => panic!("{e}"),
    }
    let big = "x".repeat(19);
    assert!(matches!(
        w.try_put("t", &[&big]).unwrap_err(),
        Error::TopicFull { what: "cap_bytes", .. }
    ));
    for (data, what) in
        [(vec!["1"; 4], "cap_records"), (vec!["xxxxxxxxxxxxxxxxxxxxx"], "cap_bytes")]
    {
        match w.try_put("t", &data).unwrap_err() {
            e @ Error::WriteOverCap { what: got, .. } => {
                assert_eq!((got, e.code(), e.retryable()), (what, "record_too_large", false));
                let text = e.to_string();
                let named = ["\"t\"", what, "raise", "write less"];
                assert!(named.iter().all(|word| text.contains(word)), "{text}");
            }
            e => panic!("{e}"),
        }
    }
    assert_eq!(w.put("t", &["3"]).first_seq, 3);
    w.delete("t", Some(2), None);
    assert_eq!(w.put("t", &["4"]).first_seq, 4);
}

#[test]
fn tighter_caps_apply_to_stored_records() {
    for checkpoint in [false, true] {
        let mut w = World::new();
        w.put("t", &["xx"; 13]);
        if checkpoint {
            w.checkpoint();
        }
        w.create("t", caps(0, 9));
        assert_eq!(w.scan("t", 0), (vec![10, 11, 12, 13], vec![(1, 9, "cap")]));
        w.create("t", caps(1, 9));
        w.kill();
        assert_eq!(w.scan("t", 0), (vec![13], vec![(1, 12, "cap")]));
        w.create("t", caps(0, 0));
        assert_eq!(w.state("t").evict_floor, 13, "I11");
    }
}

#[test]
fn reject_never_evicts_what_is_stored() {
    let mut w = World::new();
    w.put("t", &["1", "2", "3"]);
    w.create("t", ConfigPatch { discard: Some(Discard::Reject), ..caps(2, 0) });
    assert_eq!(w.scan("t", 0), (vec![1, 2, 3], vec![]));
    assert!(matches!(w.try_put("t", &["4"]), Err(Error::TopicFull { .. })));
    w.kill();
    w.delete("t", Some(3), None);
    assert_eq!(w.put("t", &["4"]).first_seq, 4);
    w.create("t", ConfigPatch { discard: Some(Discard::Old), ..caps(1, 0) });
    assert_eq!(w.seqs("t"), [4]);
}

#[test]
fn an_expired_record_is_never_delivered() {
    let mut w = World::new();
    w.create("t", ttl(1000));
    w.put("t", &["1", "2"]);
    w.clock.advance_ms(600);
    w.put("t", &["3"]);
    for step in 0..3 {
        let b = w.read("t", 0);
        assert_eq!((b.len(), b.tombstone), (3, None), "at the limit it is there");
        if step == 0 {
            w.clock.advance_ms(400);
        } else {
            w.checkpoint();
        }
    }
    w.clock.advance_ms(1);
    for step in 0..4 {
        assert_eq!(w.scan("t", 0), (vec![3], vec![(1, 2, "ttl")]));
        match step {
            0 => assert_eq!((w.state("t").count, w.state("t").evict_floor), (1, 3)),
            1 => w.kill(),
            2 => w.reopen(),
            _ => {}
        }
    }
    w.clock.advance_ms(600);
    let s = w.state("t");
    assert_eq!((s.count, s.bytes, s.earliest_seq, s.evict_floor, s.head_seq), (0, 0, 4, 4, 3));
}

#[test]
fn a_log_that_takes_nothing_more_keeps_no_reader_from_what_is_there() {
    let w = World::new();
    w.create("t", ttl(1000));
    w.put("t", &["a", "b"]);
    w.clock.advance_ms(600);
    w.put("t", &["c"]);
    w.fs.fail_nth(CallKind::SyncData, 1, FaultKind::EIO);
    assert!(w.engine().sync().is_err());
    w.clock.advance_ms(600);
    let s = w.state("t");
    assert_eq!((s.evict_floor, s.earliest_seq, s.head_seq), (3, 3, 3), "as a read has them");
    assert_eq!(s.count, 3, "what has expired is counted until that is logged");
    assert_eq!(w.scan("t", 0), (vec![3], vec![(1, 2, "ttl")]));
    w.clock.advance_ms(600);
    let s = w.state("t");
    assert_eq!((s.evict_floor, s.earliest_seq, s.head_seq), (4, 4, 3));
}

#[test]
fn i11_what_expired_stays_so_whatever_becomes_of_the_ttl() {
    let mut w = World::new();
    w.create("t", ttl(1000));
    w.put("t", &["1"]);
    w.clock.advance_ms(1001);
    assert_eq!(w.seqs("t"), [0_u64; 0]);
    w.create("t", ttl(0));
    assert_eq!(w.seqs("t"), [0_u64; 0]);
    w.kill();
    assert_eq!(w.scan("t", 0), (vec![], vec![(1, 1, "ttl")]));
}

#[test]
fn both_reasons_are_mixed() {
    let w = World::new();
    w.create("t", ConfigPatch { ttl_ms: Some(1000), ..caps(2, 0) });
    w.put("t", &["1", "2", "3"]);
    assert_eq!(w.scan("t", 0).1, [(1, 1, "cap")]);
    w.clock.advance_ms(1001);
    assert_eq!(w.scan("t", 0).1, [(1, 3, "mixed")]);
    w.engine().tick().unwrap();
    assert_eq!(w.scan("t", 0).1, [(1, 3, "mixed")]);
}

#[test]
fn what_has_expired_makes_room_under_reject() {
    let w = World::new();
    let p = ConfigPatch { ttl_ms: Some(1000), discard: Some(Discard::Reject), ..caps(2, 0) };
    w.create("t", p);
    w.put("t", &["1", "2"]);
    assert_eq!(w.try_put("t", &["3"]).unwrap_err().code(), "topic_full");
    w.clock.advance_ms(1001);
    assert_eq!(w.put("t", &["3"]).first_seq, 3);
    assert_eq!(w.scan("t", 0), (vec![3], vec![(1, 2, "ttl")]));
}

#[test]
fn ttl_cuts_a_segment_in_two() {
    let w = World::new();
    w.create("t", ttl(50));
    for i in 0..8 {
        w.put("t", &[&i.to_string()]);
        w.clock.advance_ms(10);
    }
    w.checkpoint();
    // Records 1…8 were committed at 0, 10, …, 70; it is 80: those before 30 are gone.
    let s = w.state("t");
    assert_eq!((s.count, s.bytes, s.earliest_seq, s.evict_floor), (5, 5, 4, 4));
    assert_eq!(w.scan("t", 0), (vec![4, 5, 6, 7, 8], vec![(1, 3, "ttl")]));
    w.clock.advance_ms(11);
    assert_eq!(w.scan("t", 1), (vec![6, 7, 8], vec![(2, 5, "ttl")]));
}

#[test]
fn a_record_may_expire_alone_and_silently() {
    let mut w = World::new();
    let records = [rec("1"), NewRecord { ttl_ms: 1000, ..rec("2") }, rec("3")];
    w.engine().append("t", &Append { records: &records, ..Append::default() }).unwrap();
    w.clock.advance_ms(1000);
    assert_eq!(w.seqs("t"), [1, 2, 3]);
    w.clock.advance_ms(1);
    for step in 0..4 {
        assert_eq!(w.scan("t", 0), (vec![1, 3], vec![]));
        match step {
            0 => w.checkpoint(),
            1 => w.kill(),
            2 => {
                assert_eq!(w.state("t").count, 3, "until the sweep");
                w.engine().tick().unwrap();
                w.clock.advance_ms(10_000);
                w.engine().tick().unwrap();
            }
            _ => {}
        }
    }
    let s = w.state("t");
    assert_eq!((s.count, s.bytes, s.evict_floor), (2, 2, 1));
    w.reopen();
    assert_eq!(w.state("t").count, 2);
}

#[test]
fn a_clock_step_must_persist_before_anything_expires() {
    let w = World::new();
    w.create("t", ttl(1000));
    w.put("t", &["1"]);
    w.clock.step_wall_ms(10 * 365 * 86_400_000);
    assert_eq!(w.seqs("t"), [1]);
    w.engine().tick().unwrap();
    assert_eq!(w.state("t").count, 1);
    assert_eq!(w.engine().metrics().clock_steps, 1);
    w.clock.step_wall_ms(-10 * 365 * 86_400_000);
    assert_eq!(w.seqs("t"), [1]);
    w.clock.advance_ms(1001);
    assert_eq!(w.seqs("t"), [0_u64; 0]);
    w.clock.step_wall_ms(-86_400_000);
    assert_eq!((w.seqs("t"), w.state("t").evict_floor), (vec![], 2), "I11");
}

#[test]
fn idle_reservations_are_lowered() {
    let mut w = World::new();
    w.put("t", &["1"]);
    let reserved = |w: &World| {
        let topic = w.engine().open_engine().catalog().table.loaded.named("t").unwrap();
        topic.state.read().reservation.to
    };
    assert_eq!(reserved(&w), 1024);
    w.clock.advance_ms(59_999);
    w.engine().tick().unwrap();
    assert_eq!(reserved(&w), 1024);
    w.clock.advance_ms(5_001);
    w.engine().tick().unwrap();
    assert_eq!(reserved(&w), 1);
    w.engine().sync().unwrap();
    w.power_cut();
    let s = w.state("t");
    assert_eq!((s.head_seq, s.gaps.len(), s.next_seq), (1, 0, 2));
    assert_eq!(w.put("t", &["2"]).first_seq, 2);
}

#[test]
fn an_eviction_through_several_segments_record_by_record_ends() {
    // Two segments of five records; staged evictions have counted off part of each already, so that an
    // eviction needs the sizes of the records of both.
    let w = World::new();
    w.create("t", ConfigPatch { cap_records: Some(10), ..ConfigPatch::default() });
    w.put("t", &["a"; 10]);
    w.checkpoint();
    let records: Vec<_> = ["b"; 7].iter().map(|d| rec(d)).collect();
    for n in [3, 4, 7] {
        let req = Append { records: &records[..n], ..Append::default() };
        w.engine().append_async("t", &req, Box::new(|answer| assert!(answer.is_ok())));
    }
    w.engine().drive();
    let s = w.state("t");
    assert_eq!((s.count, s.earliest_seq, s.head_seq), (10, 15, 24));
}

#[test]
fn what_left_the_index_before_it_was_read_is_no_damage() {
    use crate::topic::load::{Need, provide};
    let w = World::new();
    w.create("t", caps(5, 0));
    w.put("t", &["x"; 5]);
    w.checkpoint();
    let topic = w.engine().find("t").unwrap();
    let first = topic.state.read().index.segs[0].meta;
    w.put("t", &["x"; 8]);
    // Its files go with the last snapshot that names it.
    for _ in 0..3 {
        w.put("t", &["x"]);
        w.checkpoint();
    }
    let engine = &w.engine().open;
    assert!(!topic.state.read().index.has(first.file_no));
    assert!(
        engine.base().segments.segment(topic.key, first).entries(1, 1).is_err(),
        "its files are gone"
    );
    for need in [Need::Sizes(first, 1, 1), Need::Dead(first.file_no)] {
        provide(engine.base(), &topic, &need).unwrap();
    }
    let there = topic.state.read().index.segs[0].meta;
    let lost = Err::<(), _>(StorageError::Missing { what: "a file".into() });
    let e = topic.unless_gone(&there, lost);
    assert!(matches!(e, Err(Error::Corrupt { .. })), "what the index names must be there: {e:?}");
}

#[test]
fn i1_expiry_that_is_logged_behind_writes_does_not_hide_them_from_the_next_open() {
    let mut w = World::new();
    w.create("t", ConfigPatch { ttl_ms: Some(1000), ..class(Durability::Fsync) });
    w.put("t", &["old"]);
    w.checkpoint();
    w.clock.advance_ms(2000);
    let records = [rec("new")];
    let req = Append { records: &records, ..Append::default() };
    let acked = Arc::new(std::sync::Mutex::new(None));
    let answer = acked.clone();
    w.engine().append_async("t", &req, Box::new(move |r| *answer.lock().unwrap() = Some(r)));
    // It is written, and not synced.
    w.engine().drive();
    assert!(acked.lock().unwrap().is_none());
    // Logs that the first has expired: behind it.
    w.state("t");
    w.engine().checkpoint().unwrap();
    w.engine().sync().unwrap();
    assert_eq!(acked.lock().unwrap().clone().unwrap().unwrap().first_seq, 2);
    w.power_cut();
    assert_eq!(w.scan("t", 0), (vec![2], vec![(1, 1, "ttl")]));
    assert_eq!(w.put("t", &["next"]).first_seq, 3, "I2");
}
