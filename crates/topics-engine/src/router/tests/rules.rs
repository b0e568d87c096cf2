//! What routers do, and what is refused.

use super::*;
use crate::router::Guarantee;
use crate::topic::tests::{CLASSES, class, eq, rec, small};
use crate::types::api::{Append, Durability, NewRecord, TopicMatch};
use crate::types::config::{ConfigPatch, Discard};
use crate::types::error::Error;
use crate::types::options::{AutoCreate, Options};

#[test]
fn copies_what_is_written_from_now_on() {
    let w = World::new();
    w.put("s", &["before"]);
    w.router("r", &route("s", "d"));
    w.put("s", &["1", "2"]);
    w.work();
    w.put("d", &["direct"]);
    w.put("s", &["3"]);
    w.work();
    assert_eq!(w.datas("d"), ["1", "2", "direct", "3"]);
    let info = w.engine().router("r").unwrap();
    assert_eq!((info.forwarded_total, info.lag), (3, 0));
    assert!(info.stopped_by.is_none());
    assert_eq!(w.engine().metrics().router_copies, 3);
    // Deletes do not travel.
    w.delete("s", Some(100), None);
    w.work();
    assert_eq!(w.datas("d").len(), 4);
}

#[test]
fn every_pair_of_classes() {
    for from in CLASSES {
        for to in CLASSES {
            let w = World::new();
            w.create("s", class(from));
            w.create("d", class(to));
            w.router("r", &route("s", "d"));
            w.put("s", &["1", "2"]);
            w.work();
            w.engine().sync().unwrap();
            w.work();
            w.engine().sync().unwrap();
            w.work();
            assert_eq!(w.datas("d"), ["1", "2"], "{from:?} to {to:?}");
        }
    }
}

#[test]
fn a_synced_destination_waits_for_the_source() {
    let w = World::new();
    w.create("s", class(Durability::Disk));
    w.create("d", class(Durability::Fsync));
    w.router("r", &route("s", "d"));
    w.put("s", &["1"]);
    w.work();
    assert_eq!(w.engine().router("r").unwrap().lag, 1);
    w.engine().sync().unwrap();
    w.work();
    w.engine().sync().unwrap();
    w.work();
    assert_eq!(w.engine().router("r").unwrap().lag, 0);
    assert_eq!(w.datas("d"), ["1"]);
}

#[test]
fn carries_over_what_it_is_asked_to() {
    let w = World::new();
    w.put("s", &["0"]);
    let plain = RouterRequest { preserve_node: false, preserve_tag: false, ..route("s", "bare") };
    w.router("all", &route("s", "full"));
    w.router("bare", &plain);
    let once = RouterRequest { guarantee: Guarantee::ExactlyOnce, ..route("s", "once") };
    w.router("once", &once);
    let r = [NewRecord { node: b"n", tag: b"t", meta: b"{\"k\":\"v\"}", binary: true, ..rec("x") }];
    w.engine().append("s", &Append { records: &r, ..Append::default() }).unwrap();
    w.work();
    let parts = |topic: &str| {
        let b = w.read(topic, 0);
        let r = b.get(0).unwrap();
        let text = |d: &[u8]| String::from_utf8(d.to_vec()).unwrap();
        (text(r.node), text(r.tag), text(r.meta), r.binary)
    };
    let meta = "{\"k\":\"v\"}".to_owned();
    assert_eq!(parts("full"), ("n".into(), "t".into(), meta.clone(), true));
    assert_eq!(parts("bare"), (String::new(), String::new(), meta, true));
    let s = w.state("s");
    let own = format!("{{\"_topics_router\":\"once:{}:{}:2\",\"k\":\"v\"}}", s.topic_id, s.epoch);
    assert_eq!(parts("once").2, own);
}

#[test]
fn filters_by_tag() {
    let w = World::new();
    w.put("s", &["0"]);
    let glob = Some(TopicMatch::Glob(b"eu:".to_vec()));
    w.router("one", &RouterRequest { filter: eq("eu:1"), ..route("s", "one") });
    w.router("eu", &RouterRequest { filter: glob, ..route("s", "eu") });
    w.tagged("s", &["eu:1", "us:1", "eu:2", "eu:1"]);
    w.work();
    assert_eq!(w.datas("one"), ["eu:1", "eu:1"]);
    assert_eq!(w.datas("eu"), ["eu:1", "eu:2", "eu:1"]);
    w.tagged("s", &["us:2"]);
    w.work();
    assert_eq!(w.engine().router("one").unwrap().lag, 0, "what is passed over is no lag");
}

