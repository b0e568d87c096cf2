//! Objects and their keys, byte by byte.
//!
//! * [`keys`]: the keys of all objects.
//! * [`sealed`]: the header and the footer of every immutable object.
//! * [`pack`]: segments, as they are in their files.
//! * [`round`]: shipped parts of the log.
//! * [`catalog`]: what a prefix holds.
//! * [`head`]: HEAD, the only object that is replaced.

#![doc = include_str!("../../FORMAT.md")]

mod fields;

pub mod catalog;
pub mod head;
pub mod keys;
pub mod pack;
pub mod pin;
pub mod round;
pub mod sealed;
