//! The bytes on disk: write-ahead log, group commit, segments, snapshot. Payloads are opaque to
//! this crate.

pub mod backup;
pub mod checkpoint;
pub mod dir;
mod error;
pub mod format;
mod histogram;
mod ranges;
pub mod recovery;
pub mod segment;
pub mod snapshot;
pub mod txn;
pub mod wal;

pub use error::{Result, StorageError};
pub use histogram::{BUCKETS, HistogramSnapshot, bucket_of};
pub use ranges::ranges_of;
