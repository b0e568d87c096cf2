//! Closing an engine.

use std::sync::Arc;
use std::time::Duration;

use super::background;
use super::open_engine::OpenEngine;
use crate::checkpoint::Store;
use crate::checkpoint::round::checkpoint;
use crate::types::error::{Error, Result};

/// How long a close waits for requests to the object store, those of a base included, and again for those
/// of the last round.
const REMOTE_WAIT: Duration = Duration::from_secs(2);

/// Closes an engine: refuses further batches and wakes every waiter. When it returns no file is open and
/// no thread runs, even if the caller still has handles of the engine.
pub(crate) fn close(engine: &Arc<OpenEngine>) -> Result<()> {
    publish_base(engine);
    if !engine.ctx().begin_close() {
        return Ok(());
    }
    // Callers that wait for the store are answered, and its requests end within this time.
    if let Some(remote) = &engine.base().options.remote {
        remote.store.end_within(REMOTE_WAIT);
    }
    if let Some(cold) = &engine.base().cold {
        cold.close();
    }
    engine.stop_background();
    if let Some(archiver) = &engine.archiver {
        archiver.stop();
    }
    if let Some(shipper) = &engine.shipper {
        shipper.stop();
    }
    engine.deliverer.workers.close();
    engine.queues.claim_waiters.close();
    engine.ctx().calls.close();
    let outcome = if engine.ctx().frozen() { Ok(true) } else { close_clean(engine.store()) };
    let is_clean = *outcome.as_ref().unwrap_or(&false);
    if let Some(shipper) =
        engine.shipper.as_ref().filter(|_| outcome.is_ok() && !engine.ctx().frozen())
    {
        shipper.ship_last(REMOTE_WAIT);
    }
    engine.catalog().table.loaded.each(|t| t.gate.release());
    let closed = engine.ctx().wal.close(is_clean).map_err(Error::from);
    engine.ctx().wal.release_files();
    engine.base().segments.close();
    // From here on no handle can write.
    drop(engine.ctx().lock.lock().take());
    engine.base().env.fs.release();
    outcome?;
    shortage_is_no_failure(closed, "the log is not marked as closed")
}

/// Publishes a base of continuous backup if the last round needs one: without it nothing that a short run
/// has written could be restored. One attempt. Other callers may still write: the last round has that.
fn publish_base(engine: &OpenEngine) {
    let (Some(archiver), Some(shipper)) = (&engine.archiver, &engine.shipper) else { return };
    if engine.ctx().check_writable().is_err()
        || engine.ctx().check_open().is_err()
        || !shipper.needs_last_base()
    {
        return;
    }
    shipper.begin_close();
    if let Some(remote) = &engine.base().options.remote {
        remote.store.end_within(REMOTE_WAIT);
    }
    let published = archiver.archive_last();
    if let Err(e) = published
        && !shipper.is_refused()
    {
        log::warn!(
            "closing: what was written since the open is not in the object store; the next open ships \
             it: {e}"
        );
    }
}

/// Lowers the reservations, syncs, and writes two snapshots, so that the next open reads only the newest
/// log file. Without space or descriptors for these the next open reads more of the log. Returns whether
/// that open may skip its sweep: no file and no folder is left that these snapshots do not name, and no
/// power cut brings one back.
fn close_clean(store: &Arc<Store>) -> Result<bool> {
    shortage_is_no_failure(
        background::lower_all(store.catalog()),
        "reserved seqs are not given back",
    )?;
    for shard in 0..store.ctx().wal.shards() {
        store.ctx().wal.sync(shard)?;
        if let Err(e) = store.ctx().wal.shrink_before_close(shard) {
            log::warn!("the next open reads more of the log than it needs: {e}");
        }
    }
    for _ in 0..2 {
        shortage_is_no_failure(checkpoint(store).map(drop), "no snapshot is written at the end")?;
    }
    match store.base().segments.sync_removals().map_err(Error::from) {
        Err(e) if e.is_shortage() => {
            log::warn!("closing: the next open looks for removed files: {e}");
            Ok(false)
        }
        synced => synced.map(|()| store.disk.checkpoints.is_trimmed()),
    }
}

/// Ignores a shortage of space or descriptors: the step only makes the next open faster, and all acked
/// records are durable without it.
fn shortage_is_no_failure(done: Result<()>, left: &str) -> Result<()> {
    match done {
        Err(e) if e.is_shortage() => {
            log::warn!("closing: {left}: {e}");
            Ok(())
        }
        done => done,
    }
}
