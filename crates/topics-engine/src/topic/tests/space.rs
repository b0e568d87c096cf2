//! A disk that fills up: deletes free space, and writes succeed again.

use std::collections::BTreeMap;
use std::time::Duration;

use topics_env::{Fs as _, OpenMode};
use topics_storage::dir::Paths;

use super::*;
use crate::engine::background;
use crate::router::RouterRequest;
use crate::types::config::TopicType;
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
        background::pass(w.engine().open_engine());
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

/// Deletes leave half of every log file, or of every segment, live: each of them has more to copy than
/// the reserve holds. The space that the log has allocated and not used is enough.
#[test]
fn a_full_disk_whose_files_are_all_half_live_recovers() {
    for moved in [false, true] {
        let options =
            Options { wal_file_min: 4 << 20, segment_max_events: 100_000, ..tight_options() };
        let mut w = World::with(Options { wal_file_max: 4 << 20, ..options });
        w.fs.set_free_space(Some(100 << 20));
        let large = vec!["x".repeat(4000); 600];
        let large: Vec<&str> = large.iter().map(String::as_str).collect();
        let topics: Vec<String> = (0..4).map(|n| format!("t{n}")).collect();
        for topic in &topics {
            w.try_put(topic, &large).unwrap();
            if moved {
                turns(&w, 2);
            }
        }
        // Other processes take what is left, and opens on a full disk have used a part of the reserve.
        let reserve = w.fs.open(&Paths::new(Path::new(DIR)).reserve(), OpenMode::Write).unwrap();
        reserve.set_len(512 << 10).unwrap();
        w.fs.set_free_space(Some(0));
        let mut more = 0;
        while !no_space(w.try_put("t0", &[&"x".repeat(100_000)])) {
            more += 1;
        }
        turns(&w, 10);
        for topic in &topics {
            w.delete(topic, Some(301), None);
        }
        assert!(goes_on(&w, "t0") <= 20, "moved: {moved}");
        for opened in 0..2 {
            for topic in &topics {
                let last = if topic == "t0" { 601 + more } else { 600 };
                assert_eq!(w.seqs(topic), (301..=last).collect::<Vec<_>>(), "I1, {opened}");
            }
            w.reopen();
        }
    }
}

/// Large batches make log files larger than the reserve that an open makes, faster than any round comes.
/// Each file can still be copied, at any time, so half of everything can be deleted again and again.
#[test]
fn the_reserve_grows_with_the_log_and_is_as_large_again_after_each_use() {
    for killed in [false, true] {
        let mut w = World::unopened(Options { background: false, ..Options::default() });
        w.fs.set_free_space(Some(24 << 20));
        w.open();
        w.put("t", &["1"]);
        let value = "x".repeat(5000);
        let mut named = 0;
        for round in 0..4 {
            // Each batch for a topic of its own; smaller ones for what is left at the end.
            for most in [600, 500, 200, 20, 1] {
                let records = vec![value.as_str(); most];
                let name = |n: u32| format!("new-{n}");
                while !no_space(w.try_put(&name(named), &records)) {
                    named += 1;
                }
                named += 1;
            }
            let size = |name: &str| {
                let file = w.fs.open(&Path::new(DIR).join(name), OpenMode::Read).unwrap();
                file.len().unwrap()
            };
            let largest = w.engine().open_engine().ctx().wal.largest_file();
            assert!(round > 0 || largest > 2 << 20, "the log is small: {largest}");
            // An eighth of the disk, which is the largest part that the reserve may take for copies.
            let want = (1 << 20) + largest.min(24 << 17);
            let reserve = size("meta/reserve");
            assert!(reserve + (64 << 10) >= want, "{reserve} of {want}, round {round}");
            turns(&w, 10);
            if killed {
                w.engine().sync().unwrap();
                let free = w.fs.free_space(Path::new(DIR)).unwrap();
                w.kill();
                w.fs.set_free_space(Some(free));
            }
            for topic in w.engine().list("", None, usize::MAX) {
                let half = topic.earliest_seq + (topic.head_seq + 1 - topic.earliest_seq) / 2;
                if topic.bytes > 1 << 20 {
                    w.delete(&topic.topic, Some(half), None);
                }
            }
            assert!(goes_on(&w, "t") <= 20, "round {round}, killed: {killed}");
            turns(&w, 20);
        }
        w.reopen();
        assert_eq!(w.seqs("t"), [1, 2, 3, 4, 5], "I1");
    }
}

/// Everything, queues, routers and consumers among it, is served from a disk without a free byte;
/// what changes anything is refused, and accepted when there is space again.
#[test]
fn without_any_room_a_directory_is_open_for_reads_until_there_is_room() {
    for closed in [true, false] {
        let mut w = World::new();
        w.put("log", &["a", "b", "c"]);
        w.create("fsync", class(Durability::Fsync));
        w.put("fsync", &["d"]);
        w.create("queue", ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() });
        w.put("queue", &["job 1", "job 2"]);
        let (source, dest) = ("log".to_owned(), "copy".to_owned());
        let request = RouterRequest { source, dest, ..RouterRequest::default() };
        w.engine().create_router("copies", &request).unwrap();
        w.delete("log", Some(2), None);
        if closed {
            w.close();
        } else {
            w.engine().sync().unwrap();
            w.engine = None;
            w.fs = Arc::new(SimFs::from_image(&w.fs.kill_image()));
        }
        let paths = Paths::new(Path::new(DIR));
        let shard = paths.shard(0);
        let fill = |w: &World| {
            let reserve = w.fs.open(&paths.reserve(), OpenMode::Write).unwrap();
            reserve.set_len(0).unwrap();
            w.fs.set_free_space(Some(0));
        };
        fill(&w);
        for _ in 0..3 {
            w.try_open().unwrap();
            turns(&w, 10);
            assert_eq!(
                (w.seqs("log"), w.seqs("fsync"), w.seqs("queue")),
                (vec![2, 3], vec![1], vec![1, 2])
            );
            w.engine = None;
            // Whatever an open may use is used: the end of each log file too.
            for entry in w.fs.list(&shard).unwrap() {
                let file = w.fs.open(&shard.join(&entry.name), OpenMode::Write).unwrap();
                let mut bytes = vec![0; file.len().unwrap() as usize];
                file.read_at(&mut bytes, 0).unwrap();
                let used = bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
                file.set_len(used as u64).unwrap();
            }
            fill(&w);
        }
        w.try_open().unwrap();
        turns(&w, 10);
        let refused = w.try_put("log", &["e"]).unwrap_err().to_string();
        assert!(refused.contains("free some space on the disk"), "{refused}");
        let delete = DeleteRequest { before_seq: Some(3), matching: None };
        let refused = w.engine().delete("log", &delete).unwrap_err();
        assert!(
            matches!(refused, Error::StorageUnavailable { reason: "no_space", .. }),
            "{refused}"
        );
        assert!(w.engine().checkpoint().is_err());
        w.engine().close().unwrap();
        w.try_open().unwrap();
        w.fs.set_free_space(Some(16 << 20));
        turns(&w, 10);
        w.put("log", &["e"]);
        w.put("queue", &["job 3"]);
        w.delete("log", Some(3), None);
        for _ in 0..2 {
            let seqs = (w.seqs("log"), w.seqs("fsync"), w.seqs("queue"));
            assert_eq!(seqs, (vec![3, 4], vec![1], vec![1, 2, 3]), "I1, closed: {closed}");
            w.reopen();
        }
    }
}
