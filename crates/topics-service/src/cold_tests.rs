//! Reads of cold records: they are parked, and hold up nothing else.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};
use topics_engine::{Options, RemoteLimits, RemoteOptions, Tier};
use topics_sim::{Bucket, ObjectOp, SimClock};

use super::tests::World;
use super::{NextAction, Reply};

/// The store of a test: answers to reads wait while it is shut.
#[derive(Default)]
struct Gate {
    is_shut: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn set_shut(&self, shut: bool) {
        *self.is_shut.lock() = shut;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.is_shut.lock();
        while *shut {
            self.changed.wait(&mut shut);
        }
    }
}

/// A server whose topic `t` has 40 records, most of them cold.
fn cold(background: bool) -> (World, Arc<Gate>) {
    let clock = Arc::new(SimClock::new(1_700_000_000_000));
    let (bucket, gate) = (Bucket::new(&clock), Arc::<Gate>::default());
    bucket.set_mutable(&["HEAD"]);
    let inside = gate.clone();
    let pass = move |_, op| {
        if op == ObjectOp::Get {
            inside.pass()
        }
    };
    let store = Arc::new(bucket.client(1).with_gate(Arc::new(pass)));
    let limits = RemoteLimits { pack_bytes: 700, hot_segments: 1, ..RemoteLimits::default() };
    let remote = RemoteOptions { store, limits };
    let options =
        Options { background, segment_max_events: 5, remote: Some(remote), ..Options::default() };
    let mut w = World::over(options, clock);
    if !background {
        w.service.pool.stop();
    }
    let engine = w.service.engine.clone();
    let records: Vec<Value> = (0..40).map(|i| json!({"data": i})).collect();
    for chunk in records.chunks(5) {
        w.put_all("t", chunk);
        engine.sync().unwrap();
        engine.checkpoint().unwrap();
    }
    assert!(engine.archive().unwrap().cooled > 3);
    for i in 0..2 {
        w.put_all("other", &[json!({"data": i})]);
        engine.sync().unwrap();
        engine.checkpoint().unwrap();
    }
    let ranges = engine.segments("t").unwrap().ranges;
    assert!(ranges.iter().filter(|r| r.tier == Tier::Cold).count() > 3);
    (w, gate)
}

fn body(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).unwrap()
}

fn values(reply: &Reply) -> Vec<u64> {
    let records = body(reply)["records"].as_array().unwrap().clone();
    records.iter().map(|r| r["data"].as_u64().unwrap()).collect()
}

/// A read over HTTP waits without a thread, and says how many cold segments it read.
#[test]
fn a_read_is_parked_until_its_records_are_here() {
    let (mut w, _gate) = cold(false);
    let (mut all, mut at, mut parked) = (Vec::new(), 0, 0);
    while at < 40 {
        let token = w.send("diff", "t", "", json!({"from_seq": at}));
        let mut reply = w.raw_reply(token);
        if reply.is_none() {
            assert_eq!(w.service.pending(), 1);
            parked += 1;
            w.service.engine.tick().unwrap();
            reply = w.raw_reply(token);
        }
        let reply = reply.expect("the fetch has ended");
        assert_eq!((reply.status, w.service.pending()), (200, 0));
        let b = body(&reply);
        let cold = b["performance"]["cold_segments_read"].as_u64();
        assert!(at >= 35 || cold.is_some_and(|n| n > 0), "{b}");
        all.extend(values(&reply));
        at = b["next_from_seq"].as_u64().unwrap();
    }
    assert_eq!(all, (0..40).collect::<Vec<u64>>());
    assert!(parked >= 2);
    let segments = w.ask("segments", "t", json!(null));
    assert!(segments.to_string().contains("\"tier\":\"cold\""), "{segments}");
}

#[test]
fn a_read_whose_client_leaves_is_forgotten() {
    let (mut w, _gate) = cold(false);
    let token = w.send("diff", "t", "", json!({"from_seq": 0}));
    assert!(w.raw_reply(token).is_none());
    w.service.cancel(token);
    assert_eq!(w.service.pending(), 0);
    w.service.engine.tick().unwrap();
    assert!(w.raw_reply(token).is_none());
}

#[test]
fn a_consumer_reads_cold_records() {
    for mode in ["at_least_once", "at_most_once"] {
        let (mut w, _gate) = cold(false);
        let token = w.send("consumer_put", "t", "c", json!({"mode": mode}));
        assert!(w.raw_reply(token).is_some());
        let mut all = Vec::new();
        for _ in 0..100 {
            let token = w.send("consumer_read", "t", "c", json!({"max_records": 7}));
            let reply = (0..10).find_map(|_| {
                w.service.engine.tick().unwrap();
                w.service.engine.sync().unwrap();
                w.raw_reply(token)
            });
            let reply = reply.expect("an answer");
            assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
            let some = values(&reply);
            if mode == "at_least_once" && !some.is_empty() {
                let seq = body(&reply)["next_from_seq"].as_u64().unwrap();
                let token = w.send("consumer_commit", "t", "c", json!({"seq": seq}));
                assert!(w.raw_reply(token).is_some());
            }
            all.extend(some);
            if all.len() >= 40 {
                break;
            }
        }
        assert_eq!(all, (0..40).collect::<Vec<u64>>(), "{mode}");
    }
}

/// More cold scans than the pool has threads, from a store that hangs: other verbs are answered. At the
/// deadline, on the clock of the test, each scan fails.
#[test]
fn scans_that_wait_for_the_store_keep_no_verb_waiting() {
    let (mut w, gate) = cold(true);
    gate.set_shut(true);
    let scans: Vec<u64> =
        (0..7).map(|_| w.send_for(true, "scan", "t", "", json!({"from_seq": 0}))).collect();
    let read = w.send("diff", "t", "", json!({"from_seq": 0}));
    for i in 0..10 {
        let token = w.send("create", &format!("new-{i}"), "", json!({}));
        let reply = w.wait_reply(token);
        assert!(reply.status < 300, "{}", String::from_utf8_lossy(&reply.body));
    }
    assert!(scans.iter().chain([&read]).all(|t| w.raw_reply(*t).is_none()));
    w.clock.advance_ms(30_000);
    for token in scans.into_iter().chain([read]) {
        let reply = w.wait_reply(token);
        assert_eq!(reply.status, 503, "{}", String::from_utf8_lossy(&reply.body));
        assert_eq!(body(&reply)["error"]["code"], "cold_unavailable");
        assert_eq!(body(&reply)["error"]["detail"]["retry_after_ms"], 5000);
    }
    gate.set_shut(false);
    let token = w.send_for(true, "scan", "t", "", json!({"from_seq": 0}));
    assert_eq!(w.wait_reply(token).status, 200);
    loop {
        let output = w.service.pull(token).unwrap();
        match output.next {
            NextAction::End => break,
            NextAction::Fail => panic!("the scan fails"),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    w.service.cancel(token);
    w.service.engine.close().unwrap();
}

/// A page of columns never waits for the store: the stream does.
#[test]
fn cold_records_are_no_page() {
    let (w, gate) = cold(true);
    gate.set_shut(true);
    for body in [json!({"from_seq": 0, "limit": 5}), json!({"from_seq": 0})] {
        assert!(w.arrow_page("diff", "t", &body).is_none(), "{body}");
        assert!(w.arrow_page("scan", "t", &body).is_none(), "{body}");
    }
    assert!(w.arrow_page("diff", "t", &json!({"from_seq": 38})).is_some());
    gate.set_shut(false);
    w.service.engine.close().unwrap();
}
