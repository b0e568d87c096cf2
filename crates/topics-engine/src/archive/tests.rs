//! Passes over a simulated disk and a simulated object store, with faults at each request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use topics_env::objects::ObjectStore;
use topics_env::real::{Backend, real_env};
use topics_env::{Hook, OpenMode, Site, Verdict};
use topics_remote::format::base::{Base, Span};
use topics_remote::format::pack::PARTS;
use topics_remote::store::folder::FolderStore;
use topics_remote::{Retry, read};
use topics_sim::{Bucket, Mutant, ObjectFault, ObjectOp, ServerFlaw, SimFs, SimStore};
use topics_storage::dir::{Paths, read_file};
use topics_storage::segment::{FileKind, SegmentMeta, TopicKey};

use super::Archived;
use crate::tier;
use crate::topic::tests::{DIR, World, eq, small};
use crate::types::options::{Options, RemoteLimits, RemoteOptions};
use crate::types::requests::RemoteState;

pub(super) const PACK_BYTES: u64 = 2000;

/// All segments stay hot, and there are no rounds between bases.
pub(super) fn limits() -> RemoteLimits {
    RemoteLimits {
        pack_bytes: PACK_BYTES,
        interval: Duration::ZERO,
        hot_segments: u64::MAX,
        single_writer: true,
        ..RemoteLimits::default()
    }
}

pub(super) fn remote(store: SimStore) -> RemoteOptions {
    RemoteOptions { store: Arc::new(store), limits: limits() }
}

/// A world whose engine archives to a bucket.
pub(super) fn archiving() -> (World, Arc<Bucket>) {
    World::over_bucket(limits())
}

/// Writes `n` records with tags and checkpoints them.
pub(super) fn fill(w: &World, topic: &str, n: usize) {
    for i in 0..n {
        w.tagged(topic, &[["red", "blue"][i % 2]]);
    }
    w.checkpoint();
}

/// Two topics with eight sealed segments, of which two have deleted records.
pub(super) fn filled(w: &World) {
    fill(w, "a", 27);
    fill(w, "b", 16);
    w.engine().delete("a", &delete_below(3)).unwrap();
    w.engine().delete("b", &delete_red(9)).unwrap();
    w.checkpoint();
}

fn delete_below(seq: u64) -> crate::types::api::DeleteRequest {
    crate::types::api::DeleteRequest { before_seq: Some(seq), matching: None }
}

/// Deletes some of the records below this seq.
fn delete_red(seq: u64) -> crate::types::api::DeleteRequest {
    crate::types::api::DeleteRequest { before_seq: Some(seq), matching: eq("red") }
}

/// The base that `HEAD` names, read by another client.
pub(super) fn base(w: &World, bucket: &Arc<Bucket>) -> Option<Base> {
    let (store, retry) = (bucket.client(9), Retry::once(w.env()));
    let (head, _) = read::head(&store, &retry).unwrap()?;
    head.base.map(|object| read::base(&store, &retry, &object).unwrap())
}

/// The sealed segments of a world's newest snapshot.
fn sealed(w: &World) -> Vec<(TopicKey, SegmentMeta)> {
    let engine = w.engine().open_engine();
    let Some((_, snapshot)) = engine.store().disk.checkpoints.read_newest().unwrap() else {
        return vec![];
    };
    let mut out = Vec::new();
    for i in 0..snapshot.topics.len() {
        let h = snapshot.topics.topic_header(i).unwrap();
        let topic = TopicKey { topic_id: h.topic_id, epoch: h.epoch };
        let live = h.segments.iter().filter(|m| m.sealed && m.live_count > 0);
        out.extend(live.map(|m| (topic, *m)));
    }
    out
}

fn file(w: &World, topic: TopicKey, meta: &SegmentMeta, kind: FileKind) -> Vec<u8> {
    let named = meta.files(topic.topic_id);
    let Some((name, _)) = named.iter().find(|(_, k)| *k == kind) else { return Vec::new() };
    let path = Paths::new(std::path::Path::new(DIR)).segment(name, kind);
    read_file(&w.env(), &path, u64::MAX).unwrap().unwrap()
}

