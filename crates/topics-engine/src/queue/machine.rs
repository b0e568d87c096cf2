//! The state of a queue's jobs.
//!
//! A job is *fresh* until it is known here: fresh jobs without options are found in the log by the
//! cursor, in seq order. Known are jobs that are leased, were released, wait for a time, are dead,
//! or have options. A known job is forgotten when its record is gone, never before (a job below
//! the cursor that nobody knows would be lost).
//!
//! A decision *reserves* (a lease that is not logged, a job that is leaving); applying the logged
//! event, or undoing the reservation, ends that. While it lasts nobody else gets the job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_storage::format::record::{self, LeaseEvent};
use topics_storage::segment::AttrRow;
use topics_storage::snapshot::ReplayPos;

use super::order::{Groups, Lanes};
use super::tally::Tally;

/// The lane of a job that names none.
const LANE: u8 = 5;
/// The counter of a lease id.
const COUNTER_BITS: u32 = 32;
/// Bits of the generation in a lease id: ids stay below 2⁵³.
const GENERATION_BITS: u32 = 21;

/// The time, on both clocks, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Monotonic: leases and delays go by it.
    pub mono: u64,
    /// Wall: due times go by it.
    pub wall: u64,
}

/// Who claims.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub node: Arc<[u8]>,
    pub lease_ms: u64,
    /// The stream that the lease belongs to, 0: none.
    pub stream: u64,
}

/// What a holder must show to change a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fence<'a> {
    pub node: &'a [u8],
    pub seq: u64,
    /// `None`: the node suffices.
    pub id: Option<u64>,
}

#[derive(Clone, Debug)]
struct Lease {
    id: u64,
    node: Arc<[u8]>,
    lease_ms: u64,
    deadline: u64,
    stream: u64,
    /// Not applied yet.
    reserved: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Claimable, as far as its group lets it.
    Waiting,
    /// Claimable from this wall time on.
    Scheduled(u64),
    /// Released: claimable from this monotonic time on.
    Delayed(u64),
    Leased(Lease),
    /// Taken by the engine: it is being moved elsewhere.
    Moving,
    Dead,
}

#[derive(Clone, Debug)]
struct Job {
    lane: u8,
    group: u64,
    /// It has options: the log's cursor passes it.
    special: bool,
    deliveries: u32,
    phase: Phase,
    /// An ack or nack of its lease is on its way.
    leaving: bool,
    /// The id of its latest lease, 0: none. That a lease or delay runs out is not logged.
    last: u64,
}

impl Job {
    fn plain() -> Self {
        let phase = Phase::Waiting;
        let (lane, group, special) = (LANE, 0, false);
        Self { lane, group, special, deliveries: 0, phase, leaving: false, last: 0 }
    }
}

/// A job as `peek` and snapshots show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Ready,
    /// Until this wall time.
    Scheduled(u64),
    /// Until this monotonic time.
    Delayed(u64),
    Leased {
        id: u64,
        node: Arc<[u8]>,
        lease_ms: u64,
        deadline: u64,
        reserved: bool,
    },
    Dead,
}

