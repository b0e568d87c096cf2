//! Which claims may still be cancelled, and what a pass does with one that was.
//!
//! A cancelled claim holds no job, and none of its jobs was delivered. Until its lease is decided, its
//! reservation is undone. After that (a durable lease is being logged, or others of the pass are answered first)
//! the pass releases the lease again, and the claim is not answered.

use std::sync::Arc;

use topics_env::sync::{Mutex, MutexGuard};

use super::Queues;
use super::ack;
use crate::topic::Topic;
use crate::types::queue::{Claimed, LeasedJobs};

/// How far a waiting claim is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Waiting,
    Cancelled,
    Answered,
}

/// What a waiting claim, the passes that serve it and its canceller share.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimState(Arc<Mutex<Phase>>);

impl ClaimState {
    /// Cancels the claim; false when it was answered, or will not be because it was cancelled
    /// before.
    pub fn cancel(&self) -> bool {
        let mut phase = self.0.lock();
        let waiting = *phase == Phase::Waiting;
        if waiting {
            *phase = Phase::Cancelled;
        }
        waiting
    }

    /// Whether the caller may answer the claim, once.
    pub fn answer(&self) -> bool {
        let mut phase = self.0.lock();
        let waiting = *phase == Phase::Waiting;
        if waiting {
            *phase = Phase::Answered;
        }
        waiting
    }

    pub fn is_cancelled(&self) -> bool {
        *self.0.lock() == Phase::Cancelled
    }

    /// Keeps the claim from being cancelled while the guard lives; `None`: it was cancelled.
    pub fn pin(&self) -> Option<PinnedClaim<'_>> {
        let phase = self.0.lock();
        (*phase != Phase::Cancelled).then(|| PinnedClaim { _phase: phase })
    }
}

/// A claim that cannot be cancelled now. Not held across I/O.
pub(crate) struct PinnedClaim<'a> {
    _phase: MutexGuard<'a, Phase>,
}

/// Releases what a cancelled claim was leased.
pub(crate) fn release(queues: &Arc<Queues>, topic: &Arc<Topic>, node: &[u8], claimed: &Claimed) {
    let (seqs, ids): (Vec<u64>, Vec<u64>) =
        claimed.leases.iter().map(|l| (l.seq, l.lease_id)).unzip();
    let held = LeasedJobs { node, seqs: &seqs, lease_ids: Some(&ids) };
    if let Err(e) = ack::release(queues, topic, &held) {
        log::debug!("topic {:?}: leases of a cancelled claim end by themselves: {e}", topic.name);
    }
}
