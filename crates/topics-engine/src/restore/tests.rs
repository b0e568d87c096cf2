//! What was shipped is there after a restore, and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use topics_env::{Hook, Site};
use topics_remote::Retry;
use topics_sim::{Bucket, CrashOptions, DiskImage, Mutant, ObjectFault, SimFs};

use super::{RestoreRequest, Restored, restore};
use crate::engine::verify::verify;
use crate::router::RouterRequest;
use crate::ship::tests::{shipping, shipping_with};
use crate::topic::tests::{DIR, World, eq, rec, small};
use crate::txn::{CommitRequest, StageRequest, TxnRequest, TxnRows, TxnStage};
use crate::types::api::{GapReason, NewRecord};
use crate::types::config::{ConfigPatch, Discard, TopicType};
use crate::types::error::{Error, Result};
use crate::types::options::{Options, RemoteLimits, RemoteOptions};
use crate::types::queue::{Claim, LeasedJobs};

/// A world on a disk of its own, restored from a bucket.
fn try_restored(w: &World, bucket: &Arc<Bucket>, at_ms: Option<u64>) -> Result<(World, Restored)> {
    let mut out = World::unopened(Options { remote: None, ..w.options.clone() });
    out.clock = w.clock.clone();
    out.seed = w.seed + 1000;
    let store = Arc::new(bucket.client(7));
    let retry = Retry::once(out.env());
    let request = RestoreRequest { copy: true, at_ms };
    let done = restore(&out.env(), store, &retry, Path::new(DIR), &request)?;
    let report = verify(&out.env(), Path::new(DIR), &mut |_| ())?;
    assert!(done.missing_segments > 0 || report.problems.is_empty(), "{:?}", report.problems);
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

/// Everything that a client can see, except what changes with time or with a restart. The seqs of
/// records are part of it.
pub(crate) fn state(w: &World) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for t in w.engine().list("", None, usize::MAX) {
        let s = w.state(&t.topic);
        let mut text =
            format!("{:?} {:?} count {} floor {}", s.config, s.topic_id, s.count, s.evict_floor);
        let mut at = 0;
        loop {
            let b = w.read(&t.topic, at);
            for r in b.iter() {
                let data = String::from_utf8_lossy(r.data);
                let _ = write!(text, " {}:{data}:{:?}:{}", r.seq, r.tag, r.ts);
            }
            at = b.next_from_seq;
            if b.caught_up {
                break;
            }
        }
        for c in w.engine().consumers(&t.topic).unwrap() {
            let _ = write!(text, " {}@{}", c.name, c.cursor);
        }
        if let Some(q) = s.queue {
            let _ = write!(text, " jobs {}", q.ready + q.in_flight + q.delayed);
        }
        out.insert(t.topic.clone(), text);
    }
    out
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

/// A random history with everything that changes state.
struct History {
    w: World,
    bucket: Arc<Bucket>,
    seed: u64,
    epoch: u64,
    marks: Vec<(u64, BTreeMap<String, String>)>,
}

impl History {
    fn new(seed: u64, shards: u32) -> Self {
        let options = Options { wal_shards: shards, ..small() };
        let limits = RemoteLimits { pack_bytes: 3000, ..RemoteLimits::default() };
        let (w, bucket) = shipping_with(options, limits);
        let queue = ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() };
        w.create("jobs", queue);
        let capped = ConfigPatch {
            cap_records: Some(9),
            discard: Some(Discard::Old),
            ..ConfigPatch::default()
        };
        w.create("capped", capped);
        w.create("source", ConfigPatch::default());
        let router = RouterRequest {
            source: "source".into(),
            dest: "copies".into(),
            create_dest: true,
            ..RouterRequest::default()
        };
        w.engine().create_router("r", &router).unwrap();
        publish(&w);
        Self { w, bucket, seed, epoch: 0, marks: Vec::new() }
    }

    fn rng(&mut self, n: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % n
    }

    fn step(&mut self) {
        let n = self.rng(1000);
        let data = format!("d{n}");
        let topic = ["a", "b", "c", "capped", "source"][self.rng(5) as usize];
        match self.rng(22) {
            0..=6 => drop(self.w.tagged(topic, &[["red", "blue"][n as usize % 2], "x"])),
            7 => drop(self.w.put("jobs", &[&data, &data])),
            8 => {
                self.job(!n.is_multiple_of(3));
            }
            9 if self.w.engine().state(topic, false).is_ok() => {
                let seq = self.w.state(topic).earliest_seq + n % 4;
                self.w.delete(topic, Some(seq), None);
            }
            10 if self.w.engine().state(topic, false).is_ok() => {
                self.w.delete(topic, None, eq("red"));
            }
            11 if n.is_multiple_of(4) && ["a", "b", "c"].contains(&topic) => {
                let _ = self.w.engine().delete_topic(topic, false);
            }
            12 | 13 => self.transact(&data),
            14 => self.staged(&data),
            15 | 16 => self.w.checkpoint(),
            17 => {
                self.w.clock.advance_ms(6000);
                self.w.engine().tick().unwrap();
            }
            18 if n.is_multiple_of(3) => drop(self.w.engine().archive().unwrap()),
            19 if n.is_multiple_of(8) => {
                [World::reopen, World::kill, World::power_cut][n as usize % 3](&mut self.w);
                // The rounds of an epoch end with it, and a base begins with its first round.
                self.w.put("a", &[&data]);
                publish(&self.w);
                assert!(self.w.engine().ship_status().unwrap().has_base);
            }
            _ => {
                self.w.engine().sync().unwrap();
                let mark = mark(&self.w);
                let status = self.w.engine().ship_status().unwrap();
                assert!(status.has_base && status.lag_bytes == 0, "{status:?}");
                self.marks.push(mark);
            }
        }
        self.w.clock.advance_ms(1 + n % 50);
    }

    /// Claims a job, and acks it.
    fn job(&mut self, acks: bool) {
        let claim = Claim { node: b"n", max: 2, lease_ms: Some(3000), ..Claim::default() };
        let claimed = self.w.engine().claim("jobs", &claim).unwrap();
        let seqs: Vec<u64> = claimed.iter().map(|(lease, _)| lease.seq).collect();
        if acks && !seqs.is_empty() {
            let held = LeasedJobs { node: b"n", seqs: &seqs, lease_ids: None };
            self.w.engine().ack("jobs", &held).unwrap();
        }
    }

    fn transact(&mut self, data: &str) {
        let records = [rec(data), NewRecord { tag: b"blue", ..rec(data) }];
        let rows =
            ["a", "b"].map(|topic| TxnRows { topic, records: &records, ..TxnRows::default() });
        self.w.engine().transact(&TxnRequest { rows: &rows, ..TxnRequest::default() }).unwrap();
    }

    fn staged(&mut self, data: &str) {
        self.epoch += 1;
        let records = [rec(data)];
        let rows = [TxnRows { topic: "c", records: &records, ..TxnRows::default() }];
        let stage = format!("s{}", self.epoch);
        let part = StageRequest { stage: &stage, part: 0, rows: &rows };
        self.w.engine().stage("writer", &part).unwrap();
        let stages = [TxnStage { stage: &stage, parts: 1, records: None }];
        let commit =
            CommitRequest { epoch: self.epoch, stages: &stages, ..CommitRequest::default() };
        self.w.engine().commit("writer", &commit).unwrap();
    }
}

/// Restores to random rounds of random histories.
#[test]
fn every_round_of_a_history_can_be_restored_exactly() {
    let (histories, targets) = match std::env::var("TOPICS_GATE").as_deref() {
        Ok("release") => (10, 50),
        _ => (2, 6),
    };
    let mut compared = 0;
    for seed in 1..=histories {
        let mut h = History::new(seed, 1 + seed as u32 % 3);
        for _ in 0..400 {
            h.step();
        }
        assert!(h.marks.len() > 20, "{}", h.marks.len());
        for _ in 0..targets {
            let at = h.rng(h.marks.len() as u64) as usize;
            let (ms, expected) = &h.marks[at];
            let (r, done) = restored(&h.w, &h.bucket, Some(*ms));
            assert_eq!(&state(&r), expected, "seed {seed}, mark {at}, {done:?}");
            assert!(done.state_ms <= *ms);
            compared += 1;
        }
        assert_eq!(h.bucket.violations(), []);
    }
    println!("{compared} restores");
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
