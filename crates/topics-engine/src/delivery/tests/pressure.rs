//! What the engine does under pressure, by the clock of the simulation.

#![allow(
    clippy::disallowed_methods,
    reason = "permits are what is tested, or held against the log"
)]

use std::sync::Arc;
use std::sync::mpsc::channel;

use super::*;
use crate::delivery::governor::Verdict;
use crate::engine::Engine;
use crate::engine::open_engine::OpenEngine;
use crate::router::RouterRequest;
use crate::topic::tests::{rec, small};
use crate::types::api::{Append, Appended, NewRecord};
use crate::types::config::ConfigPatch;
use crate::types::error::Error;
use crate::types::options::Options;

fn open_engine(w: &World) -> Arc<OpenEngine> {
    w.engine().open_engine().clone()
}

pub(super) fn say(w: &World, verdict: Verdict) {
    let engine = open_engine(w);
    engine.deliverer.workers.shared().apply_verdict(engine.deliverer.base(), verdict);
}

pub(super) fn strain() -> Verdict {
    Verdict { pressure: 0.9, strained: true, ..Verdict::default() }
}

fn calm(w: &World) {
    say(w, Verdict::default());
}

fn urgent(w: &World, topic: &str, priority: i32) {
    w.create(topic, ConfigPatch { priority: Some(Some(priority)), ..ConfigPatch::default() });
}

#[test]
fn a_topic_that_was_just_served_rests_and_its_next_frame_holds_more() {
    let w = World::new();
    w.put("t", &["0"]);
    let mut watch = w.watch(&on(&[("t", tail())]));
    drain(&mut watch);
    say(&w, Verdict { pressure: 0.5, coalesce_ns: 20_000_000, ..Verdict::default() });
    w.say("t", "1");
    assert_eq!(drain(&mut watch), [record("t", 2, "1")], "it was idle: it does not wait");
    for i in 0..10 {
        w.say("t", &i.to_string());
        w.clock.advance_ms(1);
    }
    assert_eq!(drain(&mut watch), []);
    w.clock.advance_ms(10);
    w.engine().tick().unwrap();
    let Event::Records(frame) = watch.try_next().unwrap().unwrap() else { panic!() };
    assert_eq!(frame.batch().len(), 10, "one frame for ten writes");
    // Coalescing does not count as latency, so it makes no pressure.
    let m = w.engine().metrics();
    assert!(m.scheduling.sum_ns < 1_000_000, "{:?}", m.scheduling);
    assert!(m.delivery.sum_ns >= 20_000_000, "{:?}", m.delivery);
    // Without pressure, coalescing ends immediately.
    w.say("t", "x");
    w.say("t", "y");
    drain(&mut watch);
    w.say("t", "z");
    calm(&w);
    w.engine().tick().unwrap();
    assert!(drain(&mut watch).contains(&record("t", w.state("t").head_seq, "z")));
}

#[test]
fn under_strain_the_lowest_band_pauses_and_its_watchers_are_told() {
    let w = World::new();
    urgent(&w, "low", -500);
    urgent(&w, "high", 10);
    let notified = |topic| WatchRequest { paced: true, ..on(&[(topic, tail())]) };
    let (mut low, mut plain) = (w.watch(&notified("low")), w.watch(&on(&[("low", tail())])));
    let mut high = w.watch(&notified("high"));
    for s in [&mut low, &mut plain, &mut high] {
        drain(s);
    }
    say(&w, strain());
    w.say("low", "1");
    w.say("high", "1");
    assert_eq!(drain(&mut high), [record("high", 1, "1")]);
    assert_eq!(drain(&mut plain), [], "its push pauses");
    assert_eq!(w.seqs("low"), [1], "its data stays readable");
    // The next sample finds it waiting: −500 rises by a hundred a second.
    say(&w, strain());
    say(&w, strain());
    assert_eq!(drain(&mut low), [Paced("low".into(), 5000)], "told once");
    assert_eq!(drain(&mut plain), [], "who did not ask is not told");
    w.clock.advance_ms(4900);
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut low), []);
    w.clock.advance_ms(150);
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut low), [record("low", 1, "1")], "it has aged out of the band");
    assert_eq!(drain(&mut plain), [record("low", 1, "1")]);
    // The topic pauses again, its watchers are notified again, and it is served after the strain.
    w.say("low", "2");
    say(&w, strain());
    assert_eq!(drain(&mut low), [Paced("low".into(), 5000)]);
    calm(&w);
    w.engine().tick().unwrap();
    assert_eq!(drain(&mut low), [record("low", 2, "2")]);
    assert_eq!(drain(&mut plain), [record("low", 2, "2")]);
    assert_eq!(w.engine().metrics().strains, 1);
}

