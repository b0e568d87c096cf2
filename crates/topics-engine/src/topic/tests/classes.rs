//! What each class survives; failures of the log; changes of class.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use topics_sim::{CallFilter, CallKind, FaultKind};

use super::*;
use crate::types::api::GapReason;
use crate::types::error::Error;

fn fill(w: &World, class_: Durability) {
    w.create("t", class(class_));
    w.put("t", &["1", "2", "3"]);
}

#[test]
fn i1_a_killed_process() {
    for c in CLASSES {
        let mut w = World::new();
        fill(&w, c);
        w.kill();
        let s = w.state("t");
        let lost: Vec<_> = s.gaps.iter().map(|g| (g.from, g.to, g.reason)).collect();
        match c {
            Durability::Disk | Durability::Fsync => {
                assert_eq!((w.seqs("t"), lost.len(), s.next_seq), (vec![1, 2, 3], 0, 4), "{c:?}");
            }
            Durability::Ephemeral => {
                assert_eq!((w.seqs("t"), lost), (vec![], vec![(1, 1024, GapReason::Restart)]));
            }
            Durability::Memory => {
                let kept = w.seqs("t").len() as u64;
                assert_eq!(lost, [(kept + 1, 1024, GapReason::Restart)]);
            }
        }
        let next = w.put("t", &["x"]).first_seq;
        assert_eq!(next, s.head_seq + 1, "{c:?}");
        assert!(next > 3, "I2: {c:?}");
    }
}

#[test]
fn i1_a_power_cut() {
    for c in CLASSES {
        for sync in [false, true] {
            let mut w = World::new();
            fill(&w, c);
            w.engine().sync().unwrap();
            w.put("t", &["4"]);
            let records = [rec("5")];
            let req = Append { records: &records, sync, ..Append::default() };
            w.engine().append("t", &req).unwrap();
            w.power_cut();
            let kept = match (c, sync) {
                (Durability::Ephemeral, _) => 0,
                (Durability::Fsync, _) | (_, true) => 5,
                _ => 3,
            };
            assert_eq!(w.seqs("t"), (1..=kept).collect::<Vec<_>>(), "{c:?} sync {sync}");
            let s = w.state("t");
            let lost: Vec<_> = s.gaps.iter().map(|g| (g.from, g.to, g.reason.as_str())).collect();
            match c {
                Durability::Fsync => assert_eq!((lost.len(), s.next_seq), (0, 6)),
                Durability::Disk => assert_eq!(lost, [(kept + 1, 1024, "crash")]),
                _ => assert_eq!(lost, [(kept + 1, 1024, "restart")]),
            }
            assert!(w.put("t", &["x"]).first_seq > 5, "I2");
        }
    }
}

#[test]
fn i2_nothing_above_a_synced_reservation_is_acked() {
    let mut w = World::new();
    w.create("t", ConfigPatch::default());
    w.engine().sync().unwrap();
    w.put("t", &["x"; 700]);
    w.put("t", &["x"; 600]);
    let s = w.state("t");
    assert_eq!(s.head_seq, 1300);
    w.power_cut();
    // The second write had to sync its reservation, and with it everything before.
    assert!(w.state("t").head_seq >= 1300);
    assert!(w.put("t", &["y"]).first_seq > 1300);
}

#[test]
fn i3_a_reservation_holds_back_what_is_shown() {
    let w = World::new();
    w.create("t", ConfigPatch::default());
    w.put("t", &["x"; 1000]);
    let got = Arc::new(AtomicU64::new(0));
    let n = got.clone();
    let records = vec![rec("y"); 100];
    let req = Append { records: &records, ..Append::default() };
    w.engine().append_async(
        "t",
        &req,
        Box::new(move |r| n.store(r.unwrap().last_seq, Ordering::SeqCst)),
    );
    w.engine().drive();
    assert_eq!((got.load(Ordering::SeqCst), w.state("t").head_seq), (0, 1024));
    assert_eq!(w.read("t", 999).len(), 25);
    w.engine().sync().unwrap();
    assert_eq!((got.load(Ordering::SeqCst), w.state("t").head_seq), (1100, 1100));
}

