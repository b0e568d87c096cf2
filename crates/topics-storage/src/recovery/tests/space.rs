//! An open on a full disk.

use topics_env::sim::{CallKind, FaultKind, PageFate, Survival};

use super::*;
use crate::segment::{FileKind, SegmentName};

fn names(image: &DiskImage) -> Vec<String> {
    image.files().into_iter().map(|f| f.0).collect()
}

#[test]
fn an_open_without_space_fails_cleanly_and_a_later_one_works() {
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let killed = fs.kill_image();
    let (mut full, mut opened) = (0, 0);
    for pages in 0..12 {
        let (env, fs) = mount(&killed);
        fs.set_free_space(Some(pages * 4096));
        let outcome = begin(&env, 1, Mode::Strict).and_then(|o| {
            assert_eq!(replayed(&o).len(), 36);
            o.finish(&[])
        });
        match outcome {
            Ok(done) => {
                opened += 1;
                drop(done);
            }
            Err(StorageError::Full { .. }) => {
                full += 1;
                let left: Vec<_> = names(&fs.kill_image());
                assert!(!left.iter().any(|n| n.ends_with(".log.tmp")), "{left:?}");
            }
            Err(e) => panic!("{pages} pages: {e}"),
        }
        let mut cursor = fs.crash_cursor();
        cursor.seek(usize::MAX);
        for image in [fs.kill_image(), cursor.image(Survival::DropAll)] {
            let (env, _) = mount(&image);
            let (kept, done) = open(&env, 1);
            assert!(kept.len() >= 33, "{pages} pages: {}", kept.len());
            put(&done.wal, 0, kept.len() as u64 + 1, 1, Level::Synced);
        }
    }
    assert!(full > 0 && opened > 0, "{full} full, {opened} opened");
}

#[test]
fn the_prepared_file_is_the_reserve_of_an_open() {
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let (env, fs) = mount(&fs.kill_image());
    // The lock file and CURRENT take two pages; the log itself gets none.
    fs.set_free_space(Some(2 * 4096));
    let opening = begin(&env, 1, Mode::Strict).unwrap();
    assert_eq!(replayed(&opening).len(), 36);
}

#[test]
fn i1_an_open_that_fails_at_any_call_leaves_the_next_one_whole() {
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let killed = fs.kill_image();
    let kinds = [
        CallKind::Create,
        CallKind::Open,
        CallKind::Read,
        CallKind::Write,
        CallKind::Allocate,
        CallKind::SyncData,
        CallKind::SyncDir,
        CallKind::Rename,
        CallKind::RemoveFile,
        CallKind::List,
    ];
    let mut failed = 0;
    for kind in kinds {
        for fault in [FaultKind::EIO, FaultKind::ENOSPC, FaultKind::ShortWrite] {
            for nth in 1.. {
                let (env, fs) = mount(&killed);
                let fault = match (kind, fault) {
                    (CallKind::SyncData, FaultKind::ShortWrite) => {
                        FaultKind::SyncFails { then: PageFate::Lost }
                    }
                    _ => fault,
                };
                fs.fail_nth(kind, nth, fault);
                let outcome = begin(&env, 1, Mode::Strict).and_then(|o| {
                    assert_eq!(try_replayed(&o)?.len(), 36, "{kind:?} {nth}");
                    o.finish(&[])
                });
                if fs.faults_fired() == 0 {
                    break;
                }
                failed += u32::from(outcome.is_err());
                drop(outcome);
                fs.clear_faults();
                let mut cursor = fs.crash_cursor();
                cursor.seek(usize::MAX);
                for (image, least) in [(fs.kill_image(), 36), (cursor.image(Survival::DropAll), 33)]
                {
                    let (env, _) = mount(&image);
                    let (kept, done) = open(&env, 1);
                    assert!(kept.len() >= least, "{kind:?} {fault:?} {nth}: {}", kept.len());
                    put(&done.wal, 0, kept.len() as u64 + 1, 1, Level::Synced);
                    drop(done);
                    assert_eq!(open(&env, 1).0.len(), kept.len() + 1);
                }
            }
        }
    }
    assert!(failed > 50, "{failed}");
}

