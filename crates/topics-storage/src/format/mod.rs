//! Offsets, magic numbers and endianness of the log; no other module knows them.
//!
//! * [`frame`]: the length-prefixed, checksummed unit.
//! * [`codec`]: how structures are encoded.
//! * [`attrs`]: a record's optional attributes.
//! * [`record`]: the bodies of control frames, one file per family.
//! * [`wal_file`]: names and headers of WAL files, `CURRENT`.
//! * [`health`]: `HEALTH`, the write-back state of a log.
//!
#![doc = include_str!("../../FORMAT.md")]

pub mod attrs;
pub mod codec;
pub mod frame;
pub mod health;
pub mod record;
pub mod wal_file;
