//! A panic in a background loop closes the topic at fault, is counted, and ends nothing else.

use std::time::Duration;

use topics_env::LoopPanics;

use super::*;
use crate::delivery::{Event, WatchRequest, WatchStart};
use crate::router::RouterRequest;
use crate::types::config::TopicType;
use crate::types::error::Error;
use crate::types::queue::Claim;

/// Has the next turn of a loop panic, without the noise.
fn inject(w: &World, name: &'static str) {
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>().map_or("", String::as_str);
            if !text.starts_with("injected into") {
                hook(info);
            }
        }));
    });
    w.engine().guards().inject(name, 1);
}

fn count(w: &World, name: &str) -> u64 {
    let panics = w.engine().loop_panics();
    panics.iter().find(|p: &&LoopPanics| p.name == name).map_or(0, |p| p.count)
}

fn is_closed<T>(outcome: Result<T>) -> bool {
    match outcome {
        Ok(_) => false,
        Err(Error::StorageUnavailable { reason: "io", .. }) => true,
        Err(e) => panic!("{e}"),
    }
}

fn reads(w: &World, topic: &str) -> Result<ReadBatch> {
    w.engine().read(topic, &after(0))
}

/// Which of two topics is closed, and which is not.
fn closed_of<'a>(w: &World, topics: [&'a str; 2]) -> [&'a str; 2] {
    match topics.map(|t| is_closed(reads(w, t))) {
        [true, false] => topics,
        [false, true] => [topics[1], topics[0]],
        both => panic!("one of {topics:?} is to be closed: {both:?}"),
    }
}

fn background() -> World {
    World::with(Options { background: true, ..small() })
}

#[test]
fn a_sweep_that_panics_goes_on() {
    let w = World::new();
    for topic in ["a", "b"] {
        w.create(topic, ConfigPatch { ttl_ms: Some(1_000), ..ConfigPatch::default() });
        w.put(topic, &["1"]);
    }
    inject(&w, "sweep");
    let sweep = || {
        w.clock.advance_ms(6_000);
        let _ = w.engine().tick();
    };
    sweep();
    assert_eq!(count(&w, "sweep"), 1);
    let [closed, sound] = closed_of(&w, ["a", "b"]);
    assert!(is_closed(w.try_put(closed, &["2"])));
    w.put(sound, &["2"]);
    sweep();
    assert_eq!(w.state(sound).count, 0, "what has expired goes all the same");
    assert_eq!(count(&w, "sweep"), 1);
    w.engine().close().unwrap();
}

/// What was acked of a topic is there after the next open, whatever the snapshots between say.
#[test]
fn i1_a_checkpoint_that_panics_goes_on_without_the_topic() {
    for (name, clean) in [("copy", false), ("copy", true), ("install", false), ("install", true)] {
        let mut w = World::new();
        for topic in ["a", "b"] {
            w.put(topic, &["1", "2", "3"]);
        }
        w.checkpoint();
        for topic in ["a", "b"] {
            w.put(topic, &["4", "5"]);
        }
        inject(&w, name);
        w.engine().sync().unwrap();
        assert!(is_closed(w.engine().checkpoint()));
        let [closed, sound] = closed_of(&w, ["a", "b"]);
        for i in 0..4 {
            w.put(sound, &["more"]);
            w.checkpoint();
            assert_eq!(w.state(sound).head_seq, 6 + i);
        }
        assert_eq!(count(&w, name), 1);
        if clean {
            w.reopen()
        } else {
            w.kill()
        }
        assert_eq!(w.seqs(closed), [1, 2, 3, 4, 5], "{name}");
        assert_eq!(w.seqs(sound), [1, 2, 3, 4, 5, 6, 7, 8, 9], "{name}");
    }
}

#[test]
fn i1_a_batch_whose_application_panics_closes_its_topic() {
    for durability in CLASSES {
        let mut w = World::new();
        w.create("a", class(durability));
        w.put("b", &["1"]);
        w.engine().sync().unwrap();
        inject(&w, "apply");
        let _ = w.engine().append("a", &Append { sync: true, ..append_of(&[rec("1")]) });
        w.engine().sync().unwrap();
        assert_eq!(count(&w, "apply"), u64::from(durability != Durability::Ephemeral));
        if durability == Durability::Ephemeral {
            continue;
        }
        assert!(is_closed(w.try_put("a", &["2"])), "{durability:?}");
        w.put("b", &["2"]);
        w.checkpoint();
        w.reopen();
        assert_eq!(w.seqs("a"), [1], "{durability:?}");
        assert_eq!(w.seqs("b"), [1, 2]);
    }
}

