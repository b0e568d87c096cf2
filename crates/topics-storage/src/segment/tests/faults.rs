//! Crashes, failed syncs, full disks: I9.

use std::collections::BTreeMap;

use topics_env::{Hook, Site};
use topics_sim::{
    CallFilter, CallKind, CrashOptions, FaultKind, Mutant, PageFate, SiteLog, Survival,
};

use super::*;

/// The content of a snapshot after some of the calls: the metas of a topic and their records.
#[derive(Clone, Debug, Default)]
struct Named {
    segments: BTreeMap<u64, (SegmentMeta, Vec<Rec>)>,
}

impl Named {
    fn put(&mut self, meta: SegmentMeta, recs: &[Rec]) {
        self.segments.insert(meta.first_seq, (meta, recs.to_vec()));
    }

    /// Checks that this disk contains everything that the snapshot names.
    fn holds(&self, image: &DiskImage) -> Result<(), String> {
        let world = World::next(image, 9);
        for (meta, recs) in self.segments.values() {
            let text = |e: crate::StorageError| e.to_string();
            world.segs.check_named(TOPIC, &[*meta], true).map_err(text)?;
            let segment = world.segment(meta);
            let found = read_all(&segment).map_err(text)?;
            if found != want(meta.first_seq, recs) {
                return Err(format!("{meta:?} reads {found:?}"));
            }
            let dead = segment.deleted().map_err(text)?;
            if meta.del_no != 0 && dead.len() != 2 {
                return Err(format!("{meta:?} has the deletes {dead:?}"));
            }
            let table = segment.attrs().map_err(text)?;
            let attrs = recs.iter().filter(|r| !r.attrs.is_empty()).count();
            if table.rows().len() != attrs {
                return Err(format!("{meta:?} has the attributes {table:?}"));
            }
            let late = recs.iter().filter(|r| r.tag.as_deref() == Some(b"late")).count();
            let tagged = segment.tag_seqs(TagMatch::Eq(b"late"), u64::MAX).map_err(text)?;
            if tagged.len() != late {
                return Err(format!("{meta:?} has the tags {tagged:?}"));
            }
            if world.segs.damage_counts() != (0, 0) {
                return Err(format!("{meta:?} has damaged files"));
            }
        }
        Ok(())
    }
}

/// Rounds of every kind: append, append again, seal and continue, delete, rewrite.
fn workload(world: &World, many: u64) -> Vec<(usize, Named)> {
    let recs = sample(40);
    let mut named = Named::default();
    let mut log = vec![(world.fs.ops_len(), named.clone())];
    let mut note = |named: &Named| log.push((world.fs.ops_len(), named.clone()));

    let first = world.append(None, 1, &recs[..8], false).unwrap();
    named.put(first, &recs[..8]);
    note(&named);

    let mut round = Round::new(&world.segs);
    // More topics, so that one sync of the file system replaces the file syncs.
    for n in 0..many {
        let topic = TopicKey { topic_id: 100 + n, epoch: 1 };
        let mut writer = SegmentWriter::create(&world.segs, topic, 1).unwrap();
        fill(&mut writer, &sample(3)).unwrap();
        round.add(writer).unwrap();
    }
    let mut writer = SegmentWriter::reopen(&world.segs, TOPIC, &first).unwrap();
    fill(&mut writer, &recs[8..20]).unwrap();
    writer.seal().unwrap();
    let mut sealed = round.add(writer).unwrap();
    let mut writer = SegmentWriter::create(&world.segs, TOPIC, 21).unwrap();
    fill(&mut writer, &recs[20..25]).unwrap();
    let active = round.add(writer).unwrap();
    sealed.del_no =
        round.write_del(&world.segment(&sealed), &[1, 2].into_iter().collect()).unwrap();
    round.sync().unwrap();
    named.put(sealed, &recs[..20]);
    named.put(active, &recs[20..25]);
    note(&named);

    let mut round = Round::new(&world.segs);
    let dead = (0..15).collect();
    let small = round.rewrite(&world.segment(&sealed), &dead).unwrap();
    round.sync().unwrap();
    let active = world.append(Some(&active), 0, &recs[25..], false).unwrap();
    let kept: Vec<Rec> =
        (0..20u32).map(|i| if i < 15 { Rec::hole() } else { recs[i as usize].clone() }).collect();
    named.put(small, &kept);
    named.put(active, &recs[20..]);
    note(&named);
    log
}

