//! Many watchers, and watchers with threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::delivery::governor::Verdict;
use crate::topic::tests::small;
use crate::types::config::ConfigPatch;
use crate::types::options::Options;

#[test]
fn a_thousand_watchers_share_each_frame() {
    let w = World::new();
    w.put("t", &["0"]);
    let mut all: Vec<_> = (0..1000).map(|_| w.watch(&on(&[("t", tail())]))).collect();
    all.iter_mut().for_each(|s| assert_eq!(drain(s), [caught("t", 1)]));
    let reads = w.engine().metrics().reads;
    for i in 0..10 {
        w.say("t", &i.to_string());
    }
    assert_eq!(w.engine().metrics().reads - reads, 10, "one read for all of them");
    for s in &mut all {
        assert_eq!(drain(s).len(), 10);
    }
}

#[test]
fn a_thousand_sessions_of_256_topics() {
    let w = World::new();
    let names: Vec<_> = (0..256).map(|i| format!("t{i:03}")).collect();
    for n in &names {
        w.put(n, &["0"]);
    }
    let req = WatchRequest {
        topics: names.iter().map(|n| (n.clone(), tail())).collect(),
        ..WatchRequest::default()
    };
    let mut all: Vec<_> = (0..1000).map(|_| w.watch(&req)).collect();
    for s in &mut all {
        assert_eq!(drain(s).len(), 256, "caught up with each");
    }
    for n in &names {
        w.put(n, &["1"]);
    }
    assert_eq!(w.engine().metrics().ready_topics, 256, "a topic waits once");
    w.engine().tick().unwrap();
    for s in &mut all {
        assert_eq!(drain(s).len(), 256);
    }
    drop(all);
    assert_eq!(w.engine().metrics().watch_streams, 0);
}

fn threaded() -> World {
    let options = Options { background: true, delivery_workers: 2, ..small() };
    let mut w = World::unopened(options);
    w.real_time = true;
    w.open();
    w
}

/// Reads until every topic's cursor is `last`; asserts I4 on the way. Returns the records.
fn follow(mut watch: Watch, topics: usize, last: u64, nap: Option<Duration>) -> u64 {
    let mut at: HashMap<String, u64> = HashMap::new();
    let mut records = 0;
    while at.len() < topics || at.values().any(|s| *s < last) {
        let event = watch.next(Some(LONG)).unwrap().expect("a watcher hangs");
        for seen in seen_in(&event) {
            match seen {
                Record(topic, seq, data) => {
                    let before = at.insert(topic, seq).unwrap_or(0);
                    assert_eq!(seq, before + 1, "I4");
                    assert_eq!(data, seq.to_string());
                    records += 1;
                }
                Gap(topic, from, to, _) => {
                    let before = at.insert(topic, to).unwrap_or(0);
                    assert_eq!(from, before + 1, "I4");
                }
                Caught(topic, seq) => assert_eq!(at.get(&topic).copied().unwrap_or(0), seq),
                other => panic!("{other:?}"),
            }
        }
        if let Some(nap) = nap {
            std::thread::sleep(nap);
        }
    }
    records
}

#[test]
fn with_threads_everybody_gets_everything_once() {
    const N: u64 = 1500;
    let w = threaded();
    let topics = ["a", "b", "c"];
    for t in topics {
        w.put(t, &["1"]);
    }
    let req = |queue_frames| WatchRequest { queue_frames, ..on(&topics.map(|t| (t, start()))) };
    std::thread::scope(|s| {
        let watchers: Vec<_> = [2, 3, 8, 1024, 1024]
            .into_iter()
            .enumerate()
            .map(|(i, frames)| {
                let watch = w.watch(&req(frames));
                let nap = (i == 1).then_some(Duration::from_micros(50));
                s.spawn(move || follow(watch, topics.len(), N, nap))
            })
            .collect();
        for t in topics {
            let w = &w;
            s.spawn(move || {
                for i in 2..=N {
                    w.put(t, &[&i.to_string()]);
                }
            });
        }
        for h in watchers {
            assert_eq!(h.join().unwrap(), N * 3);
        }
    });
}

#[test]
fn with_threads_and_a_cap_losses_are_told() {
    const N: u64 = 2000;
    let w = threaded();
    w.create("t", ConfigPatch { cap_records: Some(50), ..ConfigPatch::default() });
    w.put("t", &["1"]);
    std::thread::scope(|s| {
        let req = WatchRequest { queue_frames: 4, ..on(&[("t", start())]) };
        let watch = w.watch(&req);
        let h = s.spawn(move || follow(watch, 1, N, Some(Duration::from_millis(1))));
        for i in 2..=N {
            w.put("t", &[&i.to_string()]);
        }
        assert!(h.join().unwrap() >= 50);
    });
}

#[test]
fn a_close_wakes_who_waits() {
    let w = threaded();
    w.put("t", &["1"]);
    let mut watch = w.watch(&on(&[("t", tail())]));
    let mut other = w.watch(&on(&[("t", tail())]));
    let closer = other.closer();
    std::thread::scope(|s| {
        let a = s.spawn(move || {
            while let Ok(Some(_)) = watch.next(Some(LONG)) {}
            watch.next(None).unwrap_err().code()
        });
        let b = s.spawn(move || {
            while let Ok(Some(_)) = other.next(Some(LONG)) {}
            other.next(None).unwrap_err().code()
        });
        closer.close();
        assert_eq!(b.join().unwrap(), "shutting_down");
        w.engine().close().unwrap();
        assert_eq!(a.join().unwrap(), "shutting_down");
    });
}

/// When many topics wait for the workers, one that was just served coalesces for some milliseconds.
#[test]
fn with_threads_a_topic_that_coalesces_is_served_again() {
    let w = threaded();
    w.put("t", &["0"]);
    let mut watch = w.watch(&on(&[("t", start())]));
    let mut sees = |wanted: &dyn Fn(&Seen) -> bool| {
        while let Some(event) = watch.next(Some(LONG)).unwrap() {
            if seen_in(&event).iter().any(wanted) {
                return true;
            }
        }
        false
    };
    // From here on a worker serves the topic.
    assert!(sees(&|e| matches!(e, Caught(..))));
    for seq in 2..=6 {
        // A sample of the governor may end it at any time.
        pressure::say(&w, Verdict { coalesce_ns: 20_000_000, ..Verdict::default() });
        w.put("t", &["0"]);
        assert!(sees(&|e| matches!(e, Record(_, s, _) if *s == seq)), "{seq}");
    }
}

#[test]
fn topics_born_while_patterns_are_opened_are_not_missed() {
    let w = threaded();
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|s| {
        let (engine, halt) = (w.engine().clone(), stop.clone());
        s.spawn(move || {
            let r = [crate::topic::tests::rec("x")];
            for i in 0..100 {
                let append = crate::types::api::Append { records: &r, ..Default::default() };
                engine.append(&format!("p.{i}"), &append).unwrap();
            }
            halt.store(true, Ordering::SeqCst);
        });
        while !stop.load(Ordering::SeqCst) {
            let req =
                WatchRequest { patterns: vec![("p.*".into(), start())], ..Default::default() };
            let mut watch = w.watch(&req);
            let mut seen = 0;
            let until = Instant::now() + LONG;
            while seen < 100 {
                assert!(Instant::now() < until, "{seen} of 100");
                if let Some(e) = watch.next(Some(LONG)).unwrap() {
                    seen += seen_in(&e).iter().filter(|t| matches!(t, Record(..))).count();
                }
            }
        }
    });
}
