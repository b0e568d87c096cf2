//! Engines that read a prefix of a simulated object store, without its directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use topics_env::objects::ObjectStore;
use topics_sim::Bucket;

use super::tests::publish;
use crate::engine::Engine;
use crate::topic::tests::{World, small};
use crate::types::api::{Append, Durability, NewRecord, ReadFrom, ReadRequest, TopicMatch};
use crate::types::config::{ConfigPatch, TopicType};
use crate::types::error::Error;
use crate::types::options::{Options, RemoteLimits, RemoteOptions};

pub(super) type Rows = BTreeMap<u64, Vec<u8>>;

pub(super) fn limits() -> RemoteLimits {
    RemoteLimits { pack_bytes: 2000, hot_segments: 1, ..RemoteLimits::default() }
}

pub(super) fn fill(w: &World, topic: &str, n: usize) {
    for i in 0..n {
        let data = format!("{topic}-{i}");
        let tag: &[u8] = [b"red" as &[u8], b"blue"][i % 2];
        let record = NewRecord { tag, data: data.as_bytes(), binary: true, ..NewRecord::default() };
        w.engine().append(topic, &Append { records: &[record], ..Append::default() }).unwrap();
    }
    w.engine().sync().unwrap();
    w.checkpoint();
}

fn open_at(w: &World, bucket: &Arc<Bucket>, at_ms: Option<u64>) -> crate::Result<Engine> {
    let store: Arc<dyn ObjectStore> = Arc::new(bucket.client(9));
    let remote = Some(RemoteOptions { store: store.clone(), limits: limits() });
    let options = Options { background: false, remote, ..Options::default() };
    // Another machine.
    let other = World::unopened(small());
    let mut env = other.env();
    env.clock = w.clock.clone();
    Engine::open_prefix(&env, store, Path::new("/view"), at_ms, options)
}

pub(super) fn open(w: &World, bucket: &Arc<Bucket>) -> crate::Result<Engine> {
    open_at(w, bucket, None)
}

pub(super) fn rows(engine: &Engine, topic: &str, matching: Option<&str>) -> Rows {
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

#[test]
fn a_prefix_is_read_like_its_source() {
    let (mut w, bucket) = World::over_bucket(limits());
    fill(&w, "a", 43);
    fill(&w, "b", 17);
    fill(&w, "small", 3);
    let memory = ConfigPatch { durability: Some(Durability::Memory), ..ConfigPatch::default() };
    w.create("memory", memory);
    w.put("memory", &["1", "2"]);
    w.create("q", ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() });
    fill(&w, "q", 12);
    w.delete("a", Some(4), None);
    w.engine().delete_seqs("a", &[7, 9, 12]).unwrap();
    w.engine().delete_seqs("b", &[2]).unwrap();
    w.checkpoint();
    publish(&w);
    // In a round only.
    w.put("small", &["after the base"]);
    w.engine().delete_seqs("a", &[40]).unwrap();
    w.engine().sync().unwrap();
    w.engine().ship().unwrap();
    let (view, before) = (open(&w, &bucket).unwrap(), bucket.requests());
    let names: Vec<String> = view.list("", None, 10).into_iter().map(|t| t.topic).collect();
    assert_eq!(names, ["a", "b", "memory", "q", "small"]);
    let same = |view: &Engine, topic: &str| {
        for tag in [None, Some("red"), Some("blue"), Some("none")] {
            assert_eq!(rows(view, topic, tag), rows(w.engine(), topic, tag), "{topic}, {tag:?}");
        }
        let (found, there) = (view.state(topic, false).unwrap(), w.state(topic));
        assert_eq!(
            (found.head_seq, found.earliest_seq, found.count, found.topic_id),
            (there.head_seq, there.earliest_seq, there.count, there.topic_id),
            "{topic}"
        );
    };
    ["a", "b", "small", "q", "memory"].iter().for_each(|topic| same(&view, topic));
    // What was read of them once is not fetched again.
    let asked = bucket.requests();
    assert!(asked > before, "records come from the bucket");
    ["a", "b", "small", "q"].iter().for_each(|topic| same(&view, topic));
    assert_eq!(bucket.requests(), asked);
    // What is shipped later is for later views.
    assert!(view.is_current().unwrap());
    let (a, b) = (rows(&view, "a", None), rows(&view, "b", None));
    let (at, source) = (w.clock_wall(), rows(w.engine(), "a", None));
    w.clock.advance_ms(10);
    w.put("small", &["a round more"]);
    w.engine().ship().unwrap();
    assert!(!view.is_current().unwrap());
    let newer = open(&w, &bucket).unwrap();
    assert!(newer.is_current().unwrap());
    w.engine().archive().unwrap();
    assert!(!newer.is_current().unwrap(), "a newer base");
    fill(&w, "a", 40);
    w.engine().delete_seqs("a", &[20, 21]).unwrap();
    w.delete("b", Some(16), None);
    w.checkpoint();
    publish(&w);
    assert_eq!((rows(&view, "a", None), rows(&view, "b", None)), (a.clone(), b));
    let later = open(&w, &bucket).unwrap();
    ["a", "b"].iter().for_each(|topic| same(&later, topic));
    assert!(!rows(&later, "a", None).contains_key(&20) && a.contains_key(&20));
    let earlier = open_at(&w, &bucket, Some(at)).unwrap();
    assert_eq!(rows(&earlier, "a", None), source);
    assert!(earlier.is_current().unwrap(), "it stays the state of that time");
    w.close();
}

/// Between any two requests of a view its owner publishes a base, and deletes all that only earlier ones need.
#[test]
fn a_view_beside_an_owner_that_keeps_one_base_is_whole() {
    let limits = || RemoteLimits { window: Some(Duration::ZERO), ..limits() };
    let mut again = 0;
    for at in 1.. {
        let (w, bucket) = World::over_bucket(limits());
        for _ in 0..2 {
            fill(&w, "a", 23);
            w.engine().delete_seqs("a", &[2]).unwrap();
            w.checkpoint();
            publish(&w);
        }
        let w = Arc::new(w);
        let (owner, requests) = (w.clone(), AtomicU64::new(0));
        let gate = move |_, _| {
            if requests.fetch_add(1, Ordering::SeqCst) + 1 == at {
                // Little is left of the packs before.
                owner.delete("a", Some(40), None);
                fill(&owner, "a", 10);
                publish(&owner);
                owner.clock.advance_ms(10);
                publish(&owner);
            }
        };
        let before = rows(w.engine(), "a", None);
        let store: Arc<dyn ObjectStore> = Arc::new(bucket.client(9).with_gate(Arc::new(gate)));
        let other = World::unopened(small());
        let mut env = other.env();
        env.clock = w.clock.clone();
        let options = Options {
            background: false,
            remote: Some(RemoteOptions { store: store.clone(), limits: limits() }),
            ..Options::default()
        };
        let view = Engine::open_prefix(&env, store, Path::new("/view"), None, options).unwrap();
        let after = rows(w.engine(), "a", None);
        if before == after {
            break;
        }
        let head = view.state("a", false).unwrap().head_seq;
        assert!([46, 56].contains(&head), "at {at}: {head}");
        again += u64::from(head == 56);
    }
    assert!(again > 3, "{again}");
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
    assert!(empty.to_string().contains("the prefix is empty: check the URL"), "{empty}");
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
    assert_eq!(open(&w, &bucket).unwrap_err().code(), "storage_unavailable");
}
