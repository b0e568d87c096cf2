//! The answers to keyed writes that are repeated after a recovery.

use topics_engine::Durability;

use super::log::Rec;
use super::observe::Observation;
use super::topic::{Cause, Keep};
use super::world::{AttemptState, World};

/// The answer to a retry: topic id, first seq, whether deduped; or the error's code.
pub type Retried = Result<(u64, u64, bool), &'static str>;

impl World {
    /// A repeated write is deduped exactly if the records survived.
    pub fn check_retries(
        &self,
        seen: &Observation,
        retried: &[(usize, Retried)],
        kind: Keep,
    ) -> Vec<String> {
        let mut out = Vec::new();
        let kind = self.worst.map_or(kind, |w| w.max(kind));
        for &(attempt, answer) in retried {
            let placed = placed(seen, attempt);
            match answer {
                Err("idempotency_mismatch" | "storage_unavailable" | "internal" | "corrupt") => {
                    out.push(format!("retry of attempt {attempt}: {answer:?}"));
                }
                Ok((id, first, true)) => {
                    if placed.is_some_and(|p| p != (id, first)) {
                        out.push(format!(
                            "retry of {attempt} at {placed:?} answered {first} of {id}"
                        ));
                    }
                    if placed.is_none() && !self.may_be_remembered(attempt) {
                        out.push(format!("retry of {attempt} deduped, but it is not there"));
                    }
                }
                _ => {
                    if self.must_be_remembered(seen, attempt, placed.is_some(), kind) {
                        out.push(format!("retry of {attempt} at {placed:?} answered {answer:?}"));
                    }
                }
            }
        }
        out
    }

    /// Its records may have been removed by something other than a crash.
    fn may_be_remembered(&self, attempt: usize) -> bool {
        let Some(a) = self.attempts.get(attempt) else { return false };
        let slots = self.names.get(&a.topic).into_iter().flatten().flat_map(|i| i.slots.values());
        let mut slots = slots.filter(|s| s.attempt == attempt).peekable();
        if slots.peek().is_some() {
            let gone = |m: super::topic::Mark| m.why == Cause::Gone;
            return !slots.all(|s| s.mark.is_some_and(gone));
        }
        // Pending: the write may have succeeded, and a possible delete may have removed its
        // records.
        a.state == AttemptState::Pending
            && (self.possible_deletes(&a.topic).next().is_some()
                || self.names.get(&a.topic).into_iter().flatten().any(|i| !i.dels.is_empty()))
    }

    fn must_be_remembered(
        &self,
        seen: &Observation,
        attempt: usize,
        placed: bool,
        kind: Keep,
    ) -> bool {
        let Some(a) = self.attempts.get(attempt) else { return false };
        let Some(topic) = seen.topic(&a.topic) else { return false };
        let Some(inc) = self.names.get(&a.topic).and_then(|i| i.last()) else {
            return placed && topic.state.config.durability >= Durability::Disk;
        };
        let windows = inc.candidates(Keep::Power).map(|c| c.idempotency_window_ms);
        let fresh = windows.min().is_some_and(|w| self.max_wall < a.wall + w);
        let slot = inc.slots.values().find(|s| s.attempt == attempt);
        let class = slot.map_or(topic.state.config.durability, |s| s.class);
        let kept = slot.is_some_and(|s| s.keep >= kind)
            && !slot.is_some_and(|s| s.mark.is_some_and(|m| m.why == Cause::Gone))
            && topic.state.topic_id == inc.id;
        fresh && class >= Durability::Disk && (placed || kept)
    }
}

fn placed(seen: &Observation, attempt: usize) -> Option<(u64, u64)> {
    seen.topics.iter().find_map(|t| {
        t.records.iter().find_map(|r| match Rec::origin(&r.data) {
            Some((a, index)) if a == attempt => {
                Some((t.state.topic_id, r.seq.checked_sub(index as u64)?))
            }
            _ => None,
        })
    })
}
