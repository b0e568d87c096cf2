//! Lease events: they change the jobs of the topic's queue.

use std::borrow::Cow;

use topics_storage::format::record;

use super::state::State;
use crate::types::clock::Now;

impl State {
    /// Whether a record may be live. A segment whose dead are not loaded counts as live.
    pub(crate) fn may_live(&self, seq: u64) -> bool {
        seq >= self.range.floor
            && match self.index.entry(seq) {
                Some(e) => !e.dead(),
                None => self.index.seg_of(seq).is_some_and(|s| s.live_count > 0 && !s.is_dead(seq)),
            }
    }

    /// Applies a lease event, live and in recovery, logged or not.
    pub(crate) fn apply_lease(&mut self, now: Now, body: &record::Lease) {
        let mut body = Cow::Borrowed(body);
        if !body.jobs.iter().all(|(seq, _, _)| self.may_live(*seq)) {
            body.to_mut().jobs.retain(|(seq, _, _)| self.may_live(*seq));
        }
        self.queue.get_or_insert_default().apply(&body, now);
    }
}
