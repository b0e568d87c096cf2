//! Transactions over the simulated disk: all or nothing, once, at every crash point.

use std::sync::Arc;
use std::time::Duration;

use topics_env::{Hook, Site};
use topics_sim::{CallFilter, CallKind, CrashOptions, DiskImage, FaultKind, Mutant, SimFs};

use super::*;
use crate::topic::tests::{DIR, World, class, rec, small};
use crate::types::api::{Append, Durability, NewRecord, TopicMatch};
use crate::types::config::{ConfigPatch, Discard, TopicType};
use crate::types::consumer::ConsumerStart;
use crate::types::error::{Error, Result};
use crate::types::options::{AutoCreate, Options};
use crate::types::queue::{Claim, LeasedJobs};

/// The epochs of these tests begin here.
const FIRST: u64 = 5;

impl World {
    fn stage(&self, stage: &str, part: u32, rows: &[(&str, &[&str])]) -> Result<Staged> {
        let records: Vec<Vec<NewRecord<'_>>> =
            rows.iter().map(|(_, d)| d.iter().map(|d| rec(d)).collect()).collect();
        let rows: Vec<_> = rows
            .iter()
            .zip(&records)
            .map(|((topic, _), records)| TxnRows { topic, records, ..TxnRows::default() })
            .collect();
        self.engine().stage("w", &StageRequest { stage, part, rows: &rows })
    }

    fn commit(&self, epoch: u64, stages: &[(&str, u32)], work: TxnWork<'_>) -> Result<Committed> {
        self.commit_by("", epoch, stages, work)
    }

    fn commit_by(
        &self,
        query: &str,
        epoch: u64,
        stages: &[(&str, u32)],
        work: TxnWork<'_>,
    ) -> Result<Committed> {
        let stages: Vec<_> = stages
            .iter()
            .map(|(stage, parts)| TxnStage { stage, parts: *parts, records: None })
            .collect();
        self.engine().commit(
            "w",
            &CommitRequest { epoch, stages: &stages, work, query, ..CommitRequest::default() },
        )
    }

    fn once(&self, topic: &str, data: &[&str], key: &[u8]) -> Result<Committed> {
        let records: Vec<_> = data.iter().map(|d| rec(d)).collect();
        let rows = [TxnRows { topic, records: &records, ..TxnRows::default() }];
        self.engine().transact(&TxnRequest { rows: &rows, key, ..TxnRequest::default() })
    }

    /// The payloads of a topic, none where there is no topic.
    fn data(&self, topic: &str) -> Vec<String> {
        if self.engine().state(topic, false).is_err() {
            return Vec::new();
        }
        let mut out = Vec::new();
        let mut at = 0;
        loop {
            let b = self.read(topic, at);
            out.extend(b.iter().map(|r| String::from_utf8(r.data.to_vec()).unwrap()));
            at = b.next_from_seq;
            if b.caught_up {
                return out;
            }
        }
    }

    fn staged_files(&self) -> usize {
        let files = self.fs.kill_image();
        files.files().iter().filter(|(p, _)| p.contains("/txn/")).count()
    }

    fn cursor(&self) -> u64 {
        self.engine().consumers("in").unwrap().first().unwrap().cursor
    }

    fn claim_one(&self) -> (u64, u64) {
        let req = Claim { node: b"n", ..Claim::default() };
        let got = self.engine().claim("q", &req).unwrap();
        let (lease, _) = got.get(0).unwrap();
        (lease.seq, lease.lease_id)
    }

    /// [`World::furnish`] with every topic of [`stage_all`], durable: what fails next is the
    /// transaction.
    fn furnish_all(&self) {
        self.furnish();
        self.create("new", ConfigPatch::default());
        self.engine().sync().unwrap();
    }

    /// Topics of every class, a consumer with something to read, a queue with jobs.
    fn furnish(&self) {
        let classes = [
            ("disk", Durability::Disk),
            ("fsync", Durability::Fsync),
            ("memory", Durability::Memory),
            ("ephemeral", Durability::Ephemeral),
        ];
        for (name, durability) in classes {
            self.create(name, class(durability));
        }
        self.put("disk", &["before"]);
        self.put("in", &["1", "2", "3"]);
        self.engine().consumer("in", "c", None, ConsumerStart::Start, false).unwrap();
        let queue = ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() };
        self.create("q", queue);
        self.put("q", &["job 1", "job 2"]);
    }
}

