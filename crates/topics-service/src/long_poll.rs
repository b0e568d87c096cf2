//! Long polls: reads that wait for records. Each has an entry here, a waiter in the engine and a
//! deadline in the timer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use topics_engine::{Error, Fetch, ReadBatch, ReadFrom};
use topics_wire::Failure;
use topics_wire::arrow::{self, ScanRequest};
use topics_wire::read::{self, DiffRequest};

use super::dispatch::Answer;
use super::{Reply, Request, Service};

/// A long poll that wakes without a visible record checks again after this time: the engine woke it
/// for records that this reader may not see yet.
const RECHECK_NS: u64 = 10_000_000;

/// A waiting read.
struct LongPoll {
    topic: String,
    diff: DiffRequest,
    /// The scan that answers this read, unless a JSON page does.
    columns: Option<ScanRequest>,
    start_ns: u64,
    deadline_ns: u64,
    /// The deadline in the timer.
    timer_ns: u64,
    /// The id of the waiter in the engine.
    head: Option<u64>,
    /// The fetch of cold records that it waits for.
    fetch: Option<Arc<Fetch>>,
}

#[derive(Default)]
struct Table {
    by_token: HashMap<u64, LongPoll>,
    closed: bool,
}

/// The waiting reads of a service.
#[derive(Default)]
pub(super) struct LongPolls(Mutex<Table>);

impl LongPolls {
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().by_token.len()
    }

    /// Refuses further long polls and returns the tokens of the open ones.
    pub fn close(&self) -> Vec<u64> {
        let mut table = self.0.lock();
        table.closed = true;
        table.by_token.keys().copied().collect()
    }
}

impl Service {
    pub(super) fn diff(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let mut diff = read::parse(r.body, &self.limits, r.arrow)?;
        let columns = r.arrow.then(|| arrow::parse_diff(r.body, &diff)).transpose()?;
        if columns.is_some() {
            // This read only checks whether a record exists; the scan reads them.
            diff.request.limit = 1;
        }
        let deadline_ns = start_ns + diff.wait_ms * 1_000_000;
        let poll = LongPoll {
            topic: r.name.to_owned(),
            diff,
            columns,
            start_ns,
            deadline_ns,
            timer_ns: 0,
            head: None,
            fetch: None,
        };
        self.poll_read(r.token, poll, true)
    }

    /// Continues the call with this token after a wake: its reply, or `None` while it keeps waiting.
    pub fn resume(self: &Arc<Self>, token: u64) -> Option<Reply> {
        if self.streams.has(token) {
            return Some(Reply { status: 0, body: Vec::new() });
        }
        self.resume_reader(token);
        let poll = self.remove_poll(token)?;
        let reply = match self.poll_read(token, poll, false) {
            Ok(None) => {
                self.pending.fetch_sub(1, Ordering::Relaxed);
                return None;
            }
            Ok(Some(reply)) => reply,
            Err(failure) => failure.into(),
        };
        self.pending.fetch_sub(1, Ordering::Relaxed);
        Some(reply)
    }

    /// Cancels the waiting call or stream with this token, because its client has gone. Verbs that
    /// already run are not cancelled.
    pub fn cancel(self: &Arc<Self>, token: u64) {
        if self.leave_large_call(token) {
            return;
        }
        let waited = self.remove_poll(token).is_some()
            || self.cancel_claim(token)
            || self.cancel_reader(token)
            || self.cancel_stream(token);
        if waited {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn remove_poll(&self, token: u64) -> Option<LongPoll> {
        let poll = self.long_polls.0.lock().by_token.remove(&token)?;
        if let Some(id) = poll.head {
            self.engine.cancel_on_head(&poll.topic, id);
        }
        self.timer.unset(poll.timer_ns, token);
        Some(poll)
    }

    fn poll_read(self: &Arc<Self>, token: u64, mut poll: LongPoll, first: bool) -> Answer {
        if let Some(Err(e)) = poll.fetch.take().and_then(|fetch| fetch.outcome()) {
            return Err(Error::from(e).into());
        }
        let page = match &poll.columns {
            // Without a wait the scan itself reports an empty range.
            Some(columns) if first && poll.diff.wait_ms == 0 => {
                return self.begin_scan(token, &poll.topic, columns.clone());
            }
            _ => match self.engine.read_present(&poll.topic, &poll.diff.request) {
                Err(Error::ColdPending(fetch)) => {
                    self.park_for_fetch(token, poll, fetch);
                    return Ok(None);
                }
                page => page?,
            },
        };
        let now = self.clock.mono_ns();
        let ReadBatch { topic_id, next_from_seq: seq, caught_up, .. } = page;
        let unmoved = poll.diff.request.from == ReadFrom::After(seq);
        // An empty page, and no visible record after it.
        let idle = page.is_empty() && page.tombstone.is_none() && (caught_up || unmoved);
        if !idle || now >= poll.deadline_ns || self.long_polls.0.lock().closed {
            return self.finish_read(token, poll, &page);
        }
        let moved = !unmoved;
        poll.diff.request.from = ReadFrom::After(seq);
        poll.diff.request.topic_id = Some(topic_id);
        // A second waiter at the same seq would fire immediately, again and again.
        let by_head = first || moved;
        poll.timer_ns =
            if by_head { poll.deadline_ns } else { poll.deadline_ns.min(now + RECHECK_NS) };
        self.park_poll(token, poll, by_head.then_some(seq))?;
        Ok(None)
    }

    /// Adds the entry before the waiter, because the waiter may fire before its id is known.
    fn park_poll(
        self: &Arc<Self>,
        token: u64,
        poll: LongPoll,
        seq: Option<u64>,
    ) -> Result<(), Failure> {
        let topic = poll.topic.clone();
        let timer_ns = poll.timer_ns;
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.long_polls.0.lock().by_token.insert(token, poll);
        self.timer.set(timer_ns, token);
        let Some(seq) = seq else { return Ok(()) };
        let sink = self.sink.clone();
        match self.engine.on_head(&topic, seq, Box::new(move || sink.wake(token))) {
            Ok(id) => {
                if let Some(poll) = self.long_polls.0.lock().by_token.get_mut(&token) {
                    poll.head = Some(id);
                }
                Ok(())
            }
            Err(e) => {
                self.cancel(token);
                Err(e.into())
            }
        }
    }

    /// Reads on when a fetch of cold records has ended. Every fetch ends, so this wait needs no timer.
    fn park_for_fetch(self: &Arc<Self>, token: u64, mut poll: LongPoll, fetch: Arc<Fetch>) {
        (poll.timer_ns, poll.head) = (0, None);
        poll.fetch = Some(fetch.clone());
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.long_polls.0.lock().by_token.insert(token, poll);
        let sink = self.sink.clone();
        fetch.on_end(Box::new(move |_| sink.wake(token)));
    }

    /// Answers with a JSON page, or starts a scan at the reader's cursor.
    fn finish_read(self: &Arc<Self>, token: u64, poll: LongPoll, page: &ReadBatch) -> Answer {
        let LongPoll { topic, diff, columns, start_ns, .. } = poll;
        if let Some(columns) = columns {
            let (from, topic_id) = (diff.request.from, diff.request.topic_id);
            return self.begin_scan(token, &topic, ScanRequest { from, topic_id, ..columns });
        }
        self.unsent.check(page.payload_bytes() as u64)?;
        let ns = self.elapsed(start_ns);
        Ok(Some(Reply::ok(read::answer(&topic, page, &diff, ns))))
    }
}