/// Runs the workload and checks every disk that a crash can leave: it contains everything that was
/// named before the crash. Returns the number of states and the first violation.
fn crash_everywhere(hook: Option<Arc<dyn Hook>>, many: u64) -> (usize, Option<String>) {
    let fs = Arc::new(SimFs::new());
    let mut env = env_on(&fs, &Arc::new(SimClock::new(1000)), 1);
    if let Some(hook) = hook {
        env = env.with_hook(hook);
    }
    let world = World::with_env(fs, env, SegmentOptions::default(), 1);
    let log = workload(&world, many);
    let (mut states, mut broken) = (0, None);
    let options = CrashOptions { random: 1, torn_bytes: 1, names: 2, single: true };
    world.fs.all_crash_states(1, &options, &mut |state| {
        states += 1;
        if broken.is_some() {
            return;
        }
        let (_, named) = log.iter().rev().find(|(at, _)| *at <= state.after_ops).unwrap_or(&log[0]);
        if let Err(e) = named.holds(&state.image) {
            let op = world.fs.describe_op(state.after_ops.saturating_sub(1));
            broken = Some(format!("{op}, {:?}: {e}", state.survival));
        }
    });
    (states, broken)
}

#[test]
fn i9_what_was_named_survives_every_crash() {
    for many in [0, 40] {
        let (states, broken) = crash_everywhere(None, many);
        assert_eq!(broken, None);
        assert!(states > 500, "only {states} states");
    }
}

#[test]
fn i9_every_removed_sync_is_detected() {
    let log = Arc::new(SiteLog::default());
    crash_everywhere(Some(log.clone()), 0);
    crash_everywhere(Some(log.clone()), 40);
    let mut tried = Vec::new();
    for (site, _) in log.sites() {
        let promise = matches!(site, Site::Sync(name) | Site::SyncDir(name)
            if name.starts_with("segment."));
        if !promise {
            continue;
        }
        let hit = [0, 40].iter().any(|&many| {
            let mutant = Arc::new(Mutant::remove(site, None));
            crash_everywhere(Some(mutant.clone()), many).1.is_some() && mutant.hits() > 0
        });
        assert!(hit, "no crash state detects that {site:?} is missing");
        tried.push(site);
    }
    assert!(tried.len() >= 7, "{tried:?}");
}

#[test]
fn i9_after_a_failed_sync_the_files_are_made_again() {
    let fates = [PageFate::Kept, PageFate::Lost, PageFate::Reverted];
    for (fate, many) in fates.into_iter().flat_map(|f| [(f, 0), (f, 40)]) {
        for nth in 1..8 {
            let world = World::new(SegmentOptions::default());
            let recs = sample(30);
            let first = world.append(None, 1, &recs[..10], false).unwrap();
            let kinds = [CallKind::SyncData, CallKind::SyncDir, CallKind::SyncFs];
            let probe = world.fs.calls(CallKind::SyncFs);
            for kind in kinds {
                let then = FaultKind::SyncFails { then: fate };
                // The first sync of the file system only checks whether the call is supported.
                let nth = if kind == CallKind::SyncFs && probe == 0 { nth + 1 } else { nth };
                world.fs.fail_nth(kind, nth, then);
            }
            let round = |seal: bool, active: &SegmentMeta| -> crate::Result<SegmentMeta> {
                let mut round = Round::new(&world.segs);
                let mut writer = SegmentWriter::reopen(&world.segs, TOPIC, active)?;
                fill(&mut writer, &recs[10..])?;
                if seal {
                    writer.seal()?;
                }
                let meta = round.add(writer)?;
                for n in 0..many {
                    let topic = TopicKey { topic_id: 100 + n, epoch: 1 };
                    let mut writer = SegmentWriter::create(&world.segs, topic, 1)?;
                    fill(&mut writer, &sample(3))?;
                    round.add(writer)?;
                }
                round.sync().map(|()| meta)
            };
            let outcome = round(true, &first);
            let fired = world.fs.faults_fired() > 0;
            world.fs.clear_faults();
            assert_eq!(outcome.is_err(), fired, "{fate:?} {nth}: {outcome:?}");
            let Err(_) = outcome else { continue };
            let again = round(nth % 2 == 0, &first).unwrap();
            assert_ne!(again.file_no, first.file_no, "no byte of the failed round is named");
            let mut named = Named::default();
            named.put(again, &recs);
            let mut cursor = world.fs.crash_cursor();
            cursor.seek(usize::MAX);
            cursor.states(1, &CrashOptions::default(), &mut |state| {
                named.holds(&state.image).unwrap();
            });
        }
    }
}