#[test]
fn ephemeral_payloads_share_a_bounded_budget() {
    // A record of four bytes takes 50 in memory.
    let w = World::with(Options { ephemeral_bytes: 148, ..small() });
    let p = ConfigPatch { cap_records: Some(2), ..class(Durability::Ephemeral) };
    w.create("t", p);
    w.put("t", &["1234"]);
    w.put("t", &["1234"]);
    let e = w.try_put("t", &["1234"]).unwrap_err();
    assert!(matches!(e, Error::Throttled { limit: "ephemeral_bytes", max: 148, .. }), "{e}");
    w.put("t", &["12"]);
    assert_eq!(w.engine().metrics().ephemeral_bytes, 98, "evicted payloads are given back");
    assert_eq!(w.seqs("t"), [2, 3]);
    w.engine().delete_topic("t", false).unwrap();
    assert_eq!(w.engine().metrics().ephemeral_bytes, 0);
}

#[test]
fn i2_what_was_ephemeral_is_a_gap_whatever_the_class_is_now() {
    for to in [Durability::Memory, Durability::Disk, Durability::Fsync] {
        for checkpoint in [false, true] {
            for kill in [false, true] {
                let mut w = World::new();
                w.put("t", &["1"]);
                w.create("t", class(Durability::Ephemeral));
                w.put("t", &["2", "3"]);
                w.create("t", class(to));
                if checkpoint {
                    w.checkpoint();
                }
                if kill {
                    w.kill()
                } else {
                    w.reopen()
                }
                let case = format!("{to:?}, checkpoint {checkpoint}, kill {kill}");
                let s = w.state("t");
                assert!(s.next_seq > 3, "I2: next {} ({case})", s.next_seq);
                let (seqs, lost) = w.scan("t", 0);
                assert_eq!(seqs, [1], "{case}");
                let reported =
                    lost.first().is_some_and(|l| l.0 == 2 && l.1 >= 3 && l.2 == "restart");
                assert!(reported, "I4: {lost:?} ({case})");
            }
        }
    }
}

#[test]
fn the_key_of_an_ephemeral_write_ends_with_its_records() {
    let mut w = World::new();
    w.create("t", class(Durability::Ephemeral));
    let records = [rec("1")];
    let req = Append { records: &records, key: b"k", ..Append::default() };
    assert!(!w.engine().append("t", &req).unwrap().deduped);
    assert!(w.engine().append("t", &req).unwrap().deduped);
    w.reopen();
    let again = w.engine().append("t", &req).unwrap();
    assert_eq!((again.deduped, again.first_seq), (false, 2));
}

#[test]
fn i3_what_is_written_to_a_topic_that_is_not_shown_yet_waits_for_its_creation() {
    for c in [Durability::Ephemeral, Durability::Memory] {
        let w = World::new();
        w.create("other", ConfigPatch::default());
        let acks = Arc::new(AtomicU64::new(0));
        let (records, config) = ([rec("1")], class(c));
        for config in [Some(&config), None] {
            let n = acks.clone();
            let done = move |r: Result<_>| {
                r.unwrap();
                n.fetch_add(1, Ordering::SeqCst);
            };
            let req = Append { records: &records, config, ..Append::default() };
            w.engine().append_async("t", &req, Box::new(done));
        }
        assert_eq!(acks.load(Ordering::SeqCst), 0, "{c:?}");
        w.engine().drive();
        w.engine().drive();
        assert_eq!(acks.load(Ordering::SeqCst), 2, "{c:?}");
        assert_eq!(w.seqs("t"), [1, 2], "{c:?}");
    }
}

#[test]
fn ephemeral_records_reach_no_file() {
    let mut w = World::new();
    w.create("t", class(Durability::Ephemeral));
    w.put("t", &["a-needle-in-memory"]);
    w.reopen();
    let found =
        w.fs.kill_image()
            .files()
            .into_iter()
            .any(|(_, bytes)| bytes.windows(18).any(|x| x == b"a-needle-in-memory"));
    assert!(!found);
    let s = w.state("t");
    assert_eq!((s.head_seq, s.gaps.len(), s.gaps[0].to), (1, 1, 1), "exact after a clean close");
}

