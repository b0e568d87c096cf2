//! Random runs: bytes that are reported durable survive every crash, other bytes do not, and the
//! same seed gives the same states.

use std::collections::BTreeMap;

use super::*;
use topics_env::Rng;

const PATHS: [&str; 6] = ["/a", "/b", "/d/a", "/d/b", "/d/e/a", "/c"];
const DIRS: [&str; 3] = ["/", "/d", "/d/e"];

/// Makes random calls; errors (a missing file, a full directory) are part of the run.
fn run(fs: &SimFs, seed: u64, steps: usize) {
    let rng = SimRng::new(seed);
    let below = |n: u64| rng.next_u64() % n;
    let pick = |list: &[&'static str]| p(list[below(list.len() as u64) as usize]);
    for _ in 0..steps {
        let path = pick(&PATHS);
        let open = || fs.open(path, OpenMode::Write);
        let _ = match below(12) {
            0 | 1 => fs.open(path, OpenMode::CreateNew).map(drop),
            2 => fs.open(path, OpenMode::Truncate).map(drop),
            3..=5 => open().and_then(|f| {
                let mut bytes = vec![0; 1 + below(1500) as usize];
                rng.fill(&mut bytes);
                bytes.iter_mut().for_each(|b| *b |= 1);
                f.write_all_at(&bytes, below(3000))
            }),
            6 => open().and_then(|f| {
                let len = below(4000);
                if f.len()? == len { Ok(()) } else { f.set_len(len) }
            }),
            7 => open().and_then(|f| f.sync_data()),
            8 => fs.sync_dir(pick(&DIRS)),
            9 => fs.rename(path, pick(&PATHS)),
            10 => fs.remove_file(path),
            _ => match below(10) {
                0 => fs.sync_fs(p("/")),
                8 | 9 => fs.hard_link(path, pick(&PATHS)),
                1 | 2 => fs.remove_dir(pick(&DIRS[1..])),
                _ => fs.create_dir(pick(&DIRS[1..])),
            },
        };
    }
}

fn seen(fs: &SimFs) -> BTreeMap<String, Vec<u8>> {
    fs.kill_image().files().into_iter().collect()
}

#[test]
fn durable_bytes_survive_every_crash() {
    let (mut kept, mut not_kept) = (0, 0);
    for seed in 0..300 {
        let (_, fs, _) = sim_env(seed);
        run(&fs, seed, 40);
        let states = end_states(&fs, &CrashOptions::default());
        for (path, bytes) in seen(&fs) {
            let survives =
                |s: &CrashState| s.image.read(&path).is_some_and(|b| b.starts_with(&bytes));
            let durable = fs.is_durable(p(&path), 0, bytes.len() as u64);
            let always = states.iter().all(survives);
            assert!(always || !durable, "{path} is lost, seed {seed}");
            // Empty or zero content can match by chance.
            let is_distinguishable = bytes.iter().any(|&b| b != 0);
            assert!(durable || !always || !is_distinguishable, "{path} is never lost, seed {seed}");
            if durable { kept += 1 } else { not_kept += 1 }
        }
    }
    assert!(kept > 50 && not_kept > 50, "{kept} {not_kept}");
}

#[test]
fn keeping_all_gives_what_the_process_saw() {
    for seed in 0..300 {
        let (_, fs, _) = sim_env(seed);
        run(&fs, seed, 60);

        let kept = end_image(&fs, Survival::KeepAll);
        assert_eq!(kept.hash(), fs.kill_image().hash(), "seed {seed}");
        assert_eq!(kept.files().into_iter().collect::<BTreeMap<_, _>>(), seen(&fs), "seed {seed}");
        fs.sync_fs(p("/")).unwrap();
        assert_eq!(end_image(&fs, Survival::DropAll).hash(), kept.hash(), "seed {seed}");
    }
}

#[test]
fn a_space_budget_never_drifts() {
    for seed in 0..50 {
        let (_, fs, _) = sim_env(seed);
        fs.set_free_space(Some(1 << 20));
        run(&fs, seed, 200);
        for path in PATHS {
            let _ = fs.remove_file(p(path));
        }
        assert_eq!(fs.free_space(p("/")).unwrap(), 1 << 20, "seed {seed}");
    }
}

/// A second run on a crash image crashes like any other.
#[test]
fn same_seed_same_states_in_the_same_order() {
    let states = |seed: u64| -> Vec<(usize, String, u64, bool)> {
        let (_, fs, _) = sim_env(seed);
        run(&fs, seed, 150);
        let next = SimFs::from_image(&end_image(&fs, Survival::Sectors { seed }));
        run(&next, seed + 1, 100);
        let mut out = Vec::new();
        for fs in [&*fs, &next] {
            fs.all_crash_states(seed, &CrashOptions::default(), &mut |s| {
                let survival = format!("{:?}", s.survival);
                out.push((s.after_ops, survival, s.image.hash(), s.image.lost_something()));
            });
        }
        out
    };
    for seed in [1, 2, 3] {
        let first = states(seed);
        assert!(first.len() > 100 && first.iter().any(|s| s.3));
        assert_eq!(first, states(seed));
    }
    assert_ne!(states(1), states(2));
}

/// A cursor and `crash_states` agree at a crash point, and a survival can be reproduced alone.
#[test]
fn a_state_is_reproducible() {
    let (_, fs, _) = sim_env(4);
    run(&fs, 4, 150);
    let mut n = 0;
    fs.all_crash_states(9, &CrashOptions::default(), &mut |state| {
        n += 1;
        let mut cursor = fs.crash_cursor();
        cursor.seek(state.after_ops);
        let again = cursor.image(state.survival);
        assert_eq!(again.hash(), state.image.hash());
        assert_eq!(again.lost_something(), state.image.lost_something());
    });
    assert!(n > 100);
}
