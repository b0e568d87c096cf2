//! The progress of a recovery, for other threads to read.

use topics_env::sync::atomic::{AtomicU64, Ordering};

const MILLION: u64 = 1_000_000;

/// How many frames an open has replayed, and how many it will. Other threads read it while the open
/// runs. The total is known after the log was read once.
#[derive(Debug, Default)]
pub struct RecoveryProgress {
    replayed: AtomicU64,
    /// The number of frames to replay plus 1; 0: not known yet.
    planned: AtomicU64,
}

impl RecoveryProgress {
    /// Frames replayed so far.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// The replayed share of the frames in millionths; never decreases. 1 000 000 if there are no frames
    /// to replay.
    #[must_use]
    pub fn ppm(&self) -> u64 {
        match self.planned.load(Ordering::Acquire) {
            0 => 0,
            1 => MILLION,
            n => self.replayed().min(n - 1).saturating_mul(MILLION) / (n - 1),
        }
    }

    /// Sets the number of frames to replay.
    pub(super) fn plan(&self, frames: u64) {
        self.planned.store(frames + 1, Ordering::Release);
    }

    /// Sets the number of replayed frames.
    pub(super) fn reached(&self, frames: u64) {
        self.replayed.store(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_what_is_planned() {
        let p = RecoveryProgress::default();
        assert_eq!((p.ppm(), p.replayed()), (0, 0));
        p.plan(4);
        assert_eq!(p.ppm(), 0);
        p.reached(3);
        assert_eq!((p.ppm(), p.replayed()), (750_000, 3));
        p.reached(4);
        assert_eq!(p.ppm(), MILLION);
    }

    #[test]
    fn nothing_to_replay_is_all() {
        let p = RecoveryProgress::default();
        p.plan(0);
        assert_eq!((p.ppm(), p.replayed()), (MILLION, 0));
    }
}
