//! Files that are lost whole: `strict` refuses and names one, `salvage` opens, says what was lost and
//! keeps what was there, and from then on `strict` opens and `verify` finds nothing.

use super::*;
use crate::format::wal_file::WAL_HEADER;
use crate::snapshot::ShardSnap;

/// Two shards with three batches each behind the snapshots, of which the newest reflects two; then the
/// next process, so that each shard has files of two generations.
fn directory() -> DiskImage {
    let (env, fs, _) = sim_env(7);
    for n in 1..=2 {
        let (_, opened) = open(&env, 2);
        for shard in 0..2 {
            put(&opened.wal, shard, n * 100 + shard as u64 * 10 + 1, 2, Level::Synced);
        }
        snap(&env, &opened, n);
        for shard in 0..2 {
            put(&opened.wal, shard, n * 100 + shard as u64 * 10 + 3, 2, Level::Synced);
        }
    }
    fs.kill_image()
}

/// Snapshot `n`, which reflects all that is synced.
fn snap(env: &Env, opened: &Opened, n: u64) {
    let shard = |shard: u32| {
        let lsn = opened.wal.positions(shard as usize).synced;
        let layout = opened.layout;
        ShardSnap { shard, layout, replay_lsn: lsn, last_lsn: lsn, synced_lsn: lsn }
    };
    let body = SnapshotBody {
        store_id: opened.store.id,
        generation: opened.generation,
        layout: opened.layout,
        shards: vec![shard(0), shard(1)],
        ..Default::default()
    };
    let mut bytes = snapshot::EncodedSnapshot::of(&body).unwrap();
    snapshot::write(env, &Paths::new("/db"), n, &mut bytes, || Ok(())).unwrap();
}

fn store_id(image: &DiskImage) -> [u8; 16] {
    Store::read(&mount(image).0, &Paths::new("/db")).unwrap().unwrap().id
}

fn gap(loss: &Loss) -> (u32, Vec<u8>) {
    let mut bytes = Vec::new();
    Gap { from: loss.from_lsn, to: loss.to_lsn, reason: 1 }.encode_frame(&mut bytes, 0, 0, 0);
    (loss.shard, bytes)
}

fn problems(env: &Env) -> Vec<Problem> {
    verify(env, &Paths::new("/db"), &mut |_| {}).unwrap().problems
}

/// What came of an open with `salvage`.
struct Salvaged {
    env: Env,
    fs: Arc<SimFs>,
    seqs: Vec<u64>,
    losses: Vec<Loss>,
}

/// `strict` refuses, a look changes nothing, `salvage` opens; then `strict` opens too, without and with
/// a crash before the next snapshot, and the lsns go on above those lost.
fn salvage(image: &DiskImage, named: &str) -> Salvaged {
    let (env, fs) = mount(image);
    let refused = begin(&env, 2, Mode::Strict).err().expect(named).to_string();
    assert!(refused.contains(named), "{named}: {refused}");
    assert!(!problems(&env).is_empty(), "verify finds nothing: {named}");
    let names = |fs: &SimFs| {
        let all = fs.kill_image().files().into_iter().map(|f| f.0);
        all.filter(|n| !n.ends_with(".topics.lock")).collect::<Vec<_>>()
    };
    let before = names(&fs);
    let opening = Opening::inspect(env.clone(), Paths::new("/db"), 1, options(2)).unwrap();
    let planned: Vec<Loss> = opening.losses().cloned().collect();
    drop(opening);
    assert_eq!(names(&fs), before, "a look changes nothing");

    let opening = begin(&env, 2, Mode::Salvage).unwrap();
    let losses: Vec<Loss> = opening.losses().cloned().collect();
    assert_eq!(losses, planned, "the plan is what is done");
    let kept = replayed(&opening);
    let gaps: Vec<_> = losses.iter().map(gap).collect();
    let opened = opening.finish(&gaps).unwrap();
    for loss in &losses {
        let now = opened.wal.positions(loss.shard as usize).synced;
        assert!(now > loss.to_lsn, "no lsn is given twice: {now}, {loss:?}");
    }
    assert_eq!(opened.store.id, store_id(&directory()));
    drop(opened);
    let seqs = sorted(&kept);
    let again = begin(&env, 2, Mode::Strict).unwrap();
    assert!(again.losses().all(|l| l.announced), "strict passes over what was given up");
    assert_eq!(sorted(&replayed(&again)), seqs);
    drop(again);
    assert_eq!(problems(&env), [], "{named}");
    Salvaged { env, fs, seqs, losses }
}

fn sorted(kept: &[(usize, u64)]) -> Vec<u64> {
    let mut seqs: Vec<u64> = kept.iter().map(|k| k.1).collect();
    seqs.sort_unstable();
    seqs
}

