//! Shards that come, go, and are gone.

use super::*;
use crate::snapshot::ShardSnap;

#[test]
fn a_shard_that_is_gone_is_damage_without_a_snapshot_too() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 3);
    for shard in 0..3 {
        put(&opened.wal, shard, shard as u64 * 10 + 1, 2, Level::Synced);
    }
    drop(opened);
    drop(open(&env, 3));
    for shard in 0..3 {
        let mut image = fs.kill_image();
        assert!(image.remove(&format!("/db/wal/shard-{shard:02}")));
        let e = begin(&mount(&image).0, 3, Mode::Strict).err().unwrap();
        assert!(matches!(e, StorageError::Missing { .. }), "{e}");
    }
}

fn sorted(kept: &[(usize, u64)]) -> Vec<u64> {
    let mut seqs: Vec<u64> = kept.iter().map(|k| k.1).collect();
    seqs.sort_unstable();
    seqs
}

#[test]
fn a_layout_that_was_begun_in_part_is_finished() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 2);
    for shard in 0..2 {
        put(&opened.wal, shard, shard as u64 * 10 + 1, 2, Level::Synced);
    }
    drop(opened);
    for shards in [1, 4] {
        let (env, fs) = mount(&fs.kill_image());
        drop(open(&env, shards));
        fs.all_crash_states(5, &CrashOptions::default(), &mut |s| {
            let (env, _) = mount(&s.image);
            let want = [1, 2, 11, 12];
            let (kept, opened) = open(&env, 3);
            assert_eq!(sorted(&kept), want);
            for shard in 0..3 {
                put(&opened.wal, shard, shard as u64 * 10 + 21, 1, Level::Written);
            }
            drop(opened);
            let (kept, _) = open(&env, 2);
            assert_eq!(sorted(&kept), [1, 2, 11, 12, 21, 31, 41]);
        });
    }
}

fn shard_snap(shard: u32, lsn: u64) -> ShardSnap {
    ShardSnap { shard, layout: 1, replay_lsn: lsn, last_lsn: lsn, synced_lsn: lsn }
}

/// Snapshot `n` of a directory with one shard, and what it says about others.
fn snap(env: &Env, opened: &Opened, n: u64, retired: Vec<ShardSnap>) {
    let body = SnapshotBody {
        store_id: opened.store.id,
        generation: opened.generation,
        layout: opened.layout,
        shards: vec![shard_snap(0, opened.wal.positions(0).synced)],
        retired,
        ..Default::default()
    };
    let mut bytes = snapshot::EncodedSnapshot::of(&body).unwrap();
    snapshot::write(env, &Paths::new("/db"), n, &mut bytes, || Ok(())).unwrap();
}

/// A directory of one shard with another outside its layout.
fn outside() -> (Env, Arc<SimFs>, Opened) {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 2);
    for i in 0..4 {
        put(&opened.wal, 1, i * 2 + 1, 2, Level::Synced);
    }
    drop(opened);
    drop(open(&env, 1));
    let (_, opened) = open(&env, 1);
    (env, fs, opened)
}

#[test]
fn a_retired_folder_that_a_crash_brings_back_goes_again() {
    let (env, fs, opened) = outside();
    assert_eq!(opened.outside.len(), 1);
    let last = opened.outside[0].last_lsn;
    for n in [1, 2] {
        snap(&env, &opened, n, vec![shard_snap(1, last)]);
    }
    drop(opened);
    let (env, fs) = mount(&fs.kill_image());
    let (_, opened) = open(&env, 1);
    // Its last lsn stays known: a layout that has the shard again goes on above it.
    assert_eq!(opened.outside, [ShardSnap { layout: 1, ..shard_snap(1, last) }]);
    assert!(!env.fs.exists(Path::new("/db/wal/shard-01")).unwrap());
    for n in [3, 4] {
        snap(&env, &opened, n, opened.outside.clone());
    }
    drop(opened);
    let (mut n, mut back) = (0, 0);
    fs.all_crash_states(5, &CrashOptions::default(), &mut |s| {
        let shard = Path::new("/db/wal/shard-01");
        let (env, _) = mount(&s.image);
        back += usize::from(env.fs.exists(shard).unwrap());
        let report = verify(&env, &Paths::new("/db"), &mut |_| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}: {report:?}", s.survival);
        let opening = begin(&env, 1, Mode::Strict);
        drop(opening.unwrap_or_else(|e| panic!("{:?}: {e}", s.survival)));
        assert!(!env.fs.exists(shard).unwrap(), "{:?}", s.survival);
        n += 1;
    });
    assert!(n > 100 && back > 20, "{n} {back}");
}

