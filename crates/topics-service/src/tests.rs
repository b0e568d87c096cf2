//! The verbs over a simulated disk: waiting calls, and cleanup when they end.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use parking_lot::Mutex;
use serde_json::{Value, json};
use topics_engine::{Engine, Options};
use topics_sim::{SimClock, SimFs, env_on};
use topics_wire::write::Body;
use topics_wire::{Grant, Limits};

use super::{Reply, Request, Service, Sink, Verb};

/// Replies, in order.
#[derive(Default)]
struct Inbox {
    replies: Mutex<Vec<(u64, Reply)>>,
}

impl Sink for Inbox {
    fn reply(&self, token: u64, reply: Reply) {
        self.replies.lock().push((token, reply));
    }

    fn wake(&self, _: u64) {}
}

pub(super) struct World {
    pub(super) service: Arc<Service>,
    pub(super) clock: Arc<SimClock>,
    inbox: Arc<Inbox>,
    token: u64,
}

impl World {
    pub(super) fn new() -> Self {
        let world = Self::with(Options::default());
        // A stopped pool runs verbs in the call.
        world.service.pool.stop();
        world.begun()
    }

    fn with(options: Options) -> Self {
        let clock = Arc::new(SimClock::new(1_700_000_000_000));
        Self::over(Options { background: false, ..options }, clock)
    }

    pub(super) fn over(options: Options, clock: Arc<SimClock>) -> Self {
        let env = env_on(&Arc::new(SimFs::new()), &clock, 1);
        let engine = Engine::open(env, Path::new("/data"), options).unwrap();
        let inbox = Arc::new(Inbox::default());
        let service =
            Service::new(engine, clock.clone(), Limits::default(), inbox.clone(), Arc::default());
        Self { service, clock, inbox, token: 0 }
    }

    fn begun(mut self) -> Self {
        // The id of the first topic waits for a sync; create it before the test.
        self.ask("create", "zero", json!(null));
        self
    }

    pub(super) fn send(&mut self, verb: &str, name: &str, subresource: &str, body: Value) -> u64 {
        self.send_for(false, verb, name, subresource, body)
    }

    /// The same for a client that accepts Arrow, or JSON unless `arrow`.
    pub(super) fn send_for(
        &mut self,
        arrow: bool,
        verb: &str,
        name: &str,
        subresource: &str,
        body: Value,
    ) -> u64 {
        self.token += 1;
        let (body, grant) = (body.to_string(), Grant::all());
        let body = if body == "null" { &[][..] } else { body.as_bytes() };
        let token = self.token;
        let request = Request {
            verb: Verb::from_name(verb),
            name,
            subresource,
            body,
            token,
            grant: &grant,
            arrow,
            ..Request::default()
        };
        if let Some(reply) = self.service.call(&request) {
            self.inbox.reply(token, reply);
        }
        self.service.flush();
        token
    }

    /// The whole answer as Arrow, if it is a page.
    pub(super) fn arrow_page(&self, verb: &str, name: &str, body: &Value) -> Option<Vec<u8>> {
        let (body, grant, verb) = (body.to_string(), Grant::all(), Verb::from_name(verb));
        let body = body.as_bytes();
        let request =
            Request { verb, name, body, grant: &grant, arrow: true, ..Request::default() };
        self.service.arrow_page(&request).map(|pieces| pieces.concat())
    }

    fn send_text(&mut self, verb: &str, name: &str, body: &str) -> u64 {
        self.token += 1;
        let (grant, token) = (Grant::all(), self.token);
        let (verb, body) = (Verb::from_name(verb), body.as_bytes());
        let request = Request { verb, name, body, token, grant: &grant, ..Request::default() };
        if let Some(reply) = self.service.call(&request) {
            self.inbox.reply(token, reply);
        }
        token
    }

    /// Attempts what waits, in an engine without threads.
    fn pump(&self) {
        self.service.engine.attempt_waits();
    }

    pub(super) fn raw_reply(&self, token: u64) -> Option<Reply> {
        self.pump();
        let mut all = self.inbox.replies.lock();
        let at = all.iter().position(|(t, _)| *t == token)?;
        Some(all.remove(at).1)
    }

    fn reply(&self, token: u64) -> Option<Value> {
        Some(serde_json::from_slice(&self.raw_reply(token)?.body).unwrap())
    }

    pub(super) fn ask(&mut self, verb: &str, name: &str, body: Value) -> Value {
        let token = self.send(verb, name, "", body);
        self.reply(token).unwrap()
    }

