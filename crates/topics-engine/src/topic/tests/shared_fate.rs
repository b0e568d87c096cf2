//! A failed batch fails every later batch of its topic, whichever verb staged them.

use std::sync::Mutex;

use topics_sim::{CallFilter, CallKind, FaultKind};

use super::*;
use crate::router::RouterRequest;
use crate::txn::{TxnRequest, TxnRows};
use crate::types::error::Error;
use crate::types::queue::Claim;

/// The answer of an asynchronous append, when it has come.
type Answer = Arc<Mutex<Option<Result<Appended>>>>;

const STORED: [Durability; 3] = [Durability::Memory, Durability::Disk, Durability::Fsync];

/// A record that fits neither into the log file in use nor into the one that is ready.
fn big() -> String {
    "b".repeat(300_000)
}

/// From now on no log file can be made, nor made larger.
fn no_next_file(w: &World) {
    w.fs.fail_from(CallKind::Allocate, 1, FaultKind::ENOSPC);
}

fn submit(w: &World, topic: &str, data: &[&str]) -> Answer {
    let answer = Answer::default();
    let slot = answer.clone();
    let records: Vec<_> = data.iter().map(|d| rec(d)).collect();
    let req = Append { records: &records, ..Append::default() };
    w.engine().append_async(topic, &req, Box::new(move |r| *slot.lock().unwrap() = Some(r)));
    answer
}

/// The answers, in order: the first seq, or the reason of the refusal.
fn answers(of: &[Answer]) -> Vec<std::result::Result<u64, &'static str>> {
    let one = |a: &Answer| match a.lock().unwrap().clone().expect("each call is answered") {
        Ok(a) => Ok(a.first_seq),
        Err(Error::StorageUnavailable { reason, .. }) => Err(reason),
        Err(e) => Err(e.code()),
    };
    of.iter().map(one).collect()
}

/// Seq and data of every live record.
fn shown(w: &World, topic: &str) -> Vec<(u64, String)> {
    super::space::kept(w, topic).into_iter().collect()
}

/// Space has come back: the shard may need a moment to notice.
fn heal(w: &World) {
    w.fs.clear_faults();
    w.fs.set_fd_limit(None);
    w.engine().open_engine().store().refresh_load();
}

const FULL: std::result::Result<u64, &'static str> = Err("no_space");

#[test]
fn i1_small_writes_behind_a_big_one_that_does_not_fit_fail_with_it() {
    for c in STORED {
        let mut w = World::new();
        w.create("t", class(c));
        w.put("t", &["1"]);
        w.engine().sync().unwrap();
        no_next_file(&w);
        let big = big();
        let calls = [submit(&w, "t", &[&big]), submit(&w, "t", &["s1"]), submit(&w, "t", &["s2"])];
        // Another topic is no part of it.
        let other = submit(&w, "u", &["u1"]);
        w.engine().drive();
        // A record that is shown when it is staged is acked then.
        let want = if c == Durability::Memory { [Ok(2), Ok(3), Ok(4)] } else { [FULL; 3] };
        assert_eq!(answers(&calls), want, "{c:?}");
        assert_eq!(answers(&[other]), [Ok(1)], "{c:?}");
        heal(&w);
        let next = w.put("t", &["2", "3"]).first_seq;
        assert_eq!(next, if c == Durability::Memory { 5 } else { 2 }, "I2, {c:?}");
        assert_eq!(w.engine().sync().is_err(), c == Durability::Memory, "acked records were lost");
        let want = vec![(1, "1".into()), (next, "2".into()), (next + 1, "3".into())];
        assert_eq!(shown(&w, "t"), want, "{c:?}");
        w.kill();
        assert_eq!(shown(&w, "t"), want, "{c:?}");
        w.reopen();
        assert_eq!(shown(&w, "t"), want, "{c:?}");
        assert_eq!(shown(&w, "u"), [(1, "u1".into())]);
    }
}

