//! The façade of transactions: delegation only.

use std::collections::{BTreeMap, BTreeSet};

use super::Engine;
use crate::txn::api::{
    CommitRequest, Committed, StageRequest, Staged, TxnRequest, TxnStage, WriterState,
    WriterSummary,
};
use crate::txn::{commit, gather, staging, writers};
use crate::types::error::{Error, Result};
use crate::types::name;

impl Engine {
    /// Stages rows of a writer, invisible, until a commit lists them, they are aborted, or their
    /// time is over. When this returns they are durable.
    pub fn stage(&self, writer: &str, req: &StageRequest<'_>) -> Result<Staged> {
        staging::stage(&self.open.transactions, writer, req)
    }

    /// Publishes stages of a writer, moves cursors and acks jobs: all of it, durably, or nothing.
    /// The writer's last epoch again is answered as the first time, an older one refused. An error
    /// that is not `storage_unavailable` means that nothing happened; after that one, repeat.
    pub fn commit(&self, writer: &str, req: &CommitRequest<'_>) -> Result<Committed> {
        commit::commit(&self.open.transactions, writer, req)
    }

    /// A transaction in one call.
    pub fn transact(&self, req: &TxnRequest<'_>) -> Result<Committed> {
        commit::transact(&self.open.transactions, req)
    }

    /// Gives a stage up; what is published stays. False when there is none.
    pub fn abort_stage(&self, writer: &str, stage: &str) -> Result<bool> {
        staging::abort(&self.open.transactions, writer, stage)
    }

    /// A writer's last epoch and what it has staged.
    pub fn writer_state(&self, writer: &str) -> Result<WriterState> {
        name::check(writer)?;
        let txns = &self.open.transactions;
        txns.ctx().check_open()?;
        let last = txns.table.last(writer, txns.base().time.steady());
        let staged = txns.staging.state(writer);
        if last.is_none() && staged.is_empty() {
            return Err(Error::TxnNotFound(writer.to_owned()));
        }
        Ok(WriterState { last_epoch: last.map(|l| l.epoch), staged })
    }

    /// Forgets a writer by hand: its next commit may have any epoch. What it has staged is given up,
    /// what it published stays. False when there is none.
    pub fn forget_writer(&self, writer: &str) -> Result<bool> {
        writers::forget(&self.open.transactions, writer)
    }

    /// Makes a writer belong to another API key, and to no other. Returns false if the writer has no
    /// commit, with which the key would be stored.
    pub fn hand_over_writer(&self, writer: &str, owner: &str) -> Result<bool> {
        writers::hand_over(&self.open.transactions, writer, owner)
    }

    /// Names the API key whose a writer is, if it has committed under one.
    #[must_use]
    pub fn writer_owner(&self, writer: &str) -> Option<String> {
        self.open.transactions.table.owner(writer)
    }

    /// The topics of the rows that stages of a writer hold: of those parts that are there.
    pub fn staged_topics(&self, writer: &str, stages: &[TxnStage<'_>]) -> Result<BTreeSet<String>> {
        gather::topics(&self.open.transactions, writer, stages)
    }

    /// The writers whose names begin with `prefix` and come after `after`, by name.
    #[must_use]
    pub fn writers(&self, prefix: &str, after: Option<&str>) -> Vec<WriterSummary> {
        let txns = &self.open.transactions;
        let mut all: BTreeMap<String, WriterSummary> = BTreeMap::new();
        for (writer, epoch) in txns.table.epochs() {
            all.entry(writer).or_default().last_epoch = Some(epoch);
        }
        for (writer, records, bytes) in txns.staging.sizes() {
            let one = all.entry(writer).or_default();
            one.records += records;
            one.bytes += bytes;
        }
        let wanted = |w: &str| w.starts_with(prefix) && after.is_none_or(|after| w > after);
        let all = all.into_iter().filter(|(writer, _)| wanted(writer));
        all.map(|(writer, one)| WriterSummary { writer, ..one }).collect()
    }
}
