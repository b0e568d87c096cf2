//! The engine's errors, in the terms of the verbs, with the facts that a caller needs.

use std::path::Path;
use std::sync::Arc;

use topics_remote::RemoteError;
use topics_storage::StorageError;
use topics_storage::segment::Fetch;

use super::queue::LeaseEnd;

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verb failed. Each variant has one stable snake_case code, [`Error::code`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request itself is wrong: says which field, and what is allowed.
    #[error("{0}")]
    InvalidRequest(String),
    /// Too many records or bytes in one write.
    #[error("the batch has {got} {unit}, the limit is {max}: split it")]
    BatchTooLarge {
        /// What was sent.
        got: u64,
        /// The limit.
        max: u64,
        /// `records` or `bytes`.
        unit: &'static str,
    },
    /// One record is over a size limit, or over the topic's whole cap.
    #[error("record {index}: {what} is {got} bytes, the limit is {max}")]
    RecordTooLarge {
        /// Position in the batch.
        index: usize,
        /// Which part: `data + meta`, `tag`, `node`, `meta`, `cap_bytes` …
        what: &'static str,
        /// Bytes (or records, for `cap_records`).
        got: u64,
        /// The limit.
        max: u64,
    },
    /// No topic of this name.
    #[error("topic {0:?} does not exist: create it, or write to it with auto-create on")]
    TopicNotFound(String),
    /// The topic exists with a config that differs in a named field.
    #[error("topic {topic:?} exists with {field} {actual}, not {wanted}: {}", keeps(field))]
    TopicExistsIncompatible {
        /// The topic.
        topic: String,
        /// The config field.
        field: &'static str,
        /// Its value.
        actual: String,
        /// The value asked for.
        wanted: String,
    },
    /// A creation of a topic that exists.
    #[error("topic {0:?} already exists: configure changes its options, ensure compares them")]
    AlreadyExists(String),
    /// `if_empty` on a topic with live records.
    #[error("topic {topic:?} has {count} live records")]
    TopicNotEmpty {
        /// The topic.
        topic: String,
        /// Live records.
        count: u64,
    },
    /// `expect_head` differs from the head.
    #[error(
        "topic {topic:?}: head_seq is {actual}, not {expected}: read up to {actual}, and decide again"
    )]
    HeadMismatch {
        /// The topic.
        topic: String,
        /// What the caller expected.
        expected: u64,
        /// The head when the write was decided.
        actual: u64,
    },
    /// An idempotency key was used before with another body.
    #[error(
        "topic {topic:?}: this idempotency key was used for other records within the window: use \
         another key"
    )]
    IdempotencyMismatch {
        /// The topic.
        topic: String,
    },
    /// A queue option or verb on a log topic.
    #[error("topic {0:?} is not a queue")]
    NotAQueue(String),
    /// No consumer of this name.
    #[error("topic {topic:?} has no consumer {consumer:?}")]
    ConsumerNotFound {
        /// The topic.
        topic: String,
        /// The consumer.
        consumer: String,
    },
    /// Another reader has the consumer, and the call does not wait; retryable.
    #[error("consumer {consumer:?} of topic {topic:?} is being read by another")]
    ConsumerBusy {
        /// The topic.
        topic: String,
        /// The consumer.
        consumer: String,
    },
    /// Another reader took the consumer over.
    #[error(
        "consumer {consumer:?} of topic {topic:?}: another reader took it over at {taken_at} (ms since \
         the Unix epoch), and continues from the stored cursor; open a new handle to take it back, or share \
         the work by a queue"
    )]
    ConsumerFenced {
        /// The topic.
        topic: String,
        /// The consumer.
        consumer: String,
        /// When it was taken over, ms since the Unix epoch.
        taken_at: u64,
    },
    /// A write is larger than a cap with `discard=reject`, so that it can never fit.
    #[error(
        "topic {topic:?} takes {max} {unit} in all ({what}, discard=reject) and the write has \
         {got}: write less at a time, or raise {what}"
    )]
    WriteOverCap {
        /// The topic.
        topic: String,
        /// `cap_records` or `cap_bytes`.
        what: &'static str,
        /// `records` or `bytes`.
        unit: &'static str,
        /// What the write has.
        got: u64,
        /// The cap.
        max: u64,
    },
    /// A cap with `discard=reject` refuses the write; retryable.
    #[error("topic {topic:?} is full: {what} {max}")]
    TopicFull {
        /// The topic.
        topic: String,
        /// `cap_records` or `cap_bytes`.
        what: &'static str,
        /// Its value.
        max: u64,
    },
    /// Overload: staging, keys, or a resource cap; retryable.
    #[error("throttled: {limit} (limit {max}), retry in {retry_after_ms} ms")]
    Throttled {
        /// What is exhausted.
        limit: &'static str,
        /// Its maximum.
        max: u64,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The disk refuses: reason `no_space`, `poisoned`, `io`, `read_only`; or no file can be opened,
    /// `no_descriptors`. Retryable later.
    #[error("storage is unavailable ({reason}): {detail}")]
    StorageUnavailable {
        /// Stable reason word.
        reason: &'static str,
        /// What happened, where.
        detail: String,
    },
    /// The next records are in the object store, and are being fetched. Read again when the fetch has
    /// ended; calls that may wait do so themselves.
    #[error(
        "the next records are being fetched from the object store: read again when they are here"
    )]
    ColdPending(Arc<Fetch>),
    /// Records in the object store cannot be fetched; retryable.
    #[error("{detail}")]
    ColdUnavailable {
        /// What cannot be fetched, why, and what to do.
        detail: String,
    },
    /// Records of class `memory` were acked, and the write that followed failed. A sync reports it once.
    #[error(
        "records {from} to {to} of topic {topic:?} were acked before they were written, and are lost: \
         {detail}; readers get a gap instead of them. Append them again"
    )]
    DataLoss {
        /// The topic.
        topic: String,
        /// The first lost seq.
        from: u64,
        /// The last one.
        to: u64,
        /// The first failure.
        detail: String,
    },
    /// Bytes that fail their checksum.
    #[error("{file} is corrupt at offset {offset}: {detail}")]
    Corrupt {
        /// The file, relative to the data directory.
        file: String,
        /// Byte offset.
        offset: u64,
        /// What is wrong, and what to run.
        detail: String,
    },
    /// Another engine has the directory open.
    #[error("{dir} is open in {}{}", holder(*pid), url.as_ref().map(|u| format!(", which serves {u}: connect to it instead")).unwrap_or_default())]
    Locked {
        /// The directory.
        dir: String,
        /// The holder; 0 where its lock file was removed or replaced, so that it is not known.
        pid: u32,
        /// The holder's server, if it has one.
        url: Option<String>,
    },
    /// The data directory cannot be made, or cannot be one.
    #[error("the data directory {dir} cannot be used: {detail}")]
    Directory {
        /// The directory.
        dir: String,
        /// What stands in the way, and what to do about it.
        detail: String,
    },
    /// A data directory, file or frame of another format version.
    #[error("{what} has format version {found}, this build reads {supported}")]
    Version {
        /// Which file.
        what: String,
        /// The version found.
        found: u32,
        /// The version this build knows.
        supported: u32,
    },
    /// No router of this name.
    #[error("router {0:?} does not exist")]
    RouterNotFound(String),
    /// A router has other topics than the request, or another source feeds its destination.
    #[error("router {router:?}: {}", router_conflict(reason, existing_source, existing_dest))]
    RouterConflict {
        /// The router that was asked for.
        router: String,
        /// `router_repoint_forbidden` or `router_dest_fan_in`.
        reason: &'static str,
        /// The source of the existing router.
        existing_source: String,
        /// The destination of the existing router.
        existing_dest: String,
    },
    /// A router would close a cycle.
    #[error("router {router:?} would close a cycle: {}", path.join(" → "))]
    RouterCycle {
        /// The router.
        router: String,
        /// From the source, through the destination, back to the source.
        path: Vec<String>,
    },
    /// A stage that a commit lists is missing, swept, or not what the commit says; nothing was
    /// published.
    #[error("writer {writer:?}: stage {stage:?} is incomplete: {detail}")]
    TxnIncomplete {
        /// The writer.
        writer: String,
        /// The stage.
        stage: String,
        /// What is missing.
        detail: String,
    },
    /// An epoch below the writer's last one.
    #[error("writer {writer:?}: epoch {epoch} is over, the last one is {last}")]
    StaleEpoch {
        /// The writer.
        writer: String,
        /// The epoch of the commit.
        epoch: u64,
        /// The last one that was committed.
        last: u64,
    },
    /// The writer's last epoch, or an older one, and another query committed the last.
    #[error(
        "writer {writer:?}: query {query:?} commits epoch {epoch}, but query {committed_by:?} has \
         committed epochs up to {last}: give each query a writer of its own, or delete the writer"
    )]
    EpochOfOtherQuery {
        /// The writer.
        writer: String,
        /// The epoch of the commit.
        epoch: u64,
        /// The last one that was committed.
        last: u64,
        /// The query that committed it; empty: a commit without one.
        committed_by: String,
        /// The query that asks.
        query: String,
    },
    /// No transaction writer of this name.
    #[error("transaction writer {0:?} has committed nothing and staged nothing")]
    TxnNotFound(String),
    /// A transaction acks a job that its worker does not hold.
    #[error("queue {queue:?}: the lease of job {seq} is lost ({})", reason.as_str())]
    LeaseLost {
        /// The queue.
        queue: String,
        /// The job.
        seq: u64,
        /// Why.
        reason: LeaseEnd,
    },
    /// The watch session was ended, or collected after five minutes without a stream; or this stream
    /// of it was replaced by a later one.
    #[error("the watch session is gone, or another stream of it was opened: create one")]
    SessionGone,
    /// The engine is closed, or closing.
    #[error("the engine is closed")]
    Closed,
    /// A bug: an invariant did not hold.
    #[error("internal error: {0}")]
    Internal(String),
}