/// A job that was taken for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub seq: u64,
    pub deliveries: u32,
}

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
    pub fn special(&mut self, row: &AttrRow) {
        if row.visible_at == 0 && row.lane == LANE && row.group == 0 {
            return;
        }
        if let Some(job) = self.jobs.get(&row.seq) {
            if job.special {
                return;
            }
            // Known from the log of leases: now with its options.
            let mut job = job.clone();
            self.detach(row.seq);
            (job.lane, job.group, job.special) = (row.lane, row.group, true);
            self.attach(row.seq, job);
            return;
        }
        let phase = match row.visible_at {
            0 => Phase::Waiting,
            at => Phase::Scheduled(at),
        };
        let (lane, group) = (row.lane, row.group);
        self.attach(row.seq, Job { lane, group, special: true, phase, ..Job::plain() });
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
    /// [`Self::take`]n or [`Self::bury`]ed next.
    pub fn next<E>(
        &mut self,
        now: Now,
        mut fresh: impl FnMut(u64) -> Result<Option<u64>, E>,
    ) -> Result<Option<Taken>, E> {
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
        let Some(lane) = self.lanes.turn(now.mono, more) else { return Ok(None) };
        let first = self.lanes.first(lane);
        let seq = match first {
            Some(seq) if !more(lane) || seq < self.cursor => seq,
            _ => self.cursor,
        };
        let deliveries = self.jobs.get(&seq).map_or(0, |j| j.deliveries);
        Ok(Some(Taken { seq, deliveries }))
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
        self.took(seq, now);
        self.set(seq, Phase::Leased(lease));
        Some(id)
    }

    /// The engine takes a job that [`Self::next`] gave, or a dead one.
    pub fn take(&mut self, seq: u64, now: Now) {
        self.took(seq, now);
        self.set(seq, Phase::Moving);
    }

    /// A job that [`Self::next`] gave is dead: it stays where it is until it is revived or deleted.
    pub fn bury(&mut self, seq: u64, now: Now) {
        self.took(seq, now);
        self.set(seq, Phase::Dead);
    }

    fn took(&mut self, seq: u64, now: Now) {
        let lane = self.jobs.get(&seq).map_or(LANE, |j| j.lane);
        if self.at_cursor && seq == self.cursor {
            self.at_cursor = false;
            self.cursor = seq + 1;
        }
        // Whether there are more fresh ones is found out by the next look.
        let more = self.at_cursor;
        self.lanes.took(lane, now.mono, |l| l == LANE && more);
    }

    /// A reservation came to nothing.
    pub fn undo(&mut self, seq: u64) {
        let reserved = |p: &Phase| match p {
            Phase::Leased(l) => l.reserved,
            Phase::Moving => true,
            _ => false,
        };
        if self.jobs.get(&seq).is_some_and(|j| reserved(&j.phase)) {
            self.set(seq, Phase::Waiting);
        }
    }

    /// Whether this is the holder of a lease that nobody is ending (I6).
    pub fn holds(&self, f: Fence<'_>) -> bool {
        let Some(job) = self.jobs.get(&f.seq).filter(|j| !j.leaving) else { return false };
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
    pub fn leave(&mut self, seq: u64) {
        if let Some(Job { leaving, phase: Phase::Leased(l), .. }) = self.jobs.get_mut(&seq) {
            *leaving = true;
            self.due.remove(&(l.deadline, seq));
        }
    }

    /// That came to nothing.
    pub fn stay(&mut self, seq: u64) {
        if let Some(Job { leaving, phase: Phase::Leased(l), .. }) = self.jobs.get_mut(&seq)
            && std::mem::replace(leaving, false)
        {
            self.due.insert((l.deadline, seq));
        }
    }

    /// Applies a lease event. Each may be applied again over a state that reflects it and what came
    /// after: a claim sets what a lease is, the others change only the lease that they name.
    pub fn apply(&mut self, body: &record::Lease, now: Now) {
        for &(seq, id, deliveries) in &body.jobs {
            let until = now.mono.saturating_add(body.lease_ms);
            match body.event {
                LeaseEvent::Claim => self.leased(seq, id, deliveries, body, until),
                LeaseEvent::Extend => self.extended(seq, id, body.lease_ms, until),
                LeaseEvent::Nack if id == 0 => self.revive(seq),
                LeaseEvent::Nack => {
                    let now = body.lease_ms == 0;
                    let ends = match self.jobs.get(&seq) {
                        Some(Job { phase: Phase::Leased(l), .. }) => l.id == id,
                        // The delay after that lease has run out.
                        Some(Job { phase: Phase::Delayed(_), last, .. }) => now && *last == id,
                        _ => false,
                    };
                    if ends {
                        self.set(seq, if now { Phase::Waiting } else { Phase::Delayed(until) });
                    }
                }
            }
        }
    }

    fn leased(&mut self, seq: u64, id: u64, n: u32, body: &record::Lease, deadline: u64) {
        let mut lease = Lease {
            id,
            node: body.node.as_slice().into(),
            lease_ms: body.lease_ms,
            deadline,
            stream: 0,
            reserved: false,
        };
        if let Some(Job { phase: Phase::Leased(l), .. }) = self.jobs.get(&seq)
            && l.id == id
        {
            (lease.stream, lease.node) = (l.stream, l.node.clone());
        }
        self.set(seq, Phase::Leased(lease));
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.deliveries = n;
        }
    }

    fn extended(&mut self, seq: u64, id: u64, lease_ms: u64, deadline: u64) {
        if let Some(Job { leaving, phase: Phase::Leased(l), .. }) = self.jobs.get_mut(&seq)
            && l.id == id
            && !l.reserved
        {
            if self.due.remove(&(l.deadline, seq)) || !*leaving {
                self.due.insert((deadline, seq));
            }
            (l.lease_ms, l.deadline) = (lease_ms, deadline);
        }
    }

    /// A dead job is one that was never delivered.
    pub fn revive(&mut self, seq: u64) {
        if self.jobs.get(&seq).is_none_or(|j| matches!(j.phase, Phase::Dead | Phase::Waiting)) {
            self.set(seq, Phase::Waiting);
            if let Some(job) = self.jobs.get_mut(&seq) {
                job.deliveries = 0;
            }
        }
    }

    /// The record is gone.
    pub fn forget(&mut self, seq: u64) {
        self.at_cursor &= seq != self.cursor;
        self.detach(seq);
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

    /// Known jobs with options, deliveries and what they are in, ascending.
    pub fn shown(&self) -> impl Iterator<Item = (u64, u32, Shown)> + '_ {
        self.jobs.iter().filter_map(|(seq, j)| {
            let shown = match &j.phase {
                Phase::Waiting => Shown::Ready,
                Phase::Scheduled(at) => Shown::Scheduled(*at),
                Phase::Delayed(until) => Shown::Delayed(*until),
                Phase::Moving => return None,
                Phase::Dead => Shown::Dead,
                Phase::Leased(l) => Shown::Leased {
                    id: l.id,
                    node: l.node.clone(),
                    lease_ms: l.lease_ms,
                    deadline: l.deadline,
                    reserved: l.reserved,
                },
            };
            Some((*seq, j.deliveries, shown))
        })
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

    /// A job as a snapshot says it, with its latest lease; `until` of a lease or delay is monotonic.
    pub fn restore(&mut self, seq: u64, deliveries: u32, last: u64, shown: Shown) {
        let phase = match shown {
            Shown::Ready | Shown::Scheduled(_) | Shown::Dead => Phase::Waiting,
            Shown::Delayed(until) => Phase::Delayed(until),
            Shown::Leased { id, node, lease_ms, deadline, .. } => {
                Phase::Leased(Lease { id, node, lease_ms, deadline, stream: 0, reserved: false })
            }
        };
        self.set(seq, phase);
        if let Some(job) = self.jobs.get_mut(&seq) {
            (job.deliveries, job.last) = (deliveries, last);
        }
    }

    /// Replay is over. Durable leases begin anew, for their full time; others are gone with the
    /// process that gave them.
    pub fn recovered(&mut self, now: Now, durable: bool) {
        let seqs: Vec<u64> = self.jobs.keys().copied().collect();
        for seq in seqs {
            let Some(job) = self.jobs.get(&seq) else { continue };
            match &job.phase {
                Phase::Leased(l) if durable => {
                    let mut lease = l.clone();
                    lease.deadline = now.mono.saturating_add(lease.lease_ms);
                    self.set(seq, Phase::Leased(lease));
                }
                Phase::Scheduled(_) => {}
                _ if durable => {}
                _ if job.special => {
                    self.set(seq, Phase::Waiting);
                    if let Some(job) = self.jobs.get_mut(&seq) {
                        job.deliveries = 0;
                    }
                }
                _ => self.detach(seq),
            }
        }
        (self.cursor, self.at_cursor) = (0, false);
        self.tally.counted = ReplayPos::default();
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
        job.leaving = false;
        self.attach(seq, job);
    }

    /// Takes a job out of everything that lists it.
    fn detach(&mut self, seq: u64) {
        let Some(job) = self.jobs.remove(&seq) else { return };
        match &job.phase {
            Phase::Waiting if job.group == 0 => self.lanes.remove(job.lane, seq),
            Phase::Waiting | Phase::Moving => {}
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
            self.groups.part(job.group, seq);
            self.regroup(job.group, job.lane);
        }
    }

    fn attach(&mut self, seq: u64, job: Job) {
        let (lane, group) = (job.lane, job.group);
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
                if !l.reserved && !job.leaving {
                    self.due.insert((l.deadline, seq));
                }
                self.leased += 1;
                if l.stream != 0 {
                    *self.streams.entry(l.stream).or_default() += 1;
                }
            }
            Phase::Moving => {}
            Phase::Dead => {
                self.dead.insert(seq);
            }
        }
        let taken = matches!(job.phase, Phase::Leased(_) | Phase::Moving);
        let dead = matches!(job.phase, Phase::Dead);
        self.jobs.insert(seq, job);
        if group != 0 && !dead {
            self.groups.join(group, seq);
            if taken {
                self.groups.lease(group, seq);
            }
            self.regroup(group, lane);
        }
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

    /// Jobs that are known.
    #[cfg(test)]
    pub fn known(&self) -> usize {
        self.jobs.len()
    }
}
