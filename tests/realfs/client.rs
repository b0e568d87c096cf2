//! The verbs of an engine, journaled before and after.

use std::io::{Stdout, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use topics_engine::{
    Append, Appended, Claim, Committed, ConfigPatch, DeleteRequest, Durability, Engine, Error,
    LeasedJobs, NewRecord, ReadFrom, ReadRequest, TopicSummary, TxnRequest, TxnRows,
};

use super::event::{Call, Event, Placed, Run};
use super::payload::{self, Origin};

/// The time limit of calls that need no more space than the disk has. Far above what a slow machine
/// takes: a call that misses it hangs.
pub const LIMIT: Duration = Duration::from_secs(240);

/// The child's end of the journal: standard output, a pipe to the parent. Written lines outlive the
/// child, and no limit of the child's files or disk applies to them.
#[derive(Debug)]
pub struct Journal {
    out: Mutex<Stdout>,
    next: AtomicU64,
    /// The number of calls that have started and not ended.
    open: AtomicU64,
    acked: AtomicU64,
    refused: AtomicU64,
}

impl Journal {
    /// A journal whose call numbers start from the child's number.
    #[must_use]
    pub fn new(life: u64) -> Self {
        Self {
            out: Mutex::new(std::io::stdout()),
            next: AtomicU64::new(life << 32),
            open: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Writes a line.
    pub fn write(&self, event: &Event) {
        let line = format!("{event}\n");
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a parent the process is about to be killed.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }

    fn begin(&self, call: impl FnOnce() -> Call) -> u64 {
        let op = self.next.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        self.write(&Event::Begin(op, call()));
        op
    }

    fn end<T>(&self, op: u64, outcome: &Result<T, Error>, placed: impl FnOnce(&T) -> Vec<Placed>) {
        match outcome {
            Ok(answer) => {
                let now = clock_gettime(ClockId::Monotonic);
                let at = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
                self.write(&Event::Acked { op, at, placed: placed(answer) });
                self.acked.fetch_add(1, Ordering::SeqCst);
            }
            Err(e) => {
                let unknown =
                    ["storage_unavailable", "data_loss", "internal", "shutting_down", "corrupt"];
                let certain = !unknown.contains(&e.code());
                self.write(&Event::Refused { op, certain, error: e.to_string() });
                self.refused.fetch_add(1, Ordering::SeqCst);
            }
        }
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Calls that were acked, and calls that failed.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.acked.load(Ordering::SeqCst), self.refused.load(Ordering::SeqCst))
    }

    /// Notes the next step.
    pub fn note(&self, text: impl Into<String>) {
        self.write(&Event::Note(text.into()));
    }

    /// Reports a problem.
    pub fn problem(&self, text: impl Into<String>) {
        self.write(&Event::Problem(text.into()));
    }
}

/// An engine and its journal; cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    pub engine: Engine,
    pub journal: Arc<Journal>,
}

/// The payloads of a call.
fn payloads(op: u64, sizes: &[usize]) -> Vec<Vec<u8>> {
    let make = |(i, len): (usize, &usize)| payload::make(Origin { op, index: i as u32 }, *len);
    sizes.iter().enumerate().map(make).collect()
}

fn records(payloads: &[Vec<u8>]) -> Vec<NewRecord<'_>> {
    payloads.iter().map(|data| NewRecord { data, binary: true, ..NewRecord::default() }).collect()
}

fn place(topic: &str) -> impl FnOnce(&Appended) -> Vec<Placed> + use<> {
    let topic = topic.to_owned();
    move |a| vec![Placed { topic, id: a.topic_id, first: a.first_seq, last: a.last_seq }]
}

impl Client {
    /// Appends records of these sizes.
    pub fn append(&self, topic: &str, sizes: &[usize], sync: bool) -> Result<Appended, Error> {
        let rows = vec![(topic.to_owned(), sizes.len() as u32)];
        let op = self.journal.begin(|| Call::Write { rows, synced: sync });
        let payloads = payloads(op, sizes);
        let request = Append { records: &records(&payloads), sync, ..Append::default() };
        let outcome = self.engine.append(topic, &request);
        self.journal.end(op, &outcome, place(topic));
        outcome
    }

    /// Stages records of these sizes; [`Engine::drive`] writes them.
    pub fn append_async(&self, topic: &str, sizes: &[usize]) {
        let rows = vec![(topic.to_owned(), sizes.len() as u32)];
        let op = self.journal.begin(|| Call::Write { rows, synced: false });
        let payloads = payloads(op, sizes);
        let request = Append { records: &records(&payloads), ..Append::default() };
        let (journal, placed) = (self.journal.clone(), place(topic));
        let done = Box::new(move |outcome| journal.end(op, &outcome, placed));
        self.engine.append_async(topic, &request, done);
    }

    /// All topics.
    #[must_use]
    pub fn topics(&self) -> Vec<TopicSummary> {
        self.engine.list("", None, usize::MAX)
    }

