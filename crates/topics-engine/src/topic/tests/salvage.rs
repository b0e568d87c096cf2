//! What `salvage` gives up is announced: of every topic that may have lost something, and of none else
//! where that is known. A seq that damage took is not given again.

use topics_sim::{CallFilter, CallKind, DiskImage, FaultKind};

use super::layout::world;
use super::*;
use crate::types::options::RecoveryMode;

/// A topic that is on this shard of as many as the engine has.
fn on_shard(w: &World, shard: usize) -> String {
    let here = |i: &usize| {
        let name = format!("t{i}");
        w.engine().open_engine().ctx().shard(w.state(&name).topic_id) == shard
    };
    format!("t{}", (0..8).find(here).unwrap())
}

/// Damages the newest file whose path contains `path` and that holds `data`, there.
fn flip(image: &mut DiskImage, path: &str, data: &[u8]) {
    let found = |b: &[u8]| b.windows(data.len()).rposition(|w| w == data);
    let mut files = image.files();
    files.sort();
    let (name, mut bytes) =
        files.into_iter().rfind(|(n, b)| n.contains(path) && found(b).is_some()).unwrap();
    let at = found(&bytes).unwrap();
    bytes[at] ^= 1;
    image.put(&name, &bytes);
}

/// Opens the rest of a disk with `salvage`.
fn salvage(w: &mut World, image: &DiskImage) {
    w.engine = None;
    w.fs = Arc::new(SimFs::from_image(image));
    w.options.recovery = RecoveryMode::Salvage;
    w.open();
}

/// The last record of `name`, its 21st, was lost to damage: it is announced, and its seq not given again.
fn announced(w: &mut World, name: &str, what: &str) {
    for _ in 0..2 {
        let (seqs, lost) = w.scan(name, 0);
        assert_eq!(seqs.last(), Some(&20), "{what}");
        let reported =
            |(from, to, why): &(u64, u64, &str)| (*from..=*to).contains(&21) && *why == "corrupt";
        assert!(lost.iter().any(reported), "I4, {what}: {lost:?}");
        w.reopen();
    }
    assert!(w.put(name, &["later"]).first_seq > 21, "I2, {what}");
}

#[test]
fn i4_damage_in_the_log_of_an_earlier_layout_is_of_the_topics_that_were_there() {
    for (before, after) in [(1, 3), (3, 1), (2, 3)] {
        let what = format!("{before} to {after} shards");
        let mut w = world(before);
        // Behind the last record of one topic are others, of other topics.
        let victim = on_shard(&w, before as usize - 1);
        w.put(&victim, &["the victim"]);
        (0..8).map(|i| format!("t{i}")).filter(|n| *n != victim).for_each(|n| {
            w.put(&n, &["y"]);
        });
        w.engine().sync().unwrap();
        // The change of the layout ends before its snapshot.
        w.engine = None;
        w.fs = Arc::new(SimFs::from_image(&w.fs.kill_image()));
        w.fs.fail_from(CallFilter::on_path(CallKind::Create, "snapshot"), 1, FaultKind::EIO);
        w.options.wal_shards = after;
        w.try_open().unwrap_err();
        let mut image = w.fs.kill_image();
        flip(&mut image, "/wal/", b"the victim");
        salvage(&mut w, &image);
        announced(&mut w, &victim, &what);
        for name in (0..8).map(|i| format!("t{i}")).filter(|n| *n != victim) {
            assert_eq!(w.scan(&name, 0).1, [], "{what}: {name}");
        }
    }
}

#[test]
fn i4_a_position_of_an_earlier_layout_settles_no_loss_in_a_later_one() {
    let mut w = world(1);
    w.close();
    w.options.wal_shards = 2;
    w.open();
    let victim = on_shard(&w, 1);
    w.put(&victim, &["the victim"]);
    for i in 0..8 {
        if format!("t{i}") != victim {
            w.put(&format!("t{i}"), &["y"]);
        }
    }
    w.engine().sync().unwrap();
    // The older snapshot, of the layout before, is the one that recovery finds.
    let newest = w.engine().open_engine().store().disk.checkpoints.newest();
    let mut image = w.fs.kill_image();
    flip(&mut image, "/wal/", b"the victim");
    flip(&mut image, &format!("snapshot.{newest}."), b"t0");
    salvage(&mut w, &image);
    announced(&mut w, &victim, "1 to 2 shards");
}

#[test]
fn i4_a_later_frame_that_is_no_record_settles_no_loss() {
    let mut w = world(1);
    w.put("t0", &["the victim"]);
    w.put("t1", &["y"]);
    w.create("t0", ConfigPatch { cap_records: Some(1_000), ..ConfigPatch::default() });
    w.engine().sync().unwrap();
    let mut image = w.fs.kill_image();
    flip(&mut image, "/wal/", b"the victim");
    salvage(&mut w, &image);
    announced(&mut w, "t0", "a config update behind it");
}
