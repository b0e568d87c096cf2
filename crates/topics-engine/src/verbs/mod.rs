//! What is asked of a topic by its name: the topic is found, or created, and may be another one by the
//! time that a verb comes to it.
//!
//! | part | does |
//! |---|---|
//! | `append` | writes, blocking and asynchronous |
//! | `lifecycle` | creates, updates, deletes |
//! | `load` | refuses what the engine as a whole has no room for |

pub(crate) mod append;
pub(crate) mod lifecycle;
pub(crate) mod load;

pub(crate) use self::append::{append, append_async, forward, perform, submit};
pub(crate) use self::lifecycle::{create, delete};
pub(crate) use self::load::check_load;
