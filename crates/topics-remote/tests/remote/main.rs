//! The remote over a simulated object store.
#![allow(clippy::unwrap_used, clippy::panic)]

mod claims;
mod damage;
#[cfg(feature = "s3")]
mod gateway;
mod hangs;
mod history;
mod inspect;
mod owners;
mod resolver;
mod stores;
mod support;
mod turns;
