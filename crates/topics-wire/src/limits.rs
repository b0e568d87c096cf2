//! Limits of requests over HTTP.

/// Every field states its default; the variable is `TOPICS_MAX_` and its name.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Records per write; default 10 000.
    pub batch_records: usize,
    /// Bytes of `data` and `meta` of one record; default 1 MiB.
    pub record_bytes: usize,
    /// Bytes of `meta` as JSON; default 16 KiB.
    pub meta_bytes: usize,
    /// Bytes of a tag; default 256.
    pub tag_bytes: usize,
    /// Bytes of a node; default 128.
    pub node_bytes: usize,
    /// Records per read; default 1000.
    pub limit: usize,
    /// Jobs per claim and per peek; default 1000.
    pub claim: usize,
    /// Topics and patterns of a watch; default 256.
    pub watch_topics: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_records: 10_000,
            record_bytes: 1 << 20,
            meta_bytes: 16 << 10,
            tag_bytes: 256,
            node_bytes: 128,
            limit: 1000,
            claim: 1000,
            watch_topics: 256,
        }
    }
}

/// Keys of a record's `meta`.
pub const META_KEYS: usize = 64;
/// Bytes of an idempotency key.
pub const KEY_BYTES: usize = 256;
/// Records of a read when the request names no limit.
pub const DEFAULT_LIMIT: usize = 256;
/// Rows of a read as Arrow.
pub const ARROW_LIMIT: usize = 1_000_000;
/// Payload bytes of a read when the request names none.
pub const DEFAULT_READ_BYTES: usize = 1 << 20;
/// Payload bytes of a read at most.
pub const MAX_READ_BYTES: usize = 8 << 20;
/// Milliseconds that a read waits at most.
pub const MAX_WAIT_MS: u64 = 30_000;
/// Entries of a page when the request names no size, and at most.
pub const PAGE: (usize, usize) = (100, 1000);
/// Topics in one answer of the state of many.
pub const MAX_STATES: usize = 10_000;
/// Jobs in one ack, nack or extend.
pub const MAX_SEQS: usize = 1000;
/// Milliseconds between two heartbeats when the request names none.
pub const HEARTBEAT_MS: u64 = 15_000;
/// Records of an event, whatever the settings say.
pub const EVENT_LIMIT: usize = 10_000;
/// Topics of a watch without a session.
pub const QUERY_TOPICS: usize = 64;
/// Most topics whose cursors an event's id spells out.
pub const ID_TOPICS: usize = 64;
