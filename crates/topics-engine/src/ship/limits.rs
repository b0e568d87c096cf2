//! When a chain is broken on purpose: log files that are not shipped cost too much space.

use topics_env::sync::atomic::Ordering;

use super::Shipper;

/// The log may take this part of its limit before files are no longer held, so that a chain never is
/// the reason that a write is refused.
const LOG_PART: (u64, u64) = (3, 4);
/// Log files of the largest size that the disk has space for while files are held.
const SPARE_FILES: u64 = 4;
/// Bytes logged since the last round after which the next one is due immediately.
const ROUND_DUE: u64 = 8 << 20;

impl Shipper {
    /// Breaks the chain if a limit is reached. Called by the thread of checkpoints, which never waits
    /// for a request.
    pub(crate) fn check_limits(&self) {
        if !self.progress.is_holding.load(Ordering::Acquire) {
            return;
        }
        let (store, lag) = (&self.store, self.lag_bytes());
        if lag >= ROUND_DUE {
            self.thread.wake();
        }
        let max_held = self.owner.remote.limits.wal_bytes;
        if lag > max_held {
            let why = format!("{lag} bytes are not shipped, remote_wal_bytes is {max_held}");
            return self.break_chain(&why);
        }
        if !store.ctx().wal.is_held() {
            return;
        }
        let (log, max_log) = (store.ctx().wal.bytes_on_disk(), store.base().options.wal_max_bytes);
        let spare =
            SPARE_FILES * store.base().options.largest_wal_file() * store.ctx().wal.shards() as u64;
        let free = store.disk.checkpoints.free();
        if log > max_log / LOG_PART.1 * LOG_PART.0 {
            self.break_chain(&format!("the log has {log} bytes, wal_max_bytes is {max_log}"));
        } else if store.short_of_space() || free < spare {
            self.break_chain(&format!("the disk has {free} bytes left"));
        }
    }

    /// Gives up the log that is not shipped. A new base begins by itself.
    pub(super) fn break_chain(&self, why: &str) {
        self.progress.is_broken.store(true, Ordering::Release);
        self.release_hold();
        self.store.base().metrics.ship_chain_broken.add(1);
        self.owner.chain_broken(why);
        log::warn!(
            "continuous backup: the chain of rounds is broken: {why}; until the next base is \
             published, the newest state that can be restored is an older one"
        );
        let store = &self.store;
        // The next checkpoint is due soon; what older ones have freed is removed now.
        store.disk.put_off.store(true, Ordering::Relaxed);
        let _round = store.disk.round.lock();
        if let Err(e) = store.disk.checkpoints.trim(&store.ctx().wal) {
            log::warn!("log files are not removed: {e}");
        }
    }

    pub(super) fn release_hold(&self) {
        self.progress.is_holding.store(false, Ordering::Release);
        self.store.ctx().wal.release_holds();
    }

    /// Holds only what is above `lsn`, unless the chain was broken meanwhile.
    pub(super) fn raise_hold(&self, shard: usize, lsn: u64) {
        if !self.progress.is_holding.load(Ordering::Acquire) {
            return;
        }
        self.store.ctx().wal.hold(shard, lsn);
        if !self.progress.is_holding.load(Ordering::Acquire) {
            self.store.ctx().wal.release_holds();
        }
    }
}