#[test]
fn i9_a_directory_whose_name_was_lost_is_created_again() {
    for nth in 1.. {
        let world = World::new(SegmentOptions::default());
        let recs = sample(9);
        let lost = FaultKind::SyncFails { then: PageFate::Lost };
        world.fs.fail_nth(CallKind::SyncDir, nth, lost);
        if world.append(None, 1, &recs, false).is_ok() {
            assert!(nth > 2, "the directory and its parent");
            return;
        }
        let meta = world.append(None, 1, &recs, false).unwrap();
        let mut named = Named::default();
        named.put(meta, &recs);
        let mut cursor = world.fs.crash_cursor();
        cursor.seek(usize::MAX);
        named.holds(&cursor.image(Survival::DropAll)).unwrap();
    }
}

#[test]
fn bytes_beyond_the_named_length_are_truncated() {
    let world = World::new(SegmentOptions::default());
    let recs = sample(30);
    let meta = world.append(None, 1, &recs[..10], false).unwrap();
    // A round reaches the disk but no snapshot; then another process starts.
    world.append(Some(&meta), 0, &recs[10..25], true).unwrap();
    let world = world.restart(2);
    assert_eq!(read_all(&world.segment(&meta)).unwrap(), want(1, &recs[..10]));
    let other = &recs[10..12];
    let next = world.append(Some(&meta), 0, other, false).unwrap();
    assert_eq!(next.file_no, meta.file_no);
    let mut named = Named::default();
    named.put(next, &recs[..12]);
    named.holds(&world.fs.kill_image()).unwrap();
    let file = format!("/d/topics/7/{}", meta.name(7).file(FileKind::Data));
    assert_eq!(world.fs.kill_image().read(&file).unwrap().len() as u64, next.data_len);
}

#[test]
fn a_seal_does_not_certify_a_damaged_index() {
    let world = World::new(SegmentOptions::default());
    let recs = sample(30);
    let meta = world.append(None, 1, &recs[..10], false).unwrap();
    let file = format!("/d/topics/7/{}", meta.name(7).file(FileKind::Idx));
    let image = world.fs.kill_image();
    let good = image.read(&file).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        let mut image = image.clone();
        image.put(&file, &bytes);
        let world = World::next(&image, 2);
        if (4..8).contains(&at) {
            continue;
        }
        let sealed = world.append(Some(&meta), 0, &recs[10..], true).unwrap();
        let mut named = Named::default();
        named.put(sealed, &recs);
        named.holds(&world.fs.kill_image()).unwrap();
    }
}

