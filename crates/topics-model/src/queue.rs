//! A queue. Times are milliseconds: wall times of due times and expiry, monotonic ones of leases and delays.

use std::collections::BTreeMap;

/// How long a lane with jobs is skipped at most.
pub const STARVATION_MS: u64 = 10_000;

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    Waiting,
    /// Until this wall time.
    Scheduled(u64),
    /// Until this monotonic time.
    Delayed(u64),
    Leased {
        id: u64,
        node: usize,
        lease_ms: u64,
        deadline: u64,
    },
    Dead,
}

/// A job as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    pub name: String,
    pub lane: u8,
    pub group: usize,
    /// Wall times; 0: immediately, never.
    pub visible_at: u64,
    pub expires_at: u64,
}

/// A job.
#[derive(Clone, Debug)]
pub struct Job {
    pub new: NewJob,
    pub phase: Phase,
    pub deliveries: u32,
    /// The expired lease or delay: in a durable queue a new process starts with it.
    pub lapsed: Option<Phase>,
    /// Of the latest nack that had one.
    pub error: Option<String>,
}

impl Job {
    pub fn expired(&self, wall: u64) -> bool {
        (1..wall).contains(&self.new.expires_at)
    }

    pub fn leased(&self) -> bool {
        matches!(self.phase, Phase::Leased { .. })
    }

    pub fn delayed(&self) -> bool {
        matches!(self.phase, Phase::Scheduled(_) | Phase::Delayed(_))
    }
}

/// The queue and its rules.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    pub jobs: BTreeMap<u64, Job>,
    pub head: u64,
    /// The time since which a lane with jobs has been skipped.
    passed: [Option<u64>; 10],
    pub durable: bool,
    pub letters: bool,
    pub lease_ms: u64,
    pub paused: bool,
    pub max_deliveries: u64,
    pub dead_lettered: u64,
    pub expired: u64,
}

/// The result of one selection of jobs.
#[derive(Clone, Debug, Default)]
pub struct ClaimedJobs {
    /// Seqs in order.
    pub jobs: Vec<u64>,
    /// Jobs that move to the dead letters instead.
    pub over: Vec<u64>,
}

impl Queue {
    pub fn put(&mut self, new: NewJob) -> u64 {
        self.head += 1;
        let phase =
            if new.visible_at > 0 { Phase::Scheduled(new.visible_at) } else { Phase::Waiting };
        self.jobs.insert(self.head, Job { new, phase, deliveries: 0, lapsed: None, error: None });
        self.head
    }

    /// Ends leases and delays that ran out.
    pub fn sweep(&mut self, mono: u64, wall: u64) {
        for job in self.jobs.values_mut() {
            let over = match job.phase {
                Phase::Scheduled(at) => at <= wall,
                Phase::Delayed(until) => until <= mono,
                Phase::Leased { deadline, .. } => deadline <= mono,
                Phase::Waiting | Phase::Dead => false,
            };
            if over {
                let before = std::mem::replace(&mut job.phase, Phase::Waiting);
                let logged = !matches!(before, Phase::Scheduled(_));
                job.lapsed = (self.durable && logged).then_some(before).or(job.lapsed.take());
            }
        }
    }

    /// The jobs that a claim may return, by lane and seq: one of a group at a time, in order.
    pub fn ready(&self) -> Vec<(u8, u64)> {
        let mut groups: BTreeMap<usize, bool> = BTreeMap::new();
        for job in self.jobs.values().filter(|j| j.new.group > 0 && j.leased()) {
            groups.insert(job.new.group, true);
        }
        let mut out = Vec::new();
        for (seq, job) in self.jobs.iter().filter(|(_, j)| j.phase != Phase::Dead) {
            let first = job.new.group == 0 || groups.insert(job.new.group, true).is_none();
            if first && job.phase == Phase::Waiting {
                out.push((job.new.lane, *seq));
            }
        }
        out.sort_unstable();
        out
    }

    /// The next job: of a lane that was skipped for [`STARVATION_MS`], else of the lowest lane.
    pub fn next(&self, now: u64) -> Option<u64> {
        let ready = self.ready();
        let has = |lane: u8| ready.iter().any(|r| r.0 == lane);
        let starved = (0..10u8).filter(|l| has(*l));
        let starved = starved.filter_map(|l| self.passed[l as usize].map(|at| (at, l)));
        let starved = starved.filter(|(at, _)| now - at >= STARVATION_MS).min();
        let lane = starved.map(|s| s.1).or_else(|| (0..10).find(|l| has(*l)))?;
        ready.iter().find(|r| r.0 == lane).map(|r| r.1)
    }

    /// A job that waits is about to be taken: lanes below its own are skipped.
    pub fn pass(&mut self, seq: u64, now: u64) {
        let ready = self.ready();
        let Some(lane) = self.jobs.get(&seq).map(|job| job.new.lane) else { return };
        for other in 0..10u8 {
            let passed = &mut self.passed[other as usize];
            if other == lane || !ready.iter().any(|r| r.0 == other) {
                *passed = None;
            } else if other > lane {
                passed.get_or_insert(now);
            }
        }
    }

