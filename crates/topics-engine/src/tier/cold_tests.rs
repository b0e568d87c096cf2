//! Cold segments over a simulated disk and a simulated object store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use topics_env::objects::ObjectStore;
use topics_env::{Hook, OpenMode, Site};
use topics_sim::{Bucket, Mutant, ObjectFault, ObjectOp, SimFs, SimStore};
use topics_storage::dir::{Paths, read_file};
use topics_storage::segment::{FileKind, SegmentName};

use super::blocks::BLOCK;
use super::cold::ColdTier;
use crate::delivery::{Event, WatchRequest, WatchStart};
use crate::router::RouterRequest;
use crate::topic::Tier;
use crate::topic::tests::{DIR, World, after, eq};
use crate::types::api::{GapReason, ReadFrom, ReadRequest};
use crate::types::consumer::{ConsumerMode, ConsumerRead, ConsumerStart};
use crate::types::error::Error;
use crate::types::options::{RemoteLimits, RemoteOptions};
use crate::types::requests::RemoteState;

/// The records of a reader: seq and data.
pub(super) type Rows = Vec<(u64, Vec<u8>)>;

pub(super) fn limits() -> RemoteLimits {
    RemoteLimits {
        pack_bytes: 2000,
        hot_segments: 1,
        single_writer: true,
        ..RemoteLimits::default()
    }
}

pub(super) fn remote(store: SimStore) -> RemoteOptions {
    RemoteOptions { store: Arc::new(store), limits: limits() }
}

/// A world whose engine keeps one hot segment of each topic.
pub(super) fn tiered() -> (World, Arc<Bucket>) {
    World::over_bucket(limits())
}

/// Appends `n` records with alternating tags and checkpoints them.
pub(super) fn fill(w: &World, topic: &str, n: usize) {
    for i in 0..n {
        let data = format!("{topic}-{i}");
        let record = crate::types::api::NewRecord {
            tag: [b"red" as &[u8], b"blue"][i % 2],
            ..crate::topic::tests::rec(&data)
        };
        let records = [record];
        let req = crate::types::api::Append { records: &records, ..Default::default() };
        w.engine().append(topic, &req).unwrap();
    }
    w.checkpoint();
}

/// Archives, and checkpoints until no kept snapshot names the `.data` of cold segments.
pub(super) fn cool(w: &World) -> u64 {
    let done = w.engine().archive().unwrap();
    for _ in 0..2 {
        w.put("other", &["a change"]);
        w.checkpoint();
    }
    done.cooled
}

fn tier(w: &World) -> Arc<ColdTier> {
    w.engine().open_engine().base().cold.clone().unwrap()
}

/// The number of `.data` files of a topic in the directory.
fn data_files(w: &World, topic: &str) -> usize {
    let id = w.state(topic).topic_id;
    let files = w.engine().open_engine().base().segments.list_files(id).unwrap();
    files.iter().filter(|(_, kind)| *kind == FileKind::Data).count()
}

pub(super) fn cold_segments(w: &World, topic: &str) -> usize {
    let map = w.engine().segments(topic).unwrap();
    map.ranges.iter().filter(|r| r.tier == Tier::Cold).count()
}

fn rows(w: &World, topic: &str, request: &ReadRequest) -> (Rows, u64) {
    let (mut out, mut at, mut cold) = (Vec::new(), 0, 0);
    loop {
        let from = ReadFrom::After(at);
        let b = w.engine().read(topic, &ReadRequest { from, ..request.clone() }).unwrap();
        // A crash loses seqs that were reserved and not used, and nothing else.
        assert!(b.tombstone.is_none_or(|t| t.reason == GapReason::Crash), "{:?}", b.tombstone);
        assert!(b.caught_up || b.next_from_seq > at, "no progress at {at}");
        out.extend(b.iter().map(|r| (r.seq, r.data.to_vec())));
        cold += u64::from(b.cold_segments);
        at = b.next_from_seq;
        if b.caught_up {
            return (out, cold);
        }
    }
}

/// The records of a topic, and the gaps between them, each with its reason.
pub(super) fn records_and_gaps(w: &World, topic: &str) -> (Rows, Vec<(u64, u64, GapReason)>) {
    let (mut rows, mut gaps, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        let from = ReadFrom::After(at);
        let b = w.engine().read(topic, &ReadRequest { from, ..ReadRequest::default() }).unwrap();
        gaps.extend(b.tombstone.map(|t| (t.gap_from, t.gap_to, t.reason)));
        rows.extend(b.iter().map(|r| (r.seq, r.data.to_vec())));
        at = b.next_from_seq;
        if b.caught_up {
            return (rows, gaps);
        }
    }
}

