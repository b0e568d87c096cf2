//! Verbs on topics by name: each finds or creates the topic, and tries again if it was deleted or
//! replaced meanwhile.
//!
//! | module | does |
//! |---|---|
//! | `append` | writes, blocking and asynchronous |
//! | `lifecycle` | creates, updates, deletes |
//! | `load` | refuses writes above the limits of the engine |

pub(crate) mod append;
pub(crate) mod lifecycle;
pub(crate) mod load;

pub(crate) use self::append::{append, append_async, check_topics, forward, perform, submit};
pub use self::lifecycle::Existing;
pub(crate) use self::lifecycle::{create, delete};
pub(crate) use self::load::check_load;
