//! Writes: classes, batches, groups, keys, conditions, rotation, shards.

use topics_engine::Durability;

use super::{CLASSES, class};
use crate::run::{Driver, batch};

const NAMES: [&str; 4] = ["eph", "mem", "disk", "safe"];

/// Every class beside every other, in single writes and in groups.
pub fn classes(d: &mut Driver) {
    d.open();
    for (name, c) in NAMES.iter().zip(CLASSES) {
        d.create(name, &class(c));
    }
    for round in 0..6 {
        for name in NAMES {
            d.append(name, &batch(1 + round % 3).tags(&["x", "y"]));
        }
        d.append("mem", &batch(2).sync());
        d.append("disk", &batch(1).sync().node("n1"));
        for name in NAMES {
            d.append_async(name, &batch(2));
        }
        d.append_async("disk", &batch(1).meta());
        d.drive();
        d.look();
        match round {
            1 => d.sync(),
            3 => d.sync_topic("mem"),
            _ => d.tick(),
        };
    }
    d.append("disk", &batch(3));
    d.append("mem", &batch(3));
}

/// Batches of many sizes, several of them in one group.
pub fn batches(d: &mut Driver) {
    d.open();
    for (i, n) in [1, 7, 2, 30, 3, 12].into_iter().enumerate() {
        d.append("a", &batch(n).size(10 + 30 * i).config(class(Durability::Fsync)));
        d.append("b", &batch(n / 2 + 1).size(60).node("left"));
        d.append_async("a", &batch(n));
        d.append_async("b", &batch(4).size(200).binary());
        d.append_async("c", &batch(2).meta().tags(&["k"]));
        d.append_async("a", &batch(3).binary());
        d.drive();
        if i % 2 == 1 {
            d.sync();
            d.look();
        }
    }
    d.append("a", &batch(1).size(3000));
    d.append("b", &batch(40).size(300));
    d.tick();
    d.append("c", &batch(5));
}

/// Keyed writes, repeated immediately, later, and after a restart.
pub fn idempotency(d: &mut Driver) {
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for i in 0..5 {
        for topic in ["safe", "disk"] {
            d.append(topic, &batch(2).key(format!("k{i}")));
            d.append(topic, &batch(2).key(format!("k{i}")));
            d.append(topic, &batch(1));
        }
        d.append_async("disk", &batch(3).key(format!("twice{i}")));
        d.append_async("disk", &batch(3).key(format!("twice{i}")));
        d.drive();
        d.append("safe", &batch(2).key("k0"));
        if i == 2 {
            d.checkpoint();
            d.reopen();
        }
        d.look();
    }
    d.kill();
    d.open();
    for i in 0..5 {
        d.append("safe", &batch(2).key(format!("k{i}")));
        d.append("disk", &batch(2).key(format!("k{i}")));
    }
    d.append("disk", &batch(2).key("last"));
    d.sync();
}

/// Writes over many WAL files.
pub fn rotation(d: &mut Driver) {
    d.tuning.wal_bytes = 4 << 10;
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for i in 0..36 {
        d.append("safe", &batch(1).size(100 + 17 * (i % 7)));
        d.append("disk", &batch(1 + i % 3).size(250).tags(&["t"]));
        if i % 9 == 4 {
            d.append("disk", &batch(12).size(500));
            d.look();
        }
        if i % 12 == 11 {
            d.tick();
        }
    }
    d.append_async("disk", &batch(2));
    d.append_async("safe", &batch(2));
    d.drive();
    d.sync();
}

/// Conditional appends with correct and wrong heads, alone and in a group.
pub fn conditions(d: &mut Driver) {
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for i in 0..9 {
        for topic in ["safe", "disk"] {
            d.append(topic, &batch(1 + i % 2).if_head());
            d.append(topic, &batch(1).if_wrong_head());
            d.append(topic, &batch(2).if_head().key(format!("c{i}")));
            d.append(topic, &batch(1));
        }
        if i == 4 {
            d.checkpoint();
            d.reopen();
        }
        if i % 3 == 2 {
            d.look();
            d.tick();
        }
    }
    d.append("disk", &batch(2).if_head().sync());
}

/// Several shards, several topics of each class.
pub fn shards(d: &mut Driver) {
    d.tuning.shards = 3;
    d.open();
    let topics = ["a", "b", "c", "d", "e", "f", "g"];
    for (i, name) in topics.iter().enumerate() {
        d.create(name, &class(CLASSES[i % 4]));
    }
    for round in 0..4 {
        for (i, name) in topics.iter().enumerate() {
            d.append(name, &batch(1 + (i + round) % 3).size(90));
        }
        for name in topics {
            d.append_async(name, &batch(2));
        }
        d.drive();
        match round {
            0 => d.sync_topic("c"),
            1 => d.checkpoint(),
            2 => d.sync(),
            _ => d.tick(),
        };
        d.delete("d", Some(3), None);
        d.look();
    }
}
