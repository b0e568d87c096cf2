//! Writing to a topic: prepare → admit → decide → stage → a batch on its way.

pub(crate) mod admit;
pub(crate) mod append_state;
pub(crate) mod control;
pub(crate) mod decide;
pub(crate) mod forward;
pub(crate) mod losses;
pub(crate) mod part;
pub(crate) mod pending_batch;
pub(crate) mod pending_writes;
pub(crate) mod prepare;
pub(crate) mod reserve;
pub(crate) mod shown;
pub(crate) mod stage;
