//! Sweeps over a simulated disk and a simulated object store: with faults at each request, crashes, and a
//! second engine while the first one is stalled.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use topics_env::Site;
use topics_env::sync::Mutex;
use topics_remote::Retry;
use topics_remote::format::keys::{self, HEAD};
use topics_remote::format::pin::Pin;
use topics_remote::format::sealed::ObjectRef;
use topics_remote::read;
use topics_sim::{Bucket, DiskImage, Mutant, ObjectFault, ObjectOp, SimClock, SimFs};

use super::Swept;
use super::tests::{ENDS, archiving, assert_archived, catalog, fill, filled, remote};
use crate::topic::tests::{World, small};

/// The restore window and the grace, and a little more.
const KEPT_MS: u64 = 2 * 86_400_000 + 60_000;

fn keys_of(bucket: &Arc<Bucket>) -> BTreeSet<String> {
    bucket.objects().into_keys().collect()
}

/// The objects that the published catalog names, and its own.
fn named(w: &World, bucket: &Arc<Bucket>) -> BTreeSet<String> {
    let found = catalog(w, bucket).unwrap();
    let own = keys::catalog(found.header.epoch, found.header.number);
    super::sweep::named_by(&found).chain([own]).collect()
}

/// Deletes most records of what `filled` wrote and archives the state after that. The packs of the state
/// before are condemned, and no kept snapshot names them.
fn condemn(w: &World) {
    w.delete("a", Some(28), None);
    w.delete("b", Some(17), None);
    for _ in 0..3 {
        fill(w, "c", 5);
    }
    let _ = w.engine().archive();
    for _ in 0..2 {
        fill(w, "d", 1);
    }
}

/// Everything that the published catalog names is there and is read.
fn assert_named_exist(w: &World, bucket: &Arc<Bucket>) {
    let there = keys_of(bucket);
    let missing: Vec<_> = named(w, bucket).difference(&there).cloned().collect();
    assert!(missing.is_empty(), "missing: {missing:?}\n{:#?}", bucket.log());
    assert_eq!(bucket.violations(), []);
}

/// After two sweeps, each when all that was condemned is due, nothing is left but what is named.
fn assert_no_leak(w: &World, bucket: &Arc<Bucket>) {
    for _ in 0..2 {
        w.engine().archive().unwrap();
        fill(w, "d", 1);
        fill(w, "d", 1);
        w.clock.advance_ms(KEPT_MS);
        w.engine().sweep_remote().unwrap();
    }
    assert_named_exist(w, bucket);
    let mut wanted = named(w, bucket);
    wanted.insert(HEAD.to_owned());
    let there = keys_of(bucket);
    let left: Vec<_> = there.difference(&wanted).collect();
    assert!(left.is_empty(), "left: {left:?}\n{:#?}", bucket.log());
}

fn mutated(w: &mut World, site: &'static str) -> Arc<Mutant> {
    let mutant = Arc::new(Mutant::remove(Site::Check(site), None));
    w.hook = Some(mutant.clone());
    mutant
}

/// A world with archived and condemned objects, and the keys of these.
fn condemned(mutant: Option<&'static str>) -> (World, Arc<Bucket>, BTreeSet<String>) {
    let (mut w, bucket) = archiving();
    if let Some(site) = mutant {
        mutated(&mut w, site);
        w.reopen();
    }
    filled(&w);
    w.engine().archive().unwrap();
    let before = named(&w, &bucket);
    condemn(&w);
    let gone = before.difference(&named(&w, &bucket)).cloned().collect::<BTreeSet<_>>();
    assert!(gone.iter().any(|k| k.starts_with(keys::PACKS)), "{gone:?}");
    assert!(gone.iter().any(|k| k.starts_with(keys::CATALOGS)), "{gone:?}");
    (w, bucket, gone)
}

#[test]
fn what_no_catalog_names_is_deleted_after_the_window_and_the_grace() {
    let (mut w, bucket, gone) = condemned(None);
    for hours in [0, 24, 23] {
        w.clock.advance_ms(hours * 3_600_000);
        assert_eq!(w.engine().sweep_remote().unwrap().condemned, 0, "after {hours} h more");
        assert!(keys_of(&bucket).is_superset(&gone));
    }
    w.clock.advance_ms(3_600_000 + 60_000);
    let swept = w.engine().sweep_remote().unwrap();
    assert_eq!(swept.condemned, gone.len() as u64, "{swept:?}");
    assert!(keys_of(&bucket).is_disjoint(&gone));
    assert_named_exist(&w, &bucket);
    for end in [World::reopen, World::kill, World::power_cut] {
        end(&mut w);
        w.engine().archive().unwrap();
        assert_named_exist(&w, &bucket);
    }
    assert_no_leak(&w, &bucket);
}

