//! Rounds, limits, fencing. What a restore makes of them is tested in `restore`.

use std::sync::Arc;
use std::time::Duration;

use topics_env::Site;
use topics_sim::{Bucket, Mutant, ObjectFault};

use crate::engine::Engine;
use crate::topic::tests::{World, class, rec, small};
use crate::txn::{CommitRequest, StageRequest, TxnRows, TxnStage};
use crate::types::api::Durability;
use crate::types::options::{Options, RemoteLimits, RemoteOptions};
use crate::types::requests::RemoteState;

/// A world whose engine ships to a bucket.
pub(crate) fn shipping(limits: RemoteLimits) -> (World, Arc<Bucket>) {
    shipping_with(small(), limits)
}

pub(crate) fn shipping_with(options: Options, limits: RemoteLimits) -> (World, Arc<Bucket>) {
    let mut w = World::unopened(options);
    let bucket = Bucket::new(&w.clock);
    bucket.set_mutable(&["HEAD"]);
    let store = Arc::new(bucket.client(1));
    // Without the probe of a new prefix, whose objects are not immutable.
    let limits = RemoteLimits { single_writer: true, ..limits };
    w.options.remote = Some(RemoteOptions { store, limits });
    w.open();
    (w, bucket)
}

fn rounds(bucket: &Bucket) -> usize {
    bucket.objects().keys().filter(|k| k.contains("/r")).count()
}

