//! Offsets, magic numbers and endianness of the log, known nowhere else.
//!
//! * [`frame`]: the length-prefixed, checksummed unit.
//! * [`codec`]: how structures are encoded.
//! * [`attrs`]: a record's optional attributes.
//! * [`record`]: the bodies of control frames, a file per family.
//! * [`wal_file`]: names and headers of WAL files, `CURRENT`.
//! * [`health`]: `HEALTH`, what is known of a log's write-back.
//!
#![doc = include_str!("../../FORMAT.md")]

pub mod attrs;
pub mod codec;
pub mod frame;
pub mod health;
pub mod record;
pub mod wal_file;
