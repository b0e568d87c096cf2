//! A topic's part of the engine's totals, and the guard around work on one topic.

use topics_env::sync::atomic::Ordering;

use super::Topic;
use super::events::Base;
use super::state::index::Entry;
use super::state::{State, Usage};
use crate::types::api::Durability;
use crate::types::error::{Error, Result};

/// Rounds until the files of deleted records are gone.
pub(crate) const ROUNDS_TO_FREE: u64 = 2;

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

    /// Owes the rounds that remove the files of what a topic dropped: the first snapshot does not name
    /// them, and the second replaces the one that does.
    pub(crate) fn owe_rounds(&self, before: Usage, after: Usage) {
        if after.bytes < before.bytes {
            self.owed_rounds.store(ROUNDS_TO_FREE, Ordering::Relaxed);
        }
    }

    /// Changes the state of a topic and the totals with it.
    pub(crate) fn change<R>(&self, topic: &Topic, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state = topic.state.write();
        let before = state.usage();
        let out = f(&mut state);
        let after = state.usage();
        self.account(before, after);
        if state.config.durability != Durability::Ephemeral {
            self.owe_rounds(before, after);
        }
        out
    }

    /// Bytes of memory of the resident index.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident() * size_of::<Entry>() as u64
    }
}
