//! I8: a stored cursor has the committed position, and `at_most_once` never delivers a record
//! twice.

use std::collections::{BTreeMap, BTreeSet};

use topics_engine::ConsumerMode;

use super::super::note::{Note, Past, Progress};
use super::super::see::Seen;

/// The possible values of a consumer's cursor: the certain one, and later ones. `None`: the
/// consumer does not exist.
struct Cursor<'a> {
    topic: &'a str,
    may: Vec<Option<u64>>,
    /// Delivered at most once, and not before a later seek position.
    handed: BTreeSet<u64>,
}

pub fn judge(past: &Past<'_>, seen: &Seen, out: &mut Vec<String>) {
    let mut all: BTreeMap<(u64, &str), Cursor<'_>> = BTreeMap::new();
    let mut dropped: BTreeMap<&str, usize> = BTreeMap::new();
    for (i, (progress, note)) in past.notes.iter().enumerate() {
        match note {
            Note::Dropped { topic } => drop(dropped.insert(topic, i)),
            _ => take(past, *progress, note, &mut all),
        }
    }
    for ((id, name), c) in &all {
        let there = seen.consumers.iter().find(|s| s.topic_id == *id && s.info.name == *name);
        let topic = seen.first.topic(c.topic).filter(|t| t.state.topic_id == *id);
        let at = there.map(|s| s.info.cursor);
        if topic.is_some() && !c.may.contains(&at) {
            out.push(format!("I8: {name} of {} is at {at:?}, not {:?}", c.topic, c.may));
        }
        let Some(s) = there else { continue };
        if s.info.mode == ConsumerMode::AtMostOnce {
            for seq in s.read.iter().filter(|seq| c.handed.contains(seq)) {
                out.push(format!("{name}: {seq} is delivered twice"));
            }
        }
    }
    for s in &seen.consumers {
        let name = &s.info.name;
        if !all.keys().any(|(id, n)| *id == s.topic_id && n == name) {
            out.push(format!("no call created the consumer {name} of {}", s.info.topic));
        }
        let due: Vec<u64> = s.live.iter().copied().filter(|q| *q > s.info.cursor).collect();
        if s.read != due {
            out.push(format!("{name} at {} reads {:?}, not {due:?}", s.info.cursor, s.read));
        }
    }
}

fn take<'a>(
    past: &Past<'_>,
    progress: Progress,
    note: &'a Note,
    all: &mut BTreeMap<(u64, &'a str), Cursor<'a>>,
) {
    let new = |topic| Cursor { topic, may: vec![None], handed: BTreeSet::new() };
    let mut set = |topic: &'a str, id: u64, name: &'a str, at: Option<u64>, kept: bool| {
        let c = all.entry((id, name)).or_insert_with(|| new(topic));
        if kept {
            c.may.clear();
        }
        c.may.push(at);
    };
    match note {
        Note::Stored { topic, id, consumer, at } => {
            set(topic, *id, consumer, *at, past.kept(topic, progress));
            if at.is_none()
                && let Some(c) = all.get_mut(&(*id, *consumer))
            {
                c.handed.clear();
            }
        }
        Note::Txn { unit, .. } => {
            for m in &unit.moves {
                let at = Some(m.seq.max(m.before));
                set(&m.topic, m.id, m.consumer, at, past.keeps(&m.topic, progress, note));
            }
        }
        Note::Passed { topic, id, consumer, at } => {
            if let Some(c) = all.get_mut(&(*id, *consumer))
                && past.kept(topic, progress)
            {
                c.may.retain(|m| *m >= Some(*at));
            }
        }
        Note::Dealt { topic, id, consumer, at } => set(topic, *id, consumer, Some(*at), false),
        Note::Sought { topic, id, consumer, at } => {
            set(topic, *id, consumer, Some(*at), past.kept(topic, progress));
            if let Some(c) = all.get_mut(&(*id, *consumer)) {
                c.handed.retain(|seq| seq <= at);
            }
        }
        Note::HandedOut { id, consumer, seqs, next } => {
            // A cursor is durable before its records are delivered, whatever the topic's class.
            if let Some(c) = all.get_mut(&(*id, *consumer)) {
                if progress != Progress::Started {
                    c.may.clear();
                    c.handed.extend(seqs);
                }
                c.may.push(Some(*next));
            }
        }
        _ => {}
    }
}
