//! A job: what is known of it, and as what it is shown.

use std::sync::Arc;

/// The lane of a job that names none.
pub(crate) const LANE: u8 = 5;

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
pub(crate) struct Lease {
    pub id: u64,
    pub node: Arc<[u8]>,
    pub lease_ms: u64,
    pub deadline: u64,
    pub stream: u64,
    /// Not applied yet.
    pub reserved: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Claimable, as far as its group lets it.
    Waiting,
    /// Claimable from this wall time on.
    Scheduled(u64),
    /// Released: claimable from this monotonic time on.
    Delayed(u64),
    Leased(Lease),
    /// The engine moves or deletes the job; a failure restores the phase inside.
    Moving(Box<Phase>),
    Dead,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub lane: u8,
    pub group: u64,
    /// It has options: the log's cursor passes it.
    pub has_options: bool,
    pub deliveries: u32,
    pub phase: Phase,
    /// An ack or nack of its lease is on its way.
    pub expiry_suspended: bool,
    /// The id of its latest lease, 0: none. That a lease or delay runs out is not logged.
    pub last: u64,
    /// Claimable before the due time of its record, which counts no more.
    pub promoted: bool,
    /// Since when it is ready again, or due, wall ms; 0: since it was written.
    pub ready_since: u64,
    /// Why a worker released it, the latest that said so.
    pub error: Option<Arc<str>>,
}

impl Job {
    pub fn plain() -> Self {
        let phase = Phase::Waiting;
        let (lane, group, has_options) = (LANE, 0, false);
        let (deliveries, last) = (0, 0);
        let (expiry_suspended, promoted, error) = (false, false, None);
        Self {
            lane,
            group,
            has_options,
            deliveries,
            phase,
            expiry_suspended,
            last,
            promoted,
            ready_since: 0,
            error,
        }
    }

    /// What it is shown as; one that is being moved, as what it was before.
    pub fn view(&self) -> JobView {
        let phase = match &self.phase {
            Phase::Moving(before) => before,
            phase => phase,
        };
        match phase {
            Phase::Waiting | Phase::Moving(_) => JobView::Ready,
            Phase::Scheduled(at) => JobView::Scheduled(*at),
            Phase::Delayed(until) => JobView::Delayed(*until),
            Phase::Dead => JobView::Dead,
            Phase::Leased(l) => JobView::Leased {
                id: l.id,
                node: l.node.clone(),
                lease_ms: l.lease_ms,
                deadline: l.deadline,
                reserved: l.reserved,
            },
        }
    }
}

/// What a job takes along when its record is moved to another topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobHistory {
    /// How often it was delivered.
    pub deliveries: u32,
    /// Why a worker released it, the latest that said so.
    pub error: Option<Arc<str>>,
    /// Its due time counts no more.
    pub promoted: bool,
}

/// A job as `peek` and snapshots show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobView {
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
pub(crate) struct NextJob {
    pub seq: u64,
    pub deliveries: u32,
}