#[test]
fn a_retired_shard_that_a_new_layout_has_again_is_not_retired_twice() {
    let (env, fs, opened) = outside();
    let last = opened.outside[0].last_lsn;
    for n in [1, 2] {
        snap(&env, &opened, n, vec![shard_snap(1, last)]);
    }
    drop(opened);
    let (env, fs) = mount(&fs.kill_image());
    let (_, opened) = open(&env, 2);
    put(&opened.wal, 1, 21, 1, Level::Synced);
    let synced = fs.ops_len();
    drop(opened);
    fs.all_crash_states(5, &CrashOptions::default(), &mut |s| {
        let (env, _) = mount(&s.image);
        if s.after_ops >= synced {
            let opening = Opening::inspect(env, Paths::new("/db"), 1, options(1)).unwrap();
            assert!(replayed(&opening).contains(&(1, 21)), "it is not looked at");
        }
        for shards in [1, 2] {
            let (env, _) = mount(&s.image);
            let opening = begin(&env, shards, Mode::Strict)
                .unwrap_or_else(|e| panic!("{:?}: {e}", s.survival));
            let kept = replayed(&opening);
            assert!(s.after_ops < synced || kept.contains(&(1, 21)), "I1: {kept:?}");
        }
    });
}

#[test]
fn a_retired_shard_that_is_not_reflected_must_be_there() {
    let (env, fs, opened) = outside();
    let last = opened.outside[0].last_lsn;
    let unfinished = ShardSnap { replay_lsn: last - 2, ..shard_snap(1, last) };
    snap(&env, &opened, 1, vec![unfinished]);
    drop(opened);
    let image = fs.kill_image();
    assert!(begin(&mount(&image).0, 1, Mode::Strict).is_ok());
    for gone in ["/db/wal/shard-01", "/db/wal/shard-01/CURRENT"] {
        let mut image = image.clone();
        assert!(image.remove(gone));
        let e = begin(&mount(&image).0, 1, Mode::Strict).err().unwrap();
        assert!(matches!(e, StorageError::Missing { .. }), "{gone}: {e}");
    }
}

#[test]
fn damage_in_a_shard_outside_the_layout_is_announced_too() {
    let (_, fs, opened) = outside();
    drop(opened);
    let image = fs.kill_image();
    let (name, bytes) = image
        .files()
        .into_iter()
        .find(|(n, b)| n.contains("shard-01") && b.windows(7).any(|w| w == b"value 3"))
        .unwrap();
    let at = bytes.windows(7).position(|w| w == b"value 3").unwrap();
    let mut bytes = bytes;
    bytes[at] ^= 1;
    let mut damaged = image.clone();
    damaged.put(&name, &bytes);
    let (env, _) = mount(&damaged);
    assert!(begin(&env, 1, Mode::Strict).is_err());
    let opening = begin(&env, 1, Mode::Salvage).unwrap();
    let lost: Vec<Loss> = opening.losses().cloned().collect();
    assert_eq!((lost.len(), lost[0].shard), (1, 1));
    let mut gap = Vec::new();
    let body = Gap { from: lost[0].from_lsn, to: lost[0].to_lsn, reason: 1 };
    body.encode_frame(&mut gap, 0, 0, 0);
    let kept = replayed(&opening);
    drop(opening.finish(&[(1, gap)]).unwrap());
    for _ in 0..2 {
        let (again, _) = open(&env, 1);
        assert_eq!(again, kept);
    }
}
