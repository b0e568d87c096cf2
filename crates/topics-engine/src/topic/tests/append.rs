//! Seqs, conditions, idempotency, creation by a write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use topics_env::sync::Mutex;

use super::*;
use crate::types::config::{Discard, TopicType};
use crate::types::error::Error;
use crate::types::options::AutoCreate;

#[test]
fn i2_seqs_are_contiguous_from_1_in_every_class() {
    for c in CLASSES {
        let w = World::new();
        w.create("t", class(c));
        let a = w.put("t", &["1", "2", "3"]);
        assert_eq!((a.first_seq, a.last_seq, a.head_seq, a.count), (1, 3, 3, 3), "{c:?}");
        let b = w.put("t", &["4"]);
        assert_eq!((b.first_seq, b.last_seq), (4, 4));
        assert_eq!(b.durability, c);
        let got = w.read("t", 0);
        let data: Vec<_> = got.iter().map(|r| (r.seq, r.data.to_vec())).collect();
        let want: Vec<_> = (1..=4u64).map(|s| (s, s.to_string().into_bytes())).collect();
        assert_eq!(data, want, "{c:?}");
        assert!(got.caught_up);
        let s = w.state("t");
        assert_eq!((s.head_seq, s.next_seq, s.count, s.bytes), (4, 5, 4, 4), "{c:?}");
    }
}

