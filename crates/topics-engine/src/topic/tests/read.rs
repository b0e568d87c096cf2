//! Positions, tombstones, gaps, filters, damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use topics_env::sync::Mutex;

use super::*;
use crate::WaitId;
use crate::types::api::NodeFilter;
use crate::types::api::{Gap, GapReason};

fn from(from: ReadFrom, limit: usize) -> ReadRequest {
    ReadRequest { from, limit, ..ReadRequest::default() }
}

fn seqs(b: &ReadBatch) -> Vec<u64> {
    b.iter().map(|r| r.seq).collect()
}

#[test]
fn where_a_read_begins() {
    let w = World::new();
    w.create("t", ConfigPatch { cap_records: Some(8), ..ConfigPatch::default() });
    w.put("t", &["x"; 10]);
    let get = |f, limit| w.engine().read("t", &from(f, limit)).unwrap();
    let first = get(ReadFrom::After(0), 3);
    assert_eq!(
        first.tombstone.map(|t| (t.gap_from, t.gap_to, t.reason)),
        Some((1, 2, GapReason::Cap))
    );
    let t = first.tombstone.unwrap();
    assert_eq!((t.missed_estimate, t.earliest_seq, t.head_seq), (2, 3, 10));
    assert_eq!(
        (seqs(&first), first.next_from_seq, first.lag, first.caught_up),
        (vec![3, 4, 5], 5, 5, false)
    );
    let kept = get(ReadFrom::Earliest, 2);
    assert_eq!((kept.tombstone, seqs(&kept)), (None, vec![3, 4]));
    assert_eq!(seqs(&get(ReadFrom::Tail(3), 99)), [8, 9, 10]);
    let all = get(ReadFrom::Tail(99), 99);
    assert_eq!((all.tombstone, seqs(&all)), (None, (3..=10).collect()));
    assert_eq!(seqs(&get(ReadFrom::Before { seq: 8, tail: 3 }, 99)), [5, 6, 7]);
    assert_eq!(seqs(&get(ReadFrom::Before { seq: 5, tail: 9 }, 99)), [3, 4]);
    assert!(get(ReadFrom::Before { seq: 3, tail: 9 }, 99).is_empty());
    let end = get(ReadFrom::After(10), 9);
    assert!(end.is_empty() && end.caught_up && end.tombstone.is_none());
    w.delete("t", None, eq("none"));
    let upto = ReadRequest { upto: Some(6), ..from(ReadFrom::After(4), 99) };
    assert_eq!(seqs(&w.engine().read("t", &upto).unwrap()), [5, 6]);
}

#[test]
fn tails_count_live_records() {
    let w = World::new();
    w.tagged("t", &["a", "b", "a", "b", "a", "b", "a", "b"]);
    w.delete("t", None, eq("b"));
    for _ in 0..2 {
        let got = w.engine().read("t", &from(ReadFrom::Tail(2), 99)).unwrap();
        assert_eq!(seqs(&got), [5, 7]);
        w.checkpoint();
    }
}

#[test]
fn a_cursor_of_another_topic_of_that_name_is_told() {
    let w = World::new();
    let old = w.put("t", &["1", "2", "3"]);
    assert!(w.engine().delete_topic("t", false).unwrap().deleted);
    let new = w.put("t", &["a"]);
    assert_ne!(old.topic_id, new.topic_id);
    let b = w.read("t", 3);
    assert_eq!(
        b.tombstone.map(|t| (t.gap_from, t.gap_to, t.reason)),
        Some((1, 1, GapReason::Recreated))
    );
    assert_eq!(seqs(&b), [1], "then it starts at the new earliest");
    let with_id = ReadRequest { topic_id: Some(old.topic_id), ..from(ReadFrom::After(1), 9) };
    let b = w.engine().read("t", &with_id).unwrap();
    assert_eq!(b.tombstone.map(|t| t.reason), Some(GapReason::Recreated));
    assert_eq!(seqs(&b), [1]);
    let right = ReadRequest { topic_id: Some(new.topic_id), ..from(ReadFrom::After(1), 9) };
    assert!(w.engine().read("t", &right).unwrap().tombstone.is_none());
}

