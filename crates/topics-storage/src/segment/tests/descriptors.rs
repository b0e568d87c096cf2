//! Files that stay open, and the behaviour when no file descriptor is left.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use roaring::RoaringBitmap;
use topics_env::{FdReclaimer as _, Hook, Site, Verdict};
use topics_sim::{CallKind, FaultKind};

use super::*;
use crate::StorageError;

fn options(max_open: usize) -> SegmentOptions {
    SegmentOptions { max_open, ..SegmentOptions::default() }
}

/// Adjacent sealed segments of ten records each. A seal reads the records that it seals.
fn row(world: &World, n: u64) -> Vec<SegmentMeta> {
    let sealed = |i| world.append(None, 1 + 10 * i, &sample(10), true).unwrap();
    let metas = (0..n).map(sealed).collect();
    world.segs.reclaim_fds();
    metas
}

fn check(world: &World, metas: &[SegmentMeta]) {
    for meta in metas {
        let found = read_all(&world.segment(meta)).unwrap();
        assert_eq!(found, want(meta.first_seq, &sample(10)));
    }
    assert_eq!(world.segs.damage_counts(), (0, 0));
}

fn none_left<T: std::fmt::Debug>(outcome: crate::Result<T>) {
    let e = outcome.unwrap_err();
    assert!(matches!(e, StorageError::NoDescriptor { .. }), "{e}");
    assert!(e.to_string().contains("ulimit -n"), "{e}");
}

#[test]
fn the_settings_limit_the_number_of_open_files() {
    for max_open in [0, 1, 2, 6, 7, 100] {
        let world = World::new(options(max_open));
        let metas = row(&world, 20);
        for _ in 0..2 {
            check(&world, &metas);
            let most = (max_open / 2).max(1) * 2;
            assert_eq!(world.fs.open_files(), most.min(40), "{max_open}");
        }
    }
}

#[test]
fn removed_files_do_not_stay_open() {
    let world = World::new(options(100));
    let metas = row(&world, 6);
    check(&world, &metas);
    assert_eq!(world.fs.open_files(), 12);
    let dead = Arc::new(RoaringBitmap::new());
    let parts: Vec<_> = metas.iter().map(|m| (world.segment(m), dead.clone())).collect();
    let mut round = Round::new(&world.segs);
    let merged = round.merge(&parts[..3]).unwrap();
    round.sync().unwrap();
    assert_eq!(read_all(&world.segment(&merged)).unwrap().len(), 27);
    let gone: Vec<_> = metas[..3].iter().flat_map(|m| m.files(TOPIC.topic_id)).collect();
    world.segs.remove_files(&gone).unwrap();
    assert_eq!(world.fs.open_files(), 8, "three of them, and the current one");
    world.segs.remove_topic(TOPIC.topic_id).unwrap();
    assert_eq!(world.fs.open_files(), 0);
}

#[test]
fn a_reader_in_progress_keeps_no_file_of_a_removed_topic_open() {
    let world = World::new(options(100));
    let metas = row(&world, 2);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            while !over.load(Ordering::Acquire) {
                for meta in &metas {
                    let _ = read_all(&world.segment(meta));
                }
            }
        });
        world.segs.remove_topic(TOPIC.topic_id).unwrap();
        over.store(true, Ordering::Release);
        reader.join().unwrap();
    });
    assert_eq!(world.fs.open_files(), 0);
}

#[test]
fn a_read_closes_files_of_earlier_reads() {
    let world = World::new(options(100));
    let metas = row(&world, 8);
    check(&world, &metas[..4]);
    let held = world.fs.open_files();
    assert_eq!(held, 8);
    world.fs.set_fd_limit(Some(held));
    check(&world, &metas);
    assert!(world.fs.open_files() <= held);
    // Any segment needs two files, and one more for `.tags`, `.attrs` or `.del`.
    world.fs.set_fd_limit(Some(3));
    for meta in &metas {
        let segment = world.segment(meta);
        check(&world, &[*meta]);
        assert!(!segment.tag_seqs(TagMatch::Eq(b"late"), u64::MAX).unwrap().is_empty());
        assert!(!segment.attrs().unwrap().rows().is_empty());
    }
    assert_eq!(world.segs.damage_counts(), (0, 0));
}

#[test]
fn a_read_without_a_descriptor_is_an_error_and_not_damage() {
    let world = World::new(options(4));
    let metas = row(&world, 3);
    let mut round = Round::new(&world.segs);
    let dead: RoaringBitmap = [3, 4].into_iter().collect();
    let del_no = round.write_del(&world.segment(&metas[0]), &dead).unwrap();
    round.sync().unwrap();
    let with_del = SegmentMeta { del_no, ..metas[0] };
    for most in [0, 1] {
        world.fs.set_fd_limit(None);
        check(&world, &metas[2..]);
        world.fs.set_fd_limit(Some(most));
        let segment = world.segment(&with_del);
        none_left(read_all(&segment));
        none_left(
            segment
                .tag_seqs(TagMatch::Eq(b"late"), u64::MAX)
                .and_then(|_| segment.attrs())
                .and_then(|_| segment.entries(1, 10)),
        );
        none_left(
            world.segs.check_named(TOPIC, &metas, true).and_then(|()| read_all(&segment).map(drop)),
        );
    }
    world.fs.set_fd_limit(None);
    check(&world, &metas);
    assert_eq!(*world.segment(&with_del).deleted().unwrap(), dead);
}

