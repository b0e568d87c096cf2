//! Consumers over the simulated disk.

use crate::topic::cursors::{Consumers, decode, encode};
use std::sync::Arc;
use std::time::Duration;

use topics_sim::{CallKind, FaultKind};

use super::*;
use crate::topic::tests::*;
use crate::types::api::{Durability, TopicMatch};
use crate::types::config::ConfigPatch;

const ONCE: Option<ConsumerMode> = Some(ConsumerMode::AtMostOnce);

fn open(w: &World, name: &str, mode: Option<ConsumerMode>) -> Consumer {
    w.engine().consumer("t", name, mode, ConsumerStart::Start, false).unwrap()
}

fn auto(w: &World, name: &str) -> Consumer {
    w.engine().consumer("t", name, None, ConsumerStart::Start, true).unwrap()
}

fn some(max_records: usize) -> ConsumerRead {
    ConsumerRead { max_records, ..ConsumerRead::default() }
}

fn seqs(b: &ReadBatch) -> Vec<u64> {
    b.iter().map(|r| r.seq).collect()
}

fn world() -> World {
    let w = World::new();
    w.put("t", &["1", "2", "3", "4", "5", "6"]);
    w
}

#[test]
fn at_least_once_goes_on_from_what_was_stored() {
    let mut w = world();
    let c = open(&w, "c", None);
    let b = c.read(&some(2)).unwrap();
    assert_eq!((seqs(&b), b.next_from_seq, b.lag), (vec![1, 2], 2, 4));
    assert_eq!(seqs(&c.read(&some(2)).unwrap()), [3, 4]);
    assert_eq!(c.cursor().unwrap(), 0);
    c.commit(2).unwrap();
    // A reader that dies reads its last batch again.
    assert_eq!(seqs(&open(&w, "c", None).read(&some(2)).unwrap()), [3, 4]);
    // I8: a commit never moves the cursor back.
    c.commit(1).unwrap();
    assert_eq!(c.cursor().unwrap(), 2);
    assert_eq!(c.commit(7).unwrap_err().code(), "invalid_request");
    drop(c);
    for end in 0..3 {
        match end {
            0 => w.kill(),
            1 => w.reopen(),
            _ => {
                w.checkpoint();
                w.power_cut();
            }
        }
        let c = open(&w, "c", None);
        assert_eq!((c.cursor().unwrap(), seqs(&c.read(&some(1)).unwrap())), (2, vec![3]));
    }
}

#[test]
fn at_most_once_is_stored_before_it_is_handed_out() {
    for class in CLASSES {
        let mut w = World::new();
        w.create("t", ConfigPatch { durability: Some(class), ..ConfigPatch::default() });
        w.put("t", &["1", "2", "3", "4"]);
        w.engine().sync().unwrap();
        let c = open(&w, "c", ONCE);
        assert_eq!(seqs(&c.read(&some(2)).unwrap()), [1, 2]);
        assert_eq!(c.cursor().unwrap(), 2);
        drop(c);
        w.power_cut();
        let c = open(&w, "c", ONCE);
        assert_eq!(c.cursor().unwrap(), 2, "{class:?}");
        let survives = class != Durability::Ephemeral;
        let b = c.read(&some(9)).unwrap();
        assert_eq!(seqs(&b), if survives { vec![3, 4] } else { vec![] });
        assert!(survives || b.tombstone.is_some());
    }
}

#[test]
fn a_peek_leaves_the_cursor() {
    let w = world();
    let peek = ConsumerRead { checkpoint: false, ..some(2) };
    for c in [open(&w, "a", None), open(&w, "b", ONCE)] {
        assert_eq!(seqs(&c.read(&peek).unwrap()), [1, 2]);
        assert_eq!(seqs(&c.read(&peek).unwrap()), [1, 2]);
        assert_eq!(seqs(&c.read(&some(3)).unwrap()), [1, 2, 3]);
    }
}

