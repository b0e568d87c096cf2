//! A topic's configuration, its defaults, its updates.

use crate::api::Durability;

/// What kind of topic it is; immutable after creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopicType {
    /// An append-only log.
    #[default]
    Log,
    /// A leased job queue.
    Queue,
}

/// What happens at a cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// The oldest live records are evicted.
    #[default]
    Old,
    /// The write is refused before a seq is assigned.
    Reject,
}

/// The full configuration of a topic. Durations are milliseconds; 0 switches a limit off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// `log` or `queue`.
    pub kind: TopicType,
    /// A record is expired when `now - ts > ttl_ms`.
    pub ttl_ms: u64,
    /// Most live records kept.
    pub cap_records: u64,
    /// Most live payload bytes kept.
    pub cap_bytes: u64,
    /// What happens at a cap.
    pub discard: Discard,
    /// The durability class of its writes.
    pub durability: Durability,
    /// Manual priority within ±1000; `None`: automatic.
    pub priority: Option<i32>,
    /// Derive the priority from recency when there is no manual one.
    pub auto_priority: bool,
    /// Re-creation by routers and dead letters.
    pub auto_create: bool,
    /// How long an idempotency key is remembered.
    pub idempotency_window_ms: u64,
    /// Whether node filtering applies to reads.
    pub dedupe_node: bool,
    /// Queue: default lease, 100…86 400 000.
    pub lease_ms: u64,
    /// Queue: coalescing window of a claim, 0…5000.
    pub claim_jitter_ms: u64,
    /// Queue: deliveries before a job is a dead letter; 0: no limit.
    pub max_deliveries: u64,
    /// Queue: where dead letters go.
    pub dead_letter: Option<String>,
    /// Queue: delay of a nack without one.
    pub retry_backoff_ms: u64,
    /// Queue: no claims are given.
    pub paused: bool,
    /// Queue: whether lease events are logged.
    pub leases_durable: bool,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            kind: TopicType::Log,
            ttl_ms: 0,
            cap_records: 0,
            cap_bytes: 0,
            discard: Discard::Old,
            durability: Durability::Disk,
            priority: None,
            auto_priority: true,
            auto_create: true,
            idempotency_window_ms: 120_000,
            dedupe_node: true,
            lease_ms: 30_000,
            claim_jitter_ms: 0,
            max_deliveries: 0,
            dead_letter: None,
            retry_backoff_ms: 1000,
            paused: false,
            leases_durable: false,
        }
    }
}

/// The fields that a request names; the others stay as they are (or default at creation).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigPatch {
    /// See [`TopicConfig::kind`].
    pub kind: Option<TopicType>,
    /// See [`TopicConfig::ttl_ms`].
    pub ttl_ms: Option<u64>,
    /// See [`TopicConfig::cap_records`].
    pub cap_records: Option<u64>,
    /// See [`TopicConfig::cap_bytes`].
    pub cap_bytes: Option<u64>,
    /// See [`TopicConfig::discard`]; a queue's default is `Reject`.
    pub discard: Option<Discard>,
    /// See [`TopicConfig::durability`].
    pub durability: Option<Durability>,
    /// See [`TopicConfig::priority`]; `Some(None)` sets automatic.
    pub priority: Option<Option<i32>>,
    /// See [`TopicConfig::auto_priority`].
    pub auto_priority: Option<bool>,
    /// See [`TopicConfig::auto_create`].
    pub auto_create: Option<bool>,
    /// See [`TopicConfig::idempotency_window_ms`].
    pub idempotency_window_ms: Option<u64>,
    /// See [`TopicConfig::dedupe_node`].
    pub dedupe_node: Option<bool>,
    /// See [`TopicConfig::lease_ms`].
    pub lease_ms: Option<u64>,
    /// See [`TopicConfig::claim_jitter_ms`].
    pub claim_jitter_ms: Option<u64>,
    /// See [`TopicConfig::max_deliveries`].
    pub max_deliveries: Option<u64>,
    /// See [`TopicConfig::dead_letter`]; `Some(None)` removes it.
    pub dead_letter: Option<Option<String>>,
    /// See [`TopicConfig::retry_backoff_ms`].
    pub retry_backoff_ms: Option<u64>,
    /// See [`TopicConfig::paused`].
    pub paused: Option<bool>,
    /// See [`TopicConfig::leases_durable`].
    pub leases_durable: Option<bool>,
}