/// A process as a message names it.
fn holder(pid: u32) -> String {
    match pid {
        0 => "another process, whose lock file was removed: end that process first".to_owned(),
        pid => format!("process {pid}"),
    }
}

/// What to do about an option with which a topic, or a consumer, exists.
fn keeps(field: &str) -> &'static str {
    match field {
        "durability" => "leave durability out, or configure the topic first",
        "type" => "a topic keeps its type; use another name",
        _ => "a consumer keeps its mode; leave mode out, or use another name",
    }
}

/// Why a router is refused, and what to do.
fn router_conflict(reason: &str, source: &str, dest: &str) -> String {
    match reason {
        "router_repoint_forbidden" => format!(
            "it copies {source:?} to {dest:?}, and a router keeps its topics; delete it first, or use \
             another name"
        ),
        _ => format!(
            "topic {dest:?} is already the destination of a router from {source:?}, and a destination \
             has one source; name another destination"
        ),
    }
}

impl Error {
    /// Adds what to run about damage, where a repair of the directory can help.
    #[must_use]
    pub(crate) fn with_repair_advice(self, dir: &Path) -> Self {
        match self {
            Self::Corrupt { file, offset, detail }
                if !detail.contains("topics repair") && !detail.contains("restore a backup") =>
            {
                let dir = dir.display();
                let detail = format!(
                    "{detail}: run `topics repair --data-dir {dir}` to see what would be given up"
                );
                Self::Corrupt { file, offset, detail }
            }
            e => e,
        }
    }

