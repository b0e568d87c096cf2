//! Bounded resources: a charge releases its part when it is dropped.

use std::sync::Arc;

use topics_env::sync::atomic::{AtomicU64, Ordering};

use super::error::{Error, Result};

/// A bounded amount of something, shared by all topics.
#[derive(Debug)]
pub(crate) struct Quota {
    limit: &'static str,
    max: u64,
    used: AtomicU64,
}

impl Quota {
    /// A quota of `max` (0: no limit) that refuses under the name `limit`.
    pub(crate) fn new(limit: &'static str, max: u64) -> Arc<Self> {
        Arc::new(Self { limit, max, used: AtomicU64::new(0) })
    }

    /// Charges `n`, or refuses if that exceeds the limit.
    pub(crate) fn take(self: &Arc<Self>, n: u64) -> Result<Charge> {
        let took = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let after = used.saturating_add(n);
            (self.max == 0 || after <= self.max).then_some(after)
        });
        match took {
            Ok(_) => Ok(Charge { quota: self.clone(), n }),
            Err(_) => {
                Err(Error::Throttled { limit: self.limit, max: self.max, retry_after_ms: 1000 })
            }
        }
    }

    /// Charges `n`, even over the limit.
    pub(crate) fn force(self: &Arc<Self>, n: u64) -> Charge {
        self.used.fetch_add(n, Ordering::Relaxed);
        Charge { quota: self.clone(), n }
    }

    /// The amount that is charged now.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// A part of a [`Quota`]; released when dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    quota: Arc<Quota>,
    n: u64,
}

impl Charge {
    /// Charges more, or refuses if that exceeds the limit.
    pub(crate) fn grow(&mut self, n: u64) -> Result<()> {
        let mut more = self.quota.take(n)?;
        more.n = 0;
        self.n += n;
        Ok(())
    }

    /// Charges more, even over the limit.
    pub(crate) fn force(&mut self, n: u64) {
        self.quota.used.fetch_add(n, Ordering::Relaxed);
        self.n += n;
    }

    /// Releases a part before the drop.
    pub(crate) fn shrink(&mut self, n: u64) {
        let n = n.min(self.n);
        self.n -= n;
        self.quota.used.fetch_sub(n, Ordering::Relaxed);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.n, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_gives_back_what_it_took() {
        let q = Quota::new("things", 10);
        let mut a = q.take(6).unwrap();
        assert!(matches!(q.take(5), Err(Error::Throttled { limit: "things", max: 10, .. })));
        a.shrink(2);
        let b = q.take(6).unwrap();
        assert_eq!(q.used(), 10);
        drop(a);
        drop(b);
        assert_eq!(q.used(), 0);
        let _over = q.force(50);
        assert!(q.take(1).is_err());
    }

    #[test]
    fn zero_is_no_limit() {
        let q = Quota::new("things", 0);
        let _c = q.take(u64::MAX).unwrap();
        assert_eq!(q.used(), u64::MAX);
    }
}
