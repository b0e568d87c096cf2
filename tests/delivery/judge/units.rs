//! I5 across topics: a transaction is in all of its topics or in none, once; in all if it was
//! acked. A staged part waits; an aborted one does not come back.

use std::collections::{BTreeMap, BTreeSet};

use super::super::note::{Note, Past, Progress, StagePart, Unit};
use super::super::script::shown;
use super::super::see::{Seen, TxnsSeen};

type Topics = BTreeMap<String, super::super::note::Shown>;

pub fn judge(past: &Past<'_>, seen: &Seen, txns: &TxnsSeen, out: &mut Vec<String>) {
    let topics = shown(&seen.first);
    let mut units: BTreeMap<usize, (&Unit, bool)> = BTreeMap::new();
    for (progress, note) in &past.notes {
        if let Note::Txn { unit, .. } = note {
            units.entry(unit.number).or_insert((unit, false)).1 |= *progress != Progress::Started;
        }
    }
    for (n, (unit, acked)) in &units {
        together(past, &topics, unit, out);
        let signs = signs(past, txns, &topics, unit);
        let of = |there: bool| -> Vec<&str> {
            signs.iter().filter(|s| s.1 == there).map(|s| s.0.as_str()).collect()
        };
        let (there, missing) = (of(true), of(false));
        if *acked && !missing.is_empty() {
            out.push(format!("I1: transaction {n} was acked and is not in {missing:?}"));
        } else if !there.is_empty() && !missing.is_empty() {
            out.push(format!("I5: transaction {n} is in {there:?}, not in {missing:?}"));
        }
    }
    stages(past, txns, out);
    for (n, code) in &txns.again {
        if *code == Some("txn_incomplete")
            && let Some((unit, _)) = units.get(n)
            && unit.stages.iter().all(|s| waiting(past, unit.writer.unwrap_or("w"), s.0, s.1))
        {
            out.push(format!("I1: the stages of transaction {n} were acked: {code:?}"));
        }
    }
}

/// I5: in each topic its rows are one batch, in order, each once; no other topic has them.
fn together(past: &Past<'_>, topics: &Topics, unit: &Unit, out: &mut Vec<String>) {
    let n = unit.number;
    let routed = |topic: &str| {
        let to = |n: &Note| matches!(n, Note::Routed { req, .. } if req.dest == topic);
        past.notes.iter().any(|(_, n)| to(n))
    };
    for (topic, rows) in &unit.rows {
        let names: BTreeSet<&str> = rows.iter().map(|r| &*r.name).collect();
        for (other, t) in topics {
            let found: Vec<(u64, &str)> = t.records.iter().map(|(s, r)| (*s, &**r)).collect();
            let found: Vec<_> = found.into_iter().filter(|(_, r)| names.contains(r)).collect();
            if other != topic {
                if !found.is_empty() && !routed(other) && other != "dead" {
                    out.push(format!("transaction {n}: rows of {topic} are in {other}"));
                }
                continue;
            }
            if topic == "q" {
                // Jobs are removed one by one.
                if found.len() > found.iter().map(|f| f.1).collect::<BTreeSet<_>>().len() {
                    out.push(format!("transaction {n}: jobs are there twice: {found:?}"));
                }
                continue;
            }
            let whole = found.iter().map(|f| f.1).eq(rows.iter().map(|r| &*r.name));
            let dense = found.windows(2).all(|w| w[0].0 + 1 == w[1].0);
            if !(found.is_empty() || (whole && dense) || trimmed(past, topic)) {
                let want = rows.len();
                out.push(format!("I5: {topic}: transaction {n} of {want} is {found:?}"));
            }
        }
    }
}

/// Whether records may be missing for another reason.
fn trimmed(past: &Past<'_>, topic: &str) -> bool {
    past.notes.iter().any(|(_, n)| match n {
        Note::Deleted { topic: t, .. } | Note::Dropped { topic: t } => t == topic,
        _ => false,
    })
}

/// The effects that prove or disprove a transaction, without those that may have another cause.
fn signs(past: &Past<'_>, txns: &TxnsSeen, topics: &Topics, unit: &Unit) -> Vec<(String, bool)> {
    let mut out = Vec::new();
    for (topic, rows) in &unit.rows {
        let there: BTreeSet<&str> = topics
            .get(topic)
            .map(|t| t.records.values())
            .into_iter()
            .flatten()
            .map(|r| &**r)
            .collect();
        let some = rows.iter().any(|r| there.contains(&*r.name));
        let taken = match topic.as_str() {
            "q" => rows.iter().any(|r| other_acks(past, unit, &r.name)),
            topic => trimmed(past, topic),
        };
        if some || !taken {
            out.push((topic.clone(), some));
        }
    }
    for m in unit.moves.iter().filter(|m| m.seq > m.before) {
        let at = txns.cursors.get(&(m.id, m.consumer.to_owned())).copied();
        let of = |t: &str, c: &str| (t, c) == (&*m.topic, m.consumer);
        let others = past.notes.iter().any(|(_, n)| match n {
            Note::Txn { unit: u, .. } => {
                let further = u.moves.iter().any(|o| of(&o.topic, o.consumer) && o.seq >= m.seq);
                u.number != unit.number && further
            }
            Note::Stored { topic, consumer, at, .. } => {
                of(topic, consumer) && at.is_none_or(|at| at >= m.seq)
            }
            Note::Sought { topic, consumer, .. } => of(topic, consumer),
            Note::Dropped { topic } => *topic == m.topic,
            _ => false,
        });
        let moved = at.is_some_and(|at| at >= m.seq);
        if !others {
            out.push((format!("the cursor of {}", m.consumer), moved));
        }
    }
    for job in &unit.acks {
        let jobs = topics.get("q").map(|t| t.records.values()).into_iter().flatten();
        let there = jobs.into_iter().any(|r| *r == job.name);
        if there || (was_there(past, &job.name) && !other_acks(past, unit, &job.name)) {
            out.push((format!("the acks ({})", job.name), !there));
        }
    }
    if let Some((writer, epoch)) = unit.writer.zip(unit.epoch) {
        let last = txns.writers.get(writer).and_then(|w| w.last);
        if last.is_none_or(|last| last <= epoch) {
            out.push((format!("what is known of {writer}"), last == Some(epoch)));
        }
    }
    out
}