/// The cursor and the job that every commit of [`whole`] takes along.
fn whole<'a>(commits: &'a [TxnCursor<'a>], acks: &'a [TxnAck<'a>]) -> TxnWork<'a> {
    TxnWork { commits, acks, ..TxnWork::default() }
}

const IN: [TxnCursor<'static>; 1] = [TxnCursor { topic: "in", consumer: "c", seq: 2, fence: None }];

fn stage_all(w: &World) {
    w.stage("a", 0, &[("disk", &["d1", "d2"]), ("fsync", &["f1"]), ("new", &["n1"])]).unwrap();
    w.stage("a", 1, &[("memory", &["m1"]), ("ephemeral", &["e1"]), ("disk", &["d3"])]).unwrap();
}

/// How often the transaction of [`stage_all`] is there: 0 or 1, everywhere the same.
fn times(w: &World, what: &str) -> usize {
    let count = |topic: &str, want: &[&str]| {
        let rows: Vec<String> = w.data(topic).into_iter().filter(|d| d != "before").collect();
        assert!(rows.is_empty() || rows == want, "{what}: I5 {topic} has {rows:?}");
        usize::from(!rows.is_empty())
    };
    let all = [
        count("disk", &["d1", "d2", "d3"]),
        count("fsync", &["f1"]),
        count("new", &["n1"]),
        count("memory", &["m1"]),
        count("ephemeral", &["e1"]),
        usize::from(w.cursor() == 2),
        usize::from(w.data("q") == ["job 2"]),
    ];
    assert!(all.iter().all(|n| *n == all[0]), "{what}: somewhere and elsewhere not: {all:?}");
    all[0]
}

#[test]
fn a_commit_is_everywhere_and_its_repeat_changes_nothing() {
    for shards in [1, 3] {
        let mut w = World::with(Options { wal_shards: shards, ..small() });
        w.furnish();
        let (job, id) = w.claim_one();
        stage_all(&w);
        assert!(w.stage("a", 1, &[("disk", &["other"])]).unwrap().repeated);
        assert_eq!(times(&w, "staged"), 0);
        let held = LeasedJobs { node: b"n", seqs: &[job], lease_ids: Some(&[id]) };
        let acks = [TxnAck { queue: "q", jobs: held }];
        let done = w.commit(FIRST, &[("a", 2)], whole(&IN, &acks)).unwrap();
        assert!(!done.deduped);
        assert_eq!(times(&w, "committed"), 1);
        let of = |c: &Committed, t: &str| {
            let t = c.topics.iter().find(|x| x.topic == t).unwrap();
            (t.first_seq, t.last_seq)
        };
        assert_eq!(done.topics.len(), 5);
        assert_eq!((of(&done, "disk"), of(&done, "new")), ((2, 4), (1, 1)));
        let again = w.commit(FIRST, &[("a", 2)], whole(&IN, &acks)).unwrap();
        assert!(again.deduped);
        assert_eq!(again.topics, done.topics);
        let stale = w.commit(FIRST - 1, &[], TxnWork::default()).unwrap_err();
        assert!(matches!(stale, Error::StaleEpoch { last: FIRST, .. }), "{stale}");
        for end in [World::kill, World::reopen, World::power_cut] {
            end(&mut w);
            let again = w.commit(FIRST, &[("a", 2)], whole(&IN, &[])).unwrap();
            assert!(again.deduped && again.topics == done.topics);
            assert_eq!(times(&w, "reopened"), 1);
            w.checkpoint();
        }
        assert_eq!(w.engine().writer_state("w").unwrap().last_epoch, Some(FIRST));
        w.clock.advance_ms(10_000);
        w.engine().sync().unwrap();
        w.engine().tick().unwrap();
        assert_eq!(w.staged_files(), 0, "the files of a transaction go with it");
        let next = w.put("disk", &["after"]);
        assert_eq!(next.first_seq, next.last_seq);
    }
}

#[test]
fn an_epoch_belongs_to_the_query_that_committed_it() {
    let mut w = World::with(small());
    w.furnish();
    let by = |w: &World, epoch, stage: &str, query| {
        w.stage(stage, 0, &[("disk", &[stage])]).unwrap();
        let stages = [TxnStage { stage, parts: 1, records: Some(1) }];
        let req = CommitRequest { epoch, stages: &stages, query, ..CommitRequest::default() };
        w.engine().commit("w", &req)
    };
    assert!(!by(&w, 7, "a", "one").unwrap().deduped);
    for end in [World::kill, World::reopen, World::power_cut] {
        // The last epoch and an older one are the other query's, whatever its number is here.
        for (epoch, query) in [(7, "two"), (7, ""), (6, "two"), (0, "")] {
            let e = by(&w, epoch, "b", query).unwrap_err();
            assert_eq!(e.code(), "stale_epoch");
            let Error::EpochOfOtherQuery { last: 7, committed_by, query: of, .. } = &e else {
                panic!("{e}");
            };
            assert_eq!((&**committed_by, &**of), ("one", query));
        }
        let older = by(&w, 6, "b", "one").unwrap_err();
        assert!(matches!(older, Error::StaleEpoch { epoch: 6, last: 7, .. }), "{older}");
        assert!(by(&w, 7, "b", "one").unwrap().deduped);
        let rows: Vec<_> = w.data("disk").into_iter().filter(|d| d != "before").collect();
        assert_eq!(rows, ["a"]);
        end(&mut w);
        w.checkpoint();
    }
    // A later epoch may be of any query; from then on the writer belongs to that query.
    assert!(!by(&w, 8, "c", "two").unwrap().deduped);
    assert!(by(&w, 8, "d", "one").is_err());
    let long = "q".repeat(257);
    assert!(matches!(by(&w, 9, "e", &long), Err(Error::InvalidRequest(_))));
}

/// A run, with the journal positions that matter.
struct Run {
    w: World,
    /// All parts are staged; the commit has returned.
    staged: usize,
    committed: usize,
}

fn run(options: &Options, hook: Option<Arc<dyn Hook>>) -> Run {
    let mut w = World::unopened(options.clone());
    w.hook = hook;
    w.open();
    w.furnish();
    let (job, id) = w.claim_one();
    w.engine().sync().unwrap();
    stage_all(&w);
    let staged = w.fs.ops_len();
    let held = LeasedJobs { node: b"n", seqs: &[job], lease_ids: Some(&[id]) };
    let acks = [TxnAck { queue: "q", jobs: held }];
    w.commit_by("one", FIRST, &[("a", 2)], whole(&IN, &acks)).unwrap();
    let committed = w.fs.ops_len();
    // The end is synced and the files go, before a snapshot and after it.
    w.engine().sync().unwrap();
    w.checkpoint();
    w.clock.advance_ms(10_000);
    w.engine().tick().unwrap();
    w.checkpoint();
    Run { w, staged, committed }
}

fn on(image: &DiskImage, r: &Run) -> World {
    let mut w = World::unopened(r.w.options.clone());
    (w.fs, w.hook) = (Arc::new(SimFs::from_image(image)), r.w.hook.clone());
    w.open();
    w
}

/// Crashes after each call, with whatever survives: everywhere or nowhere, and the same after
/// another crash; the repeat makes it exactly once, and is stale to another query. How often it was nowhere, everywhere, and
/// finished by a recovery.
fn crashes(r: &Run, how: &CrashOptions) -> (usize, usize, usize) {
    let (mut none, mut all, mut finished) = (0, 0, 0);
    for at in r.staged - 6..=r.w.fs.ops_len() {
        r.w.fs.crash_states(at, 7, how, &mut |state| {
            let what = format!("after {} ({:?})", r.w.fs.describe_op(at - 1), state.survival);
            let mut w = on(&state.image, r);
            let there = times(&w, &what);
            assert!(there == 1 || at < r.committed, "{what}: I1 it was acked");
            assert!(there == 0 || at > r.staged, "{what}: nobody committed it");
            (none, all) = (none + 1 - there, all + there);
            finished += usize::from(there == 1 && at < r.committed);
            w.power_cut();
            assert_eq!(times(&w, &what), there, "{what}: a second crash changes nothing");
            let held = if there == 0 { Some(w.claim_one()) } else { None };
            let acks = held.iter().map(|(seq, id)| {
                let (seqs, ids) = (std::slice::from_ref(seq), std::slice::from_ref(id));
                TxnAck { queue: "q", jobs: LeasedJobs { node: b"n", seqs, lease_ids: Some(ids) } }
            });
            let acks: Vec<_> = acks.collect();
            // The epoch is of the query that committed it, whatever survived of the commit.
            let of_another = |w: &World| {
                for query in ["", "two"] {
                    let e = w.commit_by(query, FIRST, &[("a", 2)], TxnWork::default()).unwrap_err();
                    let Error::EpochOfOtherQuery { last: FIRST, committed_by, .. } = &e else {
                        panic!("{what}: {e}");
                    };
                    assert_eq!(committed_by, "one", "{what}");
                }
            };
            if there == 1 {
                of_another(&w);
            }
            match w.commit_by("one", FIRST, &[("a", 2)], whole(&IN, &acks)) {
                Ok(done) => {
                    of_another(&w);
                    assert_eq!(done.deduped, there == 1, "{what}");
                    assert_eq!(done.topics.len(), 5, "{what}: {done:?}");
                    assert_eq!(times(&w, &what), 1, "{what}: exactly once");
                }
                Err(Error::TxnIncomplete { .. }) if at < r.staged => {
                    assert_eq!(times(&w, &what), 0, "{what}");
                }
                Err(e) => panic!("{what}: {e}"),
            }
        });
    }
    (none, all, finished)
}

const HOW: CrashOptions = CrashOptions { random: 0, torn_bytes: 0, names: 2, single: false };

#[test]
fn i5_crash_points() {
    for wal_shards in [1, 3] {
        let r = run(&Options { wal_shards, ..small() }, None);
        let (none, all, finished) = crashes(&r, &HOW);
        assert!(none > 10 && all > 10 && finished > 3, "{none} {all} {finished}");
    }
}

/// What the second crash leaves may lie in two generations, a part before its decision.
#[test]
fn i5_two_crashes_in_a_row() {
    let mut states = 0;
    for wal_shards in [1, 2, 3] {
        let r = World::with(Options { wal_shards, ..small() });
        let topics = ["a", "b", "c", "d"];
        let records = [rec("1"), rec("2")];
        let rows = topics.map(|topic| TxnRows { topic, records: &records, ..TxnRows::default() });
        r.engine().transact(&TxnRequest { rows: &rows, ..TxnRequest::default() }).unwrap();
        // What follows in their shards says that the parts were synced.
        for topic in topics {
            let append = Append { records: &[rec("3")], sync: true, ..Append::default() };
            r.engine().append(topic, &append).unwrap();
        }
        let whole = |image: &DiskImage, what: &str| {
            let mut w = World::unopened(r.options.clone());
            w.fs = Arc::new(SimFs::from_image(image));
            w.open();
            for topic in topics {
                assert_eq!(w.data(topic), ["1", "2", "3"], "{what}: {topic}");
            }
            w
        };
        let how = CrashOptions { random: 4, ..HOW };
        r.fs.crash_states(r.fs.ops_len(), 7, &how, &mut |first| {
            let w = whole(&first.image, &format!("{:?}", first.survival));
            w.fs.crash_states(w.fs.ops_len(), 8, &how, &mut |second| {
                let what = format!("{wal_shards}: {:?}, {:?}", first.survival, second.survival);
                whole(&second.image, &what);
                states += 1;
            });
        });
    }
    assert!(states > 100, "{states}");
}

/// Each sync, rename and check that the promises rest on is missed when it is not there.
#[test]
fn i5_crash_points_notice_what_is_left_out() {
    let sites = [
        (Site::Sync("txn.stage"), 1),
        (Site::SyncDir("txn.stage"), 1),
        (Site::Check("txn.settled"), 3),
        (Site::Check("txn.query"), 1),
        (Site::Sync("wal.group"), 1),
    ];
    for (site, wal_shards) in sites {
        let mutant = Arc::new(Mutant::remove(site, None));
        let hook: Arc<dyn Hook> = mutant.clone();
        let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let r = run(&Options { wal_shards, ..small() }, Some(hook));
            crashes(&r, &HOW)
        }));
        assert!(mutant.hits() > 0, "{site:?} is not reached");
        assert!(noticed.is_err(), "nobody misses {site:?}");
    }
}