pub(super) fn all(w: &World, topic: &str) -> Rows {
    rows(w, topic, &ReadRequest::default()).0
}

fn watched(w: &World, topic: &str) -> Rows {
    let start = WatchStart { from: ReadFrom::After(0), topic_id: None };
    let req = WatchRequest { topics: vec![(topic.to_owned(), start)], ..WatchRequest::default() };
    let mut watch = w.engine().watch(&req).unwrap();
    let mut out = Vec::new();
    for _ in 0..1000 {
        match watch.try_next().unwrap() {
            Some(Event::Records(f)) => {
                out.extend(f.batch().iter().map(|r| (r.seq, r.data.to_vec())));
            }
            Some(Event::CaughtUp { .. }) => return out,
            Some(other) => panic!("{other:?}"),
            None => w.engine().tick().unwrap(),
        }
    }
    panic!("the watch does not catch up");
}

fn consumed(w: &World, topic: &str, mode: ConsumerMode) -> Rows {
    let name = format!("reader-{}", mode.as_str().replace('_', "-"));
    let consumer = w.engine().consumer(topic, &name, Some(mode), ConsumerStart::Start, true);
    let (consumer, mut out) = (consumer.unwrap(), Vec::new());
    loop {
        let b = consumer.read(&ConsumerRead { max_records: 3, ..ConsumerRead::default() }).unwrap();
        if b.is_empty() && b.caught_up {
            return out;
        }
        out.extend(b.iter().map(|r| (r.seq, r.data.to_vec())));
    }
}

/// Every reader gets the same records from cold segments as from hot ones.
#[test]
fn readers_across_tiers_get_what_they_got_before() {
    let (mut w, bucket) = tiered();
    fill(&w, "a", 43);
    fill(&w, "a", 20);
    w.delete("a", Some(4), None);
    w.checkpoint();
    let tagged = ReadRequest { matching: eq("blue"), ..ReadRequest::default() };
    let before = (all(&w, "a"), rows(&w, "a", &tagged).0);
    let times: Vec<_> =
        (0..64).map(|s| w.engine().seek("a", w.clock_wall() + s).unwrap()).collect();
    assert!(cool(&w) > 3);
    let (files, cold) = (data_files(&w, "a"), cold_segments(&w, "a"));
    assert!(cold > 3 && files <= 3, "{cold} cold segments, {files} files");
    for _ in 0..2 {
        let requests = bucket.requests();
        let seqs = ReadRequest { only_seqs: true, ..ReadRequest::default() };
        let only: Vec<u64> = rows(&w, "a", &seqs).0.iter().map(|r| r.0).collect();
        assert_eq!(only, before.0.iter().map(|r| r.0).collect::<Vec<_>>());
        let again: Vec<_> =
            (0..64).map(|s| w.engine().seek("a", w.clock_wall() + s).unwrap()).collect();
        assert_eq!(again, times);
        assert_eq!(bucket.requests(), requests, "seqs and times come from the index");
        assert_eq!(all(&w, "a"), before.0);
        assert!(bucket.requests() > requests);
        assert_eq!(rows(&w, "a", &tagged).0, before.1);
        assert!(rows(&w, "a", &ReadRequest::default()).1 > 3, "cold segments are counted");
        assert_eq!(watched(&w, "a"), before.0);
        w.reopen();
    }
    for mode in [ConsumerMode::AtLeastOnce, ConsumerMode::AtMostOnce] {
        assert_eq!(consumed(&w, "a", mode), before.0, "{mode:?}");
    }
    assert_eq!(bucket.violations(), []);
}

/// A router that has not run since its records became cold.
#[test]
fn a_router_copies_cold_records() {
    let (w, bucket) = tiered();
    w.put("a", &["before"]);
    let (source, dest) = ("a".to_owned(), "b".to_owned());
    let request = RouterRequest { source, dest, create_dest: true, ..RouterRequest::default() };
    w.engine().create_router("r", &request).unwrap();
    fill(&w, "a", 33);
    cool(&w);
    assert!(cold_segments(&w, "a") > 3);
    bucket.fail_all(None, Some(ObjectOp::Get), ObjectFault::Unavailable);
    for _ in 0..5 {
        w.engine().tick().unwrap();
        w.clock.advance_ms(1000);
    }
    assert!(w.engine().router("r").unwrap().stopped_by.is_some(), "the router says why it waits");
    bucket.clear_faults();
    for _ in 0..50 {
        w.engine().tick().unwrap();
        w.engine().sync().unwrap();
        w.clock.advance_ms(1000);
    }
    let copied: Vec<_> = all(&w, "b").into_iter().map(|r| r.1).collect();
    let written: Vec<_> = all(&w, "a").into_iter().map(|r| r.1).collect();
    assert_eq!(copied, written[1..]);
    assert_eq!(bucket.violations(), []);
}

