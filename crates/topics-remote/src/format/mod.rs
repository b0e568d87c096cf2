//! Objects and their keys, byte by byte.
//!
//! * [`keys`]: the keys of all objects.
//! * [`sealed`]: the header and the footer of every immutable object.
//! * [`pack`]: files of the data directory, verbatim.
//! * [`base`]: a snapshot, and where everything is that it names.
//! * [`round`]: shipped parts of the log.
//! * [`head`]: HEAD, the only object that is replaced.

#![doc = include_str!("../../FORMAT.md")]

mod fields;

pub mod base;
pub mod head;
pub mod keys;
pub mod pack;
pub mod round;
pub mod sealed;