/// No later commit can list the rows of a call that ended without a decision.
#[test]
fn a_call_that_dies_leaves_no_stage() {
    let w = World::new();
    w.put("t", &["before"]);
    w.engine().sync().unwrap();
    let from = w.fs.ops_len();
    let records = [rec("row")];
    let rows = [TxnRows { topic: "t", records: &records, ..TxnRows::default() }];
    let named = TxnRequest { writer: Some("w"), rows: &rows, ..TxnRequest::default() };
    w.engine().transact(&named).unwrap();
    let mut left = 0;
    for at in from..=w.fs.ops_len() {
        w.fs.crash_states(at, 7, &HOW, &mut |state| {
            let mut again = World::unopened(small());
            again.fs = Arc::new(SimFs::from_image(&state.image));
            left += usize::from(again.staged_files() > 0);
            again.open();
            if let Ok(state) = again.engine().writer_state("w") {
                assert!(state.staged.is_empty(), "after call {at}: {state:?}");
            }
            again.clock.advance_ms(10_000);
            again.engine().sync().unwrap();
            again.engine().tick().unwrap();
            assert_eq!(again.staged_files(), 0, "after call {at}");
        });
    }
    assert!(left > 0, "no crash leaves a file");
}

#[test]
fn what_stands_against_it_is_found_before_anything_happens() {
    let w = World::new();
    w.furnish();
    let reject = ConfigPatch {
        cap_records: Some(2),
        discard: Some(Discard::Reject),
        ..ConfigPatch::default()
    };
    w.create("full", reject);
    w.put("full", &["x", "y"]);
    w.stage("ok", 0, &[("disk", &["d"])]).unwrap();
    w.stage("full", 0, &[("disk", &["d"]), ("full", &["z"])]).unwrap();
    let (job, id) = w.claim_one();
    let fits = LeasedJobs { node: b"n", seqs: &[job], lease_ids: Some(&[id]) };
    let other = LeasedJobs { node: b"other", ..fits };
    let acks = |held| [TxnAck { queue: "q", jobs: held }];
    let code = |stages: &[(&str, u32)], work: TxnWork<'_>| {
        w.commit(FIRST, stages, work).map_or_else(|e| e.code(), |_| "ok")
    };
    assert_eq!(code(&[("full", 1)], whole(&IN, &acks(fits))), "topic_full");
    assert_eq!(code(&[("ok", 1)], whole(&IN, &acks(other))), "lease_lost");
    let twice = [TxnAck { queue: "q", jobs: fits }, TxnAck { queue: "q", jobs: fits }];
    assert_eq!(code(&[("ok", 1)], whole(&IN, &twice)), "lease_lost");
    let far = [TxnCursor { seq: 4, ..IN[0] }];
    assert_eq!(code(&[("ok", 1)], whole(&far, &acks(fits))), "invalid_request");
    let nobody = [TxnCursor { consumer: "x", ..IN[0] }];
    assert_eq!(code(&[("ok", 1)], whole(&nobody, &[])), "consumer_not_found");
    let heads = TxnWork { expect_heads: &[("disk", 2)], ..TxnWork::default() };
    assert_eq!(code(&[("ok", 1)], heads), "head_mismatch");
    let heads = TxnWork { expect_heads: &[("disk", 1), ("in", 2)], ..TxnWork::default() };
    assert_eq!(code(&[("ok", 1)], heads), "head_mismatch", "of a topic without rows too");
    assert_eq!(code(&[("ok", 2)], TxnWork::default()), "txn_incomplete");
    assert_eq!(code(&[("gone", 1)], TxnWork::default()), "txn_incomplete");
    let miscounted = [TxnStage { stage: "ok", parts: 1, records: Some(2) }];
    let req = CommitRequest { epoch: FIRST, stages: &miscounted, ..CommitRequest::default() };
    assert_eq!(w.engine().commit("w", &req).unwrap_err().code(), "txn_incomplete");
    assert_eq!((w.data("disk"), w.data("full").len()), (vec!["before".to_owned()], 2));
    assert_eq!(w.cursor(), 0);
    assert_eq!(w.engine().writer_state("w").unwrap().last_epoch, None);
    // I6: the lease is as it was, and still runs out.
    let heads = TxnWork { expect_heads: &[("disk", 1)], ..whole(&IN, &[]) };
    let work = TxnWork { acks: &acks(fits), ..heads };
    assert_eq!(code(&[("ok", 1)], work), "ok");
    assert_eq!(w.data("q"), ["job 2"]);
    assert_eq!(w.data("disk"), ["before", "d"]);
}

