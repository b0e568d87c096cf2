//! Durable consumers: cursors that the engine stores for readers.
//!
//! A `Consumer` frame sets a stored cursor. `at_most_once` makes it durable before it returns the
//! records; `at_least_once` stores it after the reader has processed them.

mod fence;
mod nonblocking;
mod stored;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::{Instant, Mutex};
use topics_storage::format::record;
use topics_storage::wal::{Level, Ticket};

use self::fence::Reader;
pub(crate) use self::fence::check_fence;
use self::stored::{Staged, log, no_consumer, stage_cursor};
pub(crate) use self::stored::{check_cursor, plan_cursors, unplan_cursors};
use crate::ctx::Wait;
use crate::topic::cursors::{Consumers, Stored, stored};
use crate::topic::events::{Base, Ctx};
use crate::topic::{Life, Topic, lag, read, seek};
use crate::types::api::{Owner, ReadFrom, ReadRequest};
use crate::types::batch::ReadBatch;
use crate::types::consumer::MAX_RECORDS;
pub use crate::types::consumer::{ConsumerInfo, ConsumerMode, ConsumerRead, ConsumerStart, SeekTo};
use crate::types::error::{Error, Result};
use crate::types::name;
use crate::types::wait::{OneShot, ReaderGuard, ReaderLock};

/// Maximum wait of a read.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The position of a handle.
#[derive(Debug)]
struct Delivered {
    /// Where the next read begins.
    at: u64,
    /// The first position of a reader: where it took the consumer over, or its last seek.
    begin: u64,
    /// With automatic commits: the last processed seq that is not stored yet.
    done: Option<u64>,
    /// With automatic commits: the position up to which there is nothing to store.
    saved: u64,
    /// `None`: a handle that shares the consumer with others.
    reader: Option<Reader>,
}

