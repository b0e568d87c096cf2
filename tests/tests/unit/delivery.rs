//! Tests of the oracle: a correct state passes, and every mutated state is flagged.

use topics_sim::Survival;

use topics_tests::delivery::see::{self, ClaimedJob, Probes, QueueSeen, see};
use topics_tests::delivery::*;
use topics_tests::oracle;

/// A workload at its end, and the state after its recovery.
struct End {
    script: Script,
    seen: Seen,
}

fn end(name: &str) -> End {
    let workload = ALL.iter().find(|w| w.name == name).unwrap();
    let script = run(workload, 7);
    let (fs, _) = script.lives.last().unwrap();
    let mut cursor = fs.crash_cursor();
    while cursor.advance() {}
    let image = cursor.image(Survival::KeepAll);
    let seen = see(&image, &Probes::of(&script), script.wall(script.calls()));
    let end = End { script, seen };
    assert_eq!(end.judged(&end.seen, |_| ()), Vec::<String>::new(), "{name}");
    end
}

impl End {
    fn judged(&self, seen: &Seen, change: impl FnOnce(&mut Past<'_>)) -> Vec<String> {
        let mut past = past(&self.script, self.script.calls(), true);
        change(&mut past);
        judge(&past, seen)
    }

    /// A mutated state must be flagged with these words.
    #[track_caller]
    fn flags(&self, what: &str, mutate: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.clone();
        mutate(&mut seen);
        let found = self.judged(&seen, |_| ());
        assert!(found.iter().any(|p| p.contains(what)), "{what:?} is not among {found:?}");
    }
}

fn queue(seen: &mut Seen) -> &mut QueueSeen {
    seen.queue.as_mut().unwrap()
}

/// Visits the topic in every observation.
fn each(seen: &mut Seen, topic: &str, mut f: impl FnMut(&mut oracle::TopicObs)) {
    for o in std::iter::once(&mut seen.first).chain(&mut seen.rests) {
        o.topics.iter_mut().filter(|t| t.state.topic == topic).for_each(&mut f);
    }
}

fn acked(script: &Script) -> String {
    let acked = script.notes.iter().find_map(|(_, n)| match n {
        Note::Acked(jobs) => jobs.first().map(|j| j.name.clone()),
        _ => None,
    });
    acked.unwrap()
}

#[test]
fn i6_places_of_jobs() {
    let e = end("leases");
    e.flags("is lost", |s| _ = queue(s).drained.pop());
    e.flags("is there 2 times", |s| {
        let name = queue(s).drained[0].name.clone();
        queue(s).letters.push(name);
    });
    e.flags("was acked and is back", |s| queue(s).letters.push(acked(&e.script)));
    e.flags("no claim gets it", |s| {
        let never = queue(s).drained.pop().unwrap();
        queue(s).claimed.retain(|g| g.name != never.name);
        queue(s).left.push("\"q-999\"".into());
    });
}

#[test]
fn dead_letters_have_the_last_error() {
    let e = end("dead_letters");
    for error in [None, Some("another".to_owned())] {
        e.flags("the dead letter of", |s| queue(s).letter_errors[0].1 = error);
    }
}

#[test]
fn i6_leases() {
    let e = end("leases");
    let all = e.script.notes.iter().filter_map(|(_, n)| match n {
        Note::Claimed(jobs) => Some(jobs.clone()),
        _ => None,
    });
    let all = all.collect::<Vec<_>>().concat();
    let valid = &e.seen.queue.as_ref().unwrap().valid;
    assert!(!valid.is_empty() && valid.len() < all.len());
    let stale = all.iter().find(|l| !valid.contains(&l.id)).unwrap();
    let held = all.iter().find(|l| valid.contains(&l.id)).unwrap();
    e.flags("stale lease", |s| _ = queue(s).valid.insert(stale.id));
    e.flags("stale lease", |s| _ = queue(s).valid_after.insert(stale.id));
    e.flags("the durable lease", |s| _ = queue(s).valid.remove(&held.id));
    e.flags("has the valid leases", |s| {
        let given = ClaimedJob { name: held.name.clone(), seq: held.seq, deliveries: 9 };
        queue(s).claimed.push(given);
    });
    let e = end("disk_queue");
    let given = e.script.notes.iter().find_map(|(_, n)| match n {
        Note::Claimed(jobs) => jobs.first().cloned(),
        _ => None,
    });
    e.flags("a life that is over", |s| _ = queue(s).valid.insert(given.unwrap().id));
}

#[test]
fn order_of_jobs() {
    let e = end("lanes_groups");
    e.flags("a claim gives", |s| queue(s).claimed.reverse());
    e.flags("is given after", |s| queue(s).drained.reverse());
    let grouped: Vec<_> = see::written(e.script.notes.iter().map(|n| &n.1))
        .into_iter()
        .filter(|(_, w)| w.group == "g")
        .map(|(_, w)| w.name.clone())
        .collect();
    e.flags("two jobs of group g", |s| {
        let jobs = grouped.iter().rev().take(2).zip(900..);
        queue(s).claimed.extend(jobs.map(|(name, seq)| ClaimedJob {
            name: name.clone(),
            seq,
            deliveries: 1,
        }));
    });
    let e = end("delays");
    e.flags("delivery 7 of", |s| queue(s).claimed[0].deliveries = 7);
    let early = e.judged(&e.seen, |past| past.wall = 1_700_000_000_000);
    assert!(early.iter().any(|p| p.contains("ms too early")), "{early:?}");
}

#[test]
fn i1_i2_i5_records() {
    let e = end("chain");
    e.flags("I2: a: seq 1 was", |s| {
        each(s, "a", |t| t.records[0].data = b"\"a-1\"".to_vec());
    });
    e.flags("I1: a: \"a-0\" at 1 is lost", |s| each(s, "a", |t| drop(t.records.remove(0))));
    e.flags("I5: a: 2 of a batch of 3", |s| each(s, "a", |t| drop(t.records.remove(0))));
    e.flags("was never written", |s| {
        each(s, "a", |t| t.records[0].data = b"\"a-999\"".to_vec());
    });
    e.flags("I1: c with id", |s| s.first.topics.retain(|t| t.state.topic != "c"));
    e.flags("was gone and is back", |s| {
        each(s, "b", |t| {
            let mut back = t.records[0].clone();
            (back.seq, back.data) = (1, b"\"a-0\"".to_vec());
            t.records.insert(0, back);
        });
    });
    let e = end("recreated");
    e.flags("was deleted and is back", |s| each(s, "t", |t| t.state.topic_id = 1));
}

#[test]
fn i7_copies() {
    let e = end("fan_out");
    // A record that no observation has shown was omitted.
    let mut seen = e.seen.clone();
    each(&mut seen, "z", |t| drop(t.records.pop()));
    let found = e.judged(&seen, |p| p.notes.retain(|(_, n)| !matches!(n, Note::Look(_))));
    assert!(found.iter().any(|p| p.contains("I7: sz left")), "{found:?}");
    e.flags("I7: x holds", |s| {
        each(s, "x", |t| {
            let mut twice = t.records[0].clone();
            twice.seq = 900;
            t.records.push(twice);
        });
    });
    e.flags("comes after that of", |s| {
        each(s, "y", |t| {
            let (a, b) = (t.records[0].data.clone(), t.records[1].data.clone());
            (t.records[0].data, t.records[1].data) = (b, a);
        });
    });
    e.flags("does not pass the filter", |s| {
        each(s, "z", |t| t.records[0].data = b"\"s-1\"".to_vec());
    });
    e.flags("has another tag or node", |s| each(s, "x", |t| t.records[0].tag.push(b'!')));
    e.flags(" says ", |s| {
        each(s, "y", |t| t.records[0].meta = br#"{"_topics_router":"sy:1:1:77"}"#.to_vec());
    });
    e.flags("router sx is", |s| s.routers.retain(|r| r.router != "sx"));
    e.flags("router sx is", |s| {
        let sx = s.routers.iter_mut().find(|r| r.router == "sx").unwrap();
        sx.request.preserve_tag = false;
    });
    e.flags("rests with", |s| s.rested[0].lag = 3);
}

#[test]
fn i7_ends_and_losses() {
    let (e, other) = (end("rerouted"), end("fan_out"));
    e.flags("router r was deleted and is back", |s| {
        let mut back = other.seen.routers[0].clone();
        back.router = "r".into();
        s.routers.push(back);
    });
    let e = end("trimmed_source");
    e.flags("has no gap", |s| {
        each(s, "d", |t| {
            t.state.gaps.clear();
            t.tombstones.clear();
        });
    });
}

#[test]
fn i8_cursors() {
    let e = end("modes");
    let by = |s: &mut Seen, name: &str, f: &dyn Fn(&mut see::ConsumerSeen)| {
        s.consumers.iter_mut().filter(|c| c.info.name == name).for_each(f);
    };
    let handed = e.script.notes.iter().find_map(|(_, n)| match n {
        Note::HandedOut { seqs, .. } => seqs.first().copied(),
        _ => None,
    });
    let handed = handed.unwrap();
    e.flags("I8: again of t", |s| by(s, "again", &|c| c.info.cursor -= 1));
    e.flags("I8: again of t", |s| by(s, "again", &|c| c.info.cursor += 1));
    e.flags("I8: once of t", |s| by(s, "once", &|c| c.info.cursor += 1));
    e.flags("is delivered twice", |s| by(s, "once", &|c| c.read.insert(0, handed)));
    e.flags("I8: again of t is at None", |s| s.consumers.retain(|c| c.info.name != "again"));
    e.flags("no call created", |s| by(s, "again", &|c| c.info.name = "ghost".into()));
    e.flags(" reads ", |s| by(s, "again", &|c| _ = c.read.pop()));
    let e = end("auto_commit");
    e.flags("I8: auto of t", |s| by(s, "auto", &|c| c.info.cursor = 1));
    e.flags("I8: auto of t", |s| by(s, "auto", &|c| c.info.cursor += 2));
}

#[test]
fn what_is_not_kept_may_go() {
    // The same loss without a guarantee is not a problem.
    let e = end("chain");
    let mut seen = e.seen.clone();
    each(&mut seen, "a", |t| t.records.clear());
    let unkept = |p: &mut Past<'_>| {
        p.killed = false;
        p.notes.iter_mut().for_each(|n| n.0 = note::Progress::Returned);
    };
    let lost = |found: &[String]| found.iter().any(|p| p.contains("I1: a:"));
    assert!(lost(&e.judged(&seen, |_| ())));
    assert!(!lost(&e.judged(&seen, unkept)));
}

fn txns(seen: &mut Seen) -> &mut see::TxnsSeen {
    seen.txns.as_mut().unwrap()
}

/// The last transaction of a script.
fn last_unit(script: &Script) -> Unit {
    Unit::clone(script.units.last().unwrap())
}

/// Makes the outcome of the last transaction unknown.
fn unanswered(past: &mut Past<'_>) {
    let txn = |n: &Note| matches!(n, Note::Txn { .. });
    past.notes.iter_mut().filter(|(_, n)| txn(n)).for_each(|n| n.0 = note::Progress::Started);
}

#[test]
fn i5_a_transaction_is_everywhere_or_nowhere() {
    let e = end("txn_process");
    let unit = last_unit(&e.script);
    let (rows, moved) = (unit.rows[0].1.clone(), unit.moves[0].clone());
    let gone = |t: &mut oracle::TopicObs| {
        t.records.retain(|r| !rows.iter().any(|w| w.name.as_bytes() == r.data));
    };
    let key = (moved.id, moved.consumer.to_owned());
    let jobs = |t: &mut oracle::TopicObs| {
        for (j, seq) in unit.acks.iter().zip(900..) {
            let data = j.name.clone().into_bytes();
            let like = e.seen.first.topic("out").unwrap().records[0].clone();
            t.records.push(oracle::Seen { data, seq, ..like });
        }
    };
    let n = unit.number;
    let mutations: [&dyn Fn(&mut Seen); 4] = [
        &|s| each(s, "out", gone),
        &|s| _ = txns(s).cursors.insert(key.clone(), moved.before),
        &|s| each(s, "q", jobs),
        &|s| txns(s).writers.get_mut("w").unwrap().last = unit.epoch.map(|e| e - 1),
    ];
    for mutate in mutations {
        // An acked transaction must be in all topics.
        e.flags(&format!("I1: transaction {n} was acked"), mutate);
        // An unacked one must be in all topics or in none.
        let mut seen = e.seen.clone();
        mutate(&mut seen);
        let found = e.judged(&seen, unanswered);
        assert!(found.iter().any(|p| p.starts_with(&format!("I5: transaction {n}"))), "{found:?}");
        assert!(!found.iter().any(|p| p.contains("was acked and is not")), "{found:?}");
    }
    let mut nowhere = e.seen.clone();
    mutations.iter().for_each(|m| m(&mut nowhere));
    each(&mut nowhere, "log", |t| {
        t.records.retain(|r| !unit.rows[1].1.iter().any(|w| w.name.as_bytes() == r.data));
    });
    let found = e.judged(&nowhere, unanswered);
    assert!(!found.iter().any(|p| p.contains("transaction")), "nowhere is right too: {found:?}");
}

#[test]
fn i5_rows_of_a_transaction_are_one_batch_once() {
    let e = end("txn_staged");
    let unit = last_unit(&e.script);
    let n = unit.number;
    let one = unit.rows[0].1[0].name.clone().into_bytes();
    let at = |t: &oracle::TopicObs| t.records.iter().position(|r| r.data == one).unwrap();
    let batch = format!("I5: disk: transaction {n} of 3");
    e.flags(&batch, |s| {
        each(s, "disk", |t| {
            let mut twice = t.records[at(t)].clone();
            twice.seq = 900;
            t.records.push(twice);
        });
    });
    e.flags(&batch, |s| each(s, "disk", |t| drop(t.records.remove(at(t)))));
    e.flags(&batch, |s| {
        each(s, "disk", |t| {
            let i = at(t);
            let (a, b) = (t.records[i].data.clone(), t.records[i + 1].data.clone());
            (t.records[i].data, t.records[i + 1].data) = (b, a);
        });
    });
    e.flags("rows of disk are in sync", |s| {
        each(s, "sync", |t| {
            let mut stray = t.records[0].clone();
            (stray.seq, stray.data) = (900, one.clone());
            t.records.push(stray);
        });
    });
    e.flags("I2: disk: seq", |s| {
        each(s, "disk", |t| t.records.iter_mut().for_each(|r| r.seq -= 1));
    });
}

#[test]
fn stages_wait_or_are_over() {
    let e = end("txn_aborted");
    let waits = |s: &mut Seen, stage: &str, is: (u32, u64)| {
        txns(s).writers.get_mut("w").unwrap().staged.insert(stage.into(), is);
    };
    e.flags("gone of w waits with Some((2, 4)), and is over", |s| waits(s, "gone", (2, 4)));
    e.flags("kept of w waits with Some((1, 3)), and is over", |s| waits(s, "kept", (1, 3)));
    e.flags("no call staged other of w", |s| waits(s, "other", (1, 1)));
    let aborted = e.script.notes.iter().find_map(|(_, n)| match n {
        Note::Staged(p) if p.stage == "gone" => Some(p.rows[0].1[0].name.clone()),
        _ => None,
    });
    e.flags("was never written", |s| {
        each(s, "t", |t| t.records[0].data = aborted.clone().unwrap().into_bytes());
    });
    // The state before the last commit: one stage waits, the other was aborted.
    let ends = |n: &Note| matches!(n, Note::Txn { .. });
    let last = e.script.notes.iter().rposition(|(_, n)| ends(n)).unwrap();
    let before =
        |p: &mut Past<'_>| p.notes.retain(|(_, n)| !std::ptr::eq(*n, &e.script.notes[last].1));
    let mut seen = e.seen.clone();
    let flagged = |seen: &Seen, what: &str| {
        let found = e.judged(seen, before);
        assert!(found.iter().any(|p| p.contains(what)), "{what:?} is not among {found:?}");
    };
    flagged(&seen, "I1: kept of w waits with None, 1 parts of 3 rows were acked");
    waits(&mut seen, "kept", (1, 2));
    flagged(&seen, "I1: kept of w waits with Some((1, 2)), 1 parts of 3 rows were acked");
    waits(&mut seen, "kept", (2, 4));
    flagged(&seen, "kept of w waits with Some((2, 4)), 1 parts of 3 rows were staged");
    let n = last_unit(&e.script).number;
    txns(&mut seen).again.push((n, Some("txn_incomplete")));
    let found = e.judged(&seen, |p| {
        unanswered(p);
        p.notes.retain(|(_, n)| !matches!(n, Note::Aborted { .. }));
    });
    assert!(found.iter().any(|p| p.contains("the stages of transaction")), "{found:?}");
}

/// Repeated calls after a recovery: wrong answers are flagged.
#[test]
fn what_comes_again_is_compared() {
    let workload = ALL.iter().find(|w| w.name == "txn_repeated").unwrap();
    let script = run(workload, 7);
    let mut cursor = script.lives.last().unwrap().0.crash_cursor();
    while cursor.advance() {}
    let image = cursor.image(Survival::KeepAll);
    let wall = script.wall(script.calls());
    let asked = |probes: &Probes, restage: bool| {
        let mut seen = Seen { txns: Some(see::TxnsSeen::default()), ..Seen::default() };
        see::txns::again(&image, probes, wall, restage, &mut seen);
        seen.problems
    };
    let probes = Probes::of(&script);
    assert_eq!(asked(&probes, false), Vec::<String>::new());
    assert_eq!(asked(&probes, true), Vec::<String>::new());
    let flags = |what: &str, change: &dyn Fn(&mut Unit)| {
        let mut probes = probes.clone();
        let mut unit = last_unit(&script);
        change(&mut unit);
        *probes.units.last_mut().unwrap() = unit.into();
        let found = asked(&probes, false);
        assert!(found.iter().any(|p| p.contains(what)), "{what:?} is not among {found:?}");
    };
    flags("to the query \"\" its epoch is", &|u| u.query = "nobody's");
    flags("has its rows at []", &|u| u.rows[0].1.iter_mut().for_each(|r| r.name.push('!')));
    // A transaction whose key was not kept is executed again.
    flags("its repeat is not deduped", &|u| {
        (u.writer, u.epoch, u.key) = (None, None, "unheard of");
        (u.stages, u.moves) = (Vec::new(), Vec::new());
        u.wall = wall;
    });
}
