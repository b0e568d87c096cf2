//! Guarantees, filters, chains, fan-out, deletes and eviction in the destination, refusals, losses
//! in the source, deleted topics.

use topics_engine::{ConfigPatch, Discard, Durability, Guarantee, RouterRequest, TopicMatch};

use super::super::script::Script;
use super::class;

fn route(source: &str, dest: &str, guarantee: Guarantee) -> RouterRequest {
    let (source, dest) = (source.into(), dest.into());
    RouterRequest { source, dest, guarantee, ..RouterRequest::default() }
}

fn cap(records: u64, discard: Discard) -> ConfigPatch {
    ConfigPatch { cap_records: Some(records), discard: Some(discard), ..ConfigPatch::default() }
}

/// Tagged records with nodes.
fn say(s: &mut Script, topic: &str, n: usize) {
    s.put_with(topic, n, |i, w| {
        w.tag = ["keep", "other", ""][i % 3];
        w.node = ["", "n1"][i % 2];
    });
}

/// A filter, direct writes between the copies, deletes and eviction in the destination.
pub fn exactly_once(s: &mut Script) {
    s.make("s", &class(Durability::Disk));
    s.make("d", &class(Durability::Fsync));
    say(s, "s", 1);
    let filter = Some(TopicMatch::Eq(b"keep".to_vec()));
    s.route("r", &RouterRequest { filter, ..route("s", "d", Guarantee::ExactlyOnce) });
    for round in 0..5 {
        say(s, "s", 4);
        s.work();
        s.put("d", 1);
        s.sync();
        s.work();
        match round {
            1 => s.delete("d", 3),
            2 => s.make("d", &cap(4, Discard::Old)),
            3 => s.kill(),
            _ => s.checkpoint(),
        }
    }
}

/// The same without a filter or syncs, over several shards.
pub fn at_least_once(s: &mut Script) {
    for topic in ["s", "d"] {
        s.make(topic, &class(Durability::Disk));
    }
    let plain = route("s", "d", Guarantee::AtLeastOnce);
    s.route("r", &RouterRequest { preserve_tag: false, preserve_node: false, ..plain });
    for round in 0..6 {
        say(s, "s", 3);
        s.put("d", 1);
        s.work();
        say(s, "s", 1);
        match round {
            1 => s.delete("d", 4),
            2 => s.kill(),
            3 => s.sync(),
            4 => s.reopen(),
            _ => s.checkpoint(),
        }
        s.work();
    }
}

/// A chain of routers: copies of copies of copies.
pub fn chain(s: &mut Script) {
    for (topic, c) in [("a", Durability::Disk), ("b", Durability::Fsync), ("c", Durability::Disk)] {
        s.make(topic, &class(c));
    }
    s.route("ab", &route("a", "b", Guarantee::ExactlyOnce));
    s.route("bc", &route("b", "c", Guarantee::ExactlyOnce));
    s.route("cd", &route("c", "d", Guarantee::AtLeastOnce));
    for round in 0..4 {
        say(s, "a", 3);
        s.work();
        s.sync();
        s.work();
        say(s, "b", 1);
        s.work();
        match round {
            1 => s.kill(),
            2 => s.delete("b", 5),
            _ => s.checkpoint(),
        }
    }
}

/// One source, three destinations with different classes and guarantees.
pub fn fan_out(s: &mut Script) {
    s.make("s", &class(Durability::Disk));
    s.make("x", &class(Durability::Disk));
    s.make("y", &class(Durability::Fsync));
    s.route("sx", &route("s", "x", Guarantee::AtLeastOnce));
    s.route("sy", &route("s", "y", Guarantee::ExactlyOnce));
    let filter = Some(TopicMatch::Glob(b"k".to_vec()));
    s.route("sz", &RouterRequest { filter, ..route("s", "z", Guarantee::ExactlyOnce) });
    for round in 0..4 {
        say(s, "s", 4);
        s.work();
        s.put("x", 1);
        s.sync();
        s.work();
        match round {
            1 => s.reopen(),
            2 => s.delete("s", 5),
            _ => s.checkpoint(),
        }
    }
}

/// A destination that rejects records over its cap, and later has capacity again.
pub fn full(s: &mut Script) {
    s.make("s", &class(Durability::Disk));
    s.make("d", &ConfigPatch { durability: Some(Durability::Disk), ..cap(5, Discard::Reject) });
    s.route("r", &route("s", "d", Guarantee::ExactlyOnce));
    for round in 1..7u64 {
        say(s, "s", 3);
        s.work();
        s.pass(1_100);
        s.work();
        let stopped = s.engine().router("r").unwrap().stopped_by.is_some();
        assert_eq!(stopped, round > 1, "round {round}");
        match round {
            2 => s.delete("d", 4),
            3 => s.checkpoint(),
            4 => s.kill(),
            5 => s.delete("d", 9),
            _ => {}
        }
        s.pass(1_100);
        s.work();
        s.put("d", 1);
    }
}

/// A source that loses records before they are copied.
pub fn trimmed_source(s: &mut Script) {
    s.make("s", &ConfigPatch { durability: Some(Durability::Disk), ..cap(6, Discard::Old) });
    s.make("d", &class(Durability::Disk));
    s.route("r", &route("s", "d", Guarantee::ExactlyOnce));
    for round in 0..5 {
        say(s, "s", 4);
        s.look();
        if round % 2 == 1 {
            // No worker runs now: the cap evicts records that the router has not read.
            say(s, "s", 5);
            s.look();
            say(s, "s", 3);
        }
        s.work();
        s.put("d", 1);
        match round {
            1 => s.checkpoint(),
            2 => s.kill(),
            3 => s.sync(),
            _ => {}
        }
    }
}

/// A router that is deleted and created again.
pub fn rerouted(s: &mut Script) {
    s.make("s", &class(Durability::Disk));
    s.make("d", &class(Durability::Fsync));
    for round in 0..4 {
        s.route("r", &route("s", "d", Guarantee::ExactlyOnce));
        say(s, "s", 3);
        s.sync();
        s.work();
        say(s, "s", 1);
        s.unroute("r");
        say(s, "s", 2);
        s.work();
        match round {
            1 => s.checkpoint(),
            2 => s.kill(),
            _ => s.sync(),
        }
    }
}

/// Topics that are deleted under their routers, and new ones with the same names.
pub fn dropped_ends(s: &mut Script) {
    for round in 0..4 {
        s.make("s", &class(Durability::Disk));
        s.make("d", &class(Durability::Fsync));
        s.route("r", &route("s", "d", Guarantee::ExactlyOnce));
        s.route("de", &route("d", "e", Guarantee::AtLeastOnce));
        say(s, "s", 3);
        s.sync();
        s.work();
        say(s, "s", 1);
        match round {
            0 => s.drop_topic("s"),
            1 => s.checkpoint(),
            _ => s.sync(),
        }
        s.drop_topic("d");
        s.work();
        if round == 2 {
            s.kill();
        }
        if round > 0 {
            s.drop_topic("s");
        }
    }
}
