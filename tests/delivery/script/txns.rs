//! The transactions of a script.

use std::sync::Arc;

use topics_engine::{
    Append, CommitRequest, Committed, Error, LeasedJobs, NewRecord, Result, StageRequest, TxnAck,
    TxnCursor, TxnRequest, TxnRows, TxnStage, TxnWork,
};
use topics_sim::{CallFilter, CallKind, FaultKind};

use super::super::note::{Leased, Moved, Note, Span, StagePart, Unit, Written};
use super::{Script, new_record};

/// How long a stage waits for its commit (the engine's default).
pub const STAGE_TTL_MS: u64 = 3_600_000;

/// The outcome of a transaction call, for a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnOutcome {
    Done(Committed),
    /// Refused without effect, with this code.
    Refused(&'static str),
    /// The outcome is unknown.
    Unknown,
}

/// The number of rows for each topic of a script's request.
pub type Rows<'a> = &'a [(&'a str, usize)];

/// The same rows in the form of a call.
fn records(rows: &[(String, Vec<Written>)]) -> Vec<(&str, Vec<NewRecord<'_>>)> {
    rows.iter().map(|(t, all)| (t.as_str(), all.iter().map(new_record).collect())).collect()
}

fn lend<'a>(rows: &'a [(&'a str, Vec<NewRecord<'a>>)]) -> Vec<TxnRows<'a>> {
    let rows = rows.iter();
    rows.map(|(topic, records)| TxnRows { topic, records, ..TxnRows::default() }).collect()
}

/// Calls an engine with a transaction.
pub fn call(engine: &topics_engine::Engine, unit: &Unit) -> Result<Committed> {
    let seqs: Vec<u64> = unit.acks.iter().map(|j| j.seq).collect();
    let ids: Vec<u64> = unit.acks.iter().map(|j| j.id).collect();
    let held = |i: usize| LeasedJobs {
        node: unit.acks[i].node.as_bytes(),
        seqs: &seqs[i..=i],
        lease_ids: Some(&ids[i..=i]),
    };
    let acks = (0..seqs.len()).map(|i| TxnAck { queue: "q", jobs: held(i) });
    let acks: Vec<TxnAck<'_>> = acks.collect();
    let moves = unit.moves.iter();
    let moves =
        moves.map(|m| TxnCursor { topic: &m.topic, consumer: m.consumer, seq: m.seq, fence: None });
    let commits: Vec<TxnCursor<'_>> = moves.collect();
    let work = TxnWork { expect_heads: &unit.heads, commits: &commits, acks: &acks };
    if !unit.stages.is_empty() {
        let stages = unit.stages.iter();
        let stages = stages.map(|(stage, parts)| TxnStage { stage, parts: *parts, records: None });
        let stages: Vec<TxnStage<'_>> = stages.collect();
        let req = CommitRequest {
            epoch: unit.epoch.unwrap_or(1),
            stages: &stages,
            work,
            query: unit.query,
            ..CommitRequest::default()
        };
        return engine.commit(unit.writer.unwrap_or("w"), &req);
    }
    let rows = records(&unit.rows);
    let key = unit.key.as_bytes();
    let rows = lend(&rows);
    engine.transact(&TxnRequest {
        writer: unit.writer,
        epoch: unit.epoch,
        key,
        owner: "",
        rows: &rows,
        work,
    })
}

/// Stages a part.
pub fn stage(engine: &topics_engine::Engine, part: &StagePart) -> Result<topics_engine::Staged> {
    let rows = records(&part.rows);
    let rows = lend(&rows);
    engine.stage(part.writer, &StageRequest { stage: part.stage, part: part.part, rows: &rows })
}

impl Unit {
    /// The transaction of a writer.
    pub fn of(writer: &'static str, epoch: u64) -> Self {
        Self { writer: Some(writer), epoch: Some(epoch), ..Self::default() }
    }

    /// The query that commits its stages.
    pub fn by(self, query: &'static str) -> Self {
        Self { query, ..self }
    }

