//! Durable consumers: cursors that the engine keeps for readers.
//!
//! A stored cursor changes by a `Consumer` frame that says where it is. `at_most_once` makes that
//! durable before the records are handed out; `at_least_once` after they were dealt with.

mod later;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::{Condvar, Instant, Mutex};
use topics_storage::format::record::{self, Body};
use topics_storage::wal::{Level, Ticket};

use super::flight::Frames;
use super::jobs::stage_with;
use super::state::State;
use super::{Life, Topic, read, seek};
use crate::api::{ReadBatch, ReadFrom, ReadRequest, TopicMatch};
use crate::core::{Core, Wait};
use crate::error::{Error, Result};
use crate::name;

/// The version of [`encode`].
pub(super) const VERSION: u16 = 1;
/// Reads after which an automatic commit is logged.
const EVERY: u32 = 100;
/// Time after which it is, ms.
const AFTER_MS: u64 = 1_000;
/// The most records of one read.
const MAX_RECORDS: usize = 2_000;
/// The longest wait of a read.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// What a consumer promises about records that its reader may not have dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsumerMode {
    /// They are handed out again.
    #[default]
    AtLeastOnce,
    /// They are not handed out again.
    AtMostOnce,
}

impl ConsumerMode {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AtLeastOnce => "at_least_once",
            Self::AtMostOnce => "at_most_once",
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::AtLeastOnce, Self::AtMostOnce].get(usize::from(code)).copied()
    }
}

/// Where a new consumer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsumerStart {
    /// At the first record that is kept.
    #[default]
    Start,
    /// Behind the last record.
    End,
}

/// Where a cursor is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// Behind this seq.
    Seq(u64),
    /// Just before the first record at or after this time, ms.
    Ts(u64),
    /// Before the first record that is kept.
    Start,
    /// Behind the last record.
    End,
}

/// A read by a consumer.
#[derive(Clone, Debug)]
pub struct ConsumerRead {
    /// Most bytes of `data` and `meta`; at least one record is returned if there is any.
    pub max_bytes: usize,
    /// Most records, at most 2000.
    pub max_records: usize,
    /// False peeks: the cursor stays.
    pub checkpoint: bool,
    /// How long to wait for a record; at most 30 s.
    pub wait: Duration,
    /// Only records with these tags.
    pub matching: Option<TopicMatch>,
    /// `at_most_once`: fail with `consumer_busy` instead of waiting for the reader before.
    pub fail_if_busy: bool,
}

impl Default for ConsumerRead {
    fn default() -> Self {
        Self {
            max_bytes: 1 << 20,
            max_records: MAX_RECORDS,
            checkpoint: true,
            wait: Duration::ZERO,
            matching: None,
            fail_if_busy: false,
        }
    }
}

/// A consumer as lists show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its topic.
    pub topic: String,
    /// Its name.
    pub name: String,
    /// Its mode.
    pub mode: ConsumerMode,
    /// The stored cursor.
    pub cursor: u64,
    /// Records between the cursor and the head.
    pub lag: u64,
    /// Milliseconds since the next unread record was committed, 0 when caught up.
    pub lag_ms: u64,
}

/// One reader at a time.
#[derive(Debug, Default)]
struct Turn {
    taken: Mutex<bool>,
    free: Condvar,
    /// Who is told when it is free, and then tries again.
    told: later::Told,
}

struct TurnGuard(Arc<Turn>);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.free.notify_one();
        self.0.told.tell();
    }
}

#[derive(Clone, Debug)]
struct Stored {
    mode: ConsumerMode,
    cursor: u64,
    /// Where it will be when what is staged is applied.
    planned: u64,
    turn: Arc<Turn>,
}

impl Stored {
    fn new(mode: ConsumerMode, cursor: u64) -> Self {
        Self { mode, cursor, planned: cursor, turn: Arc::default() }
    }
}

/// The consumers of a topic by name.
#[derive(Debug, Default)]
pub(crate) struct Consumers(BTreeMap<Arc<str>, Stored>);

