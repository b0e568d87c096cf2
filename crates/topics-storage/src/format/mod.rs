//! Layouts.
pub mod frame;