/// A read never waits: it ends before records that are not here, or says that they are being fetched.
#[test]
fn a_read_without_a_wait_returns_what_is_here() {
    let (w, bucket) = tiered();
    fill(&w, "a", 33);
    cool(&w);
    let requests = bucket.requests();
    let Err(Error::ColdPending(fetch)) = w.engine().read_present("a", &after(0)) else {
        panic!("the records are not here");
    };
    assert!(fetch.outcome().is_none() && bucket.requests() == requests);
    // The same request is shared.
    let Err(Error::ColdPending(same)) = w.engine().read_present("a", &after(0)) else {
        panic!("the records are not here");
    };
    assert!(Arc::ptr_eq(&fetch, &same));
    tier(&w).run();
    assert!(fetch.outcome().unwrap().is_ok());
    assert_eq!(bucket.requests(), requests + 1);
    let b = w.engine().read_present("a", &after(0)).unwrap();
    assert!(!b.is_empty() && !b.caught_up, "the records of one pack");
    // Hot records are returned without a request.
    let head = w.state("a").head_seq;
    assert_eq!(w.engine().read_present("a", &after(head - 1)).unwrap().len(), 1);
    tier(&w).close();
}

/// A segment that no pack holds stays on the disk, however many are above the bound.
#[test]
fn a_segment_that_is_not_archived_stays_hot() {
    let (w, _bucket) = tiered();
    fill(&w, "a", 33);
    let map = w.engine().segments("a").unwrap();
    let damaged = map.ranges[1];
    let id = w.state("a").topic_id;
    let files = w.engine().open_engine().base().segments.list_files(id).unwrap();
    let is_it =
        |f: &&(SegmentName, FileKind)| f.0.first_seq == damaged.first_seq && f.1 == FileKind::Data;
    let (name, kind) = files.iter().find(is_it).unwrap();
    let path = Paths::new(std::path::Path::new(DIR)).segment(name, *kind);
    let env = w.env();
    let data = env.fs.open(&path, OpenMode::Write).unwrap();
    data.write_all_at(b"?", damaged.file_bytes / 2).unwrap();
    env.sync("test.damage", &*data).unwrap();
    assert!(cool(&w) > 3);
    let ranges = w.engine().segments("a").unwrap().ranges;
    let tiers: Vec<_> = ranges.iter().map(|r| r.tier).take(3).collect();
    assert_eq!(tiers, [Tier::Cold, Tier::Segment, Tier::Cold]);
    assert!(env.fs.open(&path, OpenMode::Read).is_ok());
}

/// No base names the pack of the segments yet: the process may end before one does.
#[test]
fn a_segment_stays_hot_until_head_names_its_pack() {
    for (mutant, is_cold) in [(None, false), (Some("cold.published"), true)] {
        let mut w = World::unopened(crate::topic::tests::small());
        w.hook = mutant.map(|site| Arc::new(Mutant::remove(Site::Check(site), None)) as _);
        let bucket = Bucket::new(&w.clock);
        bucket.set_mutable(&["HEAD"]);
        w.options.remote = Some(remote(bucket.client(1)));
        w.open();
        fill(&w, "a", 6);
        assert!(w.engine().archive().unwrap().published);
        fill(&w, "a", 60);
        let archiver = w.engine().open_engine().archiver.clone().unwrap();
        let done = archiver.archive_if_due().unwrap();
        assert!(done.packs > 0 && !done.published, "{done:?}");
        // The base in HEAD names one segment.
        assert_eq!(done.cooled > 1, is_cold, "{mutant:?}: {done:?}");
    }
}

