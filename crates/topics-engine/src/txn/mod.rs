//! Transactions: rows for several topics, cursors and acks, all or nothing (decision 15).
//!
//! | part | does |
//! |---|---|
//! | `api` | requests and answers |
//! | `table` | open decisions, last epochs, spent files: what frames say, live and in recovery |
//! | `staging` | files of rows that wait for a commit |
//! | `gather` | the rows of a commit, from files or from the request |
//! | `commit` | checks everything, decides |
//! | `publish` | carries a decision out: live, at a repeat, in recovery |
//! | `writers` | which writers are remembered |
//! | `verbs` | the façade |
//!
//! What a transaction does in one topic is `topic::part`. Locks, in order: the writer's turn → topics
//! alone, ascending ids → append → state → the table.

mod api;
mod commit;
mod gather;
mod publish;
mod staging;
mod table;
#[cfg(test)]
mod tests;
mod verbs;
mod writers;

pub use api::{
    CommitRequest, Committed, CommittedTopic, StageRequest, Staged, StagedState, TxnAck, TxnCursor,
    TxnRequest, TxnRows, TxnStage, TxnWork, WriterState, WriterSummary,
};
pub(crate) use publish::{pass, recovered};
pub(crate) use staging::Staging;
pub(crate) use table::{SECTION, Txns};
