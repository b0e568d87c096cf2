//! What time does to jobs: leases and delays that end, and jobs whose deliveries are used up.

use super::Queue;
use crate::topic::state::queue::job::Phase;
use crate::types::clock::Now;

impl Queue {
    /// When something changes by itself: on the monotonic clock, on the wall clock.
    pub fn next_due(&self) -> (Option<u64>, Option<u64>) {
        (self.due.first().map(|d| d.0), self.scheduled.first().map(|d| d.0))
    }

    /// When the next lease or delay ends, or a job without deliveries left is to be taken out,
    /// monotonic ms; `None` unless that is earlier than what this returned before. The caller sets
    /// a timer to it. A due time (`Scheduled`) needs none: it changes nothing until a claim comes.
    pub fn earlier_deadline(&mut self, max_deliveries: u64) -> Option<u64> {
        let most = self.released.last().map_or(0, |r| u64::from(r.0));
        let exhausted = (max_deliveries > 0 && most >= max_deliveries).then_some(self.retry_at);
        let next = self.due.first().map(|d| d.0).into_iter().chain(exhausted).min()?;
        if self.deadline.is_some_and(|at| at <= next) {
            return None;
        }
        self.deadline = Some(next);
        Some(next)
    }

    /// The timer has fired, or does not stand any more.
    pub fn deadline_passed(&mut self) {
        self.deadline = None;
    }

    /// At most `limit` released jobs without deliveries left, whether or not their delay has ended.
    pub fn exhausted(&self, max_deliveries: u64, limit: usize, now: Now) -> Vec<u64> {
        if max_deliveries == 0 || self.retry_at > now.mono {
            return Vec::new();
        }
        let least = u32::try_from(max_deliveries).unwrap_or(u32::MAX);
        self.released.range((least, 0)..).take(limit).map(|r| r.1).collect()
    }

    /// Jobs without deliveries left could not be moved: they are due again at this monotonic time.
    pub fn retry_exhausted_at(&mut self, at: u64) {
        self.retry_at = at;
    }

    /// The engine takes a job that [`Self::exhausted`] named: it is being moved elsewhere, or dead.
    pub fn take_exhausted(&mut self, seq: u64, dead: bool) {
        self.set(seq, if dead { Phase::Dead } else { Phase::Moving(Box::new(Phase::Waiting)) });
    }

    /// Leases and delays that have run out: their jobs may be claimed again. How many were leases.
    pub fn sweep(&mut self, now: Now) -> u64 {
        let leased = self.leased;
        while let Some(&(at, seq)) = self.due.first().filter(|d| d.0 <= now.mono) {
            self.due.remove(&(at, seq));
            self.set_ready(seq, now.wall.saturating_sub(now.mono - at));
        }
        while let Some(&(at, seq)) = self.scheduled.first().filter(|d| d.0 <= now.wall) {
            self.scheduled.remove(&(at, seq));
            self.set_ready(seq, at);
        }
        (leased - self.leased) as u64
    }

    /// A known job may be claimed again, since this wall time.
    pub(super) fn set_ready(&mut self, seq: u64, since: u64) {
        self.set(seq, Phase::Waiting);
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.ready_since = since;
        }
    }
}