/// A local `.data` is removed by the second checkpoint after its segment became cold, and not before.
#[test]
fn a_crash_at_any_step_of_a_drop_leaves_every_record_readable() {
    let ends: [fn(&mut World); 4] = [|_| (), World::reopen, World::kill, World::power_cut];
    for checkpoints in 0..4 {
        for end in ends {
            let (mut w, bucket) = tiered();
            fill(&w, "a", 33);
            let before = all(&w, "a");
            let hot = data_files(&w, "a");
            assert!(w.engine().archive().unwrap().cooled > 3);
            for _ in 0..checkpoints {
                assert_eq!(data_files(&w, "a"), hot.min(data_files(&w, "a")));
                w.put("other", &["a change"]);
                w.checkpoint();
            }
            if checkpoints < 2 {
                assert_eq!(data_files(&w, "a"), hot, "after {checkpoints}");
            } else {
                assert!(data_files(&w, "a") < hot, "after {checkpoints}");
            }
            end(&mut w);
            assert_eq!(all(&w, "a"), before);
            cool(&w);
            // A process that finds the mark in a snapshot looks at the objects before the drop.
            cool(&w);
            assert!(data_files(&w, "a") <= 2);
            assert_eq!(all(&w, "a"), before);
            assert_eq!(bucket.violations(), []);
        }
    }
}

/// The mark is in a snapshot, and the process ends before the drop. The next one finds an empty prefix:
/// a folder that is not mounted, or another URL. What is on the disk stays there, whatever is written,
/// and goes once the prefix is back and the objects were seen.
#[test]
fn the_only_local_copy_stays_until_its_object_was_seen() {
    let ends: [fn(&mut World); 3] = [World::reopen, World::kill, World::power_cut];
    for checkpoints in 1..4 {
        for end in ends {
            let (mut w, bucket) = tiered();
            fill(&w, "a", 33);
            let before = all(&w, "a");
            w.engine().archive().unwrap();
            for _ in 0..checkpoints {
                w.put("other", &["a change"]);
                w.checkpoint();
            }
            end(&mut w);
            bucket.put_aside();
            let local = data_files(&w, "a");
            let cold = cold_segments(&w, "a");
            for i in 0..4 {
                let e = w.engine().archive().unwrap_err();
                assert!(e.to_string().contains("a folder that is not mounted"), "{e}");
                assert_eq!(w.engine().remote_state().unwrap(), RemoteState::Refused);
                fill(&w, "a", 5 + i);
                w.clock.advance_ms(60_000);
            }
            assert!(data_files(&w, "a") >= local, "a local copy is gone");
            assert_eq!(cold_segments(&w, "a"), cold, "a segment became cold");
            assert!(bucket.objects().is_empty(), "something was written");
            bucket.bring_back();
            let mut after = all(&w, "a");
            after.truncate(before.len());
            assert_eq!(after, before);
            cool(&w);
            assert_eq!(w.engine().remote_state().unwrap(), RemoteState::Ok);
            assert!(data_files(&w, "a") <= 2, "what was seen goes");
            assert_eq!(all(&w, "a")[..before.len()], before);
            assert_eq!(bucket.violations(), []);
        }
    }
}

/// Objects that are missing, cut, or other ones, in a prefix that is the directory's.
#[test]
fn a_segment_whose_object_is_not_the_one_that_was_written_stays_hot() {
    for damage in 0..3 {
        let (mut w, bucket) = tiered();
        let limits = RemoteLimits { hot_segments: 100, ..limits() };
        w.options.remote = Some(RemoteOptions { limits, ..remote(bucket.client(1)) });
        w.reopen();
        fill(&w, "a", 33);
        let before = all(&w, "a");
        assert_eq!(w.engine().archive().unwrap().cooled, 0);
        let whole = bucket.objects();
        let packs: Vec<_> = whole.keys().filter(|k| k.contains("/p")).cloned().collect();
        for (key, other) in packs.iter().zip(packs.iter().cycle().skip(1)) {
            let bytes = whole[key].clone();
            let bytes = match damage {
                0 => None,
                1 => Some(bytes.slice(..bytes.len() - 1)),
                _ => Some(whole[other].clone()),
            };
            bucket.tamper(key, bytes);
        }
        w.options.remote = Some(remote(bucket.client(1)));
        w.reopen();
        assert_eq!(w.engine().archive().unwrap().cooled, 0, "damage {damage}");
        for _ in 0..3 {
            fill(&w, "b", 1);
        }
        assert_eq!(all(&w, "a"), before);
        for (key, bytes) in whole {
            if key.contains("/p") {
                bucket.tamper(&key, Some(bytes));
            }
        }
        cool(&w);
        assert!(data_files(&w, "a") <= 2);
        assert_eq!(all(&w, "a"), before);
    }
}

/// The path of a file of the first sealed segment of a topic.
pub(super) fn first_file(w: &World, topic: &str, kind: FileKind) -> std::path::PathBuf {
    let id = w.state(topic).topic_id;
    let mut files = w.engine().open_engine().base().segments.list_files(id).unwrap();
    files.sort_unstable();
    let (name, _) = files.into_iter().find(|(_, k)| *k == kind).unwrap();
    Paths::new(DIR).segment(&name, kind)
}

