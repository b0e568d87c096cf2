//! A watcher that stops reading: bounded memory, nothing lost but what retention took.

use super::*;
use crate::types::config::ConfigPatch;

fn narrow(topic: &str) -> WatchRequest {
    WatchRequest { queue_frames: 6, ..on(&[(topic, tail())]) }
}

#[test]
fn it_lags_resumes_and_misses_nothing() {
    let w = World::new();
    w.put("t", &["0"]);
    let mut slow = w.watch(&narrow("t"));
    let mut quick = w.watch(&on(&[("t", tail())]));
    drain(&mut slow);
    drain(&mut quick);
    for i in 0..100 {
        w.say("t", &i.to_string());
        assert!(slow.queued().0 <= 6);
        assert_eq!(drain(&mut quick).len(), 1, "the others are served as ever");
    }
    assert_eq!(w.engine().metrics().watch_lags, 1);
    let seen = drain(&mut slow);
    let want: Vec<_> = (0..100).map(|i| record("t", i + 2, &i.to_string())).collect();
    assert_eq!(seen[..100], want, "I4: each once, in order");
    assert_eq!(seen[100..], [caught("t", 101)], "from backlog to live again");
    w.say("t", "live");
    assert_eq!(drain(&mut slow), [record("t", 102, "live")]);
}

#[test]
fn what_retention_took_meanwhile_is_a_tombstone_exactly_once() {
    let w = World::new();
    w.create("t", ConfigPatch { cap_records: Some(10), ..ConfigPatch::default() });
    w.put("t", &["0"]);
    let mut slow = w.watch(&narrow("t"));
    drain(&mut slow);
    for i in 2..=50u64 {
        w.say("t", &i.to_string());
    }
    let seen = drain(&mut slow);
    let mut next = 2;
    let mut gaps = 0;
    for t in &seen {
        match t {
            Record(_, seq, _) => {
                assert_eq!(*seq, next);
                next += 1;
            }
            Gap(_, from, to, reason) => {
                assert_eq!((*from, *to, *reason), (next, 40, "cap"));
                next = to + 1;
                gaps += 1;
            }
            other => assert_eq!(*other, caught("t", 50)),
        }
    }
    assert_eq!((next, gaps), (51, 1));
}

#[test]
fn bytes_bound_the_queue_too() {
    let w = World::new();
    w.put("t", &["0"]);
    let mut req = on(&[("t", tail())]);
    req.queue_bytes = 64 << 10;
    let mut slow = w.watch(&req);
    drain(&mut slow);
    let big = "x".repeat(10 << 10);
    for _ in 0..50 {
        w.say("t", &big);
        assert!(slow.queued().1 <= 64 << 10, "{:?}", slow.queued());
    }
    let seen = drain(&mut slow);
    assert_eq!(seen.len(), 51);
}

#[test]
fn one_full_topic_does_not_stop_the_others_for_good() {
    let w = World::new();
    w.put("a", &["0"]);
    w.put("b", &["0"]);
    let mut req = on(&[("a", tail()), ("b", tail())]);
    req.queue_frames = 4;
    let mut slow = w.watch(&req);
    drain(&mut slow);
    for _ in 0..9 {
        w.say("a", "x");
    }
    w.say("b", "y");
    let seen = drain(&mut slow);
    let of = |name: &str| {
        let mine = |t: &&Seen| matches!(t, Record(n, _, _) if n == name);
        seen.iter().filter(mine).count()
    };
    assert_eq!((of("a"), of("b")), (9, 1));
    w.say("b", "z");
    assert_eq!(drain(&mut slow), [record("b", 3, "z")]);
}

#[test]
fn a_stream_that_stalls_is_ended() {
    let w = World::new();
    w.put("t", &["0"]);
    let mut req = narrow("t");
    req.stall_ms = Some(30_000);
    let mut slow = w.watch(&req);
    let mut idle = w.watch(&req);
    drain(&mut slow);
    drain(&mut idle);
    w.clock.advance_ms(3_600_000);
    for i in 0..20 {
        w.say("t", &i.to_string());
        drain(&mut idle);
    }
    w.clock.advance_ms(29_999);
    w.engine().tick().unwrap();
    // Progress of any kind counts.
    assert!(slow.try_next().unwrap().is_some());
    w.clock.advance_ms(29_999);
    w.engine().tick().unwrap();
    assert!(slow.try_next().unwrap().is_some());
    w.clock.advance_ms(30_000);
    w.engine().tick().unwrap();
    assert_eq!(slow.try_next().unwrap_err().code(), "throttled");
    assert_eq!(slow.queued(), (0, 0));
    w.say("t", "x");
    assert_eq!(drain(&mut idle).len(), 1, "an idle stream is not a stalled one");
}