    /// A transaction with rows of these sizes.
    pub fn transact(&self, rows: &[(&str, Vec<usize>)]) -> Result<Committed, Error> {
        let names = rows.iter().map(|(t, sizes)| ((*t).to_owned(), sizes.len() as u32)).collect();
        let op = self.journal.begin(|| Call::Write { rows: names, synced: true });
        let bytes: Vec<_> = rows.iter().map(|(_, sizes)| payloads(op, sizes)).collect();
        let records: Vec<_> = bytes.iter().map(|b| records(b)).collect();
        let rows: Vec<_> = rows
            .iter()
            .zip(&records)
            .map(|((topic, _), records)| TxnRows { topic, records, node: b"" })
            .collect();
        let outcome = self.engine.transact(&TxnRequest { rows: &rows, ..TxnRequest::default() });
        self.journal.end(op, &outcome, |c: &Committed| {
            let placed = c.topics.iter().map(|t| Placed {
                topic: t.topic.clone(),
                id: t.topic_id,
                first: t.first_seq,
                last: t.last_seq,
            });
            placed.collect()
        });
        outcome
    }

    /// Creates a topic.
    pub fn create(&self, topic: &str, config: &ConfigPatch) -> Result<(), Error> {
        let class = config.durability.unwrap_or(Durability::Disk);
        let name = topic.to_owned();
        let op = self.journal.begin(|| Call::Create { topic: name, class });
        let outcome = self.engine.create_topic(topic, config);
        self.journal.end(op, &outcome, |c| {
            vec![Placed { topic: topic.to_owned(), id: c.topic_id, first: 1, last: 0 }]
        });
        outcome.map(drop)
    }

    /// Deletes the records below a seq.
    pub fn delete(&self, topic: &str, before: u64) -> Result<(), Error> {
        let name = topic.to_owned();
        let op = self.journal.begin(|| Call::Delete { topic: name, before });
        let request = DeleteRequest { before_seq: Some(before), matching: None };
        let outcome = self.engine.delete(topic, &request);
        self.journal.end(op, &outcome, |_| Vec::new());
        outcome.map(drop)
    }

    /// Claims jobs. Not journaled: a lease guarantees nothing about stored records.
    pub fn claim(&self, queue: &str, max: usize) -> Result<Vec<(u64, u64)>, Error> {
        let claim = Claim { node: b"worker", max, ..Claim::default() };
        let claimed = self.engine.claim(queue, &claim)?;
        Ok(claimed.iter().map(|(lease, _)| (lease.seq, lease.lease_id)).collect())
    }

    /// Acks a job.
    pub fn ack(&self, queue: &str, (seq, lease): (u64, u64)) -> Result<(), Error> {
        let name = queue.to_owned();
        let op = self.journal.begin(|| Call::Ack { queue: name, seq });
        let held = LeasedJobs { node: b"worker", seqs: &[seq], lease_ids: Some(&[lease]) };
        let outcome = self.engine.ack(queue, &held).and_then(|s| match s.reasons[..] {
            [] => Ok(()),
            // The lease had expired: the call certainly had no effect.
            [reason, ..] => Err(Error::LeaseLost { queue: queue.to_owned(), seq, reason }),
        });
        self.journal.end(op, &outcome, |()| Vec::new());
        outcome
    }

    /// Releases a job.
    pub fn nack(&self, queue: &str, (seq, lease): (u64, u64)) -> Result<(), Error> {
        let held = LeasedJobs { node: b"worker", seqs: &[seq], lease_ids: Some(&[lease]) };
        self.engine.nack(queue, &held, Some(0)).map(drop)
    }

    /// Reads from a cursor up to a seq, journals the records, and returns the next cursor.
    pub fn view(&self, topic: &str, after: u64, upto: Option<u64>) -> Result<u64, Error> {
        let request = ReadRequest {
            from: ReadFrom::After(after),
            upto,
            limit: 1000,
            max_bytes: 8 << 20,
            ..ReadRequest::default()
        };
        let batch = self.engine.read(topic, &request)?;
        if let Some(t) = batch.tombstone {
            let (topic, reason) = (topic.to_owned(), t.reason.as_str().to_owned());
            self.journal.write(&Event::Gap { topic, from: t.gap_from, to: t.gap_to, reason });
        }
        let mut run: Option<Run> = None;
        for record in batch.iter() {
            let Some(origin) = payload::parse(record.data) else {
                let len = record.data.len();
                self.journal.problem(format!("I12: {topic} {}: {len} strange bytes", record.seq));
                continue;
            };
            let next = |r: &Run| {
                r.seq + u64::from(r.len) == record.seq
                    && r.origin.op == origin.op
                    && r.origin.index + r.len == origin.index
            };
            match &mut run {
                Some(r) if next(r) => r.len += 1,
                _ => {
                    let (topic, id) = (topic.to_owned(), batch.topic_id);
                    let new = Run { topic, id, seq: record.seq, origin, len: 1 };
                    if let Some(r) = run.replace(new) {
                        self.journal.write(&Event::Seen(r));
                    }
                }
            }
        }
        if let Some(r) = run {
            self.journal.write(&Event::Seen(r));
        }
        Ok(batch.next_from_seq)
    }

    /// Waits until every call has ended, so that each staged write is written or refused.
    pub fn wait_calls(&self) {
        self.engine.drive();
        let idle = || self.journal.open.load(Ordering::SeqCst) == 0;
        if !until(idle) {
            let open = self.journal.open.load(Ordering::SeqCst);
            self.journal.problem(format!("{open} calls were not answered within {LIMIT:?}"));
        }
    }
}

/// Waits for a condition, at most [`LIMIT`]; false if it did not become true.
pub fn until(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