#[test]
fn i11_what_a_write_that_failed_evicted_does_not_come_back() {
    // Of the second class the log has no records: what it evicts is of the one before.
    for c in [Durability::Memory, Durability::Ephemeral] {
        for again in [1, 2] {
            let mut w = World::new();
            let capped = ConfigPatch { cap_records: Some(3), ..class(Durability::Memory) };
            w.create("t", capped);
            w.put("t", &["1", "2", "3"]);
            w.engine().sync().unwrap();
            w.create("t", class(c));
            for _ in 0..again {
                // The first evicts 1 and 2; the second is to tell the log of that too.
                w.fs.fail_from(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
                w.fs.fail_from(CallKind::Allocate, 1, FaultKind::ENOSPC);
                w.put("t", &["lost", "lost"]);
                drop(w.engine().sync());
                heal(&w);
            }
            let floor = w.state("t").evict_floor;
            assert!(floor >= 3, "{c:?}: {floor}");
            w.put("t", &["next", "next"]);
            drop(w.engine().sync());
            w.kill();
            let state = w.state("t");
            assert!(state.evict_floor >= floor, "{c:?}: {} after {floor}", state.evict_floor);
            assert!(state.count <= 3, "{c:?}: {} records", state.count);
        }
    }
}

#[test]
fn i1_a_creation_that_fails_takes_its_followers_with_it() {
    for c in STORED {
        let mut w = World::new();
        w.put("first", &["1"]);
        no_next_file(&w);
        let (big, config) = (big(), class(c));
        let records = [rec(&big)];
        let req = Append { records: &records, config: Some(&config), ..Append::default() };
        let answer = Answer::default();
        let slot = answer.clone();
        w.engine().append_async("t", &req, Box::new(move |r| *slot.lock().unwrap() = Some(r)));
        let calls = [answer, submit(&w, "t", &["s1"]), submit(&w, "t", &["s2"])];
        w.engine().drive();
        w.engine().sync().unwrap();
        assert_eq!(answers(&calls), [FULL; 3], "{c:?}");
        assert!(matches!(w.engine().state("t", false), Err(Error::TopicNotFound(_))));
        heal(&w);
        assert!(w.put("t", &["1"]).created);
        w.kill();
        assert_eq!(shown(&w, "t"), [(1, "1".into())], "{c:?}");
    }
}

#[test]
fn i1_a_delete_behind_an_append_that_fails_is_decided_again() {
    for c in [Durability::Disk, Durability::Fsync] {
        let mut w = World::new();
        w.create("t", class(c));
        w.put("t", &["1", "2", "3"]);
        no_next_file(&w);
        let big = big();
        let call = submit(&w, "t", &[&big]);
        // It is staged above seq 4, fails with it, and succeeds below it while the disk is full.
        assert_eq!(w.delete("t", Some(3), None), 2, "{c:?}");
        assert_eq!(answers(&[call]), [FULL]);
        assert_eq!(w.seqs("t"), [3]);
        let call = submit(&w, "t", &[&big]);
        assert_eq!(w.delete("t", Some(9), None), 1, "{c:?}");
        assert_eq!(answers(&[call]), [FULL]);
        heal(&w);
        // Its bound is the head of the second decision: later records stay.
        assert_eq!(w.put("t", &["4", "5"]).first_seq, 4);
        w.engine().sync().unwrap();
        for _ in 0..2 {
            assert_eq!(w.seqs("t"), [4, 5], "{c:?}");
            w.kill();
        }
    }
}

#[test]
fn i1_a_delete_while_a_failure_of_its_topic_waits_for_a_sync_succeeds() {
    let mut w = World::new();
    w.create("t", class(Durability::Fsync));
    w.put("t", &["1", "2"]);
    let written = submit(&w, "t", &["3"]);
    w.engine().drive();
    w.fs.fail_nth(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
    let refused = submit(&w, "t", &["4"]);
    w.engine().drive();
    assert_eq!(w.delete("t", Some(9), None), 3);
    assert_eq!(answers(&[written, refused]), [Ok(3), FULL]);
    for _ in 0..2 {
        assert_eq!(w.seqs("t"), [] as [u64; 0]);
        w.kill();
    }
    assert_eq!(w.put("t", &["next"]).first_seq, 4, "I2");
}

#[test]
fn a_delete_that_has_no_space_of_its_own_is_refused() {
    let w = World::new();
    w.create("t", class(Durability::Disk));
    w.put("t", &["1", "2"]);
    w.fs.fail_from(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
    no_next_file(&w);
    let req = DeleteRequest { before_seq: Some(2), matching: None };
    let refused = w.engine().delete("t", &req).unwrap_err();
    assert!(matches!(refused, Error::StorageUnavailable { reason: "no_space", .. }));
    heal(&w);
    assert_eq!(w.delete("t", Some(2), None), 1);
}

#[test]
fn i2_a_write_behind_a_failure_that_waits_for_a_sync_is_refused() {
    let mut w = World::new();
    w.create("t", class(Durability::Fsync));
    w.put("t", &["1"]);
    let first = submit(&w, "t", &["2"]);
    // Written, and not synced yet.
    w.engine().drive();
    w.fs.fail_nth(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
    let second = submit(&w, "t", &["3"]);
    w.engine().drive();
    w.fs.clear_faults();
    let third = submit(&w, "t", &["4"]);
    let other = submit(&w, "u", &["u1"]);
    w.engine().drive();
    w.engine().sync().unwrap();
    assert_eq!(answers(&[first, second, third, other]), [Ok(2), FULL, FULL, Ok(1)]);
    assert_eq!(w.put("t", &["5"]).first_seq, 3, "I2");
    let want = vec![(1, "1".into()), (2, "2".into()), (3, "5".into())];
    assert_eq!(shown(&w, "t"), want);
    w.kill();
    assert_eq!(shown(&w, "t"), want);
}

#[test]
fn i1_without_descriptors_what_does_not_fit_takes_the_rest_along() {
    for c in [Durability::Disk, Durability::Fsync] {
        let mut w = World::new();
        w.create("t", class(c));
        w.create("u", class(c));
        w.fs.set_fd_limit(Some(0));
        // Into the last file that there is, to a place where little more fits.
        let kb = "x".repeat(1000);
        let mut last = 0;
        while let Ok(a) = w.try_put("u", &[&kb, &kb, &kb]) {
            last = a.last_seq;
        }
        let (big, calls) = ("y".repeat(20_000), |w: &World, big: &str| {
            [submit(w, "t", &[big]), submit(w, "t", &["s1"]), submit(w, "u", &["s2"])]
        });
        let calls = calls(&w, &big);
        w.engine().drive();
        w.engine().open_engine().ctx().wal.sync(0).unwrap();
        let none = Err("no_descriptors");
        assert_eq!(answers(&calls), [none, none, Ok(last + 1)], "{c:?}");
        heal(&w);
        assert_eq!(w.put("t", &["1"]).first_seq, 1, "{c:?}");
        w.kill();
        assert_eq!(shown(&w, "t"), [(1, "1".into())], "{c:?}");
        assert_eq!(w.seqs("u").len() as u64, last + 1);
    }
}

#[test]
fn i7_copies_that_fail_take_direct_writes_to_their_topic_along() {
    let mut w = World::new();
    w.create("src", class(Durability::Disk));
    w.create("dst", class(Durability::Disk));
    let req =
        RouterRequest { source: "src".into(), dest: "dst".into(), ..RouterRequest::default() };
    w.engine().create_router("r", &req).unwrap();
    let big = big();
    w.put("src", &["c1", "c2", "c3"]);
    w.engine().sync().unwrap();
    no_next_file(&w);
    let before = submit(&w, "dst", &[&big]);
    // The router stages its copies behind it, and drives.
    w.engine().tick().unwrap();
    let after = submit(&w, "dst", &["d1"]);
    w.engine().drive();
    w.engine().sync().unwrap();
    assert_eq!(answers(&[before, after]), [FULL, Ok(1)]);
    heal(&w);
    for _ in 0..20 {
        w.clock.advance_ms(1_000);
        w.engine().tick().unwrap();
    }
    let last = w.put("dst", &["d3"]).first_seq;
    let check = |w: &World| {
        let want = ["d1", "c1", "c2", "c3", "d3"].map(str::to_owned);
        let (seqs, data): (Vec<u64>, Vec<String>) = shown(w, "dst").into_iter().unzip();
        assert_eq!(data, want, "I1, I7: each copy and each acked write, once");
        assert_eq!((seqs, last), (vec![1, 2, 3, 4, 5], 5), "I2");
    };
    check(&w);
    w.kill();
    check(&w);
}

#[test]
fn i1_dead_letters_of_which_one_does_not_fit_are_in_one_place() {
    let mut w = World::new();
    let queue = ConfigPatch {
        kind: Some(crate::types::config::TopicType::Queue),
        dead_letter: Some(Some("dead".into())),
        max_deliveries: Some(1),
        retry_backoff_ms: Some(0),
        ..class(Durability::Disk)
    };
    w.create("q", queue);
    w.create("dead", class(Durability::Disk));
    let big = big();
    let jobs = ["j1", &big, "j3", "j4", "j5"];
    for job in jobs {
        w.put("q", &[job]);
    }
    w.engine().sync().unwrap();
    no_next_file(&w);
    let claim = |w: &World| {
        let req = Claim { node: b"a", max: 9, ..Claim::default() };
        let claimed = w.engine().claim("q", &req).unwrap();
        claimed.iter().map(|(l, _)| l.seq).collect::<Vec<_>>()
    };
    let claimed = claim(&w);
    assert_eq!(claimed.len(), 5);
    let held = crate::types::queue::LeasedJobs { node: b"a", seqs: &claimed, lease_ids: None };
    w.engine().nack("q", &held, Some(0)).unwrap();
    // They are over their deliveries: as many as there is room for are moved.
    assert_eq!(claim(&w), [] as [u64; 0]);
    let check = |w: &World, when: &str| {
        let mut all: Vec<String> =
            ["q", "dead"].iter().flat_map(|t| shown(w, t)).map(|r| r.1).collect();
        all.sort();
        let mut want: Vec<String> = jobs.iter().map(|j| (*j).to_owned()).collect();
        want.sort();
        assert!(all == want, "{when}: {} are in one of the two, of {}", all.len(), want.len());
    };
    check(&w, "while it is full");
    heal(&w);
    for _ in 0..5 {
        claim(&w);
        w.clock.advance_ms(1_000);
    }
    check(&w, "afterwards");
    assert_eq!(w.seqs("dead").len(), 5);
    w.kill();
    check(&w, "after a kill");
    w.reopen();
    check(&w, "after a close");
}

#[test]
fn i5_the_parts_of_a_transaction_on_a_full_disk_are_all_there_later() {
    for c in [Durability::Disk, Durability::Fsync] {
        let mut w = World::new();
        for t in ["a", "b", "c"] {
            w.create(t, class(c));
            w.put(t, &["0"]);
        }
        w.engine().sync().unwrap();
        no_next_file(&w);
        let big = big();
        let behind = submit(&w, "b", &["s"]);
        let rows: [[NewRecord<'_>; 1]; 3] = [[rec("a1")], [rec(&big)], [rec("c1")]];
        let topics = ["a", "b", "c"];
        let rows: Vec<_> = topics
            .iter()
            .zip(&rows)
            .map(|(topic, records)| TxnRows { topic, records, ..TxnRows::default() })
            .collect();
        let req = TxnRequest { rows: &rows, key: b"k", ..TxnRequest::default() };
        let outcome = w.engine().transact(&req);
        assert!(outcome.is_err(), "{c:?}: {outcome:?}");
        assert_eq!(answers(&[behind]), [Ok(2)]);
        // While a part is missing.
        let direct = submit(&w, "b", &["t"]);
        w.engine().drive();
        w.engine().open_engine().ctx().wal.sync(0).unwrap();
        heal(&w);
        let again = w.engine().transact(&req).unwrap();
        let direct = answers(&[direct])[0];
        let check = |w: &World| {
            for t in &again.topics {
                let found = shown(w, &t.topic);
                assert!(found.iter().any(|r| r.0 == t.first_seq), "{}: {found:?}", t.topic);
            }
            let b = shown(w, "b");
            let n = b.iter().filter(|r| r.1 == big).count();
            assert_eq!((n, b.len()), (1, 3 + usize::from(direct.is_ok())), "{c:?}");
        };
        check(&w);
        w.kill();
        check(&w);
    }
}

#[test]
fn i2_a_live_write_at_a_seq_that_is_taken_closes_the_topic() {
    for c in STORED {
        let mut w = World::new();
        for t in ["t", "u"] {
            w.create(t, class(c));
            w.put(t, &["1", "2"]);
        }
        w.engine().sync().unwrap();
        // What no path of the code may do: seqs that are taken are planned again.
        let topic = w.engine().open_engine().catalog().named("t").unwrap().unwrap();
        topic.append.lock().next_seq = 2;
        let refused = w.try_put("t", &["again"]).and_then(|a| {
            // Class `memory` is acked before its batch is written.
            w.engine().sync()?;
            w.try_put("t", &["later"]).map(|_| a)
        });
        let detail = refused.unwrap_err().to_string();
        assert!(detail.contains("I2") || detail.contains("\"t\""), "{c:?}: {detail}");
        assert!(w.try_put("t", &["3"]).is_err(), "{c:?}: it stays closed");
        assert!(w.engine().read("t", &after(0)).is_err());
        assert_eq!(w.put("u", &["3"]).first_seq, 3, "the others go on");
        w.close();
    }
}

/// The class of a topic with `ephemeral` records changes, and the first batch after it fails: replay
/// meets the frame of its gap first.
#[test]
fn i4_ephemeral_records_before_the_gap_of_a_failed_batch_are_a_gap_too() {
    for end in [World::kill as fn(&mut World), World::power_cut] {
        let mut w = World::new();
        w.create("t", class(Durability::Ephemeral));
        w.put("t", &["1", "2"]);
        w.create("t", class(Durability::Memory));
        no_next_file(&w);
        let big = big();
        let failed = submit(&w, "t", &[&big]);
        w.engine().drive();
        assert_eq!(answers(&[failed]), [Ok(3)]);
        heal(&w);
        w.put("t", &["4"]);
        assert!(w.engine().sync().is_err(), "acked records were lost");
        end(&mut w);
        assert_eq!(shown(&w, "t"), [(4, "4".to_owned())]);
        let gaps = w.engine().state("t", false).unwrap().gaps;
        let lost: Vec<u64> = gaps.iter().flat_map(|g| g.from..=g.to).filter(|s| *s < 4).collect();
        assert_eq!(lost, [1, 2, 3], "{gaps:?}");
    }
}