#[test]
fn every_stage_of_a_commit_is_checked_before_the_first_is_read() {
    let w = World::new();
    w.stage("read", 0, &[("t", &["1", "2"])]).unwrap();
    w.stage("short", 0, &[("t", &["3"])]).unwrap();
    // A read of the first stage finds that it is lost.
    let txn = std::path::Path::new(DIR).join("txn");
    let files = w.env().fs.list(&txn).unwrap();
    let first = files.iter().map(|f| f.name.clone()).min().unwrap();
    w.env().fs.remove_file(&txn.join(first)).unwrap();
    let refused = |second: TxnStage<'_>| {
        let stages = [TxnStage { stage: "read", parts: 1, records: Some(2) }, second];
        let req = CommitRequest { epoch: FIRST, stages: &stages, ..CommitRequest::default() };
        w.engine().commit("w", &req).unwrap_err().to_string()
    };
    let second = |stage, parts, records| refused(TxnStage { stage, parts, records });
    assert!(second("short", 1, Some(2)).contains("it has 1 rows, not 2"));
    assert!(second("short", 2, None).contains("part 1 of 2 is not staged"));
    assert!(second("none", 1, None).contains("part 0 of 1 is not staged"));
    assert!(second("read", 1, None).contains("listed twice"));
    assert!(second("short", 1, Some(1)).contains("is lost"), "all is as it is listed");
}

#[test]
fn creation_follows_the_settings() {
    let w = World::with(Options { auto_create: AutoCreate::Off, ..small() });
    w.stage("a", 0, &[("new", &["x"])]).unwrap();
    let e = w.commit(1, &[("a", 1)], TxnWork::default()).unwrap_err();
    assert_eq!(e.code(), "topic_not_found");
    let w = World::new();
    w.stage("a", 0, &[("new", &["x"])]).unwrap();
    let heads = |n| [("new", n)];
    let e = w.commit(1, &[("a", 1)], TxnWork { expect_heads: &heads(1), ..TxnWork::default() });
    assert_eq!(e.unwrap_err().code(), "head_mismatch");
    assert!(w.engine().state("new", false).is_err());
    w.commit(1, &[("a", 1)], TxnWork { expect_heads: &heads(0), ..TxnWork::default() }).unwrap();
    assert_eq!(w.data("new"), ["x"]);
}