pub(super) fn flip(w: &World, path: &std::path::Path) {
    let env = w.env();
    let file = env.fs.open(path, OpenMode::Write).unwrap();
    let at = file.len().unwrap() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    env.sync("test.damage", &*file).unwrap();
}

fn by_tag(w: &World, topic: &str) -> Rows {
    rows(w, topic, &ReadRequest { matching: eq("red"), ..ReadRequest::default() }).0
}

/// A bit of a side file flips while the segment is hot, where the file is made again when it is read. It is
/// made again for the pack too.
#[test]
fn a_damaged_side_file_is_not_packed() {
    for kind in [FileKind::Idx, FileKind::Tags] {
        for is_missing in [false, true] {
            let (mut w, bucket) = tiered();
            fill(&w, "a", 33);
            let before = (all(&w, "a"), by_tag(&w, "a"));
            let path = first_file(&w, "a", kind);
            match is_missing {
                true => w.env().fs.remove_file(&path).unwrap(),
                false => flip(&w, &path),
            }
            assert!(cool(&w) > 3);
            // Nothing but the pack has the file.
            let _ = w.env().fs.remove_file(&path);
            assert_eq!((all(&w, "a"), by_tag(&w, "a")), before, "{kind:?}");
            w.reopen();
            assert_eq!((all(&w, "a"), by_tag(&w, "a")), before, "{kind:?}, next open");
            w.delete("a", None, eq("red"));
            assert_eq!(by_tag(&w, "a"), []);
            assert_eq!(bucket.violations(), []);
        }
    }
}

/// Whether a side file of which a bit has flipped is in its pack as it was written.
fn is_packed_whole(kind: FileKind, hook: Option<Arc<dyn Hook>>) -> bool {
    let mut w = World::unopened(crate::topic::tests::small());
    w.hook = hook;
    let bucket = Bucket::new(&w.clock);
    bucket.set_mutable(&["HEAD"]);
    w.options.remote = Some(remote(bucket.client(1)));
    w.open();
    fill(&w, "a", 33);
    let path = first_file(&w, "a", kind);
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let name = topics_storage::segment::parse_file_name(w.state("a").topic_id, &name);
    let (name, _): (SegmentName, FileKind) = name.unwrap();
    let written = read_file(&w.env(), &path, u64::MAX).unwrap().unwrap();
    flip(&w, &path);
    w.engine().archive().unwrap();
    let (pack, segment) = w.engine().open_engine().base().packs.find(name.file_no).unwrap();
    let (offset, len) = segment.part(kind);
    let bytes = bucket.objects()[&pack.object().key].clone();
    bytes[offset as usize..(offset + len) as usize] == written
}

#[test]
fn a_mutant_that_packs_unchecked_side_files_is_caught() {
    for kind in [FileKind::Idx, FileKind::Tags] {
        assert!(is_packed_whole(kind, None), "{kind:?}");
        let mutant = Arc::new(Mutant::remove(Site::Check("archive.side-file"), None));
        assert!(!is_packed_whole(kind, Some(mutant)), "{kind:?}: the check has no effect");
    }
}

/// Side files that were damaged when they were packed, by an earlier program: `.data` in the pack has all.
#[test]
fn a_damaged_side_file_in_a_pack_is_made_again_from_its_data() {
    for kind in [FileKind::Idx, FileKind::Tags] {
        let (mut w, bucket) = tiered();
        fill(&w, "a", 33);
        let before = (all(&w, "a"), by_tag(&w, "a"));
        let path = first_file(&w, "a", kind);
        let name = topics_storage::segment::parse_file_name(
            w.state("a").topic_id,
            &path.file_name().unwrap().to_string_lossy(),
        );
        let (name, _): (SegmentName, FileKind) = name.unwrap();
        cool(&w);
        let (pack, segment) = w.engine().open_engine().base().packs.find(name.file_no).unwrap();
        let (offset, len) = segment.part(kind);
        let key = pack.object().key;
        for at in [offset + 8, offset + len / 2, offset + len - 1] {
            let mut bytes = bucket.objects()[&key].to_vec();
            bytes[at as usize] ^= 1;
            bucket.tamper(&key, Some(bytes.into()));
        }
        let _ = w.env().fs.remove_file(&path);
        w.reopen();
        assert_eq!((all(&w, "a"), by_tag(&w, "a")), before, "{kind:?}");
    }
}

