//! Layouts.
pub mod attrs;
pub mod frame;