#[test]
fn one_call_with_and_without_a_name() {
    let mut w = World::new();
    let a = w.once("t", &["1", "2"], b"").unwrap();
    assert_eq!((a.deduped, a.topics[0].first_seq, a.topics[0].last_seq), (false, 1, 2));
    let k = w.once("t", &["3"], b"key").unwrap();
    assert_eq!(w.once("t", &["3"], b"key").unwrap(), Committed { deduped: true, ..k.clone() });
    assert_eq!(w.once("t", &["4"], b"key").unwrap_err().code(), "idempotency_mismatch");
    w.kill();
    assert_eq!(w.once("t", &["3"], b"key").unwrap(), Committed { deduped: true, ..k });
    w.clock.advance_ms(120_001);
    w.checkpoint();
    assert!(!w.once("t", &["4"], b"key").unwrap().deduped, "forgotten after its window");
    let named = |epoch| {
        let records = [rec("n")];
        let rows = [TxnRows { topic: "t", records: &records, ..TxnRows::default() }];
        let req = TxnRequest { writer: Some("w"), epoch, rows: &rows, ..TxnRequest::default() };
        w.engine().transact(&req)
    };
    assert_eq!(named(None).unwrap().epoch, 1);
    assert_eq!(named(None).unwrap().epoch, 2);
    assert!(named(Some(2)).unwrap().deduped);
    assert_eq!(named(Some(1)).unwrap_err().code(), "stale_epoch");
    // After the last epoch there would be no next one.
    let last = named(Some(u64::MAX)).unwrap_err();
    assert_eq!(last.code(), "invalid_request", "{last}");
    assert_eq!(w.commit(u64::MAX, &[], TxnWork::default()).unwrap_err().code(), "invalid_request");
    assert_eq!(w.engine().writer_state("w").unwrap().last_epoch, Some(2));
    assert_eq!(w.data("t"), ["1", "2", "3", "4", "n", "n"]);
    let both = TxnRequest { writer: Some("w"), key: b"k", ..TxnRequest::default() };
    assert_eq!(w.engine().transact(&both).unwrap_err().code(), "invalid_request");
    w.engine().sync().unwrap();
    w.clock.advance_ms(10_000);
    w.engine().tick().unwrap();
    assert_eq!(w.staged_files(), 0);
}

#[test]
fn the_window_of_a_key_begins_with_the_end_of_its_transaction() {
    let mut w = World::new();
    let first = w.once("t", &["1"], b"k").unwrap();
    // The decision is durable, its end is not: the open finishes it, long after the decision.
    w.clock.advance_ms(600_000);
    w.power_cut();
    let again = w.once("t", &["1"], b"k").unwrap();
    assert_eq!((again.deduped, &again.topics, w.data("t").len()), (true, &first.topics, 1));
    // From there on it is remembered for the window, and no longer.
    w.clock.advance_ms(119_000);
    assert_eq!(w.once("t", &["2"], b"k").unwrap_err().code(), "idempotency_mismatch");
    w.clock.advance_ms(1_000);
    assert!(!w.once("t", &["2"], b"k").unwrap().deduped);
    // An end that is durable stays where it is.
    w.engine().sync().unwrap();
    w.clock.advance_ms(120_000);
    w.power_cut();
    assert!(!w.once("t", &["3"], b"k").unwrap().deduped);
    assert_eq!(w.data("t"), ["1", "2", "3"]);
}

#[test]
fn what_is_given_up_after_a_refusal_stays_so() {
    let mut w = World::new();
    w.put("a", &["1"]);
    w.stage("s", 0, &[("a", &["2"])]).unwrap();
    let work = TxnWork { expect_heads: &[("a", 9)], ..TxnWork::default() };
    assert_eq!(w.commit(1, &[("s", 1)], work).unwrap_err().code(), "head_mismatch");
    assert!(w.engine().abort_stage("w", "s").unwrap());
    w.kill();
    assert_eq!(w.engine().writer_state("w").unwrap_err().code(), "txn_not_found");
}

#[test]
fn a_refused_call_stages_nothing() {
    let mut w = World::new();
    w.put("a", &["1"]);
    let records = [rec("2")];
    let rows = [TxnRows { topic: "a", records: &records, ..TxnRows::default() }];
    let work = TxnWork { expect_heads: &[("a", 9)], ..TxnWork::default() };
    let req = TxnRequest { writer: Some("w"), rows: &rows, work, ..TxnRequest::default() };
    assert_eq!(w.engine().transact(&req).unwrap_err().code(), "head_mismatch");
    for _ in 0..2 {
        w.kill();
        assert_eq!(w.engine().writer_state("w").unwrap_err().code(), "txn_not_found");
        // Nor does it stand in the way of a stage of any name.
        assert!(!w.stage("-", 0, &[("a", &["3"])]).unwrap().repeated);
        assert!(w.engine().abort_stage("w", "-").unwrap());
    }
    assert_eq!(w.data("a"), ["1"]);
}

#[test]
fn a_deleted_topic_drops_its_rows() {
    let mut w = World::with(Options { wal_shards: 3, ..small() });
    w.furnish_all();
    stage_all(&w);
    // The log of some shard fails after the decision: its parts stay undone.
    let engine = w.engine().open_engine().clone();
    let shard_of =
        |t: &str| engine.ctx().shard(engine.catalog().table.loaded.named(t).unwrap().id());
    let victim = ["disk", "fsync", "memory", "ephemeral"]
        .into_iter()
        .find(|t| shard_of(t) > 0)
        .expect("four topics on three shards");
    let dir = format!("shard-{:02}", shard_of(victim));
    w.fs.fail_nth(CallFilter::on_path(CallKind::Write, &dir), 1, FaultKind::ENOSPC);
    let e = w.commit(FIRST, &[("a", 2)], TxnWork::default()).unwrap_err();
    assert_eq!(e.code(), "storage_unavailable");
    assert_eq!(w.fs.faults_fired(), 1);
    assert_eq!(w.data(victim).iter().filter(|d| *d != "before").count(), 0);
    w.fs.clear_faults();
    w.engine().delete_topic(victim, false).unwrap();
    w.put(victim, &["another"]);
    let done = w.commit(FIRST, &[("a", 2)], TxnWork::default()).unwrap();
    assert!(done.deduped);
    assert!(done.topics.iter().all(|t| t.topic != victim), "{done:?}");
    assert_eq!(done.topics.len(), 4);
    assert_eq!(w.data(victim), ["another"], "a later topic of the name is another");
    drop(engine);
    w.kill();
    assert_eq!(w.data(victim), ["another"]);
}

