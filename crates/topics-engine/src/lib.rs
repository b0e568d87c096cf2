//! Topics: what a topic-log promises, over `topics-storage`.
//!
//! The API is synchronous and knows neither JSON nor HTTP nor Python.
#![deny(missing_docs)]

mod archive;
mod catalog;
mod checkpoint;
mod consumer;
mod ctx;
mod delivery;
mod engine;
mod queue;
mod recovery;
mod restore;
mod router;
mod ship;
mod tier;
mod topic;
mod txn;
mod types;
mod verbs;

pub use archive::Archived;
pub use consumer::Consumer;
pub use delivery::{
    Closer, Event, EventHistory, Frame, Received, Session, SessionInfo, Watch, WatchOptions,
    WatchRequest, WatchStart, watch_names,
};
pub use engine::Engine;
pub use engine::backup::BackupSummary;
pub use engine::survey::{Survey, Surveyed};
pub use engine::verify::{Loss, Problem, Progress, Repair, Report, plan_repair, repair, verify};
pub use queue::Work;
pub use recovery::make_directory;
pub use restore::{RestoreRequest, Restored, restore};
pub use router::{Guarantee, RouterInfo, RouterRequest};
pub use ship::{ShipStatus, Shipped};
pub use topic::{SegmentMap, SeqRange, Tier};
pub use topics_storage::recovery::RecoveryProgress;
pub use topics_storage::segment::Fetch;
pub use topics_storage::{BUCKETS, HistogramSnapshot};
pub use txn::{
    CommitRequest, Committed, CommittedTopic, StageRequest, Staged, StagedState, TxnAck, TxnCursor,
    TxnRequest, TxnRows, TxnStage, TxnWork, WriterState, WriterSummary,
};
pub use types::api::{
    Append, Appended, Completion, CreatedTopic, DeleteRequest, Deleted, DeletedTopic, Durability,
    Gap, GapReason, NewRecord, NodeFilter, ReadBatch, ReadBuffers, ReadFrom, ReadRequest,
    RecordView, Sought, Tombstone, TopicMatch, TopicState, TopicSummary,
};
pub use types::config::{ConfigPatch, Discard, TopicConfig, TopicType};
pub use types::consumer::{ConsumerInfo, ConsumerMode, ConsumerRead, ConsumerStart, SeekTo};
pub use types::error::{Error, Result, clipped};
pub use types::metrics::MetricsSnapshot;
pub use types::name;
pub use types::options::{AutoCreate, Options, RecoveryMode, RemoteLimits, RemoteOptions};
pub use types::pending_calls::WaitId;
pub use types::queue::{
    Claim, Claimed, JobState, Lease, LeaseEnd, LeaseOutcome, LeasedJobs, Peeked, PeekedJob,
    QueueState, Redrive, Redriven,
};
pub use types::requests::{
    REMOTE_OPS, REMOTE_OUTCOMES, RemoteSnapshot, RemoteState, RequestsSnapshot,
};
pub use types::wait::{on_blocking, while_blocked};
pub use verbs::Existing;
