//! Limits of the engine as a whole.

use std::sync::Arc;

use crate::checkpoint::{Store, round};
use crate::ctx::Wait;
use crate::types::error::Result;

/// Refuses a write above the limits of the engine. A caller that may wait runs a checkpoint first.
/// Returns the time that this took, ns.
pub(crate) fn check_load(store: &Arc<Store>, bytes: u64, wait: Wait) -> Result<u64> {
    store.ctx().check_writable()?;
    let o = &store.base().options;
    let refuse = |limit, max, after_ms| Err(store.base().throttled(limit, max, after_ms));
    if o.max_total_bytes > 0 && store.base().live_bytes().saturating_add(bytes) > o.max_total_bytes
    {
        return refuse("max_total_bytes", o.max_total_bytes, 1000);
    }
    if store.wal_is_full() {
        return refuse("wal_bytes", o.wal_max_bytes, 1000);
    }
    let most = o.memory_bytes.saturating_mul(2);
    if store.base().resident_bytes() <= most {
        return Ok(0);
    }
    let began = store.base().time.mono_ns();
    if wait != Wait::No {
        for shard in 0..store.ctx().wal.shards() {
            if store.ctx().wal.poisoned(shard).is_none() {
                store.ctx().wal.sync(shard)?;
            }
        }
        round::checkpoint(store)?;
    }
    if store.base().resident_bytes() > most {
        return refuse("memory_bytes", o.memory_bytes, 100);
    }
    Ok(store.base().time.mono_ns().saturating_sub(began))
}
