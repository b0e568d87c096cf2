//! What was shipped is there after a restore, and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use topics_env::{Hook, Site};
use topics_remote::Retry;
use topics_sim::{Bucket, CrashOptions, DiskImage, Mutant, ObjectFault, SimClock, SimFs};

use super::{RestoreRequest, Restored, restore};
use crate::engine::verify::verify;
use crate::ship::tests::shipping;
use crate::topic::tests::{DIR, World, class, eq, rec, small};
use crate::txn::CommitRequest;
use crate::types::api::{Append, Durability, GapReason};
use crate::types::error::{Error, Result};
use crate::types::options::{Options, RemoteLimits, RemoteOptions};
use crate::types::queue::{JobState, PeekedJob};

/// A world on a disk of its own, restored from a bucket.
fn try_restored(w: &World, bucket: &Arc<Bucket>, at_ms: Option<u64>) -> Result<(World, Restored)> {
    restored_and_opened_at(w, bucket, at_ms, &w.clock)
}

/// The same, opened by this clock.
pub(crate) fn restored_and_opened_at(
    w: &World,
    bucket: &Arc<Bucket>,
    at_ms: Option<u64>,
    clock: &Arc<SimClock>,
) -> Result<(World, Restored)> {
    let mut out = World::unopened(Options { remote: None, ..w.options.clone() });
    out.clock = w.clock.clone();
    out.seed = w.seed + 1000;
    let store = Arc::new(bucket.client(7));
    let retry = Retry::once(out.env());
    let request = RestoreRequest { copy: true, at_ms };
    let done = restore(&out.env(), store, &retry, Path::new(DIR), &request)?;
    let report = verify(&out.env(), Path::new(DIR), &mut |_| ())?;
    assert!(done.missing_segments > 0 || report.problems.is_empty(), "{:?}", report.problems);
    out.clock = clock.clone();
    out.try_open()?;
    Ok((out, done))
}

/// The bucket as the remote of another process.
pub(crate) fn client(bucket: &Arc<Bucket>, id: u32) -> RemoteOptions {
    let limits = RemoteLimits { single_writer: true, ..RemoteLimits::default() };
    RemoteOptions { store: Arc::new(bucket.client(id)), limits }
}

fn restored(w: &World, bucket: &Arc<Bucket>, at_ms: Option<u64>) -> (World, Restored) {
    try_restored(w, bucket, at_ms).unwrap()
}

/// The idempotency keys that [`state`] looks for. A key is of a write of one record whose data is the key.
pub(super) const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];

/// Everything that a client can see, except what changes with time or with a restart. The seqs of
/// records are part of it. What is given to no snapshot and no round is not: rows that are staged.
pub(crate) fn state(w: &World) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for t in w.engine().list("", None, usize::MAX) {
        out.insert(t.topic.clone(), topic_state(w, &t.topic));
    }
    for r in w.engine().routers("") {
        let routers = &w.engine().open_engine().host.routers;
        let definition = routers.get(&r.router).unwrap().definition();
        // What is filtered out is looked at again after a restart.
        let at = routers.cursor(&definition);
        let text = format!("{definition:?} at {at} stopped by {:?}", r.stopped_by);
        out.insert(format!("router {}", r.router), text);
    }
    for writer in w.engine().writers("", None).iter().filter(|w| w.last_epoch.is_some()) {
        let epoch = writer.last_epoch.unwrap();
        let again = CommitRequest { epoch, ..CommitRequest::default() };
        let answer = w.engine().commit(&writer.writer, &again).unwrap();
        out.insert(format!("writer {}", writer.writer), format!("{answer:?}"));
    }
    out
}

