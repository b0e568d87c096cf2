//! Closing an engine.

use std::sync::Arc;
use std::time::Duration;

use super::background;
use super::core::Core;
use crate::checkpoint::round::checkpoint;
use crate::types::error::{Error, Result};

/// How long a close waits for requests to the object store, those of a base included, and again for those
/// of the last round.
const REMOTE_WAIT: Duration = Duration::from_secs(2);

/// Closes an engine: refuses further batches and wakes every waiter. When it returns no file is open and
/// no thread runs, even if the caller still has handles of the engine.
pub(crate) fn close(core: &Arc<Core>) -> Result<()> {
    publish_base(core);
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
    let outcome = if core.frozen() { Ok(true) } else { close_clean(core) };
    let is_clean = *outcome.as_ref().unwrap_or(&false);
    if let Some(shipper) = core.shipper.as_ref().filter(|_| outcome.is_ok() && !core.frozen()) {
        shipper.ship_last(REMOTE_WAIT);
    }
    core.table.loaded.each(|t| t.gate.release());
    let closed = core.wal.close(is_clean).map_err(Error::from);
    core.wal.release_files();
    core.segments.close();
    // From here on no handle can write.
    drop(core.lock.lock().take());
    core.env.fs.release();
    outcome?;
    shortage_is_no_failure(closed, "the log is not marked as closed")
}

/// Publishes a base of continuous backup, unless there is one since the open: without it nothing that a
/// short run has written could be restored. One attempt. Other callers may still write: the last round
/// has that.
fn publish_base(core: &Core) {
    let (Some(archiver), Some(shipper)) = (&core.archiver, &core.shipper) else { return };
    if !shipper.needs_base() || core.check_writable().is_err() || core.check_open().is_err() {
        return;
    }
    if let Some(remote) = &core.options.remote {
        remote.store.end_within(REMOTE_WAIT);
    }
    let published = shipper.ship().and_then(|_| archiver.archive_if_due());
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
fn close_clean(core: &Arc<Core>) -> Result<bool> {
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
    match core.segments.sync_removals().map_err(Error::from) {
        Err(e) if e.is_shortage() => {
            log::warn!("closing: the next open looks for removed files: {e}");
            Ok(false)
        }
        synced => synced.map(|()| core.disk.checkpoints.is_trimmed()),
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
