//! topics-storage