    /// The stable code, as on the wire.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest(_) => "invalid_request",
            Self::BatchTooLarge { .. } => "batch_too_large",
            Self::RecordTooLarge { .. } | Self::WriteOverCap { .. } => "record_too_large",
            Self::TopicNotFound(_) => "topic_not_found",
            Self::TopicExistsIncompatible { .. } | Self::RouterConflict { .. } => {
                "topic_exists_incompatible"
            }
            Self::AlreadyExists(_) => "already_exists",
            Self::TopicNotEmpty { .. } => "topic_not_empty",
            Self::HeadMismatch { .. } => "head_mismatch",
            Self::IdempotencyMismatch { .. } => "idempotency_mismatch",
            Self::NotAQueue(_) => "not_a_queue",
            Self::ConsumerNotFound { .. } => "consumer_not_found",
            Self::ConsumerBusy { .. } => "consumer_busy",
            Self::ConsumerFenced { .. } => "consumer_fenced",
            Self::TopicFull { .. } => "topic_full",
            Self::Throttled { .. } => "throttled",
            Self::StorageUnavailable { .. } => "storage_unavailable",
            Self::ColdPending(_) | Self::ColdUnavailable { .. } => "cold_unavailable",
            Self::DataLoss { .. } => "data_loss",
            Self::Corrupt { .. } => "corrupt",
            Self::Locked { .. } => "locked",
            Self::Directory { .. } => "invalid_directory",
            Self::Version { .. } => "version",
            Self::RouterNotFound(_) => "router_not_found",
            Self::RouterCycle { .. } => "router_cycle",
            Self::TxnIncomplete { .. } => "txn_incomplete",
            Self::StaleEpoch { .. } | Self::EpochOfOtherQuery { .. } => "stale_epoch",
            Self::TxnNotFound(_) => "txn_not_found",
            Self::LeaseLost { .. } => "lease_lost",
            Self::SessionGone => "session_gone",
            Self::Closed => "shutting_down",
            Self::Internal(_) => "internal",
        }
    }

    /// Whether the disk was full.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::StorageUnavailable { reason: "no_space", .. })
    }

    /// Whether a resource was exhausted. The error implies nothing about earlier writes, nor about the
    /// next attempt.
    pub(crate) fn is_shortage(&self) -> bool {
        self.is_full() || self.is_out_of_descriptors()
    }

    /// Whether no file descriptor was free.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        matches!(self, Self::StorageUnavailable { reason: "no_descriptors", .. })
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn retryable(&self) -> bool {
        matches!(
            self,
            Self::TopicFull { .. }
                | Self::ConsumerBusy { .. }
                | Self::Throttled { .. }
                | Self::StorageUnavailable { .. }
                | Self::ColdPending(_)
                | Self::ColdUnavailable { .. }
        )
    }
}