/// Every segment that the newest snapshot names.
fn all(w: &World) -> Vec<(TopicKey, SegmentMeta)> {
    let engine = w.engine().open_engine();
    let (_, snapshot) = engine.store().disk.checkpoints.read_newest().unwrap().unwrap();
    let body = snapshot.whole().unwrap();
    let of = |t: &topics_storage::snapshot::TopicSnap| {
        let topic = TopicKey { topic_id: t.topic_id, epoch: t.epoch };
        t.segments.iter().map(|m| (topic, *m)).collect::<Vec<_>>()
    };
    body.topics.iter().flat_map(of).filter(|(_, m)| m.span() > 0 && m.live_count > 0).collect()
}

/// The base names exactly the bytes of every file that the newest snapshot names, and every sealed segment
/// is in one pack.
pub(super) fn assert_archived(w: &World, bucket: &Arc<Bucket>) {
    let (store, retry) = (bucket.client(9), Retry::once(w.env()));
    let base = base(w, bucket).unwrap();
    let packs: Vec<_> = base
        .packs
        .iter()
        .map(|p| read::pack(&store, &retry, &p.object()).unwrap().1.bytes)
        .collect();
    let of = |at: &Span| {
        packs[at.pack as usize][at.offset as usize..(at.offset + at.len) as usize].to_vec()
    };
    let deletes: BTreeMap<u64, Vec<u8>> =
        base.deletes.iter().map(|d| (d.del_no, of(&d.at))).collect();
    let mut tails: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for t in &base.tails {
        tails.entry(t.file_no).or_default().extend(of(&t.at));
    }
    assert!(!sealed(w).is_empty());
    let segments = all(w);
    for (topic, meta) in &segments {
        let place = base.segments.iter().find(|s| s.file_no == meta.file_no);
        if meta.sealed {
            let place = place.unwrap_or_else(|| panic!("{meta:?} is in no pack"));
            let mut offset = place.offset;
            for (kind, len) in PARTS.into_iter().zip(place.lens) {
                let found = of(&Span { pack: place.pack, offset, len });
                assert_eq!(found, file(w, *topic, meta, kind), "{kind:?} of {meta:?}");
                offset += len;
            }
        } else {
            let mut data = file(w, *topic, meta, FileKind::Data);
            data.truncate(meta.data_len as usize);
            assert_eq!(tails.remove(&meta.file_no), Some(data), "{meta:?}");
        }
        if meta.del_no != 0 {
            assert_eq!(deletes[&meta.del_no], file(w, *topic, meta, FileKind::Del));
        }
    }
    assert!(tails.is_empty(), "a base names no other segment");
    assert_eq!(base.segments.len(), segments.iter().filter(|(_, m)| m.sealed).count());
    assert_eq!(bucket.violations(), []);
}

#[test]
fn a_base_names_every_byte_of_its_snapshot() {
    let (mut w, bucket) = archiving();
    filled(&w);
    let done = w.engine().archive().unwrap();
    assert!(done.packs >= 2 && done.published, "{done:?}");
    assert_eq!((done.segments, done.damaged), (sealed(&w).len() as u64, 0));
    assert_archived(&w, &bucket);
    let found = base(&w, &bucket).unwrap();
    assert!(found.packs.len() < found.segments.len(), "small topics share a pack");
    assert!(found.packs.iter().all(|p| p.len < 2 * PACK_BYTES));

    let before = bucket.requests();
    assert_eq!(w.engine().archive().unwrap(), Archived::default());
    assert_eq!(bucket.requests(), before, "nothing new, no request");
    for end in [World::reopen, World::kill, World::power_cut] {
        end(&mut w);
        let again = w.engine().archive().unwrap();
        assert_eq!(again.packs, 0, "a restart archives nothing twice");
        assert_archived(&w, &bucket);
    }
    fill(&w, "a", 10);
    let more = w.engine().archive().unwrap();
    assert_eq!((more.packs, more.segments, more.published), (1, 2, true));
    assert_archived(&w, &bucket);
}

