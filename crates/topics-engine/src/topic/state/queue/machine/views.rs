//! What is known of jobs and their queue.

use super::Queue;
use crate::topic::state::queue::job::{Job, JobHistory, LANE, Phase};
use crate::topic::state::queue::order::LANES;

impl Queue {
    /// (leased, delayed, dead); a job that waits for its due time is delayed.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.leased as u64, self.delayed as u64, self.dead.len() as u64)
    }

    /// How many jobs a stream of at most `max` can take now.
    pub fn stream_capacity(&self, stream: u64, max: usize) -> usize {
        match self.released_streams.contains(&stream) {
            true => 0,
            false => max.saturating_sub(self.streams.get(&stream).copied().unwrap_or(0)),
        }
    }

    /// The seqs that a stream has leased.
    pub fn of_stream(&self, stream: u64) -> Vec<u64> {
        let of = |j: &Job| matches!(&j.phase, Phase::Leased(l) if l.stream == stream);
        self.jobs.iter().filter(|(_, j)| of(j)).map(|(s, _)| *s).collect()
    }

    /// The dead, ascending.
    pub fn dead(&self) -> impl Iterator<Item = u64> + '_ {
        self.dead.iter().copied()
    }

    /// What claims would get next, at most `max`, lane by lane; `fresh` as for [`Self::next`].
    pub fn preview<E>(
        &self,
        max: usize,
        mut fresh: impl FnMut(u64) -> Result<Option<u64>, E>,
    ) -> Result<Vec<u64>, E> {
        let mut out = Vec::new();
        for lane in 0..LANES as u8 {
            if lane != LANE {
                out.extend(self.lanes.iter(lane).take(max.saturating_sub(out.len())));
                continue;
            }
            let (mut known, mut at) = (self.lanes.iter(lane).peekable(), self.cursor);
            while out.len() < max {
                let next = loop {
                    match fresh(at)? {
                        Some(seq) if self.jobs.contains_key(&seq) => at = seq + 1,
                        other => break other,
                    }
                };
                let seq = match (known.peek(), next) {
                    (Some(k), Some(f)) => (*k).min(f),
                    (Some(k), None) => *k,
                    (None, Some(f)) => f,
                    (None, None) => break,
                };
                if known.next_if_eq(&seq).is_none() {
                    at = seq + 1;
                }
                out.push(seq);
            }
        }
        Ok(out)
    }

    /// The lane of a job.
    pub fn lane(&self, seq: u64) -> u8 {
        self.jobs.get(&seq).map_or(LANE, |j| j.lane)
    }

    /// The id of a job's latest lease, 0: none.
    pub fn last_lease(&self, seq: u64) -> u64 {
        self.jobs.get(&seq).map_or(0, |j| j.last)
    }

    /// How often a job was given.
    pub fn deliveries(&self, seq: u64) -> u32 {
        self.jobs.get(&seq).map_or(0, |j| j.deliveries)
    }

    /// Why a worker released a job, the latest that said so.
    pub fn error(&self, seq: u64) -> Option<&str> {
        self.jobs.get(&seq)?.error.as_deref()
    }

    /// What a job takes along when its record is moved.
    pub fn history(&self, seq: u64) -> JobHistory {
        self.jobs.get(&seq).map_or_else(JobHistory::default, |j| JobHistory {
            deliveries: j.deliveries,
            error: j.error.clone(),
            promoted: j.promoted,
        })
    }

    /// How many jobs are known.
    #[cfg(test)]
    pub fn known(&self) -> usize {
        self.jobs.len()
    }
}
