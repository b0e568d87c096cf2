//! Each survival loses exactly the calls that it names.

use std::collections::BTreeSet;

use super::*;

const NEW: u8 = b'N';
const OLD: u8 = b'o';

/// 1000 durable bytes, then an un-synced write of 2000 from byte 600 to 2600.
fn grown() -> Arc<SimFs> {
    let (_, fs, _) = sim_env(1);
    let file = durable(&fs, "/f", &[OLD; 1000]);
    file.write_all_at(&[NEW; 2000], 600).unwrap();
    fs
}

/// Length-prefixed runs: `[(byte, count)]`.
fn runs(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

#[test]
fn survivals_of_a_growing_write() {
    let fs = grown();
    let torn = |cut, full_length| Survival::Torn { cut, rest: true, full_length };
    let table = [
        (Survival::DropAll, vec![(OLD, 1000)], true),
        (Survival::KeepAll, vec![(OLD, 600), (NEW, 2000)], false),
        (Survival::SizeBeforeData, vec![(OLD, 1000), (0, 1600)], true),
        (Survival::DataBeforeSize, vec![(OLD, 600), (NEW, 400)], true),
        (torn(0, false), vec![(OLD, 1000)], true),
        (torn(0, true), vec![(OLD, 1000), (0, 1600)], true),
        (torn(424, false), vec![(OLD, 600), (NEW, 424)], true),
        (torn(7, true), vec![(OLD, 600), (NEW, 7), (OLD, 393), (0, 1600)], true),
        (torn(1999, false), vec![(OLD, 600), (NEW, 1999)], true),
    ];
    for (survival, expected, lost) in table {
        let image = end_image(&fs, survival);
        assert_eq!(runs(&image.read("/f").unwrap()), expected, "{survival:?}");
        assert_eq!(image.lost_something(), lost, "{survival:?}");
        assert_eq!(contents(&SimFs::from_image(&image), "/f"), image.read("/f").unwrap());
    }
}

#[test]
fn a_torn_write_is_cut_at_every_sector_and_at_some_bytes() {
    let fs = grown();
    let options = CrashOptions { torn_bytes: 3, ..CrashOptions::default() };
    let mut cursor = fs.crash_cursor();
    cursor.seek(usize::MAX);
    let cuts: BTreeSet<usize> = cursor
        .survivals(3, &options)
        .into_iter()
        .filter_map(|s| if let Survival::Torn { cut, .. } = s { Some(cut) } else { None })
        .collect();
    for sector in [1024, 1536, 2048, 2560] {
        assert!(cuts.contains(&(sector - 600)), "{cuts:?}");
    }
    assert!(cuts.contains(&0) && cuts.len() >= 7, "{cuts:?}");
    assert!(cuts.iter().all(|&c| c < 2000));
}

/// Random blocks are whole blocks; nothing outside the write changes.
#[test]
fn random_sectors_and_pages() {
    let (_, fs, _) = sim_env(1);
    let file = durable(&fs, "/f", &[OLD; 40_000]);
    file.write_all_at(&[NEW; 30_000], 5_000).unwrap();
    let options = CrashOptions { random: 40, ..CrashOptions::default() };
    let mut seen = [BTreeSet::new(), BTreeSet::new()];
    for state in end_states(&fs, &options) {
        let (block, seen) = match state.survival {
            Survival::Sectors { .. } => (512, &mut seen[0]),
            Survival::Pages { .. } => (4096, &mut seen[1]),
            _ => continue,
        };
        let bytes = state.image.read("/f").unwrap();
        assert_eq!(bytes.len(), 40_000);
        assert!(bytes[..5_000].iter().chain(&bytes[35_000..]).all(|&b| b == OLD));
        let mut at = 5_000;
        while at < 35_000 {
            let end = ((at / block + 1) * block).min(35_000);
            assert!(bytes[at..end].iter().all(|&b| b == bytes[at]), "block at {at}");
            seen.insert((at, bytes[at]));
            at = end;
        }
    }
    let blocks = |block: usize| 35_000_usize.div_ceil(block) - 5_000 / block;
    assert_eq!(
        seen[0].len(),
        2 * blocks(512),
        "each sector survived in some state and was lost in another"
    );
    assert_eq!(
        seen[1].len(),
        2 * blocks(4096),
        "each page survived in some state and was lost in another"
    );
}

#[test]
fn prefixes_and_single_calls() {
    let (_, fs, _) = sim_env(1);
    let file = durable(&fs, "/f", b"___");
    for (i, letter) in [b"a", b"b", b"c"].into_iter().enumerate() {
        file.write_all_at(letter, i as u64).unwrap();
    }
    let states = end_states(&fs, &CrashOptions::default());
    let found: BTreeSet<Vec<u8>> = states.iter().map(|s| s.image.read("/f").unwrap()).collect();
    for text in ["___", "a__", "ab_", "abc", "_b_", "__c", "_bc", "a_c"] {
        assert!(found.contains(text.as_bytes()), "{text}");
    }
    let hashes: BTreeSet<u64> = states.iter().map(|s| s.image.hash()).collect();
    assert_eq!(hashes.len(), states.len(), "distinct");
    file.sync_data().unwrap();
    let after = end_states(&fs, &CrashOptions::default());
    assert_eq!(after.len(), 1);
    assert_eq!(after[0].image.read("/f").unwrap(), b"abc");
    assert!(!after[0].image.lost_something());
}

#[test]
fn truncation_and_allocation() {
    let (_, fs, _) = sim_env(1);
    let file = durable(&fs, "/f", &[OLD; 600]);
    file.set_len(100).unwrap();
    assert_eq!(end_image(&fs, Survival::DropAll).read("/f").unwrap().len(), 600);
    assert_eq!(end_image(&fs, Survival::DataBeforeSize).read("/f").unwrap().len(), 600);
    assert_eq!(end_image(&fs, Survival::SizeBeforeData).read("/f").unwrap(), [OLD; 100]);
    file.sync_data().unwrap();
    file.allocate(5_000).unwrap();
    file.write_all_at(&[NEW; 10], 300).unwrap();
    assert_eq!(end_image(&fs, Survival::DropAll).read("/f").unwrap(), [OLD; 100]);
    let kept = end_image(&fs, Survival::KeepAll).read("/f").unwrap();
    assert_eq!(runs(&kept), [(OLD, 100), (0, 200), (NEW, 10), (0, 4_690)]);
    let only_write = end_image(&fs, Survival::Only(1)).read("/f").unwrap();
    assert_eq!(runs(&only_write), [(OLD, 100), (0, 200), (NEW, 10)]);
}

#[test]
fn a_synced_file_has_no_name_until_its_directory_is_synced() {
    let (_, fs, _) = sim_env(1);
    create(&fs, "/a", b"1").sync_data().unwrap();
    create(&fs, "/b", b"2").sync_data().unwrap();
    let found = |fs: &SimFs| -> BTreeSet<Vec<String>> {
        end_states(fs, &CrashOptions::default()).iter().map(|s| names(&s.image)).collect()
    };
    let subset = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    let all = [subset(&[]), subset(&["/a"]), subset(&["/b"]), subset(&["/a", "/b"])];
    assert_eq!(found(&fs), all.clone().into());
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(found(&fs), [all[3].clone()].into());
    fs.remove_file(p("/a")).unwrap();
    assert_eq!(found(&fs), [all[2].clone(), all[3].clone()].into());
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(found(&fs), [all[2].clone()].into());
}

#[test]
fn a_directory_needs_its_parent_synced() {
    let (_, fs, _) = sim_env(1);
    fs.create_dir(p("/d")).unwrap();
    durable(&fs, "/d/f", b"1");
    assert!(!fs.is_durable(p("/d/f"), 0, 1));
    assert!(names(&end_image(&fs, Survival::DropAll)).is_empty());
    fs.sync_dir(p("/")).unwrap();
    assert!(fs.is_durable(p("/d/f"), 0, 1));
    assert_eq!(names(&end_image(&fs, Survival::DropAll)), ["/d/f"]);
    assert_eq!(end_image(&fs, Survival::DropAll).dirs(), ["/d"]);
}

#[test]
fn a_rename_is_atomic() {
    let (_, fs, _) = sim_env(1);
    durable(&fs, "/f", b"old");
    create(&fs, "/tmp", b"new").sync_data().unwrap();
    fs.rename(p("/tmp"), p("/f")).unwrap();
    let states = end_states(&fs, &CrashOptions::default());
    let found: BTreeSet<_> = states.iter().map(|s| s.image.files()).collect();
    let file = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
    let expected = [
        vec![file("/f", "old")],
        vec![file("/f", "old"), file("/tmp", "new")],
        vec![file("/f", "new")],
    ];
    assert_eq!(found, expected.into());
    fs.sync_dir(p("/")).unwrap();
    assert_eq!(end_image(&fs, Survival::DropAll).files(), [file("/f", "new")]);
}

/// The classic mistake: the name survives, the bytes do not.
#[test]
fn a_rename_may_survive_without_the_bytes() {
    let (_, fs, _) = sim_env(1);
    durable(&fs, "/f", b"old");
    create(&fs, "/tmp", b"new");
    fs.rename(p("/tmp"), p("/f")).unwrap();
    let states = end_states(&fs, &CrashOptions::default());
    let found: BTreeSet<_> = states.iter().map(|s| s.image.read("/f").unwrap()).collect();
    for bytes in [&b"old"[..], b"new", b"", b"\0\0\0"] {
        assert!(found.contains(bytes), "{bytes:?}");
    }
    assert_eq!(fs.violations().len(), 1);
}

#[test]
fn a_rename_between_directories() {
    let (_, fs, _) = sim_env(1);
    fs.create_dir(p("/a")).unwrap();
    fs.create_dir(p("/b")).unwrap();
    fs.sync_fs(p("/")).unwrap();
    create(&fs, "/a/f", b"1").sync_data().unwrap();
    fs.rename(p("/a/f"), p("/b/g")).unwrap();
    fs.sync_dir(p("/b")).unwrap();
    for state in end_states(&fs, &CrashOptions::default()) {
        assert_eq!(names(&state.image), ["/b/g"], "{:?}", state.survival);
    }
}

#[test]
fn names_beyond_the_exhaustive_bound() {
    let (_, fs, _) = sim_env(1);
    for i in 0..9 {
        create(&fs, &format!("/{i}"), b"x").sync_data().unwrap();
    }
    let options = CrashOptions { random: 20, ..CrashOptions::default() };
    let states = end_states(&fs, &options);
    let counts: BTreeSet<usize> = states.iter().map(|s| names(&s.image).len()).collect();
    assert!([0, 1, 3, 4, 5, 8, 9].iter().all(|n| counts.contains(n)), "{counts:?}");
}

#[test]
fn a_kill_keeps_everything_and_a_later_power_cut_does_not() {
    let fs = grown();
    let killed = fs.kill_image();
    assert!(!killed.lost_something());
    let next = SimFs::from_image(&killed);
    assert_eq!(runs(&contents(&next, "/f")), [(OLD, 600), (NEW, 2000)]);
    assert_eq!(next.boot_id().unwrap(), fs.boot_id().unwrap());
    assert_eq!(next.mount_id(p("/")).unwrap(), fs.mount_id(p("/")).unwrap());
    assert!(!next.is_durable(p("/f"), 0, 2600));
    let cut = end_image(&next, Survival::DropAll);
    assert_eq!(runs(&cut.read("/f").unwrap()), [(OLD, 1000)]);
    let after_cut = SimFs::from_image(&cut);
    assert_ne!(after_cut.boot_id().unwrap(), fs.boot_id().unwrap());
    assert_ne!(after_cut.mount_id(p("/")).unwrap(), fs.mount_id(p("/")).unwrap());
    let remounted = SimFs::from_image(&killed.with_mount(9));
    assert_eq!(remounted.boot_id().unwrap(), fs.boot_id().unwrap());
    assert_eq!(remounted.mount_id(p("/")).unwrap(), 9);
    assert!(remounted.is_durable(p("/f"), 0, 2600));
}

#[test]
fn a_failed_write_back_drops_pages_on_the_same_boot_and_is_reported_once() {
    let fs = grown();
    durable(&fs, "/whole", &[OLD; 10]);
    let image = fs.failed_write_back_image(0).unwrap();
    assert!(image.failed_write_back() && image.lost_something());
    assert_eq!(image.boot(), fs.kill_image().boot());
    let next = SimFs::from_image(&image);
    assert_eq!(runs(&contents(&next, "/f")), [(OLD, 1000), (0, 1600)], "the length stays");
    let open = |path| next.open(p(path), OpenMode::Read).unwrap();
    open("/whole").sync_data().unwrap();
    let file = open("/f");
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(5));
    file.sync_data().unwrap();
    assert!(next.sync_fs(p("/")).is_err() && next.sync_fs(p("/")).is_ok());
    assert_eq!(runs(&contents(&next, "/f")), [(OLD, 1000), (0, 1600)]);
    // A remount drops the pages and their error.
    let remounted = SimFs::from_image(&image.clone().with_mount(9));
    remounted.open(p("/f"), OpenMode::Read).unwrap().sync_data().unwrap();
    assert_eq!(runs(&contents(&remounted, "/f")), [(OLD, 1000), (0, 1600)]);
    assert!(next.failed_write_back_image(0).is_none(), "all pages are clean");
}

