//! The state of a queue's jobs.
//!
//! A job is *fresh* until it is known here: fresh jobs without options are found in the log by the
//! cursor, in seq order. Known are jobs that are leased, were released, wait for a time, are dead,
//! or have options. A known job is forgotten when its record is gone, never before (a job below
//! the cursor that is not known would be lost).
//!
//! A decision *reserves* (a lease that is not logged, a job that an ack, a nack or a move is ending); applying the logged
//! event, or undoing the reservation, ends that. While it lasts no other claim gets the job.

mod events;

use std::collections::{BTreeMap, BTreeSet};

use topics_storage::segment::AttrRow;

use super::job::{Fence, Holder, Job, JobHistory, LANE, Lease, NextJob, Now, Phase};
use super::order::{Groups, Lanes};
use super::tally::Tally;
/// The counter of a lease id.
const COUNTER_BITS: u32 = 32;
/// Bits of the generation in a lease id: ids stay below 2⁵³.
const GENERATION_BITS: u32 = 21;

/// A queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    generation: u64,
    counter: u32,
    /// Every fresh job without options is at or above it.
    cursor: u64,
    /// The job at the cursor is known to be fresh and without options.
    at_cursor: bool,
    jobs: BTreeMap<u64, Job>,
    /// (monotonic time, seq) of leases and delays.
    due: BTreeSet<(u64, u64)>,
    /// (wall time, seq).
    scheduled: BTreeSet<(u64, u64)>,
    lanes: Lanes,
    groups: Groups,
    dead: BTreeSet<u64>,
    /// (deliveries, seq) of released jobs that were delivered before.
    released: BTreeSet<(u32, u64)>,
    /// Monotonic time before which [`Self::exhausted`] names no job.
    retry_at: u64,
    /// Monotonic time that [`Self::earlier_deadline`] returned last.
    deadline: Option<u64>,
    leased: usize,
    delayed: usize,
    streams: BTreeMap<u64, usize>,
    /// Whether jobs with options that were in segments when the engine opened are known.
    pub loaded: bool,
    pub tally: Tally,
}

impl Queue {
    /// Lease ids of this life begin.
    pub fn begin(&mut self, generation: u64) {
        self.generation = generation & ((1 << GENERATION_BITS) - 1);
    }

