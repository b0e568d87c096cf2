//! An open on a full disk.

use topics_sim::{CallKind, FaultKind, PageFate, Survival};

use super::*;
use crate::format::wal_file;
use crate::segment::{FileKind, SegmentName};

fn names(image: &DiskImage) -> Vec<String> {
    image.files().into_iter().map(|f| f.0).collect()
}

#[test]
fn a_directory_opens_with_any_number_of_free_pages() {
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let killed = fs.kill_image();
    let (mut reads, mut writes) = (0, 0);
    for pages in 0..12 {
        let (env, fs) = mount(&killed);
        fs.set_free_space(Some(pages * 4096));
        let (kept, opened) = open(&env, 1);
        assert_eq!(kept.len(), 36, "{pages} pages");
        let left: Vec<_> = names(&fs.kill_image());
        assert!(!left.iter().any(|n| n.ends_with(".log.tmp")), "{left:?}");
        match opened.wal.has_begun() {
            true => writes += 1,
            false => reads += 1,
        }
        drop(opened);
        let mut cursor = fs.crash_cursor();
        cursor.seek(usize::MAX);
        for image in [fs.kill_image(), cursor.image(Survival::DropAll)] {
            let (env, _) = mount(&image);
            let (kept, done) = open(&env, 1);
            assert!(kept.len() >= 33, "{pages} pages: {}", kept.len());
            put(&done.wal, 0, kept.len() as u64 + 1, 1, Level::Synced);
        }
    }
    assert!(reads > 0 && writes > 0, "{reads} for reads only, {writes} for writes");
}

/// The same disk with `pages` free pages, and nothing that an open can truncate or remove.
fn with_free_pages(pages: u64) -> (Env, Arc<SimFs>) {
    let (env, fs, _) = sim_env(7);
    long_tail(&env, &fs);
    let (env, fs) = mount(&fs.kill_image());
    let end = begin(&env, 1, Mode::Strict).unwrap().shards[0].plan.tail.as_ref().unwrap().1.offset;
    let paths = Paths::new(Path::new("/db"));
    let in_use = paths.shard(0).join(wal_file::name(1, 1));
    env.fs.open(&in_use, OpenMode::Write).unwrap().set_len(end).unwrap();
    fs.set_free_space(Some(pages * 4096));
    (env, fs)
}

fn try_put(opened: &Opened, seq: u64, frees_space: bool) -> crate::Result<()> {
    let b = Batch { frees_space, ..batch(seq, 1) };
    let permit = opened.wal.reserve(0, b.bytes(), None)?;
    let ticket = opened.wal.stage(b, permit)?;
    opened.wal.wait(ticket, Level::Synced)
}

#[test]
fn without_any_room_a_directory_opens_for_reads_until_there_is_room() {
    let (env, fs) = with_free_pages(0);
    let before = fs.kill_image();
    let log_files = |image: &DiskImage| {
        let files = image.files().into_iter();
        files.filter(|(name, _)| name.contains("/wal/")).collect::<Vec<_>>()
    };
    for closed in [true, false, true] {
        let (kept, opened) = open(&env, 1);
        assert_eq!(kept.len(), 801, "every record is served");
        assert!(!opened.wal.has_begun() && opened.wal.full(0));
        for frees_space in [false, true] {
            let refused = try_put(&opened, 802, frees_space).unwrap_err().to_string();
            assert!(refused.contains("free some space on the disk"), "{refused}");
        }
        assert_eq!(opened.wal.counters().read_only, 1);
        if closed {
            opened.wal.close(true).unwrap();
        }
        drop(opened);
        assert_eq!(log_files(&fs.kill_image()), log_files(&before), "an open assigns nothing");
    }
    let (_, opened) = open(&env, 1);
    fs.set_free_space(Some(8 * 4096));
    assert!(try_put(&opened, 802, true).is_ok(), "room for a small file");
    fs.set_free_space(None);
    assert!(!opened.wal.full(0));
    try_put(&opened, 803, false).unwrap();
    drop(opened);
    assert_eq!(open(&env, 1).0.len(), 803);
}