    pub fn keyed(key: &'static str) -> Self {
        Self { key, ..Self::default() }
    }

    pub fn stages(self, stages: &[(&'static str, u32)]) -> Self {
        Self { stages: stages.to_vec(), ..self }
    }

    pub fn head(mut self, topic: &'static str, head: u64) -> Self {
        self.heads.push((topic, head));
        self
    }

    pub fn acks(self, jobs: &[Leased]) -> Self {
        Self { acks: jobs.to_vec(), ..self }
    }

    /// Moves a cursor.
    pub fn moves(mut self, topic: &str, consumer: &'static str, seq: u64) -> Self {
        self.moves.push(Moved { topic: topic.into(), id: 0, consumer, seq, before: 0 });
        self
    }
}

impl Script {
    fn rows(&mut self, rows: Rows<'_>) -> Vec<(String, Vec<Written>)> {
        let mut out = Vec::new();
        for (topic, n) in rows {
            let name =
                |i: usize| Written { name: format!("\"{topic}-{i}\""), ..Written::default() };
            let new = (self.names..self.names + n).map(name).collect();
            self.names += n;
            out.push(((*topic).to_owned(), new));
        }
        out
    }

    /// Stages rows; an existing part stays unchanged. False: the disk failed.
    pub fn stage(
        &mut self,
        writer: &'static str,
        name: &'static str,
        part: u32,
        rows: Rows<'_>,
    ) -> bool {
        let rows = self.rows(rows);
        let now = self.now();
        let key = (writer, name, part);
        let part =
            Arc::new(StagePart { writer, stage: name, part, rows, until: now + STAGE_TTL_MS });
        let from = self.calls();
        let outcome = stage(&self.engine(), &part);
        match outcome {
            Ok(staged) => {
                let known = self.parts.get(&key).filter(|_| staged.repeated);
                let part = known.cloned().unwrap_or(part);
                self.parts.insert(key, part.clone());
                self.note(from, Note::Staged(part));
                self.pass(1);
                true
            }
            Err(e) => {
                assert!(matches!(e, Error::StorageUnavailable { .. }), "{e}");
                self.parts.insert(key, part.clone());
                self.note(from, Note::Tried(part));
                false
            }
        }
    }

    /// Aborts a stage.
    pub fn abort(&mut self, writer: &'static str, stage: &'static str) {
        let note = Note::Aborted { writer, stage };
        assert!(self.call(|e| e.abort_stage(writer, stage).unwrap(), |_| note));
        self.parts.retain(|k, _| (k.0, k.1) != (writer, stage));
    }

    /// Advances the clock past a stage's TTL, so that it is swept.
    pub fn sweep(&mut self, writer: &'static str, stage: &'static str) {
        self.pass(STAGE_TTL_MS + 1_000);
        let note = Note::Aborted { writer, stage };
        self.call(|e| e.tick().unwrap(), |()| note);
        let staged = self.engine().writer_state(writer).map_or(0, |s| s.staged.len());
        assert_eq!(staged, 0, "{stage:?} is swept");
        self.parts.retain(|k, _| (k.0, k.1) != (writer, stage));
    }

    /// Advances the clock so that a pass over transactions runs.
    pub fn sweep_files(&mut self) {
        self.pass(6_000);
        self.engine().tick().unwrap();
    }

    /// A transaction; in one call, with new rows.
    pub fn txn(&mut self, unit: Unit, rows: Rows<'_>) -> TxnOutcome {
        let mut unit = Unit { number: self.units.len(), wall: self.now(), ..unit };
        unit.rows = self.rows(rows);
        for (stage, parts) in &unit.stages {
            for n in 0..*parts {
                let key = (unit.writer.unwrap_or("w"), *stage, n);
                let Some(part) = self.parts.get(&key) else { continue };
                for (topic, rows) in &part.rows {
                    match unit.rows.iter_mut().find(|r| r.0 == *topic) {
                        Some((_, all)) => all.extend(rows.iter().cloned()),
                        None => unit.rows.push((topic.clone(), rows.clone())),
                    }
                }
            }
        }
        let e = self.engine();
        for m in &mut unit.moves {
            let all = e.consumers(&m.topic).unwrap_or_default();
            m.before = all.iter().find(|c| c.name == m.consumer).map_or(0, |c| c.cursor);
            m.id = e.state(&m.topic, false).map_or(0, |s| s.topic_id);
        }
        let from = self.calls();
        let outcome = call(&self.engine(), &unit);
        if let (Ok(answer), Some(_)) = (&outcome, unit.writer) {
            unit.epoch = Some(answer.epoch);
        }
        let unit = Arc::new(unit);
        let recorded = self.record_outcome(from, &unit, outcome);
        if !matches!(recorded, TxnOutcome::Refused(_)) {
            self.units.push(unit);
        }
        recorded
    }

    /// Repeats the last transaction.
    pub fn repeat(&mut self) -> TxnOutcome {
        let unit = self.units.last().cloned().unwrap();
        let from = self.calls();
        let outcome = call(&self.engine(), &unit);
        self.record_outcome(from, &unit, outcome)
    }

    fn record_outcome(
        &mut self,
        from: usize,
        unit: &Arc<Unit>,
        outcome: Result<Committed>,
    ) -> TxnOutcome {
        let answer = match outcome {
            Ok(answer) => Some(answer),
            Err(Error::StorageUnavailable { .. }) => None,
            Err(e) => {
                self.pass(1);
                return TxnOutcome::Refused(e.code());
            }
        };
        self.note(from, Note::Txn { unit: unit.clone(), answer: answer.clone() });
        self.pass(1);
        for (stage, _) in unit.stages.iter().filter(|_| answer.is_some()) {
            let writer = unit.writer.unwrap_or("w");
            self.parts.retain(|k, _| (k.0, k.1) != (writer, *stage));
        }
        answer.map_or(TxnOutcome::Unknown, TxnOutcome::Done)
    }

    /// Writes without waiting: the write is staged and written with the next group.
    pub fn put_later(&mut self, topic: &str, n: usize) {
        let from = self.calls();
        let all = self.rows(&[(topic, n)]).remove(0).1;
        let records: Vec<NewRecord<'_>> = all.iter().map(new_record).collect();
        let req = Append { records: &records, ..Append::default() };
        let (told, fs) = (self.told.clone(), self.lives[self.lives.len() - 1].0.clone());
        let before = self.calls() - fs.ops_len();
        let (name, written) = (topic.to_owned(), all.clone());
        let done = move |outcome: Result<topics_engine::Appended>| {
            let Ok(a) = outcome else { return };
            let (id, first) = (a.topic_id, a.first_seq);
            let note = Note::Put { topic: name, id, first, records: written };
            let span = Span { from, to: before + fs.ops_len() };
            told.lock().unwrap().push((span, note));
        };
        self.engine().append_async(topic, &req, Box::new(done));
    }

    /// Notes all writes of [`Self::put_later`] so far; all of them have been answered.
    pub fn wait_idle(&mut self) {
        self.engine().drive();
        let told: Vec<_> = self.told.lock().unwrap().drain(..).collect();
        for (span, note) in told {
            self.walls.push((self.calls(), self.now()));
            self.notes.push((span, note));
        }
    }

    /// Makes the next call of a kind on such a path fail.
    pub fn fail(&mut self, kind: CallKind, path: &str, how: FaultKind) {
        self.lives[self.lives.len() - 1].0.fail_nth(CallFilter::on_path(kind, path), 1, how);
    }

    /// Checks that this number of calls failed as requested; no later call fails.
    pub fn failed(&mut self, calls: usize) {
        let fs = &self.lives[self.lives.len() - 1].0;
        assert_eq!(fs.faults_fired(), self.fired + calls, "calls that failed");
        self.fired += calls;
        fs.clear_faults();
    }
}