/// Every file of the log with its bytes.
fn logs(image: &DiskImage, shard: u32) -> Vec<(String, Vec<u8>)> {
    let folder = format!("/shard-{shard:02}/wal-");
    image.files().into_iter().filter(|f| f.0.contains(&folder)).collect()
}

#[test]
fn a_lost_or_damaged_store_is_made_again() {
    let image = directory();
    let path = "/db/meta/STORE";
    let bytes = image.read(path).unwrap();
    let flipped: Vec<u8> = bytes.iter().map(|b| b ^ 1).collect();
    let mut other = bytes.clone();
    other[8] ^= 1;
    let sum = xxhash_rust::xxh3::xxh3_64(&other[..24]).to_le_bytes();
    other[24..].copy_from_slice(&sum);
    for content in [None, Some(&[][..]), Some(&bytes[..20]), Some(&flipped), Some(&other)] {
        let mut damaged = image.clone();
        match content {
            Some(bytes) => assert!(damaged.put(path, bytes)),
            None => assert!(damaged.remove(path)),
        }
        let named = if content == Some(&other) { "another file" } else { "STORE" };
        let after = salvage(&damaged, named);
        assert_eq!(after.losses, []);
        assert_eq!(after.seqs, [203, 204, 213, 214]);
        let kept = after.fs.kill_image().read("/db/damaged/meta.STORE.0");
        assert_eq!(kept.as_deref(), content.filter(|c| !c.is_empty()), "the old bytes are kept");
    }
}

#[test]
fn a_store_is_made_again_from_a_log_where_there_is_no_snapshot() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 2);
    put(&opened.wal, 1, 1, 2, Level::Synced);
    let id = opened.store.id;
    drop(opened);
    let mut image = fs.kill_image();
    assert!(image.remove("/db/meta/STORE"));
    let (env, _) = mount(&image);
    assert!(begin(&env, 2, Mode::Strict).is_err());
    let opening = begin(&env, 2, Mode::Salvage).unwrap();
    assert_eq!((opening.store().id, replayed(&opening).len()), (id, 2));
}

/// Zeros everything behind the headers of a shard's log files.
fn without_frames(image: &mut DiskImage, shard: u32) {
    for (name, mut bytes) in logs(image, shard) {
        bytes[WAL_HEADER..].fill(0);
        assert!(image.put(&name, &bytes));
    }
}

/// No snapshot says what the log held, so that its loss cannot be told from an empty log.
#[test]
fn a_log_without_frames_is_refused_where_no_snapshot_knows_its_shard() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    put(&opened.wal, 0, 1, 2, Level::Synced);
    drop(opened);
    let mut image = fs.kill_image();
    without_frames(&mut image, 0);
    assert_eq!(problems(&mount(&image).0).len(), 1);
    for mode in [Mode::Strict, Mode::Salvage] {
        let refused = begin(&mount(&image).0, 1, mode).err().unwrap().to_string();
        assert!(refused.contains("begins with a Start frame"), "{refused}");
    }
}

/// The name in the refusal, and the damage.
type Case<'a> = (&'a str, &'a dyn Fn(&mut DiskImage));

