//! Backups into a prefix of their own.

use std::path::Path;
use std::sync::Arc;

use topics_env::objects::ObjectStore;
use topics_remote::Retry;
use topics_remote::inspect::{self, VerifyDepth};
use topics_sim::{Bucket, ObjectFault};

use crate::engine::backup::BackupSummary;
use crate::restore::tests::{client, state};
use crate::restore::{RestoreRequest, restore};
use crate::topic::tests::{DIR, World, eq, rec, small};
use crate::txn::{CommitRequest, StageRequest, TxnRows, TxnStage};
use crate::types::config::{ConfigPatch, TopicType};
use crate::types::error::Result;
use crate::types::options::{Options, RemoteLimits};

/// A directory with sealed and active segments, deletes, a queue, and a transaction that is decided and not
/// published when it is killed.
fn filled(w: &World) {
    for i in 0..23 {
        w.tagged("a", &[["red", "blue"][i % 2]]);
    }
    w.create("q", ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() });
    w.put("q", &["1", "2", "3", "4", "5", "6", "7"]);
    w.checkpoint();
    w.delete("a", Some(3), None);
    w.delete("a", Some(12), eq("red"));
    w.checkpoint();
    let records = [rec("row")];
    let rows = [TxnRows { topic: "out", records: &records, ..TxnRows::default() }];
    w.engine().stage("w", &StageRequest { stage: "s", part: 0, rows: &rows }).unwrap();
    let stages = [TxnStage { stage: "s", parts: 1, records: None }];
    let commit = CommitRequest { epoch: 7, stages: &stages, ..CommitRequest::default() };
    w.engine().commit("w", &commit).unwrap();
    w.put("b", &["in the log only"]);
}

fn backup(w: &World, bucket: &Arc<Bucket>, client: u32) -> Result<BackupSummary> {
    let store: Arc<dyn ObjectStore> = Arc::new(bucket.client(client));
    w.engine().backup_to(&store, &Retry::once(w.env()))
}

fn new_bucket(w: &World) -> Arc<Bucket> {
    let bucket = Bucket::new(&w.clock);
    bucket.set_mutable(&["HEAD"]);
    bucket
}

/// A directory of its own, restored from a backup: a copy, or one that goes on with the prefix.
fn restored(w: &World, bucket: &Arc<Bucket>, copy: bool) -> World {
    let remote = (!copy).then(|| client(bucket, 8));
    let mut out = World::unopened(Options { remote, ..small() });
    (out.clock, out.seed) = (w.clock.clone(), w.seed + 1000);
    let request = RestoreRequest { copy, at_ms: None };
    let (store, retry) = (Arc::new(bucket.client(7)), Retry::once(out.env()));
    let done = restore(&out.env(), store, &retry, Path::new(DIR), &request).unwrap();
    assert!(done.skips, "the source goes on: {done:?}");
    out.open();
    out
}

fn verified(w: &World, bucket: &Arc<Bucket>) {
    let (store, retry) = (bucket.client(9), Retry::once(w.env()));
    let report = inspect::verify(&store, &retry, VerifyDepth::Data, &mut |_, _| ());
    let report = report.unwrap().unwrap();
    assert_eq!(report.problems, []);
}

#[test]
fn a_backup_is_restored_and_adopted_while_its_source_goes_on() {
    let w = World::new();
    filled(&w);
    let bucket = new_bucket(&w);
    let before = state(&w);
    let made = backup(&w, &bucket, 1).unwrap();
    assert_eq!(made.copied as usize, bucket.objects().len() - 1, "all but HEAD: {made:?}");
    verified(&w, &bucket);
    let lost = w.put("a", &["after the backup"]).last_seq;
    for copy in [true, false] {
        let r = restored(&w, &bucket, copy);
        assert_eq!(state(&r), before, "copy {copy}");
        assert!(r.put("a", &["mine"]).last_seq > lost, "no seq is given twice");
    }
    assert_eq!(bucket.violations(), []);
    // The prefix has an owner now, or had one: another backup needs another prefix.
    let e = backup(&w, &bucket, 2).unwrap_err();
    assert!(e.to_string().contains("set another prefix"), "{e}");
}

#[test]
fn a_backup_of_a_directory_with_cold_segments_has_their_records() {
    let limits = RemoteLimits { pack_bytes: 400, hot_segments: 1, ..RemoteLimits::default() };
    let (w, own) = World::over_bucket(limits);
    filled(&w);
    for _ in 0..3 {
        w.engine().archive().unwrap();
        w.checkpoint();
    }
    let bucket = new_bucket(&w);
    let made = backup(&w, &bucket, 1).unwrap();
    assert!(made.fetched > 0, "{made:?}");
    let before = state(&w);
    for key in own.objects().into_keys() {
        own.tamper(&key, None);
    }
    assert_eq!(state(&restored(&w, &bucket, true)), before);
}

/// Each request fails, loses its answer, or has wrong bytes: the backup is an error and nothing can be read from
/// its prefix, or it is whole.
#[test]
fn a_fault_at_any_request_of_a_backup_leaves_all_of_it_or_nothing() {
    let (mut nth, mut failed, mut whole) = (0, 0, 0);
    loop {
        nth += 1;
        let mut fired = false;
        for fault in ObjectFault::ALL {
            let w = World::new();
            filled(&w);
            let (bucket, before) = (new_bucket(&w), state(&w));
            bucket.fail_nth(None, None, nth, fault);
            let made = backup(&w, &bucket, 1);
            fired |= bucket.faults_fired() > 0;
            bucket.clear_faults();
            bucket.deliver_delayed();
            let out = World::unopened(small());
            let request = RestoreRequest { copy: true, at_ms: None };
            let (store, retry) = (Arc::new(bucket.client(7)), Retry::once(out.env()));
            let found = restore(&out.env(), store, &retry, Path::new(DIR), &request);
            match (made, found) {
                (Ok(_), found) => {
                    found.unwrap();
                    whole += 1;
                }
                // The last answer was lost.
                (Err(_), Ok(_)) => {}
                (Err(_), Err(e)) => {
                    assert!(e.to_string().contains("no state to read"), "{fault:?} at {nth}: {e}");
                    failed += 1;
                    continue;
                }
            }
            assert_eq!(state(&restored(&w, &bucket, true)), before, "{fault:?} at {nth}");
            assert_eq!(bucket.violations(), []);
        }
        if !fired {
            break;
        }
    }
    println!("{nth} requests: {failed} failed, {whole} whole");
    assert!(failed > 5 && whole > 5);
}
