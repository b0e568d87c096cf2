//! The conformance probe, and the store in a folder.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use topics_env::objects::{ByteRange, ObjectError, ObjectStore};
use topics_env::{Env, OpenMode};
use topics_remote::probe::{Feature, Finding, probe};
use topics_remote::resolve::{Created, ReadBack, create_resolved, replace_resolved};
use topics_remote::store::folder::FolderStore;
use topics_sim::{CallKind, ObjectOp};
use topics_sim::{CrashOptions, FaultKind, ObjectFault, ServerFlaw, SimClock, SimFs, env_on};

use crate::support::World;

fn missing(world: &World, flaw: Option<ServerFlaw>) -> Vec<Feature> {
    world.bucket.set_flaw(flaw);
    world.bucket.set_mutable(&["HEAD", "probe/"]);
    let report = probe(&world.bucket.client(1), &world.env, 100_000);
    let missing = |(feature, finding): &(Feature, Finding)| match finding {
        Finding::Present => None,
        _ => Some(*feature),
    };
    let out: Vec<Feature> = report.findings.iter().filter_map(missing).collect();
    assert_eq!(report.is_suitable(), out.is_empty());
    out
}

#[test]
fn the_probe_finds_every_flaw_and_none_on_a_good_server() {
    use Feature as F;
    let flaws = [
        (ServerFlaw::CreateReplaces, F::CreateIfAbsent),
        (ServerFlaw::ReplaceIgnoresETag, F::ReplaceIfMatch),
        (ServerFlaw::ReplaceCreates, F::ReplaceIfMatch),
        (ServerFlaw::RacingCreatesWin, F::CreateRaces),
        (ServerFlaw::ConstantETag, F::Replace),
        (ServerFlaw::RangeIgnored, F::Ranges),
        (ServerFlaw::LastBytesIgnored, F::Ranges),
        (ServerFlaw::ReadConditionIgnored, F::ConditionalReads),
        (ServerFlaw::StaleReads, F::Replace),
        (ServerFlaw::SizeLimit(50_000), F::LargeObjects),
        (ServerFlaw::DeleteKeeps, F::Deletes),
        (ServerFlaw::MissingRefused, F::Deletes),
    ];
    let good = World::new(1);
    assert_eq!(missing(&good, None), []);
    assert_eq!(good.bucket.objects().len(), 0, "the probe deletes its objects");
    for (flaw, feature) in flaws {
        let found = missing(&World::new(1), Some(flaw));
        println!("{flaw:?}: {found:?}");
        assert!(found.contains(&feature), "{flaw:?}: {found:?}");
    }
}

#[test]
fn the_probe_names_the_right_that_tells_a_missing_object_from_a_forbidden_one() {
    let world = World::new(1);
    world.bucket.set_flaw(Some(ServerFlaw::MissingRefused));
    world.bucket.set_mutable(&["probe/"]);
    let report = probe(&world.bucket.client(1), &world.env, 0);
    let e = report.require_suitable().unwrap_err().to_string();
    assert!(e.contains("s3:ListBucket"), "{e}");
}

#[test]
fn a_probe_with_a_failed_request_knows_nothing_of_that_feature() {
    let world = World::new(2);
    world.bucket.fail_nth(None, Some(ObjectOp::Create), 1, ObjectFault::Refused);
    let report = probe(&world.bucket.client(1), &world.env, 0);
    assert!(matches!(report.findings[0], (Feature::CreateAndRead, Finding::Unknown(_))));
    assert!(!report.is_suitable() && report.has_conditional_writes());
}

fn env(fs: &Arc<SimFs>, seed: u64) -> Env {
    env_on(fs, &Arc::new(SimClock::new(1000)), seed)
}

fn folder(fs: &Arc<SimFs>, seed: u64) -> FolderStore {
    FolderStore::new(env(fs, seed), "/remote")
}

#[test]
fn a_folder_has_every_feature() {
    let fs = Arc::new(SimFs::new());
    let report = probe(&folder(&fs, 1), &env(&fs, 2), 100_000);
    assert!(report.is_suitable(), "{:?}", report.findings);
}

