//! Closing an engine.

use std::sync::Arc;
use std::time::Duration;

use super::background;
use super::core::Core;
use crate::checkpoint::round::checkpoint;
use crate::types::error::{Error, Result};

/// How long a close waits for requests to the object store, and again for those of the last round.
const REMOTE_WAIT: Duration = Duration::from_secs(2);

/// Closes an engine: refuses further batches and wakes every waiter. When it returns no file is open and
/// no thread runs, even if the caller still has handles of the engine.
pub(crate) fn close(core: &Arc<Core>) -> Result<()> {
    if !core.begin_close() {
        return Ok(());
    }
    // Callers that wait for the store are answered, and its requests end within this time.
    if let Some(remote) = &core.options.remote {
        remote.store.end_within(REMOTE_WAIT);
    }
    if let Some(cold) = &core.cold {
        cold.close();
    }
    core.stop_background();
    if let Some(archiver) = &core.archiver {
        archiver.stop();
    }
    if let Some(shipper) = &core.shipper {
        shipper.stop();
    }
    core.deliverer.delivery.close();
    core.queues.claim_waiters.close();
    let outcome = if core.frozen() { Ok(()) } else { close_clean(core) };
    if let Some(shipper) = core.shipper.as_ref().filter(|_| outcome.is_ok() && !core.frozen()) {
        shipper.ship_last(REMOTE_WAIT);
    }
    core.table.loaded.each(|t| t.gate.release());
    let closed = core.wal.close(outcome.is_ok()).map_err(Error::from);
    core.wal.release_files();
    core.segments.close();
    // From here on no handle can write.
    drop(core.lock.lock().take());
    core.env.fs.release();
    outcome.and(shortage_is_no_failure(closed, "the log is not marked as closed"))
}

/// Lowers the reservations, syncs, and writes two snapshots, so that the next open reads only the newest
/// log file. Without space or descriptors for these the next open reads more of the log.
fn close_clean(core: &Arc<Core>) -> Result<()> {
    shortage_is_no_failure(background::lower_all(core), "reserved seqs are not given back")?;
    for shard in 0..core.wal.shards() {
        core.wal.sync(shard)?;
        if let Err(e) = core.wal.shrink_before_close(shard) {
            log::warn!("the next open reads more of the log than it needs: {e}");
        }
    }
    for _ in 0..2 {
        shortage_is_no_failure(checkpoint(core).map(drop), "no snapshot is written at the end")?;
    }
    Ok(())
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
