//! The state of transactions after a recovery, and the answers to repeated calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_engine::{CommitRequest, Committed, Engine, Error};
use topics_sim::{DiskImage, Survival};

use super::super::note::{StagePart, Unit};
use super::super::script::{call, shown, stage};
use super::{Mount, Probes, Seen};
use crate::oracle::observe;

/// A writer: its last epoch and, by stage, the number of waiting parts and rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterSeen {
    pub last: Option<u64>,
    pub staged: BTreeMap<String, (u32, u64)>,
}

/// Transactions after a recovery.
#[derive(Clone, Debug, Default)]
pub struct TxnsSeen {
    pub writers: BTreeMap<&'static str, WriterSeen>,
    /// Cursors by topic id and consumer.
    pub cursors: BTreeMap<(u64, String), u64>,
    /// Repeated calls: the transaction's number and the code of the error.
    pub again: Vec<(usize, Option<&'static str>)>,
}

/// The minimum time that a key is remembered.
const WINDOW_MS: u64 = 110_000;

fn writer(engine: &Engine, name: &str) -> WriterSeen {
    let Ok(state) = engine.writer_state(name) else { return WriterSeen::default() };
    let staged = state.staged.into_iter().map(|s| (s.stage, (s.parts, s.records))).collect();
    WriterSeen { last: state.last_epoch, staged }
}

/// Observes without changing anything.
pub fn look(engine: &Engine, probes: &Probes, seen: &mut Seen) {
    let mut out = TxnsSeen::default();
    let parts = probes.parts.iter().map(|p| p.writer);
    for name in parts.chain(probes.units.iter().filter_map(|u| u.writer)) {
        out.writers.entry(name).or_insert_with(|| writer(engine, name));
    }
    for t in &seen.first.topics {
        for c in engine.consumers(&t.state.topic).unwrap_or_default() {
            out.cursors.insert((t.state.topic_id, c.name), c.cursor);
        }
    }
    seen.txns = Some(out);
}

/// A topic's rows with these payloads, by seq.
fn places(engine: &Engine, wall: u64, unit: &Unit) -> BTreeMap<String, Vec<u64>> {
    let all = shown(&observe(engine, wall, 50).0);
    let mut out = BTreeMap::new();
    for (topic, rows) in &unit.rows {
        let records = all.get(topic).map(|t| &t.records).into_iter().flatten();
        let mine = records.filter(|(_, name)| rows.iter().any(|r| r.name == **name));
        let seqs: Vec<u64> = mine.map(|(seq, _)| *seq).collect();
        if !seqs.is_empty() {
            out.insert(topic.clone(), seqs);
        }
    }
    out
}

/// A recovered image, and the repeated calls on it.
struct Again<'a> {
    probes: &'a Probes,
    wall: u64,
    problems: Vec<String>,
}

