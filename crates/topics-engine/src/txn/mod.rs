//! Transactions: rows for several topics, cursors and acks, all or nothing (decision 15).
//!
//! | module | does |
//! |---|---|
//! | `api` | requests and answers |
//! | `table` | open decisions, last epochs, spent files: the applied state, live and in recovery |
//! | `staging` | files of rows that wait for a commit |
//! | `gather` | the rows of a commit, from files or from the request |
//! | `work` | the work of a commit in each topic, and its checks |
//! | `commit` | checks everything, decides |
//! | `publish` | carries a decision out: live, at a repeat, in recovery |
//! | `writers` | which writers are remembered |
//!
//! `participant` does the work of a transaction in one topic. Locks, in order: the writer's lock →
//! exclusive topics by ascending id → append → state → the table.

pub(crate) mod api;
pub(crate) mod commit;
pub(crate) mod gather;
pub(crate) mod participant;
pub(crate) mod publish;
pub(crate) mod staging;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod work;
pub(crate) mod writers;

use std::sync::Arc;

use topics_storage::dir::Paths;
use topics_storage::txn::Stages;

pub use self::api::{
    CommitRequest, Committed, CommittedTopic, StageRequest, Staged, StagedState, TxnAck, TxnCursor,
    TxnRequest, TxnRows, TxnStage, TxnWork, WriterState, WriterSummary,
};
pub(crate) use self::publish::{pass, recovered};
pub(crate) use self::staging::Staging;
pub(crate) use self::table::{SECTION, TxnTable};

use crate::checkpoint::{Store, layers_below};

/// The transactions of an open engine.
#[derive(Debug)]
pub(crate) struct Transactions {
    store: Arc<Store>,
    /// The applied state of transactions.
    pub table: Arc<TxnTable>,
    /// Rows that wait for a commit.
    pub staging: Staging,
}

impl Transactions {
    layers_below!();

    pub(crate) fn new(store: Arc<Store>, table: Arc<TxnTable>) -> Arc<Self> {
        let files = Stages::new(
            store.base().env.clone(),
            Paths::new(&store.base().dir),
            store.disk.store_id,
        );
        let staging = Staging::new(files, &store.base().options, store.ctx().generation);
        Arc::new(Self { store, table, staging })
    }
}
