//! Engines that read only the sealed segments of a base of a prefix.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use topics_env::objects::{ByteRange, ETag, ObjectBytes, ObjectInfo, ObjectResult, ObjectStore};
use topics_env::sync::Mutex;
use topics_remote::format::base::{Base, Place};
use topics_remote::{Retry, read};
use topics_sim::{Bucket, SimStore};

use super::tests::publish;
use super::view_tests::{Rows, fill, limits, open, rows};
use crate::engine::Engine;
use crate::topic::tests::{World, small};
use crate::types::api::ReadRequest;
use crate::types::config::{ConfigPatch, TopicType};
use crate::types::options::{Options, RemoteLimits, RemoteOptions};

/// A store that notes which parts of its objects are read.
#[derive(Debug)]
struct NotingStore {
    store: SimStore,
    reads: Mutex<Vec<(String, ByteRange)>>,
}

impl ObjectStore for NotingStore {
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag> {
        self.store.create(key, body)
    }

    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag> {
        self.store.replace(key, body, etag)
    }

    fn get(&self, key: &str, range: ByteRange, tag: Option<&ETag>) -> ObjectResult<ObjectBytes> {
        self.reads.lock().push((key.to_owned(), range.clone()));
        self.store.get(key, range, tag)
    }

    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>> {
        self.store.get_if_changed(key, etag)
    }

    fn head(&self, key: &str) -> ObjectResult<ObjectInfo> {
        self.reads.lock().push((key.to_owned(), ByteRange::Span(0..0)));
        self.store.head(key)
    }

    fn delete(&self, key: &str) -> ObjectResult<()> {
        self.store.delete(key)
    }
}

fn noting(bucket: &Arc<Bucket>) -> Arc<NotingStore> {
    Arc::new(NotingStore { store: bucket.client(9), reads: Mutex::default() })
}

fn sealed_over(
    w: &World,
    store: Arc<dyn ObjectStore>,
    base: Option<&str>,
) -> crate::Result<Engine> {
    let remote = Some(RemoteOptions { store: store.clone(), limits: limits() });
    let options = Options { background: false, remote, ..Options::default() };
    let mut env = World::unopened(small()).env();
    env.clock = w.clock.clone();
    Engine::open_sealed(&env, store, Path::new("/sealed"), base, options)
}

fn sealed(w: &World, bucket: &Arc<Bucket>, base: Option<&str>) -> crate::Result<Engine> {
    sealed_over(w, Arc::new(bucket.client(9)), base)
}

/// The newest base.
fn newest(w: &World, bucket: &Arc<Bucket>) -> Base {
    let (store, retry) = (bucket.client(9), Retry::once(w.env()));
    let (head, _) = read::head(&store, &retry).unwrap().unwrap();
    read::base(&store, &retry, &head.base.unwrap()).unwrap()
}

fn upto(rows: &Rows, head: u64) -> Rows {
    rows.range(..=head).map(|(seq, data)| (*seq, data.clone())).collect()
}