#[test]
fn refusals() {
    let w = World::new();
    w.put("a", &["0"]);
    w.router("ab", &route("a", "b"));
    w.router("bc", &route("b", "c"));
    let refused =
        |name: &str, req: &RouterRequest| w.engine().create_router(name, req).unwrap_err();
    match refused("ca", &route("c", "a")) {
        Error::RouterCycle { path, .. } => assert_eq!(path, ["c", "a", "b", "c"]),
        e => panic!("{e}"),
    }
    for allow_cycle in [false, true] {
        let refused = refused("aa", &RouterRequest { allow_cycle, ..route("a", "a") });
        assert_eq!(refused.code(), "invalid_request", "{refused}");
        assert!(refused.to_string().contains("to itself"), "{refused}");
    }
    match refused("xb", &route("c", "b")) {
        Error::RouterConflict { reason, existing_source, existing_dest, .. } => {
            assert_eq!(reason, "router_dest_fan_in");
            assert_eq!((existing_source.as_str(), existing_dest.as_str()), ("a", "b"));
        }
        e => panic!("{e}"),
    }
    let no = RouterRequest { create_dest: false, ..route("a", "none") };
    assert_eq!(refused("x", &no).code(), "topic_not_found");
    assert_eq!(refused("bad name", &route("a", "y")).code(), "invalid_request");
    // The same again changes nothing; another filter updates; other topics are refused.
    assert!(!w.engine().create_router("ab", &route("a", "b")).unwrap());
    let update = RouterRequest { filter: eq("t"), ..route("a", "b") };
    assert!(!w.engine().create_router("ab", &update).unwrap());
    assert_eq!(w.engine().router("ab").unwrap().request, update);
    for (source, dest) in [("a", "z"), ("z", "b"), ("b", "a")] {
        match refused("ab", &route(source, dest)) {
            Error::RouterConflict { reason, existing_source, existing_dest, .. } => {
                assert_eq!(reason, "router_repoint_forbidden");
                assert_eq!((existing_source.as_str(), existing_dest.as_str()), ("a", "b"));
            }
            e => panic!("{e}"),
        }
    }
    assert_eq!(refused("ab", &route("a", "z")).code(), "topic_exists_incompatible");
    assert!(w.engine().state("z", false).is_err(), "a refusal creates nothing");
    assert_eq!(w.engine().router("zz").unwrap_err().code(), "router_not_found");
    let names: Vec<_> = w.engine().routers("").into_iter().map(|r| r.router).collect();
    assert_eq!(names, ["ab", "bc"]);
    assert_eq!(w.engine().routers("b").len(), 1);
}

#[test]
fn missing_topics_are_created_by_the_rule_of_writes() {
    let exists = |w: &World, name: &str| w.engine().state(name, false).is_ok();
    let w = World::new();
    w.router("s->d", &route("s", "d"));
    assert!(exists(&w, "s") && exists(&w, "d"));
    w.put("s", &["1"]);
    w.work();
    assert_eq!(w.datas("d"), ["1"]);
    let no = RouterRequest { create_dest: false, ..route("new", "none") };
    assert_eq!(w.engine().create_router("n", &no).unwrap_err().code(), "topic_not_found");
    assert!(!exists(&w, "new") && !exists(&w, "none"), "a refusal creates neither");

    let auto_create = AutoCreate::Patterns(vec!["s*".to_owned()]);
    let w = World::with(Options { auto_create, ..small() });
    let e = w.engine().create_router("r", &route("s", "d")).unwrap_err();
    assert_eq!(e.code(), "topic_not_found");
    assert!(!exists(&w, "s"), "a refusal creates neither");
    w.router("r", &route("s", "s2"));
    assert!(exists(&w, "s") && exists(&w, "s2"));
}

#[test]
fn a_cycle_that_is_allowed_ends() {
    let w = World::new();
    w.put("a", &["0"]);
    let hop = |s, d| RouterRequest { allow_cycle: true, ..route(s, d) };
    w.router("ab", &hop("a", "b"));
    w.router("ba", &hop("b", "a"));
    w.put("a", &["x"]);
    for _ in 0..20 {
        w.work();
    }
    // 16 hops: half of the copies in each.
    assert_eq!(w.datas("b").len(), 8);
    assert_eq!(w.datas("a").len(), 2 + 8);
    assert_eq!(w.engine().metrics().ready_topics, 0);
}

#[test]
fn a_chain_of_twenty() {
    let w = World::new();
    w.put("t0", &["0"]);
    for i in 0..20 {
        w.router(&format!("r{i}"), &route(&format!("t{i}"), &format!("t{}", i + 1)));
    }
    w.put("t0", &["a", "b"]);
    for _ in 0..10 {
        w.work();
    }
    assert_eq!(w.datas("t20"), ["a", "b"]);
}

#[test]
fn one_source_to_a_thousand() {
    let w = World::with(Options { max_topics: 0, ..small() });
    w.put("s", &["0"]);
    for i in 0..1000 {
        w.router(&format!("r{i}"), &route("s", &format!("d{i}")));
    }
    w.put("s", &["a", "b"]);
    w.work();
    for i in 0..1000 {
        assert_eq!(w.datas(&format!("d{i}")), ["a", "b"]);
    }
}