#[test]
fn budgets() {
    let w = World::new();
    w.put("t", &["\"12345678\""; 5]);
    let c = open(&w, "c", None);
    let bytes = |max_bytes| ConsumerRead { max_bytes, ..ConsumerRead::default() };
    let b = c.read(&bytes(25)).unwrap();
    assert_eq!((seqs(&b), b.next_from_seq, b.lag, b.caught_up), (vec![1, 2], 2, 3, false));
    assert_eq!(seqs(&c.read(&bytes(30)).unwrap()), [3, 4, 5]);
    c.seek(SeekTo::Start).unwrap();
    assert_eq!(seqs(&c.read(&bytes(1)).unwrap()), [1], "at least one record");
    assert_eq!(seqs(&c.read(&bytes(0)).unwrap()), [2]);
    w.put("t", &["1"; 3_000]);
    assert_eq!(
        c.read(&ConsumerRead { max_records: 9_999, ..bytes(1 << 20) }).unwrap().len(),
        2_000
    );
}

#[test]
fn seeks() {
    let w = World::new();
    w.put("t", &["1", "2"]);
    w.clock.advance_ms(100);
    let at = w.clock_wall();
    w.put("t", &["3", "4"]);
    for mode in [None, ONCE] {
        let c = open(&w, if mode == ONCE { "once" } else { "again" }, mode);
        for (to, cursor, next) in [
            (SeekTo::End, 4, vec![]),
            (SeekTo::Ts(at), 2, vec![3]),
            (SeekTo::Start, 0, vec![1]),
            (SeekTo::Seq(3), 3, vec![4]),
        ] {
            assert_eq!(c.seek(to).unwrap(), cursor);
            assert_eq!(c.cursor().unwrap(), cursor);
            assert_eq!(seqs(&c.read(&some(1)).unwrap()), next);
        }
        assert_eq!(c.seek(SeekTo::Seq(5)).unwrap_err().code(), "invalid_request");
    }
}

#[test]
fn automatic_commits_store_what_came_before_at_each_read() {
    let mut w = World::new();
    w.put("t", &["1"; 300]);
    let c = auto(&w, "c");
    for before in 0..50 {
        c.read(&some(2)).unwrap();
        assert_eq!(c.cursor().unwrap(), 2 * before, "up to the end of the batch before");
    }
    // A peek says nothing about the last batch.
    c.read(&ConsumerRead { checkpoint: false, ..some(1) }).unwrap();
    assert_eq!((c.cursor().unwrap(), auto(&w, "c").cursor().unwrap()), (98, 98));
    std::mem::forget(c);
    w.kill();
    // The last batch may not have been dealt with: it is read again.
    assert_eq!(seqs(&auto(&w, "c").read(&some(1)).unwrap()), [99]);
}

#[test]
fn filters_move_the_cursor_over_what_they_skip() {
    let w = World::new();
    w.tagged("t", &["a", "b", "a", "b", "b"]);
    let c = open(&w, "c", None);
    let a = ConsumerRead { matching: eq("a"), ..some(9) };
    let b = c.read(&a).unwrap();
    assert_eq!((seqs(&b), b.next_from_seq), (vec![1, 3], 5));
}

#[test]
fn losses_are_told_as_in_a_diff() {
    let w = World::new();
    w.create("t", ConfigPatch { cap_records: Some(2), ..ConfigPatch::default() });
    w.put("t", &["1"]);
    let c = open(&w, "c", None);
    w.put("t", &["2", "3", "4"]);
    let b = c.read(&some(9)).unwrap();
    assert_eq!(b.tombstone.map(|t| (t.gap_from, t.gap_to)), Some((1, 2)));
    assert_eq!(seqs(&b), [3, 4]);
    // A new consumer has missed nothing.
    assert!(open(&w, "d", None).read(&some(9)).unwrap().tombstone.is_none());
}

#[test]
fn lag_in_records_and_in_time() {
    let w = world();
    let c = open(&w, "c", None);
    w.engine().consumer("t", "end", ONCE, ConsumerStart::End, false).unwrap();
    c.commit(4).unwrap();
    w.clock.advance_ms(70);
    let all = w.engine().consumers("t").unwrap();
    let got: Vec<_> = all.iter().map(|i| (&*i.name, i.mode, i.cursor, i.lag, i.lag_ms)).collect();
    use ConsumerMode::*;
    assert_eq!(got, [("c", AtLeastOnce, 4, 2, 70), ("end", AtMostOnce, 6, 0, 0)]);
}

