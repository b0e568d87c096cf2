//! The model of a queue; it examines every job on every call.

use std::collections::BTreeMap;

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

    /// The next job: of a lane that was skipped for 10 s, else of the lowest lane.
    fn next_job(&mut self, now: u64) -> Option<u64> {
        let ready = self.ready();
        let has = |lane: u8| ready.iter().any(|r| r.0 == lane);
        let starved = (0..10u8).filter(|l| has(*l));
        let starved = starved.filter_map(|l| self.passed[l as usize].map(|at| (at, l)));
        let starved = starved.filter(|(at, _)| now - at >= 10_000).min();
        let lane = starved.map(|s| s.1).or_else(|| (0..10).find(|l| has(*l)))?;
        for other in 0..10u8 {
            let passed = &mut self.passed[other as usize];
            if other == lane || !has(other) {
                *passed = None;
            } else if other > lane {
                passed.get_or_insert(now);
            }
        }
        ready.iter().find(|r| r.0 == lane).map(|r| r.1)
    }

    /// Claims up to `max` jobs; the answer assigns the lease ids.
    pub fn take(&mut self, node: usize, max: usize, lease_ms: u64, now: u64) -> ClaimedJobs {
        let mut claimed = ClaimedJobs::default();
        while !self.paused && claimed.jobs.len() < max {
            let Some(seq) = self.next_job(now) else { break };
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
        let (limit, letters) = (self.max_deliveries, self.letters);
        let mut over = Vec::new();
        for (seq, job) in &mut self.jobs {
            let released = matches!(job.phase, Phase::Waiting | Phase::Delayed(_));
            if limit > 0 && released && u64::from(job.deliveries) >= limit {
                over.push(*seq);
                if !letters {
                    (job.phase, job.lapsed) = (Phase::Dead, None);
                }
            }
        }
        if letters { over } else { Vec::new() }
    }

    /// The jobs that have expired.
    pub fn gone(&self, wall: u64) -> Vec<u64> {
        self.jobs.iter().filter(|(_, j)| j.expired(wall)).map(|(s, _)| *s).collect()
    }

    /// The jobs that are leased.
    pub fn leased(&self) -> Vec<u64> {
        self.jobs.iter().filter(|(_, j)| j.leased()).map(|(s, _)| *s).collect()
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
