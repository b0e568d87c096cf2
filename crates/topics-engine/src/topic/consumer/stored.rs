//! Stored cursors: the topic's state, its section of a snapshot, the frames that change it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use topics_env::sync::{Condvar, Mutex};
use topics_storage::format::record::{self, Body};
use topics_storage::wal::{Level, Ticket};

use super::super::Topic;
use super::super::flight::Frames;
use super::super::jobs::stage_with;
use super::super::state::State;
use super::ConsumerMode;
use super::later;
use crate::core::{Base, Core, Wait};
use crate::error::{Error, Result};
use crate::quota::Charge;

/// The version of [`encode`].
pub(in super::super) const VERSION: u16 = 1;

/// One reader at a time.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub taken: Mutex<bool>,
    pub free: Condvar,
    /// Who is told when it is free, and then tries again.
    pub told: later::Told,
}

pub(super) struct TurnGuard(pub Arc<Turn>);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.free.notify_one();
        self.0.told.tell();
    }
}

#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub mode: ConsumerMode,
    pub cursor: u64,
    /// Where it will be when what is staged is applied.
    pub planned: u64,
    pub turn: Arc<Turn>,
}

impl Stored {
    pub fn new(mode: ConsumerMode, cursor: u64) -> Self {
        Self { mode, cursor, planned: cursor, turn: Arc::default() }
    }
}

/// The consumers of a topic by name, and what they take of the limit of all.
#[derive(Debug, Default)]
pub(crate) struct Consumers(pub(super) BTreeMap<Arc<str>, Stored>, Option<Charge>);

impl Consumers {
    fn charge(&mut self, base: &Base) -> &mut Charge {
        self.1.get_or_insert_with(|| base.consumers.force(0))
    }

    /// Counts those that a snapshot had.
    pub(in super::super) fn count(&mut self, base: &Base) {
        let n = self.0.len() as u64;
        self.charge(base).force(n);
    }

    /// Those whose names begin with `prefix` and come after `after`, by name.
    pub(super) fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&Arc<str>, &Stored)> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let all = self.0.range::<str, _>((from, Bound::Unbounded));
        all.take_while(move |(name, _)| name.starts_with(prefix))
    }
}

/// The section of a snapshot: number u32, then name_len u16, name, mode u8, cursor u64 of each.
pub(in super::super) fn encode(all: &Consumers) -> Option<Vec<u8>> {
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
pub(in super::super) fn decode(bytes: &[u8]) -> Result<Consumers> {
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
    pub(in super::super) fn apply_consumer(
        &mut self,
        base: &Base,
        body: record::Consumer,
    ) -> Result<()> {
        let mode = ConsumerMode::from_code(body.mode)
            .ok_or_else(|| Error::Internal(format!("consumer mode {}", body.mode)))?;
        let all = self.consumers.get_or_insert_default();
        match body.cursor {
            None => {
                if all.0.remove(body.name.as_str()).is_some() {
                    all.charge(base).shrink(1);
                }
            }
            Some(cursor) => match all.0.get_mut(body.name.as_str()) {
                Some(s) => (s.mode, s.cursor) = (mode, cursor),
                None => {
                    all.0.insert(body.name.into(), Stored::new(mode, cursor));
                    all.charge(base).force(1);
                }
            },
        }
        Ok(())
    }
}

impl State {
    /// How many consumers there are; records between the stored cursor and the head of at most
    /// `limit` of them.
    pub(crate) fn lags(&self, head: u64, limit: usize) -> (usize, Vec<(Arc<str>, u64)>) {
        let all = self.consumers.iter().flat_map(|c| &c.0).take(limit);
        let lags = all.map(|(name, s)| (name.clone(), head.saturating_sub(s.cursor))).collect();
        (self.consumers.as_ref().map_or(0, |c| c.0.len()), lags)
    }
}

impl Consumers {
    /// Replay is over: nothing is on its way.
    pub(in super::super) fn recovered(&mut self) {
        self.0.values_mut().for_each(|s| s.planned = s.cursor);
    }
}

pub(super) fn stored(topic: &Topic, name: &str) -> Option<Stored> {
    topic.state.read().consumers.as_ref()?.0.get(name).cloned()
}

/// Stages a `Consumer` frame that `decide` makes under the locks of the topic. `None`: nothing was
/// to be done.
pub(super) fn stage_cursor(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    name: &str,
    wait: Wait,
    decide: impl Fn(&mut Consumers) -> Result<Option<record::Consumer>>,
) -> Result<Option<(Ticket, Level)>> {
    let mut before = None;
    let staged = stage_with(core, topic, 512, wait, || {
        let mut state = topic.state.write();
        let all = state.consumers.get_or_insert_default();
        let Some(body) = decide(all)? else { return Ok(None) };
        if let (Some(s), Some(to)) = (all.0.get_mut(name), body.cursor) {
            before = Some(std::mem::replace(&mut s.planned, to));
        }
        let mut frames = Frames::default();
        body.encode_frame(&mut frames.head, topic.id(), 0, 0);
        Ok(Some(frames))
    });
    if staged.is_err()
        && let Some(before) = before
        && let Some(all) = &mut topic.state.write().consumers
        && let Some(s) = all.0.get_mut(name)
    {
        // What was staged before this one is still on its way (I8).
        s.planned = before;
    }
    staged
}

/// What was planned will not be.
pub(super) fn unplan(topic: &Topic, name: &str) {
    if let Some(all) = &mut topic.state.write().consumers
        && let Some(s) = all.0.get_mut(name)
    {
        s.planned = s.cursor;
    }
}

/// The same, and waits for it: durable if `Some(true)`, with `Some(false)` as the topic's class
/// demands. `None` waits for nothing, neither for the topic nor for staging room nor for a write.
pub(super) fn log(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    name: &str,
    wait: Option<bool>,
    decide: impl Fn(&mut Consumers) -> Result<Option<record::Consumer>>,
) -> Result<()> {
    let patience = if wait.is_some() { Wait::Bounded } else { Wait::No };
    let staged = stage_cursor(core, topic, name, patience, decide)?;
    let Some((ticket, level)) = staged else { return Ok(()) };
    let Some(durable) = wait else {
        core.wal.lead_later(ticket.shard as usize);
        return Ok(());
    };
    let level = if durable { Level::Synced } else { level };
    core.wait(ticket, level).inspect_err(|_| unplan(topic, name))
}

/// Refuses a commit of a cursor that cannot be made.
pub(in super::super) fn check_cursor(topic: &Topic, name: &str, seq: u64) -> Result<()> {
    stored(topic, name).ok_or_else(|| no_consumer(topic, name))?;
    let head = topic.gate.head();
    if seq > head {
        let text = format!("commit of seq {seq} is above the head {head}");
        return Err(Error::InvalidRequest(text));
    }
    Ok(())
}

/// The frames that move cursors forwards; the caller stages them (I8: none goes back).
pub(in super::super) fn plan_cursors(
    topic: &Topic,
    cursors: &[(String, u64)],
) -> Vec<record::Consumer> {
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
pub(in super::super) fn unplan_cursors(topic: &Topic, cursors: &[(String, u64)]) {
    if let Some(all) = &mut topic.state.write().consumers {
        for (name, _) in cursors {
            if let Some(s) = all.0.get_mut(name.as_str()) {
                s.planned = s.cursor;
            }
        }
    }
}

pub(super) fn no_consumer(topic: &Topic, name: &str) -> Error {
    Error::ConsumerNotFound { topic: topic.name.to_string(), consumer: name.to_owned() }
}