/// Every class followed by every other, with records of both, over every kind of restart.
#[test]
fn changes_of_class() {
    for a in CLASSES {
        for b in CLASSES {
            for end in 0..4 {
                let mut w = World::new();
                fill(&w, a);
                w.create("t", class(b));
                assert_eq!(w.seqs("t"), [1, 2, 3], "{a:?} {b:?}");
                w.put("t", &["4"]);
                w.delete("t", Some(2), None);
                w.checkpoint();
                w.put("t", &["5"]);
                assert_eq!(w.seqs("t"), [2, 3, 4, 5], "{a:?} {b:?}");
                assert_eq!(w.state("t").count, 4);
                match end {
                    0 => w.reopen(),
                    1 => w.kill(),
                    2 => w.power_cut(),
                    _ => {
                        w.checkpoint();
                        w.kill();
                    }
                }
                let context = format!("{a:?} {b:?} {end}");
                let (seqs, lost) = w.scan("t", 0);
                let s = w.state("t");
                assert_eq!(s.count as usize, seqs.len(), "{context}");
                let reported = |seq: u64| lost.iter().any(|l| (l.0..=l.1).contains(&seq));
                for seq in 2..=5u64 {
                    let here = seqs.contains(&seq);
                    assert!(here != reported(seq), "I4: {seq}: {context}: {seqs:?} {lost:?}");
                    let of = if seq <= 3 { a } else { b };
                    let must = match of {
                        Durability::Ephemeral => Some(false),
                        Durability::Fsync => Some(true),
                        Durability::Disk if end != 2 || seq <= 4 => Some(true),
                        Durability::Memory if end == 0 || end == 3 || seq <= 4 => Some(true),
                        _ => None,
                    };
                    assert!(must.is_none_or(|m| m == here), "I1: {seq}: {context}: {seqs:?}");
                }
                assert!(w.put("t", &["x"]).first_seq > 5, "I2: {context}");
                w.kill();
                w.state("t");
            }
        }
    }
}

#[test]
fn leaving_fsync_reserves_first() {
    let mut w = World::new();
    fill(&w, Durability::Fsync);
    w.create("t", class(Durability::Disk));
    w.put("t", &["4"]);
    w.power_cut();
    // The write was acked without a sync, so what it may have taken is announced.
    assert_eq!(w.scan("t", 0), (vec![1, 2, 3], vec![(4, 3 + 1024, "crash")]));
}

#[test]
fn caps_are_exact_while_writes_are_in_flight() {
    for c in CLASSES {
        for (records, bytes) in [(3, 0), (0, 6)] {
            let w = World::new();
            let p = ConfigPatch { cap_records: Some(records), cap_bytes: Some(bytes), ..class(c) };
            w.create("t", p);
            w.put("t", &["11", "22"]);
            for _ in 0..5 {
                let records = [rec("33")];
                let req = Append { records: &records, ..Append::default() };
                w.engine().append_async("t", &req, Box::new(|r| assert!(r.is_ok())));
            }
            w.engine().sync().unwrap();
            let s = w.state("t");
            assert_eq!((s.count, s.evict_floor, s.head_seq), (3, 5, 7), "{c:?}");
        }
    }
}

#[test]
fn entering_fsync_makes_what_was_there_durable() {
    let mut w = World::new();
    fill(&w, Durability::Disk);
    w.create("t", class(Durability::Fsync));
    w.power_cut();
    assert_eq!((w.seqs("t"), w.state("t").next_seq), (vec![1, 2, 3], 4));
}

fn no_space(w: &World) {
    w.fs.fail_from(CallFilter::on_path(CallKind::Write, "wal-"), 0, FaultKind::Errno(28));
}

#[test]
fn a_failed_write_leaves_no_trace() {
    for c in [Durability::Disk, Durability::Fsync] {
        let mut w = World::new();
        fill(&w, c);
        no_space(&w);
        let records = [rec("a"), rec("b")];
        let req = Append { records: &records, key: b"k", ..Append::default() };
        let e = w.engine().append("t", &req).unwrap_err();
        assert!(matches!(e, Error::StorageUnavailable { reason: "no_space", .. }), "{e}");
        assert_eq!(w.seqs("t"), [1, 2, 3]);
        let s = w.state("t");
        assert_eq!((s.head_seq, s.next_seq, s.count), (3, 4, 3), "{c:?}");
        w.fs.clear_faults();
        let a = retry(|| w.engine().append("t", &req));
        assert_eq!((a.first_seq, a.deduped), (4, false), "its key is forgotten: {c:?}");
        for _ in 0..2 {
            assert_eq!(w.scan("t", 0), (vec![1, 2, 3, 4, 5], vec![]), "no hole: {c:?}");
            w.kill();
        }
    }
}

