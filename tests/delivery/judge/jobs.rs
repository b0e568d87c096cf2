//! I6: a job is never lost, never in two places, and never under two valid leases.

use std::collections::{BTreeMap, BTreeSet};

use topics_engine::JobState;

use super::super::note::{Leased, Note, Past, Progress, Written, error_of};
use super::super::see::{QueueSeen, written};

pub fn judge(past: &Past<'_>, q: &QueueSeen, out: &mut Vec<String>) {
    places(past, q, out);
    leases(past, q, out);
    let all = written(past.notes.iter().map(|n| n.1));
    let jobs: BTreeMap<&str, &Written> = all.iter().map(|(_, w)| (&*w.name, *w)).collect();
    order(past, q, &jobs, out);
    promotions(past, q, &jobs, out);
    errors(past, q, out);
    counts(past, q, out);
}

/// Every job that must exist is in one place: claimable in the end, dead in the queue, or a dead
/// letter. No job is in two places, and no acked job is back.
fn places(past: &Past<'_>, q: &QueueSeen, out: &mut Vec<String>) {
    let mut there: BTreeMap<&str, usize> = BTreeMap::new();
    let drained = q.drained.iter().map(|g| g.name.as_str());
    for name in drained.chain(q.left.iter().chain(&q.letters).map(String::as_str)) {
        *there.entry(name).or_default() += 1;
    }
    for (name, n) in there.iter().filter(|(_, n)| **n > 1) {
        out.push(format!("{name} is there {n} times"));
    }
    let mut must: BTreeSet<&str> = BTreeSet::new();
    let mut gone: BTreeSet<&str> = BTreeSet::new();
    let mut acked: BTreeSet<&str> = BTreeSet::new();
    for (progress, note) in &past.notes {
        match note {
            Note::Put { .. } | Note::Txn { .. } if past.keeps("q", *progress, note) => {
                // A repeated call notes its puts again; they may have been acked since.
                let puts = note.puts().into_iter().filter(|p| p.0 == "q").flat_map(|p| p.3);
                must.extend(puts.map(|r| r.name.as_str()).filter(|n| !acked.contains(n)));
            }
            _ => {}
        }
        for job in note.acks() {
            must.remove(job.name.as_str());
            acked.insert(&job.name);
            if past.keeps("q", *progress, note) {
                gone.insert(&job.name);
            }
        }
    }
    for name in must.iter().filter(|n| !there.contains_key(**n)) {
        out.push(format!("{name} is lost"));
    }
    for name in gone.iter().filter(|n| there.contains_key(**n)) {
        out.push(format!("{name} was acked and is back"));
    }
    for name in q.left.iter().filter(|n| !dead_in_place(q, n, past)) {
        out.push(format!("{name} is in the queue and no claim gets it"));
    }
}

/// A job that no claim returns has used up its deliveries, as far as the notes tell.
fn dead_in_place(q: &QueueSeen, name: &str, past: &Past<'_>) -> bool {
    // The probe itself has claimed it once.
    if q.claimed.iter().any(|g| g.name == name) {
        return true;
    }
    past.facts.leases_durable
        && past.notes.iter().any(|(_, n)| match n {
            Note::Claimed(jobs) => jobs.iter().any(|j| j.name == name),
            _ => false,
        })
}

/// The leases of a job that may be valid: the certain one, and later ones.
#[derive(Default)]
struct PossibleLeases<'a> {
    may: Vec<Option<&'a Leased>>,
}

