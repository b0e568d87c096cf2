//! Limits of requests over HTTP.

/// Every field states its default; the variable is `TOPICS_MAX_` and its name.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a body, and what the compressed buffers of one in Arrow may decompress to; default
    /// 64 MiB; 0: no limit, for these 1 GiB. What receives a body applies it to the body itself.
    pub body_bytes: usize,
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
            body_bytes: 64 << 20,
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

/// Maximum number of keys of a record's `meta`.
pub const META_KEYS: usize = 64;
/// Maximum bytes of an idempotency key.
pub const KEY_BYTES: usize = 256;
/// Records of a read when the request names no limit.
pub const DEFAULT_LIMIT: usize = 256;
/// Maximum rows of an Arrow read.
pub const ARROW_LIMIT: usize = 1_000_000;
/// Payload bytes of a read when the request names none.
pub const DEFAULT_READ_BYTES: usize = 1 << 20;
/// Payload bytes of an Arrow batch when the request names none. A stream holds up to three batches in
/// memory.
pub const BATCH_BYTES: usize = 2 << 20;
/// Maximum payload bytes of a read or an Arrow batch.
pub const MAX_READ_BYTES: usize = 8 << 20;
/// Maximum wait of a read, in milliseconds.
pub const MAX_WAIT_MS: u64 = 30_000;
/// Default and maximum number of entries of a page.
pub const PAGE_SIZE: (usize, usize) = (100, 1000);
/// Maximum number of topics in one answer of `states`.
pub const MAX_STATES: usize = 10_000;
/// Maximum number of jobs in one ack, nack, release or extend.
pub const MAX_SEQS: usize = 1000;
/// Milliseconds between two heartbeats when the request names none.
pub const HEARTBEAT_MS: u64 = 15_000;
/// Maximum records of an event, whatever the settings say.
pub const EVENT_LIMIT: usize = 10_000;
/// Maximum topics of a watch without a session.
pub const QUERY_TOPICS: usize = 64;
/// Maximum number of topics whose cursors an event id contains.
pub const ID_TOPICS: usize = 64;
