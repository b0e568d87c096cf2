//! The steps of transactions.

use topics_engine::{
    CommitRequest, Committed, Error, LeasedJobs, NewRecord, StageRequest, TxnAck, TxnCursor,
    TxnRequest, TxnRows, TxnStage, TxnWork,
};
use topics_model::queue::NewJob;
use topics_model::topic::Topic;

use super::consumers::CONSUMERS;
use super::driver::{Driver, LOGS, Outcome, TAGS, must, ok};
use super::flaw::Flaw;
use super::jobs::{GROUPS, Lease, NODES};
use super::model::{Got, LastEpoch, Row, written};
use super::step::{Epoch, Id, Step, With, Wrong};

pub const WRITERS: [&str; 2] = ["v", "w"];
const STAGES: [&str; 2] = ["one", "two"];
/// The queries that commit stages. A transaction in one call has none.
const QUERIES: [&str; 3] = ["", "query 1", "query 2"];
/// The time that an idempotency key is remembered.
const KEY_MS: u64 = 120_000;
/// The time that staged rows wait.
pub const STAGE_MS: u64 = 60_000;

/// A transaction with all its parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ask {
    rows: Vec<Row>,
    head: Option<(usize, u64)>,
    acks: Vec<Lease>,
    cursors: Vec<(usize, u64)>,
    wrong: Wrong,
}

/// A transaction under an idempotency key, and the time until which it is remembered.
#[derive(Clone, Debug)]
pub struct Keyed {
    ask: Ask,
    got: Got,
    pub until: u64,
    /// The process that found it expired.
    pub forgotten_in: Option<u64>,
    /// Whether a sync has covered its completion.
    pub durable: bool,
    /// A power cut may have lost its completion: the open that completed it again may have logged a
    /// new one, which restarts the time that it is remembered. The latest end of that time.
    pub perhaps_until: u64,
}

/// Whether the engine still remembers the transaction of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Has,
    Lost,
    /// Unknown; its answer tells.
    Perhaps,
}

impl Keyed {
    fn memory(&self, now: u64, life: u64) -> Memory {
        match self.forgotten_in {
            None if now < self.until => Memory::Has,
            // After the clock was set back, a new process may remember a key again.
            Some(of) if now < self.until && of < life => Memory::Perhaps,
            _ if now < self.perhaps_until => Memory::Perhaps,
            _ => Memory::Lost,
        }
    }
}

/// Facts about a transaction before its call: its epoch, and the expected answer or error.
struct Known {
    epoch: u64,
    answer: Result<Got, &'static str>,
    /// Whether the engine has the same knowledge; if not, its answer tells.
    sure: bool,
}

/// Whether an answer shows that the engine remembers the transaction of the key.
fn remembers(answer: &topics_engine::Result<Committed>) -> bool {
    match answer {
        Ok(committed) => committed.deduped,
        Err(e) => e.code() == "idempotency_mismatch",
    }
}

fn target(row: &Row) -> &'static str {
    match row {
        Row::Record { topic, .. } => LOGS[*topic],
        Row::Job(_) => "q",
    }
}

fn record(row: &Row) -> NewRecord<'_> {
    match row {
        Row::Record { name, tag, .. } => {
            NewRecord { data: name.as_bytes(), tag: tag.as_bytes(), ..NewRecord::default() }
        }
        Row::Job(job) => NewRecord {
            data: job.name.as_bytes(),
            lane: Some(job.lane),
            group: GROUPS[job.group],
            deliver_at: job.visible_at,
            ..NewRecord::default()
        },
    }
}