#[test]
fn under_strain_routers_come_after_watchers_of_the_same_priority() {
    let w = World::new();
    for t in ["routed", "watched"] {
        urgent(&w, t, 600);
    }
    urgent(&w, "copies", 600);
    let route = RouterRequest {
        source: "routed".into(),
        dest: "copies".into(),
        ..RouterRequest::default()
    };
    w.engine().create_router("r", &route).unwrap();
    let mut watch = w.watch(&on(&[("watched", tail())]));
    w.engine().tick().unwrap();
    drain(&mut watch);
    for (verdict, routed, watched) in [(Verdict::default(), 3, 2), (strain(), 2, 1)] {
        say(&w, verdict);
        w.put("routed", &["1"]);
        let engine = open_engine(&w);
        assert_eq!(engine.deliverer.workers.shared().bands()[routed], 1, "{verdict:?}");
        w.put("watched", &["1"]);
        assert_eq!(engine.deliverer.workers.shared().bands()[3], watched, "{verdict:?}");
        calm(&w);
        w.engine().tick().unwrap();
        drain(&mut watch);
    }
    assert_eq!(w.seqs("copies"), [1, 2], "nothing is lost");
}

#[test]
fn the_governor_is_fed_with_what_waits_and_how_late_it_is_served() {
    let w = World::with(Options { delivery_workers: 1, ..small() });
    let names: Vec<_> = (0..200).map(|i| format!("t{i}")).collect();
    let all = |data: &str| {
        for n in &names {
            w.put(n, &[data]);
        }
    };
    all("0");
    let topics = names.iter().map(|n| (n.clone(), tail())).collect();
    let mut watch = w.watch(&WatchRequest { topics, ..WatchRequest::default() });
    drain(&mut watch);
    let engine = open_engine(&w);
    let sample = || {
        w.clock.advance_ms(100);
        engine.deliverer.workers.shared().sample(engine.deliverer.ctx());
        w.engine().metrics().pressure_ppm
    };
    assert_eq!(sample(), 0, "idle");
    all("1");
    assert_eq!(sample(), 400_000, "200 topics for one worker are full depth");
    // Served a tenth of a second late, again and again.
    let mut seen = Vec::new();
    for _ in 0..30 {
        w.clock.advance_ms(100);
        w.engine().tick().unwrap();
        seen.extend(drain(&mut watch));
        all("2");
        sample();
    }
    let high = sample();
    assert!(high >= 799_000, "{high}");
    // Quiet again: it falls to nothing.
    w.engine().tick().unwrap();
    w.clock.advance_ms(100);
    w.engine().tick().unwrap();
    for _ in 0..60 {
        sample();
    }
    assert_eq!(sample(), 0);
    seen.extend(drain(&mut watch));
    let records = seen.iter().filter(|t| matches!(t, Record(..))).count();
    assert_eq!(records, 200 * 31, "throttling costs no record");
}

/// An engine whose staging is full, and what fills it.
fn crowded() -> (World, topics_storage::wal::StagingPermit) {
    let w = World::with(Options {
        staging_bytes: 4096,
        staging_wait: Duration::from_secs(3600),
        ..small()
    });
    w.put("t", &["0"]);
    let room = open_engine(&w).ctx().wal.reserve(0, 4096, None).unwrap();
    (w, room)
}

fn write(engine: &Engine, patient: bool) -> crate::types::error::Result<Appended> {
    let records: [NewRecord<'_>; 1] = [rec("1")];
    let req = Append { records: &records, disable_backpressure: patient, ..Append::default() };
    engine.append("t", &req)
}

#[test]
fn at_full_pressure_with_the_staging_full_writes_are_refused_at_once() {
    let (w, room) = crowded();
    say(&w, Verdict { pressure: 1.0, strained: true, ..Verdict::default() });
    // Settings let a write wait for an hour.
    let refused = write(w.engine(), false).unwrap_err();
    let Error::Throttled { limit, retry_after_ms, .. } = &refused else { panic!("{refused:?}") };
    assert_eq!((*limit, *retry_after_ms), ("staging_bytes", 1000));
    assert_eq!(refused.code(), "throttled");
    drop(room);
    let a = write(w.engine(), false).unwrap();
    assert_eq!(a.last_seq, 2, "there is room: no pressure refuses a write");
    assert_eq!(a.throttle_ns, 0, "nor makes one wait");
}

#[test]
fn with_backpressure_disabled_a_write_waits_and_so_do_all_below_full_pressure() {
    for (patient, pressure) in [(true, 1.0), (false, 0.5)] {
        let (w, room) = crowded();
        say(&w, Verdict { pressure, ..Verdict::default() });
        let (tx, rx) = channel();
        std::thread::scope(|s| {
            let engine = w.engine().clone();
            s.spawn(move || tx.send(write(&engine, patient)).unwrap());
            // A free permit of no bytes is refused as soon as the write waits for its own.
            while open_engine(&w).ctx().wal.reserve(0, 0, None).is_ok() {
                assert!(rx.try_recv().is_err(), "it did not wait");
                std::thread::yield_now();
            }
            drop(room);
            let a = rx.recv_timeout(LONG).unwrap().unwrap();
            assert!(a.last_seq == 2 && a.throttle_ns > 0, "{a:?}");
        });
    }
}
