//! classes
