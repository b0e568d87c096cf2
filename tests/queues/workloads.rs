//! The scripts.

use topics_engine::Durability;

use super::script::{Leased, Script, queue};

type Workload = (&'static str, fn(&mut Script));

/// All of them.
pub const ALL: &[Workload] = &[
    ("durable_leases", durable_leases),
    ("dead_letters", dead_letters),
    ("redrive", redrive),
    ("dead_in_place", dead_in_place),
    ("disk_queue", disk_queue),
    ("consumers", consumers),
    ("disk_consumers", disk_consumers),
];

fn first(jobs: &[Leased]) -> &[Leased] {
    &jobs[..jobs.len().min(1)]
}

/// Claims, acks and releases around checkpoints and a reopening.
fn durable_leases(s: &mut Script) {
    s.create(&queue(0, false, Durability::Fsync));
    for round in 0..4 {
        s.put(5);
        let a = s.claim("a", 3);
        let b = s.claim("b", 2);
        s.ack("a", first(&a));
        s.nack("b", first(&b));
        if round % 2 == 1 {
            s.checkpoint();
        }
        let c = s.claim("c", 1);
        s.ack("c", &c);
        if round == 2 {
            s.reopen();
            s.ack("a", a.get(1..2).unwrap_or_default());
        }
    }
}

/// Jobs that fail too often go to another topic.
fn dead_letters(s: &mut Script) {
    s.create(&queue(2, true, Durability::Fsync));
    for round in 0..3 {
        s.put(4);
        for _ in 0..2 {
            let jobs = s.claim("a", 9);
            s.nack("a", &jobs);
        }
        let rest = s.claim("a", 2);
        s.ack("a", &rest);
        s.sync();
        if round == 1 {
            s.checkpoint();
        }
    }
}

/// They come back.
fn redrive(s: &mut Script) {
    s.create(&queue(1, true, Durability::Fsync));
    for _ in 0..3 {
        s.put(3);
        let jobs = s.claim("a", 9);
        s.nack("a", &jobs);
        s.claim("a", 1);
        s.redrive("dead");
        let again = s.claim("b", 9);
        s.ack("b", &again[..again.len().min(2)]);
        s.sync();
    }
    s.checkpoint();
}

/// Without a dead-letter topic, dead jobs are revived where they are.
fn dead_in_place(s: &mut Script) {
    s.create(&queue(1, false, Durability::Fsync));
    for _ in 0..3 {
        s.put(4);
        let jobs = s.claim("a", 9);
        s.nack("a", &jobs);
        s.claim("a", 9);
        s.checkpoint();
        s.redrive("q");
        let jobs = s.claim("b", 3);
        s.ack("b", first(&jobs));
    }
}

/// A queue whose writes are not synced: what a machine loses is lost whole.
fn disk_queue(s: &mut Script) {
    s.create(&queue(2, true, Durability::Disk));
    for round in 0..3 {
        s.put(4);
        for _ in 0..2 {
            let jobs = s.claim("a", 3);
            s.nack("a", &jobs);
        }
        let jobs = s.claim("b", 2);
        s.ack("b", &jobs);
        if round == 1 {
            s.sync();
            s.redrive("dead");
            s.checkpoint();
        }
    }
}

fn reads(s: &mut Script, durability: Durability) {
    s.consume(durability);
    for round in 1..5 {
        s.records(6);
        s.read_once(2);
        s.commit(round * 3);
        s.read_once(3);
        if round == 2 {
            s.checkpoint();
        }
        if round == 3 {
            s.seek(4);
            s.commit(5);
            s.reopen();
            s.handles();
        }
    }
}

/// Both modes over a topic that is synced.
fn consumers(s: &mut Script) {
    reads(s, Durability::Fsync);
}

/// Both modes over a topic that is not.
fn disk_consumers(s: &mut Script) {
    reads(s, Durability::Disk);
}