fn topic_state(w: &World, topic: &str) -> String {
    let s = w.state(topic);
    let (mut gaps, mut head) = (s.gaps, s.head_seq);
    // The seqs that a restored directory skips.
    if let Some(last) = gaps.pop_if(|g| g.reason == GapReason::Crash && g.to == head) {
        head = last.from - 1;
    }
    let earliest = s.earliest_seq.min(head + 1);
    let mut text = format!(
        "{:?} {:?} epoch {} head {head} earliest {earliest} floor {} count {} bytes {} gaps {gaps:?}",
        s.config, s.topic_id, s.epoch, s.evict_floor, s.count, s.bytes
    );
    records(w, topic, head, &mut text);
    for c in w.engine().consumers(topic).unwrap() {
        let _ = write!(text, " {}@{} {:?} lag {}", c.name, c.cursor, c.mode, c.lag);
    }
    if let Some(q) = s.queue {
        let _ = write!(text, " dead-lettered {} expired {}", q.dead_lettered, q.expired);
        jobs(w, topic, s.config.leases_durable, &mut text);
    }
    for key in KEYS {
        let records = [rec(key)];
        let expect_head = Some(u64::MAX);
        let append =
            Append { records: &records, key: key.as_bytes(), expect_head, ..Append::default() };
        if let Ok(first) = w.engine().append(topic, &append) {
            assert!(first.deduped);
            let _ = write!(text, " key {key}={}..{}", first.first_seq, first.last_seq);
        }
    }
    text
}

/// The records of a topic, and the gaps that their reader is told.
fn records(w: &World, topic: &str, head: u64, text: &mut String) {
    let mut at = 0;
    loop {
        let b = w.read(topic, at);
        if let Some(t) = b.tombstone.filter(|t| t.gap_from <= head) {
            let (from, to) = (t.gap_from, t.gap_to.min(head));
            let _ = write!(text, " lost {from}..{to} {:?}", t.reason);
        }
        for (i, r) in b.iter().enumerate() {
            let [tag, node, meta, data] =
                [r.tag, r.node, r.meta, r.data].map(String::from_utf8_lossy);
            let (seq, ts, binary, attrs) = (r.seq, r.ts, r.binary, b.attrs(i));
            let _ = write!(text, " {seq}:{data}:{tag}:{node}:{meta}:{ts}:{binary}:{attrs:?}");
        }
        at = b.next_from_seq;
        if b.caught_up {
            return;
        }
    }
}

/// The jobs of a queue. Leases that are not durable, and what came of them, end with a process; those that are
/// begin anew, so their deadlines change.
fn jobs(w: &World, queue: &str, durable: bool, text: &mut String) {
    let peeked = w.engine().peek(queue, None, usize::MAX).unwrap();
    let mut jobs: Vec<PeekedJob> = peeked.iter().map(|(job, _)| job.clone()).collect();
    jobs.sort_unstable_by_key(|job| job.seq);
    for mut job in jobs {
        job.deadline = None;
        if job.deliveries > 0 {
            job.visible_at = None;
        }
        if !durable && job.deliveries > 0 {
            (job.state, job.deliveries, job.error) = (JobState::Ready, 0, None);
            (job.node, job.lease_id) = (None, None);
        }
        let _ = write!(text, " {job:?}");
    }
}

pub(super) fn publish(w: &World) {
    w.engine().ship().unwrap();
    w.engine().archive().unwrap();
    w.engine().ship().unwrap();
}

/// Ships, and returns the time and the state.
fn mark(w: &World) -> (u64, BTreeMap<String, String>) {
    w.engine().ship().unwrap();
    let at = w.engine().ship_status().unwrap().restorable_ms.max(w.clock_wall());
    let state = state(w);
    w.clock.advance_ms(10);
    (at, state)
}