#[test]
fn a_full_destination_is_tried_again() {
    let w = World::new();
    w.put("s", &["0"]);
    let full = ConfigPatch {
        cap_records: Some(3),
        discard: Some(Discard::Reject),
        ..ConfigPatch::default()
    };
    w.create("d", full);
    w.router("r", &route("s", "d"));
    for i in 1..=5 {
        w.put("s", &[&i.to_string()]);
    }
    let later = |w: &World| {
        for _ in 0..20 {
            w.clock.advance_ms(1000);
            w.work();
        }
    };
    later(&w);
    assert_eq!(w.datas("d"), ["1", "2", "3"]);
    let info = w.engine().router("r").unwrap();
    assert_eq!((info.lag, info.stopped_by.unwrap().code()), (2, "topic_full"));
    w.delete("d", Some(3), None);
    later(&w);
    assert_eq!(w.datas("d"), ["3", "4", "5"]);
    assert_eq!(w.engine().router("r").unwrap().lag, 0);
}

#[test]
fn what_the_source_lost_first_is_a_gap() {
    let mut w = World::new();
    w.create("s", ConfigPatch { cap_records: Some(2), ..ConfigPatch::default() });
    w.put("s", &["0"]);
    w.router("r", &route("s", "d"));
    for i in 1..=6 {
        w.put("s", &[&i.to_string()]);
    }
    w.work();
    assert_eq!(w.all("d"), [(5, "5".into()), (6, "6".into())]);
    assert_eq!(w.gaps("d"), [(1, 4, "source_trim")]);
    for end in [World::reopen, World::kill] {
        end(&mut w);
        w.settle();
        assert_eq!(w.all("d"), [(5, "5".into()), (6, "6".into())]);
        assert_eq!(w.gaps("d"), [(1, 4, "source_trim")]);
    }
    w.put("s", &["7"]);
    w.settle();
    assert_eq!(w.datas("d"), ["5", "6", "7"]);
}

#[test]
fn a_gap_wider_than_the_reservation() {
    let mut w = World::new();
    w.create("s", ConfigPatch { cap_records: Some(2), ..ConfigPatch::default() });
    w.put("s", &["0"]);
    w.router("r", &route("s", "d"));
    w.put("s", &["x"; 2]);
    for _ in 0..2000 {
        w.put("s", &["x"; 2]);
    }
    w.work();
    w.engine().sync().unwrap();
    w.work();
    let before = (w.all("d"), w.gaps("d"));
    assert_eq!(before.1, [(1, 4000, "source_trim")]);
    assert_eq!(before.0.len(), 2);
    w.kill();
    w.work();
    assert_eq!((w.all("d"), w.gaps("d")), before);
}

#[test]
fn deleting_a_topic_deletes_its_routers() {
    let mut w = World::new();
    w.put("a", &["0"]);
    w.router("ab", &route("a", "b"));
    w.router("bc", &route("b", "c"));
    w.router("ad", &route("a", "d"));
    let gone = w.engine().delete_topic("b", false).unwrap();
    assert_eq!(gone.routers_removed, ["ab", "bc"]);
    let names = |w: &World| -> Vec<String> {
        w.engine().routers("").into_iter().map(|r| r.router).collect()
    };
    assert_eq!(names(&w), ["ad"]);
    // A later topic of the name is another.
    w.put("b", &["own"]);
    w.put("a", &["1"]);
    w.work();
    assert_eq!((w.datas("b"), w.datas("d")), (vec!["own".to_owned()], vec!["1".to_owned()]));
    w.kill();
    assert_eq!(names(&w), ["ad"]);
    assert!(w.engine().delete_router("ad").unwrap());
    assert!(!w.engine().delete_router("ad").unwrap());
    w.put("a", &["2"]);
    w.work();
    assert_eq!(w.datas("d"), ["1"], "what was copied stays");
    w.kill();
    assert!(names(&w).is_empty());
}

#[test]
fn goes_on_after_every_kind_of_end() {
    let mut w = World::with(Options { wal_shards: 3, ..small() });
    w.put("s", &["0"]);
    w.router("r", &route("s", "d"));
    let mut want = Vec::new();
    for (i, end) in [World::reopen, World::kill, World::power_cut, World::kill, World::reopen]
        .iter()
        .enumerate()
    {
        w.put("s", &[&format!("{i}a")]);
        w.work();
        w.put("d", &[&format!("direct {i}")]);
        w.put("s", &[&format!("{i}b")]);
        w.engine().sync().unwrap();
        if i % 2 == 0 {
            w.checkpoint();
        }
        end(&mut w);
        w.settle();
        want.extend([format!("{i}a"), format!("direct {i}"), format!("{i}b")]);
        assert_eq!(w.datas("d"), want, "after end {i}");
    }
}

#[test]
fn with_threads() {
    let w = World::with(Options { background: true, delivery_workers: 2, ..small() });
    for class_ in [Durability::Disk, Durability::Fsync] {
        let (s, d) = (format!("s{class_:?}"), format!("d{class_:?}"));
        w.create(&s, class(class_));
        w.create(&d, class(class_));
        w.router(&s, &route(&s, &d));
        for i in 0..300 {
            w.put(&s, &[&i.to_string()]);
        }
        let until = std::time::Instant::now() + std::time::Duration::from_secs(300);
        while w.engine().router(&s).unwrap().lag > 0 {
            assert!(std::time::Instant::now() < until, "{:?}", w.engine().router(&s));
            std::thread::yield_now();
        }
        let want: Vec<_> = (0..300).map(|i| i.to_string()).collect();
        assert_eq!(w.datas(&d), want);
    }
}