#[test]
fn a_folder_or_a_log_that_is_gone_is_given_up_to_an_unknown_end() {
    let image = directory();
    let newest = logs(&image, 1).pop().unwrap();
    let in_use = logs(&image, 1).into_iter().rev().nth(1).unwrap();
    let current = "/db/wal/shard-01/CURRENT";
    let emptied = |image: &mut DiskImage, of: &str| {
        let all: Vec<String> = image.files().into_iter().map(|f| f.0).collect();
        all.iter().filter(|n| n.contains(of)).for_each(|n| assert!(image.remove(n)));
    };
    let of_one: [Case<'_>; 7] = [
        ("begins with a Start frame", &|i| without_frames(i, 1)),
        ("CURRENT", &|i| emptied(i, "/wal/shard-01/")),
        ("wal/shard-01", &|i| assert!(i.remove("/db/wal/shard-01"))),
        (&newest.0[4..], &|i| assert!(i.remove(&newest.0))),
        (&newest.0[4..], &|i| assert!(i.put(&newest.0, &[]))),
        (&newest.0[4..], &|i| assert!(i.put(&newest.0, &in_use.1))),
        ("CURRENT", &|i| {
            emptied(i, "/wal/shard-01/wal-");
            assert!(i.put(current, b"garbage"));
        }),
    ];
    for (named, damage) in of_one {
        let mut damaged = image.clone();
        damage(&mut damaged);
        let after = salvage(&damaged, named);
        let one: Vec<u32> = after.losses.iter().map(|l| l.shard).collect();
        assert_eq!(one, [1], "{named}");
        let other = after.seqs.iter().filter(|s| *s % 100 < 10);
        assert_eq!(other.copied().collect::<Vec<_>>(), [203, 204], "{named}");
        let now = after.fs.kill_image();
        if damaged.read(current).as_deref() == Some(b"garbage") {
            let kept = now.read("/db/damaged/wal.shard-01.CURRENT.0");
            assert_eq!(kept.as_deref(), Some(&b"garbage"[..]));
        }
        let unreadable = damaged.read(&newest.0).filter(|b| !b.is_empty() && *b != newest.1);
        if let Some(bytes) = unreadable {
            let kept = now.read(&format!("/db/damaged/{}.0", newest.0[4..].replace('/', ".")));
            assert!(bytes.starts_with(&kept.unwrap()), "{named}");
        }
    }
    for (named, whole) in [("wal", false), ("wal", true)] {
        let mut damaged = image.clone();
        match whole {
            false => emptied(&mut damaged, "/db/wal/"),
            true => ["/db/wal/shard-00", "/db/wal/shard-01"].iter().for_each(|d| {
                assert!(damaged.remove(d));
            }),
        }
        let after = salvage(&damaged, named);
        assert_eq!(after.losses.iter().map(|l| l.shard).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(after.seqs, [0; 0]);
        let reads = |f: &(String, Vec<u8>)| f.0.contains("/wal/");
        assert!(after.fs.kill_image().files().iter().any(reads));
        // The files of segments that a lost generation wrote keep their numbers.
        let generation = begin(&after.env, 2, Mode::Strict).unwrap().generation();
        assert!(generation > 3, "{generation}");
    }
}

#[test]
fn a_file_in_the_middle_is_given_up_exactly() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 2);
    snap(&env, &opened, 1);
    for i in 0..120 {
        put(&opened.wal, 0, i * 3 + 1, 3, Level::Synced);
    }
    drop(opened);
    let image = fs.kill_image();
    let files = logs(&image, 0);
    assert!(files.len() > 4, "{}", files.len());
    let middle = &files[files.len() / 2].0;
    let other = &files[files.len() / 2 + 1].1;
    for content in [None, Some(&[][..]), Some(&other[..])] {
        let mut damaged = image.clone();
        match content {
            Some(bytes) => assert!(damaged.put(middle, bytes)),
            None => assert!(damaged.remove(middle)),
        }
        let (env, _) = mount(&damaged);
        let opening = begin(&env, 2, Mode::Salvage).unwrap();
        let lost: u64 = opening.losses().map(|l| l.to_lsn + 1 - l.from_lsn).sum();
        let kept = replayed(&opening).len() as u64;
        assert!((240..360).contains(&kept), "{kept}");
        assert!((360 - kept..180).contains(&lost), "the range is exact: {kept} kept, {lost} lsns");
    }
}

#[test]
fn without_a_snapshot_and_a_log_nothing_is_served() {
    let image = directory();
    let mut damaged = image.clone();
    for (name, _) in image.files() {
        if name.contains("snapshot.") {
            assert!(damaged.put(&name, b"garbage"));
        } else if name.contains("/wal/") {
            assert!(damaged.remove(&name));
        }
    }
    for mode in [Mode::Strict, Mode::Salvage] {
        let e = begin(&mount(&damaged).0, 2, mode).err().unwrap().to_string();
        assert!(e.contains("restore a backup") && e.contains("snapshot.2.bin"), "{e}");
    }
}

#[test]
fn snapshots_in_each_others_place_get_their_names_back() {
    let image = directory();
    let (one, two) = ("/db/meta/snapshot.1.bin", "/db/meta/snapshot.2.bin");
    let mut damaged = image.clone();
    assert!(damaged.put(one, &image.read(two).unwrap()));
    assert!(damaged.put(two, &image.read(one).unwrap()));
    let (env, fs) = mount(&damaged);
    assert!(!problems(&env).is_empty());
    let opening = Opening::inspect(env.clone(), Paths::new("/db"), 1, options(2)).unwrap();
    assert_eq!(opening.snapshots().newest.as_ref().unwrap().0, 2);
    drop(opening);
    assert_eq!(fs.kill_image().read(one), damaged.read(one), "a look changes nothing");
    let opening = begin(&env, 2, Mode::Salvage).unwrap();
    assert_eq!(opening.snapshots().newest.as_ref().unwrap().0, 2);
    drop(opening.finish(&[]).unwrap());
    assert_eq!(fs.kill_image().read(two), image.read(two));
    assert_eq!(fs.kill_image().read("/db/damaged/meta.snapshot.2.bin.0"), image.read(one));
    assert_eq!(problems(&env), []);
}
