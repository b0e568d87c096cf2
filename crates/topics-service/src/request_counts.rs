//! Counts and durations of the requests that a server's native protocol answers. The application,
//! which writes the metrics, counts its own in the same way.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Requests of one verb with one status.
#[derive(Debug, Default)]
struct Count {
    total_ns: u64,
    /// Requests by duration; the last bucket has no bound.
    buckets: Vec<u64>,
}

/// A verb, a status, the nanoseconds of all its requests, and how many there are in each bucket.
pub type RequestCount = (&'static str, u16, u64, Vec<u64>);

/// Counts by verb and status.
#[derive(Debug)]
pub struct RequestCounts {
    /// Upper bounds of the buckets, rising.
    bounds_ns: Vec<u64>,
    requests: Mutex<BTreeMap<(&'static str, u16), Count>>,
}

impl RequestCounts {
    /// No requests yet; `bounds_ns` are the upper bounds of the buckets, rising.
    #[must_use]
    pub fn new(bounds_ns: Vec<u64>) -> Self {
        Self { bounds_ns, requests: Mutex::default() }
    }

    /// Counts a request that took `elapsed_ns`.
    pub fn add(&self, verb: &'static str, status: u16, elapsed_ns: u64) {
        let bucket = self.bounds_ns.partition_point(|bound| *bound < elapsed_ns);
        let mut requests = self.requests.lock();
        let count = requests.entry((verb, status)).or_default();
        count.total_ns = count.total_ns.saturating_add(elapsed_ns);
        count.buckets.resize(self.bounds_ns.len() + 1, 0);
        if let Some(slot) = count.buckets.get_mut(bucket) {
            *slot += 1;
        }
    }

    /// All counts since the start.
    #[must_use]
    pub fn rows(&self) -> Vec<RequestCount> {
        let requests = self.requests.lock();
        let row = |(&(verb, status), count): (&(&'static str, u16), &Count)| {
            (verb, status, count.total_ns, count.buckets.clone())
        };
        requests.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::RequestCounts;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let counts = RequestCounts::new(vec![10, 100]);
        for elapsed in [0, 10, 11, 100, 101, u64::MAX] {
            counts.add("write", 200, elapsed);
        }
        counts.add("diff", 404, 50);
        assert_eq!(
            counts.rows(),
            vec![("diff", 404, 50, vec![0, 1, 0]), ("write", 200, u64::MAX, vec![2, 2, 2]),]
        );
    }
}