/// Every consumer and every read is behind by the live records after its cursor.
fn check_lags(w: &World, live: &[u64], what: &str) {
    let all = w.engine().consumers("t").unwrap();
    assert!(!all.is_empty());
    for c in all {
        let left = live.iter().filter(|seq| **seq > c.cursor).count() as u64;
        assert_eq!((c.lag, c.lag_ms > 0), (left, left > 0), "{what}, listed: {c:?}");
        let req = ReadRequest { from: ReadFrom::After(c.cursor), limit: 0, ..Default::default() };
        let b = w.engine().read("t", &req).unwrap();
        assert_eq!((b.lag, b.lag_ms > 0), (left, left > 0), "{what}, read: {c:?}");
    }
}

#[test]
fn lag_counts_the_records_that_are_there() {
    for stage in 0..3 {
        let mut w = World::new();
        w.tagged("t", &["a", "b", "a", "b", "b", "a", "a", "b"]);
        for at in 0..=8 {
            open(&w, &format!("c{at}"), None).commit(at).unwrap();
        }
        w.clock.advance_ms(70);
        type Step = (Option<u64>, Option<TopicMatch>, &'static [u64]);
        let steps: [Step; 4] = [
            (None, eq("none"), &[1, 2, 3, 4, 5, 6, 7, 8]),
            (None, eq("b"), &[1, 3, 6, 7]),
            (Some(7), None, &[7]),
            (Some(9), None, &[]),
        ];
        for (before, matching, live) in steps {
            w.delete("t", before, matching);
            check_lags(&w, live, &format!("stage {stage}"));
            if stage > 0 {
                w.checkpoint();
                check_lags(&w, live, &format!("stage {stage}, in a segment"));
            }
            if stage > 1 {
                w.reopen();
                check_lags(&w, live, &format!("stage {stage}, opened again"));
            }
        }
    }
}

#[test]
fn what_is_evicted_or_has_expired_is_no_lag() {
    let w = World::new();
    w.create("t", ConfigPatch { ttl_ms: Some(1000), cap_records: Some(4), ..Default::default() });
    open(&w, "c", None);
    w.put("t", &["1", "2", "3"]);
    w.clock.advance_ms(600);
    w.put("t", &["4", "5"]);
    w.clock.advance_ms(100);
    check_lags(&w, &[2, 3, 4, 5], "a cap");
    w.clock.advance_ms(400);
    check_lags(&w, &[4, 5], "a ttl");
    w.checkpoint();
    check_lags(&w, &[4, 5], "a ttl, in a segment");
    w.clock.advance_ms(600);
    check_lags(&w, &[], "a ttl of all");
}

#[test]
fn a_look_at_lags_counts_no_read() {
    let w = world();
    w.create("capped", ConfigPatch { cap_records: Some(1), ..Default::default() });
    w.engine().consumer("capped", "c", None, ConsumerStart::Start, false).unwrap();
    w.put("capped", &["1", "2", "3"]);
    let before = w.engine().metrics();
    assert_eq!(w.engine().consumers("capped").unwrap()[0].lag, 1);
    let after = w.engine().metrics();
    assert_eq!((after.reads, after.tombstones), (before.reads, before.tombstones));
}

#[test]
fn consumers_go_by_delete_and_with_their_topic() {
    let mut w = world();
    let c = open(&w, "c", None);
    open(&w, "d", ONCE);
    assert!(w.engine().delete_consumer("t", "c").unwrap());
    assert!(!w.engine().delete_consumer("t", "c").unwrap());
    assert_eq!(c.read(&some(1)).unwrap_err().code(), "consumer_not_found");
    w.kill();
    assert_eq!(w.engine().consumers("t").unwrap().len(), 1);
    let e =
        w.engine().consumer("t", "d", Some(ConsumerMode::AtLeastOnce), ConsumerStart::Start, false);
    assert_eq!(e.unwrap_err().code(), "topic_exists_incompatible");
    assert!(w.engine().consumer("t", "a/b", None, ConsumerStart::Start, false).is_err());
    let c = open(&w, "d", ONCE);
    w.engine().delete_topic("t", false).unwrap();
    assert_eq!(c.read(&some(1)).unwrap_err().code(), "topic_not_found");
    w.put("t", &["new"]);
    assert_eq!(w.engine().consumers("t").unwrap(), []);
}

#[test]
fn one_reader_at_a_time() {
    let w = world();
    let (a, b) = (open(&w, "c", ONCE), open(&w, "c", ONCE));
    let reader = stored(&a.topic, "c").unwrap().reader;
    let guard = a.lock_reader(&reader, &some(1), Instant::now()).unwrap();
    let now = ConsumerRead { fail_if_busy: true, ..some(1) };
    assert_eq!(b.read(&now).unwrap_err().code(), "consumer_busy");
    drop(guard);
    assert_eq!(seqs(&b.read(&now).unwrap()), [1]);
    assert_eq!(seqs(&a.read(&now).unwrap()), [2]);
}

#[test]
fn readers_of_at_most_once_share_without_a_repeat() {
    let options = crate::types::options::Options { background: true, ..small() };
    let w = Arc::new(World::with(options));
    w.put("t", &["1"; 200]);
    let all_have_read = Arc::new(std::sync::Barrier::new(4));
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (c, all_have_read) = (open(&w, "c", ONCE), all_have_read.clone());
            std::thread::spawn(move || {
                let mut mine = seqs(&c.read(&some(7)).unwrap());
                assert_eq!(mine.len(), 7);
                // No reader is alone with the cursor: each gets records beside the others.
                all_have_read.wait();
                loop {
                    let b = c.read(&some(7)).unwrap();
                    mine.extend(seqs(&b));
                    if b.is_empty() {
                        return mine;
                    }
                }
            })
        })
        .collect();
    let mut all: Vec<u64> = readers.into_iter().flat_map(|t| t.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=200).collect::<Vec<_>>());
    w.engine().close().unwrap();
}