#[test]
fn a_full_disk_fails_the_round_and_frees_its_space() {
    let world = World::new(SegmentOptions::default());
    let recs = sample(300);
    let meta = world.append(None, 1, &recs[..10], false).unwrap();
    for kind in [CallKind::Create, CallKind::Write] {
        for nth in 1..7 {
            let fired = world.fs.faults_fired();
            let files = world.segs.list_files(7).unwrap();
            world.fs.fail_nth(CallFilter::on_path(kind, "/d/topics"), nth, FaultKind::ENOSPC);
            let mut round = Round::new(&world.segs);
            let outcome = (|| {
                let mut writer = SegmentWriter::create(&world.segs, TOPIC, 11)?;
                fill(&mut writer, &recs[10..])?;
                writer.seal()?;
                round.add(writer)
            })();
            let outcome = outcome.and_then(|_| round.sync());
            if world.fs.faults_fired() == fired {
                assert!(nth > 3);
                world.fs.clear_faults();
                break;
            }
            world.fs.clear_faults();
            assert!(matches!(outcome, Err(crate::StorageError::Full { .. })), "{outcome:?}");
            assert_eq!(world.segs.list_files(7).unwrap(), files, "{kind:?} {nth}");
        }
    }
    assert_eq!(read_all(&world.segment(&meta)).unwrap(), want(1, &recs[..10]));
}

#[test]
fn a_writer_that_fails_leaves_no_folder() {
    let mut failed = 0;
    for (path, nth) in [(".data", 1), (".data", 2), (".idx", 1)] {
        let world = World::new(SegmentOptions::default());
        world.fs.fail_nth(CallFilter::on_path(CallKind::Create, path), nth, FaultKind::Errno(28));
        failed += usize::from(SegmentWriter::create(&world.segs, TOPIC, 1).is_err());
        assert!(world.segs.list_topics().unwrap().is_empty(), "creation {nth} of {path}");
    }
    assert_eq!(failed, 3);
    let world = World::new(SegmentOptions::default());
    drop(SegmentWriter::create(&world.segs, TOPIC, 1).unwrap());
    assert!(world.segs.list_topics().unwrap().is_empty(), "no round has the writer");
}

#[test]
fn removed_topics_leave_nothing() {
    let world = World::new(SegmentOptions::default());
    let meta = world.sealed(&sample(20));
    let segment = world.segment(&meta);
    assert_eq!(world.segs.list_topics().unwrap(), [7]);
    world.segs.remove_topic(7).unwrap();
    world.segs.remove_topic(7).unwrap();
    assert!(world.segs.list_topics().unwrap().is_empty());
    assert!(matches!(read_all(&segment), Err(crate::StorageError::Missing { .. })));
}

/// A few directories are synced one by one; many by a sync of the file system, if it supports that.
#[test]
fn removals_are_durable_once_synced() {
    for (max_unsynced, has_fs_sync) in [(64, true), (2, true), (2, false)] {
        let world = World::new(SegmentOptions { max_unsynced, ..SegmentOptions::default() });
        if !has_fs_sync {
            world.fs.fail_from(CallKind::SyncFs, 1, FaultKind::Errno(95));
        }
        let mut round = Round::new(&world.segs);
        for topic_id in 1..=8 {
            let topic = TopicKey { topic_id, epoch: 1 };
            let mut writer = SegmentWriter::create(&world.segs, topic, 1).unwrap();
            fill(&mut writer, &sample(3)).unwrap();
            round.add(writer).unwrap();
        }
        round.sync().unwrap();
        for topic_id in 1..=8 {
            match topic_id % 2 {
                0 => world.segs.remove_topic(topic_id).unwrap(),
                _ => {
                    let files = world.segs.list_files(topic_id).unwrap();
                    world.segs.remove_files(&files[..1]).unwrap();
                }
            }
        }
        let names = |world: &World| {
            let topics = world.segs.list_topics().unwrap().into_iter();
            topics.map(|id| (id, world.segs.list_files(id).unwrap())).collect::<Vec<_>>()
        };
        let after_power_cut = || {
            let mut cursor = world.fs.crash_cursor();
            while cursor.advance() {}
            names(&World::next(&cursor.image(Survival::DropAll), 9))
        };
        assert_eq!(after_power_cut().len(), 8, "no sync has covered the removals");
        world.segs.sync_removals().unwrap();
        assert_eq!(names(&world).len(), 4);
        assert_eq!(after_power_cut(), names(&world), "{max_unsynced} {has_fs_sync}");
    }
}

