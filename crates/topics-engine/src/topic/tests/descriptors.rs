//! A process that has no file descriptor left, for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use topics_env::FdReclaimer as _;
use topics_sim::{CallKind, FaultKind};

use super::space::{kept, tight_options, turns};
use super::*;
use crate::delivery::{Event, Watch, WatchRequest, WatchStart};
use crate::router::RouterRequest;
use crate::txn::{CommitRequest, StageRequest, TxnRows, TxnStage};
use crate::types::config::TopicType;
use crate::types::error::Error;
use crate::types::queue::Claim;

/// Whether a call went through; that there was no descriptor is the only excuse.
fn went<T>(outcome: Result<T>) -> bool {
    match outcome {
        Ok(_) => true,
        Err(e) => {
            assert!(e.is_out_of_descriptors() && e.retryable(), "{e}");
            assert!(e.to_string().contains("raise `ulimit -n` or lower `max_open_files`"), "{e}");
            false
        }
    }
}

fn value(n: u64) -> String {
    format!("{n}.{}", "x".repeat(300))
}

#[test]
fn few_descriptors_are_enough_for_many_segments() {
    let mut w = World::unopened(small());
    w.fs.set_fd_limit(Some(100));
    w.open();
    let names: Vec<String> = (0..150).map(|i| format!("t{i}")).collect();
    let all: BTreeMap<u64, String> = (1..=12).map(|n| (n, value(n))).collect();
    let texts: Vec<&str> = all.values().map(String::as_str).collect();
    for name in &names {
        w.put(name, &texts);
    }
    let mut most = 0;
    let mut look = |w: &World| {
        for name in &names {
            assert_eq!(kept(w, name), all);
            most = most.max(w.fs.open_files());
        }
    };
    for _ in 0..2 {
        w.checkpoint();
        look(&w);
        w.reopen();
        look(&w);
    }
    assert!((25..=50).contains(&most), "{most}");
}

#[test]
fn the_setting_bounds_what_stays_open() {
    for (max_open_files, most) in [(1, 2), (10, 10), (0, 120)] {
        let w = World::with(Options { max_open_files, ..small() });
        let before = w.fs.open_files();
        for i in 0..20 {
            w.put(&format!("t{i}"), &["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"]);
        }
        w.checkpoint();
        (0..20).for_each(|i| assert_eq!(kept(&w, &format!("t{i}")).len(), 11));
        let held = w.fs.open_files() - before;
        // The log has its next file by now.
        assert!((most..=most + 1).contains(&held), "{max_open_files}: {held}");
    }
}

#[test]
fn i1_nothing_stays_off_after_a_shortage() {
    let mut w = World::with(tight_options());
    let mut acked: BTreeMap<u64, String> = BTreeMap::new();
    let mut put = |w: &World, n: u64| {
        let done = w.try_put("t", &[&value(n)]);
        went(done.clone()) && acked.insert(done.unwrap().first_seq, value(n)).is_none()
    };
    (0..300).for_each(|n| assert!(put(&w, n)));
    w.checkpoint();
    let checkpoints = |w: &World| w.engine().metrics().checkpoints;
    let mut n = 300;
    for round in 0..3 {
        let before = checkpoints(&w);
        // The application takes all descriptors, including those that the engine kept open.
        w.fs.set_fd_limit(Some(0));
        let mut refused = 0;
        let mut written = 0;
        while refused < 5 {
            n += 1;
            let done = put(&w, n);
            written += u64::from(done);
            refused += u64::from(!done);
        }
        assert!(
            written > 100,
            "the log in use, and the next, are written to their ends: {written}"
        );
        turns(&w, 50);
        for _ in 0..4 {
            assert!(!went(w.engine().checkpoint()));
        }
        assert!(!went(w.engine().read("t", &after(0))));
        assert_eq!(checkpoints(&w), before);
        w.fs.set_fd_limit(None);
        turns(&w, 10);
        assert!(checkpoints(&w) > before, "round {round}");
        assert!(put(&w, 10_000 + round));
    }
    assert_eq!(kept(&w, "t"), acked);
    w.engine().sync().unwrap();
    w.power_cut();
    assert_eq!(kept(&w, "t"), acked, "I1");
}

