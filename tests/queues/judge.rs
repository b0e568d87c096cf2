//! What a recovery must show, given what had been called and answered.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_engine::{
    Claim, ConsumerMode, ConsumerRead, ConsumerStart, Durability, Engine, Held, ReadFrom,
    ReadRequest, TopicType,
};
use topics_env::sim::{DiskImage, SimFs, env_on};

use super::script::{Note, Script, Span, name, options};
use crate::run::DIR;

/// Everything that is wrong with the recovery of an image after `at` calls of the disk.
pub fn judge(script: &Script, at: usize, image: &DiskImage, killed: bool) -> Vec<String> {
    let fs = Arc::new(SimFs::from_image(image));
    let clock = super::clock(script.wall());
    let env = env_on(&fs, &clock, script.seed ^ image.hash().rotate_left(17));
    let engine = match Engine::open(env, Path::new(DIR), options()) {
        Ok(engine) => engine,
        Err(e) => return vec![format!("the open is refused: {e}")],
    };
    let past: Vec<(bool, &Note)> = script
        .notes
        .iter()
        .filter(|(s, _)| s.from < at || s.to <= at)
        .map(|(s, n): &(Span, Note)| (s.to <= at, n))
        .collect();
    let mut out = Vec::new();
    if let Ok(state) = engine.state("q", false) {
        let kept = killed || state.config.durability == Durability::Fsync;
        if state.config.kind != TopicType::Queue {
            out.push("q is not a queue".into());
        }
        places(&engine, &past, kept, &mut out);
        leases(&engine, &past, kept, &mut out);
    } else if past.iter().any(|(done, n)| *done && matches!(n, Note::Put(_))) && killed {
        out.push("the queue is gone".into());
    }
    if engine.state("t", false).is_ok() {
        cursors(&engine, &past, killed, &mut out);
    }
    out
}

/// Payload → how often it is there, in both topics together.
fn found(engine: &Engine, out: &mut Vec<String>) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for topic in ["q", "dead"] {
        let mut after = 0;
        while engine.state(topic, false).is_ok() {
            let req = ReadRequest { from: ReadFrom::After(after), ..ReadRequest::default() };
            match engine.read(topic, &req) {
                Ok(b) => {
                    let text = |d: &[u8]| String::from_utf8_lossy(d).into_owned();
                    b.iter().for_each(|r| *all.entry(text(r.data)).or_default() += 1);
                    after = b.next_from_seq;
                    if b.caught_up {
                        break;
                    }
                }
                Err(e) => {
                    out.push(format!("{topic} cannot be read: {e}"));
                    break;
                }
            }
        }
    }
    all
}

/// A job is never lost, and never in two places.
fn places(engine: &Engine, past: &[(bool, &Note)], kept: bool, out: &mut Vec<String>) {
    let there = found(engine, out);
    for (job, n) in &there {
        if *n > 1 {
            out.push(format!("{job} is there {n} times"));
        }
    }
    let (mut written, mut acked, mut acking) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (done, note) in past {
        match note {
            Note::Put(jobs) if *done => written.extend(jobs),
            Note::Acked(jobs) if *done => acked.extend(jobs),
            Note::Acked(jobs) => acking.extend(jobs),
            _ => {}
        }
    }
    for job in written.iter().filter(|_| kept) {
        let n = there.get(*job).copied().unwrap_or(0);
        let gone = acked.contains(job);
        if n == 0 && !gone && !acking.contains(job) {
            out.push(format!("{job} is lost"));
        }
        if n > 0 && gone {
            out.push(format!("{job} was acked and is back"));
        }
    }
}