/// Records 1–3, a gap 4–6, a record 7, a gap 8–9, records 10–11, of which 10 is deleted.
fn with_gaps() -> World {
    let w = World::new();
    w.put("t", &["1", "2", "3"]);
    let topic = w.engine().open_engine().catalog().table.loaded.named("t").unwrap();
    let lose = |from, to| {
        topic.state.write().add_gap(Gap { from, to, reason: GapReason::Crash });
        topic.append.lock().next_seq = to + 1;
    };
    lose(4, 6);
    w.put("t", &["7"]);
    lose(8, 9);
    w.tagged("t", &["dead", "live"]);
    w.delete("t", None, eq("dead"));
    w
}

#[test]
fn i4_each_gap_is_told_once_and_first() {
    let w = with_gaps();
    let cases: [(u64, Option<(u64, u64)>, &[u64], u64); 9] = [
        (0, None, &[1, 2, 3], 3),
        (2, None, &[3], 3),
        (3, Some((4, 6)), &[7], 7),
        (4, Some((5, 6)), &[7], 7),
        (6, None, &[7], 7),
        (7, Some((8, 9)), &[11], 11),
        (8, Some((9, 9)), &[11], 11),
        (9, None, &[11], 11),
        (11, None, &[], 11),
    ];
    for (cursor, tombstone, records, next) in cases {
        let b = w.read("t", cursor);
        let t = b.tombstone.map(|t| (t.gap_from, t.gap_to));
        assert_eq!((t, seqs(&b), b.next_from_seq), (tombstone, records.to_vec(), next), "{cursor}");
    }
    assert_eq!(w.scan("t", 0), (vec![1, 2, 3, 7, 11], vec![(4, 6, "crash"), (8, 9, "crash")]));
}

#[test]
fn i4_a_silent_step_does_not_cross_a_gap() {
    let w = with_gaps();
    w.delete("t", Some(11), None);
    assert_eq!(w.scan("t", 0), (vec![11], vec![(4, 6, "crash"), (8, 9, "crash")]));
    let b = w.read("t", 0);
    assert_eq!((b.tombstone, b.len(), b.next_from_seq, b.earliest_seq), (None, 0, 3, 11));
}

#[test]
fn eviction_takes_the_gaps_below_it() {
    let w = with_gaps();
    w.create("t", ConfigPatch { cap_records: Some(1), ..ConfigPatch::default() });
    assert_eq!(w.state("t").evict_floor, 8);
    assert_eq!(w.scan("t", 0), (vec![11], vec![(1, 7, "cap"), (8, 9, "crash")]));
    w.put("t", &["12"]);
    assert_eq!(w.scan("t", 0), (vec![12], vec![(1, 11, "cap")]));
}

#[test]
fn gaps_outlast_reopening() {
    let mut w = World::new();
    w.create("t", class(Durability::Memory));
    w.put("t", &["1"]);
    w.kill();
    let lost = w.state("t").gaps.clone();
    assert_eq!(lost.len(), 1);
    w.put("t", &["2"]);
    w.checkpoint();
    for clean in [true, false, true] {
        if clean {
            w.reopen()
        } else {
            w.kill()
        }
        assert_eq!(w.state("t").gaps.first(), lost.first());
    }
}

#[test]
fn nodes_are_skipped_and_the_cursor_moves() {
    let w = World::new();
    for node in ["a", "b", "a", "", "a"] {
        let records = [NewRecord { node: node.as_bytes(), ..rec("x") }];
        w.engine().append("t", &Append { records: &records, ..Append::default() }).unwrap();
    }
    let skip = |from, nodes: &[&str]| ReadRequest {
        skip_nodes: NodeFilter(nodes.iter().map(|n| n.as_bytes().to_vec()).collect()),
        ..after(from)
    };
    let b = w.engine().read("t", &skip(0, &["a"])).unwrap();
    assert_eq!((seqs(&b), b.next_from_seq, b.caught_up), (vec![2, 4], 5, true));
    assert_eq!(b.records_scanned, 5);
    let b = w.engine().read("t", &skip(4, &["b", "a"])).unwrap();
    assert_eq!((b.len(), b.next_from_seq, b.caught_up), (0, 5, true));
    w.create("t", ConfigPatch { dedupe_node: Some(false), ..ConfigPatch::default() });
    assert_eq!(w.engine().read("t", &skip(0, &["a"])).unwrap().len(), 5);
}

