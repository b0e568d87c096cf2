//! When a round is due.

use std::time::Duration;

use topics_env::sync::atomic::Ordering;

use super::Store;
use crate::topic::ROUNDS_TO_FREE;

/// Maximum time between two rounds on a full disk, or without descriptors.
const SHORTAGE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between the round after a delete and the one that removes the files.
const SECOND_ROUND: Duration = Duration::from_millis(500);
/// Logged bytes that are not worth a round, such as the mark of the last one.
const CHECKPOINT_MIN: u64 = 1024;

impl Store {
    /// Records that a scheduled round begins.
    pub(crate) fn round_begins(&self) {
        self.last_round.store(self.base().time.mono_ms(), Ordering::Relaxed);
    }

    /// Checks the size of the log and whether every shard has its next file.
    pub(crate) fn refresh_load(&self) {
        self.refresh_space();
        let full = self.ctx().wal.bytes_on_disk() > self.base().options.wal_max_bytes;
        self.wal_full.store(full, Ordering::Relaxed);
    }

    /// Whether the last refresh found the log over its limit.
    pub(crate) fn wal_is_full(&self) -> bool {
        self.wal_full.load(Ordering::Relaxed)
    }

    /// Whether enough was logged, or enough time has passed, for a checkpoint.
    pub(crate) fn checkpoint_due(&self) -> bool {
        let logged = self.ctx().wal.counters().bytes;
        let fresh = logged.saturating_sub(self.disk.logged_at_round.load(Ordering::Relaxed));
        let last = self.last_round.load(Ordering::Relaxed);
        let waited = self.base().time.mono_ms().saturating_sub(last);
        let interval = self.base().options.checkpoint_interval;
        // Trimming follows the older of two snapshots: one more round than there are changes.
        let settled = self.disk.settled_rounds.load(Ordering::Relaxed) >= 2;
        let put_off = self.disk.put_off.load(Ordering::Relaxed);
        if put_off || (self.short_of_space() && (fresh > 0 || !settled)) {
            return waited >= interval.min(SHORTAGE_INTERVAL).as_millis() as u64;
        }
        let owed = self.base().owed_rounds.load(Ordering::Relaxed);
        if owed > 0
            && owed < ROUNDS_TO_FREE
            && waited >= interval.min(SECOND_ROUND).as_millis() as u64
        {
            return true;
        }
        fresh >= self.base().options.checkpoint_bytes
            || self.base().resident_bytes() > self.base().options.memory_bytes
            || ((fresh > CHECKPOINT_MIN || owed > 0 || self.replaced.load(Ordering::Relaxed))
                && waited >= interval.as_millis() as u64)
    }
}