    /// Claims up to `max` jobs; the answer assigns the lease ids.
    pub fn take(&mut self, node: usize, max: usize, lease_ms: u64, now: u64) -> ClaimedJobs {
        let mut claimed = ClaimedJobs::default();
        while !self.paused && claimed.jobs.len() < max {
            let Some(seq) = self.next(now) else { break };
            self.pass(seq, now);
            let (limit, letters) = (self.max_deliveries, self.letters);
            let Some(job) = self.jobs.get_mut(&seq) else { break };
            let deadline = now + lease_ms;
            let lease = Phase::Leased { id: 0, node, lease_ms, deadline };
            job.lapsed = None;
            if limit > 0 && u64::from(job.deliveries) >= limit {
                job.phase = if letters { lease } else { Phase::Dead };
                claimed.over.extend(letters.then_some(seq));
            } else {
                job.phase = lease;
                job.deliveries += 1;
                claimed.jobs.push(seq);
            }
        }
        claimed.over.sort_unstable();
        claimed
    }

    /// Released jobs without deliveries left, claimed or not. Returns those that move to the dead
    /// letters; without a dead-letter topic they are dead.
    pub fn exhausted(&mut self) -> Vec<u64> {
        let over = self.used_up(self.max_deliveries);
        if self.letters {
            return over;
        }
        for seq in over {
            let Some(job) = self.jobs.get_mut(&seq) else { continue };
            (job.phase, job.lapsed) = (Phase::Dead, None);
        }
        Vec::new()
    }

    /// Released jobs that were delivered at least so often; 0: none.
    pub fn used_up(&self, limit: u64) -> Vec<u64> {
        let released = |job: &Job| matches!(job.phase, Phase::Waiting | Phase::Delayed(_));
        let over = |job: &Job| limit > 0 && u64::from(job.deliveries) >= limit;
        self.seqs(|job| released(job) && over(job))
    }

    /// When something changes by itself, if jobs are dead after `limit` deliveries; 0: immediately.
    pub fn deadline(&self, limit: u64) -> Option<u64> {
        let ends = self.jobs.values().filter_map(|job| match job.phase {
            Phase::Delayed(at) | Phase::Leased { deadline: at, .. } => Some(at),
            _ => None,
        });
        let now = self.used_up(limit).first().map(|_| 0);
        ends.chain(now).min()
    }

    /// Leased, waiting for a time, and dead.
    pub fn counts(&self) -> (u64, u64, u64) {
        let count = |is: fn(&Job) -> bool| self.seqs(is).len() as u64;
        (count(Job::leased), count(Job::delayed), count(|job| job.phase == Phase::Dead))
    }

    fn seqs(&self, is: impl Fn(&Job) -> bool) -> Vec<u64> {
        self.jobs.iter().filter(|(_, job)| is(job)).map(|(seq, _)| *seq).collect()
    }

    /// A leased job failed, and can be claimed again at `until`.
    pub fn nack(&mut self, seq: u64, until: Option<u64>, error: &str) {
        let Some(job) = self.jobs.get_mut(&seq) else { return };
        job.phase = until.map_or(Phase::Waiting, Phase::Delayed);
        if !error.is_empty() {
            job.error = Some(error.to_owned());
        }
    }

    /// A leased job was not begun: its last delivery was none.
    pub fn release(&mut self, seq: u64) {
        let Some(job) = self.jobs.get_mut(&seq) else { return };
        (job.phase, job.deliveries) = (Phase::Waiting, job.deliveries - 1);
    }

    /// The lease of a job lasts `ms` from now on.
    pub fn extend(&mut self, seq: u64, ms: u64, now: u64) {
        if let Some(job) = self.jobs.get_mut(&seq)
            && let Phase::Leased { lease_ms, deadline, .. } = &mut job.phase
        {
            (*lease_ms, *deadline) = (ms, now + ms);
        }
    }

    /// A delayed job need not wait any longer; false if it is not delayed.
    pub fn promote(&mut self, seq: u64) -> bool {
        let Some(job) = self.jobs.get_mut(&seq).filter(|job| job.delayed()) else { return false };
        if matches!(job.phase, Phase::Scheduled(_)) {
            job.new.visible_at = 0;
        }
        (job.phase, job.lapsed) = (Phase::Waiting, None);
        true
    }

    /// Deletes a job, a leased one only by force; returns what it was.
    pub fn remove(&mut self, seq: u64, force: bool) -> Option<Job> {
        let is_free = self.jobs.get(&seq).is_some_and(|job| force || !job.leased());
        if is_free { self.jobs.remove(&seq) } else { None }
    }

    /// A dead job begins anew.
    pub fn revive(&mut self, seq: u64) {
        let Some(job) = self.jobs.get_mut(&seq) else { return };
        (job.phase, job.deliveries, job.error) = (Phase::Waiting, 0, None);
    }

    /// The jobs that have expired.
    pub fn gone(&self, wall: u64) -> Vec<u64> {
        self.seqs(|job| job.expired(wall))
    }

    /// The jobs that are leased.
    pub fn leased(&self) -> Vec<u64> {
        self.seqs(Job::leased)
    }

    /// A new process starts.
    pub fn restarted(&mut self) {
        self.passed = [None; 10];
        for job in self.jobs.values_mut() {
            if !self.durable {
                (job.deliveries, job.error) = (0, None);
            }
            match job.phase {
                Phase::Scheduled(_) => {}
                // The next claim or tick determines whether a job is dead.
                Phase::Dead => job.phase = Phase::Waiting,
                _ if !self.durable => job.phase = Phase::Waiting,
                _ => {}
            }
        }
    }
}