#[test]
fn a_round_that_found_none_is_followed_by_another_soon() {
    let options = Options { checkpoint_interval: Duration::from_secs(60), ..small() };
    let w = World::with(options);
    w.put("t", &[&"x".repeat(4000)]);
    w.fs.set_fd_limit(Some(0));
    let failures = || w.engine().metrics().checkpoint_failures;
    while failures() == 0 {
        turns(&w, 1);
    }
    turns(&w, 25);
    assert_eq!(failures(), 6, "one a second");
    w.fs.set_fd_limit(None);
    turns(&w, 6);
    assert_eq!(w.engine().metrics().checkpoints, 1);
    turns(&w, 100);
    assert_eq!(w.engine().metrics().checkpoints, 1);
}

/// Lets the workers run for some seconds. Returns the seqs that a watcher gets meanwhile.
fn work(w: &World, watch: &mut Watch) -> Vec<u64> {
    let mut seen = Vec::new();
    for _ in 0..20 {
        w.clock.advance_ms(200);
        went(w.engine().tick());
        while let Some(event) = watch.try_next().unwrap() {
            match event {
                Event::Records(f) => seen.extend(f.batch().iter().map(|r| r.seq)),
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    }
    seen
}

#[test]
fn live_watchers_and_routers_wait_for_a_descriptor() {
    let w = World::with(small());
    w.create("copy", ConfigPatch::default());
    w.put("t", &["1"]);
    let start = WatchStart { from: ReadFrom::After(0), topic_id: None };
    let request = WatchRequest { topics: vec![("t".into(), start)], ..WatchRequest::default() };
    let mut watch = w.engine().watch(&request).unwrap();
    assert_eq!(work(&w, &mut watch), [1]);
    let (source, dest) = ("t".to_owned(), "copy".to_owned());
    w.engine().create_router("r", &RouterRequest { source, dest, ..Default::default() }).unwrap();
    for round in 0..3_u64 {
        let next = 2 + 2 * round;
        w.put("t", &["two", "more"]);
        // They are in a segment before anybody has read them.
        w.checkpoint();
        w.engine().open_engine().base().segments.reclaim_fds();
        w.fs.set_fd_limit(Some(0));
        assert_eq!(work(&w, &mut watch), [0_u64; 0], "{round}");
        w.fs.set_fd_limit(None);
        assert_eq!(work(&w, &mut watch), [next, next + 1]);
        w.engine().sync().unwrap();
        assert!(work(&w, &mut watch).is_empty());
        assert_eq!(kept(&w, "copy").len() as u64, 2 * (round + 1), "I7");
    }
}

/// What was acked, by topic and seq.
type Acked = BTreeMap<&'static str, BTreeMap<u64, String>>;

const TOPICS: [(&str, Durability); 3] =
    [("safe", Durability::Fsync), ("disk", Durability::Disk), ("late", Durability::Disk)];

fn world() -> (World, Acked) {
    let w = World::with(Options { wal_file_min: 8 << 10, wal_file_max: 8 << 10, ..small() });
    let mut acked = Acked::new();
    for (topic, durability) in &TOPICS[..2] {
        w.create(topic, class(*durability));
        let records: Vec<_> = (0..23).map(value).collect();
        w.put(topic, &records.iter().map(String::as_str).collect::<Vec<_>>());
        acked.insert(topic, (1..).zip(records).collect());
    }
    w.tagged("tags", &["keep", "drop", "keep", "drop", "drop", "drop", "drop"]);
    w.create("q", ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() });
    w.put("q", &["1", "2", "3", "4", "5", "6", "7"]);
    w.engine()
        .consumer("disk", "c", None, crate::types::consumer::ConsumerStart::Start, false)
        .unwrap();
    w.checkpoint();
    (w, acked)
}

fn transaction(w: &World) -> bool {
    let records = [rec("row")];
    let rows = [TxnRows { topic: "out", records: &records, ..TxnRows::default() }];
    let stage = StageRequest { stage: "s", part: 0, rows: &rows };
    let stages = [TxnStage { stage: "s", parts: 1, records: None }];
    let commit = CommitRequest { epoch: 7, stages: &stages, ..CommitRequest::default() };
    went(w.engine().stage("w", &stage)) && went(w.engine().commit("w", &commit))
}

/// A little of everything that opens files. Whether the delete went through.
fn everything(w: &World, acked: &mut Acked) -> bool {
    let mut deleted = false;
    for n in 100..112 {
        for (topic, _) in TOPICS {
            let done = w.try_put(topic, &[&value(n)]);
            if went(done.clone()) {
                acked.entry(topic).or_default().insert(done.unwrap().first_seq, value(n));
            }
        }
        went(w.engine().read("disk", &after(n % 20)));
        match n % 6 {
            0 => _ = went(w.engine().checkpoint()),
            1 => {
                let req = DeleteRequest { before_seq: None, matching: eq("drop") };
                deleted |= went(w.engine().delete("tags", &req));
            }
            2 => _ = transaction(w),
            3 => _ = went(w.engine().claim("q", &Claim { node: b"n", ..Claim::default() })),
            4 => {
                w.clock.advance_ms(6_000);
                went(w.engine().tick());
            }
            _ => _ = went(w.engine().sync()),
        }
    }
    deleted
}

fn check(w: &World, acked: &Acked, deleted: bool, what: &str) {
    for (topic, records) in acked {
        assert_eq!(&kept(w, topic), records, "I1: {topic}, {what}");
    }
    let tags: Vec<_> = kept(w, "tags").into_values().collect();
    assert!(!deleted || tags == ["keep", "keep"], "{tags:?}, {what}");
    assert_eq!(kept(w, "out").into_values().collect::<Vec<_>>(), ["row"], "I5: {what}");
    let report = w.engine().verify().unwrap();
    assert!(report.problems.is_empty(), "{:?}, {what}", report.problems);
    assert_eq!(w.engine().damage_counts(), (0, 0), "{what}");
}

#[test]
fn i1_i5_i9_a_shortage_that_begins_anywhere_leaves_no_trace() {
    for nth in 1.. {
        let (mut w, mut acked) = world();
        let fired = w.fs.faults_fired();
        w.fs.fail_from(CallKind::NEEDS_FD.as_slice(), nth, FaultKind::EMFILE);
        let deleted = everything(&w, &mut acked);
        if w.fs.faults_fired() == fired {
            assert!(nth > 60, "{nth}");
            return;
        }
        w.fs.clear_faults();
        let what = format!("from call {nth} on");
        // No round is put off, no topic closed, no stage lost until the next open.
        w.engine().checkpoint().unwrap_or_else(|e| panic!("{e}, {what}"));
        assert!(transaction(&w), "{what}");
        let deleted = everything(&w, &mut acked) || deleted;
        check(&w, &acked, deleted, &what);
        w.engine().sync().unwrap();
        match nth % 3 {
            0 => w.power_cut(),
            1 => w.kill(),
            _ => w.reopen(),
        }
        check(&w, &acked, deleted, &what);
    }
}

#[test]
fn i1_a_shortage_while_it_opens_or_closes_changes_nothing() {
    for nth in 1.. {
        let (mut w, acked) = world();
        assert!(transaction(&w));
        w.fs.fail_from(CallKind::NEEDS_FD.as_slice(), nth, FaultKind::EMFILE);
        went(w.engine.take().unwrap().close());
        w.fs.clear_faults();
        let fired = w.fs.faults_fired();
        w.fs.fail_from(CallKind::NEEDS_FD.as_slice(), nth, FaultKind::EMFILE);
        let opened = w.try_open();
        let last = w.fs.faults_fired() == fired;
        if let Err(e) = opened {
            assert!(matches!(e, Error::StorageUnavailable { .. }) && e.is_out_of_descriptors());
        }
        w.fs.clear_faults();
        if w.engine.is_none() {
            w.open();
        }
        check(&w, &acked, false, &format!("call {nth}"));
        if last && nth > 10 {
            return;
        }
    }
}
