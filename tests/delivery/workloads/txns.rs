//! Transactions: staged, in one call, with cursors and acks; repeated, stale, refused, aborted,
//! swept; concurrent with direct writes and checkpoints; on full and failing disks.

use topics_engine::{ConfigPatch, ConsumerMode, Durability, Guarantee, RouterRequest, TopicType};
use topics_sim::{CallKind, FaultKind};

use super::super::note::Unit;
use super::super::script::{Script, TxnOutcome};
use super::class;

/// The queries whose commits take turns.
const QUERIES: [&str; 2] = ["one", "two"];

/// One topic of each durability class, with these names.
fn classes(s: &mut Script) {
    let all = [
        ("disk", Durability::Disk),
        ("sync", Durability::Fsync),
        ("memory", Durability::Memory),
        ("fleeting", Durability::Ephemeral),
    ];
    for (name, durability) in all {
        s.make(name, &class(durability));
    }
}

#[track_caller]
fn done(outcome: TxnOutcome) {
    assert!(matches!(&outcome, TxnOutcome::Done(c) if !c.deduped), "{outcome:?}");
}

#[track_caller]
fn deduped(outcome: TxnOutcome) {
    assert!(matches!(&outcome, TxnOutcome::Done(c) if c.deduped), "{outcome:?}");
}

#[track_caller]
fn refused(outcome: TxnOutcome, code: &str) {
    assert_eq!(outcome, TxnOutcome::Refused(code.to_owned().leak()));
}

/// Two parts over topics of every class, on different shards.
pub fn staged(s: &mut Script) {
    classes(s);
    for round in 0..4 {
        s.stage("w", "a", 0, &[("disk", 2), ("sync", 1), ("new", 1)]);
        s.put("disk", 1);
        s.stage("w", "a", 1, &[("memory", 1), ("disk", 1), ("fleeting", 2)]);
        done(s.txn(Unit::of("w", round).by(QUERIES[round as usize % 2]).stages(&[("a", 2)]), &[]));
        s.look();
        match round {
            0 => s.sweep_files(),
            1 => s.kill(),
            2 => s.checkpoint(),
            _ => _ = s.put("sync", 1),
        }
        deduped(s.repeat());
    }
}

/// In one call: with a writer, with a key, with neither.
pub fn one_call(s: &mut Script) {
    classes(s);
    let named = || Unit { writer: Some("w"), ..Unit::default() };
    for round in 0..5u64 {
        done(s.txn(named(), &[("disk", 2), ("sync", 2)]));
        let key = ["a", "b", "c", "d", "e"][round as usize];
        done(s.txn(Unit::keyed(key), &[("memory", 1), ("disk", 1)]));
        deduped(s.repeat());
        done(s.txn(Unit::default(), &[("sync", 1), ("new", 2)]));
        done(s.txn(Unit::of("w", 2 * round + 2), &[("fleeting", 1)]));
        match round {
            1 => s.checkpoint(),
            2 => s.kill(),
            3 => s.reopen(),
            _ => {}
        }
        deduped(s.repeat());
        refused(s.txn(Unit::of("w", round), &[("disk", 1)]), "stale_epoch");
        s.sweep_files();
    }
}

fn queue(durability: Durability, leases_durable: bool) -> ConfigPatch {
    ConfigPatch {
        kind: Some(TopicType::Queue),
        durability: Some(durability),
        leases_durable: Some(leases_durable),
        lease_ms: Some(86_400_000),
        retry_backoff_ms: Some(0),
        ..ConfigPatch::default()
    }
}

/// Consume, process, produce: a cursor, acks and rows in one transaction.
pub fn process(s: &mut Script) {
    s.make("in", &class(Durability::Disk));
    s.make("out", &class(Durability::Fsync));
    s.make("q", &queue(Durability::Disk, true));
    for round in 0..5u64 {
        s.put("in", 3);
        s.put("q", 3);
        if round == 0 {
            s.consume("in", "c", ConsumerMode::AtLeastOnce, false);
        }
        let jobs = s.claim("a", 2, None);
        s.read("c", 3);
        let unit = Unit::of("w", round + 1).moves("in", "c", 3 * round + 2).acks(&jobs);
        match round % 2 {
            0 => done(s.txn(unit, &[("out", 2), ("log", 1)])),
            _ => {
                s.stage("w", "s", 0, &[("out", 1), ("log", 2)]);
                done(s.txn(unit.stages(&[("s", 1)]), &[]));
            }
        }
        s.look();
        match round {
            1 => s.checkpoint(),
            2 => {
                s.kill();
                s.consume("in", "c", ConsumerMode::AtLeastOnce, false);
            }
            4 => {}
            _ => s.commit("c", 3 * round + 3),
        }
    }
}

