//! Garbage over a simulated disk and a simulated object store: with faults at each request, and crashes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use topics_env::Site;
use topics_remote::format::base::Base;
use topics_remote::format::keys::{self, HEAD, Serial};
use topics_sim::{Bucket, Mutant, ObjectFault, ObjectOp};

use super::tests::{ENDS, archiving, assert_archived, base, fill, filled, limits, remote};
use crate::topic::tests::World;
use crate::types::options::{RemoteLimits, RemoteOptions};

pub(super) const WINDOW_MS: u64 = 7 * 86_400_000;

fn keys_of(bucket: &Arc<Bucket>) -> BTreeSet<String> {
    bucket.objects().into_keys().collect()
}

/// The keys of the packs of a base, and its own.
fn named_by(base: &Base) -> BTreeSet<String> {
    let packs = base.packs.iter().map(|p| p.object().key);
    packs.chain([base.header.key()]).collect()
}

/// What the base in `HEAD` and those that it keeps need.
fn needed(w: &World, bucket: &Arc<Bucket>) -> BTreeSet<String> {
    let newest = base(w, bucket).unwrap();
    let objects = bucket.objects();
    let mut out = named_by(&newest);
    let mut bases = vec![newest.clone()];
    for e in &newest.kept {
        let key = e.object().key;
        bases.push(Base::verify(&key, Some(e.hash), &objects[&key]).unwrap());
    }
    for b in &bases {
        out.extend(named_by(b));
        let rounds = (b.first_round..).map(|n| keys::round(b.header.epoch, n));
        out.extend(rounds.take_while(|key| objects.contains_key(key)));
    }
    out.insert(HEAD.to_owned());
    out
}

/// Everything that a base needs which is kept is there.
pub(super) fn assert_needed_exist(w: &World, bucket: &Arc<Bucket>) {
    let there = keys_of(bucket);
    let missing: Vec<_> = needed(w, bucket).difference(&there).cloned().collect();
    assert!(missing.is_empty(), "missing: {missing:?}\n{:#?}", bucket.log());
    assert_eq!(bucket.violations(), []);
}

/// Writes a little and publishes; the snapshots that are kept name no old pack any more.
fn next_base(w: &World) {
    for _ in 0..3 {
        fill(w, "d", 1);
    }
    w.engine().archive().unwrap();
}

/// When everything old has left the window, nothing is there but what is needed.
fn assert_no_leak(w: &World, bucket: &Arc<Bucket>) {
    for _ in 0..3 {
        w.clock.advance_ms(WINDOW_MS + 1);
        next_base(w);
    }
    assert_needed_exist(w, bucket);
    let needed = needed(w, bucket);
    let left: Vec<_> = keys_of(bucket).difference(&needed).cloned().collect();
    assert!(left.is_empty(), "left: {left:?}\n{:#?}", bucket.log());
}

/// Deletes most records of what `filled` wrote: the next base names none of its packs.
pub(super) fn outdate(w: &World) {
    w.delete("a", Some(28), None);
    w.delete("b", Some(17), None);
    for _ in 0..3 {
        fill(w, "c", 5);
    }
}

/// A world with a base whose packs a later one does not name, and the keys of these.
fn outdated(mutant: Option<&'static str>) -> (World, Arc<Bucket>, BTreeSet<String>) {
    let (mut w, bucket) = archiving();
    if let Some(site) = mutant {
        w.hook = Some(Arc::new(Mutant::remove(Site::Check(site), None)));
        w.reopen();
    }
    filled(&w);
    w.engine().archive().unwrap();
    let before = base(&w, &bucket).unwrap();
    outdate(&w);
    w.engine().archive().unwrap();
    let now = named_by(&base(&w, &bucket).unwrap());
    let gone: BTreeSet<String> = named_by(&before).difference(&now).cloned().collect();
    assert!(gone.iter().any(|k| k.contains("/p")), "{gone:?}");
    (w, bucket, gone)
}

#[test]
fn what_no_kept_base_names_is_deleted_after_the_window() {
    let (mut w, bucket, gone) = outdated(None);
    for _ in 0..6 {
        w.clock.advance_ms(WINDOW_MS / 7);
        next_base(&w);
        assert!(keys_of(&bucket).is_superset(&gone));
        assert_needed_exist(&w, &bucket);
    }
    // The newest base that is older than the window has the states at its beginning.
    for _ in 0..2 {
        w.clock.advance_ms(WINDOW_MS / 7 + 1);
        next_base(&w);
    }
    next_base(&w);
    assert!(keys_of(&bucket).is_disjoint(&gone), "{gone:?}");
    assert!(w.engine().metrics().remote.unwrap().deleted >= gone.len() as u64);
    for end in [World::reopen, World::kill, World::power_cut] {
        end(&mut w);
        next_base(&w);
        assert_needed_exist(&w, &bucket);
    }
    assert_archived(&w, &bucket);
    assert_no_leak(&w, &bucket);
}