    fn queue(&mut self) {
        self.ask("create", "q", json!({"type": "queue"}));
    }

    pub(super) fn put_all(&mut self, topic: &str, records: &[Value]) {
        let token = self.send("write", topic, "", json!({"records": records}));
        let reply = self.wait_reply(token);
        assert!(reply.status < 300, "{}", String::from_utf8_lossy(&reply.body));
    }

    /// The reply to a call that threads answer.
    pub(super) fn wait_reply(&self, token: u64) -> Reply {
        loop {
            if let Some(reply) = self.raw_reply(token) {
                return reply;
            }
            if !self.service.engine.options().background {
                self.service.engine.sync().unwrap();
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn put(&mut self, topic: &str, data: Value) {
        let answer = self.ask("write", topic, json!({"records": [{"data": data}]}));
        assert!(answer["error"].is_null(), "{answer}");
    }
}

#[test]
fn a_claim_that_was_cancelled_takes_no_job() {
    let mut w = World::new();
    w.queue();
    let waiting = w.send("claim", "q", "", json!({"node": "gone", "wait_ms": 30_000}));
    assert_eq!((w.reply(waiting), w.service.pending()), (None, 1));
    w.service.cancel(waiting);
    assert_eq!(w.service.pending(), 0);
    w.put("q", json!(1));
    let claimed = w.ask("claim", "q", json!({"node": "here"}));
    assert_eq!(claimed["count"], 1, "{claimed}");
    assert_eq!(w.reply(waiting), None);
}

#[test]
fn jobs_for_a_client_that_has_gone_are_given_back() {
    let mut w = World::new();
    w.queue();
    w.put("q", json!(1));
    // The claim is answered after its call was removed.
    w.service.engine.claim_async(
        "q",
        &topics_engine::Claim { node: b"gone", ..Default::default() },
        Box::new({
            let service = w.service.clone();
            move |outcome| assert!(service.on_claimed((77, 0), "q", "gone", outcome).is_none())
        }),
    );
    let claimed = w.ask("claim", "q", json!({"node": "here"}));
    assert_eq!((&claimed["count"], &claimed["claimed"][0]["deliveries"]), (&json!(1), &json!(1)));
}

#[test]
fn a_close_answers_whoever_waits() {
    let mut w = World::new();
    w.queue();
    w.put("log", json!(1));
    let claim = w.send("claim", "q", "", json!({"node": "w", "wait_ms": 30_000}));
    let diff = w.send("diff", "log", "", json!({"from_seq": 1, "wait_ms": 30_000}));
    w.send("consumer_put", "log", "c", json!({"start": "end"}));
    let read = w.send("consumer_read", "log", "c", json!({"wait_ms": 30_000}));
    for token in [claim, diff, read] {
        assert_eq!(w.reply(token), None);
    }
    assert_eq!(w.service.pending(), 3);
    w.service.close();
    let claimed = w.reply(claim).unwrap();
    assert_eq!(claimed["claimed"], json!([]));
    assert!(claimed["performance"].is_object(), "{claimed}");
    assert_eq!(w.reply(diff).unwrap()["records"], json!([]));
    assert_eq!(w.reply(read).unwrap()["records"], json!([]));
    assert_eq!(w.service.pending(), 0);
}

#[test]
fn a_consumer_that_waits_is_woken_or_forgotten() {
    let mut w = World::new();
    w.put("log", json!(1));
    w.send("consumer_put", "log", "c", json!({"start": "end"}));
    let read = w.send("consumer_read", "log", "c", json!({"wait_ms": 30_000}));
    let gone = w.send("consumer_read", "log", "c", json!({"wait_ms": 30_000, "checkpoint": false}));
    w.service.cancel(gone);
    w.put("log", json!(2));
    assert_eq!(w.reply(read).unwrap()["records"][0]["data"], 2);
    assert_eq!((w.reply(gone), w.service.pending()), (None, 0));
}

#[test]
fn consumers_of_deleted_topics_are_not_kept() {
    let mut w = World::new();
    w.ask("create", "kept", json!(null));
    w.send("consumer_put", "kept", "c", json!({}));
    for n in 0..2000 {
        let topic = format!("t{n}");
        w.ask("create", &topic, json!(null));
        w.send("consumer_put", &topic, "c", json!({}));
        w.ask("drop", &topic, json!(null));
    }
    let handles = w.service.consumers.names();
    assert!(handles.len() <= 256, "{} handles", handles.len());
    assert!(handles.contains(&("kept".to_owned(), "c".to_owned(), String::new())));
}

#[test]
fn a_reader_is_fenced_by_the_read_of_another() {
    let mut w = World::new();
    for n in 1..=4 {
        w.put("log", json!(n));
    }
    w.send("consumer_put", "log", "c", json!({"reader": "old"}));
    let mut read = |body| {
        let token = w.send("consumer_read", "log", "c", body);
        let reply = w.reply(token).unwrap();
        match reply["records"].as_array() {
            Some(records) => json!(records.iter().map(|r| &r["data"]).collect::<Vec<_>>()),
            None => reply["error"]["code"].clone(),
        }
    };
    let by = |reader: &str| json!({"reader": reader, "max_records": 2});
    assert_eq!(read(by("old")), json!([1, 2]));
    assert_eq!(read(by("old")), json!([3, 4]));
    assert_eq!(read(by("new")), json!([1, 2]));
    assert_eq!(read(by("old")), json!("consumer_fenced"));
    assert_eq!(read(json!({"max_records": 2})), json!([1, 2]), "it names no reader");
    // A filter that matches nothing moves the position of a reader that keeps it itself.
    let none = json!({"reader": "new", "after": 2, "match": "none", "wait_ms": 0});
    assert_eq!(read(none), json!([]));
    assert_eq!(read(json!({"reader": "new", "after": 2})), json!([3, 4]));
}

#[test]
fn what_did_not_reach_its_reader_is_for_the_next_one() {
    let mut w = World::new();
    w.put("log", json!(1));
    w.send("consumer_put", "log", "c", json!({"mode": "at_most_once"}));
    // The cursor after the record waits for a sync, and the second reader for the reader lock.
    let gone = w.send("consumer_read", "log", "c", json!({"wait_ms": 1000}));
    let next = w.send("consumer_read", "log", "c", json!({"wait_ms": 1000}));
    let busy = w.send("consumer_read", "log", "c", json!({"fail_if_busy": true}));
    assert_eq!(w.reply(busy).unwrap()["error"]["code"], "consumer_busy");
    assert_eq!((w.reply(gone), w.reply(next)), (None, None));
    w.service.cancel(gone);
    w.service.engine.sync().unwrap();
    assert_eq!(w.reply(next).unwrap()["records"][0]["data"], 1);
    assert_eq!((w.reply(gone), w.service.pending()), (None, 0));
}

#[test]
fn what_did_not_reach_its_reader_outlives_another_put() {
    let mut w = World::new();
    w.put("log", json!(1));
    let put = json!({"mode": "at_most_once"});
    w.send("consumer_put", "log", "c", put.clone());
    let gone = w.send("consumer_read", "log", "c", json!({"wait_ms": 1000}));
    w.service.cancel(gone);
    w.service.engine.sync().unwrap();
    assert_eq!(w.reply(gone), None);
    let again = w.send("consumer_put", "log", "c", put);
    assert_eq!(w.reply(again).unwrap()["created"], false);
    let next = w.send("consumer_read", "log", "c", json!({"wait_ms": 1000}));
    assert_eq!(w.reply(next).unwrap()["records"][0]["data"], 1);
}

#[test]
fn a_handle_follows_its_topic() {
    let mut w = World::new();
    w.put("log", json!(1));
    w.send("consumer_put", "log", "c", json!(null));
    let read = w.send("consumer_read", "log", "c", json!(null));
    assert_eq!(w.reply(read).unwrap()["next_from_seq"], 1);
    w.ask("drop", "log", json!(null));
    let read = w.send("consumer_read", "log", "c", json!(null));
    assert_eq!(w.reply(read).unwrap()["error"]["code"], "topic_not_found");
    w.put("log", json!(2));
    let read = w.send("consumer_read", "log", "c", json!(null));
    assert_eq!(w.reply(read).unwrap()["error"]["code"], "consumer_not_found");
}

#[test]
fn a_grant_binds_names_in_paths_and_bodies() {
    let mut w = World::new();
    for topic in ["a.1", "a.2", "b.1"] {
        w.put(topic, json!(1));
    }
    let grant = Grant { owner: "k".into(), prefixes: vec!["a.".into()], admin: false };
    let mut ask = |verb: &str, name: &str, body: Value| {
        w.token += 1;
        let body = body.to_string();
        let (token, body) = (w.token, if body == "null" { &[][..] } else { body.as_bytes() });
        let request = Request {
            verb: Verb::from_name(verb),
            name,
            body,
            token,
            grant: &grant,
            ..Request::default()
        };
        let reply = w.service.call(&request);
        w.service.flush();
        let reply = reply.or_else(|| w.inbox.replies.lock().pop().map(|r| r.1)).unwrap();
        serde_json::from_slice::<Value>(&reply.body).unwrap()
    };
    let refused = [
        ("write", "b.1", json!({"records": [{"data": 1}]})),
        ("write", "a.4", json!({"records": [{"data": 1}], "config": {"ttl_ms": 1}})),
        ("diff", "b.1", json!({})),
        ("create", "a.3", json!({"dead_letter": "b.dead"})),
        ("states", "", json!({"topics": ["a.1", "b.1"]})),
        ("router_put", "a.r", json!({"source": "a.1", "dest": "b.2"})),
        ("router_put", "a.r", json!({"source": "b.1", "dest": "a.2"})),
        ("redrive", "a.1", json!({"to": "b.1"})),
        ("redrive", "a.1", json!({})),
    ];
    for (verb, name, body) in refused {
        let answer = ask(verb, name, body);
        assert_eq!(answer["error"]["code"], "forbidden", "{verb} {name}: {answer}");
    }
    let config = json!({"records": [{"data": 1}], "config": {"ttl_ms": 1}});
    assert_eq!(ask("write", "a.1", config)["created"], false);
    let listed = ask("list", "", json!(null));
    assert_eq!(listed["topics"].as_array().unwrap().len(), 2);
    let states = ask("states", "", json!({"patterns": ["*"]}));
    assert_eq!(states["topics"].as_object().unwrap().len(), 2);
    assert_eq!(ask("diff", "a.1", json!({}))["records"][0]["data"], 1);
}

/// The messages to a socket's client, once there are `n`.
fn messages(w: &World, socket: u64, count: usize) -> Vec<Value> {
    let mut answers = Vec::new();
    while answers.len() < count {
        w.service.flush();
        let pulled = w.service.pull(socket).unwrap();
        answers.extend(pulled.pieces.iter().map(|p| serde_json::from_slice(p).unwrap()));
        std::thread::yield_now();
    }
    answers
}

#[test]
fn a_publish_without_backpressure_waits_for_room_and_holds_its_place() {
    let mut w = World::with(Options { staging_frames: 1, ..Options::default() });
    w.service.engine.create_topic("log", &Default::default()).unwrap();
    let socket = w.send("socket", "", "", json!(null));
    assert_eq!(w.raw_reply(socket).unwrap().status, 200);
    let publish = |n: u64, patient: bool| {
        let message = json!({"op": "publish", "request_id": n.to_string(), "topic": "log",
            "records": [{"data": n}], "disable_backpressure": patient});
        w.service.message(socket, message.to_string().as_bytes(), (true, true));
    };
    // The first publish holds every staging permit until it is committed.
    publish(1, false);
    publish(2, false);
    let answers = messages(&w, socket, 2);
    let refused = answers.iter().find(|a| a["request_id"] == "2").unwrap();
    assert_eq!((&refused["op"], &refused["code"]), (&json!("error"), &json!("throttled")));
    publish(3, false);
    publish(4, true);
    publish(5, false);
    publish(6, true);
    let answers = messages(&w, socket, 4);
    let acked = |id: &str| {
        let answer = answers.iter().find(|a| a["request_id"] == id).unwrap();
        answer["last_seq"].as_u64().unwrap()
    };
    assert_eq!(["3", "4", "5", "6"].map(acked), [2, 3, 4, 5]);
    w.service.close();
}

/// The verb needs no key, so the answer names loops and no details.
#[test]
fn ready_names_the_loops_that_have_panicked() {
    let mut w = World::new();
    let ready = |w: &mut World| w.ask("ready", "", json!(null));
    assert_eq!(ready(&mut w)["loop_panics"], json!({}));
    let guards = w.service.engine.guards();
    let at = || "topic \"secret\"".to_owned();
    assert!(guards.run("sweep", at, || panic!("a bug in a sweep")).is_err());
    let answer = ready(&mut w);
    assert_eq!(
        (&answer["status"], &answer["loop_panics"]),
        (&json!("ready"), &json!({"sweep": 1}))
    );
    assert!(!answer.to_string().contains("secret"));
}

/// A write whose body is larger than what is parsed in the call.
fn large_write(data: &str) -> Value {
    json!({"records": [{"data": "x".repeat(super::LARGE_BODY)}, {"data": data}]})
}

/// A compressed Arrow body with one record of `bytes` bytes, which is not JSON.
fn compressed_write(bytes: usize) -> Vec<u8> {
    let data: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(bytes)]));
    let batch = RecordBatch::try_from_iter([("data", data)]).unwrap();
    let options =
        IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
    let mut encoder = StreamEncoder::try_new_with_options(&batch.schema(), options).unwrap();
    encoder.encode(&batch).unwrap().iter().flat_map(|buffer| buffer.to_vec()).collect()
}

