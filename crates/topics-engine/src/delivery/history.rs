//! The numbered events of a session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Maximum number of events in a history.
const MAX_EVENTS: usize = 16_384;

/// The numbered events of a session, to rewind its cursors.
#[derive(Debug, Default)]
pub struct EventHistory {
    last: u64,
    /// Number, topic, topic id, cursor before the event.
    events: VecDeque<(u64, Arc<str>, u64, u64)>,
}

impl EventHistory {
    /// Adds an event that moved a topic's cursor from `before`; returns its number.
    pub fn push(&mut self, topic: Arc<str>, topic_id: u64, before: u64) -> u64 {
        self.last += 1;
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back((self.last, topic, topic_id, before));
        self.last
    }

    /// The cursors after `event`, for the topics that later events moved; for a topic that was created
    /// anew meanwhile, that of the earlier topic. An event that was never sent moves none. `None` for
    /// one that is no longer kept: what was sent after it may be lost.
    #[must_use]
    pub fn rewind_to(&self, event: u64) -> Option<Vec<(String, u64, u64)>> {
        if event > self.last {
            return Some(Vec::new());
        }
        if event + 1 < self.events.front().map_or(self.last + 1, |s| s.0) {
            return None;
        }
        let mut earliest: HashMap<&str, (u64, u64)> = HashMap::new();
        for (_, topic, id, before) in self.events.iter().filter(|s| s.0 > event) {
            let at = earliest.entry(topic).or_insert((*id, *before));
            *at = (*at).min((*id, *before));
        }
        Some(earliest.into_iter().map(|(t, (id, seq))| (t.to_owned(), id, seq)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_rewinds() {
        let mut history = EventHistory::default();
        let a: Arc<str> = "a".into();
        let first = history.push(a.clone(), 1, 0);
        history.push(a.clone(), 1, 10);
        let third = history.push("b".into(), 2, 5);
        history.push(a.clone(), 1, 20);
        let mut back = history.rewind_to(first).unwrap();
        back.sort();
        assert_eq!(back, [("a".to_owned(), 1, 10), ("b".to_owned(), 2, 5)]);
        assert_eq!(history.rewind_to(third).unwrap(), [("a".to_owned(), 1, 20)]);
        assert_eq!(history.rewind_to(4).unwrap(), []);
        assert_eq!(history.rewind_to(5).unwrap(), [], "an event that was not sent");
        for seq in 0..MAX_EVENTS as u64 {
            history.push(a.clone(), 1, seq);
        }
        assert_eq!(history.rewind_to(3), None, "forgotten");
        assert!(history.rewind_to(4).is_some());
    }
}
