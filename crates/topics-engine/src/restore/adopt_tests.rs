//! A new directory goes on with a prefix.

use std::path::Path;
use std::sync::Arc;

use topics_remote::Retry;
use topics_sim::{Bucket, ObjectFault};
use topics_storage::segment::FileKind;

use super::tests::{client, publish, scenario, state};
use super::{RestoreRequest, Restored, restore};
use crate::engine::verify::verify;
use crate::ship::tests::shipping;
use crate::topic::tests::{DIR, World, small};
use crate::types::api::{GapReason, ReadRequest};
use crate::types::config::{ConfigPatch, TopicType};
use crate::types::error::Result;
use crate::types::options::{Options, RemoteLimits};
use crate::types::queue::Claim;

/// A world on a disk of its own that is to go on with the prefix of another one.
fn successor(w: &World, bucket: &Arc<Bucket>, id: u32) -> World {
    let mut out = World::unopened(Options { remote: Some(client(bucket, id)), ..small() });
    out.clock = w.clock.clone();
    out.seed = w.seed + 1000 * u64::from(id);
    out
}

fn adopt(out: &World, bucket: &Arc<Bucket>) -> Result<Restored> {
    let store = Arc::new(bucket.client(7));
    let retry = Retry::once(out.env());
    restore(&out.env(), store, &retry, Path::new(DIR), &RestoreRequest::default())
}

fn adopted(w: &World, bucket: &Arc<Bucket>, id: u32) -> (World, Restored) {
    let mut out = successor(w, bucket, id);
    let done = adopt(&out, bucket).unwrap();
    let report = verify(&out.env(), Path::new(DIR), &mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    out.open();
    (out, done)
}

/// The files of topics with this extension.
fn files(w: &World, kind: FileKind) -> usize {
    let (env, root) = (w.env(), Path::new(DIR).join("topics"));
    let folders = env.fs.list(&root).unwrap_or_default();
    let of = |e: topics_env::DirEntry| env.fs.list(&root.join(e.name)).unwrap_or_default();
    let names = folders.into_iter().flat_map(of);
    names.filter(|e| e.name.ends_with(&format!(".{}", kind.extension()))).count()
}

#[test]
fn a_successor_has_every_shipped_record_and_goes_on_with_the_prefix() {
    let (mut w, bucket) = shipping(RemoteLimits::default());
    scenario(&w).unwrap();
    w.create("q", ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() });
    w.put("q", &["1", "2", "3", "4", "5", "6", "7"]);
    publish(&w);
    let before = state(&w);
    let (mut s, done) = adopted(&w, &bucket, 2);
    assert!(done.skips && done.remote_bytes > 0, "{done:?}");
    // The records of sealed segments are not here, those of a queue are. Indexes are.
    assert_eq!(files(&s, FileKind::Idx), files(&w, FileKind::Idx));
    assert!(files(&s, FileKind::Data) < files(&w, FileKind::Data));
    let claim = Claim { node: b"n", max: 9, ..Claim::default() };
    let asked = bucket.requests();
    assert_eq!(s.engine().claim("q", &claim).unwrap().leases.len(), 7);
    assert_eq!(bucket.requests(), asked, "a claim waited for the store");
    s.power_cut();
    assert_eq!(state(&s).get("a"), before.get("a"));
    // No seq is given twice, and the hole is declared.
    let next = s.put("a", &["mine"]).last_seq;
    assert!(next > 1 << 32);
    let gaps = s.state("a").gaps;
    assert!(gaps.iter().any(|g| g.reason == GapReason::Crash && g.to == next - 1), "{gaps:?}");
    publish(&s);
    assert_eq!(bucket.violations(), []);
    // The directory before it is refused, and keeps what it has.
    w.put("a", &["too late"]);
    let e = w.engine().ship().unwrap_err();
    assert!(e.to_string().contains("process"), "{e}");
    w.kill();
    w.reopen();
    let e = w.engine().archive().unwrap_err();
    assert!(e.to_string().contains("has written to the prefix since"), "{e}");
    assert!(w.engine().read("a", &ReadRequest::default()).unwrap().iter().count() > 0);
    // The successor of the successor.
    let before = state(&s);
    s.close();
    let (t, done) = adopted(&s, &bucket, 3);
    assert!(!done.skips, "nothing lies beyond a close: {done:?}");
    assert_eq!(state(&t), before);
    assert_eq!(bucket.violations(), []);
}

#[test]
fn an_earlier_state_is_restored_as_a_copy_only() {
    let (w, bucket) = shipping(RemoteLimits::default());
    scenario(&w).unwrap();
    let out = successor(&w, &bucket, 2);
    let request = RestoreRequest { copy: false, at_ms: Some(w.clock_wall()) };
    let (store, retry) = (Arc::new(bucket.client(7)), Retry::once(out.env()));
    let e = restore(&out.env(), store, &retry, Path::new(DIR), &request).unwrap_err();
    assert!(e.to_string().contains("--copy"), "{e}");
    w.put("a", &["the owner goes on"]);
    publish(&w);
}

/// Each request of an adoption fails, or loses its answer: another attempt, in a new directory, has it all, and
/// so has the directory of the attempt that said it succeeded.
#[test]
fn a_fault_at_any_request_of_an_adoption_is_an_error_or_no_matter() {
    let (mut nth, mut failed) = (0, 0);
    loop {
        nth += 1;
        let mut fired = false;
        for fault in ObjectFault::ALL {
            let (w, bucket) = shipping(RemoteLimits::default());
            scenario(&w).unwrap();
            let before = state(&w);
            bucket.fail_nth(None, None, nth, fault);
            let mut first = successor(&w, &bucket, 2);
            let done = adopt(&first, &bucket);
            fired |= bucket.faults_fired() > 0;
            bucket.clear_faults();
            bucket.deliver_delayed();
            let mut owner = match done {
                Ok(_) => {
                    first.open();
                    first
                }
                Err(e) => {
                    failed += 1;
                    // Without `meta` it is empty, and an open makes a new one.
                    let has_begun = first.env().fs.exists(&Path::new(DIR).join("meta")).unwrap();
                    let opens = has_begun && first.try_open().is_ok();
                    assert!(!opens, "{fault:?} at {nth}: {e}: half a directory");
                    adopted(&w, &bucket, 3).0
                }
            };
            assert_eq!(state(&owner), before, "{fault:?} at {nth}");
            owner.put("b", &["more"]);
            publish(&owner);
            owner.close();
            assert_eq!(bucket.violations(), [], "{fault:?} at {nth}");
        }
        if !fired {
            break;
        }
    }
    println!("{nth} requests, {failed} attempts failed");
    assert!(failed > 5);
}
