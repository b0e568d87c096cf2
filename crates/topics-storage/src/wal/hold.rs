//! What a copy of the log elsewhere needs: a consistent cut, and files that stay until they are copied.

use topics_env::sync::atomic::Ordering;

use super::Wal;
use super::rotation::FIRST_GROUP;
use super::shard::Shard;

/// The offset of the first frame after the Start of a file.
pub const FIRST_FRAME: u64 = FIRST_GROUP;

/// The hold of a shard without a copy.
pub(super) const NO_HOLD: u64 = u64::MAX;

impl Wal {
    /// The last written lsn of every shard, at one moment. What was visible when a batch was decided
    /// was written before it, so that the cut has it if it has the batch.
    #[must_use]
    pub fn cut(&self) -> Vec<u64> {
        let states: Vec<_> = self.shards.iter().map(|s| s.state.lock()).collect();
        states.iter().map(|st| st.progress.written_lsn()).collect()
    }

    /// From now on no trim removes a file with a frame above `lsn`.
    pub fn hold(&self, shard: usize, lsn: u64) {
        self.shards[shard].hold.store(lsn, Ordering::SeqCst);
    }

    /// Trims decide alone which files they remove.
    pub fn release_holds(&self) {
        for shard in &self.shards {
            shard.hold.store(NO_HOLD, Ordering::SeqCst);
        }
    }

    /// Whether the last trim of a shard left a file because of a hold.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.shards.iter().any(|s| s.is_held.load(Ordering::Relaxed))
    }
}

impl Shard {
    /// The lsn up to which a trim to `lsn` may remove files.
    pub(super) fn held_below(&self, lsn: u64) -> u64 {
        let hold = self.hold.load(Ordering::SeqCst);
        match hold == NO_HOLD || self.shared.env.check("wal.hold", lsn <= hold) {
            true => lsn,
            false => hold,
        }
    }
}