/// The section of a snapshot: number u32, then name_len u16, name, mode u8, cursor u64 of each.
pub(super) fn encode(all: &Consumers) -> Option<Vec<u8>> {
    if all.0.is_empty() {
        return None;
    }
    let mut out = (all.0.len() as u32).to_le_bytes().to_vec();
    for (name, s) in &all.0 {
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(name.as_bytes());
        out.push(s.mode as u8);
        out.extend_from_slice(&s.cursor.to_le_bytes());
    }
    Some(out)
}

/// Reads what [`encode`] wrote. Anything else is an error.
pub(super) fn decode(bytes: &[u8]) -> Result<Consumers> {
    fn parse(bytes: &[u8]) -> Option<Consumers> {
        let (n, mut rest) = bytes.split_first_chunk::<4>()?;
        let mut all = Consumers::default();
        for _ in 0..u32::from_le_bytes(*n) {
            let (len, after) = rest.split_first_chunk::<2>()?;
            let (name, after) = after.split_at_checked(u16::from_le_bytes(*len).into())?;
            let (mode, after) = after.split_first()?;
            let (cursor, after) = after.split_first_chunk::<8>()?;
            let stored = Stored::new(ConsumerMode::from_code(*mode)?, u64::from_le_bytes(*cursor));
            all.0.insert(std::str::from_utf8(name).ok()?.into(), stored);
            rest = after;
        }
        rest.is_empty().then_some(all)
    }
    parse(bytes).ok_or_else(|| Error::Corrupt {
        file: "the consumers of a topic in the snapshot".into(),
        offset: 0,
        detail: "they cannot be parsed: run verify".into(),
    })
}

impl State {
    /// A cursor is where the frame says, whatever was before: the log has them in order.
    pub(super) fn apply_consumer(&mut self, body: record::Consumer) -> Result<()> {
        let mode = ConsumerMode::from_code(body.mode)
            .ok_or_else(|| Error::Internal(format!("consumer mode {}", body.mode)))?;
        let all = &mut self.consumers.get_or_insert_default().0;
        match body.cursor {
            None => drop(all.remove(body.name.as_str())),
            Some(cursor) => match all.get_mut(body.name.as_str()) {
                Some(s) => (s.mode, s.cursor) = (mode, cursor),
                None => drop(all.insert(body.name.into(), Stored::new(mode, cursor))),
            },
        }
        Ok(())
    }
}

impl State {
    /// Records between each stored cursor and the head.
    pub(crate) fn lags(&self, head: u64) -> Vec<(Arc<str>, u64)> {
        let all = self.consumers.iter().flat_map(|c| &c.0);
        all.map(|(name, s)| (name.clone(), head.saturating_sub(s.cursor))).collect()
    }
}

impl Consumers {
    /// Replay is over: nothing is on its way.
    pub(super) fn recovered(&mut self) {
        self.0.values_mut().for_each(|s| s.planned = s.cursor);
    }
}

/// What a handle has handed out.
#[derive(Debug)]
struct Delivered {
    /// Where the next read begins.
    at: u64,
    /// With automatic commits: up to where records were dealt with, and not stored yet.
    done: Option<u64>,
    /// Reads since that was logged, and when.
    reads: u32,
    logged_at: u64,
}

/// A reader with a stored cursor. A new one begins where the cursor is stored.
pub struct Consumer {
    core: Arc<Core>,
    topic: Arc<Topic>,
    name: Arc<str>,
    mode: ConsumerMode,
    auto_commit: bool,
    delivered: Mutex<Delivered>,
    /// Batches that were read and did not reach the reader: the next reads hand them out.
    kept: Mutex<VecDeque<ReadBatch>>,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("name", &self.name).finish_non_exhaustive()
    }
}

fn stored(topic: &Topic, name: &str) -> Option<Stored> {
    topic.state.read().consumers.as_ref()?.0.get(name).cloned()
}