#[test]
fn segments_of_unloaded_topics_are_archived() {
    let (mut w, bucket) = archiving();
    let remote = w.options.remote.take();
    w.reopen();
    fill(&w, "a", 12);
    w.options.remote = remote;
    w.reopen();
    assert_eq!(w.engine().open_engine().catalog().table.loaded.len(), 0, "no topic is loaded");
    assert!(w.engine().archive().unwrap().segments > 0);
    assert_archived(&w, &bucket);
}

/// How the engine continues after a failed pass.
pub(super) const ENDS: [fn(&mut World); 3] = [|_| (), World::kill, World::power_cut];

fn requests_of_a_pass() -> u64 {
    let (w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    bucket.requests()
}

/// After any fault at any request, the next pass leaves every segment in exactly one named pack.
#[test]
fn a_fault_at_any_request_is_made_good_by_the_next_pass() {
    let requests = requests_of_a_pass();
    assert!(requests >= 8, "{requests}");
    let (mut runs, mut failed) = (0, 0);
    for nth in 1..=requests as usize {
        for fault in ObjectFault::ALL {
            for end in ENDS {
                let (mut w, bucket) = archiving();
                filled(&w);
                let before = w.seqs("a");
                bucket.fail_nth(None, None, nth, fault);
                failed += u64::from(w.engine().archive().is_err());
                bucket.clear_faults();
                end(&mut w);
                bucket.deliver_delayed();
                let again = w.engine().archive();
                assert!(again.is_ok(), "{fault:?} at {nth}: {again:?}\n{:#?}", bucket.log());
                assert_archived(&w, &bucket);
                assert_eq!(w.seqs("a"), before);
                runs += 1;
            }
        }
    }
    println!("{runs} runs over {requests} requests, {failed} first passes failed");
    assert!(failed > runs / 3, "{failed} of {runs} faults had an effect");
}

/// The process ends before each request, with the answer of the one before or without it.
#[test]
fn a_crash_before_any_request_is_made_good_by_the_next_pass() {
    for nth in 1..=requests_of_a_pass() {
        for (lost, end) in [(false, ENDS[1]), (false, ENDS[2]), (true, ENDS[1]), (true, ENDS[2])] {
            let (mut w, bucket) = archiving();
            w.close();
            let (count, b) = (AtomicU64::new(0), bucket.clone());
            let gate = move |_, _| {
                let n = count.fetch_add(1, Ordering::Relaxed) + 1;
                match n {
                    n if n >= nth => b.fail_all(Some(1), None, ObjectFault::Unavailable),
                    n if lost && n + 1 == nth => {
                        b.fail_nth(Some(1), None, 1, ObjectFault::AnswerLost)
                    }
                    _ => {}
                }
            };
            w.options.remote = Some(remote(bucket.client(1).with_gate(Arc::new(gate))));
            w.open();
            filled(&w);
            w.engine().archive().unwrap_err();
            bucket.clear_faults();
            w.options.remote = Some(remote(bucket.client(1)));
            end(&mut w);
            w.engine().archive().unwrap();
            assert_archived(&w, &bucket);
        }
    }
}

/// The rule: the remote delays no write, no checkpoint and no read.
#[test]
fn without_the_store_everything_else_goes_on() {
    let (mut w, bucket) = archiving();
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    filled(&w);
    let e = w.engine().archive().unwrap_err();
    assert_eq!((e.code(), e.retryable()), ("storage_unavailable", true));
    assert!(e.to_string().contains("(remote)"), "{e}");
    let failed = bucket.requests();
    fill(&w, "a", 5);
    w.delete("a", Some(17), None);
    assert_eq!(bucket.requests(), failed, "only a pass uses the store");
    // The close tries once more.
    w.reopen();
    assert_eq!(w.seqs("a").first(), Some(&17));
    bucket.clear_faults();
    w.engine().archive().unwrap();
    assert_archived(&w, &bucket);
}

#[test]
fn without_a_remote_there_is_no_section_and_no_verb() {
    let w = World::new();
    filled(&w);
    assert_eq!(w.engine().archive().unwrap_err().code(), "invalid_request");
    let (_, snapshot) =
        w.engine().open_engine().store().disk.checkpoints.read_newest().unwrap().unwrap();
    assert_eq!(tier::named(&snapshot.body.sections).unwrap(), []);
    assert!(w.engine().open_engine().archiver.is_none());
}

#[test]
fn an_engine_without_its_remote_keeps_the_list_of_packs() {
    let (mut w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    let packs = w.engine().open_engine().base().packs.serials();
    let remote = w.options.remote.take();
    for _ in 0..3 {
        w.reopen();
        fill(&w, "c", 1);
    }
    assert_eq!(w.engine().open_engine().base().packs.serials(), packs);
    w.options.remote = remote;
    w.reopen();
    assert_eq!(w.engine().archive().unwrap().packs, 0);
    assert_archived(&w, &bucket);
}

#[test]
fn a_damaged_segment_is_left_out_and_the_others_are_archived() {
    let (w, bucket) = archiving();
    filled(&w);
    let (topic, meta) = sealed(&w)[2];
    let name = meta.data_name(topic.topic_id);
    let path = Paths::new(std::path::Path::new(DIR)).segment(&name, FileKind::Data);
    let env = w.env();
    let data = env.fs.open(&path, OpenMode::Write).unwrap();
    data.write_all_at(b"?", meta.data_len / 2).unwrap();
    let done = w.engine().archive().unwrap();
    assert_eq!((done.damaged, done.segments), (1, sealed(&w).len() as u64 - 1));
    assert!(!w.engine().open_engine().base().packs.has_segment(meta.file_no));
    assert_eq!(w.engine().archive().unwrap().damaged, 0, "it is not read again");
    env.sync("test.damage", &*data).unwrap();
    assert_eq!(bucket.violations(), []);
}

#[test]
fn a_missing_file_stops_neither_archive_nor_base() {
    let (mut w, bucket) = archiving();
    w.options.remote.as_mut().unwrap().limits.interval = Duration::from_secs(1);
    w.reopen();
    filled(&w);
    let (topic, meta) = sealed(&w)[2];
    let path = Paths::new(std::path::Path::new(DIR))
        .segment(&meta.data_name(topic.topic_id), FileKind::Data);
    w.env().fs.remove_file(&path).unwrap();
    w.engine().ship().unwrap();
    let others = sealed(&w).len() as u64 - 1;
    let first = w.engine().archive();
    let second = w.engine().archive();
    let archived: u64 = [&first, &second].into_iter().flatten().map(|done| done.segments).sum();
    let published = [&first, &second].into_iter().flatten().any(|done| done.published);
    assert!(published && second.is_ok(), "{first:?} {second:?}");
    assert!(base(&w, &bucket).is_some());
    assert!(first.is_err() || archived == others, "{archived} of {others}");
    assert!(!w.engine().open_engine().base().packs.has_segment(meta.file_no));
}

/// A server that stores less than it was sent.
#[test]
fn a_pack_that_reads_back_damaged_is_not_named() {
    let (w, bucket) = archiving();
    filled(&w);
    bucket.set_flaw(Some(ServerFlaw::SizeLimit(900)));
    w.engine().archive().unwrap_err();
    assert!(w.engine().open_engine().base().packs.serials().is_empty());
    assert!(base(&w, &bucket).is_none());
    bucket.set_flaw(None);
    w.engine().archive().unwrap();
    assert_archived(&w, &bucket);
}

/// A round that succeeds says nothing of packs that cannot be put, and the reverse.
#[test]
fn the_state_of_the_remote_is_that_of_its_worse_user() {
    let (mut w, bucket) = archiving();
    w.options.remote.as_mut().unwrap().limits.interval = Duration::from_secs(1);
    w.reopen();
    let state = |w: &World| w.engine().remote_state().unwrap();
    filled(&w);
    assert_eq!(state(&w), RemoteState::Starting);
    let reason = |w: &World| w.engine().metrics().remote.unwrap().reason;
    w.engine().ship().unwrap();
    w.engine().archive().unwrap();
    assert_eq!((state(&w), reason(&w)), (RemoteState::Ok, None));
    fill(&w, "a", 20);
    bucket.fail_nth(None, Some(ObjectOp::Create), 1, ObjectFault::Refused);
    let error = w.engine().archive().unwrap_err();
    w.engine().ship().unwrap();
    assert_eq!((state(&w), reason(&w)), (RemoteState::Failing, Some(error.to_string())));
    w.engine().archive().unwrap();
    assert_eq!((state(&w), reason(&w)), (RemoteState::Ok, None));
    w.put("a", &["more"]);
    bucket.fail_all(None, None, ObjectFault::Unavailable);
    w.engine().ship().unwrap_err();
    assert_eq!(state(&w), RemoteState::Failing);
    bucket.clear_faults();
    w.engine().ship().unwrap();
    assert_eq!(state(&w), RemoteState::Ok);
}

/// A power cut after HEAD was written. Without the sync of its folder the record is one of before, and the
/// directory takes its own prefix for one that a copy wrote to.
#[test]
fn the_record_of_the_prefix_is_durable_before_head() {
    for is_removed in [false, true] {
        let mut w = World::unopened(small());
        if is_removed {
            w.hook = Some(Arc::new(Mutant::remove(Site::SyncDir("dir.remote"), None)));
        }
        let bucket = Bucket::new(&w.clock);
        bucket.set_mutable(&["HEAD"]);
        w.options.remote = Some(remote(bucket.client(1)));
        w.open();
        filled(&w);
        w.engine().archive().unwrap();
        w.power_cut();
        fill(&w, "a", 10);
        let again = w.engine().archive();
        assert_eq!(again.is_err(), is_removed, "{again:?}");
    }
}

/// Removes the check after the read back.
#[derive(Debug)]
struct NoReadBack;

impl Hook for NoReadBack {
    fn visit(&self, site: Site) -> Verdict {
        if site == Site::Check("archive.read-back") { Verdict::Skip } else { Verdict::Run }
    }
}

#[test]
fn without_the_read_back_a_damaged_pack_is_named() {
    let mut w = World::unopened(small());
    w.hook = Some(Arc::new(NoReadBack));
    let bucket = Bucket::new(&w.clock);
    w.options.remote = Some(remote(bucket.client(1)));
    w.open();
    filled(&w);
    bucket.set_flaw(Some(ServerFlaw::SizeLimit(900)));
    let _ = w.engine().archive();
    assert!(!w.engine().open_engine().base().packs.serials().is_empty(), "the check has no effect");
}

/// Segments that were rewritten or dropped: their packs leave the list.
#[test]
fn packs_without_a_live_segment_leave_the_list() {
    let (mut w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    let first = w.engine().open_engine().base().packs.serials();
    w.delete("a", Some(28), None);
    w.delete("b", Some(17), None);
    for _ in 0..3 {
        fill(&w, "c", 5);
    }
    w.engine().archive().unwrap();
    let now = w.engine().open_engine().base().packs.serials();
    assert!(now.is_disjoint(&first), "{first:?} → {now:?}");
    assert_archived(&w, &bucket);
    w.checkpoint();
    w.kill();
    assert_eq!(w.engine().open_engine().base().packs.serials(), now);
    assert_archived(&w, &bucket);
}

#[test]
fn a_rewritten_segment_is_archived_again() {
    let (w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    w.delete("a", None, eq("red"));
    for _ in 0..4 {
        w.clock.advance_ms(6_000);
        w.engine().tick().unwrap();
        fill(&w, "c", 1);
    }
    assert!(w.engine().metrics().segments_rewritten > 0);
    assert!(w.engine().archive().unwrap().segments > 0);
    assert_archived(&w, &bucket);
}

/// Another engine with a copy of the directory takes the prefix: the first one stops.
#[test]
fn an_engine_that_lost_its_prefix_stops_archiving() {
    let (w, bucket) = archiving();
    filled(&w);
    w.engine().archive().unwrap();
    let mut copy = World::unopened(small());
    copy.fs = Arc::new(SimFs::from_image(&w.fs.kill_image()));
    copy.seed = 1000;
    copy.options.remote = Some(remote(bucket.client(2)));
    copy.open();
    fill(&copy, "a", 10);
    copy.engine().archive().unwrap();
    assert_archived(&copy, &bucket);

    fill(&w, "a", 10);
    let e = w.engine().archive().unwrap_err();
    assert!(e.to_string().contains("prefix now belongs to"), "{e}");
    assert_archived(&copy, &bucket);
    w.put("a", &["goes on"]);
}

#[test]
fn the_prefix_of_another_directory_is_refused() {
    let (w, bucket) = archiving();
    let mut other = World::unopened(small());
    (other.clock, other.seed) = (w.clock.clone(), 1000);
    other.options.remote = Some(remote(bucket.client(3)));
    other.open();
    fill(&other, "x", 20);
    other.engine().archive().unwrap();
    let before = bucket.objects();
    filled(&w);
    let e = w.engine().archive().unwrap_err();
    assert!(e.to_string().contains("the prefix is in use by process"), "{e}");
    assert_eq!(bucket.objects(), before, "nothing was written");
    let requests = bucket.requests();
    w.engine().archive().unwrap_err();
    assert_eq!(bucket.requests(), requests, "a refusal holds for a minute");
}

#[test]
fn a_new_prefix_on_a_server_without_conditional_writes_is_refused() {
    let mut w = World::unopened(small());
    let bucket = Bucket::new(&w.clock);
    bucket.set_mutable(&["HEAD", "probe/"]);
    bucket.set_flaw(Some(ServerFlaw::CreateReplaces));
    let probing = RemoteLimits { single_writer: false, ..limits() };
    w.options.remote = Some(RemoteOptions { limits: probing, ..remote(bucket.client(1)) });
    w.open();
    filled(&w);
    let e = w.engine().archive().unwrap_err().to_string();
    assert!(e.contains("create_if_absent (a create replaces an existing object)"), "{e}");
    assert!(e.contains("remote_single_writer=true"), "{e}");
    assert!(bucket.objects().is_empty(), "the probe leaves nothing, and nothing was written");
    let requests = bucket.requests();
    assert_eq!(w.engine().archive().unwrap_err().to_string(), e);
    assert_eq!(bucket.requests(), requests, "the server is probed once");

    w.options.remote = Some(remote(bucket.client(1)));
    w.reopen();
    w.engine().archive().unwrap();
    assert!(base(&w, &bucket).is_some(), "a single writer does without");
}

#[test]
fn a_prefix_is_probed_once() {
    let mut w = World::unopened(small());
    let bucket = Bucket::new(&w.clock);
    bucket.set_mutable(&["HEAD", "probe/"]);
    let probing = RemoteLimits { single_writer: false, ..limits() };
    w.options.remote = Some(RemoteOptions { limits: probing, ..remote(bucket.client(1)) });
    w.open();
    filled(&w);
    bucket.fail_nth(None, Some(ObjectOp::Delete), 1, ObjectFault::Unavailable);
    w.engine().archive().expect_err("a failed request: nothing is known");
    w.engine().archive().unwrap();
    let deletes = bucket.count(ObjectOp::Delete);
    assert!(deletes >= 1);
    w.reopen();
    fill(&w, "a", 10);
    w.engine().archive().unwrap();
    assert_eq!(bucket.count(ObjectOp::Delete), deletes, "the prefix is not new any more");
    assert_eq!(bucket.violations(), []);
}

/// The schedule: the first base of a process that writes, a full pack, and the interval of bases.
#[test]
fn a_scheduled_pass_waits_for_a_full_pack_or_for_its_time() {
    let (w, bucket) = archiving();
    let archiver = || w.engine().open_engine().archiver.clone().unwrap();
    fill(&w, "a", 6);
    assert!(archiver().archive_if_due().unwrap().published, "the first base is due immediately");
    let idle = bucket.requests();
    assert_eq!(archiver().archive_if_due().unwrap(), Archived::default());
    w.clock.advance_ms(600_000);
    archiver().archive_if_due().unwrap();
    w.clock.advance_ms(600_000);
    assert_eq!(archiver().archive_if_due().unwrap(), Archived::default());
    assert_eq!(bucket.requests(), idle, "without writes there is no request");

    fill(&w, "a", 6);
    assert!(archiver().archive_if_due().unwrap_or_default().published, "it is late");
    fill(&w, "a", 60);
    let done = archiver().archive_if_due().unwrap();
    assert!(done.packs > 0 && !done.published, "a full pack: {done:?}");
    w.clock.advance_ms(600_000);
    bucket.fail_nth(None, Some(ObjectOp::Replace), 1, ObjectFault::Refused);
    archiver().archive_if_due().unwrap_err();
    let again = archiver().archive_if_due().unwrap();
    assert!(again.published && again.packs == 0, "{again:?}");
    assert_archived(&w, &bucket);
}

#[test]
fn a_close_ends_the_thread() {
    let mut w = World::unopened(Options { background: true, ..small() });
    let bucket = Bucket::new(&w.clock);
    w.options.remote = Some(remote(bucket.client(1)));
    w.real_time = true;
    w.open();
    let archiver = Arc::downgrade(w.engine().open_engine().archiver.as_ref().unwrap());
    fill(&w, "a", 12);
    w.close();
    assert!(archiver.upgrade().is_none(), "no thread keeps the archiver");
}

/// Over a folder of the real file system, with the real clock.
#[test]
fn an_engine_archives_to_a_folder() {
    let env = real_env(Backend::Posix).unwrap();
    let name = format!("topics-archive-{}-{:x}", std::process::id(), env.rng.next_u64());
    let root = std::env::temp_dir().join(name);
    std::fs::create_dir(&root).unwrap();
    let store = FolderStore::new(env.clone(), root.join("remote"));
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let limits = RemoteLimits {
        pack_bytes: PACK_BYTES,
        interval: Duration::ZERO,
        ..RemoteLimits::default()
    };
    let remote = RemoteOptions { store: store.clone(), limits };
    let open = || {
        let options = Options { remote: Some(remote.clone()), ..small() };
        crate::engine::Engine::open(env.clone(), &root.join("data"), options).unwrap()
    };
    let engine = open();
    for i in 0..23 {
        let data = format!("record {i}");
        let records = [crate::topic::tests::rec(&data)];
        let req = crate::types::api::Append { records: &records, ..Default::default() };
        engine.append("a", &req).unwrap();
    }
    engine.sync().unwrap();
    engine.checkpoint().unwrap();
    let done = engine.archive().unwrap();
    assert_eq!((done.segments, done.damaged, done.published), (4, 0, true));
    engine.close().unwrap();
    let engine = open();
    let again = engine.archive().unwrap();
    assert_eq!((again.packs, again.published), (0, true), "the first base of a process");
    assert_eq!(engine.archive().unwrap(), Archived::default());
    engine.close().unwrap();

    let retry = Retry::once(env);
    let (head, _) = read::head(&*store, &retry).unwrap().unwrap();
    let base = read::base(&*store, &retry, &head.base.unwrap()).unwrap();
    assert_eq!((base.segments.len(), base.tails.len()), (4, 1));
    std::fs::remove_dir_all(&root).unwrap();
}