/// Space has come back: the shard may need a moment to notice.
fn retry<T>(mut f: impl FnMut() -> Result<T>) -> T {
    for _ in 0..10 {
        match f() {
            Ok(v) => return v,
            Err(Error::StorageUnavailable { reason: "no_space", .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
    f().unwrap()
}

#[test]
fn i2_staged_writes_fail_in_order_and_their_seqs_are_given_again() {
    for c in [Durability::Disk, Durability::Fsync] {
        let w = World::new();
        let p = ConfigPatch { cap_records: Some(100), ..class(c) };
        w.create("t", p);
        w.put("t", &["1"]);
        let failed = Arc::new(AtomicU64::new(0));
        no_space(&w);
        for i in 0..5u8 {
            let failed = failed.clone();
            let key = [i];
            let records = [rec("x")];
            let req = Append { records: &records, key: &key, ..Append::default() };
            w.engine().append_async(
                "t",
                &req,
                Box::new(move |r| {
                    assert!(r.is_err());
                    failed.fetch_add(1, Ordering::SeqCst);
                }),
            );
        }
        w.engine().drive();
        assert_eq!(failed.load(Ordering::SeqCst), 5, "{c:?}");
        w.fs.clear_faults();
        let a = retry(|| w.try_put("t", &["2"]));
        assert_eq!(a.first_seq, 2);
        assert_eq!(w.scan("t", 0), (vec![1, 2], vec![]));
        assert_eq!(w.engine().metrics().idempotency_keys, 0);
    }
}

#[test]
fn shown_records_whose_write_fails_become_a_gap_at_once() {
    let mut w = World::new();
    fill(&w, Durability::Memory);
    w.engine().sync().unwrap();
    w.put("t", &["4", "5"]);
    no_space(&w);
    w.engine().drive();
    assert_eq!(w.scan("t", 0), (vec![1, 2, 3], vec![(4, 5, "crash")]));
    assert_eq!(w.state("t").count, 3);
    w.fs.clear_faults();
    let a = retry(|| w.try_put("t", &["6"]));
    assert_eq!(a.first_seq, 6, "I2: what was shown is not given again");
    assert!(w.engine().sync().is_err(), "acked records were lost");
    w.engine().sync().unwrap();
    for _ in 0..2 {
        let (seqs, lost) = w.scan("t", 0);
        assert_eq!((seqs, lost[0]), (vec![1, 2, 3, 6], (4, 5, "crash")));
        w.kill();
    }
}

#[test]
fn a_failed_creation_leaves_no_topic() {
    let w = World::new();
    w.put("first", &["1"]);
    no_space(&w);
    assert!(w.try_put("t", &["1"]).is_err());
    assert!(w.engine().create_topic("u", &ConfigPatch::default()).is_err());
    assert!(w.engine().state("t", false).is_err());
    assert_eq!(w.engine().list("", None, 9).len(), 1);
    w.fs.clear_faults();
    assert!(retry(|| w.try_put("t", &["1"])).created);
    assert!(retry(|| w.engine().create_topic("u", &ConfigPatch::default())).created);
}

#[test]
fn i3_what_is_acked_after_a_failed_reservation_is_shown() {
    for c in [Durability::Disk, Durability::Memory] {
        let mut w = World::new();
        w.create("t", class(c));
        w.put("t", &["1", "2", "3"]);
        // A clean close gives the reservation back: the next write makes a new one.
        w.reopen();
        w.fs.fail_nth(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
        assert!(w.try_put("t", &["4", "5"]).is_err());
        let first = retry(|| w.try_put("t", &["6", "7"])).first_seq;
        assert!(w.seqs("t").ends_with(&[first, first + 1]), "{c:?}: {:?}", w.seqs("t"));
        assert_eq!(w.state("t").head_seq, first + 1);
    }
}

#[test]
fn i10_after_a_failed_sync_nothing_is_acked_and_reads_go_on() {
    let mut w = World::new();
    fill(&w, Durability::Fsync);
    w.fs.fail_nth(CallFilter::on_path(CallKind::SyncData, "wal-"), 0, FaultKind::Errno(5));
    let e = w.try_put("t", &["4"]).unwrap_err();
    assert!(matches!(e, Error::StorageUnavailable { reason: "poisoned", .. }), "{e}");
    w.fs.clear_faults();
    for _ in 0..3 {
        assert!(w.try_put("t", &["4"]).is_err());
    }
    assert_eq!(w.seqs("t"), [1, 2, 3]);
    w.kill();
    let seqs = w.seqs("t");
    assert!(seqs == [1, 2, 3] || seqs == [1, 2, 3, 4], "undetermined, never contradictory");
}

#[test]
fn writers_in_many_threads() {
    for c in CLASSES {
        let w = World::new();
        let p = ConfigPatch { cap_records: Some(50), ..class(c) };
        w.create("capped", p);
        w.create("t", class(c));
        // The reader ends with the writers, whatever became of them.
        let writers = Arc::new(());
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                let writer = writers.clone();
                let engine = w.engine().clone();
                s.spawn(move || {
                    let _writer = writer;
                    for i in 0..100 {
                        let data = format!("{thread}-{i}");
                        let records = [NewRecord { tag: b"a", ..rec(&data) }, rec("second")];
                        let req = Append { records: &records, ..Append::default() };
                        for topic in ["t", "capped", "lazy"] {
                            let a = engine.append(topic, &req).unwrap();
                            assert_eq!(a.last_seq, a.first_seq + 1, "I5");
                        }
                        if i % 20 == 7 {
                            let req = DeleteRequest { before_seq: Some(i), matching: None };
                            engine.delete("capped", &req).unwrap();
                            let p = ConfigPatch {
                                ttl_ms: Some(3_600_000 + i),
                                ..ConfigPatch::default()
                            };
                            engine.create_topic("capped", &p).unwrap();
                        }
                        if i % 30 == 9 && thread == 0 {
                            engine.sync().unwrap();
                            engine.checkpoint().unwrap();
                        }
                    }
                });
            }
            let engine = w.engine().clone();
            s.spawn(move || {
                let mut at = 0;
                let mut want = 1;
                while want <= 800 {
                    let over = Arc::strong_count(&writers) == 1;
                    let b = engine.read("t", &after(at)).unwrap();
                    assert!(b.tombstone.is_none());
                    for r in b.iter() {
                        assert_eq!(r.seq, want, "I4");
                        want += 1;
                    }
                    assert!(!over || b.next_from_seq > at, "the writers ended before {want}");
                    at = b.next_from_seq;
                    std::thread::yield_now();
                }
            });
        });
        for topic in ["t", "lazy"] {
            let s = w.state(topic);
            assert_eq!((s.count, s.head_seq), (800, 800), "{c:?}");
            assert_eq!(w.seqs(topic).len(), 800);
        }
        let s = w.state("capped");
        assert_eq!((s.head_seq, s.count), (800, 50), "{c:?}");
        assert_eq!(w.seqs("capped"), (751..=800).collect::<Vec<_>>());
        let mut w = w;
        w.reopen();
        if c >= Durability::Memory {
            assert_eq!(w.seqs("t").len(), 800, "{c:?}");
            assert_eq!(w.seqs("capped").len(), 50);
        }
    }
}

#[test]
fn i3_what_was_evicted_before_it_was_shown_is_announced_when_the_head_is_there() {
    let mut w = World::new();
    let p = ConfigPatch { cap_bytes: Some(10), ..class(Durability::Memory) };
    w.create("t", p);
    w.put("t", &["1"]);
    w.kill();
    let head = w.state("t").head_seq;
    let data = "x".repeat(20);
    let records = [rec(&data)];
    let req = Append { records: &records, sync: true, ..Append::default() };
    w.engine().append_async("t", &req, Box::new(|r| assert!(r.is_ok())));
    let (_, lost) = w.scan("t", 0);
    assert_eq!((w.state("t").head_seq, lost.last().map(|l| l.1)), (head, Some(head)));
    w.engine().sync().unwrap();
    assert_eq!(w.scan("t", head), (vec![], vec![(head + 1, head + 1, "cap")]));
}

#[test]
fn i11_what_ephemeral_records_evicted_stays_so() {
    for delete in [false, true] {
        let mut w = World::new();
        w.tagged("t", &["a", "b", "c"]);
        w.create("t", ConfigPatch { cap_records: Some(3), ..class(Durability::Ephemeral) });
        w.put("t", &["4", "5"]);
        w.engine().drive();
        if delete {
            w.put("t", &["6", "7"]);
            w.delete("t", Some(6), None);
        }
        w.kill();
        let (seqs, lost) = w.scan("t", 0);
        let s = w.state("t");
        let floor = if delete { 5 } else { 3 };
        assert_eq!((s.evict_floor, seqs), (floor, if delete { vec![] } else { vec![3] }));
        assert_eq!(lost[0], (1, floor - 1, "cap"), "I4: only what was deleted is silent");
    }
}