/// Whether a job is certainly in the queue as long as no call acks it.
fn was_there(past: &Past<'_>, name: &str) -> bool {
    past.notes.iter().any(|(progress, n)| {
        let jobs = n.puts().into_iter().filter(|p| p.0 == "q").flat_map(|p| p.3);
        past.keeps("q", *progress, n) && jobs.into_iter().any(|r| r.name == name)
    })
}

/// Whether another call acks a job.
fn other_acks(past: &Past<'_>, unit: &Unit, name: &str) -> bool {
    past.notes.iter().any(|(_, n)| {
        let own = matches!(n, Note::Txn { unit: u, .. } if u.number == unit.number);
        !own && n.acks().iter().any(|j| j.name == name)
    })
}

/// A stage, according to the notes.
#[derive(Default)]
struct Stage<'a> {
    /// Its parts, and whether they were acked.
    parts: BTreeMap<u32, (&'a StagePart, bool)>,
    /// A call that ends it had begun; had returned.
    ending: bool,
    ended: bool,
}

fn known<'a>(past: &Past<'a>) -> BTreeMap<(&'a str, &'a str), Stage<'a>> {
    let mut all: BTreeMap<(&str, &str), Stage<'_>> = BTreeMap::new();
    for (progress, note) in &past.notes {
        let done = *progress != Progress::Started;
        match note {
            Note::Staged(p) | Note::Tried(p) => {
                let s = all.entry((p.writer, p.stage)).or_default();
                if s.ended {
                    *s = Stage::default();
                }
                let acked = done && matches!(note, Note::Staged(_));
                s.parts.insert(p.part, (p, acked));
            }
            Note::Aborted { writer, stage } => {
                let s = all.entry((writer, stage)).or_default();
                // Files that a decision may name stay until the log has advanced.
                (s.ending, s.ended) = (true, done && !s.ending);
            }
            Note::Txn { unit, .. } => {
                for (stage, _) in &unit.stages {
                    let s = all.entry((unit.writer.unwrap_or("w"), stage)).or_default();
                    (s.ending, s.ended) = (true, s.ended || done);
                }
            }
            _ => {}
        }
    }
    all
}

fn waiting(past: &Past<'_>, writer: &str, stage: &str, parts: u32) -> bool {
    let aborted = past.notes.iter().any(
        |(_, n)| matches!(n, Note::Aborted { writer: w, stage: s } if (*w, *s) == (writer, stage)),
    );
    let all = known(past);
    let s = all.get(&(writer, stage));
    let acked = |n| {
        let part = s.and_then(|s| s.parts.get(&n));
        part.is_some_and(|(p, acked)| *acked && p.until > past.wall)
    };
    !aborted && (0..parts).all(acked)
}

/// Stages that were staged and not ended wait; ended ones do not; no other stage exists.
fn stages(past: &Past<'_>, txns: &TxnsSeen, out: &mut Vec<String>) {
    let all = known(past);
    for ((writer, stage), s) in &all {
        let is = txns.writers.get(writer).and_then(|w| w.staged.get(*stage)).copied();
        let rows = |p: &StagePart| p.rows.iter().map(|r| r.1.len() as u64).sum::<u64>();
        let acked = s.parts.values().filter(|p| p.1 && p.0.until > past.wall);
        let least = acked.clone().map(|p| rows(p.0)).sum::<u64>();
        let most = s.parts.values().map(|p| rows(p.0)).sum::<u64>();
        let (least_parts, most_parts) = (acked.count() as u32, s.parts.len() as u32);
        let (parts, records) = is.unwrap_or_default();
        let text = format!("{stage} of {writer} waits with {is:?}");
        if !s.ending && (parts < least_parts || records < least) {
            out.push(format!("I1: {text}, {least_parts} parts of {least} rows were acked"));
        }
        if parts > most_parts || records > most {
            out.push(format!("{text}, {most_parts} parts of {most} rows were staged"));
        }
        if s.ended && is.is_some() {
            out.push(format!("{text}, and is over"));
        }
    }
    for (writer, w) in &txns.writers {
        if let Some(stage) = w.staged.keys().find(|s| !all.contains_key(&(*writer, s.as_str()))) {
            out.push(format!("no call staged {stage} of {writer}"));
        }
    }
}
