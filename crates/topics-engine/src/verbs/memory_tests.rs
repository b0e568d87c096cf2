//! Writes that wait until a checkpoint has made memory free.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::topic::tests::*;
use crate::types::options::Options;

/// What takes this long hangs; far above what a slow machine takes.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);

type Outcome = Result<Appended>;

/// A world whose index takes more memory than it may: 250 records, and 100 that cause a checkpoint.
fn full(options: Options) -> World {
    let w = World::with(Options { memory_bytes: 24 * 100, ..options });
    w.put("t", &["x"; 250]);
    assert!(store(&w).is_memory_full());
    w
}

fn store(w: &World) -> Arc<Store> {
    w.engine().open.store().clone()
}

fn into(to: &Sender<Outcome>) -> Completion<Appended> {
    let to = to.clone();
    Box::new(move |outcome| to.send(outcome).unwrap())
}

fn submit_one(w: &World, to: &Sender<Outcome>) {
    let records = [rec("y")];
    let req = Append { records: &records, ..Append::default() };
    w.engine().append_async("t", &req, into(to));
}

/// A write that waits in an engine without threads.
fn wait_one(w: &World, to: &Sender<Outcome>) {
    let records = [rec("y")];
    let req = Append { records: &records, ..Append::default() };
    let at = store(w);
    let base = at.base();
    let p = Prepared::new(&base.options, "t", &req, base.time.steady(), 0).unwrap();
    wait_for_memory(&at, p, into(to), None);
}

fn refused(outcome: &Receiver<Outcome>) -> bool {
    match outcome.try_recv() {
        Ok(Err(Error::Throttled { limit: "memory_bytes", .. })) => true,
        Err(_) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn asynchronous_writes_wait_for_a_round_in_their_order() {
    let w = World::with(Options { memory_bytes: 24 * 100, background: true, ..small() });
    let at = store(&w);
    // The thread that runs rounds waits for this one.
    let round = at.disk.round.lock();
    w.put("t", &["x"; 250]);
    let (to, outcomes) = channel();
    for _ in 0..20 {
        submit_one(&w, &to);
    }
    assert!(outcomes.try_recv().is_err() && at.memory.any());
    assert_eq!(w.state("t").head_seq, 250, "nothing is staged");
    drop(round);
    for n in 1..=20 {
        let appended = outcomes.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(appended.first_seq, 250 + n);
    }
    assert_eq!(w.engine().metrics().throttled, 0);
}

#[test]
fn a_write_waits_behind_others_though_there_is_memory_again() {
    let w = full(small());
    let (to, outcomes) = channel();
    wait_one(&w, &to);
    // The table of calls has not attempted the first write again yet.
    w.checkpoint();
    submit_one(&w, &to);
    w.engine().drive();
    let seqs: Vec<u64> = outcomes.try_iter().map(|o| o.unwrap().first_seq).collect();
    assert_eq!(seqs, [251, 252]);
}

#[test]
fn a_write_is_refused_at_its_deadline_and_when_a_round_fails() {
    let w = full(small());
    let (to, outcomes) = channel();
    wait_one(&w, &to);
    w.clock.advance_ms(MEMORY_WAIT.as_millis() as u64 - 1);
    w.engine().attempt_waits();
    assert!(!refused(&outcomes));
    w.clock.advance_ms(1);
    w.engine().attempt_waits();
    assert!(refused(&outcomes));
    wait_one(&w, &to);
    store(&w).memory.round_failed();
    store(&w).round_ended();
    w.engine().attempt_waits();
    assert!(refused(&outcomes) && !store(&w).memory.any());
}

#[test]
fn an_engine_without_threads_and_one_with_enough_waiting_writes_refuse() {
    let w = full(small());
    let (to, outcomes) = channel();
    submit_one(&w, &to);
    assert!(refused(&outcomes), "its owner runs its checkpoints");

    let options = Options { background: true, staging_frames: 2, ..small() };
    let w = World::with(Options { memory_bytes: 24 * 100, ..options });
    let at = store(&w);
    let round = at.disk.round.lock();
    w.put("t", &["x"; 250]);
    for _ in 0..2 {
        submit_one(&w, &to);
        assert!(!refused(&outcomes));
    }
    submit_one(&w, &to);
    assert!(refused(&outcomes));
    drop(round);
    for _ in 0..2 {
        outcomes.recv_timeout(LONG).unwrap().unwrap();
    }
}

#[test]
fn a_close_ends_the_wait() {
    let mut w = full(small());
    let (to, outcomes) = channel();
    wait_one(&w, &to);
    w.close();
    assert!(matches!(outcomes.recv().unwrap(), Err(Error::Closed)));
}

#[test]
fn blocking_writes_run_one_round_between_them() {
    let w = full(small());
    let at = store(&w);
    let rounds = || w.engine().metrics().checkpoints;
    let before = rounds();
    std::thread::scope(|s| {
        let round = at.disk.round.lock();
        let writers = [(); 3].map(|()| s.spawn(|| w.put("t", &["y"]).first_seq));
        while at.memory.waiting() < 3 {
            std::thread::yield_now();
        }
        drop(round);
        let mut seqs = writers.map(|writer| writer.join().unwrap());
        seqs.sort_unstable();
        assert_eq!(seqs, [251, 252, 253]);
    });
    assert_eq!(rounds() - before, 1);
}