/// Jobs that create jobs, in a queue without logged leases; also without rows.
pub fn fan_out(s: &mut Script) {
    s.make("q", &queue(Durability::Fsync, false));
    s.put("q", 3);
    for round in 0..5 {
        let jobs = s.claim("a", 2, None);
        let unit = Unit::of("w", round + 1).acks(&jobs);
        match round {
            2 => done(s.txn(unit, &[])),
            _ => done(s.txn(unit, &[("q", 3), ("results", 1)])),
        }
        let more = s.claim("b", 1, None);
        s.ack(&more);
        let mine = s.claim("a", 1, None);
        s.nack(&mine, 0);
        match round {
            1 => s.checkpoint(),
            3 => s.kill(),
            _ => s.sweep_files(),
        }
        deduped(s.repeat());
    }
}

/// Repeats across every kind of restart, and stale epochs.
pub fn repeated(s: &mut Script) {
    s.make("t", &class(Durability::Disk));
    s.put("t", 2);
    s.consume("t", "c", ConsumerMode::AtLeastOnce, false);
    for round in 1..6u64 {
        s.stage("w", "a", 0, &[("t", 2), ("u", 1)]);
        s.stage("w", "b", 0, &[("t", 1)]);
        let query = QUERIES[round as usize % 2];
        let unit = Unit::of("w", round * 10).by(query).moves("t", "c", round + 1);
        done(s.txn(unit.stages(&[("b", 1), ("a", 1)]), &[]));
        deduped(s.repeat());
        match round {
            1 => s.kill(),
            2 => s.reopen(),
            3 => {
                s.checkpoint();
                s.kill();
            }
            _ => s.sweep_files(),
        }
        deduped(s.repeat());
        refused(s.txn(Unit::of("w", round * 10 - 1), &[("t", 1)]), "stale_epoch");
        s.put("t", 1);
    }
}

/// Stages that are aborted, lack a part, or meet another head; then they are committed, or staged
/// again.
pub fn aborted(s: &mut Script) {
    s.make("t", &class(Durability::Disk));
    let mut head = 0;
    for round in 1..6u64 {
        s.stage("w", "gone", 0, &[("t", 2), ("u", 1)]);
        s.stage("w", "gone", 1, &[("u", 1)]);
        s.stage("w", "kept", 0, &[("t", 1), ("u", 2)]);
        refused(s.txn(Unit::of("w", round).stages(&[("kept", 2)]), &[]), "txn_incomplete");
        let other = Unit::of("w", round).stages(&[("kept", 1)]).head("t", head + 7);
        refused(s.txn(other, &[]), "head_mismatch");
        s.abort("w", "gone");
        refused(s.txn(Unit::of("w", round).stages(&[("gone", 2)]), &[]), "txn_incomplete");
        match round {
            2 => s.kill(),
            3 => s.checkpoint(),
            4 => s.reopen(),
            _ => {}
        }
        done(s.txn(Unit::of("w", round).stages(&[("kept", 1)]).head("t", head), &[]));
        head += 1;
        if round % 2 == 0 {
            s.put("t", 1);
            head += 1;
        }
        s.checkpoint();
        s.sweep_files();
    }
}

/// Stages that are not committed in time, others that are, and the removal of their files.
pub fn swept(s: &mut Script) {
    s.make("t", &class(Durability::Fsync));
    for round in 1..6u64 {
        s.stage("old", "a", 0, &[("t", 2)]);
        s.stage("old", "a", 1, &[("u", 1)]);
        if round % 2 == 0 {
            s.kill();
        }
        done(s.txn(Unit::of("w", round), &[("t", 1), ("u", 2)]));
        s.sweep("old", "a");
        refused(s.txn(Unit::of("old", round).stages(&[("a", 2)]), &[]), "txn_incomplete");
        s.stage("old", "b", 0, &[("u", 1)]);
        done(s.txn(Unit::of("old", round).stages(&[("b", 1)]), &[]));
        s.sync();
        s.sweep_files();
        if round == 3 {
            s.checkpoint();
        }
    }
}

/// Topics that are deleted between stage and commit, and after it; new ones with the same names.
pub fn dropped(s: &mut Script) {
    for round in 1..5u64 {
        s.make("t", &class(Durability::Disk));
        s.make("u", &class(Durability::Disk));
        s.put("t", 2);
        s.consume("t", "c", ConsumerMode::AtLeastOnce, false);
        s.stage("w", "a", 0, &[("t", 2), ("u", 1)]);
        s.stage("w", "b", 0, &[("u", 2)]);
        let unit = Unit::of("w", round * 2).moves("t", "c", 2);
        done(s.txn(unit.stages(&[("a", 1)]), &[]));
        s.drop_handle("c");
        s.drop_topic("t");
        s.look();
        if round % 2 == 0 {
            s.checkpoint();
        }
        s.drop_topic("u");
        deduped(s.repeat());
        if round == 2 {
            s.kill();
        }
        // The topic is created again for rows that were staged for the previous one.
        done(s.txn(Unit::of("w", round * 2 + 1).stages(&[("b", 1)]), &[]));
        s.look();
        s.drop_topic("u");
        s.look();
    }
}

