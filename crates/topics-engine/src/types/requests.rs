//! Counters of the remote.

use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_storage::HistogramSnapshot;

use super::metrics::{Counter, Histogram};

/// The kinds of requests, as metrics name them.
pub const REMOTE_OPS: [&str; 5] = ["create", "replace", "get", "head", "delete"];
/// The outcomes of requests, as metrics name them.
pub const REMOTE_OUTCOMES: [&str; 6] =
    ["ok", "not_found", "precondition", "refused", "unavailable", "ambiguous"];

/// The counters of one kind of request.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub outcomes: [Counter; REMOTE_OUTCOMES.len()],
    pub seconds: Histogram,
}

#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    pub ops: [Requests; REMOTE_OPS.len()],
    pub sent: Counter,
    pub received: Counter,
}

/// The counters of requests at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestsSnapshot {
    /// By [`REMOTE_OPS`], then by [`REMOTE_OUTCOMES`].
    pub outcomes: [[u64; REMOTE_OUTCOMES.len()]; REMOTE_OPS.len()],
    /// Time of requests, by [`REMOTE_OPS`].
    pub seconds: [HistogramSnapshot; REMOTE_OPS.len()],
    /// Bytes of objects that were sent.
    pub sent_bytes: u64,
    /// Bytes of objects that were received.
    pub received_bytes: u64,
}

impl RequestCounters {
    pub(crate) fn snapshot(&self) -> RequestsSnapshot {
        RequestsSnapshot {
            outcomes: std::array::from_fn(|i| {
                std::array::from_fn(|j| self.ops[i].outcomes[j].get())
            }),
            seconds: std::array::from_fn(|i| self.ops[i].seconds.snapshot()),
            sent_bytes: self.sent.get(),
            received_bytes: self.received.get(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ArchiveGauges {
    /// Bytes of the sealed segments that no pack holds.
    pub lag_bytes: AtomicU64,
    /// How long the first of them has waited.
    pub lag_ms: AtomicU64,
    /// Ranges of objects that wait to be deleted.
    pub dead: AtomicU64,
    /// Objects that were deleted.
    pub deleted: AtomicU64,
    /// The time of the last base that was published, 0: none since the open.
    pub last_base_ms: AtomicU64,
}

/// What an engine may do with its prefix, from the best to the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemoteState {
    /// No request was made yet.
    #[default]
    Starting,
    /// The last pass and the last round succeeded.
    Ok,
    /// One of them failed; the next one repeats it.
    Failing,
    /// The log that waited to be shipped was given up, and no base was published since: the newest state that
    /// can be restored is an older one.
    Broken,
    /// The prefix is not the directory's: nothing is written to it.
    Refused,
    /// The server lacks what the remote needs.
    Unsuitable,
    /// Another writer has taken the prefix.
    Fenced,
}

impl RemoteState {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Starting,
        Self::Ok,
        Self::Failing,
        Self::Broken,
        Self::Refused,
        Self::Unsuitable,
        Self::Fenced,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ok => "ok",
            Self::Failing => "failing",
            Self::Broken => "broken",
            Self::Refused => "refused",
            Self::Unsuitable => "unsuitable",
            Self::Fenced => "fenced",
        }
    }
}

/// What an engine with a remote counts, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteSnapshot {
    /// Its requests.
    pub requests: RequestsSnapshot,
    /// Bytes of the packs that hold segments of the directory.
    pub pack_bytes: u64,
    /// Bytes of the sealed segments that no pack holds.
    pub archive_lag_bytes: u64,
    /// How long the first of them has waited, ms.
    pub archive_lag_ms: u64,
    /// Ranges of objects that wait to be deleted.
    pub dead: u64,
    /// Objects that were deleted.
    pub deleted: u64,
    /// The time of the last base that was published, ms since the Unix epoch; 0: none since the open.
    pub last_base_ms: u64,
    /// The state of the remote.
    pub state: RemoteState,
    /// Why it is in this state, if it is worse than [`RemoteState::Ok`].
    pub reason: Option<String>,
}

impl RemoteSnapshot {
    pub(crate) fn of(
        requests: &RequestCounters,
        gauges: &ArchiveGauges,
        pack_bytes: u64,
        (state, reason): (RemoteState, Option<String>),
    ) -> Self {
        Self {
            requests: requests.snapshot(),
            pack_bytes,
            archive_lag_bytes: gauges.lag_bytes.load(Ordering::Relaxed),
            archive_lag_ms: gauges.lag_ms.load(Ordering::Relaxed),
            dead: gauges.dead.load(Ordering::Relaxed),
            deleted: gauges.deleted.load(Ordering::Relaxed),
            last_base_ms: gauges.last_base_ms.load(Ordering::Relaxed),
            state,
            reason,
        }
    }
}