/// A reader with a stored cursor. A new one begins where the cursor is stored.
pub struct Consumer {
    ctx: Arc<Ctx>,
    topic: Arc<Topic>,
    name: Arc<str>,
    mode: ConsumerMode,
    auto_commit: bool,
    delivered: Mutex<Delivered>,
    /// Held by the read that takes the consumer over.
    taking_over: Mutex<()>,
    /// Batches that were read and did not reach the reader: the next reads return them.
    kept: Mutex<VecDeque<ReadBatch>>,
    _owner: Owner,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The seq before the first record.
fn first(ctx: &Ctx, topic: &Topic) -> Result<u64> {
    let look =
        ReadRequest { from: ReadFrom::Earliest, limit: 0, touch: false, ..ReadRequest::default() };
    Ok(read(ctx, topic, &look)?.earliest_seq - 1)
}

/// The creation of a consumer, unless it is known.
fn creation(
    name: &str,
    mode: Option<ConsumerMode>,
    cursor: u64,
) -> impl Fn(&mut Consumers) -> Result<Option<record::Consumer>> {
    let mode = mode.unwrap_or_default() as u8;
    move |all| {
        let (name, cursor) = (name.to_owned(), Some(cursor));
        Ok((!all.is_known(&name)).then_some(record::Consumer { name, mode, cursor }))
    }
}

impl Consumer {
    /// Opens a handle of a consumer and creates the consumer if it does not exist.
    pub(crate) fn open(
        ctx: &Arc<Ctx>,
        owner: Owner,
        topic: &Arc<Topic>,
        consumer: &str,
        mode: Option<ConsumerMode>,
        start: ConsumerStart,
        auto_commit: bool,
    ) -> Result<Self> {
        name::check(consumer)?;
        topic.check_sound()?;
        let begin = match start {
            ConsumerStart::Start => first(ctx, topic)?,
            ConsumerStart::End => topic.gate.head(),
        };
        // Released after the frame is applied, which counts the consumer.
        let reserved = match stored(topic, consumer) {
            Some(_) => None,
            None => Some(ctx.base().counted(ctx.base().consumers.take(1))?),
        };
        log(ctx, topic, consumer, Some(false), creation(consumer, mode, begin))?;
        drop(reserved);
        let s = stored(topic, consumer).ok_or_else(|| no_consumer(topic, consumer))?;
        if let Some(wanted) = mode.filter(|m| *m != s.mode) {
            return Err(Error::TopicExistsIncompatible {
                topic: topic.name.to_string(),
                field: "consumer mode",
                actual: s.mode.as_str().into(),
                wanted: wanted.as_str().into(),
            });
        }
        let (at, begin, saved) = (s.cursor, s.cursor, s.cursor);
        let delivered = Delivered { at, begin, done: None, saved, reader: None };
        Ok(Self {
            ctx: ctx.clone(),
            topic: topic.clone(),
            name: consumer.into(),
            mode: s.mode,
            auto_commit,
            delivered: Mutex::new(delivered),
            taking_over: Mutex::new(()),
            kept: Mutex::default(),
            _owner: owner,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its mode.
    #[must_use]
    pub fn mode(&self) -> ConsumerMode {
        self.mode
    }

    /// The stored cursor.
    pub fn cursor(&self) -> Result<u64> {
        Ok(self.stored()?.cursor)
    }

    fn stored(&self) -> Result<Stored> {
        self.ctx.check_open()?;
        if self.topic.life() != Life::Live {
            return Err(Error::TopicNotFound(self.topic.name.to_string()));
        }
        self.topic.check_sound()?;
        stored(&self.topic, &self.name).ok_or_else(|| no_consumer(&self.topic, &self.name))
    }

    /// Records in seq order from the cursor, until a budget is reached. Waits for cold ones.
    pub fn read(&self, req: &ConsumerRead) -> Result<ReadBatch> {
        let until = Instant::now() + req.wait.min(MAX_WAIT);
        loop {
            match self.read_until(req, until) {
                Err(Error::ColdPending(fetch)) => self.ctx.base().wait_fetch(&fetch)?,
                done => return done,
            }
        }
    }

    /// The same; [`Error::ColdPending`] while the next records are being fetched.
    pub fn read_present(&self, req: &ConsumerRead) -> Result<ReadBatch> {
        self.read_until(req, Instant::now() + req.wait.min(MAX_WAIT))
    }

    fn read_until(&self, req: &ConsumerRead, until: Instant) -> Result<ReadBatch> {
        let s = self.stored()?;
        self.begin_read(req, &s)?;
        if let Some(batch) = self.kept(req) {
            return Ok(batch);
        }
        let mut after = req.after;
        let _reader = match self.mode {
            ConsumerMode::AtMostOnce => Some(self.lock_reader(&s.reader, req, until)?),
            ConsumerMode::AtLeastOnce => None,
        };
        loop {
            let batch = match self.mode {
                ConsumerMode::AtMostOnce => self.read_once(req)?,
                ConsumerMode::AtLeastOnce => self.read_again(req, after)?,
            };
            let rest = until.saturating_duration_since(Instant::now());
            let something = !batch.is_empty() || batch.tombstone.is_some();
            if something || rest.is_zero() {
                return Ok(batch);
            }
            after = after.map(|_| batch.next_from_seq);
            if batch.caught_up {
                wait_head(&self.ctx, &self.topic, batch.next_from_seq, rest)?;
            }
        }
    }

    fn lock_reader(
        &self,
        reader: &Arc<ReaderLock>,
        req: &ConsumerRead,
        until: Instant,
    ) -> Result<ReaderGuard> {
        // Another reader holds the lock for as long as a read may wait, so this one waits that long.
        let until = until.max(Instant::now() + MAX_WAIT);
        reader.lock((!req.fail_if_busy).then_some(until)).ok_or_else(|| self.busy())
    }

    /// Makes the cursor behind the records durable before it returns them.
    fn read_once(&self, req: &ConsumerRead) -> Result<ReadBatch> {
        let (batch, staged) = self.take(req, Wait::Bounded)?;
        if let Some(ticket) = staged {
            self.ctx.wait(ticket, Level::Synced)?;
        }
        Ok(batch)
    }

    /// Reads from the stored cursor on and stages the cursor behind the records. The caller waits for its
    /// sync.
    fn take(&self, req: &ConsumerRead, wait: Wait) -> Result<(ReadBatch, Option<Ticket>)> {
        let from = self.stored()?.cursor;
        let batch = self.fetch(from, req)?;
        if !req.checkpoint || batch.next_from_seq == from {
            return Ok((batch, None));
        }
        let (to, mode) = (batch.next_from_seq, self.mode as u8);
        let staged = stage_cursor(&self.ctx, &self.topic, &self.name, wait, |all| {
            let Some(s) = all.0.get(&self.name) else {
                return Err(no_consumer(&self.topic, &self.name));
            };
            if s.planned != from {
                // After a concurrent seek these records are not returned.
                return Err(self.busy());
            }
            let (name, cursor) = (self.name.to_string(), Some(to));
            Ok(Some(record::Consumer { name, mode, cursor }))
        })?;
        let ticket = match staged {
            Staged::Frame(ticket, _) => Some(ticket),
            Staged::Nothing(_) => None,
        };
        Ok((batch, ticket))
    }

    fn busy(&self) -> Error {
        let (topic, consumer) = (self.topic.name.to_string(), self.name.to_string());
        Error::ConsumerBusy { topic, consumer }
    }

    fn read_again(&self, req: &ConsumerRead, after: Option<u64>) -> Result<ReadBatch> {
        // Another reader may have taken over while this one waited.
        self.has_consumer(&self.stored()?)?;
        let mut d = self.delivered.lock();
        let from = after.map_or(d.at, |after| after.max(d.begin));
        if req.checkpoint && self.auto_commit {
            self.commit_done(&mut d, from)?;
        }
        let batch = self.fetch(from, req)?;
        if req.checkpoint {
            d.at = batch.next_from_seq;
        }
        Ok(batch)
    }

    /// Stores where the read before ended, at `from`: the reader has processed its records.
    fn commit_done(&self, d: &mut Delivered, from: u64) -> Result<()> {
        if from > d.saved {
            d.done = Some(from);
        }
        let Some(done) = d.done else { return Ok(()) };
        match self.store(done, None, d.reader) {
            // One of the next reads stores it, when it can do so without waiting.
            Err(Error::Throttled { .. }) => return Ok(()),
            stored => stored?,
        }
        (d.done, d.saved) = (None, done);
        Ok(())
    }

    fn fetch(&self, from: u64, req: &ConsumerRead) -> Result<ReadBatch> {
        let look = ReadRequest {
            from: ReadFrom::After(from),
            limit: req.max_records.clamp(1, MAX_RECORDS),
            max_bytes: req.max_bytes,
            matching: req.matching.clone(),
            ..ReadRequest::default()
        };
        let batch = read(&self.ctx, &self.topic, &look)?;
        let next = batch.next_from_seq;
        if next < from {
            return Err(Error::Internal(format!("I8: a read from {from} ends at {next}")));
        }
        Ok(batch)
    }

    /// Stores a cursor above the stored one; any other changes nothing (I8).
    pub fn commit(&self, seq: u64) -> Result<()> {
        self.stored()?;
        let head = self.topic.gate.head();
        if seq > head {
            let text = format!("commit of seq {seq} is above the head {head}");
            return Err(Error::InvalidRequest(text));
        }
        let reader = self.delivered.lock().reader;
        self.store(seq, Some(self.mode == ConsumerMode::AtMostOnce), reader)
    }

    fn store(&self, seq: u64, wait: Option<bool>, reader: Option<Reader>) -> Result<()> {
        let mode = self.mode as u8;
        log(&self.ctx, &self.topic, &self.name, wait, |all| {
            let Some(s) = all.0.get(&self.name) else {
                return Err(no_consumer(&self.topic, &self.name));
            };
            self.check_takeover(s, reader)?;
            // I8: only a seek moves a cursor back.
            Ok((seq > s.planned).then(|| record::Consumer {
                name: self.name.to_string(),
                mode,
                cursor: Some(seq),
            }))
        })
    }

    /// Sets the cursor, forwards or back; this handle continues there. It takes nothing over: another
    /// reader continues where it is, and its next commit may move the cursor on.
    pub fn seek(&self, to: SeekTo) -> Result<u64> {
        self.check_reader()?;
        let head = self.topic.gate.head();
        let cursor = match to {
            SeekTo::Seq(seq) if seq > head => {
                let text = format!("seek to seq {seq} is above the head {head}");
                return Err(Error::InvalidRequest(text));
            }
            SeekTo::Seq(seq) => seq,
            SeekTo::Ts(ts) => seek(self.ctx.base(), &self.topic, ts)?.seq,
            SeekTo::Start => first(&self.ctx, &self.topic)?,
            SeekTo::End => head,
        };
        // The handle moves first: no automatic commit of what it handed out before follows. Nothing
        // of it is locked while the log is waited for.
        let (before, reader) = {
            let mut d = self.delivered.lock();
            let before = (d.at, d.begin, d.done, d.saved);
            (d.at, d.begin, d.done, d.saved) = (cursor, cursor, None, cursor);
            (before, d.reader)
        };
        let durable = self.mode == ConsumerMode::AtMostOnce;
        let logged = log(&self.ctx, &self.topic, &self.name, Some(durable), |all| {
            let Some(s) = all.0.get(&self.name) else {
                return Err(no_consumer(&self.topic, &self.name));
            };
            self.check_takeover(s, reader)?;
            let (name, mode) = (self.name.to_string(), self.mode as u8);
            Ok(Some(record::Consumer { name, mode, cursor: Some(cursor) }))
        });
        if let Err(e) = logged {
            let mut d = self.delivered.lock();
            if (d.at, d.begin, d.done, d.saved) == (cursor, cursor, None, cursor) {
                (d.at, d.begin, d.done, d.saved) = before;
            }
            return Err(e);
        }
        self.kept.lock().clear();
        Ok(cursor)
    }
}

impl Drop for Consumer {
    /// Stores the cursor of automatic commits, if that needs no waiting. It excludes the last batch, because
    /// the reader may not have processed it.
    fn drop(&mut self) {
        self.release_kept();
        let d = self.delivered.get_mut();
        let (done, reader) = (d.done.take(), d.reader);
        if let Some(done) = done
            && self.ctx.check_open().is_ok()
            && self.topic.life() == Life::Live
            && let Err(e) = self.store(done, None, reader)
        {
            log::debug!("consumer {:?}: its last position is not stored: {e}", self.name);
        }
    }
}

/// Waits until the topic's head is above `seq`, it is deleted, or `timeout` has passed.
pub(crate) fn wait_head(ctx: &Ctx, topic: &Topic, seq: u64, timeout: Duration) -> Result<bool> {
    let woken = OneShot::new();
    let wake = woken.clone();
    let id = topic.gate.on_head(seq, Box::new(move || wake.set(())));
    let deadline = Instant::now().checked_add(timeout);
    // A deletion or a close after this check releases the gate.
    if ctx.check_open().is_ok() && topic.life() == Life::Live {
        woken.wait(deadline);
    }
    topic.gate.cancel(id);
    ctx.check_open()?;
    if topic.life() == Life::Dead {
        return Err(Error::TopicNotFound(topic.name.to_string()));
    }
    Ok(topic.gate.head() > seq)
}

impl Topic {
    /// At most `limit` of the topic's consumers, in name order: those whose names begin with
    /// `prefix` and come after `after`.
    pub(crate) fn consumers(
        &self,
        base: &Base,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ConsumerInfo>> {
        self.check_sound()?;
        let page: Vec<(Arc<str>, Stored)> = {
            let state = self.state.read();
            let all = state.consumers.iter().flat_map(|c| c.page(prefix, after));
            all.take(limit).map(|(n, s)| (n.clone(), s.clone())).collect()
        };
        page.iter().map(|(name, s)| self.consumer_info(base, name, s)).collect()
    }

    pub(crate) fn consumer(&self, base: &Base, name: &str) -> Result<ConsumerInfo> {
        self.check_sound()?;
        let s = stored(self, name).ok_or_else(|| no_consumer(self, name))?;
        self.consumer_info(base, name, &s)
    }

    fn consumer_info(&self, base: &Base, name: &str, s: &Stored) -> Result<ConsumerInfo> {
        let lag = lag(base, self, s.cursor)?;
        Ok(ConsumerInfo {
            topic: self.name.to_string(),
            name: name.to_owned(),
            mode: s.mode,
            cursor: s.cursor,
            lag: lag.records,
            lag_ms: lag.ms,
        })
    }
}

/// Deletes a consumer; returns false if there was none.
pub(crate) fn delete_consumer(ctx: &Arc<Ctx>, topic: &Arc<Topic>, consumer: &str) -> Result<bool> {
    topic.check_sound()?;
    let Some(s) = stored(topic, consumer) else { return Ok(false) };
    log(ctx, topic, consumer, Some(false), |_| {
        let (name, mode) = (consumer.to_owned(), s.mode as u8);
        Ok(Some(record::Consumer { name, mode, cursor: None }))
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests;
