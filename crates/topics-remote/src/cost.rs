//! An estimate of what a prefix costs, by the list prices of Amazon S3 Standard in us-east-1.

/// Dollars for a GiB and month.
const STORAGE: f64 = 0.023;
/// Dollars for a request that writes or lists.
const WRITE: f64 = 0.005 / 1000.0;
/// Dollars for a request that reads.
const READ: f64 = 0.0004 / 1000.0;

/// Dollars for these bytes, for a month.
#[must_use]
pub fn storage_per_month(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30) * STORAGE
}

/// Dollars for requests. Deletes are free.
#[must_use]
pub fn requests(writes: u64, reads: u64) -> f64 {
    writes as f64 * WRITE + reads as f64 * READ
}