#[test]
fn without_the_check_of_kept_bases_an_object_goes_early() {
    let (w, bucket, gone) = outdated(Some("garbage.kept"));
    next_base(&w);
    assert!(!keys_of(&bucket).is_superset(&gone), "the check has no effect");
}

#[test]
fn a_window_of_zero_keeps_the_newest_base_only() {
    let (mut w, bucket) = archiving();
    let limits = RemoteLimits { window: Some(Duration::ZERO), ..limits() };
    w.options.remote = Some(RemoteOptions { limits, ..remote(bucket.client(1)) });
    w.reopen();
    filled(&w);
    w.engine().archive().unwrap();
    let before = named_by(&base(&w, &bucket).unwrap());
    outdate(&w);
    for _ in 0..2 {
        next_base(&w);
    }
    assert_eq!(base(&w, &bucket).unwrap().kept, []);
    let gone: Vec<_> = before.iter().filter(|k| k.contains("/p")).collect();
    assert!(gone.iter().all(|k| !keys_of(&bucket).contains(*k)), "{gone:?}");
    assert_needed_exist(&w, &bucket);
}

#[test]
fn without_a_window_nothing_is_deleted() {
    let (mut w, bucket) = archiving();
    let limits = RemoteLimits { window: None, ..limits() };
    w.options.remote = Some(RemoteOptions { limits, ..remote(bucket.client(1)) });
    w.reopen();
    filled(&w);
    for _ in 0..4 {
        outdate(&w);
        w.clock.advance_ms(10 * WINDOW_MS);
        w.engine().archive().unwrap();
    }
    assert_eq!(bucket.count(ObjectOp::Delete), 0);
    let newest = base(&w, &bucket).unwrap();
    assert!(newest.kept.len() >= 3, "every state can be restored");
}

#[test]
fn a_pack_that_a_kept_snapshot_names_stays() {
    for (mutant, stays) in [(None, true), (Some("garbage.snapshot"), false)] {
        let (mut w, bucket) = archiving();
        let limits = RemoteLimits { window: Some(Duration::ZERO), ..limits() };
        w.options.remote = Some(RemoteOptions { limits, ..remote(bucket.client(1)) });
        w.hook = mutant.map(|site| Arc::new(Mutant::remove(Site::Check(site), None)) as _);
        w.reopen();
        filled(&w);
        w.engine().archive().unwrap();
        // Both snapshots name the packs.
        w.put("d", &["1"]);
        w.checkpoint();
        let packs: BTreeSet<String> =
            w.engine().open_engine().base().packs.all().iter().map(|p| p.object().key).collect();
        w.delete("a", Some(28), None);
        w.delete("b", Some(17), None);
        w.engine().archive().unwrap();
        let there = keys_of(&bucket);
        assert_eq!(there.is_superset(&packs), stays, "{mutant:?}: {packs:?}");
    }
}

/// After any fault at any request of bases, and any end of the process, no object is lost and none stays.
#[test]
fn after_a_fault_at_any_request_nothing_is_lost_and_nothing_leaks() {
    let run = |w: &World| -> crate::types::error::Result<()> {
        filled(w);
        w.engine().archive()?;
        outdate(w);
        w.engine().archive()?;
        w.clock.advance_ms(WINDOW_MS + 1);
        fill(w, "d", 2);
        w.engine().archive()?;
        fill(w, "d", 2);
        w.engine().archive().map(drop)
    };
    let (w, bucket) = archiving();
    run(&w).unwrap();
    let requests = bucket.requests() as usize;
    let (mut runs, mut failed) = (0, 0);
    for nth in 1..=requests {
        for fault in ObjectFault::ALL {
            let end = ENDS[(nth + runs) % ENDS.len()];
            let (mut w, bucket) = archiving();
            bucket.fail_nth(None, None, nth, fault);
            failed += usize::from(run(&w).is_err());
            bucket.clear_faults();
            w.engine().sync().unwrap();
            end(&mut w);
            bucket.deliver_delayed();
            next_base(&w);
            assert_archived(&w, &bucket);
            assert_no_leak(&w, &bucket);
            runs += 1;
        }
    }
    println!("{runs} runs over {requests} requests, {failed} failed");
    assert!(failed > runs / 4);
}

