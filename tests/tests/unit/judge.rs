//! Tests of the judge: it must report every wrong journal.

use topics_engine::Durability;
use topics_tests::realfs::event::*;
use topics_tests::realfs::judge::*;
use topics_tests::realfs::payload::Origin;

const T: &str = "t";

fn write(op: u64, count: u32) -> Event {
    Event::Begin(op, Call::Write { rows: vec![(T.into(), count)], synced: false })
}

fn acked(op: u64, first: u64, last: u64) -> Event {
    Event::Acked { op, at: 0, placed: vec![Placed { topic: T.into(), id: 5, first, last }] }
}

fn seen(topic: &str, seq: u64, op: u64, index: u32, len: u32) -> Event {
    let origin = Origin { op, index };
    Event::Seen(Run { topic: topic.into(), id: 5, seq, origin, len })
}

fn topic(head: u64, count: u64) -> Event {
    Event::Topic { topic: T.into(), id: 5, head, count }
}

fn audit(events: Vec<Event>) -> Vec<Event> {
    let begin = std::iter::once(Event::Audit("a".into()));
    begin.chain(events).chain([Event::Audited { settled: true }]).collect()
}

fn judged(routes: Vec<Route>, events: &[Vec<Event>]) -> Judge {
    let mut judge = Judge::new(routes);
    events.iter().flatten().for_each(|e| judge.hear(e));
    judge
}

#[track_caller]
fn finds(what: &str, events: &[Vec<Event>]) {
    let judge = judged(Vec::new(), events);
    let found = judge.problems.iter().any(|p| p.contains(what));
    assert!(found, "{what:?} is not in {:#?}", judge.problems);
}

#[track_caller]
fn passes(events: &[Vec<Event>]) -> Judge {
    let judge = judged(Vec::new(), events);
    assert_eq!(judge.problems, Vec::<String>::new());
    judge
}

#[test]
fn what_was_acked_is_read() {
    let load = vec![write(1, 2), acked(1, 1, 2), write(2, 1), acked(2, 3, 3)];
    let all = vec![topic(3, 3), seen(T, 1, 1, 0, 2), seen(T, 3, 2, 0, 1)];
    let judge = passes(&[load.clone(), audit(all)]);
    assert_eq!((judge.figures.acked, judge.figures.read), (3, 3));
    finds(
        "I1: t: 1 records of 1 calls",
        &[load.clone(), audit(vec![topic(3, 2), seen(T, 1, 1, 0, 2)])],
    );
    finds(
        "I5: t: call 1 has 2 rows",
        &[
            vec![write(1, 2), Event::Refused { op: 1, certain: false, error: String::new() }],
            audit(vec![topic(1, 1), seen(T, 1, 1, 0, 1)]),
        ],
    );
    finds("is gone with all", &[load.clone(), audit(Vec::new())]);
    finds(
        "count 2, 3 are read",
        &[load, audit(vec![topic(3, 2), seen(T, 1, 1, 0, 2), seen(T, 3, 2, 0, 1)])],
    );
}

#[test]
fn a_seq_is_given_once() {
    finds("I2: t seq 2", &[vec![write(1, 2), acked(1, 1, 2), write(2, 1), acked(2, 2, 2)]]);
    finds("is at 1 and at 2", &[vec![write(1, 1), acked(1, 1, 1), seen(T, 2, 1, 0, 1)]]);
    finds("was answered twice", &[vec![write(1, 1), acked(1, 1, 1), acked(1, 1, 1)]]);
}

#[test]
fn what_failed_is_there_or_not_but_not_both() {
    let refused = |certain| Event::Refused { op: 1, certain, error: "no_space".into() };
    let there = || audit(vec![topic(1, 1), seen(T, 1, 1, 0, 1)]);
    let nothing = || audit(vec![topic(0, 0)]);
    let end = || vec![Event::End(End::Kill)];
    passes(&[vec![write(1, 1), refused(false)], end(), there(), end(), there()]);
    passes(&[vec![write(1, 1), refused(false)], end(), nothing(), end(), nothing()]);
    finds("it was refused", &[vec![write(1, 1), refused(true)], there()]);
    finds("or was absent", &[vec![write(1, 1), refused(false)], end(), nothing(), there()]);
    finds("I1", &[vec![write(1, 1), refused(false)], end(), there(), end(), nothing()]);
    finds("never made", &[there()]);
}

