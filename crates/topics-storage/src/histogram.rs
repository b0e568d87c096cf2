//! A histogram of durations.

/// Buckets of a histogram.
pub const BUCKETS: usize = 32;

/// The bucket of a duration of `ns` nanoseconds: the `i`-th counts durations below `2^(i + 8)` ns, the
/// last one all others.
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    let bits = (64 - ns.leading_zeros()) as usize;
    bits.saturating_sub(8).min(BUCKETS - 1)
}

/// A histogram of durations at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Durations by bucket, see [`bucket_of`].
    pub buckets: [u64; BUCKETS],
    /// Number of durations.
    pub count: u64,
    /// Sum of the durations, in nanoseconds.
    pub sum_ns: u64,
}

impl HistogramSnapshot {
    /// Counts a duration of `ns` nanoseconds.
    pub(crate) fn record(&mut self, ns: u64) {
        self.buckets[bucket_of(ns)] += 1;
        self.count += 1;
        self.sum_ns += ns;
    }

    /// The durations of both histograms.
    pub(crate) fn plus(self, other: &Self) -> Self {
        Self {
            buckets: std::array::from_fn(|i| self.buckets[i] + other.buckets[i]),
            count: self.count + other.count,
            sum_ns: self.sum_ns + other.sum_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_below_the_bound_of_its_bucket() {
        for (ns, bucket) in
            [(0, 0), (255, 0), (256, 1), (511, 1), (512, 2), (u64::MAX, BUCKETS - 1)]
        {
            assert_eq!(bucket_of(ns), bucket, "{ns} ns");
        }
    }

    #[test]
    fn a_sum_has_the_durations_of_both() {
        let (mut a, mut b) = (HistogramSnapshot::default(), HistogramSnapshot::default());
        a.record(300);
        b.record(1);
        b.record(400);
        let sum = a.plus(&b);
        assert_eq!((sum.count, sum.sum_ns, &sum.buckets[..3]), (3, 701, &[1, 2, 0][..]));
    }
}
