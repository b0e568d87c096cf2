//! The engine on real file systems: a child process works on a mounted disk and journals every call
//! outside of it; the parent ends the child, mounts the disk again, and checks every ack.
//!
//! * [`event`]: a line of the journal.
//! * [`payload`]: records that name the call that wrote them.
//! * [`judge`]: compares the journal with the audits.
//! * [`client`]: journaled verbs; [`audit`]: a journaled read of everything.
//! * [`scenario`]: the work of a child until its disk is full; [`child`]: its process.
//! * [`process`]: starts, watches and ends a child; [`mount`]: tmpfs, and ext4 on a loop device.
//! * [`full_disk`], [`power_cut`]: one run of each suite.

pub mod audit;
pub mod child;
pub mod client;
pub mod event;
pub mod full_disk;
pub mod judge;
pub mod mount;
pub mod payload;
pub mod power_cut;
pub mod process;
pub mod scenario;
