//! An open on a full disk.

use topics_env::sim::Survival;

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
