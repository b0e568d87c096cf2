//! I7: copies are the source records that the router selects, in their order, each once, without
//! omission.

use std::collections::{BTreeMap, BTreeSet};

use topics_engine::{GapReason, Guarantee, RouterRequest, TopicMatch};

use super::super::note::{Note, Past, Progress, Written};
use super::super::see::{Seen, written};
use super::records::{Placed, placed};
use crate::oracle::{Observation, TopicObs};

/// One creation of a router, according to the notes.
struct Life<'a> {
    name: &'a str,
    req: &'a RouterRequest,
    start: u64,
    source_id: u64,
    dest_id: u64,
    /// Its creation had returned.
    made: bool,
    /// A deletion of it, or of one of its topics, had begun; had returned and was durable.
    ending: bool,
    ended: bool,
}

fn lives<'a>(past: &Past<'a>) -> Vec<Life<'a>> {
    let mut out: Vec<Life<'a>> = Vec::new();
    for (progress, note) in &past.notes {
        let made = *progress != Progress::Started;
        match note {
            Note::Routed { router, req, start, source_id, dest_id } => out.push(Life {
                name: router,
                req,
                start: *start,
                source_id: *source_id,
                dest_id: *dest_id,
                made,
                ending: false,
                ended: false,
            }),
            Note::Unrouted { router } => {
                if let Some(l) = out.iter_mut().rev().find(|l| l.name == router) {
                    (l.ending, l.ended) = (true, made);
                }
            }
            Note::Dropped { topic } => {
                let kept = past.kept(topic, *progress);
                let of = |l: &&mut Life<'_>| l.req.source == *topic || l.req.dest == *topic;
                for l in out.iter_mut().filter(of) {
                    (l.ending, l.ended) = (true, l.ended || kept);
                }
            }
            _ => {}
        }
    }
    out
}

pub fn judge(past: &Past<'_>, seen: &Seen, out: &mut Vec<String>) {
    let lives = lives(past);
    if lives.is_empty() {
        return;
    }
    let mut names: BTreeMap<&str, Vec<&Life<'_>>> = BTreeMap::new();
    lives.iter().for_each(|l| names.entry(l.name).or_default().push(l));
    for (name, of) in &names {
        let there = seen.routers.iter().find(|r| r.router == *name);
        let Some(last) = of.last() else { continue };
        // A router is removed together with a topic that was lost completely.
        let ends = [(&last.req.source, last.source_id), (&last.req.dest, last.dest_id)];
        let ends = ends.iter().all(|(t, id)| topic(&seen.first, t, *id).is_some());
        if last.made && !last.ending && ends && there.is_none_or(|r| r.request != *last.req) {
            out.push(format!("router {name} is {there:?}, not {:?}", last.req));
        }
        if there.is_some() && of.iter().all(|l| l.ended) {
            out.push(format!("router {name} was deleted and is back"));
        }
    }
    let told = placed(past, &mut Vec::new());
    let all = written(past.notes.iter().map(|n| n.1));
    let attempts: BTreeMap<&str, &Written> = all.iter().map(|(_, w)| (&*w.name, *w)).collect();
    let observations: Vec<&Observation> = std::iter::once(&seen.first).chain(&seen.rests).collect();
    for life in &lives {
        for o in &observations {
            order(past, life, o, &attempts, out);
        }
        if life.made && !life.ending {
            complete(life, seen, &told, &attempts, out);
        }
    }
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

fn topic<'o>(o: &'o Observation, name: &str, id: u64) -> Option<&'o TopicObs> {
    o.topic(name).filter(|t| t.state.topic_id == id)
}

/// Payload → seqs in a source: the current one, and those before a crash lost it.
fn origins(past: &Past<'_>, id: u64, now: Option<&TopicObs>) -> BTreeMap<String, BTreeSet<u64>> {
    let mut out: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut put = |name: &str, seq| _ = out.entry(name.to_owned()).or_default().insert(seq);
    now.iter().flat_map(|t| &t.records).for_each(|r| put(&text(&r.data), r.seq));
    for (_, note) in past.ever {
        match note {
            Note::Look(all) => {
                let looks = all.values().filter(|t| t.id == id).flat_map(|t| &t.records);
                looks.for_each(|(seq, name)| put(name, *seq));
            }
            note => {
                for (_, _, first, records) in note.puts().into_iter().filter(|p| p.1 == id) {
                    records.iter().zip(first..).for_each(|(r, seq)| put(&r.name, seq));
                }
            }
        }
    }
    out
}

/// Payload → seq in a topic, as far as the answers tell.
fn seqs(id: u64, now: Option<&TopicObs>, told: &Placed<'_>) -> BTreeMap<String, u64> {
    let told = told.get(&id).into_iter().flatten();
    let mut out: BTreeMap<String, u64> = told.map(|(seq, n)| ((*n).to_owned(), *seq)).collect();
    out.extend(now.iter().flat_map(|t| &t.records).map(|r| (text(&r.data), r.seq)));
    out
}