#[test]
fn deletes_take_what_was_there_and_nothing_later() {
    let delete = |op, before| Event::Begin(op, Call::Delete { topic: T.into(), before });
    let done = |op| Event::Acked { op, at: 0, placed: Vec::new() };
    let load = || vec![write(1, 1), acked(1, 1, 1), delete(2, 9), done(2)];
    passes(&[load(), audit(vec![topic(1, 0)])]);
    finds("came back", &[load(), audit(vec![topic(1, 1), seen(T, 1, 1, 0, 1)])]);
    let later = || vec![write(3, 1), acked(3, 2, 2)];
    passes(&[load(), later(), audit(vec![topic(2, 1), seen(T, 2, 3, 0, 1)])]);
    finds("I1", &[load(), later(), audit(vec![topic(2, 0)])]);
}

#[test]
fn a_power_cut_takes_only_what_is_reported() {
    let gap = |from| Event::Gap { topic: T.into(), from, to: 2, reason: "crash".into() };
    let class = |class| Event::Begin(9, Call::Create { topic: T.into(), class });
    let load = |c| vec![class(c), write(1, 1), acked(1, 1, 1), write(2, 1), acked(2, 2, 2)];
    let cut = || vec![Event::End(End::PowerCut)];
    let kept = || seen(T, 1, 1, 0, 1);
    let judge = passes(&[load(Durability::Disk), cut(), audit(vec![topic(2, 1), gap(2), kept()])]);
    assert_eq!((judge.figures.lost, judge.figures.tails), (1, 1));
    finds("I1", &[load(Durability::Disk), cut(), audit(vec![topic(2, 1), kept()])]);
    finds("I1", &[load(Durability::Fsync), cut(), audit(vec![topic(2, 1), gap(2), kept()])]);
    let kill = || vec![Event::End(End::Kill)];
    let after = || audit(vec![topic(2, 1), gap(2), kept()]);
    finds("without a power cut", &[load(Durability::Disk), kill(), after()]);
    finds("I2", &[load(Durability::Disk), cut(), after(), vec![write(3, 1), acked(3, 2, 2)]]);
    finds("I4: t: seq 2", &[vec![write(1, 1), acked(1, 1, 1)], audit(vec![topic(2, 1), kept()])]);
}

#[test]
fn jobs_are_in_one_place_and_transactions_everywhere() {
    let letters = vec![Route::DeadLetters { queue: T.into(), dest: "z".into() }];
    let dead = Event::Topic { topic: "z".into(), id: 6, head: 1, count: 1 };
    let letter = || {
        Event::Seen(Run {
            topic: "z".into(),
            id: 6,
            seq: 1,
            origin: Origin { op: 1, index: 0 },
            len: 1,
        })
    };
    let load = || vec![write(1, 1), acked(1, 1, 1)];
    let moved = audit(vec![topic(1, 0), dead.clone(), letter()]);
    assert!(judged(letters.clone(), &[load(), moved]).problems.is_empty());
    let both = audit(vec![topic(1, 1), seen(T, 1, 1, 0, 1), dead, letter()]);
    let problems = judged(letters.clone(), &[load(), both]).problems;
    assert!(problems[0].contains("1 jobs are in t and in z"), "{problems:?}");
    let neither = judged(letters, &[load(), audit(vec![topic(1, 0)])]).problems;
    assert!(neither[0].contains("I1"), "{neither:?}");

    let rows = vec![(T.to_owned(), 1), ("u".to_owned(), 1)];
    let txn = Event::Begin(1, Call::Write { rows, synced: true });
    finds("I5: transaction 1", &[vec![txn], audit(vec![topic(1, 1), seen(T, 1, 1, 0, 1)])]);
}