/// Rows by topic, in their order.
pub fn with_rows<R>(rows: &[Row], f: impl FnOnce(&[TxnRows<'_>]) -> R) -> R {
    let mut by: Vec<(&str, Vec<NewRecord<'_>>)> = Vec::new();
    for row in rows {
        match by.iter_mut().find(|b| b.0 == target(row)) {
            Some(b) => b.1.push(record(row)),
            None => by.push((target(row), vec![record(row)])),
        }
    }
    let rows = by.iter().map(|(topic, records)| TxnRows { topic, records, node: b"" });
    f(&rows.collect::<Vec<_>>())
}

fn with_work<R>(ask: &Ask, f: impl FnOnce(&TxnWork<'_>) -> R) -> R {
    let heads: Vec<(&str, u64)> = ask.head.iter().map(|h| (LOGS[h.0], h.1)).collect();
    let mut commits: Vec<TxnCursor<'_>> = Vec::new();
    for (which, seq) in &ask.cursors {
        let (consumer, topic, ..) = CONSUMERS[*which];
        commits.push(TxnCursor { topic: LOGS[topic], consumer, seq: *seq, fence: None });
    }
    if ask.wrong == Wrong::Consumer {
        commits.push(TxnCursor { topic: LOGS[0], consumer: "nobody", seq: 0, fence: None });
    }
    let seqs: Vec<[u64; 1]> = ask.acks.iter().map(|l| [l.1]).collect();
    let ids: Vec<[u64; 1]> = ask.acks.iter().map(|l| [l.2]).collect();
    let ack = |i: usize| {
        let held =
            LeasedJobs { node: NODES[ask.acks[i].0], seqs: &seqs[i], lease_ids: Some(&ids[i]) };
        TxnAck { queue: "q", jobs: held }
    };
    let acks: Vec<TxnAck<'_>> = (0..seqs.len()).map(ack).collect();
    f(&TxnWork { expect_heads: &heads, commits: &commits, acks: &acks })
}

impl Ask {
    /// Whether both are the same request.
    fn says(&self, other: &Self) -> bool {
        *self == Self { wrong: self.wrong, ..other.clone() }
    }

    fn error(&self) -> Option<&'static str> {
        match self.wrong {
            Wrong::Nothing | Wrong::Count => None,
            Wrong::Head => Some("head_mismatch"),
            Wrong::Lease => Some("lease_lost"),
            Wrong::Consumer => Some("consumer_not_found"),
        }
    }
}

impl Driver {
    /// False: the step does not concern transactions.
    pub fn txn(&mut self, step: &Step) -> Result<bool, String> {
        match step {
            Step::Stage { writer, stage, part, to, n, delay } => {
                self.stage(*writer, *stage, *part, (*to, *n, *delay))?;
            }
            Step::Abort { writer, stage } => self.abort(*writer, *stage)?,
            Step::Commit { writer, stages, epoch, query, with } => {
                self.commit_stages(*writer, *stages, (*epoch, QUERIES[*query]), with)?;
            }
            Step::Transact { id, to, n, delay, with } => {
                let rows = self.rows(*to, *n, *delay);
                let ask = self.ask(rows, with);
                match id {
                    Id::Nobody => self.transact(&TxnRequest::default(), ask, None).map(drop)?,
                    Id::Writer(w, epoch) => self.transact_as(*w, *epoch, ask)?,
                    Id::Key(key, again) => self.transact_under(*key, *again, ask)?,
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// New rows: `to` has one bit each for the source, the destination and the queue.
    fn rows(&mut self, to: usize, n: usize, delay: u64) -> Vec<Row> {
        let mut rows = Vec::new();
        for topic in (0..3).filter(|t| to & (1 << t) != 0) {
            for i in 0..n {
                let (name, tag) = (self.name(), TAGS[i % TAGS.len()]);
                rows.push(match topic {
                    2 => Row::Job(NewJob {
                        name,
                        lane: [5, 2][i % 2],
                        group: i % GROUPS.len(),
                        visible_at: if delay > 0 { self.wall() + delay } else { 0 },
                        expires_at: 0,
                    }),
                    topic => Row::Record { topic, name, tag },
                });
            }
        }
        rows
    }

    /// A transaction with its other effects, and with the wanted error if that is possible.
    fn ask(&mut self, rows: Vec<Row>, with: &With) -> Ask {
        let mut ask = Ask { rows, wrong: with.wrong, ..Ask::default() };
        let source = self.model.logs[0].as_ref().map(|l| l.head);
        ask.head = source.filter(|_| with.head).map(|head| (0, head));
        ask.acks = with.acks.map_or_else(Vec::new, |pick| self.pick(pick, 2));
        if let Some((which, back)) = with.cursor
            && self.model.cursors.contains_key(&which)
        {
            let head = self.model.logs[CONSUMERS[which].1].as_ref().map_or(0, |l| l.head);
            ask.cursors.push((which, head.saturating_sub(back)));
        }
        match (ask.wrong, source, self.stale.last()) {
            (Wrong::Head, Some(head), _) => ask.head = Some((0, head + 7)),
            (Wrong::Lease, _, Some(stale)) => ask.acks.push(*stale),
            (Wrong::Consumer, Some(_), _) | (Wrong::Count, ..) => {}
            _ => ask.wrong = Wrong::Nothing,
        }
        ask
    }

    fn stage(
        &mut self,
        writer: usize,
        stage: usize,
        part: u32,
        (to, n, delay): (usize, usize, u64),
    ) -> Outcome {
        let rows = self.rows(to, n, delay);
        let wall = self.wall();
        let engine = self.engine();
        let staged = with_rows(&rows, |rows| {
            engine.stage(WRITERS[writer], &StageRequest { stage: STAGES[stage], part, rows })
        });
        let staged = ok(staged)?;
        let parts = &mut self.model.writers[writer].stages.entry(stage).or_default();
        let known = parts.parts.get(&part).map(|rows| rows.len() as u64);
        let want = (known.unwrap_or(rows.len() as u64), known.is_some());
        let told = (staged.records, staged.repeated);
        must!(told == want, "staged (rows, repeated) {told:?}, not {want:?}");
        if known.is_none() {
            parts.parts.insert(part, rows);
            parts.at = parts.at.max(wall);
        }
        Ok(())
    }

    fn abort(&mut self, writer: usize, stage: usize) -> Outcome {
        let there = self.model.writers[writer].stages.remove(&stage).is_some();
        if there && self.flawed(Flaw::KeepsStage) {
            return Ok(());
        }
        let found = ok(self.engine().abort_stage(WRITERS[writer], STAGES[stage]))?;
        must!(found == there, "aborted: {found}");
        Ok(())
    }

    /// The epoch of a call by this query, and the expected answer or error if it is known.
    fn epoch(
        &self,
        writer: usize,
        epoch: Epoch,
        query: &str,
    ) -> (u64, Option<Result<Got, &'static str>>) {
        let last = self.model.writers[writer].last.as_ref();
        let n = last.map_or(0, |l| l.epoch);
        match (epoch, last) {
            (Epoch::Same, Some(last)) if last.query != query => (n, Some(Err("stale_epoch"))),
            (Epoch::Same, Some(last)) => (n, Some(Ok(last.got.clone()))),
            (Epoch::Older, Some(_)) => (n.saturating_sub(1), Some(Err("stale_epoch"))),
            (Epoch::Jump, _) => (n + 5, None),
            _ => (n + 1, None),
        }
    }

    fn commit_stages(
        &mut self,
        writer: usize,
        stages: usize,
        (epoch, query): (Epoch, &'static str),
        with: &With,
    ) -> Outcome {
        let listed: Vec<usize> = (0..STAGES.len()).filter(|s| stages & (1 << s) != 0).collect();
        let (mut rows, mut list, mut whole) = (Vec::new(), Vec::new(), true);
        for stage in &listed {
            let found = self.model.writers[writer].stages.get(stage).cloned().unwrap_or_default();
            let parts = found.parts.last_key_value().map_or(1, |(n, _)| n + 1);
            whole &= found.parts.len() == parts as usize;
            let all: Vec<Row> = found.parts.into_values().flatten().collect();
            let wrong = u64::from(with.wrong == Wrong::Count);
            let records = Some(all.len() as u64 + wrong);
            list.push(TxnStage { stage: STAGES[*stage], parts, records });
            rows.extend(all);
        }
        let ask = self.ask(rows, with);
        let same = epoch == Epoch::Same;
        let (epoch, known) = self.epoch(writer, epoch, query);
        let last = self.model.writers[writer].last.as_ref().map_or(query, |l| l.query);
        let forgets = same && last != query && self.flawed(Flaw::ForgetsQuery);
        let engine = self.engine();
        let answer = with_work(&ask, |work| {
            let sent = if forgets { last } else { query };
            let work = *work;
            let req = CommitRequest {
                epoch,
                stages: &list,
                work,
                query: sent,
                ..CommitRequest::default()
            };
            engine.commit(WRITERS[writer], &req)
        });
        if let Err(e) = answer.as_ref()
            && e.code() == "stale_epoch"
        {
            names_the_queries(e, last, query)?;
        }
        let whole = whole && (ask.wrong != Wrong::Count || list.is_empty());
        let error = if whole { ask.error() } else { Some("txn_incomplete") };
        if let Some(got) = self.judge(&ask, answer, known, error, epoch)? {
            let w = &mut self.model.writers[writer];
            w.last = Some(LastEpoch { epoch, query, got });
            w.stages.retain(|s, _| !listed.contains(s));
        }
        Ok(())
    }

    fn transact_as(&mut self, writer: usize, epoch: Option<Epoch>, ask: Ask) -> Outcome {
        let (n, known) = match epoch {
            Some(epoch) => self.epoch(writer, epoch, ""),
            None => self.epoch(writer, Epoch::Next, ""),
        };
        let repeats = known.as_ref().is_some_and(Result::is_ok);
        let sent = if repeats && self.flawed(Flaw::RepeatsEpoch) { n + 1 } else { n };
        let (name, epoch) = (Some(WRITERS[writer]), epoch.map(|_| sent));
        let req = TxnRequest { writer: name, epoch, ..TxnRequest::default() };
        let known = known.map(|answer| Known { epoch: n, answer, sure: true });
        if let Some(got) = self.transact(&req, ask, known)? {
            self.model.writers[writer].last = Some(LastEpoch { epoch: n, query: "", got });
        }
        Ok(())
    }

    fn transact_under(&mut self, key: usize, again: bool, ask: Ask) -> Outcome {
        let name = [b'k', key as u8];
        let req = TxnRequest { key: &name, ..TxnRequest::default() };
        let wall = self.wall();
        let before = self.keyed[key].clone();
        let before = before.map(|k| (k.memory(wall, self.opens), k));
        let (ask, known, sure) = match before.filter(|(memory, _)| *memory != Memory::Lost) {
            // A request that may be executed a second time is sent like a new one.
            Some((memory, k)) if ask.says(&k.ask) || again && memory == Memory::Has => {
                (k.ask, Some(Ok(k.got)), memory == Memory::Has)
            }
            Some((memory, _)) => (ask, Some(Err("idempotency_mismatch")), memory == Memory::Has),
            None => (ask, None, true),
        };
        let known = known.map(|k| Known { epoch: 0, answer: k, sure });
        if let Some(got) = self.transact(&req, ask.clone(), known)? {
            let until = wall + KEY_MS;
            let (forgotten_in, durable, perhaps_until) = (None, false, 0);
            self.keyed[key] = Some(Keyed { ask, got, until, forgotten_in, durable, perhaps_until });
        }
        Ok(())
    }

    /// Syncs: every answered change is durable.
    pub fn sync(&mut self) -> Outcome {
        ok(self.engine().sync())?;
        self.keyed.iter_mut().flatten().for_each(|k| k.durable = true);
        Ok(())
    }

    /// After a power cut, the open completed transactions whose completion was not durable, and
    /// logged it again.
    pub fn ends_again(&mut self) {
        let until = self.wall() + KEY_MS;
        for k in self.keyed.iter_mut().flatten().filter(|k| !k.durable) {
            k.perhaps_until = k.perhaps_until.max(until);
        }
    }

    /// A transaction in one call, of this writer or under this key.
    fn transact(
        &mut self,
        who: &TxnRequest<'_>,
        ask: Ask,
        known: Option<Known>,
    ) -> Result<Option<Got>, String> {
        let named = who.writer.is_some();
        let epoch = match (&known, who.epoch) {
            (Some(k), _) => k.epoch,
            (None, Some(epoch)) => epoch,
            (None, None) => 0,
        };
        let engine = self.engine();
        let last = ask.rows.last().map(target);
        let several = ask.rows.iter().any(|r| Some(target(r)) != last);
        let executed = known.is_none() && ask.error().is_none();
        let mut rows = ask.rows.clone();
        if several && executed && self.flawed(Flaw::HalvesTransaction) {
            rows.retain(|r| Some(target(r)) != last);
        }
        let answer = with_rows(&rows, |rows| {
            with_work(&ask, |work| engine.transact(&TxnRequest { rows, work: *work, ..*who }))
        });
        let auto = named && who.epoch.is_none();
        let epoch = if auto { answer.as_ref().map_or(0, |a| a.epoch) } else { epoch };
        let known = known.filter(|k| k.sure || remembers(&answer)).map(|k| k.answer);
        self.judge(&ask, answer, known, ask.error(), epoch)
    }

    /// Checks an answer, and applies an executed transaction to the model.
    fn judge(
        &mut self,
        ask: &Ask,
        answer: topics_engine::Result<Committed>,
        known: Option<Result<Got, &'static str>>,
        error: Option<&'static str>,
        epoch: u64,
    ) -> Result<Option<Got>, String> {
        let error = match &known {
            Some(Err(code)) => Some(*code),
            Some(Ok(_)) => None,
            None => error,
        };
        if let Some(code) = error {
            let got = answer.map_err(|e| e.code());
            must!(got == Err(code), "the transaction is not refused with {code}: {got:?}");
            return Ok(None);
        }
        let answer = ok(answer)?;
        let (deduped, want) = match known {
            Some(Ok(got)) => (true, got),
            _ => (false, self.carry_out(ask)?),
        };
        let told: Vec<_> = answer.topics.iter().map(|t| (&*t.topic, span(t))).collect();
        let list: Vec<_> = want.iter().map(|(t, got)| (*t, *got)).collect();
        must!(told == list, "a transaction gives {told:?}, not {list:?}");
        let told = (answer.deduped, answer.epoch);
        must!(told == (deduped, epoch), "(deduped, epoch) {told:?}, not {:?}", (deduped, epoch));
        Ok((!deduped).then_some(want))
    }

    /// Applies the whole transaction.
    fn carry_out(&mut self, ask: &Ask) -> Result<Got, String> {
        let mut got = Got::new();
        let wall = self.wall();
        for row in &ask.rows {
            let (id, seq) = match row {
                Row::Record { topic, name, tag } => {
                    self.adopt(*topic)?;
                    let log = self.model.logs[*topic].as_mut().unwrap();
                    (log.id, log.push(written(name, tag, wall)))
                }
                Row::Job(job) => (self.queue_id, self.model.queue.put(job.clone())),
            };
            let span = got.entry(target(row)).or_insert((id, seq, seq));
            span.2 = seq;
        }
        for lease in &ask.acks {
            self.stale.push(*lease);
            self.model.queue.jobs.remove(&lease.1);
        }
        for (which, seq) in &ask.cursors {
            let cursor = self.model.cursors.get_mut(which).unwrap();
            cursor.stored = cursor.stored.max(*seq);
        }
        Ok(got)
    }

    /// One row for each of these targets.
    pub fn new_rows(&mut self, to: usize) -> Vec<Row> {
        self.rows(to, 1, 0)
    }

    /// Applies the first writer's transaction with only these rows.
    pub fn published(&mut self, epoch: u64, rows: &[Row], answer: &Committed) -> Outcome {
        let want = self.carry_out(&Ask { rows: rows.to_vec(), ..Ask::default() })?;
        let told: Vec<_> = answer.topics.iter().map(|t| (&*t.topic, span(t))).collect();
        let list: Vec<_> = want.iter().map(|(t, got)| (*t, *got)).collect();
        must!(told == list, "a transaction gives {told:?}, not {list:?}");
        self.model.writers[0].last = Some(LastEpoch { epoch, query: "", got: want });
        Ok(())
    }

    /// Gives the test's class to a log that the engine created automatically.
    pub fn adopt(&mut self, topic: usize) -> Outcome {
        if self.model.logs[topic].is_none() {
            let id = ok(self.engine().state(LOGS[topic], false))?.topic_id;
            self.model.logs[topic] = Some(Topic { id, ..Topic::default() });
            ok(self.engine().create_topic(LOGS[topic], &self.log_config()))?;
        }
        Ok(())
    }

    /// The engine's knowledge of the writers must match the model.
    pub fn check_writers(&self) -> Outcome {
        for (name, w) in WRITERS.iter().zip(&self.model.writers) {
            let state = match self.engine().writer_state(name) {
                Err(e) if e.code() == "txn_not_found" => Default::default(),
                other => ok(other)?,
            };
            let last = w.last.as_ref().map(|l| l.epoch);
            must!(state.last_epoch == last, "{name}: epoch {:?}, not {last:?}", state.last_epoch);
            let got = state.staged.iter().map(|s| (&*s.stage, s.parts as usize, s.records));
            let got: Vec<_> = got.collect();
            let rows = |s: &super::model::Stage| s.parts.values().flatten().count() as u64;
            let want = w.stages.iter().map(|(s, of)| (STAGES[*s], of.parts.len(), rows(of)));
            let want: Vec<_> = want.collect();
            must!(got == want, "{name} has staged {got:?}, not {want:?}");
        }
        Ok(())
    }
}

/// A stale epoch of another query is refused with both queries.
fn names_the_queries(e: &Error, last: &str, query: &str) -> Outcome {
    let queries = match e {
        Error::EpochOfOtherQuery { committed_by, query, .. } => Some((&**committed_by, &**query)),
        _ => None,
    };
    let want = (last != query).then_some((last, query));
    must!(queries == want, "a stale epoch names the queries {queries:?}, not {want:?}");
    Ok(())
}

fn span(t: &topics_engine::CommittedTopic) -> (u64, u64, u64) {
    (t.topic_id, t.first_seq, t.last_seq)
}