fn selects(req: &RouterRequest, w: &Written) -> bool {
    req.filter.as_ref().is_none_or(|m| match m {
        TopicMatch::Eq(t) => w.tag.as_bytes() == t,
        TopicMatch::Glob(p) => !w.tag.is_empty() && w.tag.as_bytes().starts_with(p),
    })
}

/// Copies ascend by source seq, each occurs once, and each has the payload of the source. A record
/// that a crash removed from the source and that was written again is another record.
fn order(
    past: &Past<'_>,
    life: &Life<'_>,
    o: &Observation,
    attempts: &BTreeMap<&str, &Written>,
    out: &mut Vec<String>,
) {
    let (dest, req) = (topic(o, &life.req.dest, life.dest_id), life.req);
    let Some(dest) = dest else { return };
    let source = origins(past, life.source_id, topic(o, &req.source, life.source_id));
    let (mut last, mut met) = (0, BTreeMap::new());
    for r in &dest.records {
        let name = text(&r.data);
        let n: &mut usize = met.entry(name.clone()).or_default();
        *n += 1;
        let from = source.get(&name);
        if *n > from.map_or(1, BTreeSet::len) {
            out.push(format!("I7: {} holds {name} {n} times", req.dest));
        }
        let (Some(w), Some(from)) = (attempts.get(name.as_str()), from) else { continue };
        if let Some(origin) = origin(&r.meta)
            && req.guarantee == Guarantee::ExactlyOnce
            && origin.0 == life.name
            && !from.contains(&origin.1)
        {
            out.push(format!("I7: {name} of {from:?} says {origin:?}"));
        }
        match from.iter().find(|seq| **seq > last) {
            Some(seq) => last = *seq,
            None => {
                let text = format!("the copy of {from:?} comes after that of {last}");
                out.push(format!("I7: {}: {text}", req.dest));
            }
        }
        if !selects(req, w) {
            out.push(format!("I7: {}: {name} does not pass the filter", req.dest));
        }
        let tag = if req.preserve_tag { w.tag } else { "" };
        let node = if req.preserve_node { w.node } else { "" };
        if r.tag != tag.as_bytes() || r.node != node.as_bytes() {
            out.push(format!("I7: {}: {name} has another tag or node", req.dest));
        }
    }
}

/// The router and source seq that a copy names.
fn origin(meta: &[u8]) -> Option<(String, u64)> {
    let meta = text(meta);
    let (_, rest) = meta.split_once("_topics_router\":\"")?;
    let mut parts = rest.split('"').next()?.split(':');
    Some((parts.next()?.to_owned(), parts.nth(2)?.parse().ok()?))
}

/// When the router is idle, every record of the source has been copied, and earlier losses of the
/// source are announced.
fn complete(
    life: &Life<'_>,
    seen: &Seen,
    told: &Placed<'_>,
    attempts: &BTreeMap<&str, &Written>,
    out: &mut Vec<String>,
) {
    let (name, req) = (life.name, life.req);
    let Some(end) = seen.rests.last() else { return };
    let source = topic(end, &req.source, life.source_id);
    let dest = topic(end, &req.dest, life.dest_id);
    let (Some(source), Some(dest)) = (source, dest) else { return };
    match seen.rested.iter().find(|r| r.router == name) {
        Some(r) if r.lag > 0 => out.push(format!("I7: {name} rests with {:?}", r)),
        _ => {}
    }
    // Every copy that was ever seen in the destination.
    let mut copied = seqs(life.dest_id, None, told);
    for o in std::iter::once(&seen.first).chain(&seen.rests) {
        copied.extend(seqs(life.dest_id, topic(o, &req.dest, life.dest_id), &BTreeMap::new()));
    }
    let wanted = |r: &&crate::oracle::Seen| {
        let w = attempts.get(text(&r.data).as_str()).copied();
        r.seq > life.start && w.is_some_and(|w| selects(req, w))
    };
    let mut before = 0;
    for r in source.records.iter().filter(wanted) {
        match copied.get(&text(&r.data)) {
            Some(at) => before = *at,
            // Evicted immediately: its seq was above that of the previous copy.
            None if dest.state.evict_floor > before + 1 => {}
            None => out.push(format!("I7: {name} left {} out", text(&r.data))),
        }
    }
    let capped = dest.state.config.cap_records > 0;
    let mut lost = told.get(&life.source_id).into_iter().flatten().rev().filter(|(seq, data)| {
        let gone = source.get(**seq).is_none() && **seq < source.state.evict_floor;
        let wanted = attempts.get(**data).is_some_and(|w| selects(req, w));
        **seq > life.start && gone && wanted && !copied.contains_key(**data)
    });
    let told = dest.state.gaps.iter().any(|g| g.reason == GapReason::SourceTrim)
        || dest.tombstones.iter().any(|t| t.reason == GapReason::SourceTrim);
    if let Some((seq, data)) = lost.next()
        && !capped
        && !told
    {
        out.push(format!("I7: {name}: {data} at {seq} was trimmed, {} has no gap", req.dest));
    }
}