/// I6: a job has at most one valid lease; a stale fence changes nothing.
fn leases(engine: &Engine, past: &[(bool, &Note)], kept: bool, out: &mut Vec<String>) {
    let mut held: BTreeMap<u64, (&str, u64)> = BTreeMap::new();
    let mut stale: Vec<(&str, u64, u64)> = Vec::new();
    let mut unsure: BTreeSet<u64> = BTreeSet::new();
    for (done, note) in past {
        match note {
            Note::Claimed(node, jobs) => {
                for (_, seq, id) in jobs {
                    if !*done {
                        unsure.insert(*seq);
                    } else if let Some((node, id)) = held.insert(*seq, (node, *id)) {
                        stale.push((node, *seq, id));
                    }
                }
            }
            Note::Released(ids) => {
                let gone: Vec<u64> =
                    held.iter().filter(|(_, l)| ids.contains(&l.1)).map(|(s, _)| *s).collect();
                for seq in gone {
                    if *done {
                        let (node, id) = held.remove(&seq).unwrap();
                        stale.push((node, seq, id));
                    } else {
                        unsure.insert(seq);
                    }
                }
            }
            Note::Acked(_) | Note::Redriven if !*done => unsure.extend(held.keys()),
            _ => {}
        }
    }
    let extend = |node: &str, seq: u64, id: u64| {
        let held = Held { node: node.as_bytes(), seqs: &[seq], lease_ids: Some(&[id]) };
        engine.extend("q", &held, None).map(|s| s.done == [seq])
    };
    // With what is not synced, a power cut may take the release and leave the lease.
    for (node, seq, id) in stale.iter().filter(|l| kept && !unsure.contains(&l.1)) {
        if extend(node, *seq, *id).unwrap_or(true) {
            out.push(format!("I6: the stale lease {id} of {seq} is valid"));
        }
    }
    let req = Claim { node: b"judge", max: 1000, lease_ms: None, wait: Duration::ZERO };
    let mine: BTreeSet<u64> = match engine.claim("q", &req) {
        Ok(c) => c.iter().map(|(l, _)| l.seq).collect(),
        Err(e) => return out.push(format!("a claim after recovery fails: {e}")),
    };
    let live = |seq: u64| {
        let req = ReadRequest {
            from: ReadFrom::After(seq - 1),
            upto: Some(seq),
            ..ReadRequest::default()
        };
        engine.read("q", &req).is_ok_and(|b| b.iter().any(|r| r.seq == seq))
    };
    for (&seq, &(node, id)) in held.iter().filter(|(s, _)| live(**s)) {
        let valid = extend(node, seq, id).unwrap_or(false);
        if valid && mine.contains(&seq) {
            out.push(format!("I6: {seq} has two valid leases"));
        }
        if kept && !valid && !unsure.contains(&seq) {
            out.push(format!("the durable lease {id} of {seq} is gone"));
        }
    }
    // Every live job is leased by somebody now, dead, or behind another of its group.
    if let Ok(state) = engine.queue_state("q")
        && state.delayed > 0
    {
        out.push(format!("{} jobs are delayed, none should be", state.delayed));
    }
}

/// I8, and an `at_most_once` cursor never hands out twice.
fn cursors(engine: &Engine, past: &[(bool, &Note)], killed: bool, out: &mut Vec<String>) {
    let open = |mode| engine.consumer("t", name(mode), Some(mode), ConsumerStart::Start, false);
    let (once, again) = match (open(ConsumerMode::AtMostOnce), open(ConsumerMode::AtLeastOnce)) {
        (Ok(a), Ok(b)) => (a, b),
        (a, b) => return out.push(format!("consumers cannot be opened: {a:?} {b:?}")),
    };
    let kept =
        killed || engine.state("t", false).is_ok_and(|s| s.config.durability == Durability::Fsync);
    let mut handed: BTreeSet<u64> = BTreeSet::new();
    let (mut stored, mut sure) = (0, true);
    for (done, note) in past {
        match note {
            Note::HandedOut(seqs) if *done => handed.extend(seqs),
            Note::Committed(seq) if *done => stored = stored.max(*seq),
            Note::Sought(seq) if *done => stored = *seq,
            Note::Sought(_) => sure = false,
            _ => {}
        }
    }
    for _ in 0..20 {
        match once.read(&ConsumerRead { max_records: 4, ..ConsumerRead::default() }) {
            Ok(b) => {
                for r in b.iter().filter(|r| handed.contains(&r.seq)) {
                    out.push(format!("{} is handed out twice", r.seq));
                }
                if b.caught_up {
                    break;
                }
            }
            Err(e) => return out.push(format!("a consumer cannot read: {e}")),
        }
    }
    match again.cursor() {
        Ok(cursor) if kept && sure && cursor < stored => {
            out.push(format!("I8: the cursor is {cursor}, {stored} was stored"));
        }
        Ok(_) => {}
        Err(e) => out.push(format!("a cursor cannot be read: {e}")),
    }
}