/// Appends to an active segment until it is sealed, then starts another, writes a `.del` and syncs.
fn round(
    world: &World,
    active: &SegmentMeta,
    sealed: &SegmentMeta,
) -> crate::Result<[SegmentMeta; 3]> {
    let mut round = Round::new(&world.segs);
    let begun = (|| {
        let mut writer = SegmentWriter::reopen(&world.segs, TOPIC, active)?;
        fill(&mut writer, &sample(10))?;
        writer.seal()?;
        let first = round.add(writer)?;
        let mut writer = SegmentWriter::create(&world.segs, TOPIC, 121)?;
        fill(&mut writer, &sample(10))?;
        let second = round.add(writer)?;
        let dead: RoaringBitmap = [3, 4].into_iter().collect();
        let del_no = round.write_del(&world.segment(sealed), &dead)?;
        Ok([first, second, SegmentMeta { del_no, ..*sealed }])
    })();
    match begun {
        Ok(metas) => round.sync().map(|()| metas),
        Err(e) => {
            round.refused();
            Err(e)
        }
    }
}

#[test]
fn i9_a_round_without_descriptors_is_repeated_in_the_same_files() {
    for kind in [FaultKind::EMFILE, FaultKind::ENFILE] {
        for nth in 1.. {
            // One round appends to an existing directory, one creates files beside others.
            let world = World::new(options(4));
            let sealed = world.sealed(&sample(10));
            let active = world.append(None, 111, &[], false).unwrap();
            world.segs.reclaim_fds();
            world.fs.fail_from(CallKind::NEEDS_FD.as_slice(), nth, kind);
            let outcome = round(&world, &active, &sealed);
            world.fs.clear_faults();
            if outcome.is_ok() {
                assert!(nth > 8, "{nth}");
                break;
            }
            none_left(outcome);
            assert!(!world.segs.is_suspect(active.file_no), "call {nth}");
            let [first, second, deleted] = round(&world, &active, &sealed).unwrap();
            assert_eq!(first.file_no, active.file_no, "call {nth}");
            let held = |w: &World| {
                assert_eq!(read_all(&w.segment(&sealed)).unwrap(), want(1, &sample(10)));
                assert_eq!(read_all(&w.segment(&first)).unwrap(), want(111, &sample(10)));
                assert_eq!(read_all(&w.segment(&second)).unwrap(), want(121, &sample(10)));
                assert_eq!(w.segment(&deleted).deleted().unwrap().len(), 2);
                assert_eq!(w.segs.damage_counts(), (0, 0), "call {nth}");
            };
            held(&world);
            let mut cursor = world.fs.crash_cursor();
            cursor.seek(usize::MAX);
            held(&World::next(&cursor.image(topics_sim::Survival::DropAll), 9));
        }
    }
}

/// Counts the syncs of the file system.
#[derive(Debug, Default)]
struct Wide(AtomicUsize);

impl Hook for Wide {
    fn visit(&self, site: Site) -> Verdict {
        self.0.fetch_add(usize::from(site == Site::Sync("segment.sync-fs")), Ordering::Relaxed);
        Verdict::Run
    }
}

#[test]
fn a_round_limits_the_files_that_it_keeps_open_until_its_sync() {
    let (fs, hook) = (Arc::new(SimFs::new()), Arc::new(Wide::default()));
    let env = env_on(&fs, &Arc::new(SimClock::new(1000)), 1).with_hook(hook.clone());
    let set = SegmentOptions { max_unsynced: 8, max_open: 2, ..SegmentOptions::default() };
    let world = World::with_env(fs, env, set, 1);
    let mut round = Round::new(&world.segs);
    let mut metas = Vec::new();
    for i in 0..20 {
        let mut writer = SegmentWriter::create(&world.segs, TOPIC, 1 + 10 * i).unwrap();
        fill(&mut writer, &sample(10)).unwrap();
        metas.push(round.add(writer).unwrap());
        assert!(world.fs.open_files() <= 8, "{}", world.fs.open_files());
    }
    // A check of the file system without a descriptor gives no information.
    world.fs.set_fd_limit(Some(0));
    round.sync().unwrap();
    world.fs.set_fd_limit(None);
    assert_eq!(hook.0.load(Ordering::Relaxed), 1);
    check(&world, &metas);
}