#[test]
fn a_round_has_what_was_logged_and_idle_makes_no_request() {
    let (w, bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1", "2"]);
    let first = w.engine().ship().unwrap();
    assert_eq!(first.rounds, 1);
    assert!(first.bytes > 0);
    w.put("a", &["3"]);
    let second = w.engine().ship().unwrap();
    assert_eq!(second.rounds, 1);
    assert!(second.bytes < first.bytes, "only what is new: {first:?} {second:?}");
    let before = bucket.requests();
    for _ in 0..60 {
        w.clock.advance_ms(1000);
        assert_eq!(w.engine().ship().unwrap().rounds, 0);
    }
    assert_eq!(bucket.requests(), before);
    assert_eq!(rounds(&bucket), 2);
    assert_eq!(w.engine().ship_status().unwrap().lag_bytes, 0);
    assert_eq!(bucket.violations(), []);
}

/// Commits a transaction whose rows were staged.
fn commit_staged(w: &World, epoch: u64) {
    let records = [rec("staged")];
    let rows = [TxnRows { topic: "a", records: &records, ..TxnRows::default() }];
    let stage = format!("s{epoch}");
    w.engine().stage("writer", &StageRequest { stage: &stage, part: 0, rows: &rows }).unwrap();
    let stages = [TxnStage { stage: &stage, parts: 1, records: None }];
    let commit = CommitRequest { epoch, stages: &stages, ..CommitRequest::default() };
    w.engine().commit("writer", &commit).unwrap();
}

#[test]
fn the_staged_rows_of_a_round_are_one_pack_of_the_size_of_packs() {
    for (pack_bytes, expected) in [(32 << 20, 1), (1, 20)] {
        let (w, bucket) = shipping(RemoteLimits { pack_bytes, ..RemoteLimits::default() });
        w.put("a", &["1"]);
        w.engine().ship().unwrap();
        (1..=20).for_each(|epoch| commit_staged(&w, epoch));
        assert_eq!(w.engine().ship().unwrap().rounds, 1);
        let packs = bucket.objects().keys().filter(|k| k.contains("/p")).count();
        assert_eq!(packs, expected, "packs of {pack_bytes} bytes");
    }
}

#[test]
fn the_lag_is_stated_until_a_base_is_published_and_after_it() {
    let (w, _bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1"]);
    w.clock.advance_ms(5000);
    w.engine().ship().unwrap();
    let status = w.engine().ship_status().unwrap();
    assert!(!status.has_base && status.lag_ms >= 5000, "nothing can be restored yet: {status:?}");
    assert!(w.engine().archive().unwrap().published);
    w.engine().ship().unwrap();
    let status = w.engine().ship_status().unwrap();
    assert!(status.has_base && status.lag_ms == 0, "{status:?}");
    w.put("a", &["2"]);
    w.clock.advance_ms(700);
    let status = w.engine().ship_status().unwrap();
    assert!(status.lag_bytes > 0 && status.lag_ms >= 700, "{status:?}");
    let metrics = w.engine().metrics();
    assert_eq!((metrics.ship_lag_bytes, metrics.ship_chain_broken), (status.lag_bytes, 0));
}

/// Writes until the log has at least one more file, and checkpoints so that it may be trimmed.
fn fill_log(w: &World, n: usize) {
    let data = "x".repeat(8 << 10);
    for i in 0..n {
        w.put("big", &[&data]);
        if i % 16 == 15 {
            w.checkpoint();
        }
    }
}

/// The bytes of the log after more of it was written and checkpointed than the store has got.
fn held(mutant: Option<&'static str>) -> (World, Arc<Bucket>, u64) {
    let (mut w, bucket) = shipping(RemoteLimits::default());
    if let Some(site) = mutant {
        w.hook = Some(Arc::new(Mutant::remove(Site::Check(site), None)));
        w.reopen();
    }
    w.put("a", &["1"]);
    w.engine().ship().unwrap();
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    fill_log(&w, 100);
    let held = w.engine().open_engine().ctx().wal.bytes_on_disk();
    (w, bucket, held)
}

#[test]
fn without_the_check_of_the_hold_the_log_is_trimmed_before_it_is_shipped() {
    let (w, bucket, held) = held(Some("wal.hold"));
    assert!(held < 800 << 10, "the check has no effect: {held}");
    bucket.clear_faults();
    // A round does not go on where files are missing: there is an error, and then a new chain.
    w.engine().ship().unwrap_err();
    w.engine().ship().unwrap();
    assert_eq!(w.engine().metrics().ship_chain_broken, 1);
}

/// Writes a record without a sync, ships, and cuts the power. Returns whether the record is there.
fn survives(mutant: Option<&'static str>) -> bool {
    let (mut w, _bucket) = shipping(RemoteLimits::default());
    if let Some(site) = mutant {
        w.hook = Some(Arc::new(Mutant::remove(Site::Check(site), None)));
        w.reopen();
    }
    w.create("a", class(Durability::Disk));
    w.engine().ship().unwrap();
    w.put("a", &["1"]);
    w.engine().ship().unwrap();
    w.power_cut();
    w.engine().state("a", false).is_ok() && w.seqs("a") == [1]
}

#[test]
fn a_round_has_only_what_the_directory_cannot_lose() {
    assert!(survives(None));
    assert!(!survives(Some("ship.synced")), "the check has no effect");
}

#[test]
fn log_files_stay_until_they_are_shipped() {
    let (w, bucket, held) = held(None);
    assert!(held > 800 << 10, "{held}");
    bucket.clear_faults();
    w.engine().ship().unwrap();
    w.put("a", &["2"]);
    w.checkpoint();
    w.checkpoint();
    let after = w.engine().open_engine().ctx().wal.bytes_on_disk();
    assert!(after < held / 2, "{after} of {held} bytes stay");
}

#[test]
fn a_dead_store_breaks_the_chain_at_the_limit_and_writes_go_on() {
    let limits = RemoteLimits { wal_bytes: 300 << 10, ..RemoteLimits::default() };
    let (w, bucket) = shipping(limits);
    w.put("a", &["1"]);
    w.engine().ship().unwrap();
    w.engine().archive().unwrap();
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    for _ in 0..10 {
        fill_log(&w, 16);
        w.engine().ship().unwrap_err();
        w.engine().tick().unwrap();
    }
    w.checkpoint();
    w.checkpoint();
    assert_eq!(w.engine().metrics().ship_chain_broken, 1);
    let log = w.engine().open_engine().ctx().wal.bytes_on_disk();
    assert!(log < 700 << 10, "the log is trimmed again: {log}");
    assert!(!w.engine().ship_status().unwrap().has_base);
    let remote = || w.engine().metrics().remote.unwrap();
    assert_eq!(remote().state, RemoteState::Broken);
    let reason = remote().reason.unwrap();
    assert!(reason.contains("remote_wal_bytes is 307200. The store: "), "{reason}");

    bucket.clear_faults();
    w.engine().ship().unwrap();
    assert_eq!(remote().state, RemoteState::Broken, "no base has what was given up");
    assert!(w.engine().archive().unwrap().published, "a new base begins by itself");
    assert_eq!((remote().state, remote().reason), (RemoteState::Ok, None));
    assert!(w.engine().ship_status().unwrap().has_base);
    assert_eq!(w.engine().metrics().ship_chain_broken, 1);
}

#[test]
fn a_full_disk_with_a_dead_store_breaks_the_chain_before_a_write_is_refused() {
    let (w, bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1"]);
    w.engine().ship().unwrap();
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    w.fs.set_free_space(Some(6 << 20));
    // Records that are deleted again: without the hold the log takes a few files at most.
    for i in 0..1200u64 {
        let data = "x".repeat(8 << 10);
        let seq = w.put("big", &[&data]).last_seq;
        if i % 16 == 15 {
            w.delete("big", Some(seq + 1), None);
            w.checkpoint();
            w.clock.advance_ms(1000);
            w.engine().tick().unwrap();
        }
    }
    assert_eq!(w.engine().metrics().ship_chain_broken, 1);
}

#[test]
fn a_writer_that_lost_the_prefix_ships_nothing_that_counts_and_says_so() {
    let (w, bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1"]);
    w.engine().ship().unwrap();
    // The same directory, copied, on another machine.
    let mut other = World::unopened(w.options.clone());
    other.fs = Arc::new(topics_sim::SimFs::from_image(&w.fs.kill_image()));
    let store = Arc::new(bucket.client(2));
    let remote = w.options.remote.clone().unwrap();
    other.options.remote = Some(RemoteOptions { store, ..remote });
    other.open();
    other.engine().ship().unwrap();
    w.put("a", &["2"]);
    let e = w.engine().ship().unwrap_err();
    assert!(e.to_string().contains("belongs to"), "{e}");
    assert!(w.engine().ship_status().unwrap().is_fenced);
    // Nothing is held for a writer that ships no more.
    fill_log(&w, 100);
    w.checkpoint();
    w.checkpoint();
    assert!(w.engine().open_engine().ctx().wal.bytes_on_disk() < 700 << 10);
    w.engine().ship().unwrap_err();
    assert_eq!(bucket.violations(), []);
}

/// A store that never answers delays neither writes nor checkpoints nor ticks.
#[test]
fn a_store_that_hangs_delays_nothing() {
    let (mut w, bucket) = shipping(RemoteLimits::default());
    w.close();
    let (hung, hangs) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new((hung, released));
    let gate = move |_, _| {
        let gate = gate.lock().unwrap();
        let _ = gate.0.send(());
        let _ = gate.1.recv();
    };
    let store = Arc::new(bucket.client(3).with_gate(Arc::new(gate)));
    let limits = RemoteLimits { wal_bytes: 100 << 10, ..RemoteLimits::default() };
    w.options.remote = Some(RemoteOptions { store, limits });
    w.open();
    w.put("a", &["1"]);
    let engine: Engine = w.engine().clone();
    let shipping = std::thread::spawn(move || engine.ship());
    hangs.recv_timeout(Duration::from_secs(60)).unwrap();
    // The thread is inside a request now.
    fill_log(&w, 64);
    w.engine().tick().unwrap();
    w.checkpoint();
    assert_eq!(w.seqs("a"), [1]);
    drop(release);
    let _ = shipping.join().unwrap();
}

#[test]
fn without_a_remote_there_is_no_verb_and_no_hold() {
    let w = World::new();
    assert_eq!(w.engine().ship().unwrap_err().code(), "invalid_request");
    assert_eq!(w.engine().ship_status(), None);
    assert!(w.engine().open_engine().shipper.is_none());
}

/// Without rounds, a base ships the log that its snapshot needs, and holds no log file after it.
#[test]
fn bases_without_rounds_hold_no_log_file() {
    let (w, bucket) = shipping(RemoteLimits { interval: Duration::ZERO, ..Default::default() });
    for i in 1..=3 {
        w.put("a", &["1", "2"]);
        assert!(w.engine().archive().unwrap().published);
        assert!(!w.engine().open_engine().ctx().wal.is_held());
        assert_eq!(rounds(&bucket), i);
        assert_eq!(w.engine().ship_status().unwrap().lag_bytes, 0);
    }
}