#[test]
fn a_repeat_answers_for_a_topic_that_was_deleted_since_also_after_a_power_cut() {
    for durability in [Durability::Disk, Durability::Fsync] {
        let mut w = World::with(Options { wal_shards: 3, ..small() });
        let names = ["a", "b", "c", "d"];
        names.iter().for_each(|name| w.create(name, class(durability)));
        let engine = w.engine().open_engine().clone();
        let shard =
            |t: &str| engine.ctx().shard(engine.catalog().table.loaded.named(t).unwrap().id());
        // On another shard than the end of the transaction.
        let gone = *names.iter().find(|t| shard(t) > 0).unwrap();
        let of = shard(gone);
        for name in names {
            w.stage(name, 0, &[(name, &["row"])]).unwrap();
        }
        w.engine().sync().unwrap();
        let stages = names.map(|name| (name, 1));
        let done = w.commit(FIRST, &stages, TxnWork::default()).unwrap();
        assert_eq!(done.topics.len(), 4);
        w.engine().delete_topic(gone, false).unwrap();
        // As the timer would.
        engine.ctx().wal.sync(of).unwrap();
        drop(engine);
        w.power_cut();
        assert!(w.engine().state(gone, false).is_err());
        let again = w.commit(FIRST, &stages, TxnWork::default()).unwrap();
        assert!(again.deduped);
        assert_eq!(again.topics, done.topics, "{durability:?}");
    }
}

#[test]
fn a_full_disk_delays_what_was_decided() {
    for by_repeat in [true, false] {
        let w = World::with(Options { wal_shards: 3, ..small() });
        w.furnish_all();
        let (job, id) = w.claim_one();
        stage_all(&w);
        w.engine().sync().unwrap();
        let engine = w.engine().open_engine();
        let other = [1, 2].into_iter().find(|s| {
            ["disk", "fsync", "memory", "ephemeral", "q", "in"].iter().any(|t| {
                engine.ctx().shard(engine.catalog().table.loaded.named(t).unwrap().id()) == *s
            })
        });
        let dir = format!("shard-{:02}", other.unwrap());
        w.fs.fail_nth(CallFilter::on_path(CallKind::Write, &dir), 1, FaultKind::ENOSPC);
        let held = LeasedJobs { node: b"n", seqs: &[job], lease_ids: Some(&[id]) };
        let acks = [TxnAck { queue: "q", jobs: held }];
        let e = w.commit(FIRST, &[("a", 2)], whole(&IN, &acks)).unwrap_err();
        assert!(matches!(e, Error::StorageUnavailable { reason: "no_space", .. }), "{e}");
        w.fs.clear_faults();
        w.clock.advance_ms(40_000);
        if by_repeat {
            assert!(w.commit(FIRST, &[("a", 2)], whole(&IN, &acks)).unwrap().deduped);
        } else {
            w.engine().tick().unwrap();
        }
        assert_eq!(times(&w, "finished"), 1);
    }
}

#[test]
fn cursors_of_a_part_that_has_to_read_first_move_with_it() {
    let mut w = World::with(Options { wal_shards: 2, ..small() });
    let names = ["in", "in2", "in3", "in4"];
    names.iter().for_each(|name| w.create(name, class(Durability::Disk)));
    let engine = w.engine().open_engine();
    let shard = |t: &str| engine.ctx().shard(engine.catalog().table.loaded.named(t).unwrap().id());
    let topic = *names.iter().find(|t| shard(t) == 1).unwrap();
    // Full, and with deletes in its segments: a write has to read them to know what it evicts.
    w.create(topic, ConfigPatch { cap_records: Some(20), ..ConfigPatch::default() });
    w.tagged(topic, &["x", "y", "x", "y", "x", "x", "y", "x", "y", "x", "y", "y"]);
    w.checkpoint();
    w.delete(topic, None, Some(TopicMatch::Eq(b"y".to_vec())));
    w.put(topic, &["z"; 14]);
    w.engine().consumer(topic, "c", None, ConsumerStart::Start, false).unwrap();
    w.checkpoint();
    w.stage("a", 0, &[(topic, &["row"; 3])]).unwrap();
    w.engine().sync().unwrap();
    // Decided, and not published before the process is killed.
    w.fs.fail_from(CallFilter::on_path(CallKind::Write, "shard-01"), 1, FaultKind::ENOSPC);
    let commits = [TxnCursor { topic, consumer: "c", seq: 2, fence: None }];
    let e = w.commit(FIRST, &[("a", 1)], whole(&commits, &[])).unwrap_err();
    assert_eq!(e.code(), "storage_unavailable");
    w.kill();
    let cursor = w.engine().consumers(topic).unwrap()[0].cursor;
    assert_eq!((w.data(topic).iter().filter(|d| *d == "row").count(), cursor), (3, 2));
    assert!(w.commit(FIRST, &[("a", 1)], whole(&commits, &[])).unwrap().deduped);
}

#[test]
fn i10_a_failed_shard_leaves_it_to_the_restart() {
    // Of the shard of the decision, and of the others.
    for shard in 0..3 {
        for fault in [CallKind::SyncData, CallKind::Write] {
            let mut w = World::with(Options { wal_shards: 3, ..small() });
            w.furnish_all();
            let (job, id) = w.claim_one();
            stage_all(&w);
            w.engine().sync().unwrap();
            let dir = format!("shard-{shard:02}");
            w.fs.fail_nth(CallFilter::on_path(fault, &dir), 1, FaultKind::EIO);
            let held = LeasedJobs { node: b"n", seqs: &[job], lease_ids: Some(&[id]) };
            let acks = [TxnAck { queue: "q", jobs: held }];
            let what = format!("shard {shard}, {fault:?}");
            let commit = |w: &World| w.commit(FIRST, &[("a", 2)], whole(&IN, &acks));
            match commit(&w) {
                // Nothing of it lies there.
                Ok(_) => assert_eq!(w.fs.faults_fired(), 0, "{what}"),
                Err(e) => {
                    let poisoned =
                        Error::StorageUnavailable { reason: "poisoned", detail: String::new() };
                    assert_eq!(e.code(), poisoned.code(), "{what}: {e}");
                    let again = commit(&w).unwrap_err();
                    assert_eq!(again.code(), poisoned.code(), "{what}: {again}");
                    w.clock.advance_ms(2 * 3_600_000);
                    let _ = w.engine().tick();
                }
            }
            w.fs.clear_faults();
            w.kill();
            let there = times(&w, &what);
            if shard > 0 {
                assert_eq!(there, 1, "{what}: it was decided");
            }
            if there == 1 {
                assert!(w.commit(FIRST, &[("a", 2)], TxnWork::default()).unwrap().deduped);
            }
            w.power_cut();
            assert_eq!(times(&w, &what), there);
        }
    }
}

