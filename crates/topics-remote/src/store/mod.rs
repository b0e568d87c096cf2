//! The stores, besides the simulated one of `topics-env/sim`.
//!
//! * [`folder`]: a folder of a file system, for `file:///…`.
//! * `s3` (feature `s3`): a bucket.

pub mod folder;
#[cfg(feature = "s3")]
pub mod s3;
