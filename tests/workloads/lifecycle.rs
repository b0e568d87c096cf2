//! Topics that are created and deleted, configs that change, engines that are reopened.

use topics_engine::{ConfigPatch, Durability};

use super::{CLASSES, class};
use crate::run::{Driver, batch};

/// Topics are deleted and created again with the same name.
pub fn topics(d: &mut Driver) {
    d.open();
    for round in 0..5 {
        d.append("a", &batch(3).config(class(Durability::Fsync)));
        d.append("b", &batch(2).tags(&["t"]));
        d.create("c", &class(Durability::Memory));
        d.append("c", &batch(1));
        if round % 2 == 0 {
            d.checkpoint();
        }
        d.drop_topic(if round % 2 == 0 { "a" } else { "b" });
        d.append("a", &batch(1).config(class(Durability::Fsync)));
        d.drop_topic("c");
        d.look();
        d.drop_topic("a");
        if round == 2 {
            d.reopen();
        }
        d.append("b", &batch(2).sync());
        d.drop_topic("nobody");
    }
    d.append("a", &batch(2));
    d.checkpoint();
    d.checkpoint();
    d.drop_topic("b");
    d.checkpoint();
}

/// Classes and other fields change between writes.
pub fn configs(d: &mut Driver) {
    d.open();
    d.append("a", &batch(2));
    for (i, c) in [3, 2, 0, 2, 1, 3, 0, 3, 1, 2].into_iter().enumerate() {
        d.create("a", &class(CLASSES[c]));
        d.append("a", &batch(2));
        d.append_async("a", &batch(1));
        d.append_async("a", &batch(2));
        d.drive();
        d.sync_topic("a");
        let fields = ConfigPatch {
            priority: Some(Some(i as i32)),
            idempotency_window_ms: Some(1_000_000 + i as u64),
            dedupe_node: Some(i % 2 == 0),
            ..ConfigPatch::default()
        };
        d.create("b", &fields);
        d.append("b", &batch(1));
        if i % 3 == 1 {
            d.checkpoint();
        }
        d.look();
    }
    d.reopen();
    d.create("a", &class(Durability::Fsync));
    d.append("a", &batch(2));
}

/// Closes and opens repeatedly.
pub fn reopens(d: &mut Driver) {
    d.open();
    for (i, c) in CLASSES.iter().cycle().take(6).enumerate() {
        let name = ["w", "x", "y", "z"][i % 4];
        d.append(name, &batch(2).config(class(*c)));
        d.append("all", &batch(3).tags(&["a", "b"]));
        d.delete("all", Some(2 * i as u64), None);
        d.reopen();
        d.append(name, &batch(1));
        if i % 2 == 1 {
            d.checkpoint();
            d.append("all", &batch(2));
        }
        d.look();
    }
    d.close();
    d.open();
    d.append("all", &batch(1));
}

/// The number of shards changes twice, and topics move between shards.
pub fn resharding(d: &mut Driver) {
    let names = ["a", "b", "c", "d", "e"];
    for (round, shards) in [1, 3, 2, 1].into_iter().enumerate() {
        d.tuning.shards = shards;
        d.open();
        for (i, name) in names.iter().enumerate() {
            d.append(name, &batch(2).config(class(CLASSES[2 + i % 2])).tags(&["t"]));
            d.append(name, &batch(1 + round));
        }
        d.drop_topic("e");
        d.append("e", &batch(1));
        d.delete("a", Some(2 + round as u64), None);
        if round % 2 == 1 {
            d.checkpoint();
            d.append("b", &batch(2));
        }
        d.look();
        match round {
            0 | 2 => d.close(),
            _ => d.kill(),
        }
        d.drop_topic("e");
    }
    d.open();
    d.append("a", &batch(1));
    d.checkpoint();
    d.checkpoint();
    d.reopen();
}

/// Killed processes and power cuts during the run, with work between them.
pub fn crashes(d: &mut Driver) {
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for round in 0..4 {
        d.append("safe", &batch(2).tags(&["t"]));
        d.append("disk", &batch(3));
        d.append("mem", &batch(2).config(class(Durability::Memory)));
        d.append_async("disk", &batch(2));
        d.append_async("safe", &batch(2));
        d.delete("safe", Some(2 * round), None);
        if round % 2 == 0 {
            d.checkpoint();
            d.append("disk", &batch(2).key(format!("k{round}")));
        }
        if round == 1 {
            d.kill();
        } else {
            let cursor = d.fs().crash_cursor();
            let survival = topics_sim::Survival::DropAll;
            let mut end = cursor;
            while end.advance() {}
            d.power(&end.image(survival));
        }
        d.open();
        d.append("disk", &batch(1).key("k0"));
        d.look();
    }
    d.append("safe", &batch(1));
    d.sync();
}

/// Unused shards are removed, and one of them is used again.
pub fn retired(d: &mut Driver) {
    d.tuning.shards = 3;
    d.open();
    for name in ["a", "b", "c", "d"] {
        d.append(name, &batch(2).sync());
    }
    d.checkpoint();
    d.close();
    d.tuning.shards = 1;
    d.open();
    for round in 0..3 {
        d.append("a", &batch(1).sync());
        d.append("b", &batch(1));
        d.checkpoint();
        d.checkpoint();
        d.drop_topic("d");
        d.append("d", &batch(1 + round).sync());
        d.reopen();
    }
    d.checkpoint();
    d.append("a", &batch(1).sync());
    d.close();
    d.tuning.shards = 2;
    d.open();
    for name in ["a", "b", "c", "d"] {
        d.append(name, &batch(2).sync());
    }
    d.checkpoint();
    d.append("b", &batch(1).sync());
}
