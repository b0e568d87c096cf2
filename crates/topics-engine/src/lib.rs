//! Topics: what a topic-log promises, over `topics-storage`.
//!
//! The API is synchronous and knows neither JSON nor HTTP nor Python.
#![deny(missing_docs)]

mod api;
mod asleep;
mod capture;
mod clock;
mod config;
mod core;
mod delivery;
mod engine;
mod error;
mod ids;
mod jobs;
mod maintain;
mod meta;
mod metrics;
pub mod name;
mod options;
mod priority;
mod queue;
mod quota;
mod reclaim;
mod recovery;
mod router;
mod snapshot;
mod space;
mod survey;
mod topic;
mod txn;
mod verify;

pub use api::{
    Append, Appended, CreatedTopic, DeleteRequest, Deleted, DeletedTopic, Durability, Gap,
    GapReason, NewRecord, NodeFilter, ReadBatch, ReadBuffers, ReadFrom, ReadRequest, RecordView,
    Sought, Tombstone, TopicMatch, TopicState, TopicSummary,
};
pub use config::{ConfigPatch, Discard, TopicConfig, TopicType};
pub use delivery::{
    Closer, Event, Frame, SessionInfo, Watch, WatchOptions, WatchRequest, WatchStart, watch_names,
};
pub use engine::{Completion, Engine};
pub use error::{Error, Result};
pub use metrics::{BUCKETS, HistogramSnapshot, MetricsSnapshot};
pub use options::{AutoCreate, Options, RecoveryMode};
pub use queue::api::{
    Claim, Claimed, Held, JobState, Lease, Peeked, PeekedJob, QueueState, Redrive, Redriven,
    Settled,
};
pub use recovery::make_directory;
pub use router::{Guarantee, RouterInfo, RouterRequest};
pub use survey::{Survey, Surveyed};
pub use topic::{
    Consumer, ConsumerInfo, ConsumerMode, ConsumerRead, ConsumerStart, SeekTo, SegmentMap, Stretch,
    Tier, Work,
};
pub use topics_storage::recovery::RecoveryProgress;
pub use txn::{
    CommitRequest, Committed, CommittedTopic, StageRequest, Staged, StagedState, TxnAck, TxnCursor,
    TxnRequest, TxnRows, TxnStage, TxnWork, WriterState, WriterSummary,
};
pub use verify::{Loss, Problem, Progress, Repair, Report, plan_repair, repair, verify};
