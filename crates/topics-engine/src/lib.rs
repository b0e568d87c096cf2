//! topics-engine
