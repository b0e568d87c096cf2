//! The number of shards changes, and no frame of the layout before is replayed: then nothing but
//! the snapshot says what its positions mean.

use topics_sim::{CallFilter, CallKind, FaultKind};

use super::*;

/// How an engine ends that leaves no frame above the positions of its newest snapshot.
#[derive(Clone, Copy, Debug)]
enum End {
    /// No log file can be made: the close writes its snapshots, and no mark of them.
    ShortClose,
    /// The power fails behind a checkpoint, whose mark was not synced.
    PowerCut,
}

impl End {
    const ALL: [Self; 2] = [Self::PowerCut, Self::ShortClose];

    /// Ends the engine and opens with another number of shards.
    fn then_open(self, w: &mut World, shards: u32) {
        w.engine().sync().unwrap();
        match self {
            Self::ShortClose => {
                let log = CallFilter::on_path(CallKind::Allocate, "wal-");
                w.fs.fail_from(log, 1, FaultKind::ENOSPC);
                // Every shard comes to the end of its files.
                let data = "x".repeat(8_000);
                (0..8).for_each(|i| while w.try_put(&format!("t{i}"), &[&data]).is_ok() {});
                w.close();
                w.fs.clear_faults();
                w.options.wal_shards = shards;
                w.open();
            }
            Self::PowerCut => {
                w.engine().checkpoint().unwrap();
                w.options.wal_shards = shards;
                w.power_cut();
            }
        }
    }
}

/// Eight topics, so that every shard has some, with lsns far above those of a shard that begins.
pub(super) fn world(shards: u32) -> World {
    let w = World::with(Options { wal_shards: shards, ..small() });
    for i in 0..8 {
        w.create(
            &format!("t{i}"),
            class(if i % 2 == 0 { Durability::Fsync } else { Durability::Disk }),
        );
        for _ in 0..20 {
            w.put(&format!("t{i}"), &["x"]);
        }
    }
    w
}

#[test]
fn i1_i2_what_is_acked_in_a_new_layout_is_there_after_a_crash() {
    for end in End::ALL {
        for (before, after) in [(1, 3), (3, 1), (2, 3), (3, 2)] {
            let what = format!("{end:?}, {before} to {after} shards");
            let mut w = world(before);
            end.then_open(&mut w, after);
            assert_eq!(w.engine().metrics().recovery_frames, 0, "{what}");
            let newest =
                w.engine().open_engine().store().disk.checkpoints.load_newest().unwrap().unwrap();
            assert_eq!(newest.layout, w.engine().open_engine().ctx().layout, "{what}");
            // Positions of the layout before say nothing in a snapshot of this one.
            assert!(newest.topics.iter().all(|t| t.replay.lsn == 0), "{what}");
            w.checkpoint();
            let heads: Vec<u64> =
                (0..8).map(|i| w.put(&format!("t{i}"), &["acked"]).first_seq).collect();
            w.engine().sync().unwrap();
            w.power_cut();
            for (i, head) in heads.into_iter().enumerate() {
                let name = format!("t{i}");
                assert_eq!(w.seqs(&name).last(), Some(&head), "I1, {what}: {name}");
                assert!(w.put(&name, &["later"]).first_seq > head, "I2, {what}: {name}");
            }
        }
    }
}
