//! Topics: what a topic-log promises, over `topics-storage`.
//!
//! The API is synchronous and knows neither JSON nor HTTP nor Python.
#![deny(missing_docs)]

mod api;
mod config;
mod engine;
mod error;

pub use api::{
    Append, Appended, CreatedTopic, DeleteRequest, Deleted, DeletedTopic, Durability, Gap,
    GapReason, NewRecord, NodeFilter, ReadBatch, ReadFrom, ReadRequest, RecordView, Tombstone,
    TopicMatch, TopicState, TopicSummary,
};
pub use config::{ConfigPatch, Discard, TopicConfig, TopicType};
pub use engine::{Completion, Engine, Options};
pub use error::{Error, Result};
