//! A topic's part of the engine's totals, and the guard around work on one topic.

use super::Topic;
use super::events::Base;
use super::state::index::Entry;
use super::state::{State, Usage};
use crate::types::error::{Error, Result};

impl Base {
    /// Runs work that concerns one topic. A panic in it closes the topic until the next open, and
    /// becomes an error.
    pub(crate) fn guarded<R>(
        &self,
        name: &'static str,
        topic: &Topic,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let at = || format!("topic {:?}", topic.name);
        self.env.guards.run(name, at, f).unwrap_or_else(|panicked| {
            topic.close_broken(&panicked);
            let detail = format!("{name} of topic {:?}: {panicked}", topic.name);
            Err(Error::StorageUnavailable { reason: "io", detail })
        })
    }

    /// Adds the difference between two usages of a topic to the totals.
    pub(crate) fn account(&self, before: Usage, after: Usage) {
        // Unsigned differences that wrap: the sums come out right.
        let resident = after.resident.wrapping_sub(before.resident);
        let bytes = after.bytes.wrapping_sub(before.bytes);
        self.add_totals(resident, bytes);
    }

    /// Changes the state of a topic and the totals with it.
    pub(crate) fn change<R>(&self, topic: &Topic, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = topic.state.write();
        let before = state.usage();
        let out = f(&mut state);
        self.account(before, state.usage());
        out
    }

    /// Bytes of memory of the resident index.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident() * size_of::<Entry>() as u64
    }
}
