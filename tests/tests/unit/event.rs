//! Tests of the journal's lines.

use topics_engine::Durability;
use topics_tests::realfs::event::*;
use topics_tests::realfs::payload::Origin;

#[test]
fn every_event_is_read_as_it_was_written() {
    let rows = vec![("a".to_owned(), 3), ("b".to_owned(), 1)];
    let place = Placed { topic: "a".into(), id: 7, first: 4, last: 6 };
    let run = Run { topic: "a".into(), id: 7, seq: 4, origin: Origin { op: 9, index: 0 }, len: 3 };
    let all = [
        Event::Begin(9, Call::Write { rows, synced: true }),
        Event::Begin(10, Call::Create { topic: "a".into(), class: Durability::Fsync }),
        Event::Begin(11, Call::Delete { topic: "a".into(), before: 5 }),
        Event::Begin(12, Call::Ack { queue: "q".into(), seq: 5 }),
        Event::Acked { op: 9, at: 77, placed: vec![place] },
        Event::Acked { op: 11, at: 78, placed: Vec::new() },
        Event::Refused { op: 9, certain: false, error: "no space left".into() },
        Event::Seen(run),
        Event::Audit("live".into()),
        Event::Topic { topic: "a".into(), id: 7, head: 6, count: 3 },
        Event::Gap { topic: "a".into(), from: 1, to: 2, reason: "crash".into() },
        Event::Audited { settled: true },
        Event::Note("fills the disk".into()),
        Event::Problem("a completion is missing".into()),
        Event::End(End::PowerCut),
    ];
    for event in all {
        assert_eq!(event.to_string().parse(), Ok(event));
    }
    assert!("acked x -".parse::<Event>().is_err());
}
