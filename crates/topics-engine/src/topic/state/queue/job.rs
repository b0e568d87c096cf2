//! A job: what is known of it, and as what it is shown.

use std::sync::Arc;

/// The lane of a job that names none.
pub(crate) const LANE: u8 = 5;

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
    /// Taken by the engine: it is being moved elsewhere.
    Moving,
    Dead,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub lane: u8,
    pub group: u64,
    /// It has options: the log's cursor passes it.
    pub special: bool,
    pub deliveries: u32,
    pub phase: Phase,
    /// An ack or nack of its lease is on its way.
    pub leaving: bool,
    /// The id of its latest lease, 0: none. That a lease or delay runs out is not logged.
    pub last: u64,
}

impl Job {
    pub fn plain() -> Self {
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