/// The seq before the first record that is kept.
fn first(core: &Core, topic: &Topic) -> Result<u64> {
    let look =
        ReadRequest { from: ReadFrom::Earliest, limit: 0, touch: false, ..ReadRequest::default() };
    Ok(read(core, topic, &look)?.earliest_seq - 1)
}

/// Stages a `Consumer` frame that `decide` makes under the locks of the topic. `None`: nothing was
/// to be done.
fn stage_cursor(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    name: &str,
    decide: impl Fn(&mut Consumers) -> Result<Option<record::Consumer>>,
) -> Result<Option<(Ticket, Level)>> {
    stage_with(core, topic, 512, Wait::Bounded, || {
        let mut state = topic.state.write();
        let all = state.consumers.get_or_insert_default();
        let Some(body) = decide(all)? else { return Ok(None) };
        if let (Some(s), Some(to)) = (all.0.get_mut(name), body.cursor) {
            s.planned = to;
        }
        let mut frames = Frames::default();
        body.encode_frame(&mut frames.head, topic.id(), 0, 0);
        Ok(Some(frames))
    })
    .inspect_err(|_| unplan(topic, name))
}

/// What was planned will not be.
fn unplan(topic: &Topic, name: &str) {
    if let Some(all) = &mut topic.state.write().consumers
        && let Some(s) = all.0.get_mut(name)
    {
        s.planned = s.cursor;
    }
}

/// The same, and waits for it: durable if `durable`, else as the topic's class demands; without
/// `wait` not at all.
fn log(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    name: &str,
    wait: Option<bool>,
    decide: impl Fn(&mut Consumers) -> Result<Option<record::Consumer>>,
) -> Result<()> {
    let Some((ticket, level)) = stage_cursor(core, topic, name, decide)? else { return Ok(()) };
    let Some(durable) = wait else {
        core.wal.drive(ticket.shard as usize);
        return Ok(());
    };
    let level = if durable { Level::Synced } else { level };
    core.wait(ticket, level).inspect_err(|_| unplan(topic, name))
}

/// Refuses a commit of a cursor that cannot be made.
pub(super) fn check_cursor(topic: &Topic, name: &str, seq: u64) -> Result<()> {
    stored(topic, name).ok_or_else(|| no_consumer(topic, name))?;
    let head = topic.gate.head();
    if seq > head {
        let text = format!("commit of seq {seq} is above the head {head}");
        return Err(Error::InvalidRequest(text));
    }
    Ok(())
}

/// The frames that move cursors forwards; the caller stages them (I8: none goes back).
pub(super) fn plan_cursors(topic: &Topic, cursors: &[(String, u64)]) -> Vec<record::Consumer> {
    let mut frames = Vec::new();
    if cursors.is_empty() {
        return frames;
    }
    let mut state = topic.state.write();
    let all = state.consumers.get_or_insert_default();
    for (name, seq) in cursors {
        let Some(s) = all.0.get_mut(name.as_str()).filter(|s| *seq > s.planned) else { continue };
        s.planned = *seq;
        let (name, mode) = (name.clone(), s.mode as u8);
        frames.push(record::Consumer { name, mode, cursor: Some(*seq) });
    }
    frames
}

/// What [`plan_cursors`] planned was not logged.
pub(super) fn unplan_cursors(topic: &Topic, cursors: &[(String, u64)]) {
    if let Some(all) = &mut topic.state.write().consumers {
        for (name, _) in cursors {
            if let Some(s) = all.0.get_mut(name.as_str()) {
                s.planned = s.cursor;
            }
        }
    }
}

fn no_consumer(topic: &Topic, name: &str) -> Error {
    Error::ConsumerNotFound { topic: topic.name.to_string(), consumer: name.to_owned() }
}

