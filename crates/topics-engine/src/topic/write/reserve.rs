//! Reservations of seqs ahead of the head, so that no seq is assigned twice after a crash.
//!
//! A topic that is not of class `fsync` acks and shows no seq above a *synced* reservation (I2).
//! `fsync` topics need none, because they ack and show only synced records.

use crate::types::api::Durability;

/// Minimum number of seqs that are reserved ahead.
pub(crate) const MIN: u64 = 1024;
/// Maximum number of seqs that are reserved ahead.
const MAX: u64 = 1 << 23;

/// The reservation of a topic, as its writers plan it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserve {
    /// The last reserved seq; staged or logged.
    pub to: u64,
    /// The head when it was decided.
    base: u64,
    /// When it was decided, monotonic ms.
    at: u64,
}

impl Reserve {
    /// The reservation of a new topic whose first write has `n` records. It need not be synced,
    /// because it is lost only with the topic's creation.
    pub(crate) fn first(class: Durability, n: u64, now: u64) -> Self {
        if class == Durability::Fsync {
            return Self::default();
        }
        Self { to: MIN.max(n.saturating_mul(2)), base: 0, at: now }
    }

    /// The reservation that recovery found.
    pub(crate) fn found(to: u64, head: u64, now: u64) -> Self {
        Self { to, base: head, at: now }
    }

    /// The reservation that a write up to `last` must log: `None` while less than half of the current
    /// one is used. It reserves about a second at the topic's rate.
    pub(crate) fn next(&self, class: Durability, last: u64, now: u64) -> Option<Self> {
        if class == Durability::Fsync {
            return None;
        }
        let half = self.base + self.to.saturating_sub(self.base) / 2;
        if last <= half {
            return None;
        }
        let used = last.saturating_sub(self.base);
        let elapsed = now.saturating_sub(self.at).max(1);
        let second = used.saturating_mul(1000) / elapsed;
        Some(Self { to: last + second.clamp(MIN, MAX), base: last, at: now })
    }

    /// Lowers the reservation after the batch with it failed: the log has it up to `to` at most. The
    /// next write that needs more reserves again.
    pub(crate) fn lost(&mut self, to: u64) {
        self.to = self.to.min(to);
        self.base = self.base.min(self.to);
    }

    /// Whether it is above `head` and was decided at least `idle_ms` ago.
    pub(crate) fn idle(&self, head: u64, now: u64, idle_ms: u64) -> bool {
        self.to > head && now.saturating_sub(self.at) >= idle_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsync_reserves_nothing() {
        assert_eq!(Reserve::first(Durability::Fsync, 5, 0).to, 0);
        assert!(Reserve::default().next(Durability::Fsync, 1, 0).is_none());
    }

    #[test]
    fn renewed_when_half_is_used() {
        let r = Reserve::first(Durability::Disk, 1, 0);
        assert_eq!(r.to, 1024);
        assert!(r.next(Durability::Disk, 512, 9).is_none());
        let next = r.next(Durability::Disk, 513, 1000).unwrap();
        assert_eq!(next.to, 513 + 1024);
        assert!(next.next(Durability::Disk, 513 + 512, 9).is_none());
    }

    #[test]
    fn i2_a_write_after_a_lost_reservation_reserves_anew() {
        let r = Reserve::found(3, 3, 0);
        let mut next = r.next(Durability::Disk, 5, 1000).unwrap();
        next.lost(3);
        assert_eq!(next.next(Durability::Disk, 5, 2000).unwrap().to, 5 + 1024);
        assert_eq!(next.next(Durability::Disk, 4, 2000).unwrap().to, 4 + 1024);
    }

    #[test]
    fn follows_the_rate_within_bounds() {
        let r = Reserve::first(Durability::Memory, 1, 0);
        assert_eq!(r.next(Durability::Memory, 1000, 10).unwrap().to, 1000 + 100_000);
        assert_eq!(r.next(Durability::Memory, 1_000_000, 1).unwrap().to, 1_000_000 + MAX);
        let big = Reserve::first(Durability::Disk, 10_000, 0);
        assert_eq!(big.to, 20_000);
    }

    #[test]
    fn idle_only_when_there_is_something_to_lower() {
        let r = Reserve::found(100, 100, 0);
        assert!(!r.idle(100, 60_000, 60_000));
        let r = Reserve::found(200, 100, 0);
        assert!(!r.idle(100, 59_999, 60_000) && r.idle(100, 60_000, 60_000));
    }
}