#[test]
fn a_failed_write_back_drops_whole_pages() {
    let (_, fs, _) = sim_env(1);
    let file = durable(&fs, "/f", &[OLD; 100]);
    for at in [100, 5000, 9000] {
        file.write_all_at(&[NEW; 4000], at).unwrap();
    }
    let mut cursor = fs.crash_cursor();
    cursor.seek(usize::MAX);
    let mut met = BTreeSet::new();
    for seed in 1..40 {
        let image = cursor.image(Survival::FailedWriteBack { seed });
        let bytes = image.read("/f").unwrap();
        assert_eq!((bytes.len(), &bytes[..100]), (13_000, &[OLD; 100][..]));
        let there = |page: usize| bytes[page * 4096..].iter().take(4096).any(|b| *b == NEW);
        met.insert([0, 1, 2, 3].map(there));
        if !there(1) {
            // The end of the first write and the start of the second.
            assert!(bytes[4096..8192].iter().all(|b| *b == 0));
        }
    }
    assert!(met.len() > 10, "{met:?}");
}

#[test]
fn images_are_edited_for_damage() {
    let fs = grown();
    fs.create_dir(p("/d")).unwrap();
    let mut image = fs.kill_image();
    let before = image.hash();
    assert!(image.put("/f", b"flip") && image.put("/d/new", b"1") && !image.put("/no/f", b""));
    assert_ne!(image.hash(), before);
    assert!(SimFs::from_image(&image).is_durable(p("/d/new"), 0, 1));
    assert!(image.remove("/d/new") && !image.remove("/d/new"));
    assert_eq!(names(&image), ["/f"]);
    assert_eq!(contents(&fs, "/f").len(), 2600, "the original run is unchanged");
    let zeros = |n| {
        let (_, fs, _) = sim_env(1);
        let file = create(&fs, "/z", b"");
        if n {
            file.write_all_at(&[0; 5000], 0).unwrap()
        } else {
            file.set_len(5000).unwrap()
        }
        fs.kill_image().hash()
    };
    assert_eq!(zeros(true), zeros(false), "zeros written and zeros implied are the same bytes");
}

#[test]
fn large_offsets_are_sparse() {
    let (_, fs, _) = sim_env(1);
    let file = create(&fs, "/f", b"");
    file.write_all_at(b"far", (6 << 30) - 1).unwrap();
    let mut buf = [9; 5];
    file.read_exact_at(&mut buf, (6 << 30) - 3).unwrap();
    assert_eq!(&buf, b"\0\0far");
    assert!(end_states(&fs, &CrashOptions::default()).len() > 3);
}