#[test]
fn a_folder_of_the_real_file_system_has_every_feature() {
    let root = std::env::temp_dir().join(format!("topics-folder-{}", std::process::id()));
    let env = topics_env::real::real_env(topics_env::real::Backend::Posix).unwrap();
    let report = probe(&FolderStore::new(env.clone(), &root), &env, 40 << 20);
    std::fs::remove_dir_all(&root).unwrap();
    assert!(report.is_suitable(), "{:?}", report.findings);
}

#[test]
fn hostile_keys_stay_in_the_folder() {
    let fs = Arc::new(SimFs::new());
    let store = folder(&fs, 1);
    for key in ["", "/etc/x", "a/../../x", ".topics/lock", "a//b", "a/", "a\0b", "\u{e9}", "a/.b"] {
        let e = store.create(key, &Bytes::from_static(b"x")).unwrap_err();
        assert!(matches!(e, ObjectError::Refused { .. }), "{key:?}: {e}");
        assert!(store.get(key, ByteRange::Full, None).is_err(), "{key:?}");
        assert!(store.delete(key).is_err(), "{key:?}");
    }
}

/// A power cut at every call of a create and a replace: an object that was acked is there, every
/// object is whole, and the next writer goes on.
#[test]
fn a_power_cut_leaves_whole_objects_in_a_folder() {
    let fs = Arc::new(SimFs::new());
    let store = folder(&fs, 1);
    let body = |n: u8| Bytes::from(vec![n; 9000]);
    let small = |n: u8| Bytes::from(vec![n; 600]);
    let mut acked = vec![(fs.ops_len(), "", Bytes::new())];
    store.create("p/00/a", &body(1)).unwrap();
    acked.push((fs.ops_len(), "p/00/a", body(1)));
    let etag = store.create("HEAD", &small(2)).unwrap();
    acked.push((fs.ops_len(), "HEAD", small(2)));
    store.replace("HEAD", &small(3), &etag).unwrap();
    acked.push((fs.ops_len(), "HEAD", small(3)));
    let wholes = [body(1), small(2), small(3)];
    let (mut states, mut distinct) = (0, BTreeSet::new());
    for at in acked[0].0..=fs.ops_len() {
        fs.crash_states(at, 7, &CrashOptions::default(), &mut |state| {
            let store = folder(&Arc::new(SimFs::from_image(&state.image)), 3);
            let read = |key: &str| store.get(key, ByteRange::Full, None).ok().map(|o| o.bytes);
            let found = [read("p/00/a"), read("HEAD")];
            for bytes in found.iter().flatten() {
                assert!(wholes.contains(bytes), "at {at}: {} torn bytes", bytes.len());
            }
            let last = acked.iter().rfind(|a| a.0 <= at).unwrap();
            if last.1 == "p/00/a" {
                assert_eq!(found[0].as_ref(), Some(&last.2), "at {at}");
            }
            if last.1 == "HEAD" {
                let is_later = |b: &Bytes| b[0] >= last.2[0];
                assert!(found[1].as_ref().is_some_and(is_later), "at {at}");
                assert_eq!(found[0], Some(body(1)), "at {at}");
            }
            store.create("p/00/b", &body(4)).unwrap();
            distinct.insert(format!("{found:?}").len());
            states += 1;
        });
    }
    println!("{states} power cuts");
    assert!(states > 50, "{states}");
}

#[test]
fn a_replace_whose_sync_fails_is_not_believed_later() {
    let world = World::new(1);
    let fs = Arc::new(SimFs::new());
    let store = folder(&fs, 1);
    let etag = store.create("HEAD", &Bytes::from_static(b"old")).unwrap();
    fs.fail_nth(CallKind::SyncDir, 1, FaultKind::EIO);
    let new = Bytes::from_static(b"new");
    let e = replace_resolved(&store, &world.retry(), "HEAD", &new, &etag, &|_| true).unwrap_err();
    assert!(matches!(e, ObjectError::Ambiguous { .. }), "{e}");
    let e = store.get("HEAD", ByteRange::Full, None).unwrap_err();
    assert!(matches!(e, ObjectError::Refused { .. }), "{e}");
}

