//! Bounded exhaustive: every sequence of a few operations, over few topics.

use topics_engine::{ConfigPatch, Durability, TopicMatch};

use super::class;
use crate::run::{Driver, HookSpec, Recording, Setup, batch};

/// A kind of operation.
pub type Kind = (&'static str, fn(&mut Driver));

/// All kinds.
pub const KINDS: [Kind; 12] = [
    ("append to fsync", |d| {
        d.append("safe", &batch(2).tags(&["t"]));
    }),
    ("append to disk", |d| {
        d.append("disk", &batch(2).tags(&["t", "u"]));
    }),
    ("group of appends", |d| {
        d.append_async("disk", &batch(2));
        d.append_async("safe", &batch(1));
        d.append_async("new", &batch(1));
        d.drive();
    }),
    ("keyed append, twice", |d| {
        d.append("disk", &batch(2).key("k"));
        d.append("disk", &batch(2).key("k"));
    }),
    ("delete a prefix", |d| {
        d.delete("safe", Some(3), None);
    }),
    ("delete a tag", |d| {
        d.delete("disk", None, Some(TopicMatch::Eq(b"t".to_vec())));
    }),
    ("cap", |d| {
        let cap = ConfigPatch { cap_records: Some(2), ..ConfigPatch::default() };
        d.create("disk", &cap);
    }),
    ("change of class", |d| {
        d.create("disk", &class(Durability::Fsync));
        d.create("safe", &class(Durability::Disk));
    }),
    ("drop and make again", |d| {
        d.drop_topic("safe");
        d.append("safe", &batch(1).config(class(Durability::Fsync)));
    }),
    ("checkpoint", |d| {
        d.checkpoint();
    }),
    ("sync", |d| {
        d.sync();
    }),
    ("reopen", |d| {
        d.reopen();
    }),
];

/// Every non-empty sequence of at most two operations, as indexes into [`KINDS`].
pub fn pairs() -> Vec<Vec<usize>> {
    let one = (0..KINDS.len()).map(|a| vec![a]);
    let two = (0..KINDS.len()).flat_map(|a| (0..KINDS.len()).map(move |b| vec![a, b]));
    one.chain(two).collect()
}

/// Runs one sequence after a short prelude.
pub fn run(sequence: &[usize], seed: u64) -> Recording {
    let setup = Setup { workload: "sequence", seed, hook: HookSpec::None, faults: false };
    let mut d = Driver::new(setup);
    d.tuning.wal_bytes = 4 << 10;
    d.open();
    d.append("safe", &batch(2).config(class(Durability::Fsync)));
    d.append("disk", &batch(2).tags(&["t"]));
    for &i in sequence {
        (KINDS[i].1)(&mut d);
    }
    d.look();
    d.finish()
}
