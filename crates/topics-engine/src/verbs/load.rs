//! Limits of the engine as a whole.

use std::sync::Arc;

use crate::checkpoint::{Store, round};
use crate::ctx::Wait;
use crate::types::error::{Error, Result};

/// Refuses a write above the limits of the engine. A caller that may wait runs a checkpoint first.
/// Returns the time that this took, ns; `None`: an asynchronous write must wait for a checkpoint.
pub(crate) fn check_load(store: &Arc<Store>, bytes: u64, wait: Wait) -> Result<Option<u64>> {
    check_limits(store, bytes)?;
    if !store.is_memory_full() {
        // An asynchronous write does not overtake those that wait.
        return Ok((wait != Wait::No || !store.memory.any()).then_some(0));
    }
    if wait == Wait::No {
        // Without a thread that runs checkpoints, a write would wait for its own caller.
        return if store.base().options.background { Ok(None) } else { Err(memory_full(store)) };
    }
    let began = store.base().time.mono_ns();
    let _waiting = store.memory.begin_wait();
    for shard in 0..store.ctx().wal.shards() {
        if store.ctx().wal.poisoned(shard).is_none() {
            store.ctx().wal.sync(shard)?;
        }
    }
    round::free_memory(store)?;
    if store.is_memory_full() {
        return Err(memory_full(store));
    }
    Ok(Some(store.base().time.mono_ns().saturating_sub(began)))
}

/// Refuses a write above the limits for which no write waits.
pub(crate) fn check_limits(store: &Arc<Store>, bytes: u64) -> Result<()> {
    store.ctx().check_writable()?;
    let (base, max) = (store.base(), store.base().options.max_total_bytes);
    if max > 0 && base.live_bytes().saturating_add(bytes) > max {
        return Err(base.throttled("max_total_bytes", max, 1000));
    }
    if store.wal_is_full() {
        return Err(base.throttled("wal_bytes", base.options.wal_max_bytes, 1000));
    }
    Ok(())
}

/// The refusal of a write that has waited for a checkpoint, or may not wait.
pub(crate) fn memory_full(store: &Store) -> Error {
    store.base().throttled("memory_bytes", store.base().options.memory_bytes, 100)
}
