//! Both modes, commits, automatic commits, seeks; consumers and topics that are deleted and created
//! again.

use topics_engine::{ConsumerMode, Durability, SeekTo};

use super::super::script::Script;
use super::class;

fn open(s: &mut Script) {
    s.consume("t", "once", ConsumerMode::AtMostOnce, false);
    s.consume("t", "again", ConsumerMode::AtLeastOnce, false);
}

fn reads(s: &mut Script, durability: Durability) {
    s.make("t", &class(durability));
    open(s);
    for round in 1..6 {
        s.put("t", 6);
        s.read("once", 2);
        s.read("again", 4);
        s.commit("again", round * 3);
        s.read("once", 3);
        match round {
            2 => s.checkpoint(),
            3 => {
                s.seek("again", SeekTo::Seq(4));
                s.commit("again", 5);
                s.reopen();
                open(s);
            }
            4 => {
                s.seek("once", SeekTo::Seq(6));
                s.delete("t", 8);
                s.kill();
                open(s);
            }
            _ => s.commit("once", round * 5),
        }
    }
}

/// Both modes over a synced topic.
pub fn modes(s: &mut Script) {
    reads(s, Durability::Fsync);
}

/// Both modes over a topic that is not synced.
pub fn disk_modes(s: &mut Script) {
    reads(s, Durability::Disk);
}

/// Positions that are stored at the next read, and when a handle is dropped.
pub fn auto_commit(s: &mut Script) {
    s.make("t", &class(Durability::Fsync));
    s.consume("t", "auto", ConsumerMode::AtLeastOnce, true);
    for round in 0..6 {
        s.put("t", 5);
        s.read("auto", 2);
        s.pass(1_200);
        s.read("auto", 2);
        s.read("auto", 1);
        match round {
            1 => s.checkpoint(),
            2 => {
                s.pass(1_200);
                s.read("auto", 1);
                s.drop_handle("auto");
                s.consume("t", "auto", ConsumerMode::AtLeastOnce, true);
            }
            3 => {
                s.kill();
                s.consume("t", "auto", ConsumerMode::AtLeastOnce, true);
            }
            4 => s.seek("auto", SeekTo::Start),
            _ => s.sync(),
        }
    }
}

/// Deletes consumers, then their topic; new ones of the same names start from scratch.
pub fn recreated(s: &mut Script) {
    for round in 0..4 {
        s.make("t", &class(Durability::Disk));
        open(s);
        s.put("t", 4);
        s.read("once", 2);
        s.commit("again", 3);
        s.delete_consumer("t", "once");
        s.sync();
        s.consume("t", "once", ConsumerMode::AtMostOnce, false);
        s.read("once", 3);
        if round % 2 == 0 {
            s.checkpoint();
        }
        s.seek("again", SeekTo::End);
        s.delete_consumer("t", "again");
        if round == 2 {
            s.kill();
            s.consume("t", "once", ConsumerMode::AtMostOnce, false);
        }
        s.drop_handle("once");
        s.drop_topic("t");
        s.look();
    }
    s.make("t", &class(Durability::Disk));
    s.put("t", 3);
    open(s);
    s.read("once", 9);
    s.commit("again", 2);
}