/// The beginning of a text, in whole characters, of at most `max` bytes.
#[must_use]
pub fn clipped(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len())).rev().find(|n| text.is_char_boundary(*n));
    &text[..end.unwrap_or(0)]
}

impl From<RemoteError> for Error {
    fn from(e: RemoteError) -> Self {
        match e {
            RemoteError::Storage(e) => e.into(),
            e @ RemoteError::Nothing { .. } => Self::InvalidRequest(e.to_string()),
            e => Self::StorageUnavailable { reason: "remote", detail: e.to_string() },
        }
    }
}

impl From<StorageError> for Error {
    fn from(e: StorageError) -> Self {
        let unavailable = |reason, detail| Self::StorageUnavailable { reason, detail };
        match e {
            StorageError::Full { detail } => unavailable("no_space", detail),
            e @ StorageError::NoDescriptor { .. } => unavailable("no_descriptors", e.to_string()),
            StorageError::Poisoned { detail } => unavailable("poisoned", detail),
            e @ StorageError::LockLost => unavailable("lock_lost", e.to_string()),
            StorageError::Staging => {
                Self::Throttled { limit: "staging_bytes", max: 0, retry_after_ms: 100 }
            }
            StorageError::Corrupt { file, offset, detail } => {
                Self::Corrupt { file, offset, detail }
            }
            StorageError::Version { what, found, supported } => {
                Self::Version { what, found, supported }
            }
            StorageError::Directory { dir, detail } => Self::Directory { dir, detail },
            StorageError::Locked { pid, url } => Self::Locked { dir: String::new(), pid, url },
            StorageError::Missing { what } => {
                Self::Corrupt { file: what, offset: 0, detail: "it is missing".into() }
            }
            StorageError::Closed => Self::Closed,
            StorageError::Fetching(fetch) => Self::ColdPending(fetch),
            StorageError::Unreachable { detail } => Self::ColdUnavailable { detail },
            e => unavailable("io", e.to_string()),
        }
    }
}
