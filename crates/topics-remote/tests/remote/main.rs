//! The remote over a simulated object store.
#![allow(clippy::unwrap_used, clippy::panic)]

mod damage;
#[cfg(feature = "s3")]
mod gateway;
mod owners;
mod resolver;
mod stores;
mod support;
mod turns;
