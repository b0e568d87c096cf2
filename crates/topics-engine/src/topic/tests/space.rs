//! A disk that fills up: deletes free space, and writes succeed again.

use std::collections::BTreeMap;
use std::time::Duration;

use topics_env::{Fs as _, OpenMode};
use topics_storage::dir::Paths;

use super::*;
use crate::engine::background;
use crate::types::error::Error;

/// A world whose disk is full after a while, with rounds that are due often.
fn tight(free: u64) -> World {
    let w = World::with(tight_options());
    w.fs.set_free_space(Some(free));
    w
}

pub(super) fn tight_options() -> Options {
    Options {
        checkpoint_interval: Duration::from_millis(50),
        checkpoint_bytes: 256 << 10,
        segment_max_events: 100,
        ..small()
    }
}

/// What the background thread does within `passes` of its turns.
pub(super) fn turns(w: &World, passes: u32) {
    for _ in 0..passes {
        w.clock.advance_ms(200);
        background::pass(w.engine().core());
    }
}

fn no_space(outcome: Result<Appended>) -> bool {
    match outcome {
        Ok(_) => false,
        Err(Error::StorageUnavailable { reason: "no_space", .. }) => true,
        Err(e) => panic!("{e}"),
    }
}

/// Writes until the disk refuses.
fn fill(w: &World, topic: &str, acked: &mut BTreeMap<u64, String>) {
    for n in 0..20_000 {
        let value = format!("{n}.{}", "x".repeat(4000));
        match w.try_put(topic, &[&value]) {
            Ok(done) => acked.insert(done.first_seq, value),
            refused => return assert!(no_space(refused)),
        };
        if n % 20 == 0 {
            turns(w, 1);
        }
    }
    panic!("the disk never fills up");
}

pub(super) fn kept(w: &World, topic: &str) -> BTreeMap<u64, String> {
    let (mut out, mut at) = (BTreeMap::new(), 0);
    loop {
        let b = w.read(topic, at);
        let text = |d: &[u8]| String::from_utf8(d.to_vec()).unwrap();
        out.extend(b.iter().map(|r| (r.seq, text(r.data))));
        at = b.next_from_seq;
        if b.caught_up {
            return out;
        }
    }
}

#[test]
fn what_is_deleted_on_a_full_disk_comes_back() {
    let mut w = tight(12 << 20);
    let topics = [("safe", Durability::Fsync), ("disk", Durability::Disk)];
    let mut acked: Vec<BTreeMap<u64, String>> = vec![BTreeMap::new(); 2];
    for (topic, durability) in topics {
        w.create(topic, class(durability));
    }
    for round in 0..12 {
        fill(&w, topics[round % 2].0, &mut acked[round % 2]);
        // More refusals, and rounds that find no space, change nothing.
        turns(&w, 5);
        for (i, (topic, _)) in topics.iter().enumerate() {
            assert_eq!(kept(&w, topic), acked[i], "I1, round {round}");
            let last = acked[i].keys().next_back().copied().unwrap_or(1);
            w.delete(topic, Some(last), None);
            acked[i].retain(|seq, _| *seq >= last);
        }
        turns(&w, 10);
        for (i, (topic, _)) in topics.iter().enumerate() {
            let done = w.try_put(topic, &["again"]);
            let done = done.unwrap_or_else(|e| panic!("round {round}: {e}"));
            acked[i].insert(done.first_seq, "again".into());
        }
    }
    w.reopen();
    for (i, (topic, _)) in topics.iter().enumerate() {
        assert_eq!(kept(&w, topic), acked[i], "I1");
    }
}

#[test]
fn a_full_disk_is_closed_cleanly() {
    let mut w = tight(4 << 20);
    let mut acked = BTreeMap::new();
    fill(&w, "disk", &mut acked);
    w.reopen();
    assert_eq!(kept(&w, "disk"), acked, "I1");
    assert_eq!(w.state("disk").head_seq, *acked.keys().next_back().unwrap());
}

/// Writes records of two tags, one in `nth` with `keep`, until the disk refuses. Returns the live ones.
fn fill_tagged(w: &World, topic: &str, nth: u64, turn: bool) -> BTreeMap<u64, String> {
    let mut acked = BTreeMap::new();
    for n in 0..20_000_u64 {
        let value = format!("{n}.{}", "x".repeat(4000));
        let tag: &[u8] = if n % nth == 0 { b"keep" } else { b"drop" };
        let records = [NewRecord { tag, ..rec(&value) }];
        let put = w.engine().append(topic, &Append { records: &records, ..Append::default() });
        match put {
            Ok(done) if n % nth == 0 => _ = acked.insert(done.first_seq, value),
            Ok(_) => {}
            Err(Error::StorageUnavailable { reason: "no_space", .. }) => return acked,
            Err(e) => panic!("{e}"),
        }
        if turn && n % 20 == 0 {
            turns(w, 1);
        }
    }
    panic!("the disk never fills up");
}