#[test]
fn staged_rows_are_bounded_in_time_and_bytes() {
    let mut w =
        World::with(Options { txn_bytes: 64 << 10, txn_ttl: Duration::from_secs(60), ..small() });
    let big = "x".repeat(20 << 10);
    w.stage("a", 0, &[("t", &[&big])]).unwrap();
    w.stage("b", 0, &[("t", &[&big])]).unwrap();
    let full = w.stage("c", 0, &[("t", &[&big])]).unwrap_err();
    assert!(matches!(full, Error::Throttled { limit: "txn_bytes", .. }), "{full}");
    assert!(w.engine().abort_stage("w", "a").unwrap());
    assert!(!w.engine().abort_stage("w", "a").unwrap());
    w.clock.advance_ms(59_000);
    w.kill();
    w.engine().tick().unwrap();
    let state = w.engine().writer_state("w").unwrap();
    assert_eq!(state.staged.len(), 1, "b is younger than a minute, across the restart too");
    assert_eq!((state.staged[0].stage.as_str(), state.staged[0].records), ("b", 1));
    w.stage("c", 0, &[("t", &["1"])]).unwrap();
    w.clock.advance_ms(6_000);
    w.engine().tick().unwrap();
    let e = w.commit(1, &[("b", 1)], TxnWork::default()).unwrap_err();
    assert_eq!(e.code(), "txn_incomplete");
    w.commit(1, &[("c", 1)], TxnWork::default()).unwrap();
    assert_eq!(w.data("t"), ["1"]);
    assert_eq!(w.engine().writer_state("nobody").unwrap_err().code(), "txn_not_found");
    w.engine().sync().unwrap();
    w.clock.advance_ms(6_000);
    w.engine().tick().unwrap();
    w.engine().sync().unwrap();
    w.clock.advance_ms(6_000);
    w.engine().tick().unwrap();
    assert_eq!(w.staged_files(), 0);
}

#[test]
fn staged_rows_may_use_the_free_disk_that_their_commit_does_not_need() {
    assert_eq!(Options::default().txn_bytes, 0, "no bound but the disk");
    let w = World::with(small());
    w.put("t", &["first"]);
    w.engine().sync().unwrap();
    let big = "x".repeat(100 << 10);
    w.fs.set_free_space(Some(1 << 20));
    let staged = (0..)
        .take_while(|n| match w.stage(&format!("s{n}"), 0, &[("t", &[&big])]) {
            Ok(_) => true,
            Err(Error::StorageUnavailable { reason: "no_space", detail }) => {
                assert!(detail.contains("need"), "{detail}");
                false
            }
            Err(e) => panic!("{e}"),
        })
        .count();
    assert!((3..=5).contains(&staged), "about half of the free disk: {staged}");
    assert_eq!(w.staged_files(), staged, "a refused part leaves no file");
    let names: Vec<String> = (0..staged - 1).map(|n| format!("s{n}")).collect();
    let stages: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    w.commit(FIRST, &stages, TxnWork::default()).unwrap();
    assert_eq!(w.data("t").len(), staged);
    assert!(w.engine().abort_stage("w", &format!("s{}", staged - 1)).unwrap());
    w.fs.set_free_space(None);
    w.stage("later", 0, &[("t", &[&big])]).unwrap();
}

#[test]
fn lost_rows_of_a_decision_are_damage() {
    use crate::types::options::RecoveryMode;
    let options = Options { wal_shards: 3, ..small() };
    let mut w = World::with(options);
    w.furnish_all();
    stage_all(&w);
    w.engine().sync().unwrap();
    for dir in ["shard-01", "shard-02"] {
        w.fs.fail_nth(CallFilter::on_path(CallKind::Write, dir), 1, FaultKind::EIO);
    }
    w.commit(FIRST, &[("a", 2)], TxnWork::default()).unwrap_err();
    w.fs.clear_faults();
    w.fs = Arc::new(SimFs::from_image(&w.fs.kill_image()));
    let env = w.env();
    let dir = std::path::Path::new(DIR).join("txn");
    for e in env.fs.list(&dir).unwrap() {
        env.fs.remove_file(&dir.join(e.name)).unwrap();
    }
    let refused = w.try_open().unwrap_err();
    assert_eq!(refused.code(), "corrupt");
    assert!(refused.to_string().contains("txn/stage-"), "{refused}");
    w.options.recovery = RecoveryMode::Salvage;
    w.open();
    w.options.recovery = RecoveryMode::Strict;
    w.kill();
    assert!(w.commit(FIRST, &[("a", 2)], TxnWork::default()).unwrap().deduped);
}

#[test]
fn appends_wait_while_a_transaction_is_decided() {
    let w = World::with(Options { background: true, ..small() });
    w.create("t", class(Durability::Disk));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    w.put("t", &["plain"]);
                    std::thread::yield_now();
                }
            });
        }
        let mut ok = 0;
        for _ in 0..200 {
            let head = w.state("t").head_seq;
            let records = [rec("row 1"), rec("row 2")];
            let rows = [TxnRows { topic: "t", records: &records, ..TxnRows::default() }];
            let heads = [("t", head)];
            let work = TxnWork { expect_heads: &heads, ..TxnWork::default() };
            match w.engine().transact(&TxnRequest { rows: &rows, work, ..TxnRequest::default() }) {
                Ok(c) => {
                    assert_eq!(c.topics[0].first_seq, head + 1, "the head is the one expected");
                    ok += 1;
                }
                Err(e) => assert_eq!(e.code(), "head_mismatch"),
            }
            let blind = w.once("t", &["row 1", "row 2"], b"").unwrap();
            assert_eq!(blind.topics[0].last_seq, blind.topics[0].first_seq + 1);
            ok += 1;
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let data = w.data("t");
        let rows = data.iter().filter(|d| d.starts_with("row")).count();
        assert_eq!(rows, 2 * ok);
        for pair in data.windows(2).filter(|p| p[0] == "row 1") {
            assert_eq!(pair[1], "row 2", "I5: the rows of a commit are one batch");
        }
    });
}

