//! Bodies of routers, queues, consumers and transactions.

use super::Body;
use crate::format::codec::{Decode, Encode};
use crate::format::frame::FrameType;

/// A router's creation or update.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RouterCreate {
    pub name: String,
    pub router_id: u64,
    pub epoch: u64,
    /// Its options, encoded and versioned by the engine.
    pub options: Vec<u8>,
}

impl Body for RouterCreate {
    const KIND: FrameType = FrameType::RouterCreate;
}

/// A router's deletion.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RouterDelete {
    pub router_id: u64,
    pub epoch: u64,
}

impl Body for RouterDelete {
    const KIND: FrameType = FrameType::RouterDelete;
}

/// The kind of a lease event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum LeaseEvent {
    /// Leased to a worker.
    Claim,
    /// Released; claimable from the deadline on.
    Nack,
    /// The deadline was extended.
    Extend,
}

/// A lease event of a queue with durable leases.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Lease {
    pub event: LeaseEvent,
    pub node: Vec<u8>,
    /// The duration, ms.
    pub lease_ms: u64,
    /// The jobs: seq, lease id, deliveries.
    pub jobs: Vec<(u64, u64, u32)>,
    /// Why the worker gave them back; empty: it did not say.
    pub error: String,
}

impl Lease {
    /// An event without an error.
    #[must_use]
    pub fn new(event: LeaseEvent, node: &[u8], lease_ms: u64, jobs: Vec<(u64, u64, u32)>) -> Self {
        Self { event, node: node.to_vec(), lease_ms, jobs, error: String::new() }
    }
}

impl Body for Lease {
    const KIND: FrameType = FrameType::Lease;
}

/// A consumer's stored cursor.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Consumer {
    pub name: String,
    /// `at_most_once` or `at_least_once`; the engine defines the numbers.
    pub mode: u8,
    /// The stored cursor; `None`: the consumer was deleted.
    pub cursor: Option<u64>,
}

impl Body for Consumer {
    const KIND: FrameType = FrameType::Consumer;
}

/// A run of copies that a router made, in the shard of the destination.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Forward {
    pub router_id: u64,
    /// The source topic.
    pub source_id: u64,
    pub source_epoch: u64,
    /// The first source seq that the router examined.
    pub source_from: u64,
    /// The last source seq that the router examined.
    pub source_to: u64,
    /// One bit per source seq of the range, set if it was forwarded. Empty: all were.
    pub forwarded: Vec<u8>,
    /// Seq of the first copy.
    pub first_seq: u64,
    /// Options that shape the copy.
    pub options: u32,
}

impl Body for Forward {
    const KIND: FrameType = FrameType::Forward;
}

/// A file of staged rows.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnFile {
    /// Its name in `txn/`.
    pub name: String,
    pub len: u64,
    /// XXH3-64 of the file.
    pub checksum: u64,
}

/// The rows that a transaction appends to one topic.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnTopic {
    pub topic_id: u64,
    pub epoch: u64,
    /// The number of appended rows.
    pub rows: u64,
}

/// A transaction's commit decision.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnCommit {
    pub writer: String,
    pub epoch: u64,
    /// The staged rows.
    pub files: Vec<TxnFile>,
    /// The topics that receive rows.
    pub topics: Vec<TxnTopic>,
    /// Consumer commits: topic id, consumer, seq.
    pub commits: Vec<(u64, String, u64)>,
    /// Queue acks: topic id, seqs.
    pub acks: Vec<(u64, Vec<u64>)>,
    /// The API key that commits; empty: none.
    pub owner: String,
    /// The query that commits; empty: none.
    pub query: String,
}

impl Body for TxnCommit {
    const KIND: FrameType = FrameType::TxnCommit;
}

/// The rows of a transaction in one topic. The frame's seq is the seq of the first row, 0 without
/// rows.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnPart {
    pub writer: String,
    pub epoch: u64,
}

impl Body for TxnPart {
    const KIND: FrameType = FrameType::TxnPart;
}

/// A transaction's completion, with the answer to the commit.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnDone {
    pub writer: String,
    pub epoch: u64,
    /// The topics that received rows: id, name, first seq, last seq.
    pub topics: Vec<(u64, String, u64, u64)>,
    /// The API key that owns the writer; empty: none.
    pub owner: String,
    /// Whether the frame only removes the writer.
    pub forgets: bool,
    /// The query that committed; empty: none.
    pub query: String,
}

impl Body for TxnDone {
    const KIND: FrameType = FrameType::TxnDone;
}