/// Seconds of turns after which a write is taken.
fn goes_on(w: &World, topic: &str) -> u64 {
    for second in 0..30 {
        match w.try_put(topic, &["again"]) {
            Ok(_) => return second,
            refused => assert!(no_space(refused)),
        }
        turns(w, 5);
    }
    let files = w.fs.kill_image().files().into_iter().map(|(p, b)| (p, b.len()));
    let files: Vec<_> = files.filter(|(p, _)| !p.contains(".idx")).collect();
    panic!("nothing of what was deleted became room: {:?} {files:?}", w.state(topic));
}

/// Nothing is synced, and no copy of it has room: reads go on where the disk is full, deletes are
/// taken, and give back what writes need, without another open.
#[test]
fn a_killed_engine_opens_on_a_full_disk_and_what_is_deleted_comes_back() {
    for reserve in [true, false] {
        let options = Options { wal_file_min: 64 << 10, ..tight_options() };
        let mut w = World::with(options);
        w.fs.set_free_space(Some(12 << 20));
        w.create("t", class(Durability::Disk));
        let large = vec!["x".repeat(3000); 700];
        let large: Vec<&str> = large.iter().map(String::as_str).collect();
        while !no_space(w.try_put("t", &large)) {}
        let head = w.state("t").head_seq;
        assert!(head >= 1400, "{head}");
        w.engine = None;
        w.fs = Arc::new(SimFs::from_image(&w.fs.kill_image()));
        let paths = Paths::new(Path::new(DIR));
        if !reserve {
            // As after a kill within a checkpoint, and another process that took the space.
            let file = w.fs.open(&paths.reserve(), OpenMode::Write).unwrap();
            file.set_len(0).unwrap();
        }
        w.fs.set_free_space(Some(0));
        for _ in 0..2 {
            w.try_open().unwrap_or_else(|e| panic!("reserve {reserve}: {e}"));
            assert_eq!(w.seqs("t"), (1..=head).collect::<Vec<_>>(), "I1");
            assert!(no_space(w.try_put("t", &large)));
            // Killed again.
            w.engine = None;
        }
        w.try_open().unwrap();
        w.delete("t", Some(head), None);
        assert!(goes_on(&w, "t") <= 20, "reserve {reserve}");
        assert_eq!(w.seqs("t"), [head, head + 1], "I1");
        w.reopen();
        assert_eq!(w.seqs("t"), [head, head + 1], "I1");
    }
}

/// Everything is in the log, and its oldest file holds one live record.
#[test]
fn a_record_does_not_keep_the_log_on_a_full_disk() {
    for killed in [false, true] {
        let mut w = tight(12 << 20);
        w.put("old", &["kept"]);
        while !no_space(w.try_put("new", &[&"x".repeat(4000)])) {}
        let head = w.state("new").head_seq;
        turns(&w, 10);
        w.delete("new", Some(head), None);
        if killed {
            let free = w.fs.free_space(Path::new(DIR)).unwrap();
            w.engine().sync().unwrap();
            w.kill();
            w.fs.set_free_space(Some(free));
        }
        assert!(goes_on(&w, "new") <= 10);
        assert_eq!(w.seqs("old"), [1], "I1");
        // As much room as there was.
        turns(&w, 10);
        let free = w.fs.free_space(Path::new(DIR)).unwrap();
        assert!(free > 8 << 20, "{free}");
        w.reopen();
        assert_eq!((w.seqs("old"), w.state("new").count), (vec![1], 2), "I1");
    }
}

/// More is live in the log than a snapshot needs: it is copied in steps.
#[test]
fn what_is_live_in_the_log_moves_on_a_full_disk() {
    for nth in [2, 3, 10] {
        let mut w = tight(12 << 20);
        let mut acked = fill_tagged(&w, "t", nth, false);
        turns(&w, 10);
        for _ in 0..3 {
            w.delete("t", None, eq("drop"));
            assert!(goes_on(&w, "t") <= 20, "one in {nth}");
            acked.insert(w.state("t").head_seq, "again".into());
            assert_eq!(kept(&w, "t"), acked, "I1, one in {nth}");
            acked.extend(fill_tagged(&w, "t", nth, false));
        }
        w.reopen();
        w.delete("t", None, eq("drop"));
        assert_eq!(kept(&w, "t"), acked, "I1, one in {nth}");
    }
}

/// Segments larger than what a snapshot needs are written anew, before they are half dead too.
#[test]
fn large_segments_are_written_anew_on_a_full_disk() {
    for (nth, events) in [(2, 500), (10, 500), (10, 100)] {
        let options = Options { segment_max_events: events, ..tight_options() };
        let mut w = World::with(options);
        w.fs.set_free_space(Some(24 << 20));
        let mut acked = fill_tagged(&w, "t", nth, true);
        turns(&w, 10);
        for _ in 0..3 {
            w.delete("t", None, eq("drop"));
            assert!(goes_on(&w, "t") <= 20, "one in {nth}, {events}");
            acked.insert(w.state("t").head_seq, "again".into());
            assert_eq!(kept(&w, "t"), acked, "I1, one in {nth}, {events}");
            acked.extend(fill_tagged(&w, "t", nth, true));
        }
        w.reopen();
        w.delete("t", None, eq("drop"));
        assert_eq!(kept(&w, "t"), acked, "I1, one in {nth}, {events}");
    }
}