/// Without the look at the object, a prefix that lacks it costs records.
#[test]
fn mutants_of_the_drop_are_caught() {
    let mut w = World::unopened(crate::topic::tests::small());
    w.hook = Some(Arc::new(Mutant::remove(Site::Check("cold.seen"), None)));
    let bucket = Bucket::new(&w.clock);
    bucket.set_mutable(&["HEAD"]);
    w.options.remote = Some(remote(bucket.client(1)));
    w.open();
    fill(&w, "a", 33);
    w.engine().archive().unwrap();
    let local = data_files(&w, "a");
    w.checkpoint();
    bucket.put_aside();
    w.kill();
    for _ in 0..4 {
        fill(&w, "b", 3);
    }
    assert!(data_files(&w, "a") < local, "the check has no effect");
}

/// A directory that was put back to an older state gives file numbers again. What it packs then is not
/// what the base in HEAD names.
#[test]
fn a_directory_that_was_put_back_is_refused_and_keeps_its_records() {
    let (mut w, bucket) = tiered();
    fill(&w, "a", 33);
    cool(&w);
    w.close();
    let older = w.fs.kill_image();
    w.open();
    fill(&w, "a", 20);
    cool(&w);
    w.close();
    w.fs = Arc::new(SimFs::from_image(&older));
    w.open();
    let written = bucket.objects();
    for _ in 0..4 {
        fill(&w, "a", 20);
        let e = w.engine().archive().unwrap_err().to_string();
        assert!(e.contains("this directory is a copy, or an older state of one"), "{e}");
    }
    assert_eq!(bucket.objects(), written);
    let rows = all(&w, "a");
    assert_eq!(rows.len(), 33 + 80, "{rows:?}");
}

/// Any fault at any request, in any phase, and any end: every record is read, or the reader gets an
/// error that says so, and the next read succeeds.
#[test]
fn a_fault_at_any_request_loses_nothing() {
    let requests = {
        let (w, bucket) = tiered();
        fill(&w, "a", 33);
        cool(&w);
        all(&w, "a");
        bucket.requests() as usize
    };
    let ends: [fn(&mut World); 3] = [|_| (), World::kill, World::power_cut];
    let (mut runs, mut refused) = (0, 0);
    for nth in 1..=requests {
        for fault in ObjectFault::ALL {
            for end in ends {
                let (mut w, bucket) = tiered();
                fill(&w, "a", 33);
                let before = all(&w, "a");
                bucket.fail_nth(None, None, nth, fault);
                let _ = w.engine().archive();
                for _ in 0..2 {
                    w.put("other", &["a change"]);
                    w.checkpoint();
                }
                match w.engine().read("a", &after(0)) {
                    Ok(b) => assert_eq!(b.tombstone, None, "{fault:?} at {nth}"),
                    Err(e) => {
                        assert_eq!((e.code(), e.retryable()), ("cold_unavailable", true));
                        refused += 1;
                    }
                }
                end(&mut w);
                bucket.clear_faults();
                bucket.deliver_delayed();
                assert_eq!(all(&w, "a"), before, "{fault:?} at {nth}\n{:#?}", bucket.log());
                cool(&w);
                assert_eq!(all(&w, "a"), before, "{fault:?} at {nth}");
                assert_eq!(bucket.violations(), []);
                runs += 1;
            }
        }
    }
    println!("{runs} runs over {requests} requests, {refused} reads were refused");
}

/// The store answers nothing any more: cold reads fail, everything else goes on.
#[test]
fn without_the_store_only_cold_reads_fail() {
    let (mut w, bucket) = tiered();
    fill(&w, "a", 33);
    cool(&w);
    w.reopen();
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    let e = w.engine().read("a", &after(0)).unwrap_err();
    assert_eq!((e.code(), e.retryable()), ("cold_unavailable", true));
    assert!(e.to_string().contains("check the remote"), "{e}");
    let head = w.state("a").head_seq;
    assert_eq!(w.read("a", head - 1).len(), 1);
    fill(&w, "a", 12);
    w.delete("a", Some(9), None);
    w.checkpoint();
    bucket.clear_faults();
    assert_eq!(all(&w, "a").first().unwrap().0, 9);
    // Without a remote in the options nothing is lost either.
    let remote = w.options.remote.take();
    w.reopen();
    let e = w.engine().read("a", &after(9)).unwrap_err();
    assert!(e.to_string().contains("no remote is set"), "{e}");
    w.options.remote = remote;
    w.reopen();
    assert_eq!(all(&w, "a").first().unwrap().0, 9);
}