#[test]
fn everything_acked_before_a_round_is_restored_byte_for_byte() {
    let (w, bucket) = shipping(RemoteLimits::default());
    for i in 0..23 {
        w.tagged("a", &[["red", "blue"][i % 2]]);
    }
    w.delete("a", Some(4), None);
    w.delete("a", Some(12), eq("red"));
    w.checkpoint();
    publish(&w);
    w.put("a", &["after the base"]);
    w.put("b", &["new"]);
    let (_, before) = mark(&w);
    let (r, done) = restored(&w, &bucket, None);
    assert_eq!(state(&r), before);
    assert!(done.skips && done.rounds > 0 && done.missing_segments == 0, "{done:?}");
    assert_eq!(bucket.violations(), []);
    // No seq is given twice: what the first directory acks after the round has other seqs.
    let lost = w.put("a", &["beyond"]).last_seq;
    let next = r.put("a", &["mine"]).last_seq;
    assert!(next > lost + (1 << 32) - 10, "{next} {lost}");
    let gaps = r.state("a").gaps;
    let crash = gaps.iter().find(|g| g.reason == GapReason::Crash).unwrap();
    assert_eq!((crash.from, crash.to), (lost, next - 1), "{gaps:?}");
}

#[test]
fn the_skip_happens_once_and_survives_a_kill() {
    let (w, bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1"]);
    publish(&w);
    let (mut r, _) = restored(&w, &bucket, None);
    let head = r.state("a").head_seq;
    r.kill();
    r.reopen();
    r.power_cut();
    assert_eq!(r.state("a").head_seq, head);
    assert_eq!(r.seqs("a"), [1]);
}

#[test]
fn a_clean_close_leaves_nothing_beyond_and_no_seq_is_skipped() {
    let (mut w, bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1"]);
    publish(&w);
    w.put("a", &["2"]);
    let before = state(&w);
    w.close();
    let (r, done) = restored(&w, &bucket, None);
    assert!(!done.skips, "{done:?}");
    assert_eq!(state(&r), before);
    assert_eq!(r.put("a", &["3"]).last_seq, 3);
}

/// Segments in the middle and at the end of topics whose records are all deleted.
#[test]
fn deleted_segments_are_no_loss_and_their_seqs_are_not_given_again() {
    let (mut w, bucket) = shipping(RemoteLimits::default());
    for topic in ["middle", "end"] {
        w.create(topic, class(Durability::Fsync));
        for _ in 0..15 {
            w.put(topic, &["x"]);
        }
    }
    w.checkpoint();
    w.engine().delete_seqs("middle", &[6, 7, 8, 9, 10]).unwrap();
    w.engine().delete_seqs("end", &[11, 12, 13, 14, 15]).unwrap();
    w.checkpoint();
    let before = state(&w);
    w.close();
    let (r, done) = restored(&w, &bucket, None);
    assert!(!done.skips, "{done:?}");
    assert_eq!(state(&r), before);
    assert_eq!((r.put("middle", &["y"]).last_seq, r.put("end", &["y"]).last_seq), (16, 16));
    r.checkpoint();
    assert_eq!(r.engine().verify().unwrap().problems, []);
}

#[test]
fn a_restored_directory_passes_verify_before_its_first_open() {
    let (w, bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1"]);
    w.put("gone", &["1"]);
    publish(&w);
    // Later snapshots of the lost directory, topics that its base does not have.
    for topic in ["b", "c", "brief"] {
        w.put(topic, &["1"]);
        w.checkpoint();
    }
    w.engine().delete_topic("gone", false).unwrap();
    w.engine().delete_topic("brief", false).unwrap();
    w.engine().ship().unwrap();
    // The helper runs `verify`.
    let (_, done) = restored(&w, &bucket, None);
    assert_eq!(done.topics, 3, "{done:?}");
}

#[test]
fn a_short_run_is_in_the_store_when_it_is_closed() {
    let (mut w, bucket) = shipping(RemoteLimits::default());
    // No round and no base was published before the close.
    w.put("a", &["1"]);
    let before = state(&w);
    w.close();
    let (r, done) = restored(&w, &bucket, None);
    assert!(!done.skips, "{done:?}");
    assert_eq!(state(&r), before);
}

#[test]
fn a_close_tries_once_more_after_a_round_that_failed() {
    let (mut w, bucket) = shipping(RemoteLimits::default());
    w.put("a", &["1"]);
    publish(&w);
    w.put("a", &["2"]);
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    w.engine().ship().unwrap_err();
    bucket.clear_faults();
    let before = state(&w);
    w.close();
    let (r, done) = restored(&w, &bucket, None);
    assert!(!done.skips, "{done:?}");
    assert_eq!(state(&r), before);
}

#[test]
fn a_directory_that_is_in_use_or_a_prefix_without_a_state_is_refused() {
    let (w, bucket) = shipping(RemoteLimits::default());
    let e = try_restored(&w, &bucket, None).err().unwrap();
    assert!(e.to_string().contains("prefix is empty"), "{e}");
    w.put("a", &["1"]);
    w.engine().ship().unwrap();
    let e = try_restored(&w, &bucket, None).err().unwrap();
    assert!(e.to_string().contains("no base"), "{e}");
    w.clock.advance_ms(5000);
    publish(&w);
    let e = try_restored(&w, &bucket, Some(w.clock_wall() - 4000)).err().unwrap();
    assert!(e.to_string().contains("before the oldest state"), "{e}");
    let store = Arc::new(bucket.client(7));
    let retry = Retry::once(w.env());
    let e = restore(&w.env(), store, &retry, Path::new(DIR), &RestoreRequest::default());
    assert!(e.unwrap_err().to_string().contains("not empty"));
}

/// The acked records of a scenario: topic → data.
pub(super) fn scenario(w: &World) -> std::result::Result<(), Error> {
    for i in 0..12 {
        w.tagged("a", &[["red", "blue"][i % 2]]);
    }
    w.delete("a", Some(3), None);
    w.checkpoint();
    w.engine().ship()?;
    w.engine().archive()?;
    w.put("b", &["1", "2"]);
    w.engine().ship()?;
    w.put("a", &["3"]);
    w.checkpoint();
    w.engine().archive()?;
    w.put("b", &["4"]);
    w.engine().ship()?;
    Ok(())
}

fn requests() -> usize {
    let (w, bucket) = shipping(RemoteLimits::default());
    scenario(&w).unwrap();
    bucket.requests() as usize
}

/// After any fault at any request, and any end of the process, the next rounds make the state whole.
#[test]
fn a_fault_at_any_request_of_rounds_and_bases_loses_nothing() {
    let (mut runs, mut failed) = (0, 0);
    let ends: [fn(&mut World); 3] = [|_| (), World::kill, World::power_cut];
    for nth in 1..=requests() {
        for fault in ObjectFault::ALL {
            for end in ends {
                let (mut w, bucket) = shipping(RemoteLimits::default());
                bucket.fail_nth(None, None, nth, fault);
                failed += u64::from(scenario(&w).is_err());
                bucket.clear_faults();
                w.engine().sync().unwrap();
                end(&mut w);
                bucket.deliver_delayed();
                w.engine().ship().unwrap();
                publish(&w);
                let (_, before) = mark(&w);
                let (r, _) = restored(&w, &bucket, None);
                assert_eq!(state(&r), before, "{fault:?} at {nth}");
                assert_eq!(bucket.violations(), []);
                runs += 1;
            }
        }
    }
    println!("{runs} runs, {failed} scenarios failed");
    assert!(failed > runs / 3);
}

/// Whatever request is the last one, a restore has the state of a confirmed round, never an invention.
#[test]
fn the_prefix_of_a_machine_that_is_lost_at_any_request_is_restored() {
    let mut refused = 0;
    let all = requests();
    for nth in 1..=all {
        for fault in [ObjectFault::Unavailable, ObjectFault::AnswerLost] {
            let (w, bucket) = shipping(RemoteLimits::default());
            bucket.fail_nth(None, None, nth, fault);
            let mut confirmed = None;
            let mut states = vec![];
            for i in 0..6 {
                w.tagged("a", &[["red", "blue"][i % 2], "x", "y"]);
                w.put("b", &["1"]);
                if i % 2 == 0 {
                    w.checkpoint();
                }
                let published = w.engine().ship().is_ok() && w.engine().archive().is_ok();
                states.push(state(&w));
                if published && w.engine().ship().is_ok() && bucket.faults_fired() == 0 {
                    confirmed = Some(states.len() - 1);
                }
                if bucket.faults_fired() > 0 {
                    break;
                }
            }
            bucket.clear_faults();
            match try_restored(&w, &bucket, None) {
                Ok((r, _)) => {
                    let found = state(&r);
                    let at = states.iter().position(|s| *s == found);
                    assert!(at.is_some(), "{fault:?} at {nth}: a state that never was");
                    assert!(at >= confirmed, "{fault:?} at {nth}: {at:?}, confirmed {confirmed:?}");
                }
                Err(e) => {
                    assert_eq!(confirmed, None, "{fault:?} at {nth}: {e}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 0 && refused < 2 * all);
}

/// Cuts the power at every write of a restore. Returns how many directories were whole, how many were
/// refused or empty, and how many opened with another state.
fn crashes(copy: bool, hook: Option<Arc<dyn Hook>>) -> (usize, usize, usize) {
    let (w, bucket) = shipping(RemoteLimits::default());
    scenario(&w).unwrap();
    let expected = state(&w);
    let remote = (!copy).then(|| client(&bucket, 8));
    let mut out = World::unopened(Options { remote, ..small() });
    out.hook = hook;
    let retry = Retry::once(out.env());
    let store = Arc::new(bucket.client(7));
    let request = RestoreRequest { copy, at_ms: None };
    restore(&out.env(), store, &retry, Path::new(DIR), &request).unwrap();
    let (mut whole, mut refused, mut wrong) = (0, 0, 0);
    let mut check = |image: &DiskImage| {
        let mut again = World::unopened(out.options.clone());
        again.fs = Arc::new(SimFs::from_image(image));
        match again.try_open() {
            // Nothing was there yet: an empty directory is a new one.
            Ok(()) if again.engine().list("", None, 9).is_empty() => refused += 1,
            Ok(()) => {
                let is_whole = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    state(&again) == expected && again.put("a", &["n"]).last_seq > 1 << 32
                }));
                match is_whole {
                    Ok(true) => whole += 1,
                    _ => wrong += 1,
                }
            }
            Err(e) if e.to_string().contains("STORE") => refused += 1,
            Err(_) => wrong += 1,
        }
    };
    for at in 0..=out.fs.ops_len() {
        out.fs.crash_states(at, 3, &CrashOptions::default(), &mut |s| check(&s.image));
    }
    if out.hook.is_some() {
        // A mutant may leave an illegal order of writes.
        out.fs = Arc::new(SimFs::from_image(&out.fs.kill_image()));
    }
    (whole, refused, wrong)
}

/// A restore that a crash ended is refused by an open, or whole.
#[test]
fn a_crash_at_any_write_of_a_restore_leaves_no_half_directory() {
    for copy in [true, false] {
        let (whole, refused, wrong) = crashes(copy, None);
        assert_eq!(wrong, 0);
        assert!(whole > 0 && refused > 20, "{whole} whole, {refused} refused");
    }
}

#[test]
fn without_its_syncs_a_restore_leaves_half_directories() {
    for site in
        [Site::Sync("restore.file"), Site::SyncDir("restore.dir"), Site::Sync("dir.lineage")]
    {
        let (_, _, wrong) = crashes(true, Some(Arc::new(Mutant::remove(site, None))));
        assert!(wrong > 0, "{site:?} has no effect");
    }
}

/// Reads that fail end a restore with an error, and one that succeeds is whole.
#[test]
fn a_fault_at_any_request_of_a_restore_is_an_error_or_repeated() {
    let (w, bucket) = shipping(RemoteLimits::default());
    scenario(&w).unwrap();
    let expected = state(&w);
    let before = bucket.requests();
    restored(&w, &bucket, None);
    let requests = bucket.requests() - before;
    let (mut failed, mut done) = (0, 0);
    for nth in 1..=requests as usize {
        for fault in ObjectFault::ALL {
            bucket.fail_nth(Some(7), None, nth, fault);
            match try_restored(&w, &bucket, None) {
                Ok((r, _)) => {
                    assert_eq!(state(&r), expected, "{fault:?} at {nth}");
                    done += 1;
                }
                Err(_) => failed += 1,
            }
            bucket.clear_faults();
        }
    }
    println!("{requests} requests, {failed} restores failed, {done} succeeded");
    assert!(failed > 0 && done > 0, "{failed} {done}");
}

/// Restore, write, restore again, five times: each time into a prefix of its own.
#[test]
fn restore_and_write_five_times() {
    let (first, mut bucket) = shipping(RemoteLimits::default());
    let mut w = first;
    let mut data = Vec::new();
    let mut last = 0;
    for turn in 0..5 {
        for i in 0..7 {
            let text = format!("{turn}.{i}");
            let seq = w.put("a", &[&text]).last_seq;
            assert!(seq > last, "a seq is given twice");
            last = seq;
            data.push((seq, text));
            if i == 4 {
                w.checkpoint();
                publish(&w);
            }
        }
        w.engine().ship().unwrap();
        let (mut r, _) = restored(&w, &bucket, None);
        // The old prefix refuses it: it has never written to one.
        let remote = w.options.remote.clone().unwrap();
        let store = Arc::new(bucket.client(8));
        r.close();
        r.options.remote = Some(RemoteOptions { store, ..remote.clone() });
        r.open();
        let e = r.engine().ship().unwrap_err();
        assert!(e.to_string().contains("the prefix is in use by"), "{e}");
        r.close();
        let next = Bucket::new(&r.clock);
        next.set_mutable(&["HEAD"]);
        let store = Arc::new(next.client(1));
        r.options.remote = Some(RemoteOptions { store, ..remote });
        r.open();
        let mut found = Vec::new();
        let mut at = 0;
        loop {
            let b = r.read("a", at);
            found.extend(b.iter().map(|r| (r.seq, String::from_utf8_lossy(r.data).into_owned())));
            at = b.next_from_seq;
            if b.caught_up {
                break;
            }
        }
        assert_eq!(found, data, "turn {turn}");
        (w, bucket) = (r, next);
    }
}

/// A cut that is not complete, and a chain that was broken, are no targets.
#[test]
fn a_broken_chain_is_restored_up_to_the_break_and_from_the_next_base_on() {
    let limits = RemoteLimits { wal_bytes: 50 << 10, ..RemoteLimits::default() };
    let (w, bucket) = shipping(limits);
    w.put("a", &["1"]);
    publish(&w);
    w.put("a", &["2"]);
    let before = mark(&w);
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    for _ in 0..20 {
        w.put("big", &[&"x".repeat(8 << 10)]);
    }
    // The round of this cut is repeated when the store answers again.
    let cut = state(&w);
    w.engine().ship().unwrap_err();
    w.engine().tick().unwrap();
    assert_eq!(w.engine().metrics().ship_chain_broken, 1);
    bucket.clear_faults();
    // Rounds of the next chain without a base: the newest state is the last cut before the break.
    w.clock.advance_ms(1000);
    w.put("a", &["3"]);
    w.engine().ship().unwrap();
    let (r, done) = restored(&w, &bucket, None);
    assert_eq!(state(&r), cut);
    assert!(done.has_later);
    publish(&w);
    let after = mark(&w);
    assert_eq!(state(&restored(&w, &bucket, None).0), after.1);
    assert_eq!(state(&restored(&w, &bucket, Some(before.0)).0), before.1);
}
