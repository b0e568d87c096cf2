//! topics-wire