#[test]
fn records_come_back_as_they_were_sent() {
    let mut w = World::new();
    let full = NewRecord {
        data: b"\x00\xff",
        binary: true,
        tag: b"tag",
        node: b"node",
        meta: br#"{"k":"v"}"#,
        ttl_ms: 1000,
        ..NewRecord::default()
    };
    let records = [full, rec("{}")];
    let req = Append { records: &records, node: b"default", ..Append::default() };
    w.engine().append("t", &req).unwrap();
    for round in 0..4 {
        let got = w.read("t", 0);
        let (a, b) = (got.get(0).unwrap(), got.get(1).unwrap());
        assert_eq!(
            (a.data, a.binary, a.tag, a.node),
            (&b"\x00\xff"[..], true, &b"tag"[..], &b"node"[..])
        );
        assert_eq!(a.meta, br#"{"k":"v"}"#);
        assert_eq!(
            (b.data, b.binary, b.tag, b.node),
            (&b"{}"[..], false, &b""[..], &b"default"[..])
        );
        assert!(b.meta.is_empty());
        // data, meta, tag, node, and the 10 bytes of the expiry attribute
        assert_eq!(w.state("t").bytes, 2 + 9 + 3 + 4 + 10 + 2 + 7);
        match round {
            0 => w.checkpoint(),
            1 => w.kill(),
            _ => w.reopen(),
        }
    }
}

#[test]
fn ts_never_decreases() {
    let mut w = World::new();
    w.put("t", &["a"]);
    let first = w.read("t", 0).get(0).unwrap().ts;
    w.clock.step_wall_ms(-86_400_000);
    w.put("t", &["b"]);
    assert_eq!(w.read("t", 1).get(0).unwrap().ts, first);
    w.kill();
    w.put("t", &["c"]);
    assert_eq!(w.read("t", 2).get(0).unwrap().ts, first);
    w.reopen();
    w.put("t", &["d"]);
    assert_eq!(w.read("t", 3).get(0).unwrap().ts, first);
    for c in CLASSES {
        let w = World::new();
        w.create("t", class(c));
        w.put("t", &["a"]);
        w.clock.step_wall_ms(-1000);
        w.put("t", &["b"]);
        assert_eq!(w.read("t", 1).get(0).unwrap().ts, first, "{c:?}");
    }
}

#[test]
fn creation_is_lazy_explicit_or_refused() {
    let w = World::new();
    let a = w.put("lazy", &["1"]);
    assert!(a.created && !w.put("lazy", &["2"]).created);
    let records = [rec("1")];
    let none = Append { records: &records, create: Some(false), ..Append::default() };
    let e = w.engine().append("no", &none).unwrap_err();
    assert_eq!(e.code(), "topic_not_found");
    assert!(w.engine().append("bad name", &none).is_err());
    assert!(w.engine().state("no", false).is_err());

    let w =
        World::with(Options { auto_create: AutoCreate::Patterns(vec!["ok.*".into()]), ..small() });
    assert!(w.try_put("ok.1", &["1"]).is_ok());
    assert_eq!(w.try_put("other", &["1"]).unwrap_err().code(), "topic_not_found");
    let forced = Append { records: &records, create: Some(true), ..Append::default() };
    assert!(w.engine().append("other", &forced).unwrap().created);
}

#[test]
fn a_refused_first_write_creates_nothing() {
    let w = World::new();
    let records = [rec("1"), rec("2")];
    let reject = ConfigPatch {
        cap_records: Some(1),
        discard: Some(Discard::Reject),
        ..ConfigPatch::default()
    };
    let full = Append { records: &records, config: Some(&reject), ..Append::default() };
    assert_eq!(w.engine().append("t", &full).unwrap_err().code(), "record_too_large");
    let cond = Append { records: &records, expect_head: Some(3), ..Append::default() };
    let e = w.engine().append("t", &cond).unwrap_err();
    assert!(matches!(e, Error::HeadMismatch { expected: 3, actual: 0, .. }));
    assert!(w.engine().state("t", false).is_err());
    assert!(w.engine().list("", None, 10).is_empty());
    assert!(w.put("t", &["1"]).created);
}

#[test]
fn config_of_a_write_applies_at_creation_only() {
    let w = World::new();
    let records = [rec("1")];
    let queue = ConfigPatch {
        kind: Some(TopicType::Queue),
        cap_records: Some(9),
        ..ConfigPatch::default()
    };
    let req = Append { records: &records, config: Some(&queue), ..Append::default() };
    assert!(w.engine().append("t", &req).unwrap().created);
    let s = w.state("t");
    assert_eq!(
        (s.config.kind, s.config.cap_records, s.config.discard),
        (TopicType::Queue, 9, Discard::Reject)
    );
    assert!(!w.engine().append("t", &req).unwrap().created);
    assert_eq!(w.state("t").head_seq, 2);
}

#[test]
fn the_config_of_a_write_changes_nothing_and_conflicts_only_in_type_and_durability() {
    let w = World::new();
    let records = [rec("1")];
    let write = |patch: &ConfigPatch| {
        let req = Append { records: &records, config: Some(patch), ..Append::default() };
        w.engine().append("t", &req).map(|a| a.created)
    };
    let made = ConfigPatch { cap_records: Some(9), ..ConfigPatch::default() };
    assert!(write(&made).unwrap());
    let other = ConfigPatch { cap_records: Some(8), ttl_ms: Some(1), ..ConfigPatch::default() };
    assert!(!write(&other).unwrap());
    assert_eq!((w.state("t").config.cap_records, w.state("t").config.ttl_ms), (9, 0));
    let kind = Some(TopicType::Queue);
    let durability = Some(Durability::Memory);
    for (patch, name) in [
        (ConfigPatch { kind, ..ConfigPatch::default() }, "type"),
        (ConfigPatch { durability, ..ConfigPatch::default() }, "durability"),
    ] {
        match write(&patch).unwrap_err() {
            Error::TopicExistsIncompatible { field, .. } => assert_eq!(field, name),
            e => panic!("{e}"),
        }
    }
    assert_eq!(w.state("t").head_seq, 2);
}

#[test]
fn expect_head() {
    let w = World::new();
    let records = [rec("1")];
    let at = |head| Append { records: &records, expect_head: Some(head), ..Append::default() };
    assert_eq!(w.engine().append("t", &at(0)).unwrap().last_seq, 1);
    let e = w.engine().append("t", &at(0)).unwrap_err();
    assert!(matches!(e, Error::HeadMismatch { expected: 0, actual: 1, .. }));
    assert_eq!(w.engine().append("t", &at(1)).unwrap().last_seq, 2);
    assert_eq!(w.state("t").count, 2);
}

#[test]
fn a_refusal_over_a_head_that_nobody_can_read_waits_until_it_is_there() {
    for c in CLASSES {
        let w = World::new();
        w.create("t", class(c));
        w.put("t", &["1"]);
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let records = [rec("2")];
        let conditional = |expected| {
            let req = Append { records: &records, expect_head: expected, ..Append::default() };
            let (log, engine) = (outcomes.clone(), w.engine().clone());
            let done = move |r: Result<Appended>| {
                let visible = engine.state("t", false).unwrap().head_seq;
                log.lock().push((expected, r.map(|a| a.last_seq).map_err(|e| e.code()), visible));
            };
            w.engine().append_async("t", &req, Box::new(done));
        };
        conditional(None);
        conditional(Some(1));
        // A head that is not there yet is no reason to wait.
        conditional(Some(3));
        // Nor is one that has been passed for good.
        conditional(Some(0));
        w.engine().drive();
        w.engine().sync().unwrap();
        let mut got = outcomes.lock().clone();
        got.retain(|(expected, ..)| *expected == Some(1));
        assert_eq!(got, [(Some(1), Err("head_mismatch"), 2)], "{c:?}");
        assert_eq!(outcomes.lock().len(), 4);
        assert_eq!(w.state("t").head_seq, 2);
    }
}

fn keyed<'a>(records: &'a [NewRecord<'a>], key: &'a [u8]) -> Append<'a> {
    Append { records, key, ..Append::default() }
}

