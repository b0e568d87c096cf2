//! Object storage: what is written to an object store, and how.
//!
//! * [`mod@format`]: packs, bases, rounds, HEAD and their keys; `FORMAT.md` describes them byte by byte.
//! * [`claim`]: whose a prefix is.
//! * [`resolve`]: the only functions that write objects. They find out what became of a request
//!   whose answer was lost.
//! * [`writer`]: the owner of a prefix: fencing, rounds, bases.
//! * [`history`]: a base and the rounds after it, for a restore.
//! * [`read`]: objects read and verified.
//! * [`probe`]: whether a server has the features that these need.
//! * [`inspect`]: a prefix seen from outside: its status, its verification.
//! * [`store`]: the stores.

pub mod claim;
mod error;
pub mod format;
pub mod history;
pub mod inspect;
mod objects;
pub mod probe;
pub mod read;
pub mod resolve;
mod retry;
pub mod store;
pub mod writer;

pub use error::{RemoteError, Result};
pub use retry::{Attempts, Retry};
