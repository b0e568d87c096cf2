//! Engines that read a prefix of a simulated object store, without a directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_env::objects::ObjectStore;
use topics_sim::Bucket;

use crate::engine::Engine;
use crate::topic::tests::World;
use crate::types::api::{Append, NewRecord, ReadFrom, ReadRequest, TopicMatch};
use crate::types::error::Error;
use crate::types::options::{Options, RemoteLimits, RemoteOptions};

type Rows = BTreeMap<u64, Vec<u8>>;

fn limits() -> RemoteLimits {
    RemoteLimits { pack_bytes: 2000, hot_segments: 1, ..RemoteLimits::default() }
}

fn fill(w: &World, topic: &str, n: usize) {
    for i in 0..n {
        let data = format!("{topic}-{i}");
        let tag: &[u8] = [b"red" as &[u8], b"blue"][i % 2];
        let record = NewRecord { tag, data: data.as_bytes(), binary: true, ..NewRecord::default() };
        w.engine().append(topic, &Append { records: &[record], ..Append::default() }).unwrap();
    }
    w.engine().sync().unwrap();
    w.checkpoint();
}

fn open(w: &World, bucket: &Arc<Bucket>) -> crate::Result<Engine> {
    let store: Arc<dyn ObjectStore> = Arc::new(bucket.client(9));
    let remote = Some(RemoteOptions { store: store.clone(), limits: limits() });
    let options = Options { background: false, remote, ..Options::default() };
    Engine::open_prefix(&w.env(), store, options)
}

fn rows(engine: &Engine, topic: &str, matching: Option<&str>) -> Rows {
    let (mut out, mut at) = (Rows::new(), 0);
    loop {
        let matching = matching.map(|tag| TopicMatch::Eq(tag.as_bytes().to_vec()));
        let from = ReadFrom::After(at);
        let b = engine.read(topic, &ReadRequest { from, matching, ..ReadRequest::default() });
        let b = b.unwrap();
        out.extend(b.iter().map(|r| (r.seq, r.data.to_vec())));
        if b.caught_up {
            return out;
        }
        at = b.next_from_seq;
    }
}

/// The part of the rows that a view ends with.
fn upto(mut rows: Rows, head: u64) -> Rows {
    rows.retain(|seq, _| *seq <= head);
    rows
}

#[test]
fn a_prefix_is_read_like_its_source() {
    let (mut w, bucket) = World::over_bucket(limits());
    fill(&w, "a", 43);
    fill(&w, "b", 17);
    fill(&w, "small", 3);
    w.delete("a", Some(4), None);
    w.engine().delete_seqs("a", &[7, 9, 12]).unwrap();
    w.engine().delete_seqs("b", &[2]).unwrap();
    w.checkpoint();
    w.engine().archive().unwrap();
    let view = open(&w, &bucket).unwrap();
    let names: Vec<String> = view.list("", None, 10).into_iter().map(|t| t.topic).collect();
    assert_eq!(names, ["a", "b", "small"]);
    for topic in ["a", "b"] {
        let (head, there) = (view.state(topic, false).unwrap().head_seq, w.state(topic));
        assert!(head > 8 && head <= there.head_seq, "{topic}: {head}");
        for tag in [None, Some("red"), Some("blue"), Some("none")] {
            let source = upto(rows(w.engine(), topic, tag), head);
            assert_eq!(rows(&view, topic, tag), source, "{topic}, {tag:?}");
        }
        let state = view.state(topic, false).unwrap();
        assert_eq!(state.earliest_seq, there.earliest_seq, "{topic}");
        assert_eq!(state.count, rows(&view, topic, None).len() as u64, "{topic}");
        assert_eq!(state.topic_id, there.topic_id);
    }
    // No segment of it was sealed.
    assert_eq!(view.state("small", false).unwrap().head_seq, 0);
    assert!(rows(&view, "small", None).is_empty());
    // What is archived later is for later views.
    let (a, b) = (rows(&view, "a", None), rows(&view, "b", None));
    fill(&w, "a", 40);
    w.engine().delete_seqs("a", &[20, 21]).unwrap();
    w.delete("b", Some(16), None);
    w.checkpoint();
    w.engine().archive().unwrap();
    assert_eq!((rows(&view, "a", None), rows(&view, "b", None)), (a.clone(), b));
    let later = open(&w, &bucket).unwrap();
    let head = later.state("a", false).unwrap().head_seq;
    assert!(head > 43);
    assert_eq!(rows(&later, "a", None), upto(rows(w.engine(), "a", None), head));
    assert!(!rows(&later, "a", None).contains_key(&20) && a.contains_key(&20));
    w.close();
}

#[test]
fn a_view_refuses_every_write() {
    let (w, bucket) = World::over_bucket(limits());
    fill(&w, "a", 30);
    w.engine().archive().unwrap();
    let view = open(&w, &bucket).unwrap();
    let requests = bucket.objects().len();
    let record = [NewRecord { data: b"1", ..NewRecord::default() }];
    let refused = |e: Error| {
        assert!(
            matches!(e, Error::StorageUnavailable { reason: "read_only", .. }),
            "{e}: {}",
            e.code()
        );
    };
    refused(view.append("a", &Append { records: &record, ..Append::default() }).unwrap_err());
    refused(view.create_topic("new", &Default::default()).unwrap_err());
    refused(view.delete_seqs("a", &[1]).unwrap_err());
    refused(view.delete_topic("a", false).unwrap_err());
    refused(view.checkpoint().unwrap_err());
    refused(view.archive().unwrap_err());
    refused(view.backup(std::path::Path::new("/out")).unwrap_err());
    view.close().unwrap();
    assert_eq!(bucket.objects().len(), requests, "a view wrote an object");
}

#[test]
fn objects_that_are_gone_or_damaged_are_errors() {
    let (w, bucket) = World::over_bucket(limits());
    let empty = open(&w, &bucket).unwrap_err();
    assert_eq!(empty.code(), "invalid_request", "{empty}");
    fill(&w, "a", 43);
    w.engine().delete_seqs("a", &[2]).unwrap();
    w.checkpoint();
    w.engine().archive().unwrap();
    let view = open(&w, &bucket).unwrap();
    for key in bucket.objects().into_keys().filter(|k| k.contains("/p")) {
        bucket.tamper(&key, None);
    }
    let e = view.read("a", &ReadRequest::default()).unwrap_err();
    assert!(["cold_unavailable", "storage_unavailable"].contains(&e.code()), "{e}");
    for key in bucket.objects().into_keys().filter(|k| k.contains("/b")) {
        bucket.tamper(&key, None);
    }
    assert_eq!(open(&w, &bucket).unwrap_err().code(), "cold_unavailable");
}
