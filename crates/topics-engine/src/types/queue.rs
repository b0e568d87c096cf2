//! Requests and answers of the queue verbs.

use std::time::Duration;

use super::api::TopicMatch;
use super::batch::{ReadBatch, RecordView};

/// A claim of jobs by a worker.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The worker.
    pub node: &'a [u8],
    /// Maximum number of jobs.
    pub max: usize,
    /// Duration of the leases, ms; `None`: the queue's `lease_ms`.
    pub lease_ms: Option<u64>,
    /// Maximum wait if no job is available; at most 30 s.
    pub wait: Duration,
}

impl Default for Claim<'_> {
    fn default() -> Self {
        Self { node: b"", max: 1, lease_ms: None, wait: Duration::ZERO }
    }
}

/// The lease of a claimed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub seq: u64,
    /// The fence: the generation of the engine and a counter; below 2⁵³.
    pub lease_id: u64,
    /// When the lease expires, wall clock, ms.
    pub deadline: u64,
    /// How often the job was delivered, including this time.
    pub deliveries: u32,
}

/// The answer to a claim. Owns its bytes.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// The topic's id.
    pub topic_id: u64,
    pub(crate) leases: Vec<Lease>,
    pub(crate) records: ReadBatch,
    /// Duration of the leases, ms.
    pub lease_ms: u64,
    /// Jobs that were ready when the answer was made.
    pub ready: u64,
}

impl Claimed {
    /// Number of jobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether no job was available.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The `i`-th job and its record.
    #[must_use]
    pub fn get(&self, i: usize) -> Option<(Lease, RecordView<'_>)> {
        Some((*self.leases.get(i)?, self.records.get(i)?))
    }

    /// The jobs, in the order of the claim.
    pub fn iter(&self) -> impl Iterator<Item = (Lease, RecordView<'_>)> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// The records as a batch, for views that outlive the answer.
    #[must_use]
    pub fn records(&self) -> &ReadBatch {
        &self.records
    }
}

/// The leases that an ack, nack, release or extend names.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeasedJobs<'a> {
    /// The worker that claimed them.
    pub node: &'a [u8],
    /// The jobs.
    pub seqs: &'a [u64],
    /// Their lease ids, one per job. A job with a stale id is skipped, even for the same node.
    pub lease_ids: Option<&'a [u64]>,
}

/// Why a job is not leased to the worker that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// The engine was opened anew since the claim, and the queue does not keep leases
    /// (`leases_durable`).
    Restarted,
    /// The lease expired or was given back; another worker may have the job.
    Ended,
    /// The job was acked or deleted.
    Gone,
}

impl LeaseEnd {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::Ended => "ended",
            Self::Gone => "gone",
        }
    }
}

/// The answer to an ack, nack, release or extend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseOutcome {
    /// The jobs that were acked, released or extended.
    pub done: Vec<u64>,
    /// The other jobs: not leased by this node, or under a stale id.
    pub skipped: Vec<u64>,
    /// Why, for each of `skipped`; empty for verbs that need no lease.
    pub reasons: Vec<LeaseEnd>,
    /// When the extended leases expire, wall clock, ms.
    pub deadline: Option<u64>,
    /// The queue's counts afterwards.
    pub queue: QueueState,
}

/// Number of jobs of a queue by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Jobs that a claim can get now.
    pub ready: u64,
    /// Leased.
    pub in_flight: u64,
    /// Wait for their time.
    pub delayed: u64,
    /// Over `max_deliveries`, without a dead-letter topic.
    pub dead: u64,
    /// Moved to the dead-letter topic so far.
    pub dead_lettered: u64,
    /// Expired before they were done, so far.
    pub expired: u64,
}

/// A state of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// A claim can get the job now.
    Ready,
    /// Leased.
    Leased,
    /// Waits for its time.
    Delayed,
    /// Over `max_deliveries`.
    Dead,
}

impl JobState {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::Delayed => "delayed",
            Self::Dead => "dead",
        }
    }
}

/// A job as a peek shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeekedJob {
    /// The job.
    pub seq: u64,
    /// Its state.
    pub state: JobState,
    /// How often it was given.
    pub deliveries: u32,
    /// Who holds it.
    pub node: Option<Vec<u8>>,
    /// Under which lease.
    pub lease_id: Option<u64>,
    /// When the lease runs out, wall clock, ms.
    pub deadline: Option<u64>,
    /// When a delayed job can be claimed, wall clock, ms.
    pub visible_at: Option<u64>,
    /// Its lane.
    pub lane: u8,
    /// Its group.
    pub group: Option<Vec<u8>>,
    /// Why a worker released it, the latest that said so.
    pub error: Option<String>,
}

/// The answer to a peek. Owns its bytes.
#[derive(Clone, Debug, Default)]
pub struct Peeked {
    /// The topic's id.
    pub topic_id: u64,
    pub(crate) jobs: Vec<PeekedJob>,
    pub(crate) records: ReadBatch,
}

impl Peeked {
    /// The jobs and their records.
    pub fn iter(&self) -> impl Iterator<Item = (&PeekedJob, RecordView<'_>)> {
        self.jobs.iter().enumerate().filter_map(|(i, j)| Some((j, self.records.get(i)?)))
    }

    /// The records as a batch, for views that outlive the answer.
    #[must_use]
    pub fn records(&self) -> &ReadBatch {
        &self.records
    }
}

/// The answer to a redrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redriven {
    /// Records that were moved or revived, or would be.
    pub moved: u64,
    /// Records looked at.
    pub records_scanned: u64,
}

/// Moves dead letters, or revives dead jobs.
#[derive(Clone, Debug, Default)]
pub struct Redrive {
    /// Where to; `None`: where each came from.
    pub to: Option<String>,
    /// Only records with these tags.
    pub matching: Option<TopicMatch>,
    /// Only these.
    pub seqs: Option<Vec<u64>>,
    /// Maximum number of jobs.
    pub limit: Option<usize>,
    /// Only count.
    pub dry_run: bool,
}