#[test]
fn a_read_waits_for_a_record() {
    let options = crate::types::options::Options { background: true, ..small() };
    let w = World::with(options);
    w.put("t", &["1"]);
    let c = w.engine().consumer("t", "c", None, ConsumerStart::End, false).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let wait = ConsumerRead { wait: Duration::from_secs(30), ..some(9) };
        tx.send(seqs(&c.read(&wait).unwrap())).unwrap();
        c
    });
    // The record comes only after the read waits for it.
    let topic = w.engine().open_engine().catalog().table.loaded.named("t").unwrap();
    while topic.gate.waiting() == 0 {
        assert!(rx.try_recv().is_err(), "there is nothing to read yet");
        std::thread::yield_now();
    }
    w.put("t", &["2"]);
    assert_eq!(rx.recv().unwrap(), [2]);
    let c = reader.join().unwrap();
    assert!(
        c.read(&ConsumerRead { wait: Duration::from_millis(5), ..some(9) }).unwrap().is_empty()
    );
    w.engine().close().unwrap();
}

#[test]
fn a_section_reads_back() {
    let mut all = Consumers::default();
    assert_eq!(encode(&all), None);
    all.0.insert("a".into(), Stored::new(ConsumerMode::AtMostOnce, 7));
    all.0.insert("b.c".into(), Stored::new(ConsumerMode::AtLeastOnce, u64::MAX));
    let bytes = encode(&all).unwrap();
    let back = decode(&bytes).unwrap();
    let flat = |c: &Consumers| -> Vec<_> {
        c.0.iter().map(|(n, s)| (n.clone(), s.mode, s.cursor, s.planned)).collect()
    };
    assert_eq!(flat(&back), flat(&all));
    for cut in 0..bytes.len() {
        assert!(decode(&bytes[..cut]).is_err());
    }
}

