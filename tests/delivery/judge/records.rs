//! Records: each keeps its seq and value, stays until something removes it, and does not come back
//! after its removal.

use std::collections::{BTreeMap, BTreeSet};

use topics_engine::TopicType;

use super::super::note::{Note, Past, Progress};
use super::super::script::shown;
use super::super::see::Seen;
use crate::oracle::TopicObs;

/// Topic id → seq → payload, as far as the answers tell.
pub type Placed<'a> = BTreeMap<u64, BTreeMap<u64, &'a str>>;

/// The positions of payloads according to acked writes and observations; reports contradictions.
pub fn placed<'a>(past: &Past<'a>, out: &mut Vec<String>) -> Placed<'a> {
    let mut placed: Placed<'a> = BTreeMap::new();
    let mut put = |id: u64, seq: u64, name: &'a str| {
        let old = placed.entry(id).or_default().insert(seq, name);
        if let Some(old) = old.filter(|o| *o != name) {
            out.push(format!("I2: seq {seq} of {id} was {old}, now {name}"));
        }
    };
    for (progress, note) in &past.notes {
        match note {
            _ if *progress == Progress::Started => {}
            Note::Look(all) => {
                for t in all.values() {
                    t.records.iter().for_each(|(seq, name)| put(t.id, *seq, name));
                }
            }
            note => {
                for (_, id, first, records) in note.puts() {
                    records.iter().zip(first..).for_each(|(r, seq)| put(id, seq, &r.name));
                }
            }
        }
    }
    placed
}

pub fn judge(past: &Past<'_>, seen: &Seen, out: &mut Vec<String>) {
    let placed = placed(past, out);
    let looks = std::iter::once(&seen.first).chain(&seen.rests);
    let attempted: BTreeSet<&str> = super::super::see::written(past.notes.iter().map(|n| n.1))
        .iter()
        .map(|w| &*w.1.name)
        .collect();
    let mut now: Placed<'_> = BTreeMap::new();
    let all: Vec<_> = looks.map(shown).collect();
    for topics in &all {
        for (topic, t) in topics {
            for (seq, name) in &t.records {
                let told = placed.get(&t.id).and_then(|p| p.get(seq));
                let told = told.or_else(|| now.get(&t.id).and_then(|p| p.get(seq))).copied();
                if let Some(told) = told.filter(|told| told != name) {
                    out.push(format!("I2: {topic}: seq {seq} was {told}, is {name}"));
                }
                if !attempted.contains(name.as_str()) {
                    out.push(format!("{topic}: {name} was never written"));
                }
                now.entry(t.id).or_default().insert(*seq, name);
            }
        }
    }
    for topic in past.facts.classes.keys() {
        present(past, seen, topic, out);
        batches(past, seen, topic, out);
        if !is_jobs(seen, topic) {
            stays(past, seen, topic, &placed, out);
        }
    }
}

/// Jobs leave a queue and its dead letters in other ways.
fn is_jobs(seen: &Seen, topic: &str) -> bool {
    let queue = |t: &TopicObs| t.state.config.kind == TopicType::Queue;
    topic == "dead" || seen.first.topic(topic).is_none_or(queue)
}

fn dropped(past: &Past<'_>, topic: &str) -> bool {
    past.notes.iter().any(|(_, n)| matches!(n, Note::Dropped { topic: t } if t == topic))
}

/// The latest topic of a name exists, and a deleted one does not.
fn present(past: &Past<'_>, seen: &Seen, topic: &str, out: &mut Vec<String>) {
    let mut must: Option<u64> = None;
    let mut gone = BTreeSet::new();
    for (progress, note) in &past.notes {
        let kept = past.kept(topic, *progress);
        match note {
            Note::Made { topic: t, id } if t == topic && kept => must = Some(*id),
            Note::Look(all) if kept => {
                if let Some(t) = all.get(topic) {
                    must = Some(t.id);
                }
            }
            Note::Dropped { topic: t } if t == topic => {
                gone.extend(must.filter(|_| kept));
                must = None;
            }
            _ => {}
        }
    }
    let is = seen.first.topic(topic).map(|t| t.state.topic_id);
    if let Some(id) = must.filter(|id| is.is_none_or(|is| is < *id)) {
        out.push(format!("I1: {topic} with id {id} is gone: {is:?}"));
    }
    if let Some(id) = is.filter(|id| gone.contains(id)) {
        out.push(format!("{topic} with id {id} was deleted and is back"));
    }
}

/// I1: a durable record exists unless something removes it; a removed record stays away.
fn stays(past: &Past<'_>, seen: &Seen, topic: &str, placed: &Placed<'_>, out: &mut Vec<String>) {
    let Some(t) = seen.first.topic(topic) else { return };
    let (id, config) = (t.state.topic_id, &t.state.config);
    let evicts = config.cap_records + config.cap_bytes + config.ttl_ms > 0;
    let deleted = |seq: u64| {
        past.notes.iter().any(|(_, n)| match n {
            Note::Deleted { topic: d, before } => d == topic && seq < *before,
            _ => false,
        })
    };
    let taken = |seq: u64| deleted(seq) || (evicts && seq < t.state.evict_floor);
    let mut missing = BTreeSet::new();
    for (_, note) in past.notes.iter().filter(|(progress, n)| past.keeps(topic, *progress, n)) {
        match note {
            Note::Look(all) => {
                let Some(look) = all.get(topic).filter(|l| l.id == id) else { continue };
                missing.extend(look.records.keys());
                let told = placed.get(&id).into_iter().flatten();
                let before = told
                    .filter(|(seq, _)| look.records.last_key_value().is_some_and(|l| *seq < l.0));
                for (seq, name) in before.filter(|(seq, _)| !look.records.contains_key(seq)) {
                    // Expiry is not durable by itself: it is computed again.
                    if config.ttl_ms == 0 && t.get(*seq).is_some() {
                        out.push(format!("{topic}: {name} at {seq} was gone and is back"));
                    }
                }
            }
            note => {
                let mine = note.puts().into_iter().filter(|p| p.0 == topic && p.1 == id);
                missing.extend(mine.flat_map(|(_, _, first, r)| (first..).take(r.len())));
            }
        }
    }
    for seq in missing {
        if t.get(seq).is_none() && !taken(seq) {
            let name = placed.get(&id).and_then(|p| p.get(&seq)).copied().unwrap_or("?");
            out.push(format!("I1: {topic}: {name} at {seq} is lost; {:?}", t.tombstone(seq)));
        }
    }
}

/// I5: of a batch that nothing trims, either all records exist or none.
fn batches(past: &Past<'_>, seen: &Seen, topic: &str, out: &mut Vec<String>) {
    let Some(t) = seen.first.topic(topic) else { return };
    let c = &t.state.config;
    let trims = c.kind == TopicType::Queue || c.cap_records + c.cap_bytes + c.ttl_ms > 0;
    let deletes =
        past.notes.iter().any(|(_, n)| matches!(n, Note::Deleted { topic: d, .. } if d == topic));
    if trims || deletes || dropped(past, topic) || topic == "dead" {
        return;
    }
    let there: BTreeSet<&[u8]> = t.records.iter().map(|r| r.data.as_slice()).collect();
    for (_, note) in &past.notes {
        if let Note::Put { topic: p, records, .. } = note
            && p == topic
        {
            let n = records.iter().filter(|r| there.contains(r.name.as_bytes())).count();
            if n != 0 && n != records.len() {
                out.push(format!("I5: {topic}: {n} of a batch of {} are there", records.len()));
            }
        }
    }
}
