//! The order in which topics are served, through the engine.

use super::pressure::{say, strain};
use super::*;
use crate::topic::tests::small;
use crate::types::config::ConfigPatch;
use crate::types::options::Options;

/// One of each band.
const PRIORITIES: [i32; 5] = [-1, 0, 250, 500, 750];

/// An engine with one worker, topics `{band}.{n}` and a watcher of all of them.
fn bands(each: usize) -> (World, Vec<Watch>) {
    let w = World::with(Options { delivery_workers: 1, ..small() });
    let mut watches = Vec::new();
    for (band, priority) in PRIORITIES.into_iter().enumerate() {
        let names: Vec<_> = (0..each).map(|i| format!("{band}.{i}")).collect();
        for name in &names {
            let patch = ConfigPatch { priority: Some(Some(priority)), ..ConfigPatch::default() };
            w.create(name, patch);
        }
        let topics = names.iter().map(|n| (n.clone(), tail())).collect();
        watches.push(w.watch(&WatchRequest { topics, ..WatchRequest::default() }));
    }
    watches.iter_mut().for_each(|s| drop(drain(s)));
    (w, watches)
}

/// Serves `n` topics and says how many of each band got something.
fn served(w: &World, watches: &mut [Watch], n: usize) -> Vec<usize> {
    let engine = w.engine().open_engine().clone();
    engine.deliverer.workers.serve_some(&engine.deliverer, n);
    let frames = |s: &mut Watch| std::iter::from_fn(|| s.try_next().unwrap()).count();
    watches.iter_mut().map(frames).collect()
}

#[test]
fn full_bands_get_their_weights_within_each_round() {
    let (w, mut watches) = bands(20);
    let fill = |w: &World| {
        for band in 0..5 {
            for i in 0..20 {
                w.put(&format!("{band}.{i}"), &["x"]);
            }
        }
    };
    fill(&w);
    for round in 0..10 {
        assert_eq!(served(&w, &mut watches, 16), [1, 1, 2, 4, 8], "round {round}");
        // All bands stay full; what waits already keeps its place.
        fill(&w);
    }
}

#[test]
fn after_ten_seconds_nobody_waits_in_the_lowest_band_whatever_the_pressure() {
    let (w, mut watches) = bands(20);
    for (name, priority) in [("worst", -1000), ("poor", -250)] {
        w.create(name, ConfigPatch { priority: Some(Some(priority)), ..ConfigPatch::default() });
        watches.push(w.watch(&on(&[(name, tail())])));
    }
    watches.iter_mut().for_each(|s| drop(drain(s)));
    say(&w, strain());
    w.put("worst", &["1"]);
    w.put("poor", &["1"]);
    assert_eq!(served(&w, &mut watches, 9), [0; 7], "the lowest band has no credit");
    w.clock.advance_ms(10_000);
    // The top band is full of others.
    for i in 0..20 {
        w.put(&format!("4.{i}"), &["x"]);
    }
    assert_eq!(served(&w, &mut watches, 1), [0, 0, 0, 0, 0, 0, 1], "−250: the oldest of the top");
    let waiting = w.engine().open_engine().deliverer.workers.shared().bands();
    assert_eq!(waiting, [0, 1, 0, 0, 20], "−1000: in the first band that always has credit");
    assert_eq!(served(&w, &mut watches, 15)[5], 1, "within a round");
}
