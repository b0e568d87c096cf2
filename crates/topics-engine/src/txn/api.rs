//! Requests and answers of transactions.

use crate::types::api::NewRecord;
use crate::types::queue::LeasedJobs;

/// Rows for one topic.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxnRows<'a> {
    /// The topic; created when it is missing, as the engine's `auto_create` says.
    pub topic: &'a str,
    /// The records, in order; at least one.
    pub records: &'a [NewRecord<'a>],
    /// Node of the records that have none.
    pub node: &'a [u8],
}

/// Rows that wait for a commit; readers do not see them.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageRequest<'a> {
    /// The stage, 1 to 128 bytes; the caller chooses it, for example by task attempt.
    pub stage: &'a str,
    /// The part of the stage, from 0. Staging a part again is a no-op.
    pub part: u32,
    /// The rows.
    pub rows: &'a [TxnRows<'a>],
}

/// The answer to a stage call: the part is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staged {
    /// Rows of the part.
    pub records: u64,
    /// Bytes that it takes on disk.
    pub bytes: u64,
    /// Whether it had been staged before.
    pub repeated: bool,
}

/// A stage that a commit publishes.
#[derive(Clone, Copy, Debug)]
pub struct TxnStage<'a> {
    /// The stage.
    pub stage: &'a str,
    /// Number of its parts, which are numbered from 0.
    pub parts: u32,
    /// Number of rows of all parts, if the caller knows it.
    pub records: Option<u64>,
}

/// A stored cursor that moves with a commit.
#[derive(Clone, Copy, Debug)]
pub struct TxnCursor<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The consumer; it exists.
    pub consumer: &'a str,
    /// The last processed seq. A cursor that is already further on stays.
    pub seq: u64,
    /// The fence of the reader that commits; the transaction is refused if another reader took the
    /// consumer over. `None`: there is no such check.
    pub fence: Option<u64>,
}

/// Jobs that are acked with a commit. The commit is refused unless all leases are valid.
#[derive(Clone, Copy, Debug)]
pub struct TxnAck<'a> {
    /// The queue.
    pub queue: &'a str,
    /// Node, jobs and lease ids.
    pub jobs: LeasedJobs<'a>,
}

/// Work of a commit beside its rows, and its conditions.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxnWork<'a> {
    /// Topics and the heads that they must have.
    pub expect_heads: &'a [(&'a str, u64)],
    /// Cursors that move.
    pub commits: &'a [TxnCursor<'a>],
    /// Jobs that are acked.
    pub acks: &'a [TxnAck<'a>],
}

/// Publishes stages of a writer.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitRequest<'a> {
    /// The writer's epoch, which rises. A repeat of the last epoch gets the same answer.
    pub epoch: u64,
    /// The stages, in the order in which their rows are to appear.
    pub stages: &'a [TxnStage<'a>],
    /// The API key of the caller, whose number of writers is limited. Empty: none.
    pub owner: &'a str,
    /// Identifies the query that commits, at most 256 bytes; empty: none. The last epoch is answered
    /// again to the query that committed it, and to no other.
    pub query: &'a str,
    /// Cursors, acks and conditions.
    pub work: TxnWork<'a>,
}

/// A transaction in one call.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxnRequest<'a> {
    /// The writer; `None`: only a key is remembered after the transaction.
    pub writer: Option<&'a str>,
    /// The writer's epoch; `None`: its last one + 1.
    pub epoch: Option<u64>,
    /// Idempotency key, at most 256 bytes, without a writer only; empty is none. Remembered for
    /// two minutes.
    pub key: &'a [u8],
    /// The API key of the caller: idempotency keys of another API key are different ones, and the
    /// number of its writers is limited. Empty: none.
    pub owner: &'a str,
    /// The rows.
    pub rows: &'a [TxnRows<'a>],
    /// Cursors, acks and conditions.
    pub work: TxnWork<'a>,
}

/// The rows that a topic got by a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedTopic {
    /// The topic.
    pub topic: String,
    /// Its id.
    pub topic_id: u64,
    /// Seq of the first row.
    pub first_seq: u64,
    /// Seq of the last row.
    pub last_seq: u64,
}

/// The answer to a commit, which is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The epoch.
    pub epoch: u64,
    /// Whether it had been committed before.
    pub deduped: bool,
    /// The topics that got rows, by name, without topics that were deleted before their rows were
    /// published.
    pub topics: Vec<CommittedTopic>,
}

/// A writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterState {
    /// The last epoch that was committed.
    pub last_epoch: Option<u64>,
    /// The staged parts and rows, by stage.
    pub staged: Vec<StagedState>,
}

/// A stage of a writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagedState {
    /// The stage.
    pub stage: String,
    /// Its parts.
    pub parts: u32,
    /// Their rows.
    pub records: u64,
    /// Bytes that they take on disk.
    pub bytes: u64,
}

/// An entry of a list of writers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterSummary {
    /// The writer.
    pub writer: String,
    /// The last epoch that was committed.
    pub last_epoch: Option<u64>,
    /// Rows that are staged.
    pub records: u64,
    /// Bytes that they take on disk.
    pub bytes: u64,
}