impl Consumer {
    /// A handle for a consumer, which is created when it is new.
    pub(crate) fn open(
        core: &Arc<Core>,
        topic: &Arc<Topic>,
        consumer: &str,
        mode: Option<ConsumerMode>,
        start: ConsumerStart,
        auto_commit: bool,
    ) -> Result<Self> {
        name::check(consumer)?;
        topic.check_sound()?;
        let begin = match start {
            ConsumerStart::Start => first(core, topic)?,
            ConsumerStart::End => topic.gate.head(),
        };
        log(core, topic, consumer, Some(false), |all| {
            Ok((!all.0.contains_key(consumer)).then(|| record::Consumer {
                name: consumer.to_owned(),
                mode: mode.unwrap_or_default() as u8,
                cursor: Some(begin),
            }))
        })?;
        let s = stored(topic, consumer).ok_or_else(|| no_consumer(topic, consumer))?;
        if let Some(wanted) = mode.filter(|m| *m != s.mode) {
            return Err(Error::TopicExistsIncompatible {
                topic: topic.name.to_string(),
                field: "consumer mode",
                actual: s.mode.as_str().into(),
                wanted: wanted.as_str().into(),
            });
        }
        let logged_at = core.time.mono_ms();
        let delivered = Delivered { at: s.cursor, done: None, reads: 0, logged_at };
        Ok(Self {
            core: core.clone(),
            topic: topic.clone(),
            name: consumer.into(),
            mode: s.mode,
            auto_commit,
            delivered: Mutex::new(delivered),
            kept: Mutex::default(),
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
        self.core.check_open()?;
        if self.topic.life() != Life::Live {
            return Err(Error::TopicNotFound(self.topic.name.to_string()));
        }
        stored(&self.topic, &self.name).ok_or_else(|| no_consumer(&self.topic, &self.name))
    }

    /// Records in seq order from the cursor, until a budget is reached.
    pub fn read(&self, req: &ConsumerRead) -> Result<ReadBatch> {
        let until = Instant::now() + req.wait.min(MAX_WAIT);
        let s = self.stored()?;
        if let Some(batch) = self.kept(req) {
            return Ok(batch);
        }
        let _turn = match self.mode {
            ConsumerMode::AtMostOnce => Some(self.turn(&s.turn, req, until)?),
            ConsumerMode::AtLeastOnce => None,
        };
        loop {
            let batch = match self.mode {
                ConsumerMode::AtMostOnce => self.read_once(req)?,
                ConsumerMode::AtLeastOnce => self.read_again(req)?,
            };
            let rest = until.saturating_duration_since(Instant::now());
            let something = !batch.is_empty() || batch.tombstone.is_some();
            if something || rest.is_zero() {
                return Ok(batch);
            }
            if batch.caught_up {
                wait_head(&self.core, &self.topic, batch.next_from_seq, rest)?;
            }
        }
    }

    fn turn(&self, turn: &Arc<Turn>, req: &ConsumerRead, until: Instant) -> Result<TurnGuard> {
        let mut taken = turn.taken.lock();
        // A reader that waits for its turn waits at least as long as the one before may.
        let until = until.max(Instant::now() + MAX_WAIT);
        while *taken {
            if req.fail_if_busy || turn.free.wait_until(&mut taken, until).timed_out() && *taken {
                return Err(self.busy());
            }
        }
        *taken = true;
        Ok(TurnGuard(turn.clone()))
    }

    /// The cursor is stored, durably, before anything is handed out.
    fn read_once(&self, req: &ConsumerRead) -> Result<ReadBatch> {
        let (batch, staged) = self.take(req)?;
        if let Some((ticket, _)) = staged {
            let outcome = self.core.wait(ticket, Level::Synced);
            outcome.inspect_err(|_| unplan(&self.topic, &self.name))?;
        }
        Ok(batch)
    }

    /// Reads from the stored cursor on and stages the one behind, whose sync must be waited for.
    fn take(&self, req: &ConsumerRead) -> Result<(ReadBatch, Option<(Ticket, Level)>)> {
        let from = self.stored()?.cursor;
        let batch = self.fetch(from, req)?;
        if !req.checkpoint || batch.next_from_seq == from {
            return Ok((batch, None));
        }
        let (to, mode) = (batch.next_from_seq, self.mode as u8);
        let staged = stage_cursor(&self.core, &self.topic, &self.name, |all| {
            let Some(s) = all.0.get(&self.name) else {
                return Err(no_consumer(&self.topic, &self.name));
            };
            if s.planned != from {
                // A seek came between: what was read is not handed out.
                return Err(self.busy());
            }
            let (name, cursor) = (self.name.to_string(), Some(to));
            Ok(Some(record::Consumer { name, mode, cursor }))
        })?;
        Ok((batch, staged))
    }

    fn busy(&self) -> Error {
        let (topic, consumer) = (self.topic.name.to_string(), self.name.to_string());
        Error::ConsumerBusy { topic, consumer }
    }

    fn read_again(&self, req: &ConsumerRead) -> Result<ReadBatch> {
        let mut d = self.delivered.lock();
        if req.checkpoint && self.auto_commit {
            // What the read before handed out is dealt with.
            d.done = Some(d.at);
            self.commit_due(&mut d)?;
        }
        let batch = self.fetch(d.at, req)?;
        if req.checkpoint {
            d.at = batch.next_from_seq;
            d.reads += 1;
        }
        Ok(batch)
    }

    fn commit_due(&self, d: &mut Delivered) -> Result<()> {
        let now = self.core.time.mono_ms();
        let due = d.reads >= EVERY || now.saturating_sub(d.logged_at) >= AFTER_MS;
        if let Some(done) = d.done.filter(|_| due) {
            self.store(done, None)?;
            (d.done, d.reads, d.logged_at) = (None, 0, now);
        }
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
        let mut batch = read(&self.core, &self.topic, &look)?;
        batch.cut_to(req.max_bytes, self.core.time.wall());
        let next = batch.next_from_seq;
        if next < from {
            return Err(Error::Internal(format!("I8: a read from {from} ends at {next}")));
        }
        Ok(batch)
    }

    /// Stores a cursor that is further on; one that is not changes nothing (I8).
    pub fn commit(&self, seq: u64) -> Result<()> {
        self.stored()?;
        let head = self.topic.gate.head();
        if seq > head {
            let text = format!("commit of seq {seq} is above the head {head}");
            return Err(Error::InvalidRequest(text));
        }
        self.store(seq, Some(self.mode == ConsumerMode::AtMostOnce))
    }

    fn store(&self, seq: u64, wait: Option<bool>) -> Result<()> {
        let mode = self.mode as u8;
        log(&self.core, &self.topic, &self.name, wait, |all| {
            let Some(s) = all.0.get(&self.name) else {
                return Err(no_consumer(&self.topic, &self.name));
            };
            // I8: a cursor never goes back unasked.
            Ok((seq > s.planned).then(|| record::Consumer {
                name: self.name.to_string(),
                mode,
                cursor: Some(seq),
            }))
        })
    }

    /// Sets the cursor, forwards or back; this handle goes on from there.
    pub fn seek(&self, to: SeekTo) -> Result<u64> {
        self.stored()?;
        let head = self.topic.gate.head();
        let cursor = match to {
            SeekTo::Seq(seq) if seq > head => {
                let text = format!("seek to seq {seq} is above the head {head}");
                return Err(Error::InvalidRequest(text));
            }
            SeekTo::Seq(seq) => seq,
            SeekTo::Ts(ts) => seek(&self.core, &self.topic, ts)?.seq,
            SeekTo::Start => first(&self.core, &self.topic)?,
            SeekTo::End => head,
        };
        let mut d = self.delivered.lock();
        let durable = self.mode == ConsumerMode::AtMostOnce;
        log(&self.core, &self.topic, &self.name, Some(durable), |all| {
            if !all.0.contains_key(&self.name) {
                return Err(no_consumer(&self.topic, &self.name));
            }
            let (name, mode) = (self.name.to_string(), self.mode as u8);
            Ok(Some(record::Consumer { name, mode, cursor: Some(cursor) }))
        })?;
        (d.at, d.done) = (cursor, None);
        self.kept.lock().clear();
        Ok(cursor)
    }
}

impl Drop for Consumer {
    /// What was dealt with by automatic commits is stored, as far as that needs no waiting. The
    /// last batch is not: whether it was dealt with is not known.
    fn drop(&mut self) {
        self.give_up_kept();
        let done = self.delivered.get_mut().done.take();
        if let Some(done) = done
            && self.core.check_open().is_ok()
            && self.topic.life() == Life::Live
            && let Err(e) = self.store(done, None)
        {
            log::debug!("consumer {:?}: its last position is not stored: {e}", self.name);
        }
    }
}

/// Waits until the topic's head is above `seq`, it is deleted, or `timeout` has passed.
pub(crate) fn wait_head(core: &Core, topic: &Topic, seq: u64, timeout: Duration) -> Result<bool> {
    let woken = Arc::new((Mutex::new(false), Condvar::new()));
    let wake = woken.clone();
    let id = topic.gate.on_head(
        seq,
        Box::new(move || {
            *wake.0.lock() = true;
            wake.1.notify_all();
        }),
    );
    let deadline = Instant::now().checked_add(timeout);
    let mut done = woken.0.lock();
    while !*done && core.check_open().is_ok() && topic.life() == Life::Live {
        match deadline {
            Some(at) if woken.1.wait_until(&mut done, at).timed_out() => break,
            Some(_) => {}
            None => woken.1.wait(&mut done),
        }
    }
    drop(done);
    topic.gate.cancel(id);
    core.check_open()?;
    if topic.life() == Life::Dead {
        return Err(Error::TopicNotFound(topic.name.to_string()));
    }
    Ok(topic.gate.head() > seq)
}

impl Topic {
    /// The topic's consumers in name order.
    pub(crate) fn consumers(&self, core: &Core) -> Result<Vec<ConsumerInfo>> {
        let all: Vec<(Arc<str>, Stored)> = {
            let state = self.state.read();
            let all = state.consumers.iter().flat_map(|c| &c.0);
            all.map(|(n, s)| (n.clone(), s.clone())).collect()
        };
        all.into_iter()
            .map(|(name, s)| {
                let from = ReadFrom::After(s.cursor);
                let look = ReadRequest { from, limit: 0, touch: false, ..ReadRequest::default() };
                let b = read(core, self, &look)?;
                Ok(ConsumerInfo {
                    topic: self.name.to_string(),
                    name: name.to_string(),
                    mode: s.mode,
                    cursor: s.cursor,
                    lag: b.lag,
                    lag_ms: b.lag_ms,
                })
            })
            .collect()
    }
}

/// Deletes a consumer; false when there was none.
pub(crate) fn delete_consumer(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    consumer: &str,
) -> Result<bool> {
    let Some(s) = stored(topic, consumer) else { return Ok(false) };
    log(core, topic, consumer, Some(false), |_| {
        let (name, mode) = (consumer.to_owned(), s.mode as u8);
        Ok(Some(record::Consumer { name, mode, cursor: None }))
    })?;
    Ok(true)
}

impl ReadBatch {
    /// Leaves out what is above a budget of bytes, but never the first record.
    fn cut_to(&mut self, max_bytes: usize, now: u64) {
        let mut bytes = 0;
        let over = self.slots.iter().position(|s| {
            bytes += (s.data_len + s.meta_len) as usize;
            bytes > max_bytes
        });
        let Some(at) = over.map(|i| i.max(1)).filter(|i| *i < self.slots.len()) else { return };
        let next = self.slots[at];
        self.slots.truncate(at);
        // Up to the record before: what was skipped between is skipped again, for nothing.
        self.next_from_seq = self.slots[at - 1].seq;
        self.caught_up = false;
        self.lag = self.head_seq.saturating_sub(self.next_from_seq);
        self.lag_ms = now.saturating_sub(next.ts);
    }
}

#[cfg(test)]
mod tests;
