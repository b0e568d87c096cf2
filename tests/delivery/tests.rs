//! The oracle itself: what is right passes, and every mutated outcome is flagged.

use topics_env::sim::Survival;

use super::enumerate::past;
use super::see::{Given, Probes, see};
use super::*;

/// A workload at its end, and what a recovery then shows.
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

    /// A mutated outcome is flagged in these words.
    #[track_caller]
    fn flags(&self, what: &str, mutate: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.clone();
        mutate(&mut seen);
        let found = self.judged(&seen, |_| ());
        assert!(found.iter().any(|p| p.contains(what)), "{what:?} is not among {found:?}");
    }
}

fn queue(seen: &mut Seen) -> &mut see::QueueSeen {
    seen.queue.as_mut().unwrap()
}

/// The topic in every observation.
fn each(seen: &mut Seen, topic: &str, mut f: impl FnMut(&mut crate::oracle::TopicObs)) {
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
        let given = Given { name: held.name.clone(), seq: held.seq, deliveries: 9 };
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
        queue(s).claimed.extend(jobs.map(|(name, seq)| Given {
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
    // What no look has shown and no recovery shows was left out.
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
    e.flags("is handed out twice", |s| by(s, "once", &|c| c.read.insert(0, handed)));
    e.flags("I8: again of t is at None", |s| s.consumers.retain(|c| c.info.name != "again"));
    e.flags("nobody created", |s| by(s, "again", &|c| c.info.name = "ghost".into()));
    e.flags(" reads ", |s| by(s, "again", &|c| _ = c.read.pop()));
    let e = end("auto_commit");
    e.flags("I8: auto of t", |s| by(s, "auto", &|c| c.info.cursor = 1));
    e.flags("I8: auto of t", |s| by(s, "auto", &|c| c.info.cursor += 2));
}

#[test]
fn what_is_not_kept_may_go() {
    // The same loss without a promise is none.
    let e = end("chain");
    let mut seen = e.seen.clone();
    each(&mut seen, "a", |t| t.records.clear());
    let unkept = |p: &mut Past<'_>| {
        p.killed = false;
        p.notes.iter_mut().for_each(|n| n.0 = note::Far::Done);
    };
    let lost = |found: &[String]| found.iter().any(|p| p.contains("I1: a:"));
    assert!(lost(&e.judged(&seen, |_| ())));
    assert!(!lost(&e.judged(&seen, unkept)));
}
