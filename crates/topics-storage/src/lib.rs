//! Bytes on disk: write-ahead log, group commit, segments, snapshot. Payloads are opaque here.
#![deny(missing_docs)]

pub mod checkpoint;
pub mod dir;
mod error;
pub mod format;
pub mod recovery;
pub mod segment;
pub mod snapshot;
pub mod txn;
pub mod wal;

pub use error::{Result, StorageError};
