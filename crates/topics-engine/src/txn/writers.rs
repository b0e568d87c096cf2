//! Remembered writers: their limits, and which of them is forgotten.
//!
//! A writer's last epoch makes its commits exactly-once, so it is remembered. At a limit, the writer that
//! has been idle for longest, and for at least the time to live, is forgotten: of the same API key if
//! that key is at its limit, else of all. A writer with staged rows, or with an open decision, is never
//! forgotten. Forgetting a writer is logged.

use std::sync::Arc;

use topics_storage::format::record::TxnDone;
use topics_storage::wal::Level;

use super::Transactions;
use super::publish;
use super::table::{KEYED, NewWriter, WriterLimits, WriterLock};
use crate::topic::events::Ctx;
use crate::types::error::Result;
use crate::types::name;
use crate::types::quota::Charge;

/// The reservation of a decision on the limits, until it is applied.
#[derive(Debug)]
pub(crate) struct Admission<'a> {
    _writer: Option<NewWriter<'a>>,
    _key: Option<Charge>,
}

/// Reserves the entry of a transaction's writer or key, or refuses it. The caller has the writer's lock.
pub(crate) fn admit<'a>(
    txns: &'a Arc<Transactions>,
    writer: &str,
    owner: &str,
) -> Result<Admission<'a>> {
    let key = writer.starts_with(KEYED).then(|| txns.base().keys.take(1)).transpose();
    let key = txns.base().counted(key)?;
    let o = &txns.base().options;
    let limits = WriterLimits { all: o.max_txn_writers, per_key: o.max_txn_writers_per_key };
    loop {
        let full = match txns.table.reserve(writer, owner, limits) {
            Ok(writer) => return Ok(Admission { _writer: writer, _key: key }),
            Err(full) => full,
        };
        if !forget_idle(txns, full.per_key.then_some(owner))? {
            let (limit, max) = match full.per_key {
                true => ("max_txn_writers_per_key", limits.per_key),
                false => ("max_txn_writers", limits.all),
            };
            return Err(txns.base().throttled(limit, max, 1000));
        }
    }
}

/// Forgets the writer, of one owner or of all, that is idle for longest. Returns false if there is none
/// to forget.
fn forget_idle(txns: &Arc<Transactions>, owner: Option<&str>) -> Result<bool> {
    let ttl = u64::try_from(txns.base().options.txn_writer_ttl.as_millis()).unwrap_or(u64::MAX);
    let Some(before) = txns.base().time.steady().checked_sub(ttl) else { return Ok(false) };
    let mut busy: Vec<String> = Vec::new();
    loop {
        let kept = |w: &str| txns.staging.has_rows(w) || busy.iter().any(|b| b == w);
        let Some(writer) = txns.table.oldest_idle(owner, before, kept) else { return Ok(false) };
        match txns.table.try_lock_writer(&writer) {
            // The writer may have committed or staged since.
            Some(_lock)
                if txns.table.idle_since(&writer).is_some_and(|at| at <= before)
                    && !txns.staging.has_rows(&writer) =>
            {
                log::info!("transaction writer {writer:?} is forgotten: it was idle for longest");
                log_forgotten(txns.ctx(), &writer, Level::Written)?;
                return Ok(true);
            }
            _ => busy.push(writer),
        }
    }
}

/// Locks a writer, with its decided transactions finished.
fn lock_finished<'c>(txns: &'c Arc<Transactions>, writer: &str) -> Result<WriterLock<'c>> {
    name::check(writer)?;
    txns.ctx().check_open()?;
    txns.ctx().check_writable()?;
    let lock = txns.table.lock_writer(writer);
    for (writer, epoch) in txns.table.all_open(Some(writer)) {
        publish::finish(txns, &writer, epoch)?;
    }
    Ok(lock)
}

/// Forgets a writer and aborts its stages. Returns false if there is none.
pub(crate) fn forget(txns: &Arc<Transactions>, writer: &str) -> Result<bool> {
    let _lock = lock_finished(txns, writer)?;
    let staged = txns.staging.abort_all(&txns.table, writer);
    if staged && txns.ctx().wal.poisoned(0).is_none() {
        txns.staging.sweep(&txns.table, txns.ctx().wal.positions(0).synced)?;
    }
    let known = txns.table.idle_since(writer).is_some();
    if known {
        log_forgotten(txns.ctx(), writer, Level::Synced)?;
    }
    Ok(known || staged)
}

/// Makes a writer belong to another owner. Returns false if it has no last epoch, which has the owner.
pub(crate) fn hand_over(txns: &Arc<Transactions>, writer: &str, owner: &str) -> Result<bool> {
    let _lock = lock_finished(txns, writer)?;
    // The end of the last transaction is logged again, with the new owner.
    let Some(body) = txns.table.last_end(writer, owner) else { return Ok(false) };
    publish::log_end(txns.ctx(), &body, Level::Synced)?;
    Ok(true)
}

fn log_forgotten(ctx: &Arc<Ctx>, writer: &str, level: Level) -> Result<()> {
    let (writer, owner) = (writer.to_owned(), String::new());
    let body = TxnDone {
        writer,
        epoch: 0,
        topics: Vec::new(),
        owner,
        forgets: true,
        query: String::new(),
    };
    publish::log_end(ctx, &body, level)
}
