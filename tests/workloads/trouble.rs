//! A disk that becomes full, gets free space, and becomes full again; a log that ends within a
//! group.

use topics_engine::Durability;
use topics_sim::{CallFilter, CallKind, FaultKind};

use super::class;
use crate::run::{Driver, batch};

/// ENOSPC: refused writes, rotation, free space again.
pub fn no_space(d: &mut Driver) {
    d.tuning.wal_bytes = 4 << 10;
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for (round, room) in [24u64 << 10, 8 << 10, 40 << 10].into_iter().enumerate() {
        for _ in 0..3 {
            d.append("safe", &batch(2).size(150));
            d.append("disk", &batch(2).size(200).tags(&["t"]));
        }
        d.fs().set_free_space(Some(room));
        for i in 0..14 {
            d.append("disk", &batch(2).size(400));
            d.append("safe", &batch(1).size(300));
            if i % 5 == 4 {
                d.append_async("disk", &batch(3).size(300));
                d.append_async("safe", &batch(2).size(300));
                d.drive();
                d.tick();
            }
        }
        d.look();
        d.checkpoint();
        d.delete("disk", Some(10 + 20 * round as u64), None);
        d.look();
        d.fs().set_free_space(None);
        d.tick();
        d.append("safe", &batch(2));
        d.append("disk", &batch(2));
        d.checkpoint();
        d.look();
    }
    d.reopen();
    d.append("safe", &batch(2));
}

/// Groups that are written in part before the disk is full: their batches fail, and other batches
/// get their seqs, in the next file.
pub fn broken(d: &mut Driver) {
    d.open();
    d.create("safe", &class(Durability::Fsync));
    for round in 0..4 {
        d.append("disk", &batch(2));
        d.append("safe", &batch(1));
        let log = || CallFilter::on_path(CallKind::Write, ".log");
        d.fs().fail_nth(log(), 1, FaultKind::ShortWrite);
        d.fs().fail_nth(log(), 2, FaultKind::ENOSPC);
        d.append_async("disk", &batch(2).size(100 + 200 * round));
        d.append_async("disk", &batch(2));
        d.append_async("disk", &batch(1).size(900));
        d.drive();
        d.wait_idle();
        d.fs().clear_faults();
        d.append("disk", &batch(3));
        d.look();
        d.append("disk", &batch(2));
        d.append("safe", &batch(2));
        d.look();
    }
    d.kill();
    d.open();
    d.append("disk", &batch(1).sync());
}