/// Among direct writes without waiting, over a log that rotates.
pub fn beside(s: &mut Script) {
    for (name, durability) in [("a", Durability::Disk), ("b", Durability::Disk)] {
        s.make(name, &class(durability));
    }
    s.make("c", &class(Durability::Fsync));
    for round in 1..6u64 {
        s.put("a", 2);
        s.put_later("b", 2);
        s.stage("w", "s", 0, &[("a", 1), ("b", 2), ("c", 1)]);
        s.put_later("a", 1);
        done(s.txn(Unit::of("w", round).stages(&[("s", 1)]), &[]));
        s.wait_idle();
        s.put_later("b", 1);
        s.put_later("c", 1);
        done(s.txn(Unit::default(), &[("b", 1), ("c", 2)]));
        s.wait_idle();
        s.put("b", 3);
        match round {
            2 => s.checkpoint(),
            3 => s.kill(),
            _ => {}
        }
    }
}

/// A checkpoint between every two steps.
pub fn checkpointed(s: &mut Script) {
    s.make("t", &class(Durability::Disk));
    for round in 1..4u64 {
        s.stage("w", "a", 0, &[("t", 3), ("u", 1)]);
        s.checkpoint();
        s.stage("w", "a", 1, &[("t", 1), ("v", 2)]);
        s.checkpoint();
        done(s.txn(Unit::of("w", round).stages(&[("a", 2)]), &[]));
        s.checkpoint();
        deduped(s.repeat());
        s.put("t", 1);
        s.sync();
        s.sweep_files();
        s.checkpoint();
        s.stage("w", "b", 0, &[("u", 1)]);
        s.abort("w", "b");
        s.checkpoint();
        if round == 2 {
            s.reopen();
        }
    }
}

/// Creates topics outside the shard of the decisions, where a part fails.
fn furnish(s: &mut Script) {
    for name in ["a", "b", "c", "d"] {
        s.make(name, &class(Durability::Disk));
    }
    s.put("a", 3);
    s.put("b", 1);
    s.consume("a", "c", ConsumerMode::AtLeastOnce, false);
}

const ALL: [(&str, usize); 4] = [("a", 1), ("b", 2), ("c", 1), ("d", 1)];

/// A disk that is full when the parts are written: a repeat, a pass, the next epoch, or a restart
/// completes the decision.
pub fn full(s: &mut Script) {
    furnish(s);
    for round in 1..7u64 {
        for name in ["c", "d"] {
            s.make(name, &class(Durability::Disk));
        }
        s.sync();
        let seq = s.engine().state("a", false).unwrap().head_seq;
        let shard = format!("shard-0{}", 1 + round % 2);
        s.fail(CallKind::Write, &shard, FaultKind::ENOSPC);
        let outcome = s.txn(Unit::of("w", round).moves("a", "c", seq), &ALL);
        assert_eq!(outcome, TxnOutcome::Unknown);
        s.failed(1);
        s.look();
        // Other writes continue, in the topics of written and of unwritten parts.
        for topic in ["b", "c"] {
            s.pass(40_000);
            s.put(topic, 1);
        }
        match round {
            1 => deduped(s.repeat()),
            2 => s.checkpoint(),
            3 => {
                s.checkpoint();
                s.kill();
                s.consume("a", "c", ConsumerMode::AtLeastOnce, false);
            }
            4 => {
                s.drop_topic("c");
                s.drop_topic("d");
            }
            5 => done(s.txn(Unit::of("v", 1), &[("a", 1), ("e", 1)])),
            _ => s.reopen(),
        }
        if round < 6 {
            s.sweep_files();
        }
        s.look();
        deduped(s.repeat());
    }
}

/// A disk that is full when the decision is written.
pub fn undecided(s: &mut Script) {
    s.make("t", &class(Durability::Disk));
    for (round, stage) in (1..5u64).zip(["a", "b", "c", "d"]) {
        s.stage("w", stage, 0, &[("t", 2), ("u", 1)]);
        s.sync();
        s.fail(CallKind::Write, ".log", FaultKind::ENOSPC);
        let outcome = s.txn(Unit::of("w", round).by("one").stages(&[(stage, 1)]), &[]);
        assert_eq!(outcome, TxnOutcome::Unknown);
        s.failed(1);
        s.look();
        s.pass(40_000);
        match round {
            1 => done(s.repeat()),
            2 => {
                s.abort("w", stage);
                s.checkpoint();
            }
            3 => {
                s.kill();
                done(s.repeat());
            }
            _ => {
                s.checkpoint();
                s.sweep("w", stage);
            }
        }
        s.put("t", 1);
        s.sync();
        s.sweep_files();
        s.look();
    }
}