fn append_of<'a>(records: &'a [NewRecord<'a>]) -> Append<'a> {
    Append { records, ..Append::default() }
}

/// A batch whose commit is not called blocks neither its writer nor a close.
#[test]
fn a_commit_that_is_lost_ends_with_the_shard() {
    for background in [false, true] {
        let mut w = World::with(Options { background, ..small() });
        w.put("a", &["1"]);
        w.put("b", &["1"]);
        w.engine().sync().unwrap();
        inject(&w, "commit");
        assert!(w.try_put("a", &["2"]).is_err());
        assert!(w.try_put("b", &["2"]).is_err(), "the shard takes nothing more");
        assert_eq!(w.seqs("b"), [1], "reads go on");
        assert!(w.engine().close().is_err());
        w.kill();
        assert_eq!(w.seqs("b"), [1]);
        assert_eq!(w.seqs("a")[0], 1);
    }
}

#[test]
fn a_callback_that_panics_is_its_own() {
    let w = World::new();
    let req = [rec("1")];
    w.engine().append_async("a", &append_of(&req), Box::new(|_| panic!("injected into a test")));
    w.engine().drive();
    w.engine().sync().unwrap();
    w.put("a", &["2"]);
    assert_eq!(w.seqs("a"), [1, 2]);
    assert_eq!(count(&w, "callback"), 1);
    w.engine().close().unwrap();
}

fn watch_of(topic: &str) -> WatchRequest {
    let start = WatchStart { from: ReadFrom::After(0), topic_id: None };
    WatchRequest { topics: vec![(topic.to_owned(), start)], ..WatchRequest::default() }
}

#[test]
fn delivery_that_panics_tells_its_watchers_and_goes_on() {
    for name in ["delivery", "delivery-worker"] {
        let w = World::with(Options { background: true, delivery_workers: 1, ..small() });
        w.put("a", &["1"]);
        w.engine().sync().unwrap();
        if name == "delivery-worker" {
            // It starts with the first watcher.
            inject(&w, name);
        }
        let mut watch = w.engine().watch(&watch_of("a")).unwrap();
        let mut next = || watch.next(Some(Duration::from_secs(60))).unwrap().unwrap();
        while !matches!(next(), Event::CaughtUp { .. }) {}
        if name == "delivery" {
            inject(&w, name);
        }
        // It may be closed by now.
        let _ = w.try_put("a", &["2"]);
        let reported = next();
        match (name, reported) {
            ("delivery", Event::Failed { error, .. }) => assert!(is_closed::<()>(Err(error))),
            ("delivery-worker", Event::Records(_)) => {}
            other => panic!("{other:?}"),
        }
        w.put("b", &["1"]);
        let mut watch = w.engine().watch(&watch_of("b")).unwrap();
        let reported = watch.next(Some(Duration::from_secs(60))).unwrap().unwrap();
        assert!(matches!(reported, Event::Records(_)), "{reported:?}");
        assert_eq!(count(&w, name), 1);
        w.engine().close().unwrap();
    }
}

#[test]
fn a_router_that_panics_stops_and_the_others_go_on() {
    let w = World::new();
    for (router, source, dest) in [("r1", "s1", "d1"), ("r2", "s2", "d2")] {
        w.put(source, &["before"]);
        let req = RouterRequest {
            source: source.into(),
            dest: dest.into(),
            create_dest: true,
            ..RouterRequest::default()
        };
        w.engine().create_router(router, &req).unwrap();
    }
    let work = || (0..4).for_each(|_| w.engine().tick().unwrap());
    work();
    inject(&w, "router");
    for source in ["s1", "s2"] {
        w.put(source, &["1"]);
        work();
    }
    assert!(w.engine().router("r1").unwrap().stopped_by.is_some());
    assert_eq!((w.state("d1").count, w.state("d2").count), (0, 1));
    w.put("s1", &["its source takes writes"]);
    w.engine().close().unwrap();
}

#[test]
fn waiting_claims_are_answered_when_serving_them_panics() {
    for name in ["claims", "claim-worker"] {
        let w = background();
        for queue in ["q", "p"] {
            let config = ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() };
            w.create(queue, config);
        }
        let wait = Duration::from_secs(20);
        let claim =
            |queue| w.engine().claim(queue, &Claim { node: b"n", wait, ..Claim::default() });
        inject(&w, name);
        std::thread::scope(|s| {
            let waiting = s.spawn(|| claim("q"));
            if name == "claims" {
                assert!(is_closed(waiting.join().unwrap()));
            } else {
                while count(&w, name) == 0 {
                    std::thread::yield_now();
                }
                w.put("q", &["1"]);
                assert_eq!(waiting.join().unwrap().unwrap().len(), 1);
            }
            let waiting = s.spawn(|| claim("p"));
            w.put("p", &["1"]);
            assert_eq!(waiting.join().unwrap().unwrap().len(), 1);
        });
        assert_eq!(count(&w, name), 1);
        w.engine().close().unwrap();
    }
}

#[test]
fn maintenance_that_panics_goes_on() {
    for name in ["maintenance", "checkpoint", "transactions", "reclaim"] {
        let w = background();
        w.put("a", &["1"]);
        inject(&w, name);
        // More than the mark of a round, so that one is due.
        w.put("a", &[&"x".repeat(2_000)]);
        let until = |done: &dyn Fn() -> bool| {
            while !done() {
                w.clock.advance_ms(60_000);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until(&|| count(&w, name) == 1);
        let before = w.engine().metrics().checkpoints;
        w.put("a", &[&"x".repeat(2_000)]);
        until(&|| w.engine().metrics().checkpoints > before);
        w.engine().close().unwrap();
    }
}
