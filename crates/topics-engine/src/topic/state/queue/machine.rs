//! The state of a queue's jobs.
//!
//! A job is *fresh* until it is known here: fresh jobs without options are found in the log by the
//! cursor, in seq order. Known are jobs that are leased, were released, wait for a time, are dead,
//! or have options. A known job is forgotten when its record is gone, never before (a job below
//! the cursor that is not known would be lost).
//!
//! A decision *reserves* (a lease that is not logged, a job that an ack, a nack or a move is ending);
//! applying the logged event, or undoing the reservation, ends that. While it lasts no other claim gets
//! the job.

mod deadlines;
mod events;
mod reserve;
mod views;

use std::collections::{BTreeMap, BTreeSet};

use topics_storage::segment::AttrRow;

use super::job::{Job, LANE, Phase};
use super::order::{Groups, Lanes};
use super::tally::Tally;

/// The counter of a lease id.
const COUNTER_BITS: u32 = 32;
/// Bits of the generation in a lease id: ids stay below 2⁵³.
const GENERATION_BITS: u32 = 21;
/// 2⁶⁴ divided by the golden ratio: multiples of it, modulo 2⁶⁴, keep far apart (Fibonacci hashing, Knuth,
/// The Art of Computer Programming, 6.4).
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

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
    /// (seq, lease id) of leases that are over because their group has a later one. A replay meets what
    /// ended them afterwards.
    superseded: BTreeSet<(u64, u64)>,
    leased: usize,
    delayed: usize,
    streams: BTreeMap<u64, usize>,
    /// Streams that get no more jobs: their worker has given all of them back.
    released_streams: BTreeSet<u64>,
    /// Whether jobs with options that were in segments when the engine opened are known.
    pub loaded: bool,
    pub tally: Tally,
}

impl Queue {
    /// Lease ids of this life begin. Each topic's begin elsewhere, so that a lease of another queue, or of
    /// the topic that had the name before, ends no job of this one.
    pub fn begin(&mut self, generation: u64, topic_id: u64) {
        let generation = generation & ((1 << GENERATION_BITS) - 1);
        if self.generation != generation {
            self.generation = generation;
            self.counter = (topic_id.wrapping_mul(GOLDEN_RATIO) >> COUNTER_BITS) as u32;
        }
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
        let over = match (other, own) {
            (Some((_, id)), Some((_, own))) if id > own => Some((seq, own)),
            (other, _) => {
                self.groups.lease(group, seq);
                other
            }
        };
        self.superseded.extend(over);
        over.map(|(seq, _)| seq)
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
}
