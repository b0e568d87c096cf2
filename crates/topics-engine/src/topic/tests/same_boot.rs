//! After a kill the tail of a `disk` topic is trusted only where it is proven.

use topics_sim::{CallFilter, CallKind, FaultKind, PageFate};

use super::*;

const CRASH: &str = "crash";

/// A `disk` topic with two synced and three acked records.
fn acked() -> World {
    let w = World::new();
    w.create("t", class(Durability::Disk));
    w.put("t", &["a", "b"]);
    w.engine().sync().unwrap();
    w.put("t", &["c", "d", "e"]);
    w
}

/// The gaps that readers get, by first seq.
fn reported(w: &World) -> Vec<(u64, &'static str)> {
    w.scan("t", 0).1.into_iter().map(|(from, _, reason)| (from, reason)).collect()
}

#[test]
fn i2_i4_what_a_failed_write_back_took_after_a_kill_is_a_gap() {
    let mut w = acked();
    assert!(w.kill_with_failed_write_back());
    assert_eq!(w.scan("t", 0).0, [1, 2]);
    let next = w.put("t", &["f"]).first_seq;
    assert!(next > 5, "I2: seq {next} is given again");
    assert_eq!(reported(&w), [(3, CRASH)], "I4");
    // The error is reported once, and what it meant stays decided.
    for end in [World::kill, World::reopen, World::kill] {
        end(&mut w);
        assert_eq!((w.scan("t", 0).0, reported(&w)), (vec![1, 2, next], vec![(3, CRASH)]));
    }
}

#[test]
fn a_kill_alone_makes_no_gap() {
    let mut w = acked();
    for _ in 0..3 {
        w.kill();
        assert_eq!((w.scan("t", 0).0, reported(&w)), (vec![1, 2, 3, 4, 5], vec![]));
    }
    assert_eq!(w.put("t", &["f"]).first_seq, 6);
}

#[test]
fn a_tail_without_its_proof_is_not_trusted() {
    let health = "/data/wal/shard-00/HEALTH";
    let whole = acked().fs.kill_image();
    let mut damaged = whole.clone();
    assert!(damaged.put(health, &whole.read(health).unwrap()[1..]));
    let mut missing = whole;
    assert!(missing.remove(health));
    // Nor where it could not be written when the engine began: it runs all the same.
    let mut unwritten = World::unopened(small());
    let calls = CallFilter::on_path(CallKind::Create, "HEALTH");
    unwritten.fs.fail_from(calls, 1, FaultKind::ENOSPC);
    unwritten.open();
    unwritten.create("t", class(Durability::Disk));
    unwritten.put("t", &["a", "b", "c", "d", "e"]);
    for image in [damaged, missing, unwritten.fs.kill_image()] {
        let mut w = World::unopened(small());
        w.fs = Arc::new(SimFs::from_image(&image));
        w.open();
        assert_eq!((w.scan("t", 0).0, reported(&w)), (vec![1, 2, 3, 4, 5], vec![(6, CRASH)]));
    }
}

#[test]
fn a_reader_that_changes_nothing_leaves_the_error_to_the_next_open() {
    let mut w = acked();
    w.engine = None;
    w.fs = Arc::new(SimFs::from_image(&w.fs.failed_write_back_image(0).unwrap()));
    let calls = w.fs.ops_len();
    let reader = Engine::open_read_only(w.env(), Path::new(DIR), w.options.clone()).unwrap();
    let state = reader.state("t", false).unwrap();
    drop(reader);
    assert_eq!(w.fs.ops_len(), calls);
    w.open();
    assert_eq!(w.engine().state("t", false).unwrap().gaps, state.gaps, "a hole is seen by both");
    assert!(w.put("t", &["f"]).first_seq > 5 && reported(&w) == [(3, CRASH)]);
}

/// If a later open did not make the gap again, a reader that has passed it would miss the records that
/// get its seqs.
#[test]
fn i4_a_reader_that_changes_nothing_makes_no_gap_of_a_kill() {
    let mut w = acked();
    w.engine = None;
    w.fs = Arc::new(SimFs::from_image(&w.fs.kill_image()));
    let reader = Engine::open_read_only(w.env(), Path::new(DIR), w.options.clone()).unwrap();
    let state = reader.state("t", false).unwrap();
    assert_eq!((state.head_seq, state.gaps.len()), (5, 0));
}

#[test]
fn i2_a_failed_sync_is_known_to_the_next_open_though_nothing_can_be_written_any_more() {
    for kinds in [&[][..], &[CallKind::Create], &[CallKind::Create, CallKind::Write]] {
        let mut w = acked();
        let reverted = FaultKind::SyncFails { then: PageFate::Reverted };
        w.fs.fail_nth(CallKind::SyncData, 1, reverted);
        for kind in kinds {
            w.fs.fail_from(*kind, 1, FaultKind::EIO);
        }
        assert!(w.engine().sync().is_err());
        w.kill();
        assert_eq!(w.scan("t", 0).0, [1, 2], "{kinds:?}");
        assert!(w.put("t", &["f"]).first_seq > 5, "I2: {kinds:?}");
        assert_eq!(reported(&w), [(3, CRASH)], "I4: {kinds:?}");
    }
}

#[test]
fn i4_an_open_that_is_killed_after_it_learned_of_the_error_hands_it_on() {
    let (mut first, mut n) = (acked(), 0);
    first.engine = None;
    let image = first.fs.failed_write_back_image(0).unwrap();
    loop {
        let mut w = World::unopened(small());
        w.fs = Arc::new(SimFs::from_image(&image));
        // From one call on all fail: the process is as good as dead.
        w.fs.fail_from(CallKind::ALL.as_slice(), n + 1, FaultKind::EIO);
        let opened = w.try_open().is_ok();
        w.kill();
        let seqs = w.scan("t", 0).0;
        let next = w.put("t", &["f"]).first_seq;
        assert!(
            next > 5 && reported(&w).first() == Some(&(3, CRASH)),
            "{n} calls: {seqs:?} {next}"
        );
        if opened {
            break;
        }
        n += 1;
    }
    assert!(n > 20, "{n} calls");
}