fn leases(past: &Past<'_>, q: &QueueSeen, out: &mut Vec<String>) {
    let mut possible: BTreeMap<u64, PossibleLeases<'_>> = BTreeMap::new();
    let mut all: Vec<&Leased> = Vec::new();
    // After a redrive a job may be another record, so earlier leases of the record are not checked.
    let mut unsure = false;
    for (progress, note) in &past.notes {
        let kept = past.keeps("q", *progress, note);
        let mut next = |job: &Leased, lease| {
            let h = possible.entry(job.seq).or_insert_with(|| PossibleLeases { may: vec![None] });
            if kept {
                h.may.clear();
            }
            h.may.push(lease);
        };
        match note {
            Note::Claimed(jobs) => {
                jobs.iter().for_each(|j| next(j, Some(j)));
                all.extend(jobs);
            }
            Note::Extended(jobs) => jobs.iter().for_each(|j| next(j, Some(j))),
            Note::Released(jobs) => jobs.iter().for_each(|j| next(j, None)),
            Note::Redriven => unsure |= *progress == Progress::Started,
            note => note.acks().iter().for_each(|j| next(j, None)),
        }
    }
    let mut valid: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for l in &all {
        if q.valid.contains(&l.id) || q.valid_after.contains(&l.id) {
            valid.entry(l.seq).or_default().push(l.id);
            let may = possible.get(&l.seq).map(|h| h.may.as_slice()).unwrap_or_default();
            if !may.iter().flatten().any(|m| m.id == l.id) {
                out.push(format!("I6: the stale lease {} of {} is valid", l.id, l.seq));
            }
        }
    }
    for (seq, ids) in valid.iter_mut() {
        let given = q.claimed.iter().any(|g| g.seq == *seq);
        if ids.len() + usize::from(given) > 1 {
            out.push(format!("I6: {seq} has the valid leases {ids:?}, given again: {given}"));
        }
    }
    if !past.facts.leases_durable {
        valid.iter().for_each(|(seq, ids)| {
            out.push(format!("I6: {ids:?} of {seq} are leases of a life that is over"));
        });
        return;
    }
    let live: BTreeSet<u64> = q.peeked.iter().map(|j| j.seq).collect();
    for (seq, h) in possible.iter().filter(|(seq, _)| live.contains(seq)) {
        if let [Some(l)] = h.may.as_slice()
            && l.deadline > past.wall
            && !q.valid.contains(&l.id)
            && !unsure
        {
            out.push(format!("I6: the durable lease {} of {seq} is gone", l.id));
        }
    }
    // At most one job of a group is leased.
    let attempts = written(past.notes.iter().map(|n| n.1));
    let group =
        |name: &str| attempts.iter().find(|(_, w)| w.name == name).map_or("", |w| w.1.group);
    let mine = q.claimed.iter().map(|g| group(&g.name));
    let theirs = all.iter().filter(|l| q.valid_after.contains(&l.id)).map(|l| group(&l.name));
    let mut leased: Vec<&str> = mine.chain(theirs).filter(|g| !g.is_empty()).collect();
    leased.sort_unstable();
    if let Some(pair) = leased.windows(2).find(|p| p[0] == p[1]) {
        out.push(format!("I6: two jobs of group {} are leased", pair[0]));
    }
}

/// A claim returns the lowest lane first, in seq order; no job before its time; groups in order.
fn order(past: &Past<'_>, q: &QueueSeen, jobs: &BTreeMap<&str, &Written>, out: &mut Vec<String>) {
    let place = |name: &str, seq: u64| (jobs.get(name).and_then(|w| w.lane).unwrap_or(5), seq);
    let claimed: Vec<(u8, u64)> = q.claimed.iter().map(|g| place(&g.name, g.seq)).collect();
    if !claimed.is_sorted() {
        out.push(format!("a claim gives (lane, seq) {claimed:?}"));
    }
    let promoted = |name: &str| past.notes.iter().any(|(_, n)| n.promotes(name));
    for g in &q.claimed {
        let due = jobs.get(g.name.as_str()).map_or(0, |w| w.deliver_at);
        if due > past.wall && !promoted(&g.name) {
            out.push(format!("{} is given {} ms too early", g.name, due - past.wall));
        }
    }
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for g in &q.drained {
        let group = jobs.get(g.name.as_str()).map_or("", |w| w.group);
        let before = last.insert(group, g.seq).unwrap_or(0);
        if !group.is_empty() && before > g.seq {
            out.push(format!("group {group}: {} is given after {before}", g.seq));
        }
    }
}

