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