#[test]
fn a_body_that_decompresses_to_a_large_one_is_parsed_on_another_thread() {
    let w = World::with(Options::default());
    let grant = Grant::all();
    for (bytes, is_large) in [(super::LARGE_BODY, false), (super::LARGE_BODY + 1, true)] {
        // The offsets are 8 bytes, and are as long as they were when they are compressed.
        let body = compressed_write(bytes);
        assert!(body.len() < 4096);
        let request = Request {
            verb: Verb::Write,
            name: "t",
            body: &body,
            kind: Body::Arrow,
            token: 7,
            grant: &grant,
            ..Request::default()
        };
        let reply = w.service.call(&request);
        assert_eq!(reply.is_none(), is_large);
        let refusal = reply.unwrap_or_else(|| {
            loop {
                if let Some(reply) = w.raw_reply(7) {
                    return reply;
                }
                std::thread::yield_now();
            }
        });
        assert_eq!(refusal.status, 400);
        let text = String::from_utf8(refusal.body).unwrap();
        assert!(text.contains("records[0].data is not valid JSON"), "{text}");
    }
    w.service.close();
}

#[test]
fn a_large_body_is_parsed_on_another_thread() {
    let mut w = World::with(Options::default());
    let wait = |w: &World, token: u64| loop {
        if let Some(reply) = w.reply(token) {
            return reply;
        }
        std::thread::yield_now();
    };
    // The id of the first topic waits for a sync; create it before the test.
    let zero = w.send("create", "zero", "", json!(null));
    wait(&w, zero);
    let token = w.send("write", "t", "", large_write("a"));
    let answer = wait(&w, token);
    assert_eq!((answer["count"].as_u64(), answer["seqs"][1].as_u64()), (Some(2), Some(2)));
    let refused = w.send("write", "t", "", json!({"records": "x".repeat(300 << 10)}));
    assert_eq!(wait(&w, refused)["error"]["code"], "invalid_request");
    // A read with such a body waits like any other, and is not answered before its records come.
    let padded = format!("{}{}", " ".repeat(300 << 10), r#"{"from_seq":2,"wait_ms":9000}"#);
    let poll = w.send_text("diff", "t", &padded);
    while w.service.waiting.len() == 0 {
        std::thread::yield_now();
    }
    assert!(w.reply(poll).is_none());
    let token = w.send("write", "t", "", large_write("b"));
    assert_eq!(wait(&w, token)["last_seq"], 4);
    assert_eq!(wait(&w, poll)["records"][0]["$seq"], 3);
    while w.service.pending() > 0 {
        std::thread::yield_now();
    }
    w.service.close();
}

#[test]
fn a_client_that_leaves_while_its_large_body_is_parsed_does_not_wait() {
    let mut w = World::new();
    // The pool is stopped: the call starts here, and the client leaves before it is finished.
    let owned = |w: &World, token| {
        let body = format!("{}{}", " ".repeat(300 << 10), r#"{"from_seq":0,"wait_ms":9000}"#);
        let (grant, verb) = (Grant::all(), Verb::from_name("diff"));
        let request = Request { verb, name: "zero", token, grant: &grant, ..Request::default() };
        w.service.call_with_body(&request, body.into())
    };
    assert!(owned(&w, 1001).is_none());
    assert_eq!(w.service.waiting.len(), 1);
    w.service.cancel(1001);
    assert_eq!((w.service.waiting.len(), w.service.pending()), (0, 0));
    w.service.large_calls.enter(1002);
    assert!(w.service.leave_large_call(1002));
    let poll = w.send("diff", "zero", "", json!({"wait_ms": 9000}));
    w.service.large_calls.enter(poll);
    w.service.cancel(poll);
    assert_eq!(w.service.waiting.len(), 1, "the call is not finished");
    w.service.finish_large_call(poll, None);
    assert_eq!((w.service.waiting.len(), w.service.pending()), (0, 0));
}