/// The first file is created while the log is live, with the frames that record what was lost.
#[test]
fn i1_a_log_that_begins_late_survives_every_crash() {
    let (_, fs) = with_free_pages(0);
    let image = fs.kill_image();
    let (mut begun, mut states) = (0, 0);
    for pages in [0, 1, 2, 3, 4, 5, 6, 100] {
        let (env, fs) = mount(&image);
        fs.set_free_space(Some(0));
        let mut frame = Vec::new();
        let gap = Gap { from: 900, to: 900, reason: 1 };
        gap.encode_frame(&mut frame, 7, 0, 0);
        let opened = begin(&env, 1, Mode::Strict).unwrap().finish(&[(0, frame)]).unwrap();
        assert!(!opened.wal.has_begun());
        fs.set_free_space(Some(pages * 4096));
        let full = opened.wal.full(0);
        assert_eq!(full, !opened.wal.has_begun());
        begun += u64::from(!full);
        let acked = try_put(&opened, 802, true).is_ok();
        assert_eq!(acked, opened.wal.has_begun(), "{pages} pages");
        fs.all_crash_states(11, &CrashOptions::default(), &mut |s| {
            let (env, _) = mount(&s.image);
            let (kept, _opened) = open(&env, 1);
            assert!(kept.len() == 801 || acked && kept.len() == 802, "{}", kept.len());
            states += 1;
        });
        drop(opened);
        let mut cursor = fs.crash_cursor();
        cursor.seek(usize::MAX);
        for image in [fs.kill_image(), cursor.image(Survival::DropAll)] {
            let (env, _) = mount(&image);
            assert_eq!(open(&env, 1).0.len(), 801 + usize::from(acked), "{pages} pages");
        }
    }
    assert!(begun > 1 && begun < 8 && states > 100, "{begun} begun, {states} states");
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
    let (env, fs) = with_free_pages(6);
    let options = WalOptions { file_initial: 256 << 10, ..options(1) };
    let opening =
        Opening::begin(env, Paths::new(Path::new("/db")), 1, options, Mode::Strict).unwrap();
    assert_eq!(replayed(&opening).len(), 801);
    let opened = opening.finish(&[]).unwrap();
    let ordinary = try_put(&opened, 802, false);
    assert!(matches!(ordinary, Err(StorageError::Full { .. })), "{ordinary:?}");
    try_put(&opened, 802, true).unwrap();
    fs.set_free_space(None);
    assert!(!opened.wal.full(0));
    try_put(&opened, 803, false).unwrap();
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

/// The reserve is for checkpoints: a log needs only a small file to log what frees space.
#[test]
fn an_open_on_a_full_disk_leaves_most_of_the_reserve() {
    let (env, fs, _) = sim_env(7);
    long_tail(&env, &fs);
    let (env, fs) = mount(&fs.kill_image());
    let paths = Paths::new(Path::new("/db"));
    let reserve = env.fs.open(&paths.reserve(), OpenMode::CreateNew).unwrap();
    reserve.allocate_written(2 << 20).unwrap();
    fs.set_free_space(Some(0));
    let options = WalOptions { file_initial: 1 << 20, ..options(1) };
    let opening = Opening::begin(env, paths, 1, options, Mode::Strict).unwrap();
    let opened = opening.finish(&[]).unwrap();
    assert!(opened.wal.has_begun());
    let left = reserve.len().unwrap();
    assert!(left >= (2 << 20) - (128 << 10), "{left}");
}

/// The ends of files that held nothing are cut: of an old one by a rotation, of the one in use by a
/// checkpoint on a full disk.
#[test]
fn i1_i5_what_the_log_truncates_held_nothing() {
    let (env, fs, _) = sim_env(7);
    let size = 48 << 10;
    let paths = Paths::new(Path::new("/db"));
    let options = WalOptions { file_initial: size, file_max: 2 * size, ..options(1) };
    let opening = Opening::begin(env.clone(), paths.clone(), 1, options, Mode::Strict).unwrap();
    let opened = opening.finish(&[]).unwrap();
    let wal = &opened.wal;
    let mut acked = Vec::new();
    let mut synced = |seq, n| {
        put(wal, 0, seq, n, Level::Synced);
        acked.push((fs.ops_len(), seq + n - 1));
    };
    let len = |ordinal| {
        let file = env.fs.open(&paths.shard(0).join(wal_file::name(1, ordinal)), OpenMode::Read);
        file.unwrap().len().unwrap()
    };
    synced(1, 10);
    put(wal, 0, 11, 400, Level::Written);
    // It does not fit behind the one before, and no file can be prepared after its own.
    fs.set_free_space(Some(0));
    synced(411, 700);
    assert!(len(1) < size && len(1) > 16_000, "{}", len(1));
    try_put(&opened, 1111, true).unwrap();
    acked.push((fs.ops_len(), 1111));
    let (held, unused) = (wal.bytes_on_disk(), wal.unused());
    assert!(unused > 0);
    wal.truncate_unused();
    assert_eq!((wal.unused(), wal.bytes_on_disk()), (0, held - unused));
    assert!(len(2) < 2 * size);
    // What frees space has its place.
    try_put(&opened, 1112, true).unwrap();
    acked.push((fs.ops_len(), 1112));
    fs.set_free_space(None);
    assert!(!wal.full(0));
    put(wal, 0, 1113, 10, Level::Synced);
    let mut states = 0;
    fs.all_crash_states(11, &CrashOptions::default(), &mut |s| {
        if !s.after_ops.is_multiple_of(4) {
            return;
        }
        let (env, _) = mount(&s.image);
        let (kept, _opened) = open(&env, 1);
        let seqs: Vec<u64> = kept.iter().map(|k| k.1).collect();
        let head = seqs.last().copied().unwrap_or(0);
        assert_eq!(seqs, (1..=head).collect::<Vec<_>>(), "in order, no hole: {:?}", s.survival);
        let promised = acked.iter().rev().find(|a| a.0 <= s.after_ops).map_or(0, |a| a.1);
        assert!(head >= promised, "I1: {head} of {promised}, {:?}", s.survival);
        assert!([0, 10, 410, 1110, 1111, 1112, 1122].contains(&head), "I5: {head}");
        states += 1;
    });
    assert!(states > 30, "{states}");
}
