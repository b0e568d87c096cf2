//! Reads that wait for records: an entry here, a waiter in the engine, a deadline in the timer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use topics_engine::{ReadBatch, ReadFrom};

use super::{Reply, Request, Service};
use crate::error::Failure;
use crate::read::{self, Diff};

/// A wait that wakes to nothing looks again after this long: the engine has woken it for records
/// that this reader may not see yet.
const LOOK_AGAIN_NS: u64 = 10_000_000;

/// A read that waits.
struct Wait {
    topic: String,
    diff: Diff,
    arrow: bool,
    start_ns: u64,
    deadline_ns: u64,
    /// When the timer will say that it is due.
    timer_ns: u64,
    /// Its waiter in the engine.
    head: Option<u64>,
}

#[derive(Default)]
struct Table {
    by_token: HashMap<u64, Wait>,
    closed: bool,
}

/// The waiting reads of a service.
#[derive(Default)]
pub(super) struct Waits(Mutex<Table>);

impl Waits {
    /// No read waits any longer; the tokens of those that do.
    pub fn close(&self) -> Vec<u64> {
        let mut table = self.0.lock();
        table.closed = true;
        table.by_token.keys().copied().collect()
    }
}

impl Service {
    pub(super) fn diff(
        self: &Arc<Self>,
        r: &Request<'_>,
        start_ns: u64,
    ) -> Result<Option<Reply>, Failure> {
        let diff = read::parse(r.body, &self.limits, r.arrow)?;
        let deadline_ns = start_ns + diff.wait_ms * 1_000_000;
        let wait = Wait {
            topic: r.name.to_owned(),
            diff,
            arrow: r.arrow,
            start_ns,
            deadline_ns,
            timer_ns: 0,
            head: None,
        };
        self.look(r.token, wait, true)
    }

    /// Looks for what a waiting read is due; its reply, unless it goes on waiting.
    pub fn resume(self: &Arc<Self>, token: u64) -> Option<Reply> {
        if self.streams.has(token) {
            return Some(Reply { status: 0, body: Vec::new() });
        }
        self.resume_reader(token);
        let wait = self.forget(token)?;
        let reply = match self.look(token, wait, false) {
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

    /// Forgets what waits under a token: nobody wants its reply. Other calls go on.
    pub fn cancel(self: &Arc<Self>, token: u64) {
        let waited = self.forget(token).is_some()
            || self.cancel_claim(token)
            || self.cancel_reader(token)
            || self.cancel_stream(token);
        if waited {
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn forget(&self, token: u64) -> Option<Wait> {
        let wait = self.waits.0.lock().by_token.remove(&token)?;
        if let Some(id) = wait.head {
            self.engine.cancel_on_head(&wait.topic, id);
        }
        self.timer.unset(wait.timer_ns, token);
        Some(wait)
    }

    fn look(
        self: &Arc<Self>,
        token: u64,
        mut wait: Wait,
        first: bool,
    ) -> Result<Option<Reply>, Failure> {
        let pages = self.pages(&wait)?;
        let now = self.clock.mono_ns();
        // One page that has nothing, and behind which there is nothing that this reader may see.
        let idle = matches!(pages.as_slice(), [p] if p.is_empty() && p.tombstone.is_none()
            && (p.caught_up || wait.diff.request.from == ReadFrom::After(p.next_from_seq)));
        if !idle || now >= wait.deadline_ns || self.waits.0.lock().closed {
            return self.show(&wait, &pages).map(Some);
        }
        let seq = pages.first().map_or(0, |p| p.next_from_seq);
        let moved = wait.diff.request.from != ReadFrom::After(seq);
        wait.diff.request.from = ReadFrom::After(seq);
        wait.diff.request.topic_id = pages.first().map(|p| p.topic_id);
        // Woken to nothing without moving: the engine would wake it again at once, and so on.
        let by_head = first || moved;
        wait.timer_ns =
            if by_head { wait.deadline_ns } else { wait.deadline_ns.min(now + LOOK_AGAIN_NS) };
        self.park(token, wait, by_head.then_some(seq))?;
        Ok(None)
    }

    /// Makes the entry, then the waiter: it may fire before its id is known here.
    fn park(self: &Arc<Self>, token: u64, wait: Wait, seq: Option<u64>) -> Result<(), Failure> {
        let topic = wait.topic.clone();
        let timer_ns = wait.timer_ns;
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.waits.0.lock().by_token.insert(token, wait);
        self.timer.set(timer_ns, token);
        let Some(seq) = seq else { return Ok(()) };
        let sink = self.sink.clone();
        match self.engine.on_head(&topic, seq, Box::new(move || sink.due(token))) {
            Ok(id) => {
                if let Some(wait) = self.waits.0.lock().by_token.get_mut(&token) {
                    wait.head = Some(id);
                }
                Ok(())
            }
            Err(e) => {
                self.cancel(token);
                Err(e.into())
            }
        }
    }

    /// One page, or as many as a columnar read asks for.
    fn pages(&self, wait: &Wait) -> Result<Vec<ReadBatch>, Failure> {
        let mut request = wait.diff.request.clone();
        let mut pages = Vec::new();
        loop {
            let page = self.engine.read(&wait.topic, &request)?;
            let bytes: usize = page.iter().map(|r| r.data.len() + r.meta.len()).sum();
            request.from = ReadFrom::After(page.next_from_seq);
            request.topic_id = Some(page.topic_id);
            request.limit = request.limit.saturating_sub(page.len());
            request.max_bytes = request.max_bytes.saturating_sub(bytes);
            let go_on = wait.arrow
                && !page.caught_up
                && !page.is_empty()
                && request.limit > 0
                && request.max_bytes > 0
                && !matches!(wait.diff.request.from, ReadFrom::Before { .. });
            pages.push(page);
            if !go_on {
                return Ok(pages);
            }
        }
    }

    fn show(&self, wait: &Wait, pages: &[ReadBatch]) -> Result<Reply, Failure> {
        if wait.arrow {
            return crate::arrow::ipc(&wait.topic, pages).map(Reply::ok);
        }
        let ns = self.elapsed(wait.start_ns);
        let page =
            pages.first().ok_or_else(|| Failure::new("internal", "a read without a page"))?;
        Ok(Reply::ok(read::answer(&wait.topic, page, &wait.diff, ns)))
    }
}