/// Every call fails once, in every way: the resolver finds out what became of the object.
#[test]
fn a_failing_call_of_a_folder_is_resolved() {
    let kinds = [
        CallKind::Create,
        CallKind::Open,
        CallKind::Read,
        CallKind::Write,
        CallKind::SyncData,
        CallKind::Rename,
        CallKind::CreateDir,
        CallKind::SyncDir,
        CallKind::Lock,
        CallKind::Stat,
    ];
    let mut fired = 0;
    for kind in kinds {
        for nth in 1..=4 {
            for fault in [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::EMFILE] {
                let world = World::new(1);
                let fs = Arc::new(SimFs::new());
                let store = folder(&fs, 1);
                fs.fail_nth(kind, nth, fault);
                let body = Bytes::from(vec![7; 5000]);
                let valid = |_: &topics_env::objects::ObjectBytes| true;
                let outcome =
                    create_resolved(&store, &world.retry(), "w/1", &body, ReadBack::Full, &valid);
                fired += fs.faults_fired();
                fs.clear_faults();
                assert!(matches!(outcome, Ok(Created::Written(_))), "{kind:?} {nth}: {outcome:?}");
                let found = store.get("w/1", ByteRange::Full, None).unwrap();
                assert_eq!(found.bytes, body);
                let path = std::path::Path::new("/remote/w/1");
                assert!(fs.is_durable(path, 0, 5000), "{kind:?} {nth} {fault:?}");
            }
        }
    }
    println!("{fired} faults");
    assert!(fired > 40);
}

/// A writer that was killed leaves its temporary file. The next process removes it, and none of a writer that lives.
#[test]
fn temporary_files_of_killed_writers_go() {
    let fs = Arc::new(SimFs::new());
    let left = |fs: &Arc<SimFs>| {
        let names = env(fs, 1).fs.list(Path::new("/remote/.topics")).unwrap();
        names.iter().filter(|e| e.name.ends_with(".tmp")).count()
    };
    let body = Bytes::from(vec![1; 9000]);
    folder(&fs, 1).create("a", &body).unwrap();
    assert_eq!(left(&fs), 0);
    // The write stops behind the temporary file; nothing of it is cleaned up.
    fs.fail_nth(CallKind::Rename, 1, FaultKind::EIO);
    fs.fail_nth(CallKind::RemoveFile, 1, FaultKind::EIO);
    folder(&fs, 2).create("b", &body).unwrap_err();
    assert_eq!(left(&fs), 1);
    let living = env(&fs, 3);
    let path = Path::new("/remote/.topics/living.tmp");
    living.fs.open(path, OpenMode::CreateNew).unwrap();
    let lock = living.fs.lock_file(path).unwrap();
    folder(&fs, 4).create("b", &body).unwrap();
    assert_eq!(left(&fs), 1, "that of a writer that lives");
    drop(lock);
    folder(&fs, 5).create("c", &body).unwrap();
    assert_eq!(left(&fs), 0);
}

/// Reading from a folder creates nothing in it, and an open of one makes no call.
#[test]
fn a_folder_is_created_by_the_first_write() {
    let fs = Arc::new(SimFs::new());
    let store = folder(&fs, 1);
    assert!(matches!(store.head("HEAD"), Err(ObjectError::NotFound { .. })));
    assert!(!env(&fs, 1).fs.exists(Path::new("/remote")).unwrap());
    store.create("a/b", &Bytes::from_static(b"x")).unwrap();
    assert_eq!(store.head("a/b").unwrap().len, 1);
    let nowhere = FolderStore::new(env(&fs, 2), "/none/remote");
    let e = nowhere.create("a", &Bytes::from_static(b"x")).unwrap_err();
    assert!(matches!(&e, ObjectError::Refused { detail } if detail.contains("mount it")), "{e}");
}
