//! Scans as their clients see them: complete, in bounded pieces, or failed.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_ipc::reader::StreamReader;
use serde_json::{Value, json};
use topics_engine::{Append, NewRecord};

use super::tests::World;
use super::{NextAction, StreamOutput};

/// Pulls until the stream ends or fails; also the most bytes of one pull.
fn drain(w: &World, token: u64) -> (Vec<u8>, NextAction, usize) {
    let (mut bytes, mut most) = (Vec::new(), 0);
    loop {
        let StreamOutput { pieces, next } = w.service.pull(token).unwrap();
        most = most.max(pieces.iter().map(bytes::Bytes::len).sum());
        pieces.iter().for_each(|p| bytes.extend_from_slice(p));
        if matches!(next, NextAction::End | NextAction::Fail) {
            return (bytes, next, most);
        }
    }
}

/// The stream that answers a request. If the answer is a page, it has the same bytes.
fn columns(w: &mut World, verb: &str, body: Value) -> (Vec<u8>, NextAction, usize) {
    let page = w.arrow_page(verb, "t", &body);
    let token = w.send_for(true, verb, "t", "", body);
    let stream = begun(w, token);
    assert!(page.is_none_or(|page| page == stream.0 && stream.1 == NextAction::End));
    stream
}

/// The stream that answers a request.
fn begun(w: &World, token: u64) -> (Vec<u8>, NextAction, usize) {
    let opening = w.raw_reply(token).expect("the pool runs in the call");
    assert_eq!(opening.status, 200, "{}", String::from_utf8_lossy(&opening.body));
    let (rest, next, most) = drain(w, token);
    w.service.cancel(token);
    assert_eq!(w.service.pending(), 0);
    ([opening.body, rest].concat(), next, most)
}

fn scan(w: &mut World, body: Value) -> (Vec<u8>, NextAction, usize) {
    columns(w, "scan", body)
}

/// The seqs of an Arrow read, and the cursor after it.
fn diff(w: &mut World, body: Value) -> (Vec<i64>, u64) {
    let (bytes, next, _) = columns(w, "diff", body);
    assert_eq!(next, NextAction::End);
    (seqs(&bytes), number(&bytes, "to_seq"))
}

fn number(bytes: &[u8], name: &str) -> u64 {
    StreamReader::try_new(bytes, None).unwrap().schema().metadata()[name].parse().unwrap()
}

/// The refusal of an Arrow request.
fn refused(w: &mut World, verb: &str, body: Value) -> (u16, Value) {
    let token = w.send_for(true, verb, "t", "", body);
    let reply = w.raw_reply(token).unwrap();
    assert_eq!(w.service.pending(), 0, "nothing of it is left");
    assert!(w.service.pull(token).is_none());
    (reply.status, serde_json::from_slice(&reply.body).unwrap())
}

fn seqs(bytes: &[u8]) -> Vec<i64> {
    let reader = StreamReader::try_new(bytes, None).unwrap();
    let column = reader.schema().index_of("seq").unwrap();
    reader
        .flat_map(|b| b.unwrap().column(column).as_primitive::<Int64Type>().values().to_vec())
        .collect()
}

fn filled(records: usize, bytes: usize) -> World {
    let mut w = World::new();
    w.ask("create", "t", json!({}));
    let text = format!("\"{}\"", "x".repeat(bytes));
    let (tags, nodes) = (["k0", "k1"], ["n0", "n1", "n2", "n3"]);
    let all: Vec<_> = (0..records)
        .map(|i| NewRecord {
            data: text.as_bytes(),
            tag: tags[i % 2].as_bytes(),
            node: nodes[i % 4].as_bytes(),
            ..NewRecord::default()
        })
        .collect();
    for records in all.chunks(1000) {
        let append = Append { records, ..Append::default() };
        w.service.engine.append("t", &append).unwrap();
    }
    w
}

