//! Scans as their clients get them: whole, in bounded pieces, or seen to have failed.

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_ipc::reader::StreamReader;
use serde_json::json;
use topics_engine::{Append, NewRecord};

use super::tests::World;
use super::{Next, Pulled};

/// Pulls until the stream has ended or failed; the longest wait for bytes that one pull held.
fn drain(w: &World, token: u64) -> (Vec<u8>, Next, usize) {
    let (mut bytes, mut most) = (Vec::new(), 0);
    loop {
        let Pulled { pieces, next } = w.service.pull(token).unwrap();
        most = most.max(pieces.iter().map(Vec::len).sum());
        assert!(pieces.iter().all(|p| p.len() <= 256 << 10));
        pieces.iter().for_each(|p| bytes.extend_from_slice(p));
        if matches!(next, Next::End | Next::Fail) {
            return (bytes, next, most);
        }
    }
}

fn scan(w: &mut World, body: serde_json::Value) -> (Vec<u8>, Next, usize) {
    let token = w.send("scan", "t", "", body);
    let opening = w.raw_reply(token).expect("a scan opens at once");
    assert_eq!(opening.status, 200, "{}", String::from_utf8_lossy(&opening.body));
    let (rest, next, most) = drain(w, token);
    w.service.cancel(token);
    assert_eq!(w.service.pending(), 0);
    ([opening.body, rest].concat(), next, most)
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
    assert_eq!(next, Next::End);
    assert!(bytes.ends_with(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    // 20 MB went by; what was held at once is a batch.
    assert!(bytes.len() > 20_000_000 && most < 9 << 20, "{} {most}", bytes.len());
    assert_eq!(seqs(&bytes), (6..=20_000).collect::<Vec<_>>());
    let reader = StreamReader::try_new(&bytes[..], None).unwrap();
    let names: Vec<_> = reader.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["seq", "data"]);
    let metadata = reader.schema().metadata().clone();
    assert_eq!((&*metadata["to_seq"], &*metadata["head_seq"]), ("20000", "20000"));
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
    let reader = StreamReader::try_new(&bytes[..], None).unwrap();
    assert_eq!(reader.schema().metadata()["to_seq"], "1");
}

#[test]
fn a_scan_that_fails_has_no_marker() {
    let mut w = filled(10_000, 1000);
    let binary = w.ask("write", "t", json!({"records": [{"data_b64": "/w=="}]}));
    assert_eq!(binary["last_seq"], 10_001);
    let (bytes, next, _) = scan(&mut w, json!({"data_type": "string"}));
    assert_eq!(next, Next::Fail);
    assert!(!bytes.ends_with(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
    assert_eq!(scan(&mut w, json!({"data_type": "binary"})).1, Next::End);
    // A server that goes down does not say that this was all.
    let token = w.send("scan", "t", "", json!({"data_type": "binary"}));
    assert!(w.raw_reply(token).is_some());
    w.service.close();
    assert_eq!(drain(&w, token).1, Next::Fail);
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