impl Again<'_> {
    fn wrong(&mut self, unit: &Unit, text: &str) {
        self.problems.push(format!("transaction {}: {text}", unit.number));
    }

    fn open(&mut self, mount: &mut Mount) -> Option<Engine> {
        match mount.open(&self.probes.options) {
            Ok(engine) => Some(engine),
            Err(e) => {
                self.problems.push(format!("another open is refused: {e}"));
                None
            }
        }
    }

    /// Repeating the last transaction of each writer, and each remembered key, changes nothing.
    fn repeat(&mut self, engine: &Engine) {
        let before = observe(engine, self.wall, 50).0;
        for unit in &self.probes.units {
            let known = match unit.writer {
                Some(name) => unit.epoch.is_some() && writer(engine, name).last == unit.epoch,
                None => {
                    let here = places(engine, self.wall, unit);
                    let due = self.wall < unit.wall + WINDOW_MS;
                    !unit.key.is_empty() && due && here.len() == unit.rows.len()
                }
            };
            if known {
                let answer = call(engine, unit);
                self.deduped(engine, unit, answer);
            }
            if let Some(epoch) = unit.epoch.filter(|e| known && *e > 0) {
                let old = Unit { epoch: Some(epoch - 1), ..(**unit).clone() };
                let code = call(engine, &old).map_or_else(|e| e.code(), |_| "ok");
                if code != "stale_epoch" {
                    self.wrong(unit, &format!("an older epoch is {code}"));
                }
                self.of_other_query(engine, unit);
            }
        }
        let after = observe(engine, self.wall, 50).0;
        if before != after {
            self.problems.push(format!("repeats changed {before:?} to {after:?}"));
        }
    }

    /// The epoch is of the query that committed it: to another it is stale, with the names of both.
    fn of_other_query(&mut self, engine: &Engine, unit: &Unit) {
        let (Some(writer), Some(epoch)) = (unit.writer, unit.epoch) else { return };
        for query in ["", "another"].into_iter().filter(|q| *q != unit.query) {
            let req = CommitRequest { epoch, query, ..CommitRequest::default() };
            let answer = engine.commit(writer, &req);
            let told = match &answer {
                Err(Error::EpochOfOtherQuery { committed_by, query, .. }) => {
                    Some((committed_by.as_str(), query.as_str()))
                }
                _ => None,
            };
            if told != Some((unit.query, query)) {
                self.wrong(unit, &format!("to the query {query:?} its epoch is {answer:?}"));
            }
        }
    }

    /// The answer must be marked as deduped and name the positions of the rows.
    fn deduped(&mut self, engine: &Engine, unit: &Unit, answer: topics_engine::Result<Committed>) {
        let Ok(answer) = answer else {
            return self.wrong(unit, &format!("its repeat is {answer:?}"));
        };
        if !answer.deduped {
            self.wrong(unit, "its repeat is not deduped");
        }
        self.agrees(engine, unit, &answer);
    }

    /// The rows are where the answer says, once.
    fn agrees(&mut self, engine: &Engine, unit: &Unit, answer: &Committed) {
        let here = places(engine, self.wall, unit);
        for t in &answer.topics {
            let same = engine.state(&t.topic, false).is_ok_and(|s| s.topic_id == t.topic_id);
            let want: Vec<u64> = (t.first_seq..=t.last_seq).collect();
            let rows = unit.rows.iter().find(|r| r.0 == t.topic).map_or(0, |r| r.1.len());
            let is = here.get(&t.topic).cloned().unwrap_or_default();
            let jobs = t.topic == "q" && is.iter().all(|seq| want.contains(seq));
            if want.len() != rows || (same && is != want && !jobs) {
                self.wrong(unit, &format!("{} has its rows at {is:?}, the answer {t:?}", t.topic));
            }
        }
        let told = |topic: &str| answer.topics.iter().any(|t| t.topic == topic);
        if let Some(topic) = here.keys().find(|t| !told(t)) {
            self.wrong(unit, &format!("{topic} has rows, the answer does not say so"));
        }
    }

    /// Each writer's next transaction takes effect completely, or is refused without effect.
    /// Returns the outcomes in order.
    fn next(&mut self, engine: &Engine, again: &mut Vec<(usize, Option<&'static str>)>) {
        let probes = self.probes;
        let mut tried: Vec<&str> = Vec::new();
        for unit in &probes.units {
            let Some((name, epoch)) = unit.writer.zip(unit.epoch) else { continue };
            if tried.contains(&name) || writer(engine, name).last.is_some_and(|l| l >= epoch) {
                continue;
            }
            tried.push(name);
            let before = places(engine, self.wall, unit);
            match call(engine, unit) {
                Ok(answer) => {
                    if answer.deduped || !before.is_empty() {
                        self.wrong(unit, &format!("was nowhere, has {before:?}, says {answer:?}"));
                    }
                    self.agrees(engine, unit, &answer);
                    let once_more = call(engine, unit);
                    if once_more.as_ref().is_ok_and(|a| a.topics != answer.topics) {
                        self.wrong(unit, &format!("{answer:?}, then {once_more:?}"));
                    }
                    self.deduped(engine, unit, once_more);
                    again.push((unit.number, None));
                }
                Err(e) => {
                    if places(engine, self.wall, unit) != before {
                        self.wrong(unit, &format!("{e}, and it is there"));
                    }
                    again.push((unit.number, Some(e.code())));
                }
            }
        }
    }

    /// Repeats waiting parts: an answered part is durable.
    fn parts(&mut self, engine: &Engine) -> Vec<Arc<StagePart>> {
        let mut out = Vec::new();
        for part in &self.probes.parts {
            let listed = writer(engine, part.writer).staged.contains_key(part.stage);
            if listed && stage(engine, part).is_ok_and(|s| s.repeated) {
                out.push(part.clone());
            }
        }
        out
    }
}

/// Cuts the power: un-synced data is lost.
fn cut(mount: &Mount, probes: &Probes, wall: u64) -> Mount {
    let mut cursor = mount.fs.crash_cursor();
    cursor.seek(mount.fs.ops_len());
    Mount::new(&cursor.image(Survival::DropAll), probes, wall)
}

/// Recovers an image again and repeats calls: answered ones, the next one of each writer, waiting
/// parts. The new answers survive a power cut.
pub fn again(image: &DiskImage, probes: &Probes, wall: u64, restage: bool, seen: &mut Seen) {
    let mut a = Again { probes, wall, problems: Vec::new() };
    let mut mount = Mount::new(image, probes, wall);
    let Some(engine) = a.open(&mut mount) else { return seen.problems.extend(a.problems) };
    let (mut done, mut waiting) = (Vec::new(), Vec::new());
    if restage {
        waiting = a.parts(&engine);
    } else {
        a.repeat(&engine);
        a.next(&engine, &mut done);
    }
    drop(engine);
    let mut mount = cut(&mount, probes, wall);
    if let Some(engine) = a.open(&mut mount) {
        for part in waiting {
            let kept = writer(&engine, part.writer).staged.get(part.stage).copied();
            if kept.is_none_or(|(parts, _)| parts <= part.part) {
                let StagePart { writer, stage, part, .. } = &*part;
                let text = format!("I1: part {part} of {stage} of {writer} was acked: {kept:?}");
                a.problems.push(text);
            }
        }
        for unit in done.iter().filter(|d| d.1.is_none()).map(|d| &probes.units[d.0]) {
            let answer = call(&engine, unit);
            a.deduped(&engine, unit, answer);
        }
    }
    seen.problems.extend(a.problems);
    if let Some(txns) = &mut seen.txns {
        txns.again = done;
    }
}
