//! Requests and responses of the verbs. Borrowed bytes in, owned buffers out.

pub use super::batch::{ReadBatch, ReadBuffers, RecordView};
use super::config::{ConfigPatch, TopicConfig, TopicType};
use super::error::Result;

/// The durability class of a topic: what an acked write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing: records are in memory only.
    Ephemeral,
    /// No promise: a write is acked when it is staged.
    Memory,
    /// The death of the process: a write is acked when it is written.
    #[default]
    Disk,
    /// Crashes and power loss: a write is acked when it is synced.
    Fsync,
}

impl Durability {
    /// Every class, the weakest first.
    pub const ALL: [Self; 4] = [Self::Ephemeral, Self::Memory, Self::Disk, Self::Fsync];

    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ephemeral => "ephemeral",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Fsync => "fsync",
        }
    }
}

/// One record of a write. Byte strings are stored as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewRecord<'a> {
    /// The payload.
    pub data: &'a [u8],
    /// Whether the payload is raw bytes; otherwise it is JSON text that the caller has validated.
    pub binary: bool,
    /// The tag that deletes and reads match; empty is absent.
    pub tag: &'a [u8],
    /// Origin label; empty is absent (then [`Append::node`] applies).
    pub node: &'a [u8],
    /// A JSON object of strings, as text; empty is absent. The caller has validated its shape.
    pub meta: &'a [u8],
    /// Time to live of the record, ms; 0 is none.
    pub ttl_ms: u64,
    /// Queue: the lane, 0…9; a lower one is claimed first. `None`: 5.
    pub lane: Option<u8>,
    /// Queue: at most one job of a group is leased at a time, in seq order; at most 128 bytes,
    /// empty is none.
    pub group: &'a [u8],
    /// Queue: time for which claims do not see the job, ms; 0 is none.
    pub delay_ms: u64,
    /// Queue: wall time until which claims do not see the job, ms; 0 is none. With both, the later one
    /// counts.
    pub deliver_at: u64,
}

impl NewRecord<'_> {
    /// Whether the record has options that only jobs have.
    pub(crate) fn is_job(&self) -> bool {
        self.lane.is_some() || !self.group.is_empty() || self.delay_ms > 0 || self.deliver_at > 0
    }
}

/// A write of one batch to one topic, all or nothing.
#[derive(Clone, Debug, Default)]
pub struct Append<'a> {
    /// The records, in order; at least one.
    pub records: &'a [NewRecord<'a>],
    /// Node of the records that have none.
    pub node: &'a [u8],
    /// Idempotency key, at most 256 bytes; empty is none.
    pub key: &'a [u8],
    /// Refuses the write unless `head_seq` equals this when the seqs are assigned.
    pub expect_head: Option<u64>,
    /// Whether to wait until the write is durable, in every class.
    pub sync: bool,
    /// Whether to create a missing topic; `None`: as the engine's `auto_create` says.
    pub create: Option<bool>,
    /// Config at creation. If the topic exists, only another `type` or `durability` is an error.
    pub config: Option<&'a ConfigPatch>,
    /// Whether to wait for a staging permit without limit, instead of being refused.
    pub disable_backpressure: bool,
}

/// The answer to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The topic's id.
    pub topic_id: u64,
    /// Seq of the first record.
    pub first_seq: u64,
    /// Seq of the last record.
    pub last_seq: u64,
    /// The head after the write.
    pub head_seq: u64,
    /// Records in the write.
    pub count: u64,
    /// Whether the write created the topic.
    pub created: bool,
    /// Whether this is the answer to an earlier call with the same idempotency key.
    pub deduped: bool,
    /// The class it was acked under.
    pub durability: Durability,
    /// Nanoseconds spent waiting for the WAL write.
    pub wal_append_ns: u64,
    /// Nanoseconds spent waiting for a sync.
    pub fsync_ns: u64,
    /// Nanoseconds that pressure made the write wait: for a staging permit or for memory.
    pub throttle_ns: u64,
}

/// The answer to a create call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    /// The topic's id.
    pub topic_id: u64,
    /// False when it existed.
    pub created: bool,
    /// The whole config after the call.
    pub config: TopicConfig,
}

/// The answer to a topic delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedTopic {
    /// False when there was none.
    pub deleted: bool,
    /// Names of the routers that were deleted with it.
    pub routers_removed: Vec<String>,
}

/// Where a read begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// Records after this seq; 0 is before the first record ever.
    After(u64),
    /// The first record that is kept, without a tombstone for records before it.
    Earliest,
    /// This many records before the head.
    Tail(u64),
    /// With this seq excluded, the newest `limit` records below it (paging backwards).
    Before {
        /// Exclusive upper bound.
        seq: u64,
        /// How many records back.
        tail: u64,
    },
}

/// Nodes whose records a reader skips.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFilter(pub Vec<Vec<u8>>);

/// Which tags a delete or a filtered read selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicMatch {
    /// Exactly this tag.
    Eq(Vec<u8>),
    /// Tags with this prefix (`x*` is the prefix `x`).
    Glob(Vec<u8>),
}