#[test]
fn limits_and_budgets() {
    let w = World::new();
    w.put("t", &["1234567890"; 20]);
    for sealed in [false, true] {
        let small = ReadRequest { max_bytes: 1, ..after(0) };
        let b = w.engine().read("t", &small).unwrap();
        assert_eq!((seqs(&b), b.next_from_seq), (vec![1], 1), "at least one, {sealed}");
        let some = ReadRequest { max_bytes: 45, ..after(0) };
        let b = w.engine().read("t", &some).unwrap();
        assert_eq!((b.len(), b.next_from_seq, b.caught_up), (4, 4, false), "never more than asked");
        let all = ReadRequest { max_bytes: 50, ..after(0) };
        assert_eq!(w.engine().read("t", &all).unwrap().len(), 5);
        let none = ReadRequest { limit: 0, ..after(0) };
        assert!(w.engine().read("t", &none).unwrap().is_empty());
        w.checkpoint();
    }
}

#[test]
fn a_batch_outlives_everything() {
    let mut w = World::new();
    w.put("t", &["one", "two"]);
    w.checkpoint();
    w.put("t", &["three"]);
    let b = w.read("t", 0);
    let (buf, range) = b.payload(2).unwrap();
    w.engine().delete_topic("t", false).unwrap();
    w.close();
    let data: Vec<_> = b.iter().map(|r| r.data.to_vec()).collect();
    assert_eq!(data, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    assert_eq!(&buf[range], b"three");
}

#[test]
fn lag() {
    let w = World::new();
    w.put("t", &["1"]);
    w.clock.advance_ms(700);
    w.put("t", &["2"]);
    w.clock.advance_ms(300);
    for _ in 0..2 {
        let one = w.engine().read("t", &ReadRequest { limit: 1, ..after(0) }).unwrap();
        assert_eq!((one.lag, one.lag_ms), (1, 300));
        let all = w.read("t", 0);
        assert_eq!((all.lag, all.lag_ms), (0, 0));
        w.checkpoint();
    }
}

#[test]
fn strong_reads_see_what_is_synced() {
    let w = World::new();
    w.create("t", class(Durability::Disk));
    w.put("t", &["1"]);
    w.engine().sync().unwrap();
    w.put("t", &["2"]);
    let strong = ReadRequest { strong: true, ..after(0) };
    let b = w.engine().read("t", &strong).unwrap();
    assert_eq!((seqs(&b), b.next_from_seq, b.head_seq, b.caught_up), (vec![1], 1, 2, false));
    w.engine().sync_topic("t").unwrap();
    assert_eq!(w.engine().read("t", &strong).unwrap().len(), 2);
}

/// The outcome of an asynchronous read, once it is there.
type Outcome = Arc<Mutex<Option<Result<(ReadRequest, ReadBatch)>>>>;

fn read_async(w: &World, request: ReadRequest, wait_ms: u64) -> (Outcome, WaitId) {
    let outcome = Outcome::default();
    let set = outcome.clone();
    let done = Box::new(move |o| *set.lock() = Some(o));
    let id = w.engine().read_async("t", request, Duration::from_millis(wait_ms), done);
    (outcome, id)
}

fn seqs_of(outcome: &Outcome) -> Option<Vec<u64>> {
    outcome.lock().as_ref().map(|o| seqs(&o.as_ref().unwrap().1))
}

#[test]
fn a_read_waits_for_a_record_its_deadline_or_the_end_of_the_topic() {
    let w = World::new();
    w.put("t", &["1"]);
    let reads = || w.engine().metrics().reads;
    let (there, id) = read_async(&w, after(0), 60_000);
    assert_eq!((seqs_of(&there), id), (Some(vec![1]), 0));
    let (late, _) = read_async(&w, after(1), 500);
    let (next, _) = read_async(&w, ReadRequest { from: ReadFrom::Tail(0), ..after(0) }, 60_000);
    let (ended, id) = read_async(&w, after(1), 60_000);
    let (gone, cancelled) = read_async(&w, after(1), 60_000);
    assert!(w.engine().cancel_wait(cancelled));
    w.engine().end_wait(id);
    assert_eq!(seqs_of(&ended), Some(vec![]));
    let before = reads();
    w.clock.advance_ms(499);
    w.engine().attempt_waits();
    assert_eq!((seqs_of(&late), reads()), (None, before), "nothing has changed");
    w.clock.advance_ms(1);
    w.engine().attempt_waits();
    assert_eq!(seqs_of(&late), Some(vec![]));
    w.put("t", &["2"]);
    w.engine().attempt_waits();
    assert_eq!((seqs_of(&next), seqs_of(&gone)), (Some(vec![2]), None));
    let request = next.lock().take().unwrap().unwrap().0;
    assert_eq!(request.from, ReadFrom::After(1), "where the batch begins");
    let (dropped, _) = read_async(&w, after(2), 60_000);
    let (closed, _) = read_async(&w, after(2), 60_000);
    w.engine().delete_topic("t", false).unwrap();
    w.engine().attempt_waits();
    for outcome in [dropped, closed] {
        let e = outcome.lock().take().unwrap().unwrap_err();
        assert_eq!(e.code(), "topic_not_found");
    }
    w.put("t", &["again"]);
    let (closed, _) = read_async(&w, after(1), 60_000);
    w.engine().close().unwrap();
    assert_eq!(closed.lock().take().unwrap().unwrap_err().code(), "shutting_down");
}

/// The wait of a strong read for a sync requests none, and is not ended by records that are not synced.
#[test]
fn a_strong_read_waits_for_a_sync() {
    let w = World::new();
    w.create("t", class(Durability::Disk));
    w.engine().sync().unwrap();
    let strong = ReadRequest { strong: true, ..after(0) };
    let (waiting, _) = read_async(&w, strong, 60_000);
    w.put("t", &["1"]);
    w.engine().attempt_waits();
    let reads = w.engine().metrics().reads;
    for i in 0..9 {
        w.put("t", &[&i.to_string()]);
        w.engine().attempt_waits();
    }
    assert_eq!((seqs_of(&waiting), w.engine().metrics().reads), (None, reads));
    w.engine().sync_topic("t").unwrap();
    w.engine().attempt_waits();
    assert_eq!(seqs_of(&waiting), Some((1..=10).collect()));
}

/// Records of class `ephemeral` never become durable: a strong read does not try again and again.
#[test]
fn a_strong_read_of_what_is_never_durable_waits_for_others() {
    let w = World::new();
    w.create("t", class(Durability::Ephemeral));
    w.engine().sync().unwrap();
    w.put("t", &["1"]);
    let (waiting, _) = read_async(&w, ReadRequest { strong: true, ..after(0) }, 60_000);
    let before = w.engine().metrics().reads;
    (0..9).for_each(|_| w.engine().attempt_waits());
    assert_eq!((seqs_of(&waiting), w.engine().metrics().reads), (None, before));
    w.put("t", &["2"]);
    w.engine().attempt_waits();
    assert!(w.engine().metrics().reads <= before + 2);
    w.clock.advance_ms(60_000);
    w.engine().attempt_waits();
    assert_eq!(seqs_of(&waiting), Some(vec![]));
}

#[test]
fn seek_finds_the_cursor_before_a_time() {
    let w = World::new();
    let mut times = Vec::new();
    for i in 0..12 {
        w.put("t", &[&i.to_string()]);
        times.push(w.read("t", i).get(0).unwrap().ts);
        w.clock.advance_ms(10);
    }
    for _ in 0..2 {
        for (i, ts) in (0u64..).zip(&times) {
            assert_eq!(w.engine().seek("t", *ts).unwrap().seq, i);
            assert_eq!(w.engine().seek("t", ts + 1).unwrap().seq, i + 1);
        }
        assert_eq!(w.engine().seek("t", 0).unwrap().seq, 0);
        assert_eq!(w.engine().seek("t", u64::MAX).unwrap().seq, 12);
        let looked = w.engine().seek("t", times[7]).unwrap().records_scanned;
        assert!((1..=12).contains(&looked), "{looked}");
        w.checkpoint();
    }
}

#[test]
fn waiting_for_the_head() {
    let mut w = World::new();
    w.put("t", &["1"]);
    let e = w.engine().clone();
    assert!(e.wait("t", 0, Duration::ZERO).unwrap());
    assert!(!e.wait("t", 1, Duration::ZERO).unwrap());
    let n = Arc::new(AtomicUsize::new(0));
    let count = || {
        let n = n.clone();
        Box::new(move || {
            n.fetch_add(1, Ordering::SeqCst);
        }) as Box<dyn FnOnce() + Send>
    };
    e.on_head("t", 1, count()).unwrap();
    let gone = e.on_head("t", 1, count()).unwrap();
    e.cancel_on_head("t", gone);
    e.on_head("t", 5, count()).unwrap();
    w.put("t", &["2"]);
    assert_eq!(n.load(Ordering::SeqCst), 1);
    e.delete_topic("t", false).unwrap();
    assert_eq!(n.load(Ordering::SeqCst), 2, "a deletion wakes everyone");
    w.put("t", &["1"]);
    e.on_head("t", 1, count()).unwrap();
    w.close();
    assert_eq!(n.load(Ordering::SeqCst), 3, "so does a close");
    assert_eq!(e.on_head("t", 1, count()).unwrap_err().code(), "shutting_down");
}

/// Flips a byte of the last occurrence of `needle` in the files whose path has `part`.
fn damage(w: &mut World, part: &str, needle: &[u8]) {
    let mut image = w.fs.kill_image();
    let hit = image.files().into_iter().rev().find_map(|(path, bytes)| {
        let at = bytes.windows(needle.len()).rposition(|b| b == needle)?;
        path.contains(part).then_some((path, bytes, at))
    });
    let (path, mut bytes, at) = hit.expect("the bytes to damage");
    bytes[at] ^= 1;
    assert!(image.put(&path, &bytes));
    w.close();
    w.fs = Arc::new(topics_sim::SimFs::from_image(&image));
    w.open();
}

#[test]
fn i12_a_damaged_sealed_record_is_announced_and_nothing_else() {
    let mut w = World::new();
    w.put("t", &["aa", "bb", "cc", "dd", "ee", "ff"]);
    w.checkpoint();
    w.put("t", &["gg"]);
    w.checkpoint();
    damage(&mut w, ".data", b"cc");
    let b = w.read("t", 0);
    assert_eq!((seqs(&b), b.tombstone, b.next_from_seq), (vec![1, 2], None, 2));
    assert_eq!(w.scan("t", 0), (vec![1, 2, 4, 5, 6, 7], vec![(3, 3, "corrupt")]));
    let b = w.read("t", 2);
    assert_eq!(b.tombstone.map(|t| (t.gap_from, t.gap_to)), Some((3, 3)));
    assert!(w.engine().metrics().corrupt_records > 0);
}

#[test]
fn i12_damage_in_the_tail_cache_or_log_is_not_served() {
    let mut w = World::new();
    w.options.tail_cache_bytes = 0;
    w.reopen();
    w.put("t", &["aa", "bb"]);
    let live = w.engine().clone();
    // The bytes change under the running engine.
    let image = w.fs.kill_image();
    let (path, bytes) =
        image.files().into_iter().find(|(_, b)| b.windows(2).any(|x| x == b"bb")).unwrap();
    let at = bytes.windows(2).rposition(|x| x == b"bb").unwrap();
    let file = topics_env::Fs::open(&*w.fs, Path::new(&path), topics_env::OpenMode::Write).unwrap();
    file.write_all_at(b"xb", at as u64).unwrap();
    let b = live.read("t", &after(0)).unwrap();
    assert_eq!((seqs(&b), b.next_from_seq), (vec![1], 1));
    let b = live.read("t", &after(1)).unwrap();
    assert_eq!(
        b.tombstone.map(|t| (t.gap_from, t.gap_to, t.reason)),
        Some((2, 2, GapReason::Corrupt))
    );
}

#[test]
fn an_io_error_is_an_error() {
    use topics_sim::{CallFilter, CallKind, FaultKind};
    let mut w = World::new();
    w.put("t", &["aa"; 7]);
    w.checkpoint();
    w.reopen();
    w.fs.fail_from(CallFilter::on_path(CallKind::Read, "topics/"), 0, FaultKind::Errno(5));
    let e = w.engine().read("t", &after(0)).unwrap_err();
    assert!(
        matches!(e, crate::types::error::Error::StorageUnavailable { reason: "io", .. }),
        "{e}"
    );
    w.fs.clear_faults();
    assert_eq!(w.read("t", 0).len(), 7);
}