/// Bytes that arrive damaged are fetched again; damaged bytes in the store are announced.
#[test]
fn damage_is_fetched_again_and_then_announced() {
    let (w, bucket) = tiered();
    fill(&w, "a", 33);
    let before = all(&w, "a");
    cool(&w);
    for fault in [ObjectFault::Wrong, ObjectFault::Truncated] {
        tier(&w).forget();
        bucket.fail_nth(None, Some(ObjectOp::Get), 1, fault);
        assert_eq!(all(&w, "a"), before, "{fault:?}");
        bucket.clear_faults();
    }
    tier(&w).forget();
    let whole = bucket.objects();
    for (key, bytes) in whole.iter().filter(|(k, _)| k.contains("/p")) {
        let mut wrong = bytes.to_vec();
        wrong.iter_mut().skip(7).step_by(60).for_each(|b| *b ^= 1);
        bucket.tamper(key, Some(wrong.into()));
    }
    let (seen, lost) = records_and_gaps(&w, "a");
    assert!(!lost.is_empty() && lost.iter().all(|l| l.2 == GapReason::Corrupt), "{lost:?}");
    let missing: u64 = lost.iter().map(|l| l.1 + 1 - l.0).sum();
    assert_eq!(seen.len() as u64 + missing, before.len() as u64);
    whole.iter().for_each(|(key, bytes)| bucket.tamper(key, Some(bytes.clone())));
    tier(&w).forget();
    assert_eq!(all(&w, "a"), before);
}

/// An object that is gone is an error for its records, not an end and not a gap.
#[test]
fn a_missing_pack_is_an_error() {
    let (w, bucket) = tiered();
    fill(&w, "a", 33);
    cool(&w);
    let keys: Vec<String> = bucket.objects().into_keys().filter(|k| k.contains("/p")).collect();
    for key in &keys {
        bucket.client(9).delete(key).unwrap();
    }
    let e = w.engine().read("a", &after(0)).unwrap_err();
    assert_eq!(e.code(), "cold_unavailable");
    assert!(e.to_string().contains("does not exist"), "{e}");
}

/// Local files of a cold segment that are damaged or gone come from the pack.
#[test]
fn side_files_of_a_cold_segment_come_from_its_pack() {
    let (mut w, _bucket) = tiered();
    fill(&w, "a", 33);
    let tagged = ReadRequest { matching: eq("blue"), ..ReadRequest::default() };
    let before = (all(&w, "a"), rows(&w, "a", &tagged).0);
    cool(&w);
    let id = w.state("a").topic_id;
    for kind in [FileKind::Idx, FileKind::Tags] {
        let files = w.engine().open_engine().base().segments.list_files(id).unwrap();
        let (name, _) = *files.iter().filter(|(_, k)| *k == kind).min().unwrap();
        let path = Paths::new(std::path::Path::new(DIR)).segment(&name, kind);
        w.close();
        w.env().fs.remove_file(&path).unwrap();
        w.open();
        assert_eq!(all(&w, "a"), before.0, "{kind:?}");
        assert_eq!(rows(&w, "a", &tagged).0, before.1, "{kind:?}");
    }
}

#[test]
fn memory_for_cold_records_is_bounded() {
    let bound = 5000;
    let (w, _) = World::over_bucket(RemoteLimits { cold_memory_bytes: bound, ..limits() });
    fill(&w, "a", 153);
    let before = all(&w, "a");
    cool(&w);
    assert!(cold_segments(&w, "a") > 20);
    for _ in 0..3 {
        assert_eq!(all(&w, "a"), before);
        assert!(tier(&w).memory() <= bound, "{}", tier(&w).memory());
    }
    assert!(tier(&w).memory() > 0);
}

