//! A simulated object store: deterministic, with faults, a monitor of rules, and counted requests.
//!
//! [`Bucket`] is the server; [`SimStore`] is a client of it. No result depends on time or hash order.
//! A request that is delayed takes effect when a number of later requests has been made, by any
//! client; its condition is evaluated then. A request that hangs takes effect when a test says so.

mod bucket;
mod client;

pub use bucket::Bucket;
pub use client::{RequestGate, SimStore};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectOp {
    Create,
    Replace,
    /// `get` and `get_if_changed`.
    Get,
    Head,
    Delete,
}

impl ObjectOp {
    /// Whether it changes objects.
    #[must_use]
    pub fn is_write(self) -> bool {
        matches!(self, Self::Create | Self::Replace | Self::Delete)
    }
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectFault {
    /// No effect, and the client knows: `Unavailable`.
    Unavailable,
    /// No effect, and the client does not know: `Ambiguous`. A read fails with `Unavailable`.
    Lost,
    /// The effect, and then the answer is lost: `Ambiguous`. A read fails with `Unavailable`.
    AnswerLost,
    /// `Ambiguous` now, the effect after this number of later requests. A read fails with
    /// `Unavailable`.
    Delayed(u32),
    /// No effect, answered like a condition that does not hold: a conflict with another request
    /// (409, 412). A read or a delete fails with `Unavailable`.
    Conflict,
    /// No effect: the credentials are refused.
    Refused,
    /// A read returns the first half of its bytes; a write is `Lost`.
    Truncated,
    /// A read returns a changed byte; a write is `Lost`.
    Wrong,
    /// No answer while anyone waits: the clock of the bucket moves to the deadline of the request, and its
    /// caller goes on as after `Lost`. The effect stays under way until [`Bucket::deliver_delayed`].
    Hangs,
}

impl ObjectFault {
    /// Every fault, for enumeration.
    pub const ALL: [Self; 10] = [
        Self::Unavailable,
        Self::Lost,
        Self::AnswerLost,
        Self::Delayed(1),
        Self::Delayed(3),
        Self::Conflict,
        Self::Refused,
        Self::Truncated,
        Self::Wrong,
        Self::Hangs,
    ];
}

/// A feature of a good server that a [`Bucket`] can lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFlaw {
    /// `create` replaces an existing object.
    CreateReplaces,
    /// `replace` ignores the ETag.
    ReplaceIgnoresETag,
    /// `replace` creates a missing object.
    ReplaceCreates,
    /// Creates of a key at one time all succeed; each checks the key before any stores its object.
    RacingCreatesWin,
    /// Every object has the same ETag.
    ConstantETag,
    /// `get` ignores the range.
    RangeIgnored,
    /// `get` of the last bytes returns the first ones.
    LastBytesIgnored,
    /// `get` ignores `if_match`, `get_if_changed` returns the object always.
    ReadConditionIgnored,
    /// Reads return the content before the last write of a key, once.
    StaleReads,
    /// Objects end after this number of bytes.
    SizeLimit(usize),
    /// `delete` succeeds and keeps the object.
    DeleteKeeps,
    /// Reads of a missing object are refused: S3 without the right to list.
    MissingRefused,
}

/// A broken rule, found by the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectViolation {
    /// A key was created a second time with other bytes, after a delete or on a flawed server.
    KeyReused { key: String, client: u32 },
    /// A key was replaced that is not one of the [`Bucket::set_mutable`] ones.
    ImmutableReplaced { key: String, client: u32 },
    /// A key of the wrong form.
    InvalidKey { key: String },
}