/// A job with a durable promotion does not wait for its due time again.
fn promotions(
    past: &Past<'_>,
    q: &QueueSeen,
    jobs: &BTreeMap<&str, &Written>,
    out: &mut Vec<String>,
) {
    for (progress, note) in &past.notes {
        let Note::Promoted(promoted) = note else { continue };
        if !past.keeps("q", *progress, note) {
            continue;
        }
        for (seq, name) in promoted {
            let due = jobs.get(name.as_str()).map_or(0, |w| w.deliver_at);
            let shown = q.peeked.iter().find(|j| j.seq == *seq);
            if due > 0 && shown.is_some_and(|j| j.visible_at == Some(due)) {
                out.push(format!("{name} was promoted and is delayed again"));
            }
        }
    }
}

/// A job has the error of the latest certain nack, or of a later one; its dead letter too.
fn errors(past: &Past<'_>, q: &QueueSeen, out: &mut Vec<String>) {
    if past.notes.iter().any(|(_, n)| matches!(n, Note::Redriven)) {
        return;
    }
    let mut may: BTreeMap<u64, Vec<Option<String>>> = BTreeMap::new();
    for (progress, note) in &past.notes {
        let Note::Released(jobs) = note else { continue };
        for job in jobs {
            let errors = may.entry(job.seq).or_insert_with(|| vec![None]);
            if past.keeps("q", *progress, note) {
                errors.clear();
            }
            errors.push(error_of(jobs));
        }
    }
    let fits = |seq: &u64, error: &Option<String>| match may.get(seq) {
        Some(errors) => errors.contains(error),
        None => error.is_none(),
    };
    for job in &q.peeked {
        // Without durable leases a process knows only the errors that it was told itself.
        let fits = if past.facts.leases_durable {
            fits(&job.seq, &job.error)
        } else {
            job.error.is_none()
        };
        if !fits {
            out.push(format!("{} has the error {:?}", job.seq, job.error));
        }
    }
    for (seq, error) in &q.letter_errors {
        let light = !past.facts.leases_durable && error.is_none();
        if !fits(seq, error) && !light {
            out.push(format!("the dead letter of {seq} has the error {error:?}"));
        }
    }
}

/// Deliveries of durable leases are counted across a crash, and so are dead letters, including
/// those that came back.
fn counts(past: &Past<'_>, q: &QueueSeen, out: &mut Vec<String>) {
    let redriven = past.notes.iter().any(|(_, n)| matches!(n, Note::Redriven));
    let (told, found) = (q.counted, q.lettered);
    let all = told.0 >= found.0 && told.1 >= found.1;
    if past.kept("q", Progress::Returned) && !(told == found || (redriven && all)) {
        out.push(format!("(dead-lettered, expired) is {told:?}, the letters are {found:?}"));
    }
    if redriven || !past.facts.leases_durable {
        return;
    }
    let mut given: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    for (progress, note) in &past.notes {
        if let Note::Claimed(jobs) = note {
            for j in jobs {
                let n = given.entry(j.seq).or_default();
                n.1 = n.1.max(j.deliveries);
                if past.kept("q", *progress) {
                    n.0 = n.0.max(j.deliveries);
                }
            }
        }
    }
    for g in &q.claimed {
        let (least, most) = given.get(&g.seq).copied().unwrap_or_default();
        if g.deliveries <= least || g.deliveries > most + 1 {
            let text = format!("delivery {} of {}, {least} to {most} before", g.deliveries, g.seq);
            out.push(text);
        }
    }
    for j in q.peeked.iter().filter(|j| j.state == JobState::Leased) {
        if !given.contains_key(&j.seq) {
            out.push(format!("I6: {} is leased without a worker", j.seq));
        }
    }
}