#[test]
fn without_the_check_of_the_time_a_condemned_object_goes_early() {
    let (w, bucket, gone) = condemned(Some("sweep.age"));
    w.engine().sweep_remote().unwrap();
    assert!(!keys_of(&bucket).is_superset(&gone), "the check has no effect");
}

#[test]
fn a_restart_does_not_restart_the_time_of_what_was_condemned() {
    let (mut w, bucket, gone) = condemned(None);
    w.clock.advance_ms(KEPT_MS / 2);
    w.reopen();
    fill(&w, "c", 10);
    w.engine().archive().unwrap();
    w.clock.advance_ms(KEPT_MS / 2 + 60_000);
    w.kill();
    w.engine().sweep_remote().unwrap();
    assert!(keys_of(&bucket).is_disjoint(&gone), "{:?}", keys_of(&bucket).intersection(&gone));
}

#[test]
fn a_pack_that_a_kept_snapshot_names_stays() {
    let (w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    let before = named(&w, &bucket);
    w.delete("a", Some(28), None);
    w.delete("b", Some(17), None);
    for _ in 0..3 {
        fill(&w, "c", 5);
    }
    w.engine().archive().unwrap();
    // Its two snapshots are of the time before the catalog.
    w.clock.advance_ms(KEPT_MS);
    w.engine().sweep_remote().unwrap();
    let packs: BTreeSet<_> = before.into_iter().filter(|k| k.starts_with(keys::PACKS)).collect();
    assert!(keys_of(&bucket).is_superset(&packs));
    assert_no_leak(&w, &bucket);
}

#[test]
fn what_a_pin_names_stays_until_its_time() {
    let (w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    let before = named(&w, &bucket);
    let store = bucket.client(9);
    let (head, _) = read::head(&store, &Retry::once(w.env())).unwrap().unwrap();
    let until_ms = w.clock_wall() + KEPT_MS + KEPT_MS / 2;
    let pin = Pin { catalog: head.catalog.unwrap(), until_ms };
    bucket.tamper("pins/reader", Some(pin.encode()));
    condemn(&w);
    w.clock.advance_ms(KEPT_MS);
    w.engine().sweep_remote().unwrap();
    assert!(keys_of(&bucket).is_superset(&before));
    w.clock.advance_ms(KEPT_MS);
    bucket.tamper("pins/other", Some("?".into()));
    w.engine().sweep_remote().expect_err("what is not a pin may be a newer one");
    bucket.tamper("pins/other", None);
    let catalog = ObjectRef { key: keys::catalog(1, 99), len: 1, hash: 1 };
    let over = Pin { catalog, until_ms: 5 };
    bucket.tamper("pins/other", Some(over.encode()));
    w.engine().sweep_remote().unwrap();
    assert!(!keys_of(&bucket).is_superset(&before));
    bucket.tamper("pins/reader", None);
    bucket.tamper("pins/other", None);
    assert_no_leak(&w, &bucket);
}

/// Leaves a pack, a bitmap and a catalog that nothing names.
fn orphans(w: &World, bucket: &Arc<Bucket>) {
    for (op, nth) in [(ObjectOp::Get, 2), (ObjectOp::Replace, 1), (ObjectOp::Replace, 2)] {
        bucket.fail_nth(None, Some(op), nth, ObjectFault::Refused);
        let _ = w.engine().archive();
        bucket.clear_faults();
        w.delete("b", Some(18), None);
    }
}

#[test]
fn orphans_are_deleted_by_number_and_only_when_they_are_old() {
    let (w, bucket) = archiving();
    filled(&w);
    orphans(&w, &bucket);
    w.engine().archive().unwrap();
    let mut kept = named(&w, &bucket);
    kept.insert(HEAD.to_owned());
    let lost: BTreeSet<String> = keys_of(&bucket).difference(&kept).cloned().collect();
    assert!(lost.len() >= 2, "{lost:?}");
    let swept = w.engine().sweep_remote().unwrap();
    assert_eq!((swept.orphans, swept.left), (0, lost.len() as u64), "they are young");
    w.clock.advance_ms(KEPT_MS);
    let swept = w.engine().sweep_remote().unwrap();
    assert_eq!((swept.orphans, swept.left), (lost.len() as u64, 0));
    assert_eq!(keys_of(&bucket), kept);
    assert_no_leak(&w, &bucket);
}

#[test]
fn without_the_check_of_the_number_named_objects_are_deleted() {
    let (w, bucket, _) = condemned(Some("sweep.number"));
    w.clock.advance_ms(KEPT_MS);
    let wanted = named(&w, &bucket);
    let _ = w.engine().sweep_remote();
    let gone = wanted.difference(&keys_of(&bucket)).count();
    assert!(gone > 0, "the check has no effect");
}

#[test]
fn without_the_check_of_the_age_young_orphans_are_deleted() {
    let (mut w, bucket) = archiving();
    mutated(&mut w, "sweep.orphan-age");
    w.reopen();
    filled(&w);
    orphans(&w, &bucket);
    w.engine().archive().unwrap();
    assert!(w.engine().sweep_remote().unwrap().orphans > 0, "the check has no effect");
}

/// A listing that lacks objects, or has deleted ones, decides nothing.
#[test]
fn a_listing_with_holes_deletes_nothing_that_is_named() {
    for fault in [ObjectFault::Truncated, ObjectFault::Wrong] {
        let (w, bucket, _) = condemned(None);
        w.clock.advance_ms(KEPT_MS);
        bucket.fail_all(None, Some(ObjectOp::List), fault);
        w.engine().sweep_remote().unwrap();
        bucket.clear_faults();
        assert_no_leak(&w, &bucket);
    }
}

/// A prefix whose HEAD was deleted by hand belongs to the next directory. The objects of the one before
/// stay.
fn begun_anew(mutant: Option<&'static str>) -> (World, Arc<Bucket>, BTreeSet<String>) {
    let (other, bucket) = archiving();
    filled(&other);
    other.engine().archive().unwrap();
    let foreign = named(&other, &bucket);
    let mut w = World::unopened(small());
    w.clock = other.clock.clone();
    w.seed = 500;
    w.options.remote = Some(remote(bucket.client(2)));
    if let Some(site) = mutant {
        mutated(&mut w, site);
    }
    w.open();
    w.engine().archive().unwrap_err();
    bucket.tamper(HEAD, None);
    w.clock.advance_ms(60_000);
    w.engine().archive().unwrap();
    // Its first epoch, in which it wrote nothing, is one of the other directory too.
    w.reopen();
    fill(&w, "x", 20);
    w.engine().archive().unwrap();
    fill(&other, "a", 20);
    let e = other.engine().archive().unwrap_err().to_string();
    assert!(e.contains("prefix now belongs to"), "{e}");
    w.clock.advance_ms(KEPT_MS);
    let swept = w.engine().sweep_remote().unwrap();
    println!("{swept:?}");
    (w, bucket, foreign)
}

#[test]
fn objects_of_another_directory_stay() {
    let (w, bucket, foreign) = begun_anew(None);
    assert!(keys_of(&bucket).is_superset(&foreign));
    assert!(named(&w, &bucket).is_subset(&keys_of(&bucket)));
    let (_, bucket, foreign) = begun_anew(Some("sweep.own"));
    assert!(!keys_of(&bucket).is_superset(&foreign), "the check has no effect");
}

#[test]
fn a_directory_whose_packs_are_elsewhere_is_refused() {
    let (mut w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    let elsewhere = Bucket::new(&w.clock);
    elsewhere.set_mutable(&[HEAD]);
    w.options.remote = Some(remote(elsewhere.client(1)));
    w.reopen();
    let e = w.engine().archive().unwrap_err().to_string();
    assert!(e.contains("is it another bucket, or a folder that is not mounted?"), "{e}");
    w.options.remote = Some(remote(bucket.client(1)));
    w.reopen();
    w.engine().archive().unwrap();
    assert_archived(&w, &bucket);
}

/// From the first archived state on: what is condemned, orphans, the sweep.
fn life(w: &World) {
    w.delete("a", Some(28), None);
    w.delete("b", Some(9), None);
    for _ in 0..2 {
        fill(w, "c", 5);
    }
    let _ = w.engine().archive();
    fill(w, "d", 1);
    w.delete("b", Some(12), None);
    fill(w, "d", 1);
    w.clock.advance_ms(KEPT_MS);
    let _ = w.engine().archive();
    let _ = w.engine().sweep_remote();
}

fn requests_of_a_life() -> u64 {
    let (w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    let before = bucket.requests();
    life(&w);
    let swept = w.engine().sweep_remote().unwrap();
    assert_eq!(swept.left, 0);
    bucket.requests() - before
}

/// One in five requests at the quick gate, else every one.
fn step() -> usize {
    match std::env::var("TOPICS_GATE").as_deref() {
        Ok("full" | "explore" | "release") => 1,
        _ => 5,
    }
}

/// After any fault at any request nothing that is named is missing, and two sweeps leave nothing else.
#[test]
fn a_fault_at_any_request_loses_nothing_and_leaks_nothing() {
    let requests = requests_of_a_life();
    assert!(requests >= 20, "{requests}");
    let mut runs = 0;
    for nth in (1..=requests as usize).step_by(step()) {
        for (i, fault) in ObjectFault::ALL.into_iter().enumerate() {
            let (mut w, bucket) = archiving();
            filled(&w);
            w.engine().archive().unwrap();
            bucket.fail_nth(None, None, nth, fault);
            life(&w);
            bucket.clear_faults();
            assert_named_exist(&w, &bucket);
            ENDS[(nth + i) % ENDS.len()](&mut w);
            bucket.deliver_delayed();
            w.engine().archive().unwrap();
            assert_archived_but_lists(&w, &bucket);
            assert_no_leak(&w, &bucket);
            runs += 1;
        }
    }
    println!("{runs} runs over {requests} requests");
}

/// `assert_archived`, without its rule that nothing is listed.
fn assert_archived_but_lists(w: &World, bucket: &Arc<Bucket>) {
    assert_named_exist(w, bucket);
    let (store, retry) = (bucket.client(9), Retry::once(w.env()));
    for pack in &catalog(w, bucket).unwrap().packs {
        read::pack(&store, &retry, &pack.object()).unwrap();
    }
}

/// The process ends before each request, with the answer of the one before or without it.
#[test]
fn a_crash_before_any_request_loses_nothing_and_leaks_nothing() {
    for nth in (1..=requests_of_a_life()).step_by(step()) {
        for (lost, end) in [(false, ENDS[1]), (true, ENDS[2])] {
            let (mut w, bucket) = archiving();
            filled(&w);
            w.engine().archive().unwrap();
            w.close();
            let (count, b) = (AtomicU64::new(0), bucket.clone());
            let gate = move |_, _| {
                let n = count.fetch_add(1, Ordering::Relaxed) + 1;
                if n >= nth {
                    b.fail_all(Some(1), None, ObjectFault::Unavailable);
                } else if lost && n + 1 == nth {
                    b.fail_nth(Some(1), None, 1, ObjectFault::AnswerLost);
                }
            };
            w.options.remote = Some(remote(bucket.client(1).with_gate(Arc::new(gate))));
            w.open();
            life(&w);
            bucket.clear_faults();
            w.options.remote = Some(remote(bucket.client(1)));
            end(&mut w);
            w.engine().archive().unwrap();
            assert_archived_but_lists(&w, &bucket);
            assert_no_leak(&w, &bucket);
        }
    }
}

/// What another engine with a copy of the directory does while this one is stalled. An old copy is refused.
fn second_life(image: &DiskImage, is_old: bool, clock: &Arc<SimClock>, bucket: &Arc<Bucket>) {
    let mut w = World::unopened(small());
    w.fs = Arc::new(SimFs::from_image(image));
    w.clock = clock.clone();
    w.seed = 1000;
    w.options.remote = Some(remote(bucket.client(2)));
    w.open();
    fill(&w, "a", 10);
    if is_old {
        let e = w.engine().archive().unwrap_err().to_string();
        assert!(e.contains("an older state of one"), "{e}");
    } else {
        w.engine().archive().unwrap();
        w.engine().sweep_remote().unwrap();
        assert_named_exist(&w, bucket);
    }
    w.close();
}

/// The requests of a sweep, and its outcome, with a second engine before the `nth` of them. Its copy of the
/// directory is `image`, or one of that moment.
fn interrupted(
    nth: usize,
    mutant: Option<&'static str>,
    image: impl FnOnce(&World) -> Option<DiskImage>,
    steps: impl FnOnce(&World),
) -> (Vec<ObjectOp>, Result<Swept, crate::Error>, World, Arc<Bucket>) {
    let (mut w, bucket) = archiving();
    if let Some(site) = mutant {
        mutated(&mut w, site);
        w.reopen();
    }
    filled(&w);
    w.engine().archive().unwrap();
    let earlier = image(&w);
    steps(&w);
    w.close();
    let ops: Arc<Mutex<Vec<ObjectOp>>> = Arc::default();
    let armed = Arc::new(AtomicU64::new(0));
    let (b, clock, fs, seen, on) =
        (bucket.clone(), w.clock.clone(), w.fs.clone(), ops.clone(), armed.clone());
    let gate = move |_, op| {
        if on.load(Ordering::SeqCst) == 0 {
            return;
        }
        let n = {
            let mut seen = seen.lock();
            seen.push(op);
            seen.len()
        };
        if n == nth {
            let now;
            let image = match &earlier {
                Some(image) => image,
                None => {
                    now = fs.kill_image();
                    &now
                }
            };
            second_life(image, earlier.is_some(), &clock, &b);
        }
    };
    w.options.remote = Some(remote(bucket.client(1).with_gate(Arc::new(gate))));
    w.open();
    // The first pass of this process takes the prefix.
    w.engine().archive().unwrap();
    fill(&w, "d", 1);
    fill(&w, "d", 1);
    w.clock.advance_ms(KEPT_MS);
    armed.store(1, Ordering::SeqCst);
    let swept = w.engine().sweep_remote();
    armed.store(0, Ordering::SeqCst);
    let ops = ops.lock().clone();
    (ops, swept, w, bucket)
}

/// A second engine, with a copy of that moment, takes the prefix while the first is stalled before each
/// request of its sweep. The first goes on when the second has archived and swept.
#[test]
fn an_engine_that_is_stalled_in_a_sweep_deletes_nothing_of_the_next_owner() {
    let (ops, swept, ..) = interrupted(usize::MAX, None, |_| None, condemn);
    assert!(swept.unwrap().condemned > 0 && ops.contains(&ObjectOp::Delete), "{ops:?}");
    for nth in 1..=ops.len() {
        let (_, swept, w, bucket) = interrupted(nth, None, |_| None, condemn);
        assert_named_exist(&w, &bucket);
        if let Err(e) = swept {
            assert!(e.to_string().contains("prefix now belongs to"), "{nth}: {e}");
        }
        fill(&w, "a", 10);
        w.engine().archive().expect_err("it was fenced");
    }
}

/// A second engine with an old copy of the directory, whose snapshot names what the first one has
/// condemned since, begins before each request of a sweep: it is refused, and the sweep goes on.
#[test]
fn an_old_copy_takes_no_prefix_from_an_engine_that_sweeps() {
    let copy = |w: &World| Some(w.fs.kill_image());
    let (ops, ..) = interrupted(usize::MAX, None, copy, condemn);
    for nth in 1..=ops.len() {
        let (_, swept, w, bucket) = interrupted(nth, None, copy, condemn);
        assert!(swept.unwrap().condemned > 0);
        assert_named_exist(&w, &bucket);
        fill(&w, "a", 10);
        w.engine().archive().unwrap();
    }
}

/// An upload that arrives after its pass has failed, and after that an orphan was deleted.
#[test]
fn a_late_upload_of_a_deleted_orphan_is_an_orphan_again() {
    let (w, bucket) = archiving();
    filled(&w);
    bucket.fail_nth(None, Some(ObjectOp::Create), 2, ObjectFault::Delayed(u32::MAX));
    let _ = w.engine().archive();
    w.engine().archive().unwrap();
    bucket.deliver_delayed();
    assert_no_leak(&w, &bucket);
}

#[test]
fn a_sweep_is_made_once_a_day() {
    let (w, bucket, gone) = condemned(None);
    let archiver = || w.engine().open_engine().archiver.clone().unwrap();
    let before = bucket.requests();
    archiver().sweep_if_due().unwrap();
    assert_eq!(bucket.requests(), before, "the first one is an hour after the open");
    w.clock.advance_ms(3_600_000);
    bucket.fail_nth(None, Some(ObjectOp::List), 1, ObjectFault::Unavailable);
    archiver().sweep_if_due().unwrap_err();
    let failed = bucket.requests();
    archiver().sweep_if_due().unwrap();
    assert_eq!(bucket.requests(), failed, "a failed one is repeated after an hour");
    w.clock.advance_ms(3_600_000);
    archiver().sweep_if_due().unwrap();
    let lists = bucket.count(ObjectOp::List);
    w.clock.advance_ms(23 * 3_600_000);
    archiver().sweep_if_due().unwrap();
    assert_eq!(bucket.count(ObjectOp::List), lists);
    w.clock.advance_ms(KEPT_MS);
    archiver().sweep_if_due().unwrap();
    assert!(keys_of(&bucket).is_disjoint(&gone));
    assert!(bucket.count(ObjectOp::List) > lists);
}

/// Retention and everything else goes on when sweeps fail; the objects stay.
#[test]
fn a_sweep_without_its_store_fails_and_is_repeated() {
    let (w, bucket, gone) = condemned(None);
    w.clock.advance_ms(KEPT_MS);
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    let e = w.engine().sweep_remote().unwrap_err();
    assert!(e.retryable(), "{e}");
    w.put("a", &["goes on"]);
    bucket.clear_faults();
    assert!(keys_of(&bucket).is_superset(&gone));
    w.engine().sweep_remote().unwrap();
    assert!(keys_of(&bucket).is_disjoint(&gone));
}