impl World {
    fn of(&self, owner: &str, writer: &str, epoch: u64) -> std::result::Result<bool, String> {
        let rows = [TxnRows { topic: "t", records: &[rec("1")], ..TxnRows::default() }];
        let (writer, epoch) = (Some(writer), Some(epoch));
        let req = TxnRequest { writer, epoch, owner, rows: &rows, ..TxnRequest::default() };
        let limit = |e: Error| match e {
            Error::Throttled { limit, .. } => limit.to_owned(),
            e => e.code().to_owned(),
        };
        self.engine().transact(&req).map(|c| c.deduped).map_err(limit)
    }

    fn known(&self) -> Vec<String> {
        self.engine().writers("", None).into_iter().map(|w| w.writer).collect()
    }
}

/// What ends the life of an engine, one way or another.
const ENDS: [fn(&mut World); 3] = [World::reopen, World::kill, |w| {
    w.checkpoint();
    w.kill();
}];

#[test]
fn writers_are_bounded_in_all_and_for_each_key() {
    const DAY: u64 = 86_400_000;
    for end in ENDS {
        let mut w = World::with(Options {
            max_txn_writers: 4,
            max_txn_writers_per_key: 2,
            txn_writer_ttl: Duration::from_millis(DAY),
            txn_ttl: Duration::from_millis(10 * DAY),
            ..small()
        });
        for (owner, writer) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
            assert_eq!(w.of(owner, writer, 7), Ok(false));
            w.clock.advance_ms(1_000);
        }
        end(&mut w);
        assert_eq!(w.of("a", "a3", 1), Err("max_txn_writers_per_key".into()));
        assert_eq!(w.of("", "free", 1), Ok(false), "only keys have a limit of their own");
        assert_eq!(w.of("b", "b2", 1), Err("max_txn_writers".into()));
        assert_eq!(w.of("a", "a1", 7), Ok(true), "a known one is always taken");
        assert_eq!(w.of("a", "a1", 6), Err("stale_epoch".into()));
        assert_eq!(w.engine().writer_owner("a1").as_deref(), Some("a"));
        // The writer that is idle for longest is forgotten, of the key if that is at its limit; a
        // writer with staged rows stays.
        w.clock.advance_ms(DAY);
        let rows = [TxnRows { topic: "t", records: &[rec("1")], ..TxnRows::default() }];
        let stage = StageRequest { stage: "s", part: 0, rows: &rows };
        w.engine().stage("a1", &stage).unwrap();
        assert_eq!(w.of("a", "a3", 1), Ok(false));
        assert_eq!(w.known(), ["a1", "a3", "b1", "free"]);
        assert_eq!(w.of("b", "b2", 1), Ok(false));
        assert_eq!(w.known(), ["a1", "a3", "b2", "free"]);
        end(&mut w);
        assert_eq!(w.known(), ["a1", "a3", "b2", "free"], "who is forgotten stays so");
        // A forgotten one begins anew, where there is room.
        assert_eq!(w.of("a", "a2", 1), Err("max_txn_writers_per_key".into()));
        assert!(w.engine().forget_writer("a1").unwrap());
        assert!(!w.engine().forget_writer("a1").unwrap());
        assert_eq!(w.engine().writer_state("a1").unwrap_err().code(), "txn_not_found");
        end(&mut w);
        assert_eq!(w.of("a", "a2", 1), Ok(false));
        assert_eq!(w.known(), ["a2", "a3", "b2", "free"]);
    }
}

#[test]
fn a_writer_is_handed_over() {
    for end in ENDS {
        let mut w = World::new();
        w.create("t", ConfigPatch::default());
        assert!(!w.engine().hand_over_writer("a1", "b").unwrap(), "nothing names its owner");
        assert_eq!(w.of("a", "a1", 7), Ok(false));
        assert!(w.engine().hand_over_writer("a1", "b").unwrap());
        end(&mut w);
        assert_eq!(w.engine().writer_owner("a1").as_deref(), Some("b"));
        assert_eq!(w.of("b", "a1", 7), Ok(true), "its last epoch is as it was");
        assert_eq!(w.of("b", "a1", 8), Ok(false));
    }
}

#[test]
fn keys_of_transactions_are_scoped_and_count_against_the_limit_of_keys() {
    for end in ENDS {
        let mut w = World::with(Options { max_idempotency_keys: 3, max_txn_writers: 1, ..small() });
        w.create("t", ConfigPatch::default());
        let once = |w: &World, owner: &str, key: &str, data: &str| {
            let rows = [TxnRows { topic: "t", records: &[rec(data)], ..TxnRows::default() }];
            let key = key.as_bytes();
            let req = TxnRequest { key, owner, rows: &rows, ..TxnRequest::default() };
            w.engine().transact(&req).map(|c| c.deduped).map_err(|e| e.to_string())
        };
        for owner in ["", "a", "b"] {
            assert_eq!(once(&w, owner, "k", owner), Ok(false), "another's key is another one");
        }
        end(&mut w);
        let full = once(&w, "a", "l", "1").unwrap_err();
        assert!(full.contains("idempotency_keys"), "{full}");
        assert_eq!(once(&w, "a", "k", "a"), Ok(true));
        assert!(once(&w, "a", "k", "other").is_err());
        assert_eq!(w.data("t"), ["", "a", "b"]);
        // They use up no writer, and finished ones free their entries.
        assert_eq!(w.of("", "w", 1), Ok(false));
        w.clock.advance_ms(120_000);
        w.engine().tick().unwrap();
        assert_eq!(once(&w, "a", "l", "1"), Ok(false));
    }
}
