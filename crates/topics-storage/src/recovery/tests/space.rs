//! An open on a full disk.

use topics_env::sim::{CallKind, FaultKind, PageFate, Survival};

use super::*;

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