#[test]
fn i9_a_failed_sync_of_the_file_system_fails_every_round_in_progress() {
    let world = World::new(SegmentOptions::default());
    let begin = |first: u64| {
        let mut round = Round::new(&world.segs);
        for n in 0..40 {
            let topic = TopicKey { topic_id: first + n, epoch: 1 };
            let mut writer = SegmentWriter::create(&world.segs, topic, 1).unwrap();
            fill(&mut writer, &sample(3)).unwrap();
            round.add(writer).unwrap();
        }
        round
    };
    begin(100).sync().unwrap();
    let (one, two) = (begin(200), begin(300));
    world.fs.fail_nth(CallKind::SyncFs, 1, FaultKind::SyncFails { then: PageFate::Lost });
    assert!(one.sync().is_err());
    assert!(two.sync().is_err(), "its bytes may be among the lost ones");
    assert_eq!(world.segs.list_files(300).unwrap(), []);
    begin(400).sync().unwrap();
}

#[test]
fn deletes_remain_valid_for_files_that_are_created_again() {
    let world = World::new(SegmentOptions::default());
    let recs = sample(20);
    let mut meta = world.append(None, 1, &recs[..10], false).unwrap();
    let mut round = Round::new(&world.segs);
    meta.del_no = round.write_del(&world.segment(&meta), &[1, 2].into_iter().collect()).unwrap();
    round.sync().unwrap();
    let mut round = Round::new(&world.segs);
    let mut writer = SegmentWriter::remake(&world.segs, TOPIC, &meta).unwrap();
    fill(&mut writer, &recs[10..]).unwrap();
    writer.seal().unwrap();
    let again = round.add(writer).unwrap();
    round.sync().unwrap();
    assert!(again.file_no != meta.file_no && again.del_no == meta.del_no);
    let mut named = Named::default();
    named.put(again, &recs);
    named.holds(&world.fs.kill_image()).unwrap();
}

/// A backup shares the files of the segment by hard links: later writes must not change it.
#[test]
fn files_with_two_hard_links_are_copied() {
    use std::path::PathBuf;
    let root = std::env::temp_dir().join(format!("topics-segments-{}", std::process::id()));
    let env = topics_env::real::real_env(topics_env::real::Backend::Posix).unwrap();
    let paths = Paths::new(&root);
    crate::dir::create_dir(&env, "test.root", paths.root()).unwrap();
    crate::dir::create_dir(&env, "test.topics", &paths.topics()).unwrap();
    let segs = Segments::new(env, paths.clone(), STORE, 1, SegmentOptions::default());
    let recs = sample(30);
    let append = |meta: Option<&SegmentMeta>, recs: &[Rec], seal: bool| {
        let mut round = Round::new(&segs);
        let mut writer = match meta {
            Some(meta) => SegmentWriter::reopen(&segs, TOPIC, meta).unwrap(),
            None => SegmentWriter::create(&segs, TOPIC, 1).unwrap(),
        };
        fill(&mut writer, recs).unwrap();
        if seal {
            writer.seal().unwrap();
        }
        let meta = round.add(writer).unwrap();
        round.sync().unwrap();
        meta
    };
    let first = append(None, &recs[..10], false);
    let second = append(Some(&first), &recs[10..15], false);
    assert_eq!(second.file_no, first.file_no, "one hard link: the writer continues in place");
    let backup: Vec<PathBuf> = [FileKind::Data, FileKind::Idx]
        .iter()
        .map(|part| {
            let file = paths.segment(&second.name(7), *part);
            let copy = root.join(format!("backup.{}", part.extension()));
            std::fs::hard_link(&file, &copy).unwrap();
            copy
        })
        .collect();
    let before: Vec<_> = backup.iter().map(|p| std::fs::read(p).unwrap()).collect();
    let third = append(Some(&second), &recs[15..], true);
    assert_ne!(third.file_no, first.file_no);
    assert_eq!(read_all(&segs.segment(TOPIC, third)).unwrap(), want(1, &recs));
    let after: Vec<_> = backup.iter().map(|p| std::fs::read(p).unwrap()).collect();
    assert_eq!(before, after);
    segs.remove_topic(7).unwrap();
    std::fs::remove_dir_all(&root).unwrap();
}
