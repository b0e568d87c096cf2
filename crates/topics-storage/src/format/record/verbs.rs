//! Bodies of routers, queues, consumers and transactions.

use super::Body;
use crate::format::codec::{Decode, Encode};
use crate::format::frame::FrameType;

/// A router's creation or update.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RouterCreate {
    /// Its name.
    pub name: String,
    /// Its id.
    pub router_id: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its options, encoded and versioned by the engine.
    pub options: Vec<u8>,
}

impl Body for RouterCreate {
    const KIND: FrameType = FrameType::RouterCreate;
}

/// A router's end.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct RouterDelete {
    /// Its id.
    pub router_id: u64,
    /// Its epoch.
    pub epoch: u64,
}

impl Body for RouterDelete {
    const KIND: FrameType = FrameType::RouterDelete;
}

/// What happened to leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum LeaseEvent {
    /// Given to a worker.
    Claim,
    /// Released, claimable at the deadline.
    Nack,
    /// The deadline moved.
    Extend,
}

/// A lease event of a queue with durable leases.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Lease {
    /// What happened.
    pub event: LeaseEvent,
    /// The worker.
    pub node: Vec<u8>,
    /// How long, ms.
    pub lease_ms: u64,
    /// The jobs: seq, lease id, deliveries.
    pub jobs: Vec<(u64, u64, u32)>,
    /// Why the worker released them; empty: it did not say, as in version 1.
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
    const VERSION: u8 = 2;
    const SINCE_1: usize = 1;
}

/// A consumer's stored cursor.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Consumer {
    /// Its name.
    pub name: String,
    /// `at_most_once` or `at_least_once`; the numbers belong to the engine.
    pub mode: u8,
    /// The stored cursor; `None`: the consumer was deleted.
    pub cursor: Option<u64>,
}

impl Body for Consumer {
    const KIND: FrameType = FrameType::Consumer;
}

/// A run of copies made by a router, in the destination's shard.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Forward {
    /// The router.
    pub router_id: u64,
    /// The source topic.
    pub source_id: u64,
    /// Its epoch.
    pub source_epoch: u64,
    /// First source seq looked at.
    pub source_from: u64,
    /// Last source seq looked at.
    pub source_to: u64,
    /// One bit per source seq of the range: forwarded. Empty: all.
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
    /// Its length.
    pub len: u64,
    /// XXH3-64 of it.
    pub checksum: u64,
}

/// What a transaction does to one topic.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnTopic {
    /// The topic.
    pub topic_id: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Rows appended.
    pub rows: u64,
}

/// A transaction's decision.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnCommit {
    /// The writer.
    pub writer: String,
    /// Its epoch.
    pub epoch: u64,
    /// The staged rows.
    pub files: Vec<TxnFile>,
    /// What they become.
    pub topics: Vec<TxnTopic>,
    /// Consumer commits: topic id, consumer, seq.
    pub commits: Vec<(u64, String, u64)>,
    /// Queue acks: topic id, seqs.
    pub acks: Vec<(u64, Vec<u64>)>,
    /// The API key that commits; empty: none, as in version 1.
    pub owner: String,
    /// The query that commits; empty: none, as in version 1.
    pub query: String,
}

impl Body for TxnCommit {
    const KIND: FrameType = FrameType::TxnCommit;
    const VERSION: u8 = 3;
    const SINCE_1: usize = 2;
}

/// A transaction's part in one topic. The frame's seq is that of the first row, 0 without rows.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnPart {
    /// The writer.
    pub writer: String,
    /// Its epoch.
    pub epoch: u64,
}

impl Body for TxnPart {
    const KIND: FrameType = FrameType::TxnPart;
}

/// A transaction's end: the answer that was given.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TxnDone {
    /// The writer.
    pub writer: String,
    /// Its epoch.
    pub epoch: u64,
    /// The topics that got rows: id, name, first seq, last seq.
    pub topics: Vec<(u64, String, u64, u64)>,
    /// The API key whose the writer is; empty: none, as in version 1.
    pub owner: String,
    /// The writer is forgotten, and nothing else; not in version 1.
    pub forgets: bool,
    /// The query that committed; empty: none, as in version 1.
    pub query: String,
}

impl Body for TxnDone {
    const KIND: FrameType = FrameType::TxnDone;
    const VERSION: u8 = 3;
    const SINCE_1: usize = 3;
}
