//! What a claim gets next, and reservations: made by a decision, ended by the logged event or undone.

use super::{COUNTER_BITS, Queue};
use crate::topic::state::queue::job::{Fence, Holder, Job, LANE, Lease, NextJob, Phase};
use crate::topic::state::queue::order::LANES;
use crate::types::clock::Now;
use crate::types::queue::LeaseEnd;

impl Queue {
    /// The next job for a claim, if there is one. `fresh` finds the first record from a seq on;
    /// the cursor asks it about each record once. The job is [`Self::reserve`]d,
    /// [`Self::take`]n or [`Self::mark_dead`]ed next.
    pub fn next<E>(
        &mut self,
        now: Now,
        mut fresh: impl FnMut(u64) -> Result<Option<u64>, E>,
    ) -> Result<Option<NextJob>, E> {
        self.find_fresh(&mut fresh)?;
        let more = |lane: u8| lane == LANE && self.at_cursor;
        let Some(lane) = self.lanes.next_lane(now.mono, more) else { return Ok(None) };
        let first = self.lanes.first(lane);
        let seq = match first {
            Some(seq) if !more(lane) || seq < self.cursor => seq,
            _ => self.cursor,
        };
        let deliveries = self.jobs.get(&seq).map_or(0, |j| j.deliveries);
        Ok(Some(NextJob { seq, deliveries }))
    }

    /// Moves the cursor to the first fresh job without options, if there is one.
    fn find_fresh<E>(
        &mut self,
        fresh: &mut impl FnMut(u64) -> Result<Option<u64>, E>,
    ) -> Result<(), E> {
        while !self.at_cursor {
            let Some(seq) = fresh(self.cursor)? else { break };
            self.cursor = seq;
            if self.jobs.contains_key(&seq) {
                self.cursor = seq + 1;
            } else {
                self.at_cursor = true;
            }
        }
        Ok(())
    }

    /// Since when jobs may be claimed, by the next job of each lane: the first of those that are ready
    /// since they were written, and the earliest time since which one is ready again, or due. `fresh`
    /// as for [`Self::next`].
    pub fn oldest_ready<E>(
        &mut self,
        mut fresh: impl FnMut(u64) -> Result<Option<u64>, E>,
    ) -> Result<(Option<u64>, Option<u64>), E> {
        self.find_fresh(&mut fresh)?;
        let mut written = self.at_cursor.then_some(self.cursor);
        let mut again: Option<u64> = None;
        for seq in (0..LANES as u8).filter_map(|lane| self.lanes.first(lane)) {
            match self.jobs.get(&seq).map_or(0, |j| j.ready_since) {
                0 => written = Some(written.map_or(seq, |w| w.min(seq))),
                since => again = Some(again.map_or(since, |a| a.min(since))),
            }
        }
        Ok((written, again))
    }

    /// Leases a job that [`Self::next`] gave; the lease counts when [`Self::apply`] says so. An id returns
    /// after 2³² leases; a stale one would have to be of the same job.
    pub fn reserve(&mut self, seq: u64, holder: &Holder, now: Now) -> u64 {
        self.counter = self.counter.wrapping_add(1).max(1);
        let id = (self.generation << COUNTER_BITS) | u64::from(self.counter);
        let lease = Lease {
            id,
            node: holder.node.clone(),
            lease_ms: holder.lease_ms,
            deadline: now.mono.saturating_add(holder.lease_ms),
            stream: holder.stream,
            reserved: true,
        };
        self.record_take(seq, now);
        self.set(seq, Phase::Leased(lease));
        id
    }

    /// The engine takes a job that [`Self::next`] gave, or a dead one.
    pub fn begin_move(&mut self, seq: u64, now: Now) {
        self.record_take(seq, now);
        self.set(seq, Phase::Moving(Box::new(Phase::Waiting)));
    }

    /// Reserves a job whose record is about to be deleted on request. False, and nothing changes: it
    /// is leased and `force` is not set, or a claim, an ack, a nack or a move of it is being decided.
    pub fn begin_removal(&mut self, seq: u64, force: bool) -> bool {
        let job = self.jobs.get(&seq);
        let is_free = job.is_none_or(|j| match &j.phase {
            Phase::Leased(l) => force && !l.reserved && !j.expiry_suspended,
            Phase::Moving(_) => false,
            _ => true,
        });
        if is_free {
            let before = job.map_or(Phase::Waiting, |j| j.phase.clone());
            self.at_cursor &= seq != self.cursor;
            self.set(seq, Phase::Moving(Box::new(before)));
        }
        is_free
    }

