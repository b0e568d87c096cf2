//! delete