#[test]
fn a_scan_is_the_whole_range_and_ends_with_the_marker() {
    let mut w = filled(20_000, 1000);
    let (bytes, next, most) = scan(&mut w, json!({"from_seq": 5, "columns": ["seq", "data"]}));
    assert_eq!(next, NextAction::End);
    assert!(bytes.ends_with(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    // 20 MB passed, one pull at a time.
    assert!(bytes.len() > 20_000_000 && most <= 1 << 20, "{} {most}", bytes.len());
    assert_eq!(seqs(&bytes), (6..=20_000).collect::<Vec<_>>());
    let reader = StreamReader::try_new(&bytes[..], None).unwrap();
    let names: Vec<_> = reader.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["seq", "data"]);
    let metadata = reader.schema().metadata().clone();
    assert_eq!((&*metadata["to_seq"], &*metadata["head_seq"]), ("20000", "20000"));
}

#[test]
fn a_compressed_scan_has_the_same_rows() {
    let mut w = filled(20_000, 100);
    let (plain, ..) = scan(&mut w, json!({"from_seq": 5}));
    let rows = |bytes: &[u8]| {
        let batches = StreamReader::try_new(bytes, None).unwrap();
        batches.map(|batch| batch.unwrap()).collect::<Vec<_>>()
    };
    for codec in ["lz4", "zstd"] {
        let (bytes, next, _) = scan(&mut w, json!({"from_seq": 5, "compression": codec}));
        assert_eq!(next, NextAction::End);
        assert!(bytes.len() < plain.len() / 5, "{codec}: {} of {}", bytes.len(), plain.len());
        assert!(rows(&bytes) == rows(&plain), "{codec}");
        // The event loop does not compress.
        let small = json!({"to_seq": 5, "compression": codec});
        assert!(w.arrow_page("scan", "t", &small).is_none());
        assert_eq!(seqs(&scan(&mut w, small).0), [1, 2, 3, 4, 5]);
    }
    assert!(w.arrow_page("scan", "t", &json!({"to_seq": 5})).is_some());
    let (status, answer) = refused(&mut w, "scan", json!({"compression": "gzip"}));
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_request")));
}

#[test]
fn an_answer_of_one_batch_is_a_page() {
    let mut w = filled(9000, 1);
    let is_page = |w: &mut World, verb: &str, body: Value| w.arrow_page(verb, "t", &body).is_some();
    for (verb, body, expected) in [
        ("diff", json!({"limit": 8192}), true),
        ("diff", json!({"limit": 8193}), false),
        ("diff", json!({}), false),
        ("diff", json!({"from_seq": 808}), true),
        ("diff", json!({"from_seq": 9000}), true),
        ("diff", json!({"from_seq": 9000, "wait_ms": 1}), false),
        ("diff", json!({"from_seq": 8999, "wait_ms": 1}), true),
        ("diff", json!({"limit": 9, "max_batch_bytes": 8 << 20}), false),
        ("diff", json!({"limit": 9, "max_batch_bytes": 2}), false),
        ("diff", json!({"limit": 9, "ts_from": 1}), false),
        ("diff", json!({"limit": "9"}), false),
        ("scan", json!({"to_seq": 8192}), true),
        ("scan", json!({"to_seq": 8193}), false),
        ("scan", json!({"from_seq": "earliest"}), false),
        ("scan", json!({"from_seq": 8999, "ts_to": 1}), false),
        ("scan", json!({"limit": 1}), false),
    ] {
        assert_eq!(is_page(&mut w, verb, body.clone()), expected, "{verb} {body}");
        if expected {
            assert_eq!(columns(&mut w, verb, body).1, NextAction::End);
        }
    }
    assert!(w.arrow_page("diff", "unknown", &json!({"limit": 9})).is_none());
    assert_eq!(w.service.pending(), 0);
    let mut large = filled(100, 100_000);
    assert!(is_page(&mut large, "diff", json!({"limit": 10})));
    assert!(!is_page(&mut large, "diff", json!({"limit": 100})), "several batches");
    large.service.set_ready(false);
    assert!(!is_page(&mut large, "diff", json!({"limit": 10})), "the stream says why");
}

#[test]
fn rows_are_chosen_by_node_tag_and_range() {
    let mut w = filled(2000, 1);
    let mut chosen = |body| seqs(&scan(&mut w, body).0);
    let every = |step: usize, at: i64| (at..=2000).step_by(step).collect::<Vec<i64>>();
    assert_eq!(chosen(json!({"nodes": ["n1"]})), every(4, 2));
    assert_eq!(chosen(json!({"nodes": ["n1", "n3"]})), every(2, 2));
    assert_eq!(chosen(json!({"match": "k0", "nodes": ["n2"]})), every(4, 3));
    assert_eq!(chosen(json!({"from_seq": 10, "to_seq": 12})), [11, 12]);
    assert!(chosen(json!({"from_seq": 2000})).is_empty());
    assert!(chosen(json!({"nodes": ["unknown"]})).is_empty());
}

#[test]
fn times_bound_a_scan() {
    let mut w = World::new();
    w.ask("create", "t", json!({}));
    let mut times = Vec::new();
    for n in 0..5 {
        w.put("t", json!(n));
        w.clock.advance_ms(1000);
        times.push(1_700_000_000_000u64 + 1000 * n);
    }
    let mut chosen = |body| seqs(&scan(&mut w, body).0);
    assert_eq!(chosen(json!({"ts_from": times[2]})), [3, 4, 5]);
    assert_eq!(chosen(json!({"ts_to": times[2]})), [1, 2]);
    assert_eq!(chosen(json!({"ts_from": times[1], "ts_to": times[3], "from_seq": 2})), [3]);
    assert!(chosen(json!({"ts_from": times[4] + 1})).is_empty());
}

#[test]
fn what_is_not_synced_is_not_in_a_strong_scan() {
    let mut w = World::new();
    w.ask("create", "t", json!({"durability": "memory"}));
    w.put("t", json!(1));
    w.ask("sync", "", json!(null));
    w.put("t", json!(2));
    assert_eq!(seqs(&scan(&mut w, json!({})).0), [1, 2]);
    let (bytes, ..) = scan(&mut w, json!({"consistency": "strong"}));
    assert_eq!(seqs(&bytes), [1]);
    assert_eq!(number(&bytes, "to_seq"), 1);
}

#[test]
fn a_read_as_columns_ends_where_its_limit_is() {
    let mut w = filled(20_000, 10);
    let upto = |from: i64, to: i64| (from..=to).collect::<Vec<_>>();
    // Within the first page, and far after it.
    for limit in [1, 700, 8192, 8193, 15_000, 20_000, 1_000_000] {
        let (seqs, to_seq) = diff(&mut w, json!({"limit": limit}));
        let end = limit.min(20_000);
        assert!(seqs == upto(1, end) && to_seq == end as u64, "limit {limit}: to {to_seq}");
    }
    // `limit` counts records; `max_batch_bytes` only sets the size of a batch.
    let small = json!({"from_seq": 3, "limit": 9000, "max_batch_bytes": 1000});
    assert!(diff(&mut w, small) == (upto(4, 9003), 9003));
    assert_eq!(diff(&mut w, json!({"tail": 5})), (upto(19_996, 20_000), 20_000));
    assert_eq!(diff(&mut w, json!({"tail": 5, "limit": 2})), (upto(19_996, 19_997), 19_997));
    let back = json!({"tail": 10, "before_seq": 100});
    assert!(diff(&mut w, back) == (upto(90, 99), 99));
    assert_eq!(diff(&mut w, json!({"from_seq": 20_000})), (vec![], 20_000));
    let (bytes, ..) = columns(&mut w, "diff", json!({"limit": 2, "columns": ["data", "seq"]}));
    let schema = StreamReader::try_new(&bytes[..], None).unwrap().schema();
    assert_eq!(schema.fields().iter().map(|f| &**f.name()).collect::<Vec<_>>(), ["seq", "data"]);
    assert_eq!((number(&bytes, "head_seq"), number(&bytes, "to_seq")), (20_000, 2));
}

#[test]
fn whoever_follows_the_cursor_of_columns_sees_every_record_once() {
    let mut w = filled(20_000, 10);
    w.ask("delete", "t", json!({"match": "k1"}));
    w.ask("delete", "t", json!({"before_seq": 31}));
    for (node, every) in [(Value::Null, 2), (json!(["n0"]), 4)] {
        let (mut at, mut seen, mut reads) = (0, Vec::new(), 0);
        while at < 20_000 {
            let mut body = json!({"from_seq": at, "limit": 9000});
            if !node.is_null() {
                body["nodes"] = node.clone();
            }
            let (seqs, to_seq) = diff(&mut w, body);
            assert!(seqs.len() <= 9000 && to_seq > at, "{} rows, {at} to {to_seq}", seqs.len());
            seen.extend(seqs);
            (at, reads) = (to_seq, reads + 1);
        }
        let first = if every == 2 { 31 } else { 33 };
        assert_eq!(seen, (first..=20_000).step_by(every).collect::<Vec<i64>>());
        assert!(reads < 4, "{reads} reads");
    }
    let (seqs, to_seq) = diff(&mut w, json!({"match": "k0", "from_seq": 30, "limit": 3}));
    // The cursor also passes the deleted records after the last one.
    assert_eq!((seqs, to_seq), (vec![31, 33, 35], 36));
}

#[test]
fn columns_are_waited_for() {
    let mut w = World::new();
    w.ask("create", "t", json!({}));
    w.put("t", json!(1));
    let wait = json!({"from_seq": 1, "wait_ms": 5000});
    let token = w.send_for(true, "diff", "t", "", wait.clone());
    assert!(w.raw_reply(token).is_none());
    assert_eq!(w.service.pending(), 1);
    w.put("t", json!(2));
    let (bytes, next, _) = begun(&w, token);
    assert_eq!((seqs(&bytes), next, number(&bytes, "to_seq")), (vec![2], NextAction::End, 2));
    // No record came: a stream without rows, and the same cursor.
    let token = w.send_for(true, "diff", "t", "", json!({"from_seq": 2, "wait_ms": 5000}));
    w.clock.advance_ms(5001);
    w.service.engine.attempt_waits();
    let (bytes, next, _) = begun(&w, token);
    assert_eq!((seqs(&bytes), next, number(&bytes, "to_seq")), (vec![], NextAction::End, 2));
    // A client that leaves while it waits leaves nothing open.
    let token = w.send_for(true, "diff", "t", "", json!({"from_seq": 2, "wait_ms": 5000}));
    w.service.cancel(token);
    w.put("t", json!(3));
    assert!(w.raw_reply(token).is_none() && w.service.pending() == 0);
}

#[test]
fn what_fails_at_once_is_a_refusal_and_so_is_the_rest_of_what_broke_off() {
    let mut w = filled(3000, 1000);
    w.ask("write", "t", json!({"records": [{"data_b64": "/w=="}, {"data": 1}]}));
    let text = |from: i64| json!({"from_seq": from, "data_type": "string"});
    for verb in ["scan", "diff"] {
        let (bytes, next, _) = columns(&mut w, verb, text(0));
        assert_eq!(next, NextAction::Fail, "{verb}: what came before it came");
        // A request for the rest is refused with the reason.
        let reader = StreamReader::try_new(&bytes[..], None).unwrap();
        let came = reader.map_while(Result::ok).last().unwrap();
        let last = *came.column(1).as_primitive::<Int64Type>().values().last().unwrap();
        assert!((1..3000).contains(&last), "{last}");
        let (status, body) = refused(&mut w, verb, text(last));
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!((status, &body["error"]["code"]), (400, &json!("invalid_request")));
        assert!(message.starts_with("record 3001 is binary"), "{message}");
        assert!(message.contains("data_type=binary"), "{message}");
        let binary = json!({"from_seq": last, "data_type": "binary"});
        assert_eq!(columns(&mut w, verb, binary).1, NextAction::End);
        assert_eq!(columns(&mut w, verb, text(3001)).1, NextAction::End);
    }
    w.ask("drop", "t", json!(null));
    for verb in ["scan", "diff"] {
        let (status, body) = refused(&mut w, verb, text(0));
        assert_eq!((status, &body["error"]["code"]), (404, &json!("topic_not_found")));
    }
    w.service.close();
    assert_eq!(refused(&mut w, "diff", text(0)).0, 503);
}

#[test]
fn a_topic_that_goes_midway_breaks_its_columns_off() {
    for again in [false, true] {
        let mut w = filled(9000, 1000);
        let token = w.send_for(true, "diff", "t", "", json!({"data_type": "string"}));
        assert_eq!(w.raw_reply(token).unwrap().status, 200);
        let StreamOutput { next, .. } = w.service.pull(token).unwrap();
        assert_ne!(next, NextAction::End);
        w.ask("drop", "t", json!(null));
        if again {
            w.put("t", json!("another"));
        }
        assert_eq!(drain(&w, token).1, NextAction::Fail, "again: {again}");
        w.service.cancel(token);
        assert_eq!(w.service.pending(), 0);
    }
}

#[test]
fn a_scan_that_fails_has_no_marker() {
    let mut w = filled(10_000, 1000);
    let binary = w.ask("write", "t", json!({"records": [{"data_b64": "/w=="}]}));
    assert_eq!(binary["last_seq"], 10_001);
    let (bytes, next, _) = scan(&mut w, json!({"data_type": "string"}));
    assert_eq!(next, NextAction::Fail);
    assert!(!bytes.ends_with(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    assert_eq!(scan(&mut w, json!({"data_type": "binary"})).1, NextAction::End);
    // A server that shuts down sends no end-of-stream marker.
    let token = w.send("scan", "t", "", json!({"data_type": "binary"}));
    assert!(w.raw_reply(token).is_some());
    w.service.close();
    assert_eq!(drain(&w, token).1, NextAction::Fail);
    w.service.cancel(token);
}

#[test]
fn a_range_is_split_and_mapped_by_the_index() {
    let mut w = filled(3000, 10);
    let answer = w.ask("split", "t", json!({"from_seq": 100, "max_records": 1000}));
    let splits = answer["splits"].as_array().unwrap();
    assert_eq!((splits.len(), &answer["to_seq"]), (3, &json!(3000)), "{answer}");
    let mut at = 100;
    for split in splits {
        assert_eq!(split["from_seq"], at);
        at = split["to_seq"].as_u64().unwrap();
    }
    assert_eq!((at, &answer["records"]), (3000, &json!(2900)));
    assert!(answer["bytes"].as_u64().unwrap() > 29_000);
    let map = w.ask("segments", "t", json!(null));
    assert_eq!(map["segments"][0]["tier"], "log", "{map}");
    w.ask("sync", "", json!(null));
    w.ask("checkpoint", "", json!(null));
    let map = w.ask("segments", "t", json!(null));
    let one = &map["segments"][0];
    assert_eq!((&one["tier"], &one["first_seq"]), (&json!("segment"), &json!(1)), "{map}");
    assert_eq!((&one["last_seq"], &one["count"]), (&json!(3000), &json!(3000)), "{map}");
    assert_eq!(w.ask("split", "t", json!({"from_seq": 100}))["records"], 2900);
    let cut = w.ask("delete", "t", json!({"before_seq": 1001}));
    assert_eq!(cut["deleted"], 1000);
    assert_eq!(w.ask("split", "t", json!({}))["records"], 2000);
}