    /// What the log says when a delayed job becomes claimable before its time: its latest lease and
    /// its deliveries, with id 0 for one that waits for the due time of its record. `None`: it is not
    /// delayed.
    pub fn promotion(&self, seq: u64) -> Option<(u64, u32)> {
        let job = self.jobs.get(&seq)?;
        match job.phase {
            Phase::Delayed(_) => Some((job.last, job.deliveries)),
            Phase::Scheduled(_) => Some((0, 0)),
            _ => None,
        }
    }

    /// A job that [`Self::next`] gave is dead: it stays where it is until it is revived or deleted.
    pub fn mark_dead(&mut self, seq: u64, now: Now) {
        self.record_take(seq, now);
        self.set(seq, Phase::Dead);
    }

    fn record_take(&mut self, seq: u64, now: Now) {
        let lane = self.jobs.get(&seq).map_or(LANE, |j| j.lane);
        if self.at_cursor && seq == self.cursor {
            self.at_cursor = false;
            self.cursor = seq + 1;
        }
        // Whether there are more fresh ones is found out by the next look.
        let more = self.at_cursor;
        self.lanes.record_take(lane, now.mono, |l| l == LANE && more);
    }

    /// A stream gets no more jobs, until [`Self::end_stream`].
    pub fn release_stream(&mut self, stream: u64) {
        self.released_streams.insert(stream);
    }

    /// A stream has ended.
    pub fn end_stream(&mut self, stream: u64) {
        self.released_streams.remove(&stream);
    }

    /// A reservation came to nothing.
    pub fn undo(&mut self, seq: u64) {
        let before = match self.jobs.get(&seq).map(|j| &j.phase) {
            Some(Phase::Leased(l)) if l.reserved => Phase::Waiting,
            Some(Phase::Moving(before)) => (**before).clone(),
            _ => return,
        };
        self.set(seq, before);
    }

    /// Whether this is the holder of a lease that no ack or nack is ending (I6).
    pub fn holds(&self, f: Fence<'_>) -> bool {
        let Some(job) = self.jobs.get(&f.seq).filter(|j| !j.expiry_suspended) else { return false };
        match &job.phase {
            Phase::Leased(l) => {
                !l.reserved && *l.node == *f.node && f.id.is_none_or(|id| id == l.id)
            }
            _ => false,
        }
    }

    /// Why [`Self::holds`] denies a lease.
    pub fn lease_end(&self, seq: u64, id: Option<u64>, durable: bool) -> LeaseEnd {
        let is_earlier = |id: u64| id >> COUNTER_BITS != self.generation;
        match id {
            Some(id) if is_earlier(id) && !durable => LeaseEnd::Restarted,
            // A job that was leased is known until its record is gone.
            Some(_) if !self.jobs.contains_key(&seq) => LeaseEnd::Gone,
            _ => LeaseEnd::Ended,
        }
    }

    /// The lease id and deliveries of a leased job.
    pub fn lease(&self, seq: u64) -> Option<(u64, u32)> {
        match self.jobs.get(&seq) {
            Some(Job { phase: Phase::Leased(l), deliveries, .. }) => Some((l.id, *deliveries)),
            _ => None,
        }
    }

    /// The holder of a job is about to ack or nack it: it does not run out meanwhile.
    pub fn suspend_expiry(&mut self, seq: u64) {
        if let Some(Job { expiry_suspended, phase: Phase::Leased(l), .. }) = self.jobs.get_mut(&seq)
        {
            *expiry_suspended = true;
            self.due.remove(&(l.deadline, seq));
        }
    }

    /// That came to nothing.
    pub fn resume_expiry(&mut self, seq: u64) {
        if let Some(Job { expiry_suspended, phase: Phase::Leased(l), .. }) = self.jobs.get_mut(&seq)
            && std::mem::replace(expiry_suspended, false)
        {
            self.due.insert((l.deadline, seq));
        }
    }
}