/// Groups of two batches in one file, none of them synced: a tail of many pages that nothing proves
/// durable. No next file is made ready, whose space could be given up.
fn long_tail(env: &Env, fs: &SimFs) {
    let options = WalOptions { file_initial: 64 << 10, ..options(1) };
    let paths = Paths::new(Path::new("/db"));
    let opening = Opening::begin(env.clone(), paths, 1, options, Mode::Strict).unwrap();
    let opened = opening.finish(&[]).unwrap();
    fs.set_free_space(Some(0));
    put(&opened.wal, 0, 1, 1, Level::Synced);
    for i in 0..4 {
        let seq = 2 + i * 200;
        let stage = |b: Batch| {
            let b = Batch { frees_space: true, ..b };
            let permit = opened.wal.reserve(0, b.bytes(), None).unwrap();
            opened.wal.stage(b, permit).unwrap()
        };
        stage(batch(seq, 100));
        let last = stage(batch(seq + 100, 100));
        opened.wal.wait(last, Level::Written).unwrap();
    }
    assert_eq!(opened.wal.positions(0).synced, 2);
}

#[test]
fn a_tail_for_whose_copy_there_is_no_room_stays_where_it_is() {
    let (env, fs, _) = sim_env(7);
    long_tail(&env, &fs);
    let killed = fs.kill_image();
    let (env, fs) = mount(&killed);
    // A small file, and CURRENT.
    fs.set_free_space(Some(3 * 4096));
    let (kept, opened) = open(&env, 1);
    assert_eq!(kept, (1..=801).map(|seq| (0, seq)).collect::<Vec<_>>());
    put(&opened.wal, 0, 802, 1, Level::Synced);
    drop(opened);
    // What was served is durable.
    let mut cursor = fs.crash_cursor();
    cursor.seek(usize::MAX);
    for image in [fs.kill_image(), cursor.image(Survival::DropAll)] {
        let (env, _) = mount(&image);
        assert_eq!(open(&env, 1).0.len(), 802);
    }
}

/// Room for a file of the least size, the lock file and `CURRENT`.
#[test]
fn a_directory_opens_where_there_is_hardly_any_room() {
    let (env, fs, _) = sim_env(7);
    long_tail(&env, &fs);
    let (env, fs) = mount(&fs.kill_image());
    let end = begin(&env, 1, Mode::Strict).unwrap().shards[0].plan.tail.as_ref().unwrap().1.offset;
    let paths = Paths::new(Path::new("/db"));
    let in_use = paths.shard(0).join(wal_file::name(1, 1));
    env.fs.open(&in_use, OpenMode::Write).unwrap().set_len(end).unwrap();
    fs.set_free_space(Some(6 * 4096));
    let options = WalOptions { file_initial: 256 << 10, ..options(1) };
    let opening = Opening::begin(env, paths, 1, options, Mode::Strict).unwrap();
    assert_eq!(replayed(&opening).len(), 801);
    let opened = opening.finish(&[]).unwrap();
    let stage = |b: Batch| {
        let permit = opened.wal.reserve(0, b.bytes(), None)?;
        let ticket = opened.wal.stage(b, permit)?;
        opened.wal.wait(ticket, Level::Synced)
    };
    let ordinary = stage(batch(802, 1));
    assert!(matches!(ordinary, Err(StorageError::Full { .. })), "{ordinary:?}");
    stage(Batch { frees_space: true, ..batch(802, 1) }).unwrap();
    fs.set_free_space(None);
    assert!(!opened.wal.full(0));
    stage(batch(803, 1)).unwrap();
}

