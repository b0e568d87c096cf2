//! The lock of a directory whose lock file is removed or replaced while an engine has it open.

use super::*;
use crate::types::error::Error;

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn remove_lock_file(w: &World) {
    w.env().fs.remove_file(&path(".topics.lock")).unwrap();
}

/// A second engine on the same directory, while the first is open.
fn second_open(w: &World) -> Error {
    Engine::open(w.env(), Path::new(DIR), w.options.clone()).unwrap_err()
}

#[test]
fn no_second_engine_opens_where_the_lock_file_was_removed() {
    let mut w = World::new();
    w.put("t", &["1"]);
    remove_lock_file(&w);
    for _ in 0..2 {
        let e = second_open(&w);
        assert!(matches!(e, Error::Locked { pid: 0, .. }), "{e}");
        assert!(e.to_string().contains("end that process first"), "{e}");
    }
    // The one that has it open ends, and the directory is free.
    w.engine().close().unwrap_err();
    w.open();
    assert_eq!(w.engine().state("t", false).unwrap().head_seq, 1);
}

#[test]
fn nothing_is_acked_after_the_lock_is_lost() {
    for replaced in [false, true] {
        for class_ in [Durability::Disk, Durability::Fsync] {
            let mut w = World::new();
            w.create("t", class(class_));
            w.put("t", &["1"]);
            w.engine().sync().unwrap();
            remove_lock_file(&w);
            if replaced {
                second_open(&w);
            }
            // A sync is where it is noticed: the timer of a running engine does one every 50 ms.
            let outcome = match class_ {
                Durability::Disk => w.try_put("t", &["2"]).and_then(|_| w.engine().sync()),
                _ => w.try_put("t", &["2"]).map(drop),
            };
            let e = outcome.unwrap_err();
            assert!(matches!(e, Error::StorageUnavailable { reason: "lock_lost", .. }), "{e}");
            for _ in 0..2 {
                let e = w.try_put("t", &["3"]).unwrap_err();
                assert!(matches!(e, Error::StorageUnavailable { reason: "lock_lost", .. }), "{e}");
            }
            let e = w.engine().checkpoint().unwrap_err();
            assert!(matches!(e, Error::StorageUnavailable { reason: "lock_lost", .. }), "{e}");
            // Reads still work, and a later open finds every record that was acked before.
            assert!(w.engine().state("t", false).unwrap().head_seq >= 1);
            w.engine().close().unwrap_err();
            w.open();
            assert!(w.engine().state("t", false).unwrap().head_seq >= 1, "I1");
        }
    }
}

#[test]
fn a_directory_that_takes_the_place_of_an_open_one_is_left_alone() {
    let w = World::new();
    w.put("t", &["1"]);
    let fs = w.env().fs;
    fs.rename(Path::new(DIR), Path::new("/moved")).unwrap();
    let other = Engine::open(w.env(), Path::new(DIR), w.options.clone()).unwrap();
    let e = w.engine().sync().unwrap_err();
    assert!(matches!(e, Error::StorageUnavailable { reason: "lock_lost", .. }), "{e}");
    w.engine().checkpoint().unwrap_err();
    w.engine().close().unwrap_err();
    assert!(other.list("", None, 10).is_empty());
    other.close().unwrap();
    let report = crate::engine::verify::verify(&w.env(), Path::new(DIR), &mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}