#[test]
fn consumers_are_bounded_over_all_topics() {
    let mut w = World::with(crate::types::options::Options { max_consumers: 3, ..small() });
    w.put("t", &["1"]);
    w.put("u", &["1"]);
    let open = |w: &World, topic: &str, name: &str| {
        let at = ConsumerStart::Start;
        w.engine().consumer(topic, name, None, at, false).map(drop).map_err(|e| e.to_string())
    };
    for (topic, name) in [("t", "a"), ("t", "b"), ("u", "a")] {
        open(&w, topic, name).unwrap();
    }
    for end in [World::reopen as fn(&mut World), World::kill, |w| {
        w.checkpoint();
        w.kill();
    }] {
        let refused = open(&w, "u", "b").unwrap_err();
        assert!(refused.contains("max_consumers") && refused.contains('3'), "{refused}");
        assert_eq!(w.engine().consumers("u").unwrap().len(), 1);
        open(&w, "t", "a").unwrap();
        end(&mut w);
    }
    // What goes makes room: a consumer, or a topic with its consumers.
    assert!(w.engine().delete_consumer("t", "a").unwrap());
    open(&w, "u", "b").unwrap();
    assert!(open(&w, "u", "c").is_err());
    w.engine().delete_topic("u", false).unwrap();
    open(&w, "t", "c").unwrap();
    open(&w, "t", "d").unwrap();
    assert!(open(&w, "t", "e").is_err());
}

#[test]
fn a_page_of_consumers_is_by_name() {
    let w = World::new();
    w.put("t", &["1", "2"]);
    for name in ["a", "b.1", "b.2", "b.3", "c"] {
        w.engine().consumer("t", name, None, ConsumerStart::Start, false).unwrap();
    }
    let page = |prefix: &str, after: Option<&str>, limit| {
        let found = w.engine().consumers_page("t", prefix, after, limit).unwrap();
        found.into_iter().map(|c| c.name).collect::<Vec<_>>()
    };
    assert_eq!(page("", None, 2), ["a", "b.1"]);
    assert_eq!(page("", Some("b.1"), 9), ["b.2", "b.3", "c"]);
    assert_eq!(page("b.", None, 9), ["b.1", "b.2", "b.3"]);
    assert_eq!(page("b.", Some("a"), 1), ["b.1"]);
    // A cursor below the prefix, and a consumer between the two.
    assert_eq!(page("b.", Some("A"), 9), ["b.1", "b.2", "b.3"]);
    assert_eq!(page("b.", Some("b.2"), 9), ["b.3"]);
    assert_eq!(page("b.", Some("c"), 9), [""; 0]);
    let one = w.engine().consumer_info("t", "b.2").unwrap();
    assert_eq!((one.name.as_str(), one.lag), ("b.2", 2));
    let refused = w.engine().consumer_info("t", "x").unwrap_err();
    assert_eq!(refused.code(), "consumer_not_found");
}

#[test]
fn concurrent_opens_of_a_new_consumer_log_one_creation() {
    let w = world();
    let topic = w.engine().find("t").unwrap();
    let stage = |name, mode| {
        stage_cursor(
            w.engine().open_engine().ctx(),
            &topic,
            name,
            Wait::No,
            creation(name, mode, 0),
        )
        .unwrap()
    };
    assert!(matches!(stage("c", None), Staged::Frame(..)));
    assert!(matches!(stage("c", ONCE), Staged::Nothing(Some(_))), "it waits for the first");
    w.engine().drive();
    assert_eq!(open(&w, "c", None).mode(), ConsumerMode::AtLeastOnce);
    let other = w.engine().consumer("t", "c", ONCE, ConsumerStart::Start, false).unwrap_err();
    assert_eq!(other.code(), "topic_exists_incompatible");
    // A creation that failed is not waited for.
    w.fs.fail_nth(CallKind::Write, 1, FaultKind::ENOSPC);
    assert!(matches!(stage("d", None), Staged::Frame(..)));
    w.engine().drive();
    w.engine().sync().unwrap();
    w.fs.clear_faults();
    assert!(stored(&topic, "d").is_none());
    assert_eq!(open(&w, "d", ONCE).mode(), ConsumerMode::AtMostOnce);
}
