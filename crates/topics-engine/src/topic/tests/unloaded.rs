//! Unloaded topics: no call has used them since a clean close.

use topics_sim::DiskImage;

use super::*;
use crate::types::api::TopicSummary;
use crate::types::error::Error;

/// Six topics that do nothing by themselves, and some that do; closed and open again.
fn with_unloaded() -> (World, Vec<TopicSummary>) {
    let mut w = World::new();
    for i in 0..6 {
        // Some end in a sealed segment, some in an active one.
        w.put(&format!("t{i}"), &["x"; 7][..4 + i % 3]);
    }
    w.create("empty", ConfigPatch::default());
    w.create("ttl", ConfigPatch { ttl_ms: Some(1 << 40), ..ConfigPatch::default() });
    w.put("ttl", &["x"]);
    w.create("cap", ConfigPatch { cap_records: Some(9), ..ConfigPatch::default() });
    w.tagged("holes", &["a", "b", "a"]);
    assert_eq!(w.delete("holes", None, eq("b")), 1);
    w.engine().sync().unwrap();
    let before = w.engine().list("", None, 100);
    w.reopen();
    (w, before)
}

fn loaded_topics(w: &World) -> usize {
    w.engine().open_engine().catalog().table.loaded.len()
}

#[test]
fn only_named_topics_are_loaded() {
    let (mut w, before) = with_unloaded();
    let all = before.len();
    assert_eq!((loaded_topics(&w), w.engine().open_engine().catalog().topics()), (3, all));
    assert_eq!(w.engine().list("", None, 100), before);
    assert_eq!(w.engine().metrics().topics, all as u64);
    assert_eq!(w.engine().metrics().live_bytes, before.iter().map(|t| t.bytes).sum::<u64>());
    w.engine().tick().unwrap();
    assert_eq!(loaded_topics(&w), 3, "a list and a sweep load no topic");
    assert_eq!(w.seqs("t1"), [1, 2, 3, 4, 5]);
    assert_eq!(w.put("t4", &["y"]).first_seq, 6);
    assert_eq!(loaded_topics(&w), 5);
    assert_eq!(w.engine().metrics().topics, all as u64);
    // Unloaded topics are in every snapshot, also after others were loaded and after a kill.
    for round in 0..4 {
        w.checkpoint();
        if round == 2 {
            w.put("t2", &["y"]);
        }
    }
    let bytes = w.engine().metrics().live_bytes;
    let last = w.engine().list("", None, 100);
    assert_eq!(bytes, last.iter().map(|t| t.bytes).sum::<u64>());
    for kill in [true, false, true] {
        if kill {
            w.kill()
        } else {
            w.reopen()
        }
        let mut now = w.engine().list("", None, 100);
        // When a topic was read last is not kept.
        now.iter_mut().zip(&last).for_each(|(n, l)| n.effective_priority = l.effective_priority);
        assert_eq!(now, last);
        assert_eq!(w.engine().metrics().live_bytes, bytes);
    }
    assert_eq!(w.seqs("t4"), [1, 2, 3, 4, 5, 6]);
    assert_eq!(w.seqs("t0"), [1, 2, 3, 4]);
}

#[test]
fn a_list_of_loaded_and_unloaded_topics_is_in_order_and_complete() {
    let (w, _) = with_unloaded();
    w.put("t3", &["y"]);
    w.put("t35", &["y"]);
    w.put("a", &["y"]);
    w.put("zz", &["y"]);
    w.engine().delete_topic("t2", false).unwrap();
    let all: Vec<String> = w.engine().list("", None, 100).into_iter().map(|t| t.topic).collect();
    let wanted = ["a", "cap", "empty", "holes", "t0", "t1", "t3", "t35", "t4", "t5", "ttl", "zz"];
    assert_eq!(all, wanted);
    for prefix in ["", "t", "t3", "x", "zz"] {
        for after in [None, Some("a"), Some("t"), Some("t1"), Some("t2"), Some("t35"), Some("zzz")]
        {
            for limit in [1, 2, 3, 7, 100] {
                let found = w.engine().list(prefix, after, limit).into_iter().map(|t| t.topic);
                let model = wanted.iter().filter(|n| {
                    n.starts_with(prefix) && after.is_none_or(|a| **n > a || a < prefix)
                });
                let model: Vec<_> = model.take(limit).map(|n| (*n).to_owned()).collect();
                let what = format!("{prefix:?} after {after:?}, {limit}");
                assert_eq!(found.collect::<Vec<_>>(), model, "{what}");
            }
        }
    }
}

