//! Names and ids of topics, loaded or not.

pub(crate) mod ids;
pub(crate) mod unloaded;
