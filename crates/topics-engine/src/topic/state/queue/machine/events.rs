//! What the log and snapshots say of jobs.

use std::sync::Arc;

use topics_storage::format::record::{self, LeaseEvent};
use topics_storage::snapshot::ReplayPos;

use super::Queue;
use crate::topic::state::queue::job::{Job, JobHistory, JobView, Lease, Phase};
use crate::types::clock::Now;

impl Queue {
    /// Applies a lease event. Each may be applied again over a state that reflects it and what came
    /// after: a claim sets what a lease is, the others change only the lease that they name.
    pub fn apply(&mut self, body: &record::Lease, now: Now) {
        let error: Option<Arc<str>> = (!body.error.is_empty()).then(|| body.error.as_str().into());
        for &(seq, id, deliveries) in &body.jobs {
            let until = now.mono.saturating_add(body.lease_ms);
            match body.event {
                LeaseEvent::Claim => self.leased(seq, id, deliveries, body, until),
                LeaseEvent::Extend => self.extended(seq, id, body.lease_ms, until),
                LeaseEvent::Nack if id == 0 => self.revive(seq, now.wall),
                LeaseEvent::Nack => {
                    let is_immediate = body.lease_ms == 0;
                    let ends = match self.jobs.get(&seq) {
                        Some(Job { phase: Phase::Leased(l), .. }) => l.id == id,
                        // The delay after that lease has run out.
                        Some(Job { phase: Phase::Delayed(_), last, .. }) => {
                            is_immediate && *last == id
                        }
                        Some(Job { phase: Phase::Waiting, .. }) => {
                            self.superseded.remove(&(seq, id))
                        }
                        _ => false,
                    };
                    if ends {
                        if let (Some(error), Some(job)) = (&error, self.jobs.get_mut(&seq)) {
                            job.error = Some(error.clone());
                        }
                        match is_immediate {
                            true => self.set_ready(seq, now.wall),
                            false => self.set(seq, Phase::Delayed(until)),
                        }
                        // Fewer than before when the job was released before its work began.
                        self.set_deliveries(seq, deliveries);
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
        self.set_deliveries(seq, n);
    }

    fn extended(&mut self, seq: u64, id: u64, lease_ms: u64, deadline: u64) {
        if let Some(Job { expiry_suspended, phase: Phase::Leased(l), .. }) = self.jobs.get_mut(&seq)
            && l.id == id
            && !l.reserved
        {
            if self.due.remove(&(l.deadline, seq)) || !*expiry_suspended {
                self.due.insert((deadline, seq));
            }
            (l.lease_ms, l.deadline) = (lease_ms, deadline);
        }
    }

    /// A dead job, or one that waits for its due time, becomes claimable at this wall time as one that was
    /// never delivered.
    pub fn revive(&mut self, seq: u64, now: u64) {
        use Phase::{Dead, Scheduled, Waiting};
        let phase = self.jobs.get(&seq).map(|j| &j.phase);
        if !matches!(phase, None | Some(Dead | Waiting | Scheduled(_))) {
            return;
        }
        // In a recovery the options of a job may not be loaded yet.
        let promoted = matches!(phase, None | Some(Scheduled(_)));
        self.set_ready(seq, now);
        self.set_deliveries(seq, 0);
        if let Some(job) = self.jobs.get_mut(&seq) {
            job.promoted |= promoted;
            job.error = None;
        }
    }

    /// The known jobs, ascending.
    pub fn jobs(&self) -> impl Iterator<Item = (u64, &Job)> {
        self.jobs.iter().map(|(seq, job)| (*seq, job))
    }

    /// Known jobs, deliveries and what they are shown as, ascending.
    pub fn views(&self) -> impl Iterator<Item = (u64, u32, JobView)> + '_ {
        self.jobs().map(|(seq, job)| (seq, job.deliveries, job.view()))
    }

    /// A job as a snapshot says it, with its latest lease; `until` of a lease or delay is monotonic.
    pub fn restore(&mut self, seq: u64, history: JobHistory, last: u64, shown: JobView) {
        let phase = match shown {
            JobView::Ready | JobView::Scheduled(_) | JobView::Dead => Phase::Waiting,
            JobView::Delayed(until) => Phase::Delayed(until),
            JobView::Leased { id, node, lease_ms, deadline, .. } => {
                Phase::Leased(Lease { id, node, lease_ms, deadline, stream: 0, reserved: false })
            }
        };
        self.set(seq, phase);
        self.set_deliveries(seq, history.deliveries);
        if let Some(job) = self.jobs.get_mut(&seq) {
            (job.last, job.promoted, job.error) = (last, history.promoted, history.error);
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
                _ if job.has_options || job.promoted => {
                    self.set(seq, Phase::Waiting);
                    self.set_deliveries(seq, 0);
                    if let Some(job) = self.jobs.get_mut(&seq) {
                        job.error = None;
                    }
                }
                _ => self.detach(seq),
            }
        }
        self.superseded.clear();
        (self.cursor, self.at_cursor) = (0, false);
        (self.deadline, self.retry_at) = (None, 0);
        self.tally.counted = ReplayPos::default();
    }
}
