//! Checkpoints: copies into segments, seals, snapshots, trims.

use topics_engine::{Durability, TopicMatch};

use super::class;
use crate::run::{Driver, batch};

/// Rounds over several topics, some of them clean, with writes in flight between.
pub fn checkpoints(d: &mut Driver) {
    d.open();
    d.create("safe", &class(Durability::Fsync));
    d.create("mem", &class(Durability::Memory));
    for round in 0..5 {
        d.append("safe", &batch(3).tags(&["a", "b"]));
        d.append("disk", &batch(4).size(80));
        d.append("mem", &batch(2));
        d.append_async("disk", &batch(2));
        d.checkpoint();
        d.drive();
        if round % 2 == 0 {
            d.append("rare", &batch(1).meta());
            d.delete("disk", None, Some(TopicMatch::Eq(b"zz".to_vec())));
        }
        d.look();
    }
    d.append("disk", &batch(3));
    d.checkpoint();
    d.append("disk", &batch(3));
}

/// Segments of every shape: tags, attributes, holes, one record, many.
pub fn seals(d: &mut Driver) {
    d.tuning.segment_records = 6;
    d.tuning.segment_bytes = 2 << 10;
    d.open();
    for round in 0..5 {
        d.append("disk", &batch(7).tags(&["red", "green", "blue"]));
        d.append("disk", &batch(2).ttl(3_600_000).meta());
        d.append("big", &batch(2).size(900).binary());
        d.append("safe", &batch(5).config(class(Durability::Fsync)).node("n"));
        d.delete("disk", None, Some(TopicMatch::Eq(b"green".to_vec())));
        d.checkpoint();
        if round == 2 {
            d.tick();
        }
        d.look();
    }
    d.append("disk", &batch(1));
    d.checkpoint();
}

/// Two and more snapshots, and the trims that they allow.
pub fn snapshots(d: &mut Driver) {
    d.tuning.wal_bytes = 4 << 10;
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for round in 0..5 {
        for i in 0..6 {
            d.append("disk", &batch(2).size(200).tags(&["t"]));
            d.append("safe", &batch(1).size(100 + i));
        }
        d.checkpoint();
        d.append("disk", &batch(1));
        if round % 2 == 1 {
            d.checkpoint();
            d.checkpoint();
        }
        d.delete("safe", Some(3 * (round + 1)), None);
        d.tick();
        d.look();
    }
    d.reopen();
    d.append("disk", &batch(2));
    d.checkpoint();
}

/// Rounds over enough topics that one sync of the file system replaces the syncs of their files.
pub fn wide(d: &mut Driver) {
    d.tuning.wal_bytes = 64 << 10;
    d.open();
    for round in 0..2 {
        for i in 0..36 {
            d.append(&format!("t{i}"), &batch(1 + round));
        }
        d.checkpoint();
    }
    for _ in 0..40 {
        d.append("t0", &batch(1).sync());
    }
}
