//! A disk that fills up: what is deleted on it gives space back, and writes go on.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::error::Error;
use crate::maintain;

/// A world whose disk is full after a while, with rounds that are due often.
fn tight(free: u64) -> World {
    let options = Options {
        checkpoint_interval: Duration::from_millis(50),
        checkpoint_bytes: 256 << 10,
        segment_max_events: 100,
        ..small()
    };
    let w = World::with(options);
    w.fs.set_free_space(Some(free));
    w
}

/// What the background thread does within `passes` of its turns.
fn turns(w: &World, passes: u32) {
    for _ in 0..passes {
        w.clock.advance_ms(200);
        maintain::pass(w.engine().core());
    }
}

fn no_space(outcome: Result<Appended>) -> bool {
    match outcome {
        Ok(_) => false,
        Err(Error::StorageUnavailable { reason: "no_space", .. }) => true,
        Err(e) => panic!("{e}"),
    }
}

/// Writes until the disk refuses.
fn fill(w: &World, topic: &str, acked: &mut BTreeMap<u64, String>) {
    for n in 0..20_000 {
        let value = format!("{n}.{}", "x".repeat(4000));
        match w.try_put(topic, &[&value]) {
            Ok(done) => acked.insert(done.first_seq, value),
            refused => return assert!(no_space(refused)),
        };
        if n % 20 == 0 {
            turns(w, 1);
        }
    }
    panic!("the disk never fills up");
}

fn kept(w: &World, topic: &str) -> BTreeMap<u64, String> {
    let (mut out, mut at) = (BTreeMap::new(), 0);
    loop {
        let b = w.read(topic, at);
        let text = |d: &[u8]| String::from_utf8(d.to_vec()).unwrap();
        out.extend(b.iter().map(|r| (r.seq, text(r.data))));
        at = b.next_from_seq;
        if b.caught_up {
            return out;
        }
    }
}

#[test]
fn what_is_deleted_on_a_full_disk_comes_back() {
    let mut w = tight(12 << 20);
    let topics = [("safe", Durability::Fsync), ("disk", Durability::Disk)];
    let mut acked: Vec<BTreeMap<u64, String>> = vec![BTreeMap::new(); 2];
    for (topic, durability) in topics {
        w.create(topic, class(durability));
    }
    for round in 0..12 {
        fill(&w, topics[round % 2].0, &mut acked[round % 2]);
        // More refusals, and rounds that find no space, change nothing.
        turns(&w, 5);
        for (i, (topic, _)) in topics.iter().enumerate() {
            assert_eq!(kept(&w, topic), acked[i], "I1, round {round}");
            let last = acked[i].keys().next_back().copied().unwrap_or(1);
            w.delete(topic, Some(last), None);
            acked[i].retain(|seq, _| *seq >= last);
        }
        turns(&w, 10);
        for (i, (topic, _)) in topics.iter().enumerate() {
            let done = w.try_put(topic, &["again"]);
            let done = done.unwrap_or_else(|e| panic!("round {round}: {e}"));
            acked[i].insert(done.first_seq, "again".into());
        }
    }
    w.reopen();
    for (i, (topic, _)) in topics.iter().enumerate() {
        assert_eq!(kept(&w, topic), acked[i], "I1");
    }
}

#[test]
fn a_full_disk_is_closed_cleanly() {
    let mut w = tight(4 << 20);
    let mut acked = BTreeMap::new();
    fill(&w, "disk", &mut acked);
    w.reopen();
    assert_eq!(kept(&w, "disk"), acked, "I1");
    assert_eq!(w.state("disk").head_seq, *acked.keys().next_back().unwrap());
}