#[test]
fn sealed_segments_are_read_like_their_source_without_log_and_tails() {
    let (w, bucket) = World::over_bucket(limits());
    fill(&w, "a", 43);
    fill(&w, "b", 17);
    fill(&w, "small", 3);
    w.create("q", ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() });
    fill(&w, "q", 12);
    w.delete("b", Some(4), None);
    w.engine().delete_seqs("a", &[2, 7, 9, 12, 42]).unwrap();
    w.engine().delete_seqs("b", &[8]).unwrap();
    w.checkpoint();
    publish(&w);
    // What follows is in rounds only.
    w.put("a", &["after the base"]);
    w.engine().sync().unwrap();
    w.engine().ship().unwrap();

    let store = noting(&bucket);
    let view = sealed_over(&w, store.clone(), None).unwrap();
    let ends = [("a", 40), ("b", 15), ("q", 10)];
    let names: Vec<String> = view.list("", None, 10).into_iter().map(|t| t.topic).collect();
    assert_eq!(names, ["a", "b", "q"], "a topic without a sealed segment is not there");
    let same = |view: &Engine| {
        for (topic, end) in ends {
            let (found, there) = (view.state(topic, false).unwrap(), w.state(topic));
            assert_eq!((found.head_seq, found.topic_id), (end, there.topic_id), "{topic}");
            assert_eq!(found.earliest_seq, there.earliest_seq, "{topic}");
            for tag in [None, Some("red"), Some("blue"), Some("none")] {
                let expected = upto(&rows(w.engine(), topic, tag), end);
                assert_eq!(rows(view, topic, tag), expected, "{topic}, {tag:?}");
                assert_eq!(found.count, upto(&rows(w.engine(), topic, None), end).len() as u64);
            }
            // Both describe a segment in the same way.
            let parts = |e: &Engine| {
                let ranges = e.segments(topic).unwrap().ranges.into_iter();
                let sealed = ranges.filter(|r| r.sealed && r.last_seq <= end);
                let known = sealed.map(|r| (r.first_seq, r.last_seq, r.file_no, r.count, r.bytes));
                known.collect::<Vec<_>>()
            };
            assert_eq!(parts(view), parts(w.engine()), "{topic}");
        }
    };
    same(&view);
    assert!(!rows(&view, "a", None).contains_key(&2));

    let base = newest(&w, &bucket);
    assert!(!base.tails.is_empty() && !base.deletes.is_empty());
    let tails: Vec<Place> = base.tails.iter().map(|t| base.place(&t.at).unwrap()).collect();
    let reads = store.reads.lock().clone();
    assert!(reads.iter().any(|(key, _)| key.contains("/p")), "{reads:?}");
    for (key, range) in &reads {
        assert!(!key.contains("/r"), "a round was read: {key}");
        if !key.contains("/p") {
            continue;
        }
        let ByteRange::Span(span) = range else { panic!("{key}: {range:?}") };
        let meets = |t: &&Place| {
            let (from, to) = (u64::from(t.offset), u64::from(t.offset) + u64::from(t.len));
            t.pack.object().key == *key && span.start < to && from < span.end
        };
        assert_eq!(tails.iter().find(meets), None, "a tail was read: {key} {span:?}");
    }

    // Another process reads the same base, whatever was published since.
    let name = view.base().unwrap();
    assert_eq!(open(&w, &bucket).unwrap().base().unwrap(), name);
    assert!(view.is_current().unwrap());
    let before = rows(&view, "a", None);
    fill(&w, "a", 20);
    w.engine().delete_seqs("a", &[20, 21]).unwrap();
    w.checkpoint();
    publish(&w);
    assert!(!view.is_current().unwrap());
    let pinned = sealed(&w, &bucket, Some(&name)).unwrap();
    assert_eq!(pinned.base().unwrap(), name);
    assert_eq!(rows(&pinned, "a", None), before);
    assert_eq!(rows(&view, "a", None), before);
    let newer = sealed(&w, &bucket, None).unwrap();
    assert!(newer.is_current().unwrap());
    assert_eq!(newer.state("a", false).unwrap().head_seq, 60);
    assert!(!rows(&newer, "a", None).contains_key(&20));
}

#[test]
fn a_base_that_was_deleted_has_expired() {
    let limits = RemoteLimits { window: Some(Duration::ZERO), ..limits() };
    let (w, bucket) = World::over_bucket(limits);
    fill(&w, "a", 23);
    publish(&w);
    let view = sealed(&w, &bucket, None).unwrap();
    let name = view.base().unwrap();
    w.delete("a", Some(22), None);
    fill(&w, "a", 10);
    for _ in 0..3 {
        publish(&w);
        w.clock.advance_ms(10);
        w.put("a", &["more"]);
        w.checkpoint();
    }
    let e = sealed(&w, &bucket, Some(&name)).unwrap_err();
    assert_eq!(e.code(), "invalid_request", "waiting does not help");
    assert!(
        e.to_string().contains("has expired") && e.to_string().contains("remote_window_ms"),
        "{e}"
    );
    // A view that is open learns of it when it misses a record.
    let e = view.read("a", &ReadRequest::default()).unwrap_err();
    assert_eq!(e.code(), "cold_unavailable");
    let e = view.is_current().unwrap_err();
    assert!(e.to_string().contains("has expired"), "{e}");
    for wrong in ["", "b", "b:1", "b:x:0", "b:1:zz", "b:1:0:0"] {
        let e = sealed(&w, &bucket, Some(wrong)).unwrap_err();
        assert!(e.to_string().contains("names no base"), "{wrong:?}: {e}");
    }
}

/// A TTL may have changed since the base was made, so the reader decides what is left.
#[test]
fn no_record_of_a_sealed_segment_expires_by_the_ttl_of_its_topic() {
    let (w, bucket) = World::over_bucket(limits());
    w.create("t", ConfigPatch { ttl_ms: Some(1000), ..ConfigPatch::default() });
    fill(&w, "t", 12);
    publish(&w);
    let expected = upto(&rows(w.engine(), "t", None), 10);
    w.clock.advance_ms(5000);
    assert!(rows(w.engine(), "t", None).is_empty());
    let view = sealed(&w, &bucket, None).unwrap();
    assert_eq!(rows(&view, "t", None), expected);
}

#[test]
fn gaps_below_the_last_sealed_segment_are_declared() {
    let (w, bucket) = World::over_bucket(limits());
    w.create("c", ConfigPatch { cap_records: Some(20), ..ConfigPatch::default() });
    fill(&w, "c", 33);
    publish(&w);
    let view = sealed(&w, &bucket, None).unwrap();
    let (found, there) = (view.read("c", &ReadRequest::default()).unwrap(), w.read("c", 0));
    assert!(there.tombstone.is_some());
    assert_eq!(found.tombstone, there.tombstone);
}
