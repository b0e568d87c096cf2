//! Errors of failed jobs, removal, promotion, pause: live, waiting, and after every kind of end.

use std::time::Duration;

use topics_sim::{CallFilter, CallKind, FaultKind};

use super::tests::{dead_letters, durable, got, queue, seqs, wait};
use crate::topic::tests::*;
use crate::types::api::{Append, Durability, NewRecord};
use crate::types::config::ConfigPatch;
use crate::types::meta;
use crate::types::queue::{JobState, LeaseOutcome, LeasedJobs, QueueState, Redrive};

type End = (&'static str, fn(&mut World));

const ENDS: [End; 5] = [
    ("none", |_| ()),
    ("kill", World::kill),
    ("reopen", World::reopen),
    ("checkpoint and kill", |w| {
        w.checkpoint();
        w.kill();
    }),
    ("power cut", World::power_cut),
];

fn post(w: &World, records: &[NewRecord<'_>]) {
    w.engine().append("q", &Append { records, ..Append::default() }).unwrap();
}

fn fail(w: &World, seqs: &[u64], delay: u64, error: &str) -> LeaseOutcome {
    let held = LeasedJobs { node: b"a", seqs, lease_ids: None };
    w.engine().nack_with_error("q", &held, Some(delay), error).unwrap()
}

/// Seq, state, deliveries and error of every job.
fn jobs(w: &World) -> Vec<(u64, JobState, u32, Option<String>)> {
    let peeked = w.engine().peek("q", None, 99).unwrap();
    peeked.iter().map(|(j, _)| (j.seq, j.state, j.deliveries, j.error.clone())).collect()
}

fn state_of(w: &World, seq: u64) -> Option<JobState> {
    jobs(w).into_iter().find(|j| j.0 == seq).map(|j| j.1)
}

fn metas(w: &World, topic: &str) -> Vec<Vec<u8>> {
    w.read(topic, 0).iter().map(|r| r.meta.to_vec()).collect()
}

#[test]
fn a_peek_shows_no_further_job_after_its_bytes() {
    let w = World::new();
    w.create("q", queue());
    let large = "x".repeat(1 << 20);
    for _ in 0..30 {
        w.put("q", &[&large]);
    }
    w.put("q", &["small"]);
    assert_eq!(jobs(&w).iter().map(|j| j.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    let held = LeasedJobs { node: b"a", seqs: &(1..=30).collect::<Vec<_>>(), lease_ids: None };
    assert_eq!(w.claim("a", 30).len(), 30);
    w.engine().ack("q", &held).unwrap();
    assert_eq!(jobs(&w).len(), 1, "what is small is shown whole");
}

#[test]
fn the_latest_error_is_kept_with_a_job() {
    let text = |s: &str| Some(s.to_owned());
    for (name, end) in ENDS {
        for is_durable in [true, false] {
            let mut w = World::new();
            let class = ConfigPatch { durability: Some(Durability::Fsync), ..queue() };
            w.create("q", if is_durable { durable() } else { class });
            w.jobs(3);
            assert_eq!(w.claim("a", 9).len(), 3);
            assert_eq!(fail(&w, &[1, 2], 0, "first").done, [1, 2]);
            assert_eq!(seqs(&w.claim("a", 1)), [1]);
            assert_eq!(jobs(&w)[2], (3, JobState::Leased, 1, None));
            // A release without an error keeps the one before, another replaces it.
            fail(&w, &[1], 0, "");
            assert_eq!(seqs(&w.claim("a", 2)), [1, 2]);
            fail(&w, &[2], 60_000, "second \0 \u{fc}\n");
            fail(&w, &[1], 0, "");
            end(&mut w);
            let want = if name == "none" || is_durable {
                vec![
                    (1, JobState::Ready, 3, text("first")),
                    (2, JobState::Delayed, 2, text("second \0 \u{fc}\n")),
                    (3, JobState::Leased, 1, None),
                ]
            } else {
                (1..=3).map(|seq| (seq, JobState::Ready, 0, None)).collect()
            };
            assert_eq!(jobs(&w), want, "{name}, durable: {is_durable}");
        }
    }
}

#[test]
fn an_error_is_cut_at_a_kib_between_characters() {
    let w = World::new();
    w.create("q", queue());
    w.jobs(1);
    for (error, kept) in
        [("x".repeat(1024), 1024), ("x".repeat(5000), 1024), ("\u{20ac}".repeat(400), 1023)]
    {
        w.claim("a", 1);
        fail(&w, &[1], 0, &error);
        assert_eq!(jobs(&w)[0].3.as_deref(), Some(&error[..kept]));
    }
}

#[test]
fn a_dead_letter_has_the_error_until_it_is_redriven() {
    for (name, end) in ENDS {
        let mut w = World::new();
        let patch = ConfigPatch {
            max_deliveries: Some(1),
            durability: Some(Durability::Fsync),
            leases_durable: Some(true),
            ..dead_letters()
        };
        w.create("q", patch);
        w.jobs(2);
        w.claim("a", 2);
        fail(&w, &[1, 2], 0, "it \"broke\"");
        end(&mut w);
        w.engine().tick().unwrap();
        let metas = metas(&w, "dead");
        assert_eq!(metas.len(), 2, "{name}");
        for found in &metas {
            let get = |key| meta::get(found, key);
            assert_eq!(get("$dead_letter_error").as_deref(), Some("it \"broke\""), "{name}");
            assert_eq!(get("$dead_letter_deliveries").as_deref(), Some("1"), "{name}");
        }
        assert_eq!(w.engine().redrive("dead", &Redrive::default()).unwrap().moved, 2);
        assert!(w.read("q", 0).iter().all(|r| r.meta.is_empty()), "{name}");
        assert!(jobs(&w).iter().all(|j| j.3.is_none()), "{name}");
    }
}

#[test]
fn a_revived_job_has_no_error() {
    let w = World::new();
    w.create("q", ConfigPatch { max_deliveries: Some(1), ..queue() });
    w.jobs(1);
    w.claim("a", 1);
    fail(&w, &[1], 0, "broken");
    w.engine().tick().unwrap();
    assert_eq!(jobs(&w), [(1, JobState::Dead, 1, Some("broken".into()))]);
    assert_eq!(w.engine().redrive("q", &Redrive::default()).unwrap().moved, 1);
    assert_eq!(jobs(&w), [(1, JobState::Ready, 0, None)]);
}

#[test]
fn a_job_is_removed_in_every_state_but_leased() {
    for (name, end) in ENDS {
        let mut w = World::new();
        w.create("q", ConfigPatch { max_deliveries: Some(1), ..durable() });
        let due = w.clock_wall() + 90_000;
        // 1 dead, 2 delayed, 3 leased, 4 scheduled, 5 of a group, behind it 6, 7 fresh, 8 fresh.
        w.create("q", ConfigPatch { max_deliveries: Some(2), ..ConfigPatch::default() });
        w.jobs(3);
        post(&w, &[NewRecord { deliver_at: due, ..rec("4") }]);
        let grouped = |data| NewRecord { group: b"g", ..rec(data) };
        post(&w, &[grouped("5"), grouped("6")]);
        w.jobs(2);
        for _ in 0..2 {
            assert_eq!(seqs(&w.claim("a", 1)), [1]);
            fail(&w, &[1], 0, "x");
        }
        w.engine().tick().unwrap();
        assert_eq!(seqs(&w.claim("a", 2)), [2, 3]);
        fail(&w, &[2], 60_000, "");
        let states = [
            (1, Some(JobState::Dead)),
            (2, Some(JobState::Delayed)),
            (3, Some(JobState::Leased)),
            (4, Some(JobState::Delayed)),
            (5, Some(JobState::Ready)),
            // Behind the first of its group.
            (6, None),
            (7, Some(JobState::Ready)),
        ];
        for (seq, state) in states {
            assert_eq!(state_of(&w, seq), state, "{name}: {seq}");
        }
        end(&mut w);
        let s = w.engine().remove_jobs("q", &[7, 1, 3, 2, 4, 5, 7, 99], false).unwrap();
        assert_eq!((s.done, s.skipped), (vec![1, 2, 4, 5, 7], vec![3, 7, 99]), "{name}");
        let counts = QueueState { ready: 2, in_flight: 1, ..QueueState::default() };
        assert_eq!(s.queue, counts, "{name}");
        assert_eq!(w.seqs("q"), [3, 6, 8], "{name}");
        // Its holder finds out.
        let s = w.engine().remove_jobs("q", &[3], true).unwrap();
        assert_eq!((s.done, s.skipped), (vec![3], vec![]), "{name}");
        assert_eq!(w.ack("a", &[3], None).skipped, [3], "{name}");
        end(&mut w);
        assert_eq!(seqs(&w.claim("b", 9)), [6, 8], "{name}");
        assert_eq!(w.engine().queue_state("q").unwrap().in_flight, 2, "{name}");
    }
}

#[test]
fn a_removal_that_fails_leaves_the_job_as_it_was() {
    let w = World::new();
    w.create("q", durable());
    w.jobs(2);
    post(&w, &[NewRecord { delay_ms: 90_000, ..rec("3") }]);
    assert_eq!(seqs(&w.claim("a", 1)), [1]);
    let before = jobs(&w);
    let remove = |seqs: &[u64]| w.engine().remove_jobs("q", seqs, true);
    assert_eq!(remove(&vec![1; 10_001]).unwrap_err().code(), "batch_too_large");
    // It is tried once more, alone.
    w.fs.fail_from(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
    assert_eq!(remove(&[1, 2, 3]).unwrap_err().code(), "storage_unavailable");
    assert_eq!((w.fs.faults_fired() >= 2, jobs(&w)), (true, before));
    w.fs.clear_faults();
    assert_eq!(w.nack("a", &[1], Some(0)).done, [1], "its holder still has it");
    assert_eq!(remove(&[1, 2, 3]).unwrap().done, [1, 2, 3]);
}

#[test]
fn a_promoted_job_is_claimable_for_good() {
    for (name, end) in ENDS {
        for is_durable in [true, false] {
            let mut w = World::new();
            let class = ConfigPatch { durability: Some(Durability::Fsync), ..queue() };
            w.create("q", if is_durable { durable() } else { class });
            post(
                &w,
                &[
                    NewRecord { delay_ms: 90_000, lane: Some(2), ..rec("1") },
                    NewRecord { delay_ms: 90_000, ..rec("2") },
                    rec("3"),
                    NewRecord { delay_ms: 90_000, group: b"g", ..rec("4") },
                    NewRecord { group: b"g", ..rec("5") },
                ],
            );
            assert_eq!(seqs(&w.claim("a", 9)), [3], "{name}: 4 is before 5 in its group");
            fail(&w, &[3], 60_000, "busy");
            let s = w.engine().promote_jobs("q", &[4, 1, 3, 5, 99, 4]).unwrap();
            assert_eq!((s.done, s.skipped), (vec![4, 1, 3], vec![5, 99, 4]), "{name}");
            assert_eq!(s.queue, QueueState { ready: 4, delayed: 1, ..QueueState::default() });
            end(&mut w);
            let what = format!("{name}, durable: {is_durable}");
            assert_eq!(w.engine().queue_state("q").unwrap().delayed, 1, "{what}");
            let kept = name == "none" || is_durable;
            let third = jobs(&w).into_iter().find(|j| j.0 == 3).unwrap();
            let want = if kept { (1, Some("busy".into())) } else { (0, None) };
            assert_eq!((third.2, third.3), want, "{what}");
            // Of a lower lane, then by seq; once more after another end.
            assert_eq!(seqs(&w.claim("a", 9)), [1, 3, 4], "{what}");
            w.nack("a", &[1, 3, 4], Some(0));
            end(&mut w);
            assert_eq!(seqs(&w.claim("a", 9)), [1, 3, 4], "{what}, and once more");
            w.clock.advance_ms(90_000);
            assert!(seqs(&w.claim("b", 9)).contains(&2), "{what}");
        }
    }
}

#[test]
fn a_promoted_job_has_no_due_time_as_a_dead_letter() {
    let mut w = World::new();
    w.create("q", ConfigPatch { max_deliveries: Some(1), ..dead_letters() });
    post(&w, &[NewRecord { delay_ms: 3_600_000, ..rec("1") }]);
    assert_eq!(w.engine().promote_jobs("q", &[1]).unwrap().done, [1]);
    w.reopen();
    assert_eq!(seqs(&w.claim("a", 1)), [1]);
    fail(&w, &[1], 0, "");
    w.engine().tick().unwrap();
    assert_eq!(meta::get(&metas(&w, "dead")[0], "$dead_letter_deliver_at"), None);
    w.engine().redrive("dead", &Redrive::default()).unwrap();
    assert_eq!(w.claim("a", 1).len(), 1, "it does not wait again");
}

#[test]
fn a_waiting_claim_gets_a_promoted_job() {
    for patch in [queue(), durable()] {
        let w = World::new();
        w.create("q", patch);
        post(&w, &[NewRecord { delay_ms: 90_000, ..rec("1") }]);
        let rx = wait(&w, "a", 1, 30_000);
        w.engine().tick().unwrap();
        assert_eq!(got(&rx), None);
        w.engine().promote_jobs("q", &[1]).unwrap();
        w.engine().tick().unwrap();
        assert_eq!(got(&rx), Some(vec![1]));
    }
}

#[test]
fn a_paused_queue_lets_claims_wait_until_it_goes_on() {
    let paused = |paused| ConfigPatch { paused: Some(paused), ..ConfigPatch::default() };
    let mut w = World::new();
    w.create("q", queue());
    w.jobs(2);
    assert_eq!(seqs(&w.claim("a", 1)), [1]);
    w.create("q", paused(true));
    assert!(w.state("q").config.paused);
    let rx = wait(&w, "b", 1, 30_000);
    w.engine().tick().unwrap();
    assert!(w.claim("b", 9).is_empty());
    // What is leased can be acked and nacked; the counts go on.
    w.nack("a", &[1], Some(0));
    w.engine().tick().unwrap();
    assert_eq!(got(&rx), None);
    let counts = w.engine().queue_state("q").unwrap();
    assert_eq!((counts.ready, counts.in_flight), (2, 0));
    w.create("q", paused(false));
    w.engine().tick().unwrap();
    assert_eq!(got(&rx), Some(vec![1]), "the claim that waited");
    // A stream waits too, and a pause survives a restart.
    w.create("q", paused(true));
    w.reopen();
    let work = w.engine().work("q", b"s", 1, None).unwrap();
    assert!(work.next(Duration::ZERO).unwrap().is_empty());
    w.create("q", paused(false));
    assert_eq!(seqs(&work.next(Duration::ZERO).unwrap()), [1]);
}

#[test]
fn counts_follow_the_clock_while_no_worker_is_there() {
    let mut w = World::new();
    let patch = ConfigPatch { lease_ms: Some(1_000), max_deliveries: Some(1), ..durable() };
    w.create("q", patch);
    w.jobs(2);
    post(&w, &[NewRecord { delay_ms: 5_000, ..rec("3") }]);
    assert_eq!(seqs(&w.claim("a", 1)), [1]);
    let counts = |w: &World| {
        let s = w.engine().survey(&[], 0).unwrap().jobs;
        (s.ready, s.in_flight, s.delayed, s.dead)
    };
    assert_eq!(counts(&w), (1, 1, 1, 0));
    w.clock.advance_ms(1_000);
    w.engine().tick().unwrap();
    assert_eq!(counts(&w), (1, 0, 1, 1), "the lease has ended, the job is dead");
    w.clock.advance_ms(4_000);
    assert_eq!(counts(&w), (2, 0, 0, 1), "the due time has come");
    w.checkpoint();
    w.reopen();
    w.engine().tick().unwrap();
    assert_eq!(counts(&w), (2, 0, 0, 1), "before the first claim after an open");
}

#[test]
fn jobs_that_wait_in_segments_are_counted_before_the_first_claim() {
    let mut w = World::new();
    w.create("q", queue());
    post(&w, &[NewRecord { delay_ms: 50_000, ..rec("1") }, rec("2")]);
    w.checkpoint();
    w.reopen();
    w.engine().tick().unwrap();
    let jobs = w.engine().survey(&[], 0).unwrap().jobs;
    assert_eq!((jobs.ready, jobs.delayed), (1, 1));
}