#[test]
fn a_topic_that_was_loaded_and_deleted_does_not_come_back() {
    let (mut w, _) = with_unloaded();
    let old = w.state("t1").topic_id;
    assert!(w.engine().delete_topic("t1", false).unwrap().deleted);
    assert!(w.engine().delete_topic("t5", false).unwrap().deleted);
    assert_eq!(w.put("t1", &["new"]).first_seq, 1);
    let id = w.state("t1").topic_id;
    assert!(id > old);
    for kill in [false, true, false] {
        assert_eq!((w.state("t1").topic_id, w.seqs("t1")), (id, vec![1]));
        assert_eq!(w.engine().state("t5", false).unwrap_err().code(), "topic_not_found");
        w.checkpoint();
        if kill { w.kill() } else { w.reopen() }
    }
}

fn data_of(w: &World, topic: u64) -> String {
    let files = w.fs.kill_image().files();
    let folder = format!("{DIR}/topics/{topic}/");
    let mut data = files.into_iter().map(|f| f.0).filter(|p| p.starts_with(&folder));
    data.find(|p| p.ends_with(".data")).unwrap()
}

fn mount(w: &mut World, image: &DiskImage) -> Result<()> {
    w.engine = None;
    w.fs = Arc::new(SimFs::from_image(image));
    w.try_open()
}

/// The files that the snapshot names are looked at when the topic is first asked for, with the
/// error that an open after a kill has.
#[test]
fn i9_what_is_missing_is_found_at_the_first_touch() {
    let (mut w, before) = with_unloaded();
    let id = |w: &World, name: &str| w.state(name).topic_id;
    let places = [data_of(&w, id(&w, "t1")), data_of(&w, id(&w, "ttl"))];
    w.put("t0", &["y"]);
    w.close();
    let whole = w.fs.kill_image();
    let gone = |image: &mut DiskImage, path: &str| assert!(image.remove(path));
    let short = |image: &mut DiskImage, path: &str| {
        let bytes = image.read(path).unwrap();
        image.put(path, &bytes[..bytes.len() - 1]);
    };
    let kinds: [&dyn Fn(&mut DiskImage, &str); 2] = [&gone, &short];
    for (harm, (place, name)) in
        kinds.iter().flat_map(|k| places.iter().zip(["t1", "ttl"]).map(move |p| (k, p)))
    {
        let mut image = whole.clone();
        harm(&mut image, place);
        mount(&mut w, &image).unwrap();
        for _ in 0..2 {
            let named = |e: Error| match e {
                Error::Corrupt { file, .. } => assert_eq!(&file, place),
                e => panic!("{e}"),
            };
            assert!(w.engine().list("", None, 100).iter().any(|t| t.topic == name));
            named(w.engine().read(name, &after(0)).map(drop).unwrap_err());
            named(w.try_put(name, &["z"]).map(drop).unwrap_err());
            named(w.engine().state(name, false).map(drop).unwrap_err());
            named(w.engine().create_topic(name, &ConfigPatch::default()).map(drop).unwrap_err());
            named(w.engine().delete_topic(name, false).map(drop).unwrap_err());
            let found = w.engine().verify().unwrap().problems;
            assert!(found.iter().any(|p| place.ends_with(&p.file)), "{found:?}");
            // All other topics keep working, with their state.
            w.put("t2", &["z"]);
            w.checkpoint();
            w.checkpoint();
            assert_eq!(w.seqs("t0").len(), 5);
            w.reopen();
        }
        let mut healed = w.fs.kill_image();
        healed.put(place, &whole.read(place).unwrap());
        mount(&mut w, &healed).unwrap();
        let was = before.iter().find(|t| t.topic == name).unwrap();
        assert_eq!(w.seqs(name).len() as u64, was.count);
        // After a kill the open refuses.
        w.put("t2", &["z"]);
        let mut image = w.fs.kill_image();
        harm(&mut image, place);
        match mount(&mut w, &image) {
            Err(Error::Corrupt { file, .. }) => assert_eq!(&file, place),
            other => panic!("{other:?}"),
        }
    }
}