    /// (leased, delayed, dead); a job that waits for its due time is delayed.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.leased as u64, self.delayed as u64, self.dead.len() as u64)
    }

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

    /// How many leases a stream has.
    pub fn stream_load(&self, stream: u64) -> usize {
        self.streams.get(&stream).copied().unwrap_or(0)
    }

    /// The seqs that a stream has leased.
    pub fn of_stream(&self, stream: u64) -> Vec<u64> {
        let of = |j: &Job| matches!(&j.phase, Phase::Leased(l) if l.stream == stream);
        self.jobs.iter().filter(|(_, j)| of(j)).map(|(s, _)| *s).collect()
    }

    /// A job with options is in the log.
    pub fn add_options(&mut self, row: &AttrRow) {
        if row.visible_at == 0 && row.lane == LANE && row.group == 0 {
            return;
        }
        if let Some(job) = self.jobs.get(&row.seq) {
            if job.has_options {
                return;
            }
            // Known from the log of leases: now with its options.
            let mut job = job.clone();
            self.detach(row.seq);
            (job.lane, job.group, job.has_options) = (row.lane, row.group, true);
            self.attach(row.seq, job);
            return;
        }
        let phase = match row.visible_at {
            0 => Phase::Waiting,
            at => Phase::Scheduled(at),
        };
        let (lane, group) = (row.lane, row.group);
        self.attach(row.seq, Job { lane, group, has_options: true, phase, ..Job::plain() });
    }

    /// Leases and delays that have run out: their jobs may be claimed again. How many were leases.
    pub fn sweep(&mut self, now: Now) -> u64 {
        let leased = self.leased;
        while let Some(&(at, seq)) = self.due.first().filter(|d| d.0 <= now.mono) {
            self.due.remove(&(at, seq));
            self.set(seq, Phase::Waiting);
        }
        while let Some(&(at, seq)) = self.scheduled.first().filter(|d| d.0 <= now.wall) {
            self.scheduled.remove(&(at, seq));
            self.set(seq, Phase::Waiting);
        }
        (leased - self.leased) as u64
    }

    /// The next job for a claim, if there is one. `fresh` finds the first record from a seq on;
    /// the cursor asks it about each record once. The job is [`Self::reserve`]d,
    /// [`Self::take`]n or [`Self::mark_dead`]ed next.
    pub fn next<E>(
        &mut self,
        now: Now,
        mut fresh: impl FnMut(u64) -> Result<Option<u64>, E>,
    ) -> Result<Option<NextJob>, E> {
        while !self.at_cursor {
            let Some(seq) = fresh(self.cursor)? else { break };
            self.cursor = seq;
            if self.jobs.contains_key(&seq) {
                self.cursor = seq + 1;
            } else {
                self.at_cursor = true;
            }
        }
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

    /// Leases a job that [`Self::next`] gave; the lease counts when [`Self::apply`] says so. `None`
    /// when there are no more lease ids in this life.
    pub fn reserve(&mut self, seq: u64, holder: &Holder, now: Now) -> Option<u64> {
        self.counter = self.counter.checked_add(1)?;
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
        Some(id)
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

    /// The record is gone.
    pub fn forget(&mut self, seq: u64) {
        self.at_cursor &= seq != self.cursor;
        self.detach(seq);
    }

    /// The records of a range are gone.
    pub fn forget_all(&mut self, from: u64, to: u64) {
        let known: Vec<u64> = self.jobs.range(from..=to).map(|(seq, _)| *seq).collect();
        known.into_iter().for_each(|seq| self.forget(seq));
    }

    /// All records below are gone.
    pub fn forget_below(&mut self, floor: u64) {
        if self.cursor < floor {
            (self.cursor, self.at_cursor) = (floor, false);
        }
        while let Some((&seq, _)) = self.jobs.range(..floor).next() {
            self.detach(seq);
        }
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
        for lane in 0..super::order::LANES as u8 {
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

    /// The phase of a job becomes this one; a job that was not known is one without options.
    fn set(&mut self, seq: u64, phase: Phase) {
        let mut job = self.jobs.get(&seq).cloned().unwrap_or_else(Job::plain);
        self.detach(seq);
        if let Phase::Leased(l) = &phase
            && l.reserved
        {
            assert!(!matches!(job.phase, Phase::Leased(_)), "I6: a leased job is given again");
            job.deliveries = job.deliveries.saturating_add(1);
        }
        // A reservation that is undone was no delivery.
        if let (Phase::Leased(l), Phase::Waiting) = (&job.phase, &phase)
            && l.reserved
        {
            job.deliveries -= 1;
        }
        if let Phase::Leased(l) = &phase
            && !l.reserved
        {
            job.last = l.id;
        }
        job.phase = phase;
        job.expiry_suspended = false;
        self.attach(seq, job);
    }

    /// Takes a job out of everything that lists it.
    fn detach(&mut self, seq: u64) {
        let Some(job) = self.jobs.remove(&seq) else { return };
        self.released.remove(&(job.deliveries, seq));
        match &job.phase {
            Phase::Waiting if job.group == 0 => self.lanes.remove(job.lane, seq),
            Phase::Waiting | Phase::Moving(_) => {}
            Phase::Scheduled(at) => {
                self.scheduled.remove(&(*at, seq));
                self.delayed -= 1;
            }
            Phase::Delayed(until) => {
                self.due.remove(&(*until, seq));
                self.delayed -= 1;
            }
            Phase::Leased(l) => {
                self.due.remove(&(l.deadline, seq));
                self.leased -= 1;
                if l.stream != 0 {
                    let load = self.streams.get_mut(&l.stream).map_or(0, |n| {
                        *n -= 1;
                        *n
                    });
                    if load == 0 {
                        self.streams.remove(&l.stream);
                    }
                }
            }
            Phase::Dead => {
                self.dead.remove(&seq);
            }
        }
        if job.group != 0 {
            self.groups.leave(job.group, seq);
            self.regroup(job.group, job.lane);
        }
    }

    fn attach(&mut self, seq: u64, job: Job) {
        let (lane, group) = (job.lane, job.group);
        self.list_released(seq, &job);
        match &job.phase {
            Phase::Waiting if group == 0 => {
                self.lanes.insert(lane, seq);
            }
            Phase::Waiting => {}
            Phase::Scheduled(at) => {
                self.scheduled.insert((*at, seq));
                self.delayed += 1;
            }
            Phase::Delayed(until) => {
                self.due.insert((*until, seq));
                self.delayed += 1;
            }
            Phase::Leased(l) => {
                // A reservation does not run out: it is applied or undone.
                if !l.reserved && !job.expiry_suspended {
                    self.due.insert((l.deadline, seq));
                }
                self.leased += 1;
                if l.stream != 0 {
                    *self.streams.entry(l.stream).or_default() += 1;
                }
            }
            Phase::Moving(_) => {}
            Phase::Dead => {
                self.dead.insert(seq);
            }
        }
        let (leased, moving) =
            (matches!(job.phase, Phase::Leased(_)), matches!(job.phase, Phase::Moving(_)));
        let dead = matches!(job.phase, Phase::Dead);
        self.jobs.insert(seq, job);
        if group != 0 && !dead {
            self.groups.join(group, seq);
            let over = if leased { self.lease_in_group(group, seq) } else { None };
            if moving {
                self.groups.block(group, seq);
            }
            self.regroup(group, lane);
            if let Some(over) = over {
                self.set(over, Phase::Waiting);
            }
        }
    }

    /// The lease of a job is that of its group (I6). Where the group has another one, the earlier of
    /// the two is over, and its job is returned. A live engine has no two: it gives none while there
    /// is one. A replay may meet two on its way, where the snapshot reflects what comes later in the
    /// log, and so may a load of options, where the end of one was not logged.
    fn lease_in_group(&mut self, group: u64, seq: u64) -> Option<u64> {
        let lease = |seq: u64| match &self.jobs.get(&seq)?.phase {
            Phase::Leased(l) => Some((l.reserved, l.id)),
            _ => None,
        };
        let own = lease(seq);
        let leased = self.groups.leased(group).filter(|l| *l != seq);
        let other = leased.and_then(|seq| Some((seq, lease(seq)?.1)));
        let is_new = own.is_some_and(|(reserved, _)| reserved);
        assert!(!is_new || leased.is_none(), "I6: two leases in a group");
        match (other, own) {
            (Some((_, id)), Some((_, own))) if id > own => Some(seq),
            (other, _) => {
                self.groups.lease(group, seq);
                other.map(|(seq, _)| seq)
            }
        }
    }

    fn list_released(&mut self, seq: u64, job: &Job) {
        if job.deliveries > 0 && matches!(job.phase, Phase::Waiting | Phase::Delayed(_)) {
            self.released.insert((job.deliveries, seq));
        }
    }

    /// Sets how often a known job was delivered.
    fn set_deliveries(&mut self, seq: u64, deliveries: u32) {
        let Some(job) = self.jobs.get_mut(&seq) else { return };
        self.released.remove(&(job.deliveries, seq));
        job.deliveries = deliveries;
        let job = job.clone();
        self.list_released(seq, &job);
    }

    /// Which job of a group may be claimed.
    fn regroup(&mut self, group: u64, lane: u8) {
        let jobs = &self.jobs;
        let waiting = |s| jobs.get(&s).is_some_and(|j| matches!(j.phase, Phase::Waiting));
        let change = self.groups.refresh(group, waiting);
        let lane_of = |s| jobs.get(&s).map_or(lane, |j| j.lane);
        if let Some(seq) = change.hide {
            self.lanes.remove(lane_of(seq), seq);
        }
        if let Some(seq) = change.show {
            self.lanes.insert(lane_of(seq), seq);
        }
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
