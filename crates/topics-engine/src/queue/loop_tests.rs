//! Queues for event loops: what is there is given at once, and nothing is waited for.

use std::sync::mpsc;
use std::time::Duration;

use super::tests::{dead_letters, durable, got, queue, seqs, wait};
use crate::topic::tests::*;
use crate::types::api::Completion;
use crate::types::config::ConfigPatch;
use crate::types::error::Result;
use crate::types::queue::{Claim, LeaseOutcome, LeasedJobs};

fn acking(w: &World, seqs: &[u64]) -> Option<mpsc::Receiver<Result<LeaseOutcome>>> {
    let (tx, rx) = mpsc::channel();
    let held = LeasedJobs { node: b"a", seqs, lease_ids: None };
    let done: Completion<LeaseOutcome> = Box::new(move |outcome| drop(tx.send(outcome)));
    w.engine().ack_async("q", &held, done).is_ok().then_some(rx)
}

#[test]
fn jobs_that_are_there_are_given_within_the_call() {
    let w = World::new();
    w.create("q", queue());
    w.jobs(3);
    assert_eq!(got(&wait(&w, "a", 2, 30_000)), Some(vec![1, 2]));
    assert_eq!(got(&wait(&w, "a", 2, 30_000)), Some(vec![3]));
    // Nothing is there: it waits, and nobody is served before it.
    let first = wait(&w, "a", 1, 30_000);
    assert_eq!(got(&first), None);
    w.jobs(1);
    let second = wait(&w, "b", 1, 0);
    w.engine().tick().unwrap();
    assert_eq!((got(&first), got(&second)), (Some(vec![4]), Some(vec![])));
}

#[test]
fn what_has_to_be_waited_for_is_left_to_those_who_may() {
    // A lease that is logged.
    let w = World::new();
    w.create("q", durable());
    w.jobs(1);
    let rx = wait(&w, "a", 1, 0);
    w.engine().tick().unwrap();
    assert_eq!(got(&rx), Some(vec![1]));
    assert!(!w.engine().leases_at_once("q").unwrap());
    // A dead letter on its way to another topic.
    let w = World::new();
    w.create("q", dead_letters());
    w.jobs(2);
    for _ in 0..2 {
        assert_eq!(seqs(&w.claim("a", 1)), [1]);
        w.nack("a", &[1], Some(0));
    }
    assert_eq!(got(&wait(&w, "a", 2, 0)), Some(vec![2]), "behind it");
    assert_eq!(w.seqs("q"), [2]);
    assert_eq!(w.seqs("dead").len(), 1);
    assert!(w.engine().leases_at_once("q").unwrap());
    // A delete that is made alone.
    w.create("q", ConfigPatch { cap_records: Some(9), ..ConfigPatch::default() });
    assert!(acking(&w, &[2]).is_none());
    assert_eq!(w.ack("a", &[2], None).done, [2], "I6: its lease is as it was");
}

#[test]
fn an_ack_is_answered_when_its_class_is_reached() {
    let mut w = World::new();
    w.create("q", queue());
    w.jobs(3);
    assert_eq!(w.claim("a", 2).len(), 2);
    let rx = acking(&w, &[1, 3]).unwrap();
    // I6: who acks a job does not lose it to another meanwhile.
    w.clock.advance_ms(3_600_000);
    assert_eq!(got(&wait(&w, "b", 9, 0)), Some(vec![2, 3]));
    w.engine().drive();
    let settled = rx.try_recv().unwrap().unwrap();
    assert_eq!((settled.done, settled.skipped), (vec![1], vec![3]));
    let rx = acking(&w, &[9]).unwrap();
    assert_eq!(rx.try_recv().unwrap().unwrap().skipped, [9], "nothing to wait for");
    w.kill();
    assert_eq!(w.seqs("q"), [2, 3]);
    let claim = Claim { node: b"a", wait: Duration::ZERO, ..Claim::default() };
    assert!(w.engine().claim("q", &claim).is_ok());
}