#[test]
fn a_repeat_gets_the_first_answer_in_every_class_and_across_restarts() {
    for c in CLASSES {
        let mut w = World::new();
        w.create("t", class(c));
        let records = [rec("1"), rec("2")];
        let first = w.engine().append("t", &keyed(&records, b"k")).unwrap();
        assert!(!first.deduped);
        let again = w.engine().append("t", &keyed(&records, b"k")).unwrap();
        assert!(again.deduped && !again.created, "{c:?}");
        assert_eq!((again.first_seq, again.last_seq, again.count), (1, 2, 2));
        let conditional = Append { expect_head: Some(77), ..keyed(&records, b"k") };
        assert!(w.engine().append("t", &conditional).unwrap().deduped);
        let other = [rec("1"), rec("3")];
        let e = w.engine().append("t", &keyed(&other, b"k")).unwrap_err();
        assert_eq!(e.code(), "idempotency_mismatch");
        assert_eq!(w.state("t").count, 2);
        if c >= Durability::Disk {
            w.kill();
            assert!(w.engine().append("t", &keyed(&records, b"k")).unwrap().deduped, "{c:?}");
            w.reopen();
            let again = w.engine().append("t", &keyed(&records, b"k")).unwrap();
            assert!(again.deduped);
            assert_eq!((again.first_seq, again.last_seq), (1, 2));
        }
        // Another topic, another scope.
        assert!(!w.engine().append("u", &keyed(&records, b"k")).unwrap().deduped);
    }
}

#[test]
fn keys_are_forgotten_after_the_window_and_never_early() {
    let w = World::with(Options { max_idempotency_keys: 2, ..small() });
    let patch = ConfigPatch { idempotency_window_ms: Some(1000), ..ConfigPatch::default() };
    w.create("t", patch);
    let records = [rec("1")];
    for k in [b"a", b"b"] {
        assert!(!w.engine().append("t", &keyed(&records, k)).unwrap().deduped);
    }
    let e = w.engine().append("t", &keyed(&records, b"c")).unwrap_err();
    assert_eq!((e.code(), w.state("t").count), ("throttled", 2));
    assert!(w.engine().append("t", &keyed(&records, b"a")).unwrap().deduped);
    w.put("t", &["no key"]);
    w.clock.advance_ms(999);
    assert!(w.engine().append("t", &keyed(&records, b"a")).unwrap().deduped);
    w.clock.advance_ms(1);
    assert!(!w.engine().append("t", &keyed(&records, b"a")).unwrap().deduped);
    assert_eq!(w.engine().metrics().idempotency_keys, 1);
}

#[test]
fn asynchronous_writes_complete_when_led() {
    for c in CLASSES {
        let w = World::new();
        w.create("t", class(c));
        w.put("t", &["0"]);
        let got: Arc<Mutex<Vec<u64>>> = Arc::default();
        let errors = Arc::new(AtomicUsize::new(0));
        for i in 0..4 {
            let (got, errors) = (got.clone(), errors.clone());
            let data = i.to_string();
            let records = [rec(&data)];
            // The third repeats the second while that is in flight.
            let key: &[u8] = if i == 1 || i == 2 { b"same" } else { b"" };
            let data = [rec("x")];
            let records = if key.is_empty() { &records } else { &data };
            w.engine().append_async(
                "t",
                &keyed(records, key),
                Box::new(move |r| match r {
                    Ok(a) => {
                        assert_eq!(a.deduped, i == 2);
                        got.lock().push(a.last_seq);
                    }
                    Err(_) => drop(errors.fetch_add(1, Ordering::SeqCst)),
                }),
            );
        }
        match c {
            Durability::Ephemeral | Durability::Memory => {}
            Durability::Disk => {
                assert!(got.lock().is_empty());
                w.engine().drive();
            }
            Durability::Fsync => {
                w.engine().drive();
                assert!(got.lock().is_empty(), "the loop never syncs");
                assert_eq!(w.state("t").head_seq, 1, "I3: not committed, not shown");
                w.engine().sync().unwrap();
            }
        }
        assert_eq!(
            (got.lock().clone(), errors.load(Ordering::SeqCst)),
            (vec![2, 3, 3, 4], 0),
            "{c:?}"
        );
        assert_eq!(w.seqs("t"), [1, 2, 3, 4]);
    }
}

#[test]
fn an_asynchronous_write_may_create_the_topic() {
    let w = World::new();
    let got: Arc<Mutex<Vec<bool>>> = Arc::default();
    for _ in 0..3 {
        let got = got.clone();
        let records = [rec("1")];
        let req = Append { records: &records, ..Append::default() };
        w.engine().append_async("t", &req, Box::new(move |r| got.lock().push(r.unwrap().created)));
    }
    // The first ids must be reserved durably.
    w.engine().sync().unwrap();
    w.engine().drive();
    assert_eq!(*got.lock(), [true, false, false]);
    assert_eq!(w.seqs("t"), [1, 2, 3]);
}