/// Syncs that fail: of the stage, of the decision, of a part. The shard is poisoned; a restart
/// tells the outcome.
pub fn poisoned(s: &mut Script) {
    furnish(s);
    s.put("d", 1);
    for round in 1..5u64 {
        let seq = s.engine().state("a", false).unwrap().head_seq;
        s.stage("w", "s", 0, &ALL);
        s.sync();
        if round % 3 == 0 {
            s.fail(CallKind::SyncData, "/txn/", FaultKind::EIO);
            assert!(!s.stage("w", "lost", 0, &[("a", 1)]));
            s.failed(1);
        }
        let shard = format!("shard-0{}", round % 3);
        s.fail(CallKind::SyncData, &shard, FaultKind::EIO);
        let unit = Unit::of("w", round).by("one").moves("a", "c", seq).stages(&[("s", 1)]);
        assert_eq!(s.txn(unit, &[]), TxnOutcome::Unknown);
        s.failed(1);
        assert_eq!(s.repeat(), TxnOutcome::Unknown, "I10");
        s.kill();
        s.consume("a", "c", ConsumerMode::AtLeastOnce, false);
        assert!(matches!(s.repeat(), TxnOutcome::Done(_)));
        s.look();
        if round % 2 == 0 {
            s.checkpoint();
            s.sweep_files();
        }
    }
}

/// A stage whose name is not durable when the process dies: the next process finds it and makes it
/// durable.
pub fn found(s: &mut Script) {
    s.make("t", &class(Durability::Disk));
    for round in 1..6u64 {
        s.stage("w", "a", 0, &[("u", 1)]);
        s.fail(CallKind::SyncDir, "/txn", FaultKind::EIO);
        s.fail(CallKind::RemoveFile, "/txn/", FaultKind::EIO);
        assert!(!s.stage("w", "a", 1, &[("t", 2), ("u", 1)]));
        s.failed(2);
        s.kill();
        assert!(s.stage("w", "a", 1, &[("t", 1)]), "it is there");
        s.put("t", 1);
        done(s.txn(Unit::of("w", round).stages(&[("a", 2)]), &[]));
        match round {
            1 => s.checkpoint(),
            2 => s.sweep_files(),
            _ => s.look(),
        }
    }
}

/// Two concurrent writers, and a transaction without a writer.
pub fn writers(s: &mut Script) {
    s.make("t", &class(Durability::Disk));
    s.put("t", 9);
    s.consume("t", "c", ConsumerMode::AtLeastOnce, false);
    for round in 1..6u64 {
        s.stage("v", "x", 0, &[("t", 1), ("u", 1)]);
        s.stage("w", "x", 0, &[("u", 2)]);
        s.stage("v", "y", 0, &[("u", 1)]);
        done(s.txn(Unit::of("w", round).stages(&[("x", 1)]).moves("t", "c", round), &[]));
        s.stage("w", "z", 0, &[("t", 2)]);
        if round == 3 {
            s.kill();
            s.consume("t", "c", ConsumerMode::AtLeastOnce, false);
        }
        done(s.txn(Unit::of("v", round).stages(&[("y", 1), ("x", 1)]), &[]));
        // A cursor at a later position stays.
        done(s.txn(Unit::default().moves("t", "c", 1), &[("t", 1)]));
        s.abort("w", "z");
        match round {
            2 => s.checkpoint(),
            4 => s.reopen(),
            _ => s.sweep_files(),
        }
        if round == 4 {
            s.consume("t", "c", ConsumerMode::AtLeastOnce, false);
        }
    }
}

/// Rows in the source and in the destination of a router.
pub fn routed(s: &mut Script) {
    s.make("s", &class(Durability::Disk));
    s.make("d", &class(Durability::Disk));
    let ends = RouterRequest { source: "s".into(), dest: "d".into(), ..RouterRequest::default() };
    s.route("r", &RouterRequest { guarantee: Guarantee::ExactlyOnce, ..ends });
    for round in 1..5u64 {
        s.put("s", 1);
        done(s.txn(Unit::of("w", 2 * round), &[("s", 2), ("d", 1)]));
        s.work();
        s.put("d", 1);
        s.stage("w", "a", 0, &[("s", 1), ("e", 1)]);
        s.work();
        done(s.txn(Unit::of("w", 2 * round + 1).stages(&[("a", 1)]), &[]));
        match round {
            1 => s.checkpoint(),
            2 => s.kill(),
            _ => s.sync(),
        }
        s.work();
    }
}