/// A limit below what a read needs costs memory for a while, and no endless requests.
#[test]
fn a_read_that_needs_more_than_the_limit_ends() {
    let (mut w, _) = World::over_bucket(RemoteLimits { cold_memory_bytes: 0, ..limits() });
    w.options.segment_max_events = 1;
    w.close();
    w.open();
    // Each record is read across several blocks, in more than one request.
    let data: Vec<String> = (0..4).map(|i| format!("{i}").repeat((BLOCK * 11) as usize)).collect();
    for data in &data {
        w.put("a", &[data]);
    }
    w.checkpoint();
    cool(&w);
    assert!(cold_segments(&w, "a") > 0);
    let (mut at, mut waits) = (0, 0);
    while at < data.len() {
        match w.engine().read_present("a", &after(at as u64)) {
            Ok(batch) => {
                assert!(batch.iter().all(|r| *r.data == *data[r.seq as usize - 1].as_bytes()));
                at = batch.next_from_seq as usize;
            }
            Err(Error::ColdPending(fetch)) => {
                waits += 1;
                assert!(waits < 40, "the same blocks are requested again and again");
                tier(&w).wait(&fetch).unwrap();
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(tier(&w).memory() <= 12 * BLOCK, "{}", tier(&w).memory());
}

/// The rule: no lock is held during a request. Each request of a cold read writes, checkpoints,
/// delivers and reads hot records.
#[test]
fn everything_else_goes_on_during_each_request() {
    let (mut w, bucket) = tiered();
    fill(&w, "a", 83);
    let before = all(&w, "a");
    cool(&w);
    w.close();
    let engine: Arc<std::sync::OnceLock<crate::engine::Engine>> = Arc::default();
    let (seen, calls) = (engine.clone(), Arc::new(AtomicU64::new(0)));
    let counted = calls.clone();
    let gate = move |_, op| {
        let Some(engine) = seen.get().filter(|_| op == ObjectOp::Get) else { return };
        counted.fetch_add(1, Ordering::Relaxed);
        let records = [crate::topic::tests::rec("meanwhile")];
        let req = crate::types::api::Append { records: &records, ..Default::default() };
        engine.append("b", &req).unwrap();
        let head = engine.append("a", &req).unwrap().last_seq;
        engine.sync().unwrap();
        engine.checkpoint().unwrap();
        assert!(!engine.read_present("a", &after(head - 1)).unwrap().is_empty());
        assert!(engine.seek("a", 0).is_ok() && engine.segments("a").is_ok());
        let delete = crate::types::api::DeleteRequest { before_seq: Some(1), matching: None };
        engine.delete("a", &delete).unwrap();
    };
    w.options.remote = Some(remote(bucket.client(1).with_gate(Arc::new(gate))));
    w.open();
    engine.set(w.engine().clone()).unwrap();
    let found = all(&w, "a");
    assert_eq!(&found[..before.len()], before);
    assert!(calls.load(Ordering::Relaxed) >= 3);
}

/// With threads and a store that never answers: the reader waits for its deadline, on the clock of the
/// test, and nothing else does.
#[test]
fn a_store_that_hangs_delays_only_who_waits_for_it() {
    use std::sync::{Condvar, Mutex};
    let (mut w, bucket) = tiered();
    fill(&w, "a", 33);
    cool(&w);
    w.close();
    let hole = Arc::new((Mutex::new((true, 0u64)), Condvar::new()));
    let inside = hole.clone();
    let gate = move |_, op| {
        if op == ObjectOp::Get {
            let mut state = inside.0.lock().unwrap();
            state.1 += 1;
            inside.1.notify_all();
            while state.0 {
                state = inside.1.wait(state).unwrap();
            }
        }
    };
    w.options.remote = Some(remote(bucket.client(1).with_gate(Arc::new(gate))));
    w.options.background = true;
    w.open();
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let engine = w.engine().clone();
            std::thread::spawn(move || engine.read("a", &after(0)).unwrap_err())
        })
        .collect();
    {
        let mut state = hole.0.lock().unwrap();
        while state.1 == 0 {
            state = hole.1.wait(state).unwrap();
        }
        assert_eq!(state.1, 1, "one request for all of them");
    }
    let start = WatchStart { from: ReadFrom::Tail(0), topic_id: None };
    let req =
        WatchRequest { topics: vec![("b".to_owned(), start)], lenient: true, ..Default::default() };
    let mut watch = w.engine().watch(&req).unwrap();
    for i in 0..20 {
        w.put("b", &["live"]);
        loop {
            match watch.next(Some(Duration::from_secs(60))).unwrap().expect("a delivery") {
                Event::Records(_) => break,
                _ => continue,
            }
        }
        if i % 5 == 0 {
            w.checkpoint();
        }
    }
    assert!(readers.iter().all(|r| !r.is_finished()));
    w.clock.advance_ms(30_000);
    for reader in readers {
        let e = reader.join().unwrap();
        assert_eq!(e.code(), "cold_unavailable");
        assert!(e.to_string().contains("within 30 s"), "{e}");
    }
    // The store is back: the answer of the old request is of use.
    hole.0.lock().unwrap().0 = false;
    hole.1.notify_all();
    assert!(!w.engine().read("a", &after(0)).unwrap().is_empty());
    drop(watch);
    w.close();
}
