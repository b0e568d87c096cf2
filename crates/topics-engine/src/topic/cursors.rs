//! Stored cursors of consumers: part of the topic's state, with their snapshot section and the frame
//! that changes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use topics_storage::format::record;

use super::Topic;
use super::events::Base;
use crate::types::consumer::ConsumerMode;
use crate::types::error::{Error, Result};
use crate::types::quota::Charge;
use crate::types::wait::ReaderLock;

/// The version of [`encode`].
pub(crate) const VERSION: u16 = 1;

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub mode: ConsumerMode,
    pub cursor: u64,
    /// The cursor after all staged frames (I8: a commit must be above it). A frame that fails restores
    /// the value before the topic's next batch is staged, so this is never a position that no frame
    /// reaches, and never below a staged one.
    pub planned: u64,
    /// How often a series of staged frames was undone.
    round: u32,
    /// Held by the one reader of `at_most_once` that reads now.
    pub reader: Arc<ReaderLock>,
    /// The last takeover by a reader of `at_least_once`; in memory only.
    pub takeover: Takeover,
}

/// When a reader took a consumer over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Takeover {
    /// Its number, which rises over all consumers; 0: no reader has the consumer.
    pub fence: u64,
    /// Its time, ms since the Unix epoch.
    pub at: u64,
}

impl Stored {
    pub fn new(mode: ConsumerMode, cursor: u64) -> Self {
        Self {
            mode,
            cursor,
            planned: cursor,
            round: 0,
            reader: Arc::default(),
            takeover: Takeover::default(),
        }
    }
}

/// What undoes a staged cursor.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCursor {
    name: String,
    /// The planned cursor before this one; `None` for the creation of the consumer.
    before: Option<u64>,
    round: u32,
}

/// The consumers of a topic by name, and their charge on the limit of all consumers.
#[derive(Debug, Default)]
pub(crate) struct Consumers(
    pub(crate) BTreeMap<Arc<str>, Stored>,
    Option<Charge>,
    /// Consumers whose creation is staged and not applied.
    BTreeSet<String>,
);

impl Consumers {
    fn charge(&mut self, base: &Base) -> &mut Charge {
        self.1.get_or_insert_with(|| base.consumers.force(0))
    }

    /// Charges the consumers that a snapshot had.
    pub(crate) fn count(&mut self, base: &Base) {
        let n = self.0.len() as u64;
        self.charge(base).force(n);
    }

    /// The consumers whose names begin with `prefix` and are greater than `after`, by name.
    pub(crate) fn page(
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
pub(crate) fn encode(all: &Consumers) -> Option<Vec<u8>> {
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

/// Decodes a section that [`encode`] wrote. Anything else is an error.
pub(crate) fn decode(bytes: &[u8]) -> Result<Consumers> {
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

impl Consumers {
    /// Sets or removes a cursor. The last frame wins, because the log has them in order.
    pub(crate) fn apply(&mut self, base: &Base, body: record::Consumer) -> Result<()> {
        let mode = ConsumerMode::from_code(body.mode)
            .ok_or_else(|| Error::Internal(format!("consumer mode {}", body.mode)))?;
        match body.cursor {
            None => {
                if self.0.remove(body.name.as_str()).is_some() {
                    self.charge(base).shrink(1);
                }
            }
            Some(cursor) => match self.0.get_mut(body.name.as_str()) {
                Some(s) => (s.mode, s.cursor) = (mode, cursor),
                None => {
                    self.2.remove(&body.name);
                    self.0.insert(body.name.into(), Stored::new(mode, cursor));
                    self.charge(base).force(1);
                }
            },
        }
        Ok(())
    }

    /// Sets the planned cursors after replay, when no frame is staged.
    pub(crate) fn recovered(&mut self) {
        self.0.values_mut().for_each(|s| s.planned = s.cursor);
    }

    /// Plans a cursor, or the creation of its consumer.
    pub(crate) fn plan(&mut self, name: &str, to: u64) -> PlannedCursor {
        let (before, round) = match self.0.get_mut(name) {
            Some(s) => (Some(std::mem::replace(&mut s.planned, to)), s.round),
            None => {
                self.2.insert(name.to_owned());
                (None, 0)
            }
        };
        PlannedCursor { name: name.to_owned(), before, round }
    }

    /// Whether a consumer is stored, or its creation is staged.
    pub(crate) fn is_known(&self, name: &str) -> bool {
        self.0.contains_key(name) || self.2.contains(name)
    }

    /// Whether a staged batch creates the consumer or moves its cursor.
    pub(crate) fn is_planned(&self, name: &str) -> bool {
        self.2.contains(name) || self.0.get(name).is_some_and(|s| s.planned != s.cursor)
    }

    /// Undoes a frame that was not logged. The later frames of the topic failed with it and are undone
    /// next; the first one restores the cursor.
    pub(crate) fn undo(&mut self, planned: &PlannedCursor) {
        let Some(before) = planned.before else {
            self.2.remove(&planned.name);
            return;
        };
        if let Some(s) = self.0.get_mut(planned.name.as_str()).filter(|s| s.round == planned.round)
        {
            s.planned = before;
            s.round += 1;
        }
    }
}

pub(crate) fn stored(topic: &Topic, name: &str) -> Option<Stored> {
    topic.state.read().consumers.as_ref()?.0.get(name).cloned()
}
