//! Closing an engine.

use std::sync::Arc;

use super::background;
use super::core::Core;
use crate::checkpoint::round::checkpoint;
use crate::types::error::{Error, Result};

/// Closes an engine: nothing more is staged, every waiter is woken. When it returns nothing is open
/// and no thread runs, also where the caller still has handles of the engine.
pub(crate) fn close(core: &Arc<Core>) -> Result<()> {
    if !core.begin_close() {
        return Ok(());
    }
    core.stop_background();
    core.deliverer.delivery.close();
    core.queues.claim_waiters.close();
    let outcome = if core.frozen() { Ok(()) } else { close_clean(core) };
    core.table.loaded.each(|t| t.gate.release());
    let closed = core.wal.close(outcome.is_ok()).map_err(Error::from);
    core.wal.release_files();
    core.segments.close();
    // From here on nothing is written, also through handles that are still referenced.
    drop(core.lock.lock().take());
    core.env.fs.release();
    outcome.and(shortage_is_no_failure(closed, "the log is not marked as closed"))
}

/// Nothing reserved stays, everything is durable, and two snapshots leave no log but the newest
/// file to be read; without room or descriptors for these the next open reads more of the log.
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

/// What a close does for the next open is not owed: without space or descriptors it is left undone,
/// and everything that was acked is durable all the same.
fn shortage_is_no_failure(done: Result<()>, left: &str) -> Result<()> {
    match done {
        Err(e) if e.is_shortage() => {
            log::warn!("closing: {left}: {e}");
            Ok(())
        }
        done => done,
    }
}
