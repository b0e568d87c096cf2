//! A shard whose log has failed does not keep the others from their checkpoints.

use topics_sim::{CallFilter, CallKind, FaultKind};
use topics_storage::snapshot::SnapshotBody;

use super::*;
use crate::types::error::Error;

/// Two shards and a topic of class `fsync` on each.
fn two_shards() -> (World, [String; 2]) {
    let w = World::with(Options { wal_shards: 2, ..small() });
    let mut names = [String::new(), String::new()];
    for i in 0.. {
        let name = format!("t{i}");
        w.create(&name, class(Durability::Fsync));
        let engine = w.engine().open_engine();
        let id = engine.catalog().table.loaded.named(&name).unwrap().id();
        names[engine.ctx().shard(id)] = name;
        if names.iter().all(|n| !n.is_empty()) {
            return (w, names);
        }
    }
    unreachable!()
}

fn newest(w: &World) -> SnapshotBody {
    let disk = &w.engine().open_engine().store().disk;
    disk.checkpoints.load_newest().unwrap().unwrap()
}

fn logs_of(w: &World, shard: &str) -> usize {
    let image = w.fs.kill_image();
    image.files().iter().filter(|(p, _)| p.contains(shard) && p.ends_with(".log")).count()
}

fn break_shard(w: &World, topic: &str) {
    w.fs.fail_nth(CallFilter::on_path(CallKind::SyncData, "shard-01"), 1, FaultKind::EIO);
    for _ in 0..2 {
        let e = w.try_put(topic, &["lost?"]).unwrap_err();
        assert!(matches!(e, Error::StorageUnavailable { reason: "poisoned", .. }), "I10: {e}");
    }
}

#[test]
fn i1_later_snapshots_keep_the_section_of_a_failed_shard() {
    let (mut w, [sound, broken]) = two_shards();
    for name in [&sound, &broken] {
        w.put(name, &["a", "b"]);
    }
    w.checkpoint();
    // Logged, acked, and in no snapshot when the shard fails.
    w.put(&broken, &["c", "d"]);
    w.delete(&broken, Some(2), None);
    let before = newest(&w);
    break_shard(&w, &broken);
    let big = "x".repeat(4000);
    for round in 0..8 {
        for _ in 0..20 {
            w.put(&sound, &[&big]);
        }
        w.engine().checkpoint().unwrap_or_else(|e| panic!("round {round}: {e}"));
        w.clock.advance_ms(6_000);
        w.engine().tick().unwrap_or_else(|e| assert!(e.to_string().contains("poisoned"), "{e}"));
    }
    let after = newest(&w);
    assert_eq!(after.shards[1], before.shards[1]);
    assert!(after.shards[0].replay_lsn > before.shards[0].replay_lsn);
    let of_broken = |b: &SnapshotBody| {
        let engine = w.engine().open_engine();
        b.topics.iter().filter(|t| engine.ctx().shard(t.topic_id) == 1).cloned().collect::<Vec<_>>()
    };
    assert_eq!(of_broken(&after), of_broken(&before));
    assert!(logs_of(&w, "shard-00") <= 3, "the others' logs are trimmed");
    assert_eq!(w.seqs(&broken)[..3], [2, 3, 4], "reads go on");
    for end in [World::kill, World::power_cut] {
        end(&mut w);
        assert_eq!(w.seqs(&broken)[..3], [2, 3, 4], "I1");
        assert_eq!(w.seqs(&sound), (1..=162).collect::<Vec<_>>(), "I1");
        w.checkpoint();
    }
    let done = w.put(&broken, &["e"]);
    assert!(done.first_seq > 4, "I2");
}

#[test]
fn without_a_snapshot_before_there_is_none_to_keep() {
    let (w, [sound, broken]) = two_shards();
    for name in [&sound, &broken] {
        w.put(name, &["a"]);
    }
    break_shard(&w, &broken);
    for _ in 0..4 {
        let e = w.engine().checkpoint().unwrap_err();
        assert!(matches!(e, Error::StorageUnavailable { reason: "poisoned", .. }), "{e}");
    }
    w.put(&sound, &["b"]);
}