/// A read of one topic.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Where it begins.
    pub from: ReadFrom,
    /// Inclusive end; `None`: the head.
    pub upto: Option<u64>,
    /// Maximum number of records returned.
    pub limit: usize,
    /// Maximum payload bytes returned; at least one record is returned if there is any.
    pub max_bytes: usize,
    /// Nodes to skip.
    pub skip_nodes: NodeFilter,
    /// Returns only records with these tags.
    pub matching: Option<TopicMatch>,
    /// The topic id that the cursor was made with; a mismatch is tombstone `recreated`.
    pub topic_id: Option<u64>,
    /// Whether to return only synced records.
    pub strong: bool,
    /// Whether the read counts as consumption for the automatic priority.
    pub touch: bool,
    /// Returns the seqs of the records and nothing else: `ts` and `lag_ms` are 0, every other field is
    /// empty. The index has them, so the records are not read, and damage of a record is not noticed.
    /// With `skip_nodes` or records that expire by themselves they are read all the same.
    pub only_seqs: bool,
}

impl Default for ReadRequest {
    fn default() -> Self {
        Self {
            from: ReadFrom::After(0),
            upto: None,
            limit: 256,
            max_bytes: 1 << 20,
            skip_nodes: NodeFilter::default(),
            matching: None,
            topic_id: None,
            strong: false,
            touch: true,
            only_seqs: false,
        }
    }
}

/// Why records are missing that no caller deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GapReason {
    /// Evicted by a cap.
    Cap,
    /// Expired.
    Ttl,
    /// Evicted and expired.
    Mixed,
    /// The topic was deleted and created again.
    Recreated,
    /// The source of a router had lost the records.
    SourceTrim,
    /// Lost in a crash.
    Crash,
    /// The records had a class that does not survive a restart.
    Restart,
    /// Damaged bytes.
    Corrupt,
}

impl GapReason {
    /// Number of reasons.
    pub(crate) const COUNT: usize = 8;

    /// The number in frames and snapshots.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// The reason with this number.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        use GapReason::*;
        [Cap, Ttl, Mixed, Recreated, SourceTrim, Crash, Restart, Corrupt]
            .get(usize::from(code))
            .copied()
    }

    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cap => "cap",
            Self::Ttl => "ttl",
            Self::Mixed => "mixed",
            Self::Recreated => "recreated",
            Self::SourceTrim => "source_trim",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::Corrupt => "corrupt",
        }
    }
}

/// A range of lost seqs that no caller deleted, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First missing seq.
    pub from: u64,
    /// Last missing seq.
    pub to: u64,
    /// Why.
    pub reason: GapReason,
}

/// The in-band notice of a gap below a reader's cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// First missing seq.
    pub gap_from: u64,
    /// Last missing seq.
    pub gap_to: u64,
    /// Why (informative; the range is authoritative).
    pub reason: GapReason,
    /// Maximum number of live records that the range had.
    pub missed_estimate: u64,
    /// First live seq now.
    pub earliest_seq: u64,
    /// Last assigned seq now.
    pub head_seq: u64,
}

impl Tombstone {
    /// The cursor of a reader that has the tombstone. The range of [`GapReason::Recreated`] is of a topic
    /// that is gone: the reader has none of the records of the new one, whose seqs are the same.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        match self.reason {
            GapReason::Recreated => self.gap_from - 1,
            _ => self.gap_to,
        }
    }
}

/// The answer to a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sought {
    /// The cursor just before the first record at or after the time.
    pub seq: u64,
    /// Records whose times were read.
    pub records_scanned: u64,
}

/// A delete request; at least one of the two fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteRequest {
    /// Deletes records with a smaller seq.
    pub before_seq: Option<u64>,
    /// Deletes records with a matching tag.
    pub matching: Option<TopicMatch>,
}

/// The answer to a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Records removed by this call.
    pub deleted: u64,
    /// Records that its match found, including those that were removed before.
    pub records_scanned: u64,
    /// The topic's state afterwards.
    pub state: TopicState,
}

/// The state of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicState {
    /// Name.
    pub topic: String,
    /// Id; never assigned again.
    pub topic_id: u64,
    /// Raised at every creation.
    pub epoch: u64,
    /// Last assigned seq that readers may see.
    pub head_seq: u64,
    /// First live seq, `head_seq + 1` when nothing is live.
    pub earliest_seq: u64,
    /// The seq after the last evicted or expired record; never falls.
    pub evict_floor: u64,
    /// The seq that the next record gets.
    pub next_seq: u64,
    /// Live records.
    pub count: u64,
    /// Live bytes: data + meta + tag + node + attributes.
    pub bytes: u64,
    /// Lost ranges above the floor.
    pub gaps: Vec<Gap>,
    /// Config.
    pub config: TopicConfig,
    /// Priority now.
    pub effective_priority: i32,
    /// Time of the last write, ms; `None` before the first.
    pub last_write_ts: Option<u64>,
    /// Time of the last read, ms; `None` before the first.
    pub last_read_ts: Option<u64>,
    /// Counts of a queue.
    pub queue: Option<super::queue::QueueState>,
}

/// An entry of a topic list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicSummary {
    /// Name.
    pub topic: String,
    /// Log or queue.
    pub kind: TopicType,
    /// Last seq.
    pub head_seq: u64,
    /// First live seq.
    pub earliest_seq: u64,
    /// Live records.
    pub count: u64,
    /// Live bytes.
    pub bytes: u64,
    /// Durability class.
    pub durability: Durability,
    /// Priority now.
    pub effective_priority: i32,
}

/// Is called once with the outcome, from the thread that completes the call; must not block.
pub type Completion<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// Keeps an engine open while a handle of it exists.
pub(crate) type Owner = std::sync::Arc<dyn std::any::Any + Send + Sync>;