/// After a failed sync its pages read well, and no later sync writes them.
#[test]
fn i10_a_tail_whose_sync_failed_is_written_again_where_it_is() {
    let (env, fs, _) = sim_env(7);
    long_tail(&env, &fs);
    let path = Path::new("/db/wal/shard-00").join(wal_file::name(1, 1));
    let file = env.fs.open(&path, OpenMode::Write).unwrap();
    fs.fail_nth(CallKind::SyncData, 1, FaultKind::SyncFails { then: PageFate::Lost });
    assert!(file.sync_data().is_err());
    fs.set_free_space(Some(3 * 4096));
    let (kept, opened) = open(&env, 1);
    assert_eq!(kept.len(), 801);
    drop(opened);
    let mut cursor = fs.crash_cursor();
    cursor.seek(usize::MAX);
    let (env, _) = mount(&cursor.image(Survival::DropAll));
    assert_eq!(open(&env, 1).0.len(), 801);
}

#[test]
fn i1_i5_every_crash_is_opened_on_a_full_disk_and_opened_again() {
    let (env, fs, _) = sim_env(7);
    long_tail(&env, &fs);
    let (mut states, mut cut, mut lossy) = (0, 0, 0);
    fs.all_crash_states(11, &CrashOptions::default(), &mut |s| {
        let (env, fs) = mount(&s.image);
        fs.set_free_space(Some(6 * 4096));
        let (kept, opened) = open(&env, 1);
        let seqs: Vec<u64> = kept.iter().map(|k| k.1).collect();
        let head = seqs.last().copied().unwrap_or(0);
        assert_eq!(seqs, (1..=head).collect::<Vec<_>>(), "in order, no hole: {:?}", s.survival);
        assert!(head <= 1 || head % 100 == 1, "I5: {head}, {:?} after {}", s.survival, s.after_ops);
        put(&opened.wal, 0, head + 1, 1, Level::Synced);
        drop(opened);
        let mut cursor = fs.crash_cursor();
        cursor.seek(usize::MAX);
        for image in [fs.kill_image(), cursor.image(Survival::DropAll)] {
            let (env, _) = mount(&image);
            assert_eq!(open(&env, 1).0.len() as u64, head + 1, "{:?}", s.survival);
        }
        states += 1;
        // The second batch of a group was torn: the next file begins within the group.
        cut += u64::from(head % 200 == 101);
        lossy += u64::from(s.image.lost_something());
    });
    assert!(states > 100 && cut > 5 && lossy > 20, "{states} states, {cut} cut, {lossy} lossy");
}

/// A kill while the next file was made ready, within a checkpoint, or before the file in use ended.
#[test]
fn an_open_takes_the_space_of_what_was_not_finished() {
    let (env, fs, _) = sim_env(7);
    long_tail(&env, &fs);
    let image = fs.kill_image();
    let paths = Paths::new(Path::new("/db"));
    let segment = SegmentName { topic_id: 7, first_seq: 1, file_no: 1 };
    let in_use = paths.shard(0).join(wal_file::name(1, 1));
    let unfinished = [
        paths.shard(0).join(format!("{}.tmp", wal_file::name(1, 2))),
        paths.segment(&segment, FileKind::Data),
        in_use.clone(),
    ];
    let opening = begin(&mount(&image).0, 1, Mode::Strict).unwrap();
    let end = opening.shards[0].plan.tail.as_ref().unwrap().1.offset;
    for path in unfinished {
        let (env, fs) = mount(&image);
        create_dir(&env, "test", &paths.topic(7)).unwrap();
        env.fs.open(&in_use, OpenMode::Write).unwrap().set_len(end).unwrap();
        let create = |_| env.fs.open(&path, OpenMode::CreateNew);
        let file = env.fs.open(&path, OpenMode::Write).or_else(create).unwrap();
        file.allocate_written(64 << 10).unwrap();
        drop(file);
        fs.set_free_space(Some(0));
        let (kept, opened) = open(&env, 1);
        assert_eq!(kept.len(), 801, "{}", path.display());
        put(&opened.wal, 0, 802, 1, Level::Synced);
    }
}