/// The process ends before each request, and never comes to itself again.
#[test]
fn after_a_crash_before_any_request_nothing_is_lost_and_nothing_leaks() {
    let mut nth = 1;
    loop {
        let (mut w, bucket) = archiving();
        filled(&w);
        w.engine().archive().unwrap();
        outdate(&w);
        w.clock.advance_ms(WINDOW_MS + 1);
        let before = bucket.requests() as usize;
        bucket.fail_from(None, nth, ObjectFault::Unavailable);
        let is_done = w.engine().archive().is_ok();
        let is_over = (bucket.requests() as usize) < before + nth;
        bucket.clear_faults();
        w.kill();
        next_base(&w);
        assert_archived(&w, &bucket);
        assert_no_leak(&w, &bucket);
        if is_done && is_over {
            break;
        }
        nth += 1;
    }
    assert!(nth > 5, "{nth}");
}

/// A key without the right to delete: the base is published once, and the deletes come with the next one.
#[test]
fn deletes_that_fail_do_not_repeat_the_base() {
    let (mut w, bucket) = archiving();
    let limits = RemoteLimits { window: Some(Duration::ZERO), ..limits() };
    w.options.remote = Some(RemoteOptions { limits, ..remote(bucket.client(1)) });
    w.reopen();
    next_base(&w);
    let gone = base(&w, &bucket).unwrap().header.key();
    bucket.fail_all(None, Some(ObjectOp::Delete), ObjectFault::Refused);
    fill(&w, "d", 1);
    w.clock.advance_ms(600_000);
    let archiver = w.engine().open_engine().archiver.clone().unwrap();
    archiver.archive_if_due().unwrap_err();
    let published = base(&w, &bucket).unwrap().header.serial();
    let requests = bucket.requests();
    archiver.archive_if_due().unwrap();
    assert_eq!(bucket.requests(), requests, "nothing is due");
    assert_eq!(base(&w, &bucket).unwrap().header.serial(), published);
    assert!(keys_of(&bucket).contains(&gone));
    drop(archiver);
    bucket.clear_faults();
    next_base(&w);
    assert!(!keys_of(&bucket).contains(&gone));
    assert_no_leak(&w, &bucket);
}

/// What an epoch without a base has put is found by the next one.
#[test]
fn what_a_process_without_a_base_has_put_is_deleted() {
    let (mut w, bucket) = archiving();
    for _ in 0..3 {
        fill(&w, "a", 20);
        bucket.fail_nth(None, Some(ObjectOp::Replace), 1, ObjectFault::Refused);
        // HEAD of a new epoch, or of the base.
        let _ = w.engine().archive();
        let _ = w.engine().archive();
        bucket.fail_all(None, Some(ObjectOp::Replace), ObjectFault::Unavailable);
        let _ = w.engine().archive();
        bucket.clear_faults();
        w.kill();
    }
    next_base(&w);
    assert_archived(&w, &bucket);
    assert_no_leak(&w, &bucket);
    bucket.fail_all(None, Some(ObjectOp::Replace), ObjectFault::Unavailable);
    fill(&w, "a", 20);
    w.engine().archive().unwrap_err();
    bucket.clear_faults();
    w.kill();
    (0..2).for_each(|_| next_base(&w));
    let deleted = bucket.count(ObjectOp::Delete);
    next_base(&w);
    assert_eq!(bucket.count(ObjectOp::Delete), deleted, "nothing is deleted twice");
}

#[test]
fn rounds_before_the_oldest_kept_base_are_deleted() {
    let (mut w, bucket) = archiving();
    let limits = RemoteLimits { interval: Duration::from_secs(1), ..limits() };
    w.options.remote = Some(RemoteOptions { limits, ..remote(bucket.client(1)) });
    w.reopen();
    for i in 0..3 {
        for _ in 0..5 {
            w.put("a", &["x"]);
            w.engine().ship().unwrap();
        }
        next_base(&w);
        let serial = base(&w, &bucket).unwrap().header.serial();
        assert!(serial >= Serial { epoch: 1, number: 1 });
        match i {
            0 => w.reopen(),
            1 => w.kill(),
            _ => {}
        }
    }
    assert_no_leak(&w, &bucket);
}
